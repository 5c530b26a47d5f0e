//! The event loop of a scheduler. It owns the scheduler, the live requests, their timers and the
//! devices.
//!
//! # Why one thread at a time
//!
//! Every request and every decision changes this state. `scheduler_thread.rs` determines which
//! thread takes a turn and when.
//!
//! # A turn
//!
//! Each turn reads the clock once. At that instant the core receives the mail, the expired requests
//! and the withdrawals. Then the core decides, and the loop performs the decisions.
//!
//! A turn reads at most [`MAILS_A_TURN`] messages, so timers are checked often under any load.
//!
//! # Parts
//!
//! Each part changes its own state only: the core, the table of jobs, the dispatcher with the
//! devices and the tasks in flight, the models with what is learnt about each. This file passes
//! facts between them. `answers.rs` ends requests, `devices.rs` adds and removes devices, and
//! `profiles.rs` corrects profiles.
//!
//! # Several loops
//!
//! A server may have several loops. Each loop then has its own models and uses devices that were
//! granted to it (docs/internals/adr/0023).
//!
//! # Invariants
//!
//! * The outbox is performed completely before the next input.
//! * A client is answered at most once, by the type of its
//!   [`Answerer`](crate::requests::answer::Answerer).
//! * A slot is freed only once nothing refers to it: its call is answered and ended in the core,
//!   and neither a task in flight nor a cancellation in the mailbox names it.

mod answers;
mod devices;
mod profiles;

use crate::event_loop::EventLoop;
use crate::event_loop::core::Core;
use crate::event_loop::dispatcher::{Dispatcher, EndedTask, TaskStart};
use crate::event_loop::joiner::Joiner;
use crate::event_loop::live_models::{LearntCosts, LearntTask, LiveModels};
use crate::event_loop::mailbox::{EngineCommand, Mail, Mailbox};
use crate::event_loop::model_ids::ModelIds;
use crate::learn::failures::FailureHistory;
use crate::learn::server_delay::ServerDelay;
use crate::metrics::SchedulerMetrics;
use crate::requests::jobs::{FailedMember, JobTable, LiveJob, PartStage};
use crate::{Aside, Clock, Failure};
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, Time};
use ripieno_calibration::Speeds;
use ripieno_executor::TaskResult;
use ripieno_sched::{Action, Control, Limits, Outcome, Prediction, Request, TaskDone};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

const MAILS_A_TURN: usize = 256;
/// Upper bound on the part of an SLO that is kept for the server itself, as its reciprocal: beyond
/// it the server is overloaded, and earlier deadlines only lose answers.
const RESERVE_PART: i64 = 4;

/// The state of one scheduler.
pub(crate) struct SchedulerLoop {
    shared: LoopShared,
    mails: Mails,
    core: Core,
    jobs: JobTable,
    dispatcher: Dispatcher,
    models: LiveModels,
    joiner: Joiner,
    failures: FailureHistory,
    speeds: Speeds,
    stage: LoopStage,
}

/// State that a loop shares with other threads.
#[derive(Clone)]
pub(crate) struct LoopShared {
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<SchedulerMetrics>,
    pub(crate) server_delay: Arc<ServerDelay>,
    pub(crate) model_ids: Arc<ModelIds>,
}

/// The mail that a loop reads and sends.
pub(crate) struct Mails {
    mailbox: Arc<Mailbox>,
    /// Mailboxes of the other shards.
    others: Vec<Arc<Mailbox>>,
    /// Messages of the current turn; empty between turns.
    batch: Vec<Mail>,
}

/// Stage in the life of a loop; no stage returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LoopStage {
    Serving,
    /// New requests are answered with the shutdown failure.
    Dismissing,
    /// This was the last turn.
    Stopped,
}

impl Mails {
    pub(crate) fn new(mailbox: Arc<Mailbox>, others: Vec<Arc<Mailbox>>) -> Mails {
        Mails { mailbox, others, batch: Vec::new() }
    }

    /// Takes the messages of a turn.
    fn take(&mut self) -> Vec<Mail> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.extend(std::iter::from_fn(|| self.mailbox.pop()).take(MAILS_A_TURN));
        batch
    }

    /// Reports a device that hangs to the other shards.
    fn report_hang(&self, id: DeviceId, rejoins: bool) {
        self.others.iter().for_each(|other| other.post(Mail::Hangs(id, rejoins)));
    }
}

