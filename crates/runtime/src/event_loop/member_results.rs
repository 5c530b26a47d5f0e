//! Results of a completed task, member by member.
//!
//! Every member's part gets its outputs, its progress or its error, and metrics receive the times.
//! What the core must learn of a member that it cannot foresee is kept beside: an early end, a
//! skipped block, a failure of this member alone.

use crate::StreamedStep;
use crate::event_loop::tasks_in_flight::InFlight;
use crate::requests::jobs::{FailedMember, JobTable, LiveJob};
use ripieno_base::{BlockId, Nanos, RequestSlot, Time};
use ripieno_executor::{Loss, MemberProgress};
use ripieno_model::{Position, StepReport};
use ripieno_sched::Outcome;

/// Results of one task. The lists are used again for the next task.
#[derive(Default)]
pub(crate) struct MemberResults {
    /// Number of the task among all completed ones.
    completion: u64,
    /// Whether the request ended, for each member.
    ended: Vec<bool>,
    /// Next block of each member.
    skips: Vec<BlockId>,
    /// Whether a member skips a block.
    skipped: bool,
    /// Members that failed alone.
    failed_alone: Vec<FailedMember>,
}

/// Execution time of a task.
pub(crate) struct TaskTimes {
    pub(crate) started: Time,
    pub(crate) execution: Nanos,
    /// Set if the task failed because an engine process was missing or ended.
    pub(crate) lost: Option<Loss>,
}

impl MemberResults {
    /// Creates empty lists for tasks of at most `batch` members.
    pub(crate) fn new(batch: usize) -> MemberResults {
        MemberResults {
            completion: 0,
            ended: Vec::with_capacity(batch),
            skips: Vec::with_capacity(batch),
            skipped: false,
            failed_alone: Vec::with_capacity(batch),
        }
    }

    /// Returns for each member whether the request ended in a way that the core cannot foresee.
    /// Empty if none did.
    pub(crate) fn ended(&self) -> &[bool] {
        if self.ended.contains(&true) { &self.ended } else { &[] }
    }

    /// Returns the next block of each member. Empty if no member skips a block.
    pub(crate) fn skips(&self) -> &[BlockId] {
        if self.skipped { &self.skips } else { &[] }
    }

    /// Members that failed alone, each once.
    pub(crate) fn failed_alone(&self) -> &[FailedMember] {
        &self.failed_alone
    }

    /// Empties the lists for the completed task of this number.
    pub(crate) fn begin(&mut self, completion: u64) {
        self.completion = completion;
        self.ended.clear();
        self.skips.clear();
        self.skipped = false;
        self.failed_alone.clear();
    }

    /// Records that a task was stopped. Its parts run again from their first block.
    pub(crate) fn cancel(task: &InFlight, jobs: &mut JobTable) -> Outcome {
        for &slot in &task.members {
            let part = jobs.part(slot);
            part.in_flight -= 1;
            part.known_on.clear();
            part.device = None;
        }
        Outcome::Cancelled
    }

    /// Records the results of a task for each member.
    pub(crate) fn record(
        &mut self,
        task: &InFlight,
        results: Result<Vec<MemberProgress>, String>,
        times: &TaskTimes,
        jobs: &mut JobTable,
    ) -> Outcome {
        count_elements(task, jobs);
        count_lost(task, jobs);
        let (found, expected) = (results.as_ref().map_or(0, Vec::len), task.members.len());
        match results {
            Err(text) => self.fail(task, text, times, jobs),
            Ok(_) if found != expected => {
                let text = format!("the engine reported {found} results for {expected} requests");
                self.fail(task, text, times, jobs)
            }
            Ok(progress) => self.progress(task, progress, times, jobs),
        }
    }

    /// Records a failure of the whole task.
    fn fail(&mut self, task: &InFlight, text: String, times: &TaskTimes, jobs: &mut JobTable) -> Outcome {
        for &slot in &task.members {
            let (call, part) = self.complete_member(slot, task, times, jobs);
            let first = record_failure(call, part, text.clone());
            call.lost = call.lost.or(times.lost.filter(|_| first));
            if first && task.members.len() == 1 && times.lost.is_none() {
                self.failed_alone.push(FailedMember { slot, did_not_run: false });
            }
        }
        Outcome::Failed
    }

