//! Admission control: keeps useful answers at their peak under overload and isolates models and
//! clients from each other's load, for any policy.
//!
//! A policy decides about the order of execution. Most published policies were measured below
//! saturation: beyond it their queues grow until every answer is late, and an overloaded model
//! takes the devices from all others. A server therefore puts this state machine in front of its
//! policy. A request is refused on arrival, for one of two reasons:
//!
//! * *No schedule is likely to meet its deadline* ([`Why::Hopeless`]), if the policy does not check
//!   deadlines itself. The admitted, unanswered requests are an amount of device time ([`cost`]),
//!   which must be done in time on the devices, or the request's turn must come in time if models
//!   take [`turns`]. Errors of these predictions are learnt: of device time from the tasks under
//!   load ([`devices`]), of latency by a margin.
//! * *Its model or client exceeds its share* ([`Why::Share`]) while others need theirs
//!   ([`shares`]).
//!
//! No request is delayed here: an admitted one is passed to the policy in the same instant, so that
//! below saturation the decisions are the policy's own. The policy never receives a refused
//! request, unless it has a graph, which the policy has received already: such a request is
//! withdrawn immediately.
//!
//! A request that may be late (`drop = "never"`, or "expired": it may run while no punctual request
//! needs the device) is refused for its share only.
//!
//! Below this layer, [`Shapes`] separates requests of different shapes.

mod cost;
mod devices;
mod entry;
mod judge;
mod served;
mod shapes;
mod shares;
#[cfg(test)]
mod tests;
mod turns;

pub(crate) use shapes::Shapes;

use crate::{
    Action, Control, CostScale, Grant, Guess, Limits, Needs, Outbox, Outcome, Prediction, Request, Scheduler, Setup,
    TaskDone, Why,
};
use devices::{DeviceTimes, Started};
use entry::{ABSENT, AdmissionState, AdmittedRequest};
use ripieno_base::{BlockId, DeviceId, LaneId, Links, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Graph, Model};
use served::AdmittedModel;
use shares::Shares;

/// A policy behind admission control.
pub(crate) struct Admission {
    policy: Box<dyn Scheduler>,
    /// Requirements of the policy.
    needs: Needs,
    /// Number of tasks that a device holds.
    depth: usize,
    models: Vec<Option<AdmittedModel>>,
    entries: Vec<AdmittedRequest>,
    links: Links,
    shares: Shares,
    devices: DeviceTimes,
    /// Remaining device time of requests in the policy, without the running part.
    backlog: i64,
    /// Number of requests in the policy.
    live: usize,
    /// Notes on tasks in flight.
    tasks: Vec<TaskNote>,
    /// Requests refused since the last settle.
    refused: Vec<(RequestSlot, Why)>,
    /// Lower bound on the SLOs of the models that need room ([`AdmittedModel::needs_room`]).
    tightest_slo: Nanos,
}

/// Note on a task: its block, and, if its end teaches something, its estimated work and the largest
/// device time that counts.
#[derive(Clone, Copy, Debug)]
struct TaskNote {
    model: ModelId,
    block: BlockId,
    estimated: Option<(i64, Nanos)>,
}

/// The demand of a request: its flow, its work, and whether it would be late on an idle device.
#[derive(Clone, Copy, Debug)]
struct AdmissionDemand {
    flow: u32,
    work: i64,
    hopeless: bool,
}

impl Admission {
    /// Creates admission control for a policy that was built for this setup.
    pub(crate) fn new(policy: Box<dyn Scheduler>, needs: Needs, setup: &Setup) -> Admission {
        let limits = &setup.limits;
        let mut admission = Admission {
            policy,
            needs,
            depth: limits.depth,
            models: (0..limits.models).map(|_| None).collect(),
            entries: vec![ABSENT; limits.requests],
            links: Links::new(limits.requests),
            shares: Shares::new(limits),
            devices: DeviceTimes::new(limits, setup.devices),
            backlog: 0,
            live: 0,
            tasks: Vec::with_capacity(2 * limits.tasks()),
            refused: Vec::with_capacity(limits.requests),
            tightest_slo: Nanos::MAX,
        };
        for (model, id) in setup.models.iter().zip(0..) {
            admission.load(ModelId(id), Box::new(model.clone()));
        }
        admission
    }

    fn load(&mut self, id: ModelId, model: Box<Model>) {
        self.shares.set_weight(id, model.weight);
        let served = AdmittedModel::new(model, self.devices.present());
        self.models[id.index()] = Some(served);
    }

    fn served(&self, model: ModelId) -> &AdmittedModel {
        self.models[model.index()].as_ref().expect("the driver sends requests of loaded models only")
    }