impl EventLoop for SchedulerLoop {
    type Inbox = Mailbox;

    fn turn(&mut self) -> Time {
        let due = self.decide();
        self.dispatcher.slots().publish_idle();
        due
    }

    fn has_ended(&self) -> bool {
        self.stage == LoopStage::Stopped
    }
}

impl SchedulerLoop {
    /// Creates a loop with this core. Starts the thread that joins large answers.
    pub(crate) fn new(
        shared: LoopShared,
        mails: Mails,
        core: Core,
        dispatcher: Dispatcher,
        limits: &Limits,
    ) -> std::io::Result<SchedulerLoop> {
        Ok(SchedulerLoop {
            models: LiveModels::new(limits.models, Arc::clone(&shared.model_ids)),
            jobs: JobTable::new(limits.requests),
            joiner: Joiner::start()?,
            failures: FailureHistory::default(),
            speeds: Speeds::new(limits.devices, dispatcher.slots().serving()),
            stage: LoopStage::Serving,
            shared,
            mails,
            core,
            dispatcher,
        })
    }

    /// Reads the mail, decides and performs the decisions. Returns the time of the next turn; mail
    /// causes an earlier turn.
    fn decide(&mut self) -> Time {
        if !self.core.flush_link() {
            return Time::ORIGIN;
        }
        let mut batch = self.mails.take();
        let begun = self.shared.clock.now();
        let now = self.core.advance(begun);
        self.test_suspect_profiles();
        self.end_orphans(now);
        let idle = batch.is_empty();
        batch.drain(..).for_each(|mail| self.handle_mail(now, mail));
        self.mails.batch = batch;
        if self.stage == LoopStage::Stopped {
            return Time::ORIGIN;
        }
        self.expire(now);
        self.lose_hung_devices(now);
        self.withdraw();
        self.core.settle();
        for at in 0..self.core.actions() {
            self.perform(now, self.core.action(at));
        }
        // The next turn must not withdraw parts that the core has ended in this turn.
        self.jobs.drop_ended_withdrawals();
        self.forget_unloaded();
        self.remove_drained(now);
        if !idle || self.core.actions() > 0 {
            self.shared.metrics.on_turn(self.shared.clock.now() - begun);
        }
        if self.jobs.has_withdrawals() || self.dispatcher.has_orphans() {
            return Time::ORIGIN;
        }
        self.core.next_wakeup().min(self.jobs.next_expiry()).min(self.dispatcher.next_hang_check())
    }

    fn handle_mail(&mut self, now: Time, mail: Mail) {
        match mail {
            Mail::Submit(call) => self.admit(now, call),
            Mail::Cancel(lead) => self.cancel(now, lead),
            Mail::Done(device, result) => self.complete_task(now, device, result),
            Mail::Grant(grant) => self.core.grant(grant),
            Mail::Hangs(id, again) => self.lose_if_there(now, id, again),
            Mail::Order(order, confirm) => self.execute(now, order, &confirm),
            Mail::Stop => {
                self.dismiss(now);
                self.stage = LoopStage::Stopped;
            }
        }
    }

    /// Passes a request to the core. Fails the request if its model has been unloaded meanwhile.
    fn admit(&mut self, now: Time, call: Box<LiveJob>) {
        let (id, entry) = (call.id, Arc::clone(&call.model));
        let (parts, deadline, tag) = (call.parts.len() as u32, call.deadline, call.tag);
        let lead = self.jobs.insert(call);
        self.core.aside(Aside::Call { lead, model: id, parts, deadline, tag });
        if self.fail_if_no_device(now, lead) {
            return;
        }
        let dismissing = self.stage != LoopStage::Serving;
        let known = self.models.get(id).filter(|known| !dismissing && known.serves(&entry));
        let Some(known) = known else {
            self.fail(now, lead, if dismissing { Failure::ShuttingDown } else { Failure::Unloaded });
            return self.jobs.release_if_over(lead);
        };
        let call = self.jobs.call(lead);
        let margin = match self.core.learns_occupancy() {
            _ if self.core.takes_real_deadlines() => Nanos::ZERO,
            true => self.shared.server_delay.reserve().min(Nanos(entry.slo.0 / RESERVE_PART)),
            false => known.lateness(),
        };
        let replaces_defaults = !entry.loaded.optional_inputs().is_empty()
            && call.parts[0].entry.inputs().len() > entry.loaded.inputs().len();
        let isolated = self.failures.on_request(now, id, call.class.client) || replaces_defaults;
        known.enter(call, isolated);
        call.in_core = call.parts.len();
        let class = call.class;
        entry.metrics.waiting.fetch_add(call.parts.len(), std::sync::atomic::Ordering::Relaxed);
        for (part, &slot) in call.parts.iter_mut().zip(call.permit.slots()) {
            part.stage = PartStage::Waiting;
            let (arrived, deadline) = (call.arrived, call.deadline - margin);
            let (rows, extent) = (part.rows as u32, part.entry.extent);
            let request = Request { slot, model: id, arrived, deadline, rows, extent, class };
            self.core.request(&request, part.entry.graph.as_deref());
        }
    }

