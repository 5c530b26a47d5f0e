//! The *measured* column: what an item asks of the simulator, asked of real models on this machine.
//!
//! Each measurement is a `ripieno compare`, whose command line stands in the row's note, so that anybody can run it alone:
//! contestants take turns under the same load, and what is compared are medians over the turns. The models lie in a repository that
//! the user names; an item says under which names it looks for them, and has no such column where one is missing.

use crate::compare::{self, CompareArgs, Row};
use crate::devices::EngineName;
use anyhow::Context as _;
use clap::ValueEnum as _;
use std::path::PathBuf;

/// Models to measure, and how long.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) repository: PathBuf,
    pub(super) engine: EngineName,
    pub(super) quick: bool,
}

/// A contest that was held.
#[derive(Clone, Debug)]
pub(super) struct Contest {
    pub(super) rows: Vec<Row>,
    /// The command that holds it again.
    pub(super) command: String,
}

/// Closed loop, as many requests outstanding: enough for the largest batches.
const OUTSTANDING: &str = "64";

impl Measured {
    /// Whether the repository holds all of these models.
    pub(super) fn has(&self, models: &[&str]) -> bool {
        models.iter().all(|model| self.repository.join(model).is_dir())
    }

    /// Policies (`NAME[,KEY=VALUE]...`) in turn on a model: at each of these rates, or with all they can take.
    pub(super) fn contest(&self, model: &str, policies: &[String], rates: &[f64]) -> anyhow::Result<Contest> {
        let engine = self.engine.to_possible_value().map(|name| name.get_name().to_owned()).unwrap_or_default();
        let mut words = Vec::new();
        let mut say = |option: &str, value: &str| words.extend([format!("--{option}"), value.to_owned()]);
        say("model", model);
        policies.iter().for_each(|policy| say("policy", policy));
        rates.iter().for_each(|rate| say("rate", &format!("{rate:.1}")));
        say("engine", &engine);
        say("threads", "1");
        say("outstanding", OUTSTANDING);
        let (rounds, seconds) = if self.quick { ("1", "2") } else { ("3", "5") };
        say("rounds", rounds);
        say("seconds", seconds);
        let args = CompareArgs::from_words(&self.repository, words.iter().map(String::as_str))?;
        let command = format!("ripieno compare {} {}", self.repository.display(), words.join(" "));
        let rows = compare::measure(&args).with_context(|| command.clone())?.results;
        Ok(Contest { rows, command })
    }
}
