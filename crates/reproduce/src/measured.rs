//! The *measured* column: what an item asks of the simulator, asked of real models on this machine.
//!
//! Each measurement is a `ripieno compare`, whose command line stands in the row's note, so that anybody can run it alone:
//! contestants take turns under the same load, and what is compared are medians over the turns. The models lie in a repository that
//! the user names, under names that the item knows. A peak is what is answered with so many requests outstanding, and loads are
//! shares of a peak, so that low and high mean the same on any machine.

use crate::machine::{Compared, Machine};
use anyhow::Context as _;
use std::path::Path;

/// Where models to measure lie, on what they run, and how long.
#[derive(Clone, Debug)]
pub(super) struct Measured<'a> {
    pub(super) machine: &'a dyn Machine,
    pub(super) repository: &'a Path,
    pub(super) engine: &'a str,
    /// How often each has its turn under each load, and how long a turn takes.
    pub(super) rounds: u16,
    pub(super) seconds: f64,
}

/// Who takes turns, and on what requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    /// What everybody runs whose policy names no other model.
    pub(super) model: &'a str,
    /// `NAME[,KEY=VALUE]...`.
    pub(super) policies: &'a [String],
    /// At a peak, so many requests are outstanding: enough for the largest batches.
    pub(super) outstanding: u16,
    /// The law of lengths, as `--lengths` takes it, where requests have lengths.
    pub(super) lengths: Option<&'a str>,
}

/// A contest that was held.
#[derive(Clone, Debug)]
pub(super) struct Contest {
    rows: Vec<Compared>,
    /// The command that holds it again.
    command: String,
}

/// `ripieno compare` takes no load of nothing, which is what a share of a peak may be on a machine that is stuck.
const LEAST_RPS: f64 = 0.1;

impl Measured<'_> {
    /// The first of these models that the repository does not hold.
    pub(super) fn lacks<'m>(&self, models: &[&'m str]) -> Option<&'m str> {
        models.iter().copied().find(|model| !self.repository.join(model).is_dir())
    }

    /// Everybody in turn with all they can take.
    pub(super) fn peaks(&self, setting: Setting<'_>) -> anyhow::Result<Contest> {
        self.contest(setting, &[])
    }

    /// Everybody in turn at each of these shares of a peak.
    pub(super) fn at_shares(&self, setting: Setting<'_>, peak_rps: f64, shares: &[f64]) -> anyhow::Result<Contest> {
        let rates: Vec<f64> = shares.iter().map(|share| (share * peak_rps).max(LEAST_RPS)).collect();
        self.contest(setting, &rates)
    }

    fn contest(&self, setting: Setting<'_>, rates: &[f64]) -> anyhow::Result<Contest> {
        let Setting { model, policies, outstanding, lengths } = setting;
        let mut words = Vec::new();
        let mut say = |option: &str, value: &str| words.extend([format!("--{option}"), value.to_owned()]);
        say("model", model);
        policies.iter().for_each(|policy| say("policy", policy));
        rates.iter().for_each(|rate| say("rate", &format!("{rate:.1}")));
        lengths.iter().for_each(|law| say("lengths", law));
        say("engine", self.engine);
        say("threads", "1");
        say("outstanding", &outstanding.to_string());
        say("rounds", &self.rounds.to_string());
        say("seconds", &self.seconds.to_string());
        let command = format!("ripieno compare {} {}", self.repository.display(), words.join(" "));
        let rows = self.machine.compare(self.repository, &words).with_context(|| command.clone())?;
        Ok(Contest { rows, command })
    }
}

impl Contest {
    /// What a policy gave, by load.
    pub(super) fn of(&self, policy: &str) -> Vec<&Compared> {
        self.rows.iter().filter(|row| row.policy == policy).collect()
    }

    /// What a policy answered a second under the first load.
    pub(super) fn answered_rps(&self, policy: &str) -> f64 {
        self.of(policy).first().map_or(0.0, |row| row.answered_rps)
    }

    /// How to hold it again, for a row's note.
    pub(super) fn note(&self) -> String {
        format!("Measured here: `{}`.", self.command)
    }
}
