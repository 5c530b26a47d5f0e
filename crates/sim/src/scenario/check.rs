//! Checks of scenarios that can be parsed but have no meaningful result.
//!
//! A well-formed scenario may request the impossible. A run of it would end with "100 % dropped" or
//! "goodput 0", which looks like a weak scheduler and hides a wrong number in a file. Each command
//! therefore checks here first, after `--policy`, `--option` and `--rate` were applied. The checks
//! are not part of parsing, since `plan` has a result for such a file: devices for the other
//! models.

use super::{Length, ParseResult, Scenario, ScenarioError};
use crate::link::Delay;
use ripieno_base::Nanos;
use ripieno_model::{DropRule, Model};
use ripieno_policies::{build, find};
use ripieno_sched::{BuildError, OptionValue};

/// Upper bound on rates: one arrival per nanosecond.
const MOST_RPS: f64 = 1e9;
/// Upper bound on runs, thirty years; time is counted in nanoseconds and ends after 292.
const LONGEST_RUN_S: f64 = 1e9;
/// Upper bound on requests; more take days of simulation and are a mistake in a unit.
const MOST_REQUESTS: f64 = 1e12;

impl Scenario {
    /// Sets the offered rate, with the same checks as the file's own. `key` names it in the error.
    pub fn set_rate(&mut self, key: &str, rate: f64) -> Result<(), String> {
        checked_rate(key, rate, self.length)?;
        self.rate = Some(rate);
        Ok(())
    }

    /// Returns the models that no number of devices serves in time, with the latency of one request
    /// alone, which exceeds the SLO.
    pub fn impossible_models(&self) -> Vec<(usize, Nanos)> {
        let late = |(index, model): (usize, &Model)| {
            let fastest = self.fastest(model);
            (fastest > model.slo).then_some((index, fastest))
        };
        self.setup.models.iter().enumerate().filter_map(late).collect()
    }

    /// Checks that the policy and its options exist and fit. `file` names the scenario in the
    /// error.
    pub fn check_policy(&self, file: &str) -> Result<(), ScenarioError> {
        let problem = match build(&self.policy, &self.effective_setup(), &self.effective_options()) {
            Ok(_) => return Ok(()),
            Err(error) => match key_of(&error) {
                Some(key) => format!("{key}: {error}"),
                None => error.to_string(),
            },
        };
        Err(ScenarioError { file: file.to_owned(), problem })
    }

    /// Checks that a run has a result: the policy fits, and no model's requests are all dropped
    /// because its SLO is below ℓ(1). Late answers are a result, so a model that never drops, or
    /// not before the deadline, may run.
    pub fn check_run(&self, file: &str) -> Result<(), ScenarioError> {
        self.check_policy(file)?;
        let dropped = |&(model, _): &(usize, Nanos)| self.is_offered(model) && self.drops_hopeless(model);
        self.refuse(file, self.impossible_models().into_iter().find(dropped), |fastest| {
            format!(
                "so every request would be dropped; give at least {fastest}, or drop = \"never\" for answers that are late"
            )
        })
    }

    /// Checks that there is a goodput: the policy fits, and every offered model can be punctual at
    /// some rate.
    pub fn check_goodput(&self, file: &str) -> Result<(), ScenarioError> {
        self.check_policy(file)?;
        let offered = |&(model, _): &(usize, Nanos)| self.is_offered(model);
        self.refuse(file, self.impossible_models().into_iter().find(offered), |fastest| {
            format!("so no rate is low enough; give at least {fastest}")
        })
    }

    fn refuse(
        &self,
        file: &str,
        impossible: Option<(usize, Nanos)>,
        fix: impl Fn(f64) -> String,
    ) -> Result<(), ScenarioError> {
        let Some((index, fastest)) = impossible else { return Ok(()) };
        let Model { name, slo, .. } = &self.setup.models[index];
        let (slo_ms, fastest_ms) = (slo.as_millis_f64(), fastest.as_millis_f64());
        let fix = fix(fastest_ms);
        let problem = format!("model {name:?}: slo_ms = {slo_ms}, but one request alone takes {fastest_ms} ms, {fix}");
        Err(ScenarioError { file: file.to_owned(), problem })
    }

    /// Returns ℓ(1) plus the constant delay of the network.
    fn fastest(&self, model: &Model) -> Nanos {
        let control = match self.network.control {
            Delay::Fixed(delay) => delay,
            // These are random, so a request may occasionally be in time.
            Delay::Rdma | Delay::Tcp => Nanos::ZERO,
        };
        model.profile().latency(1) + control + self.network.data_per_row
    }

    fn is_offered(&self, model: usize) -> bool {
        match &self.requests {
            Some(requests) => requests.iter().any(|request| request.model.index() == model),
            None => self.loads[model].share > 0.0,
        }
    }

    /// Returns whether the policy drops hopeless requests of this model: by the model's own rule,
    /// by the option, or by the policy's default.
    fn drops_hopeless(&self, model: usize) -> bool {
        if let Some(rule) = self.setup.models[model].drop {
            return rule == DropRule::Hopeless;
        }
        match self.policy_options.get("drop") {
            Some(option) => *option == OptionValue::Text("hopeless".to_owned()),
            None => find(&self.policy)
                .is_ok_and(|policy| policy.knobs.iter().any(|knob| knob.name == "drop" && knob.default == "hopeless")),
        }
    }
}

/// Returns the key of the scenario that a policy's error is about.
fn key_of(error: &BuildError) -> Option<String> {
    match error {
        BuildError::UnknownPolicy { .. }
        | BuildError::Walk { .. }
        | BuildError::Lengths { .. }
        | BuildError::Skips { .. } => Some("policy".to_owned()),
        BuildError::UnknownKnob { name, .. } | BuildError::UnknownModel { option: name, .. } => {
            Some(format!("policy_options.{name}"))
        }
        BuildError::BadValue { knob, .. } => Some(format!("policy_options.{knob}")),
        BuildError::Setup(_) => None,
    }
}

/// Checks that a run of this length at this rate ends within the range of the clock.
pub(super) fn checked_rate(key: &str, rate: f64, length: Length) -> ParseResult<()> {
    if !(rate > 0.0 && rate <= MOST_RPS) {
        return Err(format!(
            "{key} = {rate}; it must be a number of requests per second above 0 and at most {MOST_RPS:e}"
        ));
    }
    let (requests, seconds) = match length {
        Length::Requests(requests) => (requests as f64, requests as f64 / rate),
        Length::Until(until) => (until.as_millis_f64() / 1e3 * rate, until.as_millis_f64() / 1e3),
    };
    if requests > MOST_REQUESTS {
        return Err(format!("{key} = {rate} makes {requests:.0} requests; a run has at most {MOST_REQUESTS:e}"));
    }
    if seconds > LONGEST_RUN_S {
        return Err(format!("{key} = {rate} makes the run last {seconds:e} s; it may last {LONGEST_RUN_S:e}"));
    }
    Ok(())
}
