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

use crate::devices::KnownIdle;
use crate::event_loop::EventLoop;
use crate::event_loop::core::Core;
use crate::event_loop::dispatcher::{Dispatcher, EndedTask, TaskStart, stop_waiting};
use crate::event_loop::joiner::{Joiner, Pieces};
use crate::event_loop::mailbox::{EngineCommand, Mail, Mailbox};
use crate::event_loop::model_ids::ModelIds;
use crate::learn::capacity::ModelEntry;
use crate::learn::failures::FailureHistory;
use crate::learn::server_delay::ServerDelay;
use crate::learn::shapes::{ShapeSource, ShapeTable};
use crate::metrics::SchedulerMetrics;
use crate::requests::ending::Ending;
use crate::requests::jobs::{FailedMember, JobTable, LiveJob, PartStage};
use crate::{Aside, Clock, Failure, JobOutput, requests::split};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, Time};
use ripieno_calibration::{Calibration, Ran, Speeds};
use ripieno_executor::{Loss, Payload, TaskResult};
use ripieno_model::{Model, Profile};
use ripieno_sched::{Action, Control, Outcome, Prediction, Request, RequestClass, Shape, TaskDone, Why};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

const MAILS_A_TURN: usize = 256;
/// Upper bound on the part of an SLO that is kept for the server itself, as its reciprocal: beyond
/// it the server is overloaded, and earlier deadlines only lose answers.
const RESERVE_PART: i64 = 4;

/// The state of one scheduler.
pub(crate) struct SchedulerLoop {
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<SchedulerMetrics>,
    pub(crate) server_delay: Arc<ServerDelay>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Mailboxes of the other shards.
    pub(crate) others: Vec<Arc<Mailbox>>,
    pub(crate) idle: KnownIdle,
    pub(crate) model_ids: Arc<ModelIds>,
    pub(crate) core: Core,
    pub(crate) jobs: JobTable,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) joiner: Joiner,
    pub(crate) failures: FailureHistory,
    pub(crate) speeds: Speeds,
    /// Models in the core, indexed by model id.
    pub(crate) models: Vec<Option<LiveModel>>,
    /// Parts that are still in the core although their client has been answered. The next turn
    /// reports them to the core. Reporting them immediately is impossible, because the outbox may
    /// be half performed.
    pub(crate) withdrawals: Vec<RequestSlot>,
    /// Models with a suspect profile and no task in flight, each with the latency of a single row
    /// by that profile.
    pub(crate) suspect_profiles: Vec<(ModelId, Nanos)>,
    /// Unloaded models, which are removed once their last request has ended.
    pub(crate) leaving: Vec<ModelId>,
    /// Whether new requests are answered with the shutdown failure.
    pub(crate) dismissing: bool,
    /// Whether this was the last turn.
    pub(crate) stopped: bool,
    /// Messages of the current turn; empty between turns.
    pub(crate) inbox: Vec<Mail>,
}

/// A model that the core knows.
pub(crate) struct LiveModel {
    pub(crate) entry: Arc<ModelEntry>,
    /// Number of the model's request parts in the core.
    live: usize,
    /// Number of the model's tasks in flight. Tasks queued ahead may outlive the last part.
    pub(crate) tasks: usize,
    pub(crate) leaving: bool,
    /// The shapes in use, if requests differ in shape.
    pub(crate) shapes: Option<ShapeTable>,
    pub(crate) calibration: Calibration,
}

impl LiveModel {
    fn new(entry: Arc<ModelEntry>, model: &Model) -> LiveModel {
        let shapes = ShapeTable::new(&*entry.loaded, entry.unfolds);
        LiveModel { entry, live: 0, tasks: 0, leaving: false, shapes, calibration: Calibration::new(model) }
    }

    /// Replaces the profile that the scheduler plans with for a block.
    pub(crate) fn replace_profile(&mut self, block: BlockId, profile: Profile) {
        self.calibration.replace(block, profile);
        if let Some(shapes) = &mut self.shapes {
            shapes.forget_costs();
        }
    }
}

impl EventLoop for SchedulerLoop {
    type Inbox = Mailbox;

    fn turn(&mut self) -> Time {
        let due = self.decide();
        let (idle, mut known) = (self.dispatcher.slots.idle(), self.idle.lock());
        if idle.map(Arc::as_ptr).map(<*const _>::cast::<()>) != known.as_ref().map(Arc::as_ptr).map(<*const _>::cast) {
            *known = idle.cloned();
        }
        due
    }

