//! Preemption between two blocks of a batch: a batch that cannot wait for the end of the next block
//! runs first.
//!
//! A batch of a chain keeps its device through all of its blocks, so a model with a shorter SLO
//! that shares the device would miss its deadlines. Under an objective, a batch of another model
//! runs between two blocks if its latest start is before the end of the next block (otherwise it
//! can wait for the border after that one, and grow), if no other device becomes free by then, and
//! if the preempted requests stay in time. It runs all of its own blocks.

use super::ShardQueues;
use super::model_queue::{Candidate, ShardModel};
use super::queues::BatchRows;
use crate::Outbox;
use crate::parts::tasks::{Task, Tasks};
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};

/// A batch between two of its blocks.
#[derive(Debug)]
pub(super) struct Border<'a> {
    pub(super) batch: &'a Task,
    /// Its requests, those among them that wait for a later block.
    pub(super) members: &'a [RequestSlot],
    /// Latency percentage of its device, and number of devices.
    pub(super) percent: u32,
    pub(super) devices: usize,
}

/// A batch to run first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preempting {
    pub(super) model: ModelId,
    candidate: Candidate,
    /// Time at which its device is free again, after the preempted batch.
    ends: Time,
}

impl Border<'_> {
    fn scaled(&self, cost: Nanos) -> Nanos {
        cost.scale(u64::from(self.percent), 100)
    }

    /// Returns the duration of its next block with `rows` rows, and that of all remaining blocks.
    fn left(&self, served: &ShardModel, rows: usize) -> (Nanos, Nanos) {
        let blocks = &served.model.blocks[self.batch.block.index()..];
        let cost = |block: &ripieno_model::Block| self.scaled(block.profile.latency(rows));
        (cost(&blocks[0]), blocks.iter().map(cost).sum())
    }
}

impl ShardQueues {
    /// Returns the batch to run before the next block, where rules weigh device time. If there is
    /// none, updates the time at which the device becomes free.
    pub(super) fn at_border(&mut self, now: Time, border: &Border<'_>) -> Option<Preempting> {
        let host = self.models.get(border.batch.model);
        if !host.rule.start.is_priced() {
            return None;
        }
        let (next, left) = border.left(host, self.requests.rows(border.members));
        let preempting = self.preempting(now, border, (next, left));
        if preempting.is_none() {
            self.ends.set(border.batch.device.index(), now + left);
        }
        preempting
    }

    fn preempting(&self, now: Time, border: &Border<'_>, (next, left): (Nanos, Nanos)) -> Option<Preempting> {
        let Border { batch, members, percent, devices } = *border;
        let (latest, model) = self.most_urgent_but(batch.model)?;
        let served = self.models.get(model);
        if latest >= now + next || self.another_is_free_by(latest, batch.device, devices) {
            return None;
        }
        // The model has fewer instances than devices, so its candidate waits for one of its own
        // batches.
        if served.model.instances < devices {
            return None;
        }
        let candidate = served.gather(&self.requests, now, percent)?;
        let spare = self.spare(members, now + left).scale(100, u64::from(percent));
        let rows = served.within(&self.requests, candidate, spare);
        let takes = border.scaled(served.reach.latency(rows.max(1)));
        let candidate = Candidate { rows, ..candidate };
        (rows > 0).then_some(Preempting { model, candidate, ends: now + takes + left })
    }

    /// Returns the other model whose candidate has the earliest latest start.
    fn most_urgent_but(&self, model: ModelId) -> Option<(Time, ModelId)> {
        let first = self.latest.peek().filter(|&(_, id)| id != model.index());
        first.or_else(|| self.latest.second()).map(|(latest, id)| (latest, ModelId(id as u16)))
    }

    /// Returns whether another device is free by then.
    fn another_is_free_by(&self, then: Time, device: DeviceId, devices: usize) -> bool {
        let others = self.ends.peek().filter(|&(_, id)| id != device.index()).or_else(|| self.ends.second());
        self.ends.len() < devices || others.is_some_and(|(end, _)| end <= then)
    }

    /// Returns the time by which an answer at `end` can be delayed without making any member late
    /// that is in time.
    fn spare(&self, members: &[RequestSlot], end: Time) -> Nanos {
        let deadlines = members.iter().map(|member| self.requests.get(member.0).deadline);
        deadlines.filter(|deadline| *deadline >= end).min().map_or(Nanos::MAX, |deadline| deadline - end)
    }

    /// Fills the batch that runs before the next block.
    pub(super) fn form_preempting(
        &mut self,
        now: Time,
        Preempting { model, candidate, ends }: &Preempting,
        id: TaskId,
        tasks: &mut Tasks,
        out: &mut Outbox,
    ) {
        self.mark(*model);
        let batch = BatchRows { model: *model, first: candidate.first, rows: candidate.rows };
        self.fill(now, batch, id, tasks, out);
        let device = tasks.get(id).device.index();
        self.running[device] = None;
        self.ends.set(device, *ends);
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Action, Control, Limits, OptionValue, Options, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, build,
    };
    use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
    use ripieno_model::{Block, Model, Profile};

    const LIMITS: Limits = Limits { requests: 8, models: 2, devices: 2, lanes: 1, depth: 1, batch: 4, nodes: 0 };

