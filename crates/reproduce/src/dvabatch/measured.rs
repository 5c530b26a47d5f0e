//! DVABatch against DelayBatch on real models of this machine: what Figures 14 to 17 compare.
//!
//! The baselines run a model whole, DVABatch the same file in stages: what a cut costs counts against it. Only networks have a
//! measured figure for which a model stands in, and of the baselines' rules of dispatch only "free", with which they are better.

use super::workload::{Case, LOADS, System};
use crate::context::Context;
use crate::item::Row;
use crate::machine::Compared;
use crate::measured::{Contest, Measured, Setting};

/// Stand-ins by network: the model, and the same in stages if it has parts that may differ in what batch they prefer.
const STAND_INS: [(&str, &str, Option<&str>); 3] =
    [("BertBase", "bert", None), ("Unet", "unet", Some("unet-4")), ("ResNet152", "resnet", Some("resnet-4"))];
const PROGRAM: &str = "tests/python/dva_models.py";

const ZERO_BATCH: &str = "delay-batch";
const WINDOW: &str = "delay-batch,window_ms=20";
/// One pair of buffers: a batch uses all of the device here, and none gains by running beside another.
const DVA: &str = "dva,buffers=1";
const OUTSTANDING: u16 = 128;

/// A model that stands in for a network.
struct StandIn<'a> {
    measured: Measured<'a>,
    model: &'static str,
    policies: [String; 3],
    lengths: Option<String>,
}

/// What contenders gave.
#[derive(Clone, Debug)]
pub(super) struct Given {
    contest: Contest,
    /// DVABatch, as the contest calls it.
    dva: String,
}

/// Peaks of the model that stands in for a case's network; none if nobody asked, or there is none.
pub(super) fn peaks(context: &Context, case: &Case) -> anyhow::Result<Option<Given>> {
    StandIn::find(context, case)?.map(|model| model.peaks()).transpose()
}

/// The same at the loads of the paper, as shares of what DelayBatch carries.
pub(super) fn by_load(context: &Context, case: &Case) -> anyhow::Result<Option<Given>> {
    StandIn::find(context, case)?.map(|model| model.by_load()).transpose()
}

/// A row with this value of what was measured, and how that was.
pub(super) fn beside(row: Row, given: Option<&Given>, value: impl Fn(&Given) -> Option<f64>) -> Row {
    match given.and_then(|given| Some((value(given)?, given.note()))) {
        Some((value, note)) => row.measured(value).note(note),
        None => row,
    }
}

impl<'a> StandIn<'a> {
    fn find(context: &'a Context, case: &Case) -> anyhow::Result<Option<StandIn<'a>>> {
        // All of them, so that a repository with another "bert" is not taken for one of these.
        let all: Vec<_> =
            STAND_INS.into_iter().flat_map(|(_, whole, stages)| [whole].into_iter().chain(stages)).collect();
        let measured = context.models_by(PROGRAM, &all)?;
        let &Case { network, sentences, .. } = case;
        let model = STAND_INS.into_iter().find(|(name, ..)| *name == network.name);
        let lengths = if network.has_lengths() { sentences.law() } else { None };
        let is_known = lengths.is_some() || !network.has_lengths();
        Ok(measured.zip(model).filter(|_| is_known).map(|(measured, (_, model, stages))| {
            let dva = stages.map_or_else(|| DVA.to_owned(), |stages| format!("{DVA},model={stages}"));
            let policies = [ZERO_BATCH.to_owned(), WINDOW.to_owned(), dva];
            StandIn { measured, model, policies, lengths }
        }))
    }

    fn setting(&self) -> Setting<'_> {
        let StandIn { model, policies, lengths, .. } = self;
        Setting { model, policies, outstanding: OUTSTANDING, lengths: lengths.as_deref() }
    }

    fn peaks(&self) -> anyhow::Result<Given> {
        Ok(Given { contest: self.measured.peaks(self.setting())?, dva: self.policies[2].clone() })
    }

    fn by_load(&self) -> anyhow::Result<Given> {
        let Given { contest, dva } = self.peaks()?;
        let peak_rps = contest.answered_rps(ZERO_BATCH).max(contest.answered_rps(WINDOW));
        let contest = self.measured.at_shares(self.setting(), peak_rps, &LOADS.map(|(_, share)| share))?;
        Ok(Given { contest, dva })
    }
}

impl Given {
    /// A latency of a system under the load of this place.
    pub(super) fn latency(&self, system: System, load: usize, of: fn(&Compared) -> f64) -> Option<f64> {
        let latency = |policy: &str| self.contest.of(policy).get(load).map(|row| of(row));
        self.policies(system).into_iter().filter_map(latency).reduce(f64::min)
    }

    /// How many requests a second a system answers at its peak.
    pub(super) fn peak_rps(&self, system: System) -> Option<f64> {
        self.policies(system).into_iter().map(|policy| self.contest.answered_rps(policy)).reduce(f64::max)
    }

    /// The peak of DVABatch over that of a baseline.
    pub(super) fn gain(&self, baseline: System) -> Option<f64> {
        Some(self.peak_rps(System::DVA)? / self.peak_rps(baseline)?)
    }

    /// Who stands for a system; the better one counts.
    fn policies(&self, system: System) -> Vec<&str> {
        match system {
            System::Delay(0.0, false) => vec![ZERO_BATCH],
            System::Delay(_, false) => vec![ZERO_BATCH, WINDOW],
            System::Dva("") => vec![&self.dva],
            System::Delay(_, true) | System::Dva(_) | System::Lazy => Vec::new(),
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
