//! The loop that decides: it owns the scheduler, the live requests, their timers and the devices.
//!
//! One owner, because all of it changes with every request and every decision; messages in, calls out. Each turn reads
//! the clock once to decide: mail, expired requests and withdrawals are told to the core at that instant, the core
//! decides, the decisions are performed. A turn takes at most [`MAILS_A_TURN`] messages, so that timers are looked at
//! often however much comes in. Whose thread takes a turn, and when, is for `scheduler_thread.rs` to say. Where there
//! are several loops, each has its models, and a device that was granted to it (docs/adr/0023).
//!
//! Invariants: the outbox is performed whole before the next input; a client is answered at most once, by the type of
//! its [`Answerer`](crate::answer::Answerer); a slot is given back only when its call is answered, the core has ended
//! it, no task in flight names it and no cancellation is on its way.

use crate::admission::ModelEntry;
use crate::core::Core;
use crate::devices::KnownIdle;
use crate::ending::Ending;
use crate::failures::FailureHistory;
use crate::fleet::{EndedTask, Fleet, Start, stop_waiting};
use crate::jobs::{Call, JobTable, Stage};
use crate::joiner::{Joiner, Pieces};
use crate::mailbox::{Mail, Mailbox, Order};
use crate::metrics::SchedulerMetrics;
use crate::registry::Registry;
use crate::shapes::{Known, Shapes};
use crate::turns::Looped;
use crate::{Answered, Clock, Failure, split};
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, Time};
use ripieno_executor::{Loss, Payload, TaskResult};
use ripieno_model::Model;
use ripieno_sched::{Action, Calibration, Control, Outcome, Prediction, Ran, Request, Shape, Speeds, TaskDone, Why};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

const MAILS_A_TURN: usize = 256;

/// Everything that a turn works on.
pub(crate) struct SchedulerLoop {
    pub(crate) clock: Clock,
    pub(crate) turns: Arc<SchedulerMetrics>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Of the other shards.
    pub(crate) others: Vec<Arc<Mailbox>>,
    pub(crate) idle: KnownIdle,
    pub(crate) registry: Arc<Registry>,
    pub(crate) core: Core,
    pub(crate) jobs: JobTable,
    pub(crate) fleet: Fleet,
    pub(crate) joiner: Joiner,
    pub(crate) failures: FailureHistory,
    pub(crate) speeds: Speeds,
    /// By model id.
    pub(crate) models: Vec<Option<KnownModel>>,
    /// Parts whose client has been answered while the core still holds them; the core is told in the next turn's
    /// inputs, since the outbox may be half performed when that becomes known.
    pub(crate) withdrawals: Vec<RequestSlot>,
    /// Models that nothing of runs, and what a request of them takes alone by profiles that are to be put to the test.
    pub(crate) doubted: Vec<(ModelId, Nanos)>,
    /// Models that are to go once their last request has ended.
    pub(crate) leaving: Vec<ModelId>,
    /// Whether new requests are answered with the news of the shutdown.
    pub(crate) dismissing: bool,
    /// Whether this was the last turn.
    pub(crate) stopped: bool,
    /// The mail of a turn; empty between turns.
    pub(crate) inbox: Vec<Mail>,
}

/// A model that the core knows.
pub(crate) struct KnownModel {
    pub(crate) entry: Arc<ModelEntry>,
    /// Parts in the core.
    live: usize,
    /// Tasks in flight; those queued ahead may outlive the last part.
    pub(crate) tasks: usize,
    pub(crate) leaving: bool,
    /// Where requests differ in shape.
    shapes: Option<Shapes>,
    pub(crate) learnt: Calibration,
}

impl KnownModel {
    fn new(entry: Arc<ModelEntry>, model: &Model) -> KnownModel {
        let shapes = Shapes::new(&*entry.loaded, entry.unfolds);
        KnownModel { entry, live: 0, tasks: 0, leaving: false, shapes, learnt: Calibration::new(model) }
    }
}

impl Looped for SchedulerLoop {
    type Inbox = Mailbox;

    fn turn(&mut self) -> Time {
        let due = self.decide();
        let (idle, mut known) = (self.fleet.seats.idle(), self.idle.lock());
        if idle.map(Arc::as_ptr).map(<*const _>::cast::<()>) != known.as_ref().map(Arc::as_ptr).map(<*const _>::cast) {
            *known = idle.cloned();
        }
        due
    }