    /// Returns the remaining device time of all requests in the policy.
    fn waiting(&self, now: Time) -> i64 {
        (self.backlog - self.devices.running(now).0).max(0)
    }

    fn enter(&mut self, now: Time, request: &Request, demand: AdmissionDemand) {
        let AdmissionDemand { flow, work, hopeless } = demand;
        let devices = self.devices.present();
        let entry = AdmittedRequest {
            model: request.model,
            flow,
            rows: request.rows,
            length: request.extent.length,
            scale: request.class.cost,
            work,
            left: work,
            ran: 0,
            entered: now,
            deadline: request.deadline,
            state: AdmissionState::Inside,
            waits: true,
            hopeless,
        };
        self.entries[request.slot.index()] = entry;
        self.live += 1;
        let served = self.models[request.model.index()].as_mut().expect("the model is loaded");
        served.rows += request.rows as usize;
        served.waiting_rows += request.rows as usize;
        served.waiting_work += work;
        served.work += work;
        let entries = &self.entries;
        served.waiting.insert_by_key(&mut self.links, request.slot.0, |slot| entries[slot as usize].deadline);
        self.backlog += served.recount(devices);
    }

    /// Removes a request from the policy, answered or not.
    fn leave(&mut self, now: Time, slot: RequestSlot, outcome: Option<Why>) {
        let devices = self.devices.present();
        self.begin(slot, usize::MAX);
        let AdmittedRequest { model, flow, rows, length, scale, work, left, ran, entered, deadline, hopeless, .. } =
            std::mem::replace(&mut self.entries[slot.index()], ABSENT);
        let served = self.models[model.index()].as_mut().expect("a model stays while its requests live");
        let corrected = served.cost.corrected(work);
        let late = match outcome {
            None => now > deadline,
            // The driver withdraws requests whose clients have been answered at the deadline.
            Some(Why::Cancelled) => now >= deadline,
            Some(why) => matches!(why, Why::Expired | Why::Hopeless),
        };
        if outcome.is_none() {
            served.cost.on_finish(ran, length, rows, scale);
        }
        if late || outcome.is_none() {
            served.cost.on_outcome(entered, late);
        }
        if late && !hopeless && !served.may_be_late() {
            self.shares.on_loss(entered, flow, corrected);
        }
        if !late && outcome.is_none() {
            self.shares.on_answer(flow, corrected);
        }
        if outcome == Some(Why::Cancelled) && !late {
            self.shares.on_withdrawal(flow, corrected);
        }
        self.live -= 1;
        served.rows -= rows as usize;
        served.work -= left;
        self.backlog += served.recount(devices);
    }

    /// Records that a request runs, in a batch of `together` rows.
    fn begin(&mut self, slot: RequestSlot, together: usize) {
        let AdmittedRequest { model, rows, work, left, waits, .. } = &mut self.entries[slot.index()];
        if std::mem::take(waits) {
            let served = self.models[model.index()].as_mut().expect("a model stays while its requests live");
            served.waiting.remove(&mut self.links, slot.0);
            served.waiting_rows -= *rows as usize;
            served.waiting_work -= *work;
            if !served.cost.model().walk.is_unfolded() {
                let scaled = served.cost.in_batches_of(*work, together);
                served.work += scaled - *work;
                (*work, *left) = (scaled, scaled);
            }
        }
    }

    /// Records the start of a task, and whether its end will teach something.
    fn start(&mut self, now: Time, (task, model): (TaskId, ModelId), block: BlockId, place: (DeviceId, LaneId)) {
        let members = self.policy.members(task);
        let (count, mut work, mut longest, mut most) = (members.len(), 0_i64, 1, CostScale(-i8::MAX));
        let rows = members.iter().map(|member| self.entries[member.index()].rows as usize).sum::<usize>();
        for at in 0..count {
            let member = self.policy.members(task)[at];
            self.begin(member, rows);
            let AdmittedRequest { rows: own, length, scale, .. } = self.entries[member.index()];
            (longest, most) = (length.max(longest), scale.max(most));
            let cost = &self.models[model.index()].as_ref().expect("a model stays while its requests live").cost;
            work = work.saturating_add(cost.row(block.index(), length, scale).saturating_mul(i64::from(own)));
        }
        let served = self.models[model.index()].as_mut().expect("a model stays while its requests live");
        served.cost.on_start(block.index(), count);
        // If the policy could have filled a batch, or has left requests waiting, its batch is as
        // full as it makes them. The excess of a small batch over its profile is not part of the
        // cost of large ones.
        let unfolds = served.cost.model().walk.is_unfolded();
        let there = if unfolds { served.rows } else { served.waiting_rows + rows };
        let left = !unfolds && block.index() == 0 && served.waiting_rows > 0;
        let full = there >= served.cost.batch(block.index());
        let estimated = (left || full).then(|| {
            let profile = || most.of(served.cost.model().blocks[block.index()].cost(rows, longest));
            let counted = if full { Nanos::MAX } else { profile() };
            (if unfolds { work } else { served.cost.in_batches_of(work, there) }, counted)
        });
        if self.tasks.len() <= task.index() {
            self.tasks.resize(task.index() + 1, TaskNote { model, block, estimated: None });
        }
        self.tasks[task.index()] = TaskNote { model, block, estimated };
        let takes = served.cost.takes(block.index(), rows, longest, most);
        let (models, backlog, devices) = (&mut self.models, &mut self.backlog, self.devices.present());
        let started = Started { task, model, cost: takes };
        self.devices.start(now, started, place, |model, time| spend(models, backlog, devices, model, time));
    }

