//! A policy and its options on the command line.

use anyhow::bail;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use ripieno_policies::{CATALOGUE, DEFAULT_POLICY, FAITHFUL, find, served_options};
use ripieno_report::ScalingRule;
use ripieno_sched::{OBJECTIVE, Objective, OptionValue, Options};

/// The policy and its options.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PolicyArgs {
    /// The scheduling policy.
    #[arg(long, value_name = "NAME", value_parser = names(), help = policy_help())]
    pub(crate) policy: Option<String>,

    /// An option of the policy, for example gather=prefix or timeout_ms.resnet50=3; may be
    /// repeated.
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = option)]
    pub(crate) options: Vec<(String, OptionValue)>,
}

/// The way in which a server runs a published policy.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct FaithfulArg {
    /// Run --policy as its paper has it: real deadlines, first profiles, no admission control.
    #[arg(long, requires = "policy")]
    faithful: bool,
}

impl FaithfulArg {
    /// Adds the option of a policy's options.
    pub(crate) fn over(self, mut options: Options) -> Options {
        if self.faithful {
            options.insert(FAITHFUL.to_owned(), OptionValue::Bool(true));
        }
        options
    }
}

/// The objective of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectiveArg {
    #[default]
    Latency,
    Efficiency,
}

impl From<ObjectiveArg> for ripieno_sched::Objective {
    fn from(objective: ObjectiveArg) -> ripieno_sched::Objective {
        match objective {
            ObjectiveArg::Latency => ripieno_sched::Objective::Latency,
            ObjectiveArg::Efficiency => ripieno_sched::Objective::Efficiency,
        }
    }
}

impl PolicyArgs {
    /// Returns the options as the catalogue expects them, on top of those given elsewhere.
    pub(crate) fn over(&self, mut options: Options) -> Options {
        options.extend(self.options.iter().cloned());
        options
    }

    /// Returns the policy of a server, the chosen one or the default, and its options.
    pub(crate) fn served(&self, objective: Option<ObjectiveArg>) -> anyhow::Result<(String, Options)> {
        let policy = self.policy.clone().unwrap_or_else(|| DEFAULT_POLICY.to_owned());
        let (known, options) = (find(&policy)?, self.over(Options::new()));
        if objective.is_some() && !known.has_objective() {
            bail!("policy {policy:?} has no objective; leave --objective out, or --policy");
        }
        if objective.is_some() && options.contains_key("objective") {
            bail!("--objective and --option objective=… say the same thing; leave one of them out");
        }
        let options = served_options(known, options, Objective::from(objective.unwrap_or_default()));
        Ok((policy, options))
    }

    /// Returns the rule by which a server with these options advises a number of devices. Under the
    /// objective of short latencies spare devices are busy with small batches; otherwise, and for
    /// published policies, idle devices are to spare.
    pub(crate) fn scaling(options: &Options) -> ScalingRule {
        match options.get(OBJECTIVE) {
            Some(OptionValue::Text(objective)) if objective == Objective::Latency.name() => ScalingRule::LATENCY,
            _ => ScalingRule::PAPER,
        }
    }

    /// Logs the policy of a server with the options that are set.
    pub(crate) fn log(&self, policy: &str, options: &Options) {
        let reason = if self.policy.is_some() { "because --policy says so" } else { "the default" };
        tracing::info!("the policy is {}, {reason}", named(policy, options));
    }
}

/// Returns a policy and its options, as on a command line.
pub(crate) fn named(policy: &str, options: &Options) -> String {
    let mut name = policy.to_owned();
    for (key, value) in options {
        name += &match value {
            OptionValue::Text(text) => format!(" {key}={text}"),
            value => format!(" {key}={value}"),
        };
    }
    name
}

fn policy_help() -> String {
    format!("The scheduling policy; a server's default is {DEFAULT_POLICY}")
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(CATALOGUE.iter().map(|policy| policy.name))
}

/// Parses KEY=VALUE.
pub(crate) fn option(text: &str) -> Result<(String, OptionValue), String> {
    let (key, value) = text.split_once('=').ok_or("it must have the form KEY=VALUE")?;
    let value = if let Ok(int) = value.parse() {
        OptionValue::Int(int)
    } else if let Ok(float) = value.parse() {
        OptionValue::Float(float)
    } else if let Ok(bool) = value.parse() {
        OptionValue::Bool(bool)
    } else {
        OptionValue::Text(value.to_owned())
    };
    Ok((key.to_owned(), value))
}

/// Pointer to the command that explains policies, for `--help`.
pub(crate) const POLICIES: &str =
    "`ripieno policies` lists the policies; `ripieno policies NAME` explains one with its options.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_given_once_and_to_a_policy_that_has_one() {
        let served = |policy: Option<&str>, options: &[&str], objective| {
            let options = options.iter().map(|text| option(text).unwrap()).collect();
            let args = PolicyArgs { policy: policy.map(str::to_owned), options };
            args.served(objective).map(|(policy, options)| named(&policy, &options)).map_err(|error| error.to_string())
        };
        let efficiency = Some(ObjectiveArg::Efficiency);
        assert_eq!(served(None, &[], None).unwrap(), "unified objective=latency");
        assert_eq!(served(None, &[], efficiency).unwrap(), "unified objective=efficiency");
        assert_eq!(served(None, &["objective=efficiency"], None).unwrap(), "unified objective=efficiency");
        let twice = served(None, &["objective=efficiency"], Some(ObjectiveArg::Latency)).unwrap_err();
        assert!(twice.contains("say the same thing"), "{twice}");
        let none = served(Some("eager"), &[], efficiency).unwrap_err();
        assert!(none.contains("\"eager\" has no objective"), "{none}");
    }
}