    /// Records the progress of each member.
    fn progress(
        &mut self,
        task: &InFlight,
        results: Vec<MemberProgress>,
        times: &TaskTimes,
        jobs: &mut JobTable,
    ) -> Outcome {
        let at = Position::before(task.block);
        let all_failed = results.iter().all(|progress| progress.failed.is_some());
        for (&slot, progress) in task.members.iter().zip(results) {
            let (call, part) = self.complete_member(slot, task, times, jobs);
            // In models that run cell by cell, the scheduler loop withdraws requests that failed
            // alone.
            let ended = if progress.failed.is_some() { !call.model.unfolds } else { progress.ended };
            let report = StepReport::for_core(ended, progress.skip, task.steps, call.model.unfolds);
            self.ended.push(report.ended);
            self.skips.push(at.next_block(report));
            if let Some(cause) = progress.failed {
                if record_failure(call, part, cause.0) {
                    call.lost = call.lost.or(progress.lost);
                    call.slow_inputs = call.slow_inputs.or(progress.slow_inputs);
                    let did_not_run = progress.refused || progress.lost.is_some();
                    self.failed_alone.push(FailedMember { slot, did_not_run });
                }
                continue;
            }
            self.skipped |= report.skip.is_some();
            let extent = call.parts[part].entry.extent;
            let early = at.exits_early(task.steps, call.model.blocks, extent, report);
            call.model.metrics.on_leaving(early, report.skip.is_some());
            let ended = progress.ended && !call.model.continues(task.block, task.steps);
            record_progress(call, part, report.ended, MemberProgress { ended, ..progress });
        }
        if all_failed {
            self.ended.clear();
            return Outcome::Failed;
        }
        Outcome::Ok
    }

    /// Records that a task with the part in `slot` has ended.
    fn complete_member<'a>(
        &self,
        slot: RequestSlot,
        task: &InFlight,
        times: &TaskTimes,
        jobs: &'a mut JobTable,
    ) -> (&'a mut LiveJob, usize) {
        let (_, call, at) = jobs.owner(slot);
        let part = &mut call.parts[at];
        part.in_flight -= 1;
        // Counts a task once, even if the task held several nodes of the part.
        if std::mem::replace(&mut part.last_completion, self.completion) != self.completion && part.result.is_none() {
            part.executed += times.execution;
            part.batch = task.rows;
        }
        if part.started.is_none() {
            part.started = Some(times.started);
            call.model.metrics.on_first_start(times.started - call.arrived, call.deadline - times.started);
        }
        (call, at)
    }
}

/// Counts the task's elements: elements of the requests' own lengths, and padding.
fn count_elements(task: &InFlight, jobs: &mut JobTable) {
    let useful = |&slot: &RequestSlot| {
        let part = jobs.part(slot);
        part.rows as u64 * u64::from(part.entry.extent.length)
    };
    let useful: u64 = task.members.iter().map(useful).sum();
    let (_, call, _) = jobs.owner(task.members[0]);
    if call.model.has_lengths {
        let padding = task.rows as u64 * u64::from(task.length) - useful;
        call.model.metrics.on_elements(useful, padding);
    }
}

/// Counts wasted and padding rows. Must run before the task's results are recorded, because a
/// result marks its request as ended.
fn count_lost(task: &InFlight, jobs: &mut JobTable) {
    let (mut wasted, mut padding) = (0, 0);
    for (at, &slot) in task.members.iter().enumerate() {
        let (_, call, part) = jobs.owner(slot);
        let part = &call.parts[part];
        let over = part.result.is_some() || (part.end_reported && task.steps.ends_by_report());
        if call.answerer.is_none() || over {
            wasted += part.rows;
        } else if task.nodes.get(at).is_some_and(|&node| part.entry.extent.skips_step(task.steps, node, false)) {
            padding += part.rows;
        }
    }
    if wasted + padding > 0 {
        let (_, call, _) = jobs.owner(task.members[0]);
        call.model.metrics.on_lost_rows(wasted, padding);
    }
}

/// Records that a task failed on a part. Returns whether the part had no result before.
fn record_failure(call: &mut LiveJob, at: usize, text: String) -> bool {
    let news = call.parts[at].result.is_none();
    call.parts[at].result.get_or_insert(Err(text));
    news
}

/// Records a task's progress on a part and delivers the step to the client.
fn record_progress(call: &mut LiveJob, at: usize, over: bool, progress: MemberProgress) {
    let MemberProgress { ended, outputs, step, .. } = progress;
    let part = &mut call.parts[at];
    if let Some(answerer) = call.answerer.as_mut().filter(|_| !step.is_empty()) {
        answerer.step(StreamedStep { outputs: step, last: ended || over });
        part.streamed = true;
    }
    part.end_reported |= over;
    if ended && part.result.is_none() {
        part.result = Some(Ok(outputs));
        call.done += 1;
    }
}
