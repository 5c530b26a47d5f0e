//! "dva" and "delay-batch" allocate nothing after construction and end every request. The chains
//! are of all kinds of diversity, their requests leave and skip, and devices have lanes, join and
//! leave.

use ripieno_base::{BlockId, DeviceId, IndexedHeap, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Block, Extent, LengthProfiles, Model, Profile, Walk};
use ripieno_policies::build;
use ripieno_sched::{
    Action, Control, Limits, OptionValue, Options, Outbox, Outcome, Request, RequestClass, Scheduler, Setup, TaskDone,
};
use ripieno_workload::{SeededRng, below, stream};

const BATCH: usize = 16;
const STAGES: usize = 4;

fn limits(lanes: usize) -> Limits {
    Limits { requests: 300, models: 3, devices: 2, lanes, batch: BATCH, ..Limits::ONE }
}

/// A driver that allocates nothing itself: tasks end by their ids, slots come from a stack.
struct Driver {
    now: Time,
    out: Outbox,
    free: Vec<RequestSlot>,
    ends: IndexedHeap<Time>,
    /// The running block per task.
    blocks: Vec<BlockId>,
    present: [bool; 2],
    lanes: usize,
    random: SeededRng,
    started: u64,
}

impl Driver {
    fn new(limits: &Limits) -> Driver {
        Driver {
            now: Time::ORIGIN,
            out: Outbox::new(limits),
            free: (0..limits.requests as u32).map(RequestSlot).collect(),
            ends: IndexedHeap::new(limits.tasks()),
            blocks: vec![BlockId(0); limits.tasks()],
            present: [true; 2],
            lanes: limits.lanes,
            random: stream(7, 0),
            started: 0,
        }
    }

    fn draw(&mut self, bound: u64) -> u64 {
        below(&mut self.random, bound)
    }

    /// Gives `events` inputs to the scheduler, a settle after each.
    fn drive(&mut self, scheduler: &mut dyn Scheduler, models: &[Model], events: usize) {
        for _ in 0..events {
            let arrival = self.now + Nanos::from_micros(20 + self.draw(400) as i64);
            let end = self.ends.peek().map_or(Time::NEVER, |(at, _)| at);
            self.now = arrival.min(end).min(scheduler.next_wakeup());
            if self.now == end {
                self.end(scheduler);
            } else if self.now == arrival {
                self.arrive(scheduler);
            }
            if self.draw(1_000) == 0 {
                self.turn(scheduler);
            }
            scheduler.settle(self.now, &mut self.out);
            self.perform(scheduler, models);
        }
    }

    /// Ends all requests without further arrivals; both devices are present.
    fn drain(&mut self, scheduler: &mut dyn Scheduler, models: &[Model]) {
        for device in 0..2 {
            if !std::mem::replace(&mut self.present[device], true) {
                scheduler.on_control(self.now, Control::DeviceJoined(DeviceId(device as u16)));
            }
        }
        loop {
            scheduler.settle(self.now, &mut self.out);
            self.perform(scheduler, models);
            let end = self.ends.peek().map_or(Time::NEVER, |(at, _)| at);
            self.now = end.min(scheduler.next_wakeup());
            if self.now == Time::NEVER {
                break;
            }
            if self.now == end {
                self.end(scheduler);
            }
        }
    }

    fn end(&mut self, scheduler: &mut dyn Scheduler) {
        let (_, task) = self.ends.pop().unwrap();
        let task = TaskId(task as u32);
        let members = scheduler.members(task).len();
        let (mut ended, mut skips) = ([false; BATCH], [BlockId(0); BATCH]);
        let block = self.blocks[task.index()];
        for at in 0..members {
            ended[at] = self.draw(8) == 0;
            skips[at] = BlockId(block.0 + 1 + u16::from(self.draw(6) == 0));
        }
        let lost = self.draw(400) == 0 && self.lanes == 1;
        let outcome = if lost {
            Outcome::DeviceLost
        } else if self.draw(200) == 0 {
            Outcome::Failed
        } else {
            Outcome::Ok
        };
        scheduler
            .on_task_done(self.now, &TaskDone { task, outcome, ended: &ended[..members], skips: &skips[..members] });
    }

