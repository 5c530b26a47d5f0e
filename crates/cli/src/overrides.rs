//! Changes to a scenario, or to a recording, from the command line.

use crate::policy::PolicyArgs;
use anyhow::{Context, bail};
use clap::Args;
use ripieno_sched::{Objective, Options, find, served_options};
use ripieno_sim::Scenario;
use std::path::Path;

/// Changes to a scenario without editing it.
#[derive(Args, Debug)]
pub(crate) struct Overrides {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Serve the models as `ripieno serve` would: its choice of the policy (or --policy) and its
    /// options, its largest batches, its margins before deadlines, and its admission control.
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
        let mut scenario = Scenario::read(path)?;
        if self.as_served {
            // The policy is replaced, but an unknown name is still a mistake.
            find(&scenario.policy).with_context(|| format!("{}: policy", path.display()))?;
            match &self.policy.policy {
                Some(policy) => {
                    let policy = find(policy)?;
                    scenario.serve_under(policy, served_options(policy, Options::new(), Objective::default()));
                }
                None => drop(scenario.serve(Objective::default())),
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