    fn cancel(&mut self, now: Time, lead: RequestSlot) {
        self.jobs.call(lead).cancel_read = true;
        self.fail(now, lead, Failure::Cancelled);
        self.jobs.release_if_over(lead);
    }

    /// Handles the end of a task: its members' results, what it teaches, the core's view of it, and
    /// the requests that failed in it.
    fn complete_task(&mut self, now: Time, from: DeviceId, result: TaskResult) {
        let Some(ended) = self.dispatcher.complete(now, from, result, &mut self.jobs) else { return };
        let (task, started, rerun) = (ended.task, ended.started, ended.rerun);
        self.core.aside(Aside::Ran { task, started, finished: started + ended.ran.took, rerun });
        let learnt = self.learn(now, from, &ended);
        self.jobs.disarm_ended(&ended.members);
        let (outcome, skips) = (ended.outcome, ended.results.skips());
        self.core.task_done(&TaskDone { task, outcome, ended: ended.results.ended(), skips });
        self.apply_learnt(now, from, &ended, learnt);
        self.record_failed_alone(now, ended.results.failed_alone(), outcome);
        if ended.lost.is_some_and(|lost| lost.inside) {
            self.isolate_clients(now, &ended.members);
        }
        self.jobs.release_completed(&ended.members);
        self.dispatcher.recycle(ended.members);
        self.dispatcher.recycle_results(ended.results);
    }

    /// Lets the task's model learn from it.
    fn learn(&mut self, now: Time, from: DeviceId, ended: &EndedTask) -> LearntCosts {
        let EndedTask { outcome, expected, rerun, lost, ran, host_time, .. } = *ended;
        let class = self.jobs.owner(ended.members[0]).1.class;
        // A batch that was stopped, run again or lost does not show how late batches end.
        let late_by = (outcome != Outcome::Cancelled && !rerun && lost.is_none()).then_some(now - expected);
        // As with delays in a cluster: a policy that learns how late batches are needs no reserve.
        let host_permille = if self.core.learns_occupancy() { 500 } else { 990 };
        let known = self.models.of(ended.model);
        known.end_task();
        let task = LearntTask { ran, class, host_time, host_permille, sound: ended.is_sound(), late_by };
        known.learn(now, from, &self.speeds, &task)
    }

    /// Plans with the corrected profile, or compares the device's speed with it.
    fn apply_learnt(&mut self, now: Time, from: DeviceId, ended: &EndedTask, learnt: LearntCosts) {
        if let Some(delay) = learnt.host_delay.filter(|_| !self.models.of(ended.model).is_leaving()) {
            self.core.control(Control::GatherMeasured(ended.model, delay));
        }
        if let Some(better) = learnt.better {
            self.correct_profile(ended.model, ended.ran.block, better);
        } else if let Some(cost) = learnt.cost.filter(|_| ended.is_sound() && ended.ran.alone) {
            self.observe_speed(now, from, ended.ran.took, cost);
        }
    }

    /// Records the requests of a completed task that failed alone.
    ///
    /// If all members failed, the core rejects them. If some failed, the core was told that these
    /// requests ended, and it finishes them. In models that run cell by cell, this method withdraws
    /// them instead.
    fn record_failed_alone(&mut self, now: Time, failed: &[FailedMember], outcome: Outcome) {
        for &FailedMember { slot, did_not_run } in failed {
            let (lead, call, part) = self.jobs.owner(slot);
            if !did_not_run {
                call.model.metrics.on_bad_request();
                self.failures.on_failure(now, call.id, call.class.client);
            }
            if call.model.unfolds && outcome == Outcome::Ok {
                let failure = answers::failure(call, part);
                self.fail(now, lead, failure);
            }
        }
    }

