//! A policy and its options on the command line.

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use ripieno_sched::{CATALOGUE, OptionValue, Options};
use std::fmt::Write;

/// Which policy decides, and what is set on it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PolicyArgs {
    /// The scheduling policy.
    #[arg(long, value_name = "NAME", value_parser = names())]
    pub(crate) policy: Option<String>,

    /// An option of the policy, for example gather=prefix or timeout_ms.resnet50=3; may be repeated.
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = option)]
    pub(crate) options: Vec<(String, OptionValue)>,
}

/// What the scheduler is to optimise.
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
    /// The options as the catalogue takes them, over those given elsewhere.
    pub(crate) fn over(&self, mut options: Options) -> Options {
        options.extend(self.options.iter().cloned());
        options
    }
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(CATALOGUE.iter().map(|policy| policy.name))
}

/// Reads KEY=VALUE.
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

/// The catalogue with all knobs, for `--help`.
pub(crate) fn catalogue() -> String {
    let mut text = "Policies and their options:\n".to_owned();
    let widest = |names: &mut dyn Iterator<Item = &'static str>| names.map(str::len).max().unwrap_or(0);
    let names = widest(&mut CATALOGUE.iter().map(|policy| policy.name));
    let knobs = widest(&mut CATALOGUE.iter().flat_map(|policy| policy.knobs).map(|knob| knob.name));
    for policy in CATALOGUE {
        let _ = writeln!(text, "  {:names$}  {} ({})", policy.name, policy.summary, policy.source);
        for knob in policy.knobs {
            let _ = writeln!(text, "    {:knobs$}  [{}] {}", knob.name, knob.default, knob.help);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_catalogue_stand_apart_from_what_they_mean() {
        let text = catalogue();
        for policy in CATALOGUE {
            let apart = text.lines().any(|line| {
                let rest = line.strip_prefix("  ").and_then(|line| line.strip_prefix(policy.name));
                rest.is_some_and(|rest| rest.starts_with("  ") && rest.trim_start().starts_with(policy.summary))
            });
            assert!(apart, "{}: {text}", policy.name);
        }
    }
}
