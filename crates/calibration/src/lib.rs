//! Learns the properties of a model from the durations of its tasks, and corrects the scheduler's
//! profiles.
//!
//! * [`Margin`] holds the lateness of batches against the profile, at most a part of the SLO, for
//!   policies that do not learn occupancy. It starts anew with a new profile.
//! * `Drift` compares a finished task with the profile in force and forgets its samples after
//!   each correction, so that it only sees the remaining error. It corrects in large steps;
//!   [`Margin`] covers smaller errors.
//! * `Doubt` ensures that some tasks run at all.
//!
//! Both drivers use it: the runtime always, the simulator where a scenario runs as served.

mod drift;
mod margin;
mod speeds;

use drift::{Doubt, Drift, suspect, verdict};
pub use margin::Margin;
use ripieno_base::{BlockId, Nanos, Time};
use ripieno_model::{Extent, Model, Profile, Steps};
pub use speeds::Speeds;

/// A model as its driver plans with it.
#[derive(Debug)]
pub struct Calibration {
    /// The model, with the corrected profiles.
    model: Box<Model>,
    /// Margin by which deadlines are planned earlier.
    margin: Margin,
    /// State of each block.
    blocks: Vec<BlockState>,
    /// Test of a profile that keeps the model from running.
    doubt: Doubt,
}

#[derive(Debug)]
struct BlockState {
    /// Deviation of the block's tasks from the profile.
    drift: Drift,
    /// The suspect profile, while another one is tested in its place.
    before: Option<Profile>,
}

/// A task that ran as one batch and did not fail.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Block that the task ran.
    pub block: BlockId,
    /// The rows of its members.
    pub rows: usize,
    /// Padded length of its members; 1 where requests do not differ in length.
    pub length: u32,
    /// Duration of the task.
    pub took: Nanos,
    /// Whether the other lanes of the device were idle; lanes that share a device slow each other
    /// down.
    pub alone: bool,
}

impl Calibration {
    /// Creates the calibration of a model that has not run yet.
    pub fn new(model: &Model) -> Calibration {
        let state = |at: usize| BlockState { drift: Drift::new(model.blocks[at].max_batch()), before: None };
        Calibration {
            model: Box::new(model.clone()),
            margin: Margin::new(model),
            blocks: (0..model.blocks.len()).map(state).collect(),
            doubt: Doubt::new(),
        }
    }

    /// Returns the model with the profiles that the scheduler plans with.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the margin by which the scheduler's deadlines precede the real ones.
    pub fn ahead(&self) -> Nanos {
        self.margin.ahead()
    }

    /// Replaces the profile that the scheduler plans with for a block.
    pub fn replace(&mut self, block: BlockId, profile: Profile) {
        self.model.blocks[block.index()].replace_profile(profile);
        self.margin = Margin::new(&self.model);
        let state = &mut self.blocks[block.index()];
        state.drift.forget();
        state.before = None;
    }

    /// Records that a batch ended `by` later (earlier, if negative) than its profile predicted.
    pub fn on_end(&mut self, by: Nanos) {
        self.margin.observe(by);
    }

    /// Records the end of a task. Returns a profile to [`replace`](Calibration::replace) the one in
    /// force, if that is wrong.
    pub fn on_task(&mut self, now: Time, ran: &Ran) -> Option<Profile> {
        self.doubt.on_task();
        let block = &self.model.blocks[ran.block.index()];
        let profiled = block.cost(ran.rows, ran.length);
        let state = &mut self.blocks[ran.block.index()];
        if let Some(before) = state.before.take() {
            return verdict(&before, &block.profile, profiled, ran.took);
        }
        if !ran.alone {
            return None;
        }
        state.drift.observe(now, ran.rows, ran.took, profiled, &block.profile)
    }

    /// Records a request of this extent that was rejected as hopeless before it ran, while no task
    /// of its model was in flight. `allowed` is the time from its arrival to its deadline; `idle`
    /// is true if no other model ran either. Returns the latency of the request alone if the
    /// profiles that predict it should be tested ([`test`](Calibration::test)). A rejection because
    /// of another model's load, or of a request with less than the SLO, says nothing about the
    /// profiles.
    pub fn on_hopeless(&mut self, now: Time, extent: Extent, allowed: Nanos, idle: bool) -> Option<Nanos> {
        let (alone, slo) = (self.alone(extent, 1), self.model.slo);
        let blamed = allowed >= slo && (idle || alone > slo);
        (blamed && self.doubt.on_hopeless(now, alone, slo)).then_some(alone)
    }

    /// Returns profiles by which a request with latency `alone` is in time with slack. They replace
    /// those in force until tasks have shown which are right.
    pub fn test(&mut self, alone: Nanos) -> Vec<(BlockId, Profile)> {
        let (slo, blocks) = (self.model.slo, (0..).map(BlockId).zip(&self.model.blocks));
        let tested: Vec<_> =
            blocks.filter_map(|(id, block)| Some((id, suspect(&block.profile, alone, slo)?))).collect();
        for (block, profile) in &tested {
            // A profile that is tested again has no verdict yet, so the one to restore is still the
            // first.
            let before = self.blocks[block.index()].before.take();
            let in_force = self.model.blocks[block.index()].profile.clone();
            self.replace(*block, profile.clone());
            self.blocks[block.index()].before = Some(before.unwrap_or(in_force));
        }
        tested
    }