    /// Completes a task: this work of its members is done.
    fn complete(&mut self, task: TaskId) {
        let TaskNote { model, block, .. } = self.tasks[task.index()];
        let Some(served) = self.models[model.index()].as_mut() else { return };
        let unfolds = served.cost.model().walk.is_unfolded();
        let members = self.policy.members(task);
        let together = members.iter().map(|member| self.entries[member.index()].rows as usize).sum();
        for member in members {
            let AdmittedRequest { rows, length, scale, left, ran, .. } = &mut self.entries[member.index()];
            let own = served.cost.row(block.index(), *length, *scale).saturating_mul(i64::from(*rows));
            *ran = ran.saturating_add(own);
            let done = if unfolds { own } else { served.cost.in_batches_of(own, together) }.min(*left);
            *left -= done;
            served.work -= done;
        }
    }

    /// Records the policy's decisions, and corrects the reason of withdrawn requests.
    fn observe(&mut self, now: Time, out: &mut Outbox) {
        for action in out.actions_mut() {
            match action {
                Action::Start { task, model, block, device, lane, .. } => {
                    self.start(now, (*task, *model), *block, (*device, *lane));
                }
                Action::Finish { request } => self.leave(now, *request, None),
                Action::Reject { request, why } => match self.entries[request.index()].state {
                    AdmissionState::Inside => self.leave(now, *request, Some(*why)),
                    AdmissionState::Withdrawn(reason) => {
                        *why = reason;
                        self.entries[request.index()].state = AdmissionState::Absent;
                    }
                    AdmissionState::Refused => self.entries[request.index()].state = AdmissionState::Absent,
                    AdmissionState::Absent => panic!("a policy ended a request twice"),
                },
                Action::Cancel { .. } => {}
            }
        }
    }

    /// Returns the tightest SLO of the models that need room.
    fn find_tightest_slo(&self, now: Time) -> Nanos {
        let served = self.models.iter().flatten().filter(|served| served.needs_room(now));
        served.map(|served| served.cost.model().slo).min().unwrap_or(Nanos::MAX)
    }

    fn estimate(&mut self) {
        let devices = self.devices.present().max(1);
        self.models.iter_mut().flatten().for_each(|served| served.cost.estimate(devices));
    }

    /// Resets learnt factors after a change of a device's speed, which they took for an error of
    /// the profiles.
    fn unlearn(&mut self) {
        self.tasks.iter_mut().for_each(|note| note.estimated = None);
        let devices = self.devices.present();
        for served in self.models.iter_mut().flatten() {
            served.cost.unlearn();
            self.backlog += served.recount(devices);
        }
    }
}

/// Accounts for a device's work for a model.
fn spend(models: &mut [Option<AdmittedModel>], backlog: &mut i64, devices: usize, model: ModelId, time: Nanos) {
    let Some(served) = models[model.index()].as_mut() else { return };
    served.spent = served.spent.saturating_add(time.0);
    *backlog += served.recount(devices);
}

impl Scheduler for Admission {
    fn on_graph(&mut self, request: RequestSlot, graph: &Graph) {
        self.policy.on_graph(request, graph);
    }

