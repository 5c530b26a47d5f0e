//! The *measured* column: the same experiment with real models on this machine.
//!
//! Each measurement is a `ripieno compare`, whose command line is in the row's note, so that it can
//! be repeated: contestants take turns under the same load, and medians over the turns are
//! compared. The models are in a repository of the user, under names that the item expects. A peak
//! is the rate of answers with a fixed number of requests outstanding. Loads are fractions of a
//! peak, so that low and high mean the same on any machine.

use crate::machine::{LiveMachine, PolicyResult};
use anyhow::Context as _;
use std::path::Path;

/// The repository of models to measure, the engine, and the durations.
#[derive(Clone, Debug)]
pub(super) struct MeasuredModels<'a> {
    pub(super) machine: &'a dyn LiveMachine,
    pub(super) repository: &'a Path,
    pub(super) engine: &'a str,
    /// Number of turns of each contestant under each load, and the length of a turn.
    pub(super) rounds: u16,
    pub(super) seconds: f64,
}

/// The contestants and their requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContestSetting<'a> {
    /// The model of all policies that name no other model.
    pub(super) model: &'a str,
    /// `NAME[,KEY=VALUE]...`.
    pub(super) policies: &'a [String],
    /// Number of requests outstanding at a peak: enough for the largest batches.
    pub(super) outstanding: u16,
    /// The distribution of lengths, as for `--lengths`, if requests have lengths.
    pub(super) lengths: Option<&'a str>,
}

/// A finished measurement.
#[derive(Clone, Debug)]
pub(super) struct MeasuredContest {
    rows: Vec<PolicyResult>,
    /// The command that repeats it.
    command: String,
}

/// Lowest rate that `ripieno compare` accepts; a fraction of a peak may fall below it on a stuck
/// machine.
const LEAST_RPS: f64 = 0.1;

impl MeasuredModels<'_> {
    /// Returns the first of these models that the repository does not have.
    pub(super) fn lacks<'m>(&self, models: &[&'m str]) -> Option<&'m str> {
        models.iter().copied().find(|model| !self.repository.join(model).is_dir())
    }

    /// Measures every contestant at saturation.
    pub(super) fn peaks(&self, setting: ContestSetting<'_>) -> anyhow::Result<MeasuredContest> {
        self.contest(setting, &[])
    }

    /// Measures every contestant at each of these fractions of a peak.
    pub(super) fn at_shares(
        &self,
        setting: ContestSetting<'_>,
        peak_rps: f64,
        shares: &[f64],
    ) -> anyhow::Result<MeasuredContest> {
        let rates: Vec<f64> = shares.iter().map(|share| (share * peak_rps).max(LEAST_RPS)).collect();
        self.contest(setting, &rates)
    }

    fn contest(&self, setting: ContestSetting<'_>, rates: &[f64]) -> anyhow::Result<MeasuredContest> {
        let ContestSetting { model, policies, outstanding, lengths } = setting;
        let mut words = Vec::new();
        let mut say = |option: &str, value: &str| words.extend([format!("--{option}"), value.to_owned()]);
        say("model", model);
        policies.iter().for_each(|policy| say("policy", policy));
        rates.iter().for_each(|rate| say("rate", &format!("{rate:.1}")));
        if let Some(law) = lengths {
            say("lengths", law);
        }
        say("engine", self.engine);
        say("threads", "1");
        say("outstanding", &outstanding.to_string());
        say("rounds", &self.rounds.to_string());
        say("seconds", &self.seconds.to_string());
        let command = format!("ripieno compare {} {}", self.repository.display(), words.join(" "));
        let rows = self.machine.compare(self.repository, &words).with_context(|| command.clone())?;
        Ok(MeasuredContest { rows, command })
    }
}

impl MeasuredContest {
    /// Returns the results of a policy, by load.
    pub(super) fn of(&self, policy: &str) -> Vec<&PolicyResult> {
        self.rows.iter().filter(|row| row.policy == policy).collect()
    }

    /// Returns the answers per second of a policy under the first load.
    pub(super) fn answered_rps(&self, policy: &str) -> f64 {
        self.of(policy).first().map_or(0.0, |row| row.answered_rps)
    }

    /// Returns the command that repeats it, for a row's note.
    pub(super) fn note(&self) -> String {
        format!("Measured here: `{}`.", self.command)
    }
}
