//! A policy of your own for a model in stages, out of DVABatch's three operations: *new* makes a batch of those who wait,
//! *stretch* lets newcomers join the batch that stands before a stage, *split* halves it. `BatchTable` keeps the books; when to do
//! what is all that is written here. Run it: `cargo run --release -p ripieno-sim --example meta_operations`.
//!
//! The policy is `operate`; the rest carries items of the table to a device and back, whatever the conditions are. Requests of
//! one row, devices of one lane, nobody who leaves early: `dva` does that, too.

use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Block, Model, Profile, Walk};
use ripieno_sched::{
    Action, BatchTable, Control, Item, Limits, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why,
};
use ripieno_sim::{Arrival, End, Observer, World, checkers::Checkers};
use ripieno_workload::{stream, unit};

/// The conditions that the user defines.
#[derive(Clone, Copy)]
struct Conditions {
    /// Newcomers may join a batch that has begun and stands before this stage or an earlier one.
    stretch: Option<usize>,
    /// Before this stage a batch of more than so many is halved.
    split: Option<(usize, u16)>,
}

/// How often each was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    /// Batches made.
    pub(crate) new: u32,
    /// Times that newcomers joined one.
    pub(crate) stretch: u32,
    /// Times that one was halved.
    pub(crate) split: u32,
}

/// Tables are made once, as large as the limits say.
struct OfDevice {
    table: BatchTable,
    /// By batch, in the order of their positions.
    members: Vec<Vec<RequestSlot>>,
    /// What runs, and its stage.
    running: Option<(Item, usize)>,
    /// The members of that item.
    batch: Vec<RequestSlot>,
}

struct Mine {
    conditions: Conditions,
    done: Done,
    most: usize,
    waiting: Vec<RequestSlot>,
    devices: Vec<OfDevice>,
    /// Decided, and told in the next settle.
    ended: Vec<Action>,
}

impl Mine {
    fn new(setup: &Setup, conditions: Conditions) -> Mine {
        let Limits { requests, devices, batch, .. } = setup.limits;
        let device = |_| OfDevice {
            table: BatchTable::new(setup.models[0].blocks.len(), batch),
            members: (0..batch).map(|_| Vec::with_capacity(batch)).collect(),
            running: None,
            batch: Vec::with_capacity(batch),
        };
        Mine {
            conditions,
            done: Done::default(),
            most: batch,
            waiting: Vec::with_capacity(requests),
            devices: (0..devices).map(device).collect(),
            ended: Vec::with_capacity(requests),
        }
    }

    /// The policy: what is done with the batches of a device that is idle.
    fn operate(&mut self, now: Time, device: usize) {
        let Mine { conditions, done, most, waiting, devices, .. } = self;
        let OfDevice { table, members, .. } = &mut devices[device];
        let present: usize = table.ids().map(|id| usize::from(table.row(id).bs)).sum();
        let newcomers = waiting.len().min(*most - present);
        // A batch that a split awaits, or that came from one, is joined by nobody.
        let open = table.latest().filter(|&id| !table.row(id).sealed);
        let Some(id) = open else {
            if newcomers > 0 {
                let id = table.new_batch(newcomers as u16, now, false);
                members[id.index()].extend(waiting.drain(..newcomers));
                done.new += 1;
            }
            return;
        };
        // None while a part of it is under way, as newcomers are.
        let Some(before) = table.border(id) else { return };
        let size = table.row(id).bs;
        if conditions.stretch.is_some_and(|last| 0 < before && before <= last) && newcomers > 0 {
            table.stretch(id, newcomers as u16, false);
            members[id.index()].extend(waiting.drain(..newcomers));
            done.stretch += 1;
        } else if conditions.split.is_some_and(|(stage, preferred)| before == stage && size > preferred) {
            let other = table.split(id, before, size.div_ceil(2));
            let rest = members[id.index()].drain(usize::from(size.div_ceil(2))..).collect::<Vec<_>>();
            members[other.index()].extend(rest);
            done.split += 1;
        }
    }

    /// Starts the item that is furthest.
    fn run_next(&mut self, now: Time, device: usize, out: &mut Outbox) {
        let OfDevice { table, members, running, batch } = &mut self.devices[device];
        let Some(stage) = (0..table.stages()).rev().find(|&stage| !table.queue(stage).is_empty()) else { return };
        let item = table.pull(stage, 0);
        batch.extend(&members[item.id.index()][item.positions()]);
        *running = Some((item, stage));
        out.push(Action::Start {
            task: TaskId(device as u32),
            model: ModelId(0),
            block: BlockId(stage as u16),
            device: DeviceId(device as u16),
            lane: LaneId(0),
            length: 1,
            not_before: now,
        });
    }
}

impl Scheduler for Mine {
    fn on_request(&mut self, _now: Time, request: &Request) {
        self.waiting.push(request.slot);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let OfDevice { table, members, running, batch } = &mut self.devices[done.task.index()];
        let (item, stage) = running.take().expect("a task that ends was started");
        let failed = done.outcome != Outcome::Ok;
        for request in batch.drain(..) {
            match failed {
                true => self.ended.push(Action::Reject { request, why: Why::Failed }),
                false if stage + 1 == table.stages() => self.ended.push(Action::Finish { request }),
                false => {}
            }
        }
        let left = if failed { item.num } else { 0 };
        table.update(item, stage, left);
        let members = &mut members[item.id.index()];
        if failed {
            members.drain(item.positions());
        }
        if !table.contains(item.id) {
            members.clear();
        }
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        if let Control::Cancelled(slot) = control {
            let withdrawn = self.waiting.extract_if(.., |other| *other == slot);
            self.ended.extend(withdrawn.map(|request| Action::Reject { request, why: Why::Cancelled }));
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.ended.drain(..).for_each(|action| out.push(action));
        for device in 0..self.devices.len() {
            if self.devices[device].running.is_none() {
                self.operate(now, device);
                self.run_next(now, device, out);
            }
        }
    }

    fn next_wakeup(&self) -> Time {
        Time::NEVER
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        &self.devices[task.index()].batch
    }
}

/// Latencies of those who were answered.
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

/// What was done, and the mean latency in milliseconds; with every promise of a scheduler checked.
pub(crate) fn run(stretch: Option<usize>, split: Option<(usize, u16)>) -> (Done, f64) {
    let limits = Limits { requests: REQUESTS, models: 1, devices: 1, lanes: 1, depth: 1, batch: MOST, nodes: 0 };
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

/// Prints what each set of conditions comes to.
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
