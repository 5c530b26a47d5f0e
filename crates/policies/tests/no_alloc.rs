//! No policy allocates after construction: a million events of an overloaded cluster, counted by
//! the allocator.

use ripieno_base::{DeviceId, IndexedHeap, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Model, Profile};
use ripieno_policies::{CATALOGUE, build};
use ripieno_sched::{
    Action, Control, Limits, OptionValue, Options, Outbox, Outcome, Request, RequestClass, Scheduler, Setup, TaskDone,
};
use ripieno_workload::{SeededRng, below, stream};

const MODELS: usize = 4;
const LIMITS: Limits = Limits { requests: 400, models: MODELS, devices: 6, batch: 16, ..Limits::ONE };

/// No task.
const NONE: TaskId = TaskId(u32::MAX);

/// A driver that allocates nothing itself: tasks end by device, slots come from a stack.
struct Driver {
    now: Time,
    out: Outbox,
    free: Vec<RequestSlot>,
    ends: IndexedHeap<Time>,
    running: [TaskId; 6],
    cancelled: [bool; 6],
    random: SeededRng,
}

impl Driver {
    fn new() -> Driver {
        Driver {
            now: Time::ORIGIN,
            out: Outbox::new(&LIMITS),
            free: (0..LIMITS.requests as u32).map(RequestSlot).collect(),
            ends: IndexedHeap::new(LIMITS.devices),
            running: [NONE; 6],
            cancelled: [false; 6],
            random: stream(7, 0),
        }
    }

    fn draw(&mut self, bound: u64) -> u64 {
        below(&mut self.random, bound)
    }

    /// Gives `events` inputs to the scheduler, a settle after each.
    fn drive(&mut self, scheduler: &mut dyn Scheduler, models: &[Model], events: usize) {
        for _ in 0..events {
            let arrival = self.now + Nanos::from_micros(20 + self.draw(100) as i64);
            let end = self.ends.peek().map_or(Time::NEVER, |(at, _)| at);
            self.now = arrival.min(end).min(scheduler.next_wakeup());
            if self.now == end {
                let (_, device) = self.ends.pop().unwrap();
                let task = std::mem::replace(&mut self.running[device], NONE);
                let cancelled = std::mem::take(&mut self.cancelled[device]);
                let outcome = if cancelled { Outcome::Cancelled } else { Outcome::Ok };
                scheduler.on_task_done(self.now, &TaskDone { task, outcome, ended: &[], skips: &[] });
            } else if self.now == arrival {
                self.arrive(scheduler, models);
            }
            scheduler.settle(self.now, &mut self.out);
            self.perform(scheduler, models);
        }
    }

    fn arrive(&mut self, scheduler: &mut dyn Scheduler, models: &[Model]) {
        let Some(slot) = self.free.pop() else { return };
        let model = self.draw(MODELS as u64) as usize;
        let deadline = self.now + models[model].slo.scale(50 + self.draw(100), 100);
        let rows = 1 + self.draw(2) as u32;
        scheduler.on_request(
            self.now,
            &Request {
                slot,
                model: ModelId(model as u16),
                arrived: self.now,
                deadline,
                rows,
                extent: Extent::ONE,
                class: RequestClass::default(),
            },
        );
        if self.draw(50) == 0 {
            scheduler.on_control(self.now, Control::Cancelled(slot));
        }
    }

    fn perform(&mut self, scheduler: &dyn Scheduler, models: &[Model]) {
        for action in self.out.actions() {
            match *action {
                Action::Start { task, model, block, device: DeviceId(device), .. } => {
                    let rows = scheduler.members(task).len();
                    let latency = models[model.index()].blocks[block.index()].profile.latency(rows);
                    self.ends.set(usize::from(device), self.now + latency);
                    self.running[usize::from(device)] = task;
                }
                Action::Finish { request } | Action::Reject { request, .. } => self.free.push(request),
                Action::Cancel { task } => {
                    let device = self.running.iter().position(|&running| running == task).unwrap();
                    self.cancelled[device] = true;
                    self.ends.set(device, self.now.next());
                }
            }
        }
        self.out.clear();
    }
}

fn check(policy: &str, options: &Options) {
    let profile = || Profile::linear(0.2, 1.5, LIMITS.batch).unwrap();
    let model = |index: usize| Model::whole(&index.to_string(), profile(), Nanos::from_millis(10 + index as i64));
    let models: Vec<_> = (0..MODELS).map(model).collect();
    let setup = Setup { models, devices: LIMITS.devices, limits: LIMITS };
    let mut scheduler = build(policy, &setup, options).unwrap();
    let mut driver = Driver::new();
    driver.drive(scheduler.as_mut(), &setup.models, 1_000);
    let counted = allocation_counter::measure(|| driver.drive(scheduler.as_mut(), &setup.models, 1_000_000));
    assert_eq!(counted.count_total, 0, "{policy} {options:?}");
}

fn word(name: &str, value: &str) -> (String, OptionValue) {
    (name.to_owned(), OptionValue::Text(value.to_owned()))
}

fn check_all(drop: &str) {
    CATALOGUE.iter().for_each(|policy| check(policy.name, &Options::from([word("drop", drop)])));
}

// The counter is per thread, so these run in parallel.
#[test]
fn no_policy_allocates_that_drops_the_hopeless() {
    check_all("hopeless");
}

#[test]
fn no_policy_allocates_that_drops_the_expired() {
    check_all("expired");
}

#[test]
fn no_policy_allocates_that_never_drops() {
    check_all("never");
}

#[test]
fn no_other_rule_allocates() {
    check("deferred", &Options::from([word("gather", "prefix")]));
    check("clockwork", &Options::from([word("gather", "window")]));
    check("nexus", &Options::from([("frontends".to_owned(), OptionValue::Int(8)), word("gather", "window-max")]));
    check("shepherd", &Options::from([word("head_of_line", "published")]));
}

#[test]
fn the_counter_sees_allocations() {
    assert_eq!(allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1)))).count_total, 1);
}