    /// Returns the profiled latency of a request of `rows` rows alone.
    pub fn alone(&self, extent: Extent, rows: usize) -> Nanos {
        let each = self.model.blocks.iter().map(|block| {
            let steps = if block.steps == Steps::Nodes { extent.length } else { extent.steps(block.steps) };
            block.cost(rows, extent.length).0.saturating_mul(i64::from(steps.max(1)))
        });
        Nanos(each.fold(0, i64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    fn at(ms: i64) -> Time {
        Time::ORIGIN + MS(ms)
    }

    /// A model with a profile of 309 ms per row and an SLO of 100 ms.
    fn stalled() -> Calibration {
        Calibration::new(&Model::whole("m", Profile::linear(309.0, 0.1, 8).unwrap(), MS(100)))
    }

    fn ran(took: Nanos) -> Ran {
        Ran { block: BlockId(0), rows: 1, length: 1, took, alone: true }
    }

    fn run_test(learnt: &mut Calibration, from: i64) -> i64 {
        let (at_ms, alone) = (from..)
            .find_map(|ms| Some((ms, learnt.on_hopeless(at(ms), Extent::ONE, MS(100), true)?)))
            .expect("it is tested");
        assert_eq!(learnt.test(alone).len(), 1);
        at_ms
    }

    #[test]
    fn a_test_that_the_profile_stands_changes_nothing() {
        let mut learnt = stalled();
        let right = learnt.model().blocks[0].profile.clone();
        let mut tested = 0;
        for _ in 0..4 {
            tested = run_test(&mut learnt, tested + 1);
            assert!(learnt.model().blocks[0].profile.latency(1) < MS(20));
            let restored = learnt.on_task(at(tested), &ran(MS(300))).expect("the first task restores it");
            learnt.replace(BlockId(0), restored);
            assert_eq!(learnt.model().blocks[0].profile, right);
        }
        assert!(tested > 3_500, "ever more seldom: {tested} ms");
    }

    #[test]
    fn a_test_that_the_profile_fails_is_kept() {
        let mut learnt = stalled();
        let tested = run_test(&mut learnt, 0);
        let better = learnt.on_task(at(tested), &ran(MS(2))).expect("the first task tells");
        assert!(better.latency(1) >= MS(1) && better.latency(1) < MS(3), "{better:?}");
    }

    /// A profile that is off by less than half also prevents all tasks, with a margin.
    #[test]
    fn a_slightly_too_long_profile_is_scaled_to_the_task() {
        let mut learnt = Calibration::new(&Model::whole("m", Profile::linear(60.0, 20.0, 8).unwrap(), MS(100)));
        for (took, then) in [(75, 80), (50, 50)] {
            let tested = run_test(&mut learnt, 100_000 * then);
            let next = learnt.on_task(at(tested), &ran(MS(took))).unwrap();
            assert_eq!(next.latency(1), MS(then));
            learnt.replace(BlockId(0), next);
        }
    }

    #[test]
    fn a_profile_that_is_tested_twice_is_restored_to_the_first() {
        let mut learnt = stalled();
        let right = learnt.model().blocks[0].profile.clone();
        let tested = run_test(&mut learnt, 0);
        assert_eq!(learnt.test(MS(309)).len(), 1);
        assert_eq!(learnt.on_task(at(tested), &ran(MS(300))), Some(right));
    }

    /// 30 ms alone, within 100.
    #[test]
    fn short_limits_and_waits_for_others_do_not_make_a_profile_suspect() {
        let mut learnt = Calibration::new(&Model::whole("m", Profile::linear(10.0, 20.0, 8).unwrap(), MS(100)));
        for ms in 0..1_000 {
            assert_eq!(learnt.on_hopeless(at(ms), Extent::ONE, MS(1), true), None);
            assert_eq!(learnt.on_hopeless(at(ms), Extent::ONE, MS(100), false), None);
        }
        assert!((0..100).any(|ms| learnt.on_hopeless(at(ms), Extent::ONE, MS(100), true).is_some()));
    }

    #[test]
    fn only_the_wrong_block_of_a_chain_is_changed() {
        let (right, wrong) = (Profile::linear(0.5, 1.0, 8).unwrap(), Profile::linear(309.0, 0.1, 8).unwrap());
        let block = |profile: &Profile| ripieno_model::Block::new("b", profile.clone());
        let whole = Model::whole("m", right.clone(), MS(100));
        let mut learnt = Calibration::new(&Model { blocks: vec![block(&right), block(&wrong)], ..whole });
        let tested = learnt.on_hopeless(at(0), Extent::ONE, MS(100), true);
        assert_eq!(tested, None, "one is not enough");
        let alone = (0..100).find_map(|_| learnt.on_hopeless(at(0), Extent::ONE, MS(100), true)).unwrap();
        assert_eq!(learnt.test(alone).len(), 2);
        let restored = learnt.on_task(at(1), &ran(Nanos::from_micros(1_500))).unwrap();
        assert_eq!(restored, right);
        learnt.replace(BlockId(0), restored);
        let better = learnt.on_task(at(2), &Ran { block: BlockId(1), ..ran(MS(2)) }).unwrap();
        learnt.replace(BlockId(1), better);
        assert!(learnt.model().profile().latency(1) < MS(4));
    }
}