    /// The task, model and block that started on the device.
    type Started = Option<(TaskId, u16, u16)>;

    struct Driver {
        scheduler: Box<dyn Scheduler>,
        out: Outbox,
    }

    fn ms(at: i64) -> Time {
        Time::ORIGIN + Nanos::from_millis(at)
    }

    impl Driver {
        /// Creates one device, a chain of three blocks of 10 ms and an SLO of 200, and a model of 2
        /// ms and an SLO of 15.
        fn new() -> Driver {
            let blocks = ["a", "b", "c"].map(|name| Block::new(name, Profile::linear(0.0, 10.0, 4).unwrap()));
            let whole = |name: &str, beta: f64, slo: i64| {
                Model::whole(name, Profile::linear(0.0, beta, 4).unwrap(), Nanos::from_millis(slo))
            };
            let chain = Model { blocks: blocks.into(), ..whole("chain", 30.0, 200) };
            let setup = Setup { models: vec![chain, whole("tight", 2.0, 15)], devices: 1, limits: LIMITS };
            let options = Options::from([("objective".to_owned(), OptionValue::Text("latency".to_owned()))]);
            Driver { scheduler: build("deferred", &setup, &options).unwrap(), out: Outbox::new(&LIMITS) }
        }

        fn settle(&mut self, now: i64) -> Started {
            self.out.clear();
            self.scheduler.settle(ms(now), &mut self.out);
            let mut started = self.out.actions().iter().filter_map(|action| match *action {
                Action::Start { task, model, block, .. } => Some((task, model.0, block.0)),
                _ => None,
            });
            started.next_back()
        }

        fn arrive(&mut self, now: i64, slot: u32, model: u16, slo: i64) -> Started {
            let request = Request {
                slot: RequestSlot(slot),
                model: ModelId(model),
                arrived: ms(now),
                deadline: ms(now + slo),
                rows: 1,
                ..Request::NONE
            };
            self.scheduler.on_request(ms(now), &request);
            self.settle(now)
        }

        fn end(&mut self, now: i64, task: TaskId, outcome: Outcome) -> Started {
            self.scheduler.on_task_done(ms(now), &TaskDone { task, outcome, ended: &[], skips: &[] });
            self.settle(now)
        }
    }

    #[test]
    fn a_batch_that_cannot_wait_for_the_next_block_runs_before_it() {
        let mut driver = Driver::new();
        let (task, ..) = driver.arrive(0, 0, 0, 200).unwrap();
        // Could wait until 18, so not for the end of the second block at 20.
        assert_eq!(driver.arrive(5, 1, 1, 15), None);
        assert_eq!(driver.end(10, task, Outcome::Ok), Some((task, 1, 0)));
        assert_eq!(driver.scheduler.members(task), [RequestSlot(1)]);
        assert_eq!(driver.end(12, task, Outcome::Ok), Some((task, 0, 1)));
        assert_eq!(driver.scheduler.members(task), [RequestSlot(0)]);
        // Can wait until 33, so for the end of the third block at 32.
        assert_eq!(driver.arrive(20, 2, 1, 15), None);
        assert_eq!(driver.end(22, task, Outcome::Ok), Some((task, 0, 2)));
        assert_eq!(driver.end(32, task, Outcome::Ok).map(|(_, model, _)| model), Some(1));
    }

    #[test]
    fn nothing_begins_on_a_device_that_leaves() {
        let mut driver = Driver::new();
        let (task, ..) = driver.arrive(0, 0, 0, 200).unwrap();
        assert_eq!(driver.arrive(5, 1, 1, 15), None);
        driver.scheduler.on_control(ms(6), Control::DeviceLeft(DeviceId(0)));
        assert_eq!(driver.end(10, task, Outcome::Ok), Some((task, 0, 1)), "what has begun goes on");
    }

    #[test]
    fn preemption_makes_no_request_late() {
        let mut driver = Driver::new();
        // The chain has a millisecond to spare.
        let (task, ..) = driver.arrive(0, 0, 0, 31).unwrap();
        assert_eq!(driver.arrive(5, 1, 1, 15), None);
        assert_eq!(driver.end(10, task, Outcome::Ok), Some((task, 0, 1)));
    }

    #[test]
    fn a_preempted_batch_fails_alone_and_is_lost_with_the_device() {
        for outcome in [Outcome::Failed, Outcome::DeviceLost] {
            let mut driver = Driver::new();
            let (task, ..) = driver.arrive(0, 0, 0, 200).unwrap();
            assert_eq!(driver.arrive(5, 1, 1, 15), None);
            assert_eq!(driver.end(10, task, Outcome::Ok), Some((task, 1, 0)));
            if outcome == Outcome::Failed {
                assert_eq!(driver.end(11, task, outcome), Some((task, 0, 1)), "the chain goes on");
                continue;
            }
            driver.scheduler.on_control(ms(11), Control::DeviceLeft(DeviceId(0)));
            assert_eq!(driver.end(11, task, outcome), None, "nothing starts on a device that is lost");
            driver.scheduler.on_control(ms(12), Control::DeviceJoined(DeviceId(1)));
            assert!(matches!(driver.settle(12), Some((_, 0, 0))), "the chain begins anew");
        }
    }
}
