//! A custom policy for a model in stages, made of DVABatch's three operations: *new* makes a batch
//! of waiting requests, *stretch* lets newcomers join the batch before a stage, *split* halves it.
//! `Cohorts` keeps the state; only the decisions are written here. Run it: `cargo run --release -p
//! ripieno-sim --example meta_operations`.
//!
//! The policy is `operate`; the rest carries batches of the table to a device and back, whatever
//! the conditions are. Requests have one row, devices one lane; `dva` supports more.

use ripieno_base::{DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Block, Model, Profile, Walk};
use ripieno_sched::{
    Action, CohortId, Cohorts, Control, Limits, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why,
};
use ripieno_sim::{Arrival, End, Observer, World, checkers::Checkers};
use ripieno_workload::{stream, unit};

/// The conditions that the user defines.
#[derive(Clone, Copy)]
struct Conditions {
    /// The last stage before which newcomers may join a batch that has begun.
    stretch: Option<usize>,
    /// A stage, and the batch size above which a batch is halved before it.
    split: Option<(usize, usize)>,
}

/// Number of operations of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    /// Number of batches created.
    pub(crate) new: u32,
    /// Number of times that newcomers joined one.
    pub(crate) stretch: u32,
    /// Number of times that one was halved.
    pub(crate) split: u32,
}

/// State of a device. Tables are allocated once, by the limits.
struct OfDevice {
    /// The batches, the oldest first.
    batches: Vec<CohortId>,
    /// Newcomers, and the batch that waits until they have caught up with it.
    stretched: Option<(CohortId, CohortId)>,
    running: Option<CohortId>,
    /// The members of the running batch.
    members: Vec<RequestSlot>,
}

struct Mine {
    conditions: Conditions,
    done: Done,
    model: Model,
    most: usize,
    waiting: Vec<Request>,
    /// The batches, each with a flag that forbids joining, since it came from a split.
    cohorts: Cohorts<bool>,
    devices: Vec<OfDevice>,
    /// Answers for the next settle.
    ended: Vec<Action>,
}

impl Mine {
    fn new(setup: &Setup, conditions: Conditions) -> Mine {
        let Limits { requests, devices, batch, .. } = setup.limits;
        let device = |_| OfDevice {
            batches: Vec::with_capacity(batch + 1),
            stretched: None,
            running: None,
            members: Vec::with_capacity(batch),
        };
        Mine {
            conditions,
            done: Done::default(),
            model: setup.models[0].clone(),
            most: batch,
            waiting: Vec::with_capacity(requests),
            cohorts: Cohorts::new(requests),
            devices: (0..devices).map(device).collect(),
            ended: Vec::with_capacity(requests),
        }
    }

    /// The policy: operations on the batches of an idle device.
    fn operate(&mut self, device: usize) {
        let Mine { conditions, done, most, waiting, cohorts, devices, .. } = self;
        let OfDevice { batches, stretched, .. } = &mut devices[device];
        if stretched.is_some() {
            return;
        }
        let present: usize = batches.iter().map(|&id| cohorts.get(id).rows).sum();
        let newcomers = waiting.len().min(*most - present);
        let mut open = |cohorts: &mut Cohorts<bool>| {
            let id = cohorts.open(ModelId(0), false);
            waiting.drain(..newcomers).for_each(|request| cohorts.push(id, &request));
            id
        };
        let Some(&id) = batches.last().filter(|&&id| !cohorts.get(id).own) else {
            if newcomers > 0 {
                batches.push(open(cohorts));
                done.new += 1;
            }
            return;
        };
        let (before, size) = (cohorts.get(id).block.index(), cohorts.get(id).len());
        if conditions.stretch.is_some_and(|last| 0 < before && before <= last) && newcomers > 0 {
            let newcomers = open(cohorts);
            batches.push(newcomers);
            *stretched = Some((newcomers, id));
            done.stretch += 1;
        } else if conditions.split.is_some_and(|(stage, preferred)| before == stage && size > preferred) {
            let other = cohorts.split(id, true, |place, _| place >= size.div_ceil(2));
            *cohorts.own_mut(id) = true;
            batches.push(other);
            done.split += 1;
        }
    }

    /// Starts the batch that is furthest, of those equally far the oldest.
    fn run_next(&mut self, now: Time, device: usize, out: &mut Outbox) {
        let Mine { cohorts, devices, .. } = self;
        let OfDevice { batches, stretched, running, members } = &mut devices[device];
        let may_run = |id: &&CohortId| stretched.is_none_or(|(_, stands)| stands != **id);
        let furthest = batches.iter().rev().filter(may_run).max_by_key(|&&id| cohorts.get(id).block);
        let Some(&id) = furthest else { return };
        members.extend(cohorts.active(id).map(|(slot, _)| slot));
        cohorts.begin(id);
        *running = Some(id);
        out.push(Action::Start {
            task: TaskId(device as u32),
            model: ModelId(0),
            block: cohorts.get(id).block,
            device: DeviceId(device as u16),
            lane: LaneId(0),
            length: 1,
            not_before: now,
        });
    }
}