    fn has_ended(&self) -> bool {
        self.stopped
    }
}

impl SchedulerLoop {
    /// Takes in what has come, decides and performs. When the next turn is due, if no mail comes before.
    fn decide(&mut self) -> Time {
        if !self.core.has_told() {
            return Time::ORIGIN;
        }
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.extend(std::iter::from_fn(|| self.mailbox.pop()).take(MAILS_A_TURN));
        let begun = self.clock.now();
        let now = self.core.advance(begun);
        self.test_doubted();
        self.end_orphans(now);
        let idle = inbox.is_empty();
        inbox.drain(..).for_each(|mail| self.take(now, mail));
        self.inbox = inbox;
        if self.stopped {
            return Time::ORIGIN;
        }
        self.expire(now);
        self.look_for_hangs(now);
        self.withdraw();
        self.core.settle();
        for at in 0..self.core.actions() {
            self.perform(now, self.core.action(at));
        }
        // What the core has ended by itself in this turn is not to be withdrawn in the next.
        self.withdrawals.retain(|&slot| self.jobs.in_core(slot));
        self.forget_unloaded();
        self.let_go_of_drained(now);
        if !idle || self.core.actions() > 0 {
            self.turns.on_turn(self.clock.now() - begun);
        }
        if !self.withdrawals.is_empty() || !self.fleet.orphans.is_empty() {
            return Time::ORIGIN;
        }
        self.core.next_wakeup().min(self.jobs.next_expiry()).min(self.fleet.hangs.next())
    }

    fn take(&mut self, now: Time, mail: Mail) {
        match mail {
            Mail::Submit(call) => self.admit(now, call),
            Mail::Cancel(lead) => self.cancel(now, lead),
            Mail::Done(device, result) => self.land(now, device, result),
            Mail::Grant(grant) => self.core.grant(grant),
            Mail::Hangs(id, again) => self.lose_if_there(now, id, again),
            Mail::Order(order, confirm) => self.obey(now, order, &confirm),
            Mail::Stop => {
                self.dismiss(now);
                self.stopped = true;
            }
        }
    }

