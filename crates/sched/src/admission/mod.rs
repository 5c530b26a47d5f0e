//! Admission control: bounds the queues of a policy, and isolates models and clients from each
//! other's load.
//!
//! # Why
//!
//! A policy decides about the order of execution. Most published policies were measured below
//! saturation. Beyond it their queues grow until every answer is late, and an overloaded model
//! takes the devices from all others. A server therefore puts this state machine in front of its
//! policy.
//!
//! # Reasons for refusing
//!
//! A request is refused on arrival, for one of two reasons:
//!
//! * *The queue is full.* The work that the devices do within a model's SLO is divided equally
//!   between the model's clients. Under a policy that does not check deadlines, models divide this
//!   work by weight first, and late answers reduce it. The reason is [`Why::Share`] if other
//!   clients or models have requests in the policy, else [`Why::Hopeless`].
//! * *The model or client exceeds its share* of the devices (`shares.rs`) while others lose
//!   requests. The reason is [`Why::Share`]. A client that is the only one is limited by the
//!   devices' capacity instead ([`Why::Overload`]), and its more urgent requests go first.
//!
//! # What always holds
//!
//! No request is delayed here. An admitted one is passed to the policy in the same instant, so that
//! below saturation the decisions are the policy's own.
//!
//! The policy never receives a refused request. The exception is a request with a graph, which the
//! policy has received already: it is withdrawn immediately.
//!
//! # Late answers
//!
//! With `drop = "never"` or `"expired"`, an answer may be late. Such a request runs while no
//! punctual request needs the device. It is refused only if it exceeds its share, or if the work of
//! its model exceeds half of the tightest SLO of another model in use.
//!
//! # Shapes
//!
//! Below this layer, `Shapes` separates requests of different shapes.

mod cost;
mod entry;
mod shapes;
mod shares;
mod utilisation;

pub use shapes::Shapes;

use crate::{Action, Control, Needs, Outbox, Prediction, Request, Scheduler, SchedulerLayer, Setup, TaskDone, Why};
use entry::{ABSENT, AdmissionState, AdmittedModel, AdmittedRequest, QueuePart};
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, Time};
use ripieno_model::Model;
use shares::Shares;
use utilisation::DeviceUse;

/// A policy behind admission control.
pub(crate) struct Admission {
    /// The policy.
    policy: Box<dyn Scheduler>,
    /// Requirements of the policy.
    needs: Needs,
    /// Models by id.
    models: Vec<Option<AdmittedModel>>,
    /// Requests by slot.
    entries: Vec<AdmittedRequest>,
    /// Flows and their shares of the devices.
    shares: Shares,
    /// The present devices and their use.
    devices: DeviceUse,
    /// The device of each task in flight.
    tasks: Vec<DeviceId>,
    /// Number of requests in the policy.
    live: usize,
    /// Whether the last request of a slot was refused here, so that the policy did not see it.
    refused_here: Vec<bool>,
    /// Requests refused since the last settle.
    refused: Vec<(RequestSlot, Why)>,
}

impl Admission {
    /// Creates admission control for a policy that was built for this setup, or for one of its
    /// `shards`.
    pub(crate) fn new(policy: Box<dyn Scheduler>, needs: Needs, setup: &Setup, shards: usize) -> Admission {
        let limits = &setup.limits;
        let mut admission = Admission {
            policy,
            needs,
            models: (0..limits.models).map(|_| None).collect(),
            entries: vec![ABSENT; limits.requests],
            shares: Shares::new(limits),
            devices: DeviceUse::new(limits, setup.devices, shards),
            tasks: Vec::with_capacity(2 * limits.tasks()),
            live: 0,
            refused_here: vec![false; limits.requests],
            refused: Vec::with_capacity(limits.requests),
        };
        for (model, id) in setup.models.iter().zip(0..) {
            admission.load(ModelId(id), Box::new(model.clone()));
        }
        admission
    }

    fn load(&mut self, id: ModelId, model: Box<Model>) {
        self.shares.set_weight(id, model.weight);
        self.models[id.index()] = Some(AdmittedModel::new(model));
    }

    fn served(&mut self, model: ModelId) -> &mut AdmittedModel {
        self.models[model.index()].as_mut().expect("a model stays while its requests live")
    }