    fn arrive(&mut self, scheduler: &mut dyn Scheduler) {
        let Some(slot) = self.free.pop() else { return };
        let model = ModelId(self.draw(3) as u16);
        let (rows, extent) = (1 + self.draw(2) as u32, Extent { length: 1 + self.draw(64) as u32, limit: 0 });
        let deadline = self.now + Nanos::from_millis(1 + self.draw(100) as i64);
        scheduler.on_request(
            self.now,
            &Request { slot, model, arrived: self.now, deadline, rows, extent, class: RequestClass::default() },
        );
        if self.draw(50) == 0 {
            scheduler.on_control(self.now, Control::Cancelled(slot));
        }
    }

    /// Lets a device leave or join again.
    fn turn(&mut self, scheduler: &mut dyn Scheduler) {
        let device = self.draw(2) as u16;
        let present = &mut self.present[usize::from(device)];
        *present = !*present;
        let joined = Control::DeviceJoined(DeviceId(device));
        scheduler.on_control(self.now, if *present { joined } else { Control::DeviceLeft(DeviceId(device)) });
    }

    fn perform(&mut self, scheduler: &dyn Scheduler, models: &[Model]) {
        for action in self.out.actions() {
            match *action {
                Action::Start { task, model, block, .. } => {
                    let rows = scheduler.members(task).len();
                    self.ends.set(task.index(), self.now + models[model.index()].blocks[block.index()].cost(rows, 64));
                    self.blocks[task.index()] = block;
                    self.started += 1;
                }
                Action::Finish { request } | Action::Reject { request, .. } => self.free.push(request),
                Action::Cancel { .. } => unreachable!("neither policy cancels"),
            }
        }
        self.out.clear();
    }
}

fn models() -> Vec<Model> {
    let flat = |ms: f64| Profile::linear(0.001, ms, BATCH).unwrap();
    let each = || Profile::linear(0.1, 0.0001, BATCH).unwrap();
    let chain = |name: &str, profiles: [Profile; STAGES]| {
        let blocks =
            profiles.into_iter().enumerate().map(|(at, profile)| Block::new(at.to_string(), profile)).collect();
        Model { blocks, walk: Walk::Chain, ..Model::whole(name, flat(1.0), Nanos::from_millis(50)) }
    };
    let by_length = || LengthProfiles::new(vec![(1, flat(0.1)), (64, flat(2.0))]).unwrap();
    let mut padded = chain("padded", [2.0; STAGES].map(flat));
    padded.blocks.iter_mut().for_each(|block| block.lengths = Some(by_length()));
    vec![chain("flat", [0.5; STAGES].map(flat)), chain("uneven", [flat(1.0), each(), each(), each()]), padded]
}

fn check(policy: &str, lanes: usize, options: &[(&str, &str)]) {
    let limits = limits(lanes);
    let setup = Setup { models: models(), devices: limits.devices, limits };
    let mut words: Options =
        options.iter().map(|&(name, value)| (name.to_owned(), OptionValue::Text(value.to_owned()))).collect();
    if policy == "dva" {
        words.insert("buffers".to_owned(), OptionValue::Int(lanes as i64));
        words.insert("groups".to_owned(), OptionValue::Int(3));
    }
    let mut scheduler = build(policy, &setup, &words).unwrap();
    let mut driver = Driver::new(&limits);
    driver.drive(scheduler.as_mut(), &setup.models, 1_000);
    let counted = allocation_counter::measure(|| driver.drive(scheduler.as_mut(), &setup.models, 200_000));
    assert_eq!(counted.count_total, 0, "{policy} {lanes} {options:?}");
    driver.drain(scheduler.as_mut(), &setup.models);
    assert_eq!(driver.free.len(), limits.requests, "{policy} {lanes} {options:?}: requests are stuck");
    assert!(driver.started > 10_000, "{policy} {lanes} {options:?}: {} tasks", driver.started);
}

#[test]
fn nothing_is_allocated_after_construction() {
    for lanes in [1, 2, 3] {
        for drop in ["hopeless", "expired", "never"] {
            check("dva", lanes, &[("drop", drop)]);
        }
        check("dva", lanes, &[("stretch", "false")]);
        check("dva", lanes, &[("diversity", "load")]);
        check("dva", lanes, &[("diversity", "input")]);
    }
    for dispatch in ["free", "start"] {
        check("delay-batch", 1, &[("dispatch", dispatch), ("drop", "expired")]);
    }
}