    /// Tells the core of a request, unless its model has gone meanwhile.
    fn admit(&mut self, now: Time, call: Box<Call>) {
        let (id, entry) = (call.id, Arc::clone(&call.model));
        let lead = self.jobs.insert(call);
        if self.is_stranded(now, lead) {
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
        let margin = known.learnt.ahead(self.core.guess());
        call.in_core = call.parts.len();
        if self.failures.on_request(now, id, call.class.client) {
            call.class.shape = Shape::ALONE;
        } else if let Some(shapes) = &mut known.shapes {
            let known = match &call.parts[0].entry.payload {
                Payload::Here(inputs) => Known::Inputs(inputs),
                Payload::Elsewhere(_) => Known::Sizes(call.sizes),
            };
            call.class.shape = shapes.enter(known, call.parts.len());
        }
        let class = call.class;
        entry.metrics.waiting.fetch_add(call.parts.len(), std::sync::atomic::Ordering::Relaxed);
        for (part, &slot) in call.parts.iter_mut().zip(call.permit.slots()) {
            part.stage = Stage::Waiting;
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

    fn land(&mut self, now: Time, from: DeviceId, result: TaskResult) {
        let Some(ended) = self.fleet.land(now, from, result, &mut self.jobs) else { return };
        let EndedTask { task, outcome, members, model, expected, again, lost, ran } = ended;
        let known = self.models[model.index()].as_mut().expect("a model stays while its tasks fly");
        known.tasks -= 1;
        // A batch that was stopped, run more than once or lost says nothing about how late batches end.
        if outcome != Outcome::Cancelled && !again && lost.is_none() {
            known.learnt.on_end(now - expected);
        }
        let sound = outcome == Outcome::Ok && !again;
        let profiled = known.learnt.model().blocks[ran.block.index()].cost(ran.rows, ran.length);
        // What a slow device adds is no error of the profile.
        let took = ran.took.scale(100, u64::from(self.speeds.percent(from)));
        let fair = sound && self.speeds.is_fair(from);
        let better = fair.then(|| known.learnt.on_task(now, &Ran { took, ..ran })).flatten();
        for &slot in members.iter().filter(|_| !known.entry.unfolds) {
            let (lead, call, part) = self.jobs.owner(slot);
            if call.done == call.parts.len() || matches!(call.parts[part].result, Some(Err(_))) {
                // It will be finished in this very turn, so its timer must not strike between.
                self.jobs.disarm(lead);
            }
        }
        self.core.task_done(&TaskDone { task, outcome, ended: self.fleet.ended(), skips: self.fleet.skips() });
        if let Some(better) = better {
            self.correct(model, ran.block, better);
        } else if sound && ran.alone {
            self.time_device(now, from, ran.took, profiled);
        }
        self.convict(now, outcome);
        if lost.is_some_and(|lost| lost.inside) {
            self.suspect(now, &members);
        }
        self.jobs.release_landed(&members);
        self.fleet.recycle(members);
    }

    /// Takes note of the requests that the engine failed on alone in the task that has just landed.
    ///
    /// If the task failed in all its members, the core rejects them. Otherwise it was told that their walks have ended, and
    /// finishes them, but where walks unfold it is told that nobody waits for them any more.
    fn convict(&mut self, now: Time, outcome: Outcome) {
        for at in 0..self.fleet.culprits().len() {
            let slot = self.fleet.culprits()[at];
            let (lead, call, part) = self.jobs.owner(slot);
            call.model.metrics.on_bad_request();
            self.failures.on_failure(now, call.id, call.class.client);
            if call.model.unfolds && outcome == Outcome::Ok {
                let failure = failure(call, part);
                self.fail(now, lead, failure);
            }
        }
    }

    /// A process ended with these in it. Nobody knows whose fault it was, so they run alone for a while: whoever does it again
    /// harms nobody beside.
    fn suspect(&mut self, now: Time, members: &[RequestSlot]) {
        let mut clients: Vec<(ModelId, u16)> = Vec::with_capacity(members.len());
        clients.extend(members.iter().map(|&slot| {
            let (_, call, _) = self.jobs.owner(slot);
            (call.id, call.class.client)
        }));
        clients.sort_unstable();
        clients.dedup();
        clients.into_iter().for_each(|(model, client)| self.failures.on_death(now, model, client));
    }

    fn obey(&mut self, now: Time, order: Order, confirm: &SyncSender<()>) {
        match order {
            Order::Load { id, entry, model } => {
                self.models[id.index()] = Some(KnownModel::new(entry, &model));
                self.core.control(Control::ModelLoaded(id, model));
            }
            Order::Unload(id) => {
                let known = self.models[id.index()].as_mut().expect("only what is served is unloaded");
                known.leaving = true;
                self.leaving.push(id);
                self.core.control(Control::ModelUnloaded(id));
            }
            Order::Profile { id, block, profile } => {
                if let Some(known) = &mut self.models[id.index()] {
                    known.learnt.replace(block, profile.clone());
                    self.speeds.forget();
                }
                self.core.control(Control::ProfileReplaced { model: id, block, profile });
            }
            Order::Join { id, device, attached } => self.join(now, id, device, &attached),
            Order::Leave { id, lost } => self.leave(now, id, lost),
            Order::Dismiss => self.dismiss(now),
        }
        // Whoever gave the order may have gone; then nobody needs the confirmation.
        let _ = confirm.try_send(());
    }

    /// Answers the clients whose time is over, whether their requests wait or run.
    fn expire(&mut self, now: Time) {
        while let Some(lead) = self.jobs.pop_expired(now) {
            if self.jobs.part(lead).stage == Stage::Waiting {
                self.doubt(now, lead);
            }
            self.fail(now, lead, Failure::Expired);
        }
    }

    /// Tells the core of the requests that nobody waits for any more. Those that run are discarded when they are done.
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
                let spec = &known.learnt.model().blocks[block.index()];
                let percent = self.speeds.percent(device);
                let start =
                    Start { task, model, block, spec, device, percent, lane, length, not_before, members, nodes };
                self.fleet.start(now, &start, &mut self.jobs);
            }
            Action::Finish { request } => {
                if let Some(Prediction { made, remaining }) = self.core.prediction(request) {
                    let (_, call, _) = self.jobs.owner(request);
                    call.model.metrics.on_prediction(remaining, now - made);
                }
                self.finish(now, request);
            }
            Action::Reject { request, why } => self.reject(now, request, why),
            Action::Cancel { task } => self.fleet.cancel(task),
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
            self.doubt(now, slot);
        }
        let failure = match why {
            Why::Expired => Failure::Expired,
            Why::Hopeless => Failure::Hopeless,
            Why::Cancelled => Failure::Cancelled,
            Why::Unloaded => Failure::Unloaded,
            Why::Share => Failure::Share(self.jobs.call(lead).model.retry_after()),
            Why::Failed => {
                let (_, call, part) = self.jobs.owner(slot);
                failure(call, part)
            }
        };
        self.fail(now, lead, failure);
        self.jobs.release_if_over(lead);
    }

