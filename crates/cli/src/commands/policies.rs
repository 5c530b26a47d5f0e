//! `ripieno policies`: the scheduling policies, and the options of each.

use crate::output::{self, print_json};
use clap::Args;
use clap::builder::PossibleValuesParser;
use ripieno_policies::{CATALOGUE, DEFAULT_POLICY, Policy};
use ripieno_report::Format;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// List the scheduling policies, or explain one with its options.
///
/// --policy of serve, simulate and goodput sets another than the default, --option KEY=VALUE its
/// options.
#[derive(Args, Debug)]
pub(crate) struct PoliciesArgs {
    /// The policy to explain.
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(CATALOGUE.iter().map(|policy| policy.name)))]
    name: Option<String>,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &PoliciesArgs) -> anyhow::Result<()> {
    let chosen = CATALOGUE.iter().filter(|policy| args.name.as_deref().is_none_or(|name| policy.name == name));
    if args.format == Format::Json {
        return print_json(&json!({ "policies": chosen.map(record).collect::<Vec<_>>() }));
    }
    match &args.name {
        Some(_) => chosen.map(explained).try_for_each(output::print),
        None => {
            for policy in chosen {
                let mark = if policy.name == DEFAULT_POLICY { '*' } else { ' ' };
                output::print(format!("{mark} {:13} {}", policy.name, policy.summary))?;
            }
            output::print("\n* the default of `ripieno serve`.")?;
            output::print("\n`ripieno policies NAME` explains one with its options.")
        }
    }
}

fn record(policy: &Policy) -> Value {
    let option = |knob: &ripieno_sched::Knob| json!({ "name": knob.name, "default": knob.default, "help": knob.help });
    json!({
        "name": policy.name,
        "source": policy.source,
        "summary": policy.summary,
        "walks": policy.walks.iter().map(|walk| walk.name()).collect::<Vec<_>>(),
        "options": policy.knobs.iter().map(option).collect::<Vec<_>>(),
    })
}

fn explained(policy: &Policy) -> String {
    let walks: Vec<_> = policy.walks.iter().map(|walk| walk.name()).collect();
    let mut text = format!(
        "{}: {}\n\nsource   {}\nserves   {}\n\noptions (--option KEY=VALUE, or KEY.MODEL=VALUE for one model):",
        policy.name,
        policy.summary,
        policy.source,
        walks.join(", ")
    );
    for knob in policy.knobs {
        let _ = write!(text, "\n\n  {} [default: {}]\n{}", knob.name, knob.default, indented(knob.help));
    }
    text
}

/// Wraps a text at 80 columns behind six spaces.
fn indented(text: &str) -> String {
    let (mut lines, mut line) = (Vec::new(), String::from("     "));
    for word in text.split_whitespace() {
        if line.len() + word.len() + 1 > 80 && line.len() > 5 {
            lines.push(std::mem::replace(&mut line, String::from("     ")));
        }
        line.push(' ');
        line.push_str(word);
    }
    lines.push(line);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_a_policy_is_explained_within_80_columns() {
        for policy in CATALOGUE {
            let text = explained(policy);
            assert!(policy.knobs.iter().all(|knob| text.contains(&format!("\n  {} [default: ", knob.name))), "{text}");
            let help = text.split("\n\noptions").nth(1).unwrap();
            let named = |line: &str| line.contains(" [default: ");
            assert!(help.lines().skip(1).all(|line| line.len() <= 80 || named(line)), "{text}");
            assert_eq!(record(policy)["options"].as_array().unwrap().len(), policy.knobs.len());
        }
    }
}
