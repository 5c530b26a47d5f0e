//! DVABatch against DelayBatch on real models on this machine, for Figures 14 to 17.
//!
//! The baselines run a whole model, DVABatch the same file in stages: the cost of a cut counts
//! against it. Only networks for which a model stands in are measured, and of the baselines'
//! dispatch rules only "free", which suits them better.

use super::workload::{DvaCase, DvaSystem, LOADS};
use crate::context::ReproduceContext;
use crate::item::ResultRow;
use crate::machine::PolicyResult;
use crate::measured::{ContestSetting, MeasuredContest, MeasuredModels};

/// Stand-ins by network: the model, and the same in stages if it has parts with different preferred
/// batch sizes.
const STAND_INS: [(&str, &str, Option<&str>); 3] =
    [("BertBase", "bert", None), ("Unet", "unet", Some("unet-4")), ("ResNet152", "resnet", Some("resnet-4"))];
const PROGRAM: &str = "tests/python/dva_models.py";

const ZERO_BATCH: &str = "delay-batch";
const WINDOW: &str = "delay-batch,window_ms=20";
/// One pair of buffers: a batch uses the whole device here, so running another in parallel gains
/// nothing. Nothing is stretched with it, so this is the reading without a window.
const DVA: &str = "dva,buffers=1,window_ms=0";
const OUTSTANDING: u16 = 128;

/// A model that stands in for a network.
struct StandIn<'a> {
    measured: MeasuredModels<'a>,
    model: &'static str,
    policies: [String; 3],
    lengths: Option<String>,
}

/// The measurement of the contenders on a stand-in.
#[derive(Clone, Debug)]
pub(super) struct StandInMeasurement {
    contest: MeasuredContest,
    /// DVABatch, by its name in the contest.
    dva: String,
}

/// Measures peaks on the model that stands in for a case's network; `None` if not requested, or if
/// there is no such model.
pub(super) fn peaks(context: &ReproduceContext, case: &DvaCase) -> anyhow::Result<Option<StandInMeasurement>> {
    StandIn::find(context, case)?.map(|model| model.peaks()).transpose()
}

/// Measures latencies at the paper's loads, as fractions of DelayBatch's capacity.
pub(super) fn by_load(context: &ReproduceContext, case: &DvaCase) -> anyhow::Result<Option<StandInMeasurement>> {
    StandIn::find(context, case)?.map(|model| model.by_load()).transpose()
}

/// Adds a measured value and its method to a row.
pub(super) fn beside(
    row: ResultRow,
    given: Option<&StandInMeasurement>,
    value: impl Fn(&StandInMeasurement) -> Option<f64>,
) -> ResultRow {
    match given.and_then(|given| Some((value(given)?, given.note()))) {
        Some((value, note)) => row.measured(value).note(note),
        None => row,
    }
}

impl<'a> StandIn<'a> {
    fn find(context: &'a ReproduceContext, case: &DvaCase) -> anyhow::Result<Option<StandIn<'a>>> {
        // All of them, so that a repository with another "bert" is not mistaken for one of these.
        let all: Vec<_> =
            STAND_INS.into_iter().flat_map(|(_, whole, stages)| [whole].into_iter().chain(stages)).collect();
        let measured = context.models_by(PROGRAM, &all)?;
        let &DvaCase { network, sentences, .. } = case;
        let model = STAND_INS.into_iter().find(|(name, ..)| *name == network.name);
        let lengths = if network.has_lengths() { sentences.law() } else { None };
        let is_known = lengths.is_some() || !network.has_lengths();
        Ok(measured.zip(model).filter(|_| is_known).map(|(measured, (_, model, stages))| {
            let dva = stages.map_or_else(|| DVA.to_owned(), |stages| format!("{DVA},model={stages}"));
            let policies = [ZERO_BATCH.to_owned(), WINDOW.to_owned(), dva];
            StandIn { measured, model, policies, lengths }
        }))
    }

    fn setting(&self) -> ContestSetting<'_> {
        let StandIn { model, policies, lengths, .. } = self;
        ContestSetting { model, policies, outstanding: OUTSTANDING, lengths: lengths.as_deref() }
    }

    fn peaks(&self) -> anyhow::Result<StandInMeasurement> {
        Ok(StandInMeasurement { contest: self.measured.peaks(self.setting())?, dva: self.policies[2].clone() })
    }

    fn by_load(&self) -> anyhow::Result<StandInMeasurement> {
        let StandInMeasurement { contest, dva } = self.peaks()?;
        let peak_rps = contest.answered_rps(ZERO_BATCH).max(contest.answered_rps(WINDOW));
        let contest = self.measured.at_shares(self.setting(), peak_rps, &LOADS.map(|(_, share)| share))?;
        Ok(StandInMeasurement { contest, dva })
    }
}

impl StandInMeasurement {
    /// Returns a latency of a system under the load at this index.
    pub(super) fn latency(&self, system: DvaSystem, load: usize, of: fn(&PolicyResult) -> f64) -> Option<f64> {
        let latency = |policy: &str| self.contest.of(policy).get(load).map(|row| of(row));
        self.policies(system).into_iter().filter_map(latency).reduce(f64::min)
    }

    /// Returns a system's answers per second at its peak.
    pub(super) fn peak_rps(&self, system: DvaSystem) -> Option<f64> {
        self.policies(system).into_iter().map(|policy| self.contest.answered_rps(policy)).reduce(f64::max)
    }

    /// Returns the peak of DVABatch divided by a baseline's.
    pub(super) fn gain(&self, baseline: DvaSystem) -> Option<f64> {
        Some(self.peak_rps(DvaSystem::BARE)? / self.peak_rps(baseline)?)
    }

    /// Returns the policies that stand for a system; the better one counts.
    fn policies(&self, system: DvaSystem) -> Vec<&str> {
        match system {
            DvaSystem::Delay(0.0, false) => vec![ZERO_BATCH],
            DvaSystem::Delay(_, false) => vec![ZERO_BATCH, WINDOW],
            DvaSystem::BARE => vec![&self.dva],
            DvaSystem::Delay(_, true) | DvaSystem::Dva(_) | DvaSystem::Lazy => Vec::new(),
        }
    }

    pub(super) fn note(&self) -> String {
        format!(
            "{} Peaks, of which loads are shares, are with {OUTSTANDING} requests outstanding; DelayBatch has the better window of 0 \
             and 20 ms each time; `buffers=1`, since one batch uses all of the processor.",
            self.contest.note()
        )
    }
}