    /// The core has ended the part in `slot`.
    fn leave_core(&mut self, slot: RequestSlot) -> RequestSlot {
        let (lead, call, part) = self.jobs.owner(slot);
        let stage = std::mem::replace(&mut call.parts[part].stage, Stage::Outside);
        assert!(stage != Stage::Outside, "a policy ended a request twice");
        let runs = call.parts[part].flying > 0 && !call.model.unfolds;
        assert!(!runs, "a policy ended a request that runs");
        if stage == Stage::Waiting {
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

    /// All parts have their outputs: answers the client, unless it has had an answer.
    fn complete(&mut self, now: Time, lead: RequestSlot) {
        self.jobs.disarm(lead);
        let call = self.jobs.call(lead);
        let Some(answerer) = call.answerer.take() else { return };
        let last = call.parts.iter().max_by_key(|part| part.started).expect("a call has parts");
        let queued = last.started.map_or(now, |started| started) - call.arrived;
        let late = now > call.deadline;
        let answered = Answered { outputs: Vec::new(), queued, executed: last.executed, batch: last.batch, late };
        let results = call.parts.iter_mut().map(|part| part.result.take().unwrap_or_else(|| Ok(Vec::new())));
        let parts =
            results.collect::<Result<Vec<_>, String>>().and_then(|parts| split::check_joinable(&parts).map(|()| parts));
        match parts {
            Ok(mut parts) => {
                call.model.metrics.on_success(late, call.rows, now - call.arrived, queued, answered.executed);
                if parts.len() == 1 {
                    answerer.answer(Ok(Answered { outputs: parts.remove(0), ..answered }));
                } else {
                    self.joiner.join(Pieces { answerer, parts, answered });
                }
            }
            Err(text) => {
                call.model.metrics.on_failure(Ending::Failed, now - call.arrived);
                answerer.answer(Err(Failure::Failed(text)));
            }
        }
    }

    /// Answers the client with a failure, unless it has been answered, and withdraws what the core still holds.
    pub(crate) fn fail(&mut self, now: Time, lead: RequestSlot, failure: Failure) {
        self.jobs.disarm(lead);
        let call = self.jobs.call(lead);
        if call.answerer.is_none() {
            return;
        }
        call.model.metrics.on_failure(Ending::of(&failure), now - call.arrived);
        call.answer(Err(failure));
        let held = call.parts.iter().zip(call.permit.slots()).filter(|(part, _)| part.stage != Stage::Outside);
        self.withdrawals.extend(held.map(|(_, &slot)| slot));
    }

    /// Lets go of unloaded models whose last request has ended.
    fn forget_unloaded(&mut self) {
        let (models, fleet, registry, failures) = (&mut self.models, &self.fleet, &self.registry, &mut self.failures);
        self.leaving.retain(|&id| {
            let live = models[id.index()].as_ref().map_or(0, |known| known.live + known.tasks);
            if live == 0 {
                models[id.index()] = None;
                fleet.seats.detach(id);
                failures.forget(id);
                registry.free(id);
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

/// What the engine said of a part that it failed on, or was lost with.
fn failure(call: &Call, part: usize) -> Failure {
    let cause = match &call.parts[part].result {
        Some(Err(text)) => text.clone(),
        _ => "the engine ended the request without outputs".to_owned(),
    };
    match call.lost {
        Some(Loss { retry_after, .. }) => Failure::Outage { cause, retry_after },
        None => Failure::Failed(cause),
    }
}