impl Scheduler for Mine {
    fn on_request(&mut self, _now: Time, request: &Request) {
        self.waiting.push(*request);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let Mine { model, cohorts, devices, ended, .. } = self;
        let OfDevice { batches, stretched, running, members } = &mut devices[done.task.index()];
        let id = running.take().expect("a task that ends was started");
        cohorts.report(id, members, model, done);
        members.clear();
        let goes_on = cohorts.advance(id, |request| {
            ended.push(match done.outcome {
                Outcome::Ok => Action::Finish { request },
                _ => Action::Reject { request, why: Why::Failed },
            });
        });
        let caught_up = stretched.filter(|&(newcomers, batch)| {
            newcomers == id && (!goes_on || cohorts.get(id).block == cohorts.get(batch).block)
        });
        if let Some((newcomers, batch)) = caught_up {
            *stretched = None;
            if goes_on {
                cohorts.merge(newcomers, batch);
            }
        }
        if !goes_on || caught_up.is_some() {
            batches.retain(|&other| other != id);
        }
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        if let Control::Cancelled(slot) = control {
            let withdrawn = self.waiting.extract_if(.., |other| other.slot == slot);
            self.ended.extend(withdrawn.map(|other| Action::Reject { request: other.slot, why: Why::Cancelled }));
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.ended.drain(..).for_each(|action| out.push(action));
        for device in 0..self.devices.len() {
            if self.devices[device].running.is_none() {
                self.operate(device);
                self.run_next(now, device, out);
            }
        }
    }

    fn next_wakeup(&self) -> Time {
        Time::NEVER
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        &self.devices[task.index()].members
    }
}

/// Latencies of the answered requests.
#[derive(Default)]
struct Latency {
    answered: usize,
    total: Nanos,
}

impl Observer for Latency {
    fn ended(&mut self, now: Time, _id: u64, request: &Request, end: End) {
        if end == End::Finished {
            self.answered += 1;
            self.total += now - request.arrived;
        }
    }
}

const REQUESTS: usize = 4_000;
const MOST: usize = 16;

/// Three stages: two take as long for 16 as for one, the last one is fully used by four.
fn model() -> Model {
    let table = |ms: f64, preferred: usize| -> Vec<Nanos> {
        (1..=MOST).map(|rows| Nanos::from_millis_f64(ms * (rows as f64 / preferred as f64).max(1.0))).collect()
    };
    let stage = |name: &str, ms, preferred| {
        Block::new(name, Profile::from_table(&table(ms, preferred)).expect("a stage takes time"))
    };
    let blocks = vec![stage("a", 4.0, MOST), stage("b", 4.0, MOST), stage("c", 1.5, 4)];
    let whole = Model::whole("staged", blocks[0].profile.clone(), Nanos::from_millis(1000));
    Model { walk: Walk::Chain, blocks, ..whole }
}

/// Runs the policy with every promise of a scheduler checked; returns the operations, and the mean
/// latency in milliseconds.
pub(crate) fn run(stretch: Option<usize>, split: Option<(usize, usize)>) -> (Done, f64) {
    let limits = Limits { requests: REQUESTS, batch: MOST, ..Limits::ONE };
    let setup = Setup { models: vec![model()], devices: 1, limits };
    let (mut random, mut at) = (stream(1, 0), Time::ORIGIN);
    let arrivals = (0..REQUESTS).map(|_| {
        at = at + Nanos((-2e6 * (1.0 - unit(&mut random)).ln()) as i64);
        Arrival::new(at, ModelId(0), at + Nanos::from_millis(1000))
    });
    let mut policy = Mine::new(&setup, Conditions { stretch, split });
    let (mut latency, mut checkers) = (Latency::default(), Checkers::new(&setup));
    World::new(&mut policy, &setup).run(arrivals, [], &mut [&mut latency, &mut checkers]);
    checkers.finish();
    assert_eq!(latency.answered, REQUESTS, "everybody is answered");
    (policy.done, latency.total.as_millis_f64() / REQUESTS as f64)
}

/// Prints the results of each set of conditions.
pub(crate) fn main() {
    for (name, stretch, split) in [
        ("new", None, None),
        ("new, stretch", Some(1), None),
        ("new, split", None, Some((2, 4))),
        ("all three", Some(1), Some((2, 4))),
    ] {
        let (done, mean_ms) = run(stretch, split);
        println!("{name:<14}{mean_ms:>7.2} ms on average  {done:?}");
    }
}