    fn on_request(&mut self, now: Time, request: &Request) {
        let divided = self.shares.tick(now, &self.devices);
        let served = self.models[request.model.index()].as_mut();
        let served = served.expect("the driver sends requests of loaded models only");
        let flow = Shares::flow(request.model, request.class.client);
        let demand = AdmissionDemand {
            flow,
            work: served.cost.work(request),
            hopeless: served.is_hopeless(now, request, &self.devices),
        };
        served.note_request(now);
        let brings_graph = served.cost.model().walk.brings_graph();
        if served.needs_room(now) {
            self.tightest_slo = self.tightest_slo.min(served.cost.model().slo);
        }
        if divided {
            self.tightest_slo = self.find_tightest_slo(now);
        }
        match self.decide(now, request, demand) {
            None => {
                self.enter(now, request, demand);
                self.policy.on_request(now, request);
            }
            Some(why) => {
                let state = if brings_graph { AdmissionState::Withdrawn(why) } else { AdmissionState::Refused };
                self.entries[request.slot.index()] = AdmittedRequest { model: request.model, state, ..ABSENT };
                if brings_graph {
                    self.policy.on_request(now, request);
                    self.policy.on_control(now, Control::Cancelled(request.slot));
                } else {
                    self.refused.push((request.slot, why));
                }
            }
        }
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        let (models, backlog, devices) = (&mut self.models, &mut self.backlog, self.devices.present());
        let used = self.devices.end(now, done.task, |model, time| spend(models, backlog, devices, model, time));
        let TaskNote { model, estimated, .. } = self.tasks[done.task.index()];
        // Otherwise its work is repeated, or ends in errors.
        if done.outcome == Outcome::Ok {
            self.complete(done.task);
        }
        if let Some(served) = self.models[model.index()].as_mut() {
            served.spent = (served.spent - used.0).max(0);
            served.cost.on_batch(now);
            match (done.outcome, estimated) {
                (Outcome::Ok, Some((estimated, most))) => served.cost.on_task(estimated, used.min(most)),
                (Outcome::Ok, None) => served.cost.forget(),
                _ => {}
            }
            self.backlog += served.recount(devices);
        }
        self.policy.on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match &control {
            Control::DeviceJoined(device) | Control::DeviceLeft(device) => {
                let present = matches!(control, Control::DeviceJoined(_));
                let (models, backlog, devices) = (&mut self.models, &mut self.backlog, self.devices.present());
                let spend = |model, time| spend(models, backlog, devices, model, time);
                self.devices.set_present(now, *device, present, spend);
                self.estimate();
            }
            Control::DeviceSlowed { device, percent } => {
                let (models, backlog, devices) = (&mut self.models, &mut self.backlog, self.devices.present());
                let spend = |model, time| spend(models, backlog, devices, model, time);
                if self.devices.set_percent(now, *device, *percent, spend) {
                    self.unlearn();
                }
            }
            Control::ModelLoaded(id, model) => self.load(*id, model.clone()),
            Control::ProfileReplaced { model, block, profile } => {
                let devices = self.devices.present().max(1);
                let cost = &mut self.models[model.index()].as_mut().expect("the model is loaded").cost;
                cost.model_mut().blocks[block.index()].replace_profile(profile.clone());
                cost.renew(now, devices);
                // Estimates with the old profile say nothing about the new one.
                self.tasks.iter_mut().filter(|note| note.model == *model).for_each(|note| note.estimated = None);
            }
            Control::Cancelled(slot) if self.entries[slot.index()].state != AdmissionState::Inside => return,
            Control::ModelUnloaded(_) | Control::Cancelled(_) => {}
        }
        self.policy.on_control(now, control);
    }

    fn on_grant(&mut self, now: Time, grant: Grant) {
        self.policy.on_grant(now, grant);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.policy.settle(now, out);
        for (request, why) in self.refused.drain(..) {
            out.push(Action::Reject { request, why });
        }
        self.observe(now, out);
    }

    fn next_wakeup(&self) -> Time {
        self.policy.next_wakeup()
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.policy.members(task)
    }

    fn nodes(&self, task: TaskId) -> &[u32] {
        self.policy.nodes(task)
    }

    fn prediction(&self, request: RequestSlot) -> Option<Prediction> {
        self.policy.prediction(request)
    }

    /// A policy that checks deadlines plans by batches. For the others the backlog is checked here.
    /// If models take turns with cells, requests start immediately.
    fn guess(&self) -> Guess {
        let unfolds = |served: &AdmittedModel| served.cost.model().walk.is_unfolded();
        if self.needs.learns_occupancy {
            Guess::Learnt
        } else if self.needs.turns && self.models.iter().flatten().any(unfolds) {
            Guess::Nothing
        } else if self.needs.keeps_deadlines {
            Guess::Batches
        } else {
            Guess::Queues
        }
    }
}

/// Returns the limits for which a policy behind `shards` admission controls is to be built.
pub(crate) fn widen(limits: &Limits, shards: usize) -> Limits {
    Shapes::widen(limits, shards)
}

/// Puts a policy, or the shard with this number of `shards`, behind admission control; it was built
/// for `setup` with [`widen`]ed limits.
pub(crate) fn wrap(
    policy: Box<dyn Scheduler>,
    needs: Needs,
    setup: &Setup,
    (number, shards): (usize, usize),
) -> Box<dyn Scheduler> {
    let shapes = Shapes::new(policy, &setup.models, &setup.limits, (number, shards));
    Box::new(Admission::new(Box::new(shapes), needs, setup))
}
