//! What a driver learns of a model from what its tasks really take, and what it tells the core of it.
//!
//! Four learn from the same tasks, and none may apply the same correction twice:
//! * The [`Margin`] holds by how much batches end later than profiled, a fraction of the SLO. With a new profile
//!   it loses what was the old one's error.
//! * Admission learns a factor between the work that it reckoned with and the device time that full batches took, and a
//!   margin of its own. On [`Control::ProfileReplaced`](crate::Control::ProfileReplaced) both begin anew and learn nothing
//!   from tasks that were reckoned with the old profile.
//! * [`Drift`] compares with the profile in force when a task lands and forgets all it has seen when it speaks, so that it
//!   sees what is left of the error, never the corrected part. It speaks in large steps, the others cover what is below them.
//! * [`Doubt`] sees to it that there are tasks to learn from.
//!
//! Both drivers use it: the runtime always, the simulator where a scenario is run as served.

use super::drift::{Doubt, Drift, doubted, judged};
use super::margin::{Guess, Margin};
use ripieno_base::{BlockId, Nanos, Time};
use ripieno_model::{Extent, Model, Profile, Steps};

/// A model as its driver believes it to be.
#[derive(Debug)]
pub struct Calibration {
    model: Box<Model>,
    margin: Margin,
    blocks: Vec<Believed>,
    doubt: Doubt,
}

#[derive(Debug)]
struct Believed {
    drift: Drift,
    /// The profile that is doubted, while another is tried in its place.
    before: Option<Profile>,
}

/// A task that ran as one batch and did not fail.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// What ran.
    pub block: BlockId,
    /// The rows of its members.
    pub rows: usize,
    /// What they were padded to; 1 where requests do not differ in length.
    pub length: u32,
    /// For how long it ran.
    pub took: Nanos,
    /// Whether no other lane of the device ran anything meanwhile: lanes that share a device slow each other down.
    pub alone: bool,
}

impl Calibration {
    /// Of a model of which nothing has run yet.
    pub fn new(model: &Model) -> Calibration {
        let believed = |at: usize| Believed { drift: Drift::new(model.blocks[at].max_batch()), before: None };
        Calibration {
            model: Box::new(model.clone()),
            margin: Margin::new(model),
            blocks: (0..model.blocks.len()).map(believed).collect(),
            doubt: Doubt::new(),
        }
    }

    /// The model with the profiles that the core plans with.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// By how much the core's deadlines lie ahead of the real ones, where this stands in for what is not known yet.
    pub fn ahead(&self, guess: Guess) -> Nanos {
        self.margin.ahead(guess)
    }

    /// The core plans with another profile of a block from now on.
    pub fn replace(&mut self, block: BlockId, profile: Profile) {
        let before = self.model.clone();
        self.model.blocks[block.index()].replace_profile(profile);
        self.margin = self.margin.renewed(&before, &self.model);
        let believed = &mut self.blocks[block.index()];
        believed.drift.forget();
        believed.before = None;
    }

    /// A batch ended `by` later (or earlier, if negative) than its profile said.
    pub fn on_end(&mut self, by: Nanos) {
        self.margin.observe(by);
    }

    /// A task has ended. The profile of its block to [`replace`](Calibration::replace) the one in force, which is wrong.
    pub fn on_task(&mut self, now: Time, ran: &Ran) -> Option<Profile> {
        self.doubt.on_task();
        let block = &self.model.blocks[ran.block.index()];
        let profiled = block.cost(ran.rows, ran.length);
        let believed = &mut self.blocks[ran.block.index()];
        if let Some(before) = believed.before.take() {
            return judged(&before, &block.profile, profiled, ran.took);
        }
        if !ran.alone {
            return None;
        }
        believed.drift.observe(now, ran.rows, ran.took, profiled, &block.profile)
    }

    /// A request so long was given up before it ran, and no task of its model is in flight; it had `allowed` from its arrival to
    /// its deadline, and `idle` says whether nothing else ran either. How long it takes alone, if the profiles that say so
    /// are to be put to the [`test`](Calibration::test). Not a profile's fault is what another's load kept waiting, and who
    /// asked for less than the SLO.
    pub fn on_hopeless(&mut self, now: Time, extent: Extent, allowed: Nanos, idle: bool) -> Option<Nanos> {
        let (alone, slo) = (self.alone(extent, 1), self.model.slo);
        let blamed = allowed >= slo && (idle || alone > slo);
        (blamed && self.doubt.on_hopeless(now, alone, slo)).then_some(alone)
    }

    /// Profiles by which a request that takes `alone` is in time with room to spare, to replace those in force until tasks have
    /// shown who is right.
    pub fn test(&mut self, alone: Nanos) -> Vec<(BlockId, Profile)> {
        let (slo, blocks) = (self.model.slo, (0..).map(BlockId).zip(&self.model.blocks));
        let tested: Vec<_> =
            blocks.filter_map(|(id, block)| Some((id, doubted(&block.profile, alone, slo)?))).collect();
        for (block, profile) in &tested {
            // What is tested again has not been judged yet: the profile to go back to is still the first one.
            let before = self.blocks[block.index()].before.take();
            let inforce = self.model.blocks[block.index()].profile.clone();
            self.replace(*block, profile.clone());
            self.blocks[block.index()].before = Some(before.unwrap_or(inforce));
        }
        tested
    }

    /// How long a request of so many rows takes alone, by the profiles.
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

    /// A model that is thought to take 309 ms a row, within 100 ms.
    fn stalled() -> Calibration {
        Calibration::new(&Model::whole("m", Profile::linear(309.0, 0.1, 8).unwrap(), MS(100)))
    }

    fn ran(took: Nanos) -> Ran {
        Ran { block: BlockId(0), rows: 1, length: 1, took, alone: true }
    }

    fn put_to_the_test(learnt: &mut Calibration, from: i64) -> i64 {
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
            tested = put_to_the_test(&mut learnt, tested + 1);
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
        let tested = put_to_the_test(&mut learnt, 0);
        let better = learnt.on_task(at(tested), &ran(MS(2))).expect("the first task tells");
        assert!(better.latency(1) >= MS(1) && better.latency(1) < MS(3), "{better:?}");
    }

    /// With a margin, a profile that is off by less than half lets nothing run, too.
    #[test]
    fn a_profile_that_is_a_little_too_long_goes_on_with_what_the_task_took() {
        let mut learnt = Calibration::new(&Model::whole("m", Profile::linear(60.0, 20.0, 8).unwrap(), MS(100)));
        for (took, then) in [(75, 80), (50, 50)] {
            let tested = put_to_the_test(&mut learnt, 100_000 * then);
            let next = learnt.on_task(at(tested), &ran(MS(took))).unwrap();
            assert_eq!(next.latency(1), MS(then));
            learnt.replace(BlockId(0), next);
        }
    }

    #[test]
    fn what_is_tested_twice_goes_back_to_the_first_profile() {
        let mut learnt = stalled();
        let right = learnt.model().blocks[0].profile.clone();
        let tested = put_to_the_test(&mut learnt, 0);
        assert_eq!(learnt.test(MS(309)).len(), 1);
        assert_eq!(learnt.on_task(at(tested), &ran(MS(300))), Some(right));
    }

    /// 30 ms alone, within 100.
    #[test]
    fn who_asks_for_less_than_the_slo_or_waits_for_others_is_no_reason_for_doubt() {
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