    fn has_ended(&self) -> bool {
        self.stopped
    }
}

/// A completed task as the learners see it.
pub(crate) struct LearntTask {
    /// Block, rows and durations of the task.
    pub(crate) ran: Ran,
    /// Class of the requests.
    pub(crate) class: RequestClass,
    /// Whether the whole task ran once and without an error.
    pub(crate) sound: bool,
    /// Lateness of the end; `None` if the end does not show how late batches are.
    pub(crate) late_by: Option<Nanos>,
}

impl SchedulerLoop {
    /// Reads the mail, decides and performs the decisions. Returns the time of the next turn; mail
    /// causes an earlier turn.
    fn decide(&mut self) -> Time {
        if !self.core.flush_link() {
            return Time::ORIGIN;
        }
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.extend(std::iter::from_fn(|| self.mailbox.pop()).take(MAILS_A_TURN));
        let begun = self.clock.now();
        let now = self.core.advance(begun);
        self.test_suspect_profiles();
        self.end_orphans(now);
        let idle = inbox.is_empty();
        inbox.drain(..).for_each(|mail| self.handle_mail(now, mail));
        self.inbox = inbox;
        if self.stopped {
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
        self.withdrawals.retain(|&slot| self.jobs.in_core(slot));
        self.forget_unloaded();
        self.remove_drained(now);
        if !idle || self.core.actions() > 0 {
            self.metrics.on_turn(self.clock.now() - begun);
        }
        if !self.withdrawals.is_empty() || !self.dispatcher.orphans.is_empty() {
            return Time::ORIGIN;
        }
        self.core.next_wakeup().min(self.jobs.next_expiry()).min(self.dispatcher.hang_detector.next())
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
                self.stopped = true;
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
        let known = self.models[id.index()].as_mut();
        let known = known.filter(|known| !known.leaving && Arc::ptr_eq(&known.entry, &entry));
        let Some(known) = known.filter(|_| !self.dismissing) else {
            let why = if self.dismissing { Failure::ShuttingDown } else { Failure::Unloaded };
            self.fail(now, lead, why);
            return self.jobs.release_if_over(lead);
        };
        let call = self.jobs.call(lead);
        known.live += call.parts.len();
        let margin = match self.core.learns_occupancy() {
            _ if self.core.takes_real_deadlines() => Nanos::ZERO,
            true => self.server_delay.reserve().min(Nanos(entry.slo.0 / RESERVE_PART)),
            false => known.calibration.ahead(),
        };
        call.in_core = call.parts.len();
        let replaces_defaults = !entry.loaded.optional_inputs().is_empty()
            && call.parts[0].entry.inputs().len() > entry.loaded.inputs().len();
        if self.failures.on_request(now, id, call.class.client) || replaces_defaults {
            call.class.shape = Shape::ALONE;
        } else if let Some(shapes) = &mut known.shapes {
            let known = match &call.parts[0].entry.payload {
                Payload::Here(inputs) => ShapeSource::Inputs(inputs),
                Payload::Elsewhere(_) => ShapeSource::Sizes(call.sizes),
            };
            call.class.shape = shapes.enter(known, call.parts.len());
            call.class.cost = shapes.cost(call.class.shape);
        }
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

    fn complete_task(&mut self, now: Time, from: DeviceId, result: TaskResult) {
        let Some(ended) = self.dispatcher.complete(now, from, result, &mut self.jobs) else { return };
        let EndedTask { task, outcome, members, model, expected, rerun, lost, started, ran } = ended;
        self.core.aside(Aside::Ran { task, started, finished: started + ran.took, rerun });
        let class = self.jobs.owner(members[0]).1.class;
        // A batch that was stopped, run again or lost does not show how late batches end.
        let late_by = (outcome != Outcome::Cancelled && !rerun && lost.is_none()).then_some(now - expected);
        let sound = outcome == Outcome::Ok && !rerun;
        let learnt = self.learn(now, from, model, LearntTask { ran, class, sound, late_by });
        let unfolds = learnt.unfolds;
        for &slot in members.iter().filter(|_| !unfolds) {
            let (lead, call, part) = self.jobs.owner(slot);
            if call.done == call.parts.len() || matches!(call.parts[part].result, Some(Err(_))) {
                // The call will be answered in this turn, so its timer must not fire first.
                self.jobs.disarm(lead);
            }
        }
        self.core.task_done(&TaskDone {
            task,
            outcome,
            ended: self.dispatcher.ended(),
            skips: self.dispatcher.skips(),
        });
        if let Some(better) = learnt.better {
            self.replace_profile(model, ran.block, better);
        } else if let Some(cost) = learnt.cost.filter(|_| sound && ran.alone) {
            self.observe_speed(now, from, ran.took, cost);
        }
        self.record_failed_alone(now, outcome);
        if lost.is_some_and(|lost| lost.inside) {
            self.isolate_clients(now, &members);
        }
        self.jobs.release_completed(&members);
        self.dispatcher.recycle(members);
    }

    /// Records the requests of the last completed task that failed alone.
    ///
    /// If all members failed, the core rejects them. If some failed, the core was told that these
    /// requests ended, and it finishes them. In models that run cell by cell, this method withdraws
    /// them instead.
    fn record_failed_alone(&mut self, now: Time, outcome: Outcome) {
        for at in 0..self.dispatcher.failed_alone().len() {
            let FailedMember { slot, did_not_run } = self.dispatcher.failed_alone()[at];
            let (lead, call, part) = self.jobs.owner(slot);
            if !did_not_run {
                call.model.metrics.on_bad_request();
                self.failures.on_failure(now, call.id, call.class.client);
            }
            if call.model.unfolds && outcome == Outcome::Ok {
                let failure = failure(call, part);
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
                self.models[id.index()] = Some(LiveModel::new(entry, &model));
                self.core.control(Control::ModelLoaded(id, model));
            }
            EngineCommand::Unload(id) => {
                let known = self.models[id.index()].as_mut().expect("only what is served is unloaded");
                known.leaving = true;
                self.leaving.push(id);
                self.core.control(Control::ModelUnloaded(id));
            }
            EngineCommand::Profile { id, block, profile } => {
                if let Some(known) = &mut self.models[id.index()] {
                    known.replace_profile(block, profile.clone());
                    self.speeds.forget();
                }
                self.core.control(Control::ProfileReplaced { model: id, block, profile });
            }
            EngineCommand::Join { id, device, attached } => self.join(now, id, device, &attached),
            EngineCommand::Leave { id, lost } => self.leave(now, id, lost),
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
        while let Some(slot) = self.withdrawals.pop() {
            self.core.control(Control::Cancelled(slot));
        }
    }

    fn perform(&mut self, now: Time, action: Action) {
        match action {
            Action::Start { task, model, block, device, lane, length, not_before } => {
                let (members, nodes) = (self.core.members(task), self.core.nodes(task));
                let known = self.models[model.index()].as_mut().expect("a model stays while its requests live");
                known.tasks += 1;
                let spec = &known.calibration.model().blocks[block.index()];
                let percent = self.speeds.percent(device);
                let cost = self.jobs.owner(members[0]).1.class.cost;
                let start = TaskStart {
                    task,
                    model,
                    block,
                    spec,
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

    fn finish(&mut self, now: Time, slot: RequestSlot) {
        let lead = self.leave_core(slot);
        let call = self.jobs.call(lead);
        if call.done == call.parts.len() {
            self.complete(now, lead);
        } else if let (lead, call, part) = self.jobs.owner(slot)
            && !matches!(call.parts[part].result, Some(Ok(_)))
        {
            let failure = failure(call, part);
            self.fail(now, lead, failure);
        }
        self.jobs.release_if_over(lead);
    }

    fn reject(&mut self, now: Time, slot: RequestSlot, why: Why) {
        let lead = self.leave_core(slot);
        if matches!(why, Why::Hopeless | Why::Expired) {
            self.suspect_profile(now, slot);
        }
        let failure = match why {
            Why::Expired => Failure::Expired,
            Why::Hopeless => self.hopeless(now, slot),
            Why::Cancelled => Failure::Cancelled,
            Why::Unloaded => Failure::Unloaded,
            Why::Share => Failure::Share(self.jobs.call(lead).model.retry_after()),
            Why::Overload => Failure::Overload(self.jobs.call(lead).model.retry_after()),
            Why::Failed => {
                let (_, call, part) = self.jobs.owner(slot);
                failure(call, part)
            }
        };
        self.fail(now, lead, failure);
        self.jobs.release_if_over(lead);
    }

    /// Records that the core has ended the part in `slot`, and returns the call's first slot.
    fn leave_core(&mut self, slot: RequestSlot) -> RequestSlot {
        let (lead, call, part) = self.jobs.owner(slot);
        let stage = std::mem::replace(&mut call.parts[part].stage, PartStage::Outside);
        assert!(stage != PartStage::Outside, "a policy ended a request twice");
        let runs = call.parts[part].in_flight > 0 && !call.model.unfolds;
        assert!(!runs, "a policy ended a request that runs");
        if stage == PartStage::Waiting {
            stop_waiting(&call.model);
        }
        call.in_core -= 1;
        let known = self.models[call.id.index()].as_mut().expect("a model stays while its requests live");
        known.live -= 1;
        if let Some(shapes) = &mut known.shapes {
            shapes.leave(call.class.shape);
        }
        lead
    }

    /// Answers a call whose parts all have outputs, unless it has been answered.
    fn complete(&mut self, now: Time, lead: RequestSlot) {
        self.jobs.disarm(lead);
        let call = self.jobs.call(lead);
        let Some(answerer) = call.answerer.take() else { return };
        let last = call.parts.iter().max_by_key(|part| part.started).expect("a call has parts");
        let queued = last.started.map_or(now, |started| started) - call.arrived;
        let late = now > call.deadline;
        let answered = JobOutput { outputs: Vec::new(), queued, executed: last.executed, batch: last.batch, late };
        let results = call.parts.iter_mut().map(|part| part.result.take().unwrap_or_else(|| Ok(Vec::new())));
        let parts =
            results.collect::<Result<Vec<_>, String>>().and_then(|parts| split::check_joinable(&parts).map(|()| parts));
        match parts {
            Ok(mut parts) => {
                call.model.metrics.on_success(late, call.rows, now - call.arrived, queued, answered.executed);
                self.core.aside(Aside::Ended { lead, ending: if late { Ending::Late } else { Ending::Ok } });
                if parts.len() == 1 {
                    answerer.answer(Ok(JobOutput { outputs: parts.remove(0), ..answered }));
                } else {
                    self.joiner.join(Pieces { answerer, parts, answered });
                }
            }
            Err(text) => {
                let failure = Failure::of_engine(text);
                call.model.metrics.on_failure(failure.ending(), now - call.arrived);
                self.core.aside(Aside::Ended { lead, ending: failure.ending() });
                answerer.answer(Err(failure));
            }
        }
    }

    /// Answers a call with a failure, unless it has been answered. Schedules the withdrawal of its
    /// parts from the core.
    pub(crate) fn fail(&mut self, now: Time, lead: RequestSlot, failure: Failure) {
        self.jobs.disarm(lead);
        let call = self.jobs.call(lead);
        if call.answerer.is_none() {
            return;
        }
        let ending = failure.ending();
        call.model.metrics.on_failure(ending, now - call.arrived);
        self.core.aside(Aside::Ended { lead, ending });
        call.answer(Err(failure));
        let held = call.parts.iter().zip(call.permit.slots()).filter(|(part, _)| part.stage != PartStage::Outside);
        self.withdrawals.extend(held.map(|(_, &slot)| slot));
    }

    /// Removes unloaded models whose last request has ended.
    fn forget_unloaded(&mut self) {
        let (models, dispatcher, model_ids, failures) =
            (&mut self.models, &self.dispatcher, &self.model_ids, &mut self.failures);
        self.leaving.retain(|&id| {
            let live = models[id.index()].as_ref().map_or(0, |known| known.live + known.tasks);
            if live == 0 {
                models[id.index()] = None;
                dispatcher.slots.detach(id);
                failures.forget(id);
                model_ids.free(id);
            }
            live > 0
        });
    }

    fn dismiss(&mut self, now: Time) {
        self.dismissing = true;
        for lead in self.jobs.leads() {
            self.fail(now, lead, Failure::ShuttingDown);
            self.jobs.release_if_over(lead);
        }
    }
}

/// Returns the failure of a part that failed in the engine or was lost with its device.
fn failure(call: &LiveJob, part: usize) -> Failure {
    let cause = match &call.parts[part].result {
        Some(Err(text)) => text.clone(),
        _ => "the engine ended the request without outputs".to_owned(),
    };
    match call.lost {
        Some(Loss { retry_after, .. }) => Failure::Outage { cause, retry_after },
        None => Failure::of_engine(cause),
    }
}