    /// Divides the devices again, if it is time.
    fn refresh(&mut self, now: Time) {
        if self.shares.tick(now, &mut self.devices) {
            self.models.iter_mut().flatten().for_each(|served| served.costs.refresh());
        }
    }

    /// Returns the reason for which a request is refused, if it is.
    fn decide(&mut self, now: Time, request: &Request, entry: &AdmittedRequest) -> Option<Why> {
        let AdmittedRequest { flow, work, hopeless, .. } = *entry;
        // A request that cannot be in time does not count as demand, or its flow would take the
        // share of others. While the policy holds no request, the devices are idle and shares do
        // not matter.
        if !hopeless && !self.shares.admit(now, flow, work, request.class.priority) && self.live > 0 {
            return Some(if self.shares.is_sole(now, flow) { Why::Overload } else { Why::Share });
        }
        // A request that would be late even on an idle device is tried only while no other waits.
        if hopeless && !self.needs.keeps_deadlines && self.live > 0 {
            return Some(Why::Hopeless);
        }
        let why = self.finds_full(request.model, flow, work)?;
        self.shares.on_loss(now, flow, work);
        Some(why)
    }

    /// Returns the reason if a request finds its queue full.
    fn finds_full(&self, model: ModelId, flow: u32, work: i64) -> Option<Why> {
        let served = self.models[model.index()].as_ref().expect("the driver sends requests of loaded models only");
        let (own, bounded) = (served.work_of(flow), !self.needs.keeps_deadlines);
        if own == 0 {
            return None;
        }
        if served.may_be_late() {
            let most = self.devices.within(Nanos(self.tightest_slo(model).filter(|_| bounded)?.0 / 2));
            return (served.work.saturating_add(work) > most).then_some(Why::Share);
        }
        let clients = served.clients;
        let weight = |served: &AdmittedModel| i64::from(served.costs.model().weight.max(1));
        let others = self.models.iter().zip(0..).take(if bounded { self.models.len() } else { 0 });
        let others = others.filter(|(_, id)| ModelId(*id) != model);
        let waiting = others.filter_map(|(of, _)| of.as_ref()).filter(|of| of.work > 0);
        let weights = weight(served) + waiting.map(weight).sum::<i64>();
        let alone = clients == 1 && weights == weight(served);
        if alone && !bounded {
            return None;
        }
        let all = i128::from(self.devices.within(served.costs.model().slo));
        let all = all * i128::from(served.queue_part.parts()) / i128::from(QueuePart::WHOLE.parts());
        let part = all * i128::from(weight(served)) / i128::from(weights) / i128::from(clients);
        let full = i128::from(own) + i128::from(work) > part;
        full.then_some(if alone { Why::Hopeless } else { Why::Share })
    }

    /// Returns the tightest SLO of the other models in use that keep one.
    fn tightest_slo(&self, model: ModelId) -> Option<Nanos> {
        let others = self.models.iter().zip(0..).filter(|(_, id)| ModelId(*id) != model);
        let keeping =
            others.filter_map(|(of, id)| Some((of.as_ref()?, ModelId(id)))).filter(|(of, _)| !of.may_be_late());
        keeping.filter(|(_, id)| self.shares.is_active(*id)).map(|(of, _)| of.costs.model().slo).min()
    }

    /// Removes a request from the policy, answered or not.
    fn leave(&mut self, now: Time, slot: RequestSlot, outcome: Option<Why>) {
        let AdmittedRequest { model, flow, work, entered, deadline, hopeless, .. } =
            std::mem::replace(&mut self.entries[slot.index()], ABSENT);
        self.live -= 1;
        let bounded = !self.needs.keeps_deadlines;
        let served = self.served(model);
        served.add(flow, -work);
        let late = match outcome {
            None => now > deadline,
            // The driver withdraws requests whose clients have been answered at the deadline.
            Some(Why::Cancelled) => now >= deadline,
            Some(why) => matches!(why, Why::Expired | Why::Hopeless),
        };
        if outcome.is_none() {
            served.costs.on_finish();
        }
        if (late || outcome.is_none()) && !hopeless && bounded && !served.may_be_late() {
            served.on_answer(late);
        }
        if late && !hopeless && !served.may_be_late() {
            self.shares.on_loss(entered, flow, work);
        }
        if !late && !hopeless && outcome.is_none() {
            self.shares.on_answer(flow, work);
        }
        if outcome == Some(Why::Cancelled) && !late && !hopeless {
            self.shares.on_withdrawal(flow, work);
        }
    }