    /// Isolates the clients whose requests were in an engine process when the process ended. Any of
    /// the requests may be the cause. So the requests of these clients run alone for a while, and
    /// another crash affects no other request.
    fn isolate_clients(&mut self, now: Time, members: &[RequestSlot]) {
        let mut clients: Vec<(ModelId, u16)> = Vec::with_capacity(members.len());
        clients.extend(members.iter().map(|&slot| {
            let (_, call, _) = self.jobs.owner(slot);
            (call.id, call.class.client)
        }));
        clients.sort_unstable();
        clients.dedup();
        clients.into_iter().for_each(|(model, client)| self.failures.on_process_death(now, model, client));
    }

    fn execute(&mut self, now: Time, command: EngineCommand, confirm: &SyncSender<()>) {
        match command {
            EngineCommand::Load { id, entry, model } => {
                self.models.load(id, entry, &model);
                self.core.control(Control::ModelLoaded(id, model));
            }
            EngineCommand::Unload(id) => {
                self.models.unload(id);
                self.core.control(Control::ModelUnloaded(id));
            }
            EngineCommand::Profile { id, block, profile } => {
                if let Some(known) = self.models.get(id) {
                    known.replace_profile(block, profile.clone());
                    self.speeds.forget();
                }
                self.core.control(Control::ProfileReplaced { model: id, block, profile });
            }
            EngineCommand::Join { id, device, attached } => self.join(now, id, device, &attached),
            EngineCommand::Leave { id, lost } => self.leave(now, id, lost),
            EngineCommand::Delay(delay) => {
                self.dispatcher.network = delay;
                self.core.control(Control::NetworkDelayed(delay));
            }
            EngineCommand::Dismiss => self.dismiss(now),
        }
        // If the sender of the command is gone, the confirmation is not needed.
        let _ = confirm.try_send(());
    }

    /// Answers expired calls, whether they wait or run.
    fn expire(&mut self, now: Time) {
        while let Some(lead) = self.jobs.pop_expired(now) {
            if self.jobs.part(lead).stage == PartStage::Waiting {
                self.suspect_profile(now, lead);
            }
            self.fail(now, lead, Failure::Expired);
        }
    }

    /// Withdraws from the core the requests whose client has been answered. Outputs of running ones
    /// are discarded later.
    fn withdraw(&mut self) {
        while let Some(slot) = self.jobs.pop_withdrawal() {
            self.core.control(Control::Cancelled(slot));
        }
    }

    fn perform(&mut self, now: Time, action: Action) {
        match action {
            Action::Start { task, model, block, device, lane, length, not_before } => {
                let (members, nodes) = (self.core.members(task), self.core.nodes(task));
                let (spec, host) = self.models.of(model).start_task(block);
                let percent = self.speeds.percent(device);
                let cost = self.jobs.owner(members[0]).1.class.cost;
                let start = TaskStart {
                    task,
                    model,
                    block,
                    spec,
                    host,
                    device,
                    percent,
                    cost,
                    lane,
                    length,
                    not_before,
                    members,
                    nodes,
                };
                self.dispatcher.start(now, &start, &mut self.jobs);
            }
            Action::Finish { request } => {
                if let Some(Prediction { made, remaining }) = self.core.prediction(request) {
                    let (_, call, _) = self.jobs.owner(request);
                    call.model.metrics.on_prediction(remaining, now - made);
                }
                self.finish(now, request);
            }
            Action::Reject { request, why } => self.reject(now, request, why),
            Action::Cancel { task } => self.dispatcher.cancel(task),
        }
    }

    /// Removes unloaded models whose last request has ended.
    fn forget_unloaded(&mut self) {
        while let Some(id) = self.models.pop_unloaded() {
            self.dispatcher.slots().detach(id);
            self.failures.forget(id);
            self.models.free(id);
        }
    }

    fn dismiss(&mut self, now: Time) {
        self.stage = self.stage.max(LoopStage::Dismissing);
        for lead in self.jobs.leads() {
            self.fail(now, lead, Failure::ShuttingDown);
            self.jobs.release_if_over(lead);
        }
    }
}
