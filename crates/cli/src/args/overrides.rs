//! Changes to a scenario, or to a recording, from the command line.

use crate::args::policy::PolicyArgs;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use ripieno_policies::{find, served_options};
use ripieno_repository::config::nearest;
use ripieno_sched::{Objective, Options};
use ripieno_sim::Scenario;
use std::path::Path;

/// Changes to a scenario without editing it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Overrides {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Serve the models as `ripieno serve` would: its default policy (or --policy) with its
    /// options, its margins before deadlines, and its admission control.
    #[arg(long)]
    pub(crate) as_served: bool,

    /// Seed of the random arrivals, instead of the scenario's.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Offered requests per second, instead of the scenario's.
    #[arg(long, value_name = "R")]
    pub(crate) rate: Option<f64>,

    /// Check every guarantee of the scheduler along the way (a tenth of a run's time), and stop at
    /// a violation.
    #[arg(long)]
    pub(crate) check: bool,
}

impl Overrides {
    /// Returns true if guarantees are checked: always in a development build, so that every test
    /// checks them.
    pub(crate) fn checks(&self) -> bool {
        self.check || cfg!(debug_assertions)
    }

    /// Reads the scenario and applies the changes. Another policy starts from its own default
    /// options.
    pub(crate) fn read(&self, path: &Path) -> anyhow::Result<Scenario> {
        check_scenario(path)?;
        let mut scenario = Scenario::read(path).map_err(|error| anyhow!(with_hint(&error.to_string())))?;
        if self.as_served {
            // The policy is replaced, but an unknown name is still a mistake.
            find(&scenario.policy).with_context(|| format!("{}: policy", path.display()))?;
            match &self.policy.policy {
                Some(policy) => {
                    let policy = find(policy)?;
                    scenario.serve_under(policy, served_options(policy, Options::new(), Objective::default()));
                }
                None => scenario.serve(Objective::default()),
            }
        }
        if let Some(policy) = self.policy.policy.as_ref().filter(|&policy| *policy != scenario.policy) {
            scenario.policy.clone_from(policy);
            scenario.policy_options.clear();
        }
        scenario.policy_options = self.policy.over(std::mem::take(&mut scenario.policy_options));
        scenario.seed = self.seed.unwrap_or(scenario.seed);
        scenario.check = self.checks();
        if let Some(rate) = self.rate {
            if scenario.requests.is_some() {
                bail!("--rate has no effect: the scenario lists its requests in requests_file");
            }
            scenario.set_rate("--rate", rate).map_err(anyhow::Error::msg)?;
        }
        Ok(scenario)
    }
}

/// Appends the key that an unknown one was probably meant to be. The parser's message lists the
/// known keys.
fn with_hint(error: &str) -> String {
    let error = error.trim_end();
    let near = error.split_once("unknown field `").and_then(|(_, rest)| {
        let (unknown, rest) = rest.split_once('`')?;
        // Every second part between backticks is a key.
        let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        nearest(unknown, &known)
    });
    near.map_or_else(|| error.to_owned(), |near| format!("{error}; did you mean `{near}`?"))
}

/// Refuses what is given in place of a scenario most often: a folder or a model.
fn check_scenario(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    if path.is_dir() {
        bail!(
            "{shown} is a folder, not a scenario: give a TOML file as in scenarios/ (docs/reference/scenarios.md); \
             policies on a model of a repository are compared by ripieno compare --live"
        );
    }
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx")) {
        bail!(
            "{shown} is a model, not a scenario: describe it in a TOML file by its latencies, which ripieno profile {shown} \
             measures, as in scenarios/ (docs/reference/scenarios.md)"
        );
    }
    Ok(())
}
