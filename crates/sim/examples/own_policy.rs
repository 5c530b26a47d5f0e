//! A complete custom policy: the model whose oldest request is due first gets the next free device,
//! with as many requests as that deadline allows. Run it: `cargo run --release -p ripieno-sim
//! --example own_policy`.
//!
//! It uses the contract alone, which the checkers verify. A policy that ships with Ripieno is a
//! file in `crates/policies/src/`, built on the tables in `crates/sched/src/tables/`, and
//! shorter: see ARCHITECTURE.md.

use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Block, Model, Profile, Walk};
use ripieno_sched::{Action, Control, Limits, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use ripieno_sim::{Arrival, End, Observer, World, checkers::Checkers};
use ripieno_workload::{stream, unit};

/// A scheduler whose tables are allocated once, by the limits.
struct EarliestDeadline {
    models: Vec<Model>,
    /// Waiting requests by model, the most urgent first.
    waiting: Vec<Vec<Request>>,
    /// Members of the running task by device; a task has the number of its device.
    running: Vec<Vec<RequestSlot>>,
    /// Answers for the next settle.
    ended: Vec<Action>,
}

impl EarliestDeadline {
    fn new(setup: &Setup) -> EarliestDeadline {
        let room = |count: usize, each: usize| (0..count).map(|_| each).collect::<Vec<_>>();
        let Limits { requests, models, devices, batch, .. } = setup.limits;
        EarliestDeadline {
            models: setup.models.clone(),
            waiting: room(models, requests).into_iter().map(Vec::with_capacity).collect(),
            running: room(devices, batch).into_iter().map(Vec::with_capacity).collect(),
            ended: Vec::with_capacity(requests),
        }
    }

    /// Rejects requests that cannot be in time, then starts a batch of the model that is due first.
    fn run_next(&mut self, now: Time, device: usize, out: &mut Outbox) {
        for (model, waiting) in self.models.iter().zip(&mut self.waiting) {
            let late = waiting.iter().take_while(|head| now + model.profile().latency(1) > head.deadline).count();
            for request in waiting.drain(..late) {
                out.push(Action::Reject { request: request.slot, why: Why::Hopeless });
            }
        }
        let heads = self.waiting.iter().enumerate();
        let Some((due, at)) = heads.filter_map(|(at, waiting)| Some((waiting.first()?.deadline, at))).min() else {
            return;
        };
        let (model, waiting) = (&self.models[at], &mut self.waiting[at]);
        let size = model.profile().largest_within(due - now).min(model.max_batch).min(waiting.len());
        let longest = waiting[..size].iter().map(|request| request.extent.length).max();
        self.running[device].extend(waiting.drain(..size).map(|request| request.slot));
        out.push(Action::Start {
            task: TaskId(device as u32),
            model: ModelId(at as u16),
            block: BlockId(0),
            device: DeviceId(device as u16),
            lane: LaneId(0),
            length: longest.unwrap_or(1),
            not_before: now,
        });
    }
}

impl Scheduler for EarliestDeadline {
    fn on_request(&mut self, _now: Time, request: &Request) {
        let waiting = &mut self.waiting[request.model.index()];
        let at = waiting.partition_point(|other| other.deadline <= request.deadline);
        waiting.insert(at, *request);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let end = |request| match done.outcome {
            Outcome::Ok => Action::Finish { request },
            _ => Action::Reject { request, why: Why::Failed },
        };
        self.ended.extend(self.running[done.task.index()].drain(..).map(end));
    }

    /// Controls are ignored; a server's policy must also follow devices and models that come and
    /// go, and new profiles.
    fn on_control(&mut self, _now: Time, control: Control) {
        if let Control::Cancelled(slot) = control {
            let withdrawn =
                self.waiting.iter_mut().flat_map(|waiting| waiting.extract_if(.., |other| other.slot == slot));
            self.ended.extend(withdrawn.map(|request| Action::Reject { request: request.slot, why: Why::Cancelled }));
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.ended.drain(..).for_each(|action| out.push(action));
        for device in 0..self.running.len() {
            if self.running[device].is_empty() {
                self.run_next(now, device, out);
            }
        }
    }

    fn next_wakeup(&self) -> Time {
        Time::NEVER // It decides when a request arrives or a task ends, and at no other time.
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        &self.running[task.index()]
    }
}

/// Number of requests answered, and rejected.
#[derive(Default)]
struct Count {
    answered: usize,
    given_up: usize,
}

impl Observer for Count {
    fn ended(&mut self, _now: Time, _id: u64, _request: &Request, end: End) {
        match end {
            End::Finished => self.answered += 1,
            _ => self.given_up += 1,
        }
    }
}

fn main() {
    let (max_batch, slo) = (16, Nanos::from_millis(50));
    let models = [("small", 0.5, 2.0), ("large", 2.0, 8.0)].map(|(name, alpha_ms, beta_ms)| {
        let block = Block::new(name, Profile::linear(alpha_ms, beta_ms, max_batch).expect("costs grow"));
        let name = name.to_owned();
        let blocks = vec![block];
        Model {
            name,
            blocks,
            walk: Walk::Whole,
            slo,
            max_batch,
            instances: 9,
            drop: None,
            weight: 1,
            dec_timesteps: None,
            in_arrival_order: false,
            pinned: false,
        }
    });
    let limits = Limits { requests: 10_000, models: 2, devices: 2, batch: max_batch, ..Limits::ONE };
    let setup = Setup { models: models.to_vec(), devices: 2, limits };
    let mut random = stream(1, 0);
    let mut at = Time::ORIGIN;
    let arrivals = (0..20_000).map(|_| {
        at = at + Nanos((-5e5 * (1.0 - unit(&mut random)).ln()) as i64);
        let model = ModelId(u16::from(unit(&mut random) < 0.3));
        Arrival::new(at, model, at + slo)
    });
    let (mut policy, mut count, mut checkers) =
        (EarliestDeadline::new(&setup), Count::default(), Checkers::new(&setup));
    World::new(&mut policy, &setup).run(arrivals, [], &mut [&mut count, &mut checkers]);
    checkers.finish();
    println!("{} answered in time, {} given up: every promise kept", count.answered, count.given_up);
}