    /// Records the policy's decisions, and corrects the reason of withdrawn requests.
    fn observe(&mut self, now: Time, out: &mut Outbox) {
        for action in out.actions_mut() {
            match action {
                Action::Start { task, model, block, device, .. } => {
                    let members = self.policy.members(*task).len();
                    let served = self.models[model.index()].as_mut();
                    let costs = &mut served.expect("a model stays while its requests live").costs;
                    costs.on_start(*block, members);
                    if self.tasks.len() <= task.index() {
                        self.tasks.resize(task.index() + 1, DeviceId(0));
                    }
                    self.tasks[task.index()] = *device;
                    self.devices.start(now, *device);
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
}

impl SchedulerLayer for Admission {
    fn inner(&self) -> &dyn Scheduler {
        self.policy.as_ref()
    }

    fn inner_mut(&mut self) -> &mut dyn Scheduler {
        self.policy.as_mut()
    }

    fn on_request(&mut self, now: Time, request: &Request) {
        self.refresh(now);
        let served = self.models[request.model.index()].as_mut();
        let served = served.expect("the driver sends requests of loaded models only");
        let alone = self.devices.at_best(served.costs.alone(request));
        self.refused_here[request.slot.index()] = false;
        let entry = AdmittedRequest {
            model: request.model,
            flow: Shares::flow(request.model, request.class.client),
            work: served.costs.work(request),
            entered: now,
            deadline: request.deadline,
            state: AdmissionState::Inside,
            hopeless: !served.may_be_late() && now + alone > request.deadline,
        };
        let brings_graph = served.costs.model().walk.brings_graph();
        let Some(why) = self.decide(now, request, &entry) else {
            self.served(request.model).add(entry.flow, entry.work);
            self.live += 1;
            self.entries[request.slot.index()] = entry;
            return self.policy.on_request(now, request);
        };
        let state = if brings_graph { AdmissionState::Withdrawn(why) } else { AdmissionState::Refused };
        self.entries[request.slot.index()] = AdmittedRequest { model: request.model, state, ..ABSENT };
        if brings_graph {
            self.policy.on_request(now, request);
            self.policy.on_control(now, Control::Cancelled(request.slot));
        } else {
            self.refused.push((request.slot, why));
            self.refused_here[request.slot.index()] = true;
        }
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        self.devices.end(now, self.tasks[done.task.index()]);
        self.policy.on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match &control {
            Control::DeviceJoined(device) => self.devices.join(now, *device),
            Control::DeviceLeft(device) => self.devices.leave(now, *device),
            Control::DeviceSlowed { device, percent } => self.devices.slow(*device, *percent),
            Control::ModelLoaded(id, model) => self.load(*id, model.clone()),
            Control::ProfileReplaced { model, block, profile } => {
                self.served(*model).costs.replace_profile(*block, profile.clone());
            }
            Control::Cancelled(slot) if self.entries[slot.index()].state != AdmissionState::Inside => return,
            Control::ModelUnloaded(_)
            | Control::Cancelled(_)
            | Control::NetworkDelayed(_)
            | Control::GatherMeasured(..) => {}
        }
        self.policy.on_control(now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.policy.settle(now, out);
        for (request, why) in self.refused.drain(..) {
            out.push(Action::Reject { request, why });
        }
        self.observe(now, out);
    }

    fn prediction(&self, request: RequestSlot) -> Option<Prediction> {
        self.policy.prediction(request).filter(|_| !self.refused_here[request.index()])
    }

    fn learns_occupancy(&self) -> bool {
        self.needs.learns_occupancy
    }
}

/// Puts a policy behind admission control. `policy` was built for `setup` with limits that
/// [`Shapes::widen`] returned; it is the shard with this number among `shards`.
pub fn wrap(policy: Box<dyn Scheduler>, needs: Needs, setup: &Setup, part: (usize, usize)) -> Box<dyn Scheduler> {
    let shapes = Shapes::new(policy, &setup.models, &setup.limits, part);
    Box::new(Admission::new(Box::new(shapes), needs, setup, part.1))
}
