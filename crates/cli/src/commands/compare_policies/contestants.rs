//! The candidates: every policy of the catalogue, each with the few settings that a user would try.
//!
//! This file alone defines "the best policy". Published policies run as published: without the
//! admission control and margins of the server, which they do not have. They run with
//! `drop=hopeless` where a model has no rule of its own, since a late answer counts as bad anyway.
//! The gain by chance grows with the number of settings, so windows are spaced by a factor of two.

use crate::args::policy::{named, option};
use anyhow::{Context, anyhow};
use ripieno_policies::{CATALOGUE, Policy, build, find, served_options};
use ripieno_report::Summary;
use ripieno_sched::{BuildError, Objective, OptionValue, Options};
use ripieno_sim::{Scenario, simulate, simulate_at};
use serde::Serialize;

/// The settings of a policy, each as options separated by blanks.
struct PolicySettings {
    policy: &'static str,
    /// Settings for every workload.
    any: &'static [&'static str],
    /// Settings that only matter where requests differ in length, or a walk has several blocks.
    walks: &'static [&'static str],
    /// Settings for devices that run batches in parallel.
    lanes: &'static [&'static str],
}

const fn entry(policy: &'static str, any: &'static [&'static str]) -> PolicySettings {
    PolicySettings { policy, any, walks: &[], lanes: &[] }
}

const FIELD: &[PolicySettings] = &[
    entry("serial", &[""]),
    entry(
        "timeout",
        &[
            "timeout_ms=1",
            "timeout_ms=2",
            "timeout_ms=5",
            "timeout_ms=10",
            "timeout_ms=20",
            "timeout_ms=50",
            "timeout_slo=0.1 gather=window",
            "timeout_slo=0.25 gather=window",
        ],
    ),
    entry("eager", &["gather=prefix", "gather=window", "gather=fifo"]),
    entry("deferred", &["gather=window", "gather=prefix"]),
    entry("clockwork", &["", "gather=window"]),
    entry("nexus", &["", "gather=window"]),
    entry("shepherd", &["", "preempt_ratio=0"]),
    PolicySettings { walks: &["max_tasks=1"], ..entry("cellular", &[""]) },
    entry("late", &[""]),
    PolicySettings {
        walks: &["width=2", "width=40", "width=1048576 pad=longest", "width=10 window_ms=5"],
        ..entry("bucketed", &["width=10"])
    },
    entry("graph-merge", &["", "max_batch=16"]),
    PolicySettings { walks: &["issue=gated"], ..entry("lazy", &[""]) },
    entry("lazy-oracle", &[""]),
    entry("delay-batch", &["window_ms=0", "window_ms=5", "window_ms=20", "dispatch=start"]),
    PolicySettings {
        walks: &["buffers=1 window_ms=0", "buffers=1 window_ms=5", "buffers=1 split=false"],
        lanes: &["buffers=2", "buffers=2 window_ms=0", "buffers=2 stretch=false"],
        ..entry("dva", &["buffers=1"])
    },
    entry("unified", &[""]),
];

/// Name that stands for [`SIMPLE`] on the command line.
pub(super) const SIMPLE_ONES: &str = "simple";
/// Published policies of one plain rule, without forecasts and preemption: what a user would run
/// otherwise.
const SIMPLE: &[&str] = &["serial", "timeout", "eager", "deferred", "bucketed", "delay-batch", "cellular"];

/// A policy with its options, ready to run on a workload.
pub(super) struct SimContestant {
    /// The policy and its options, as on a command line.
    pub(super) name: String,
    scenario: Scenario,
}

/// A policy that does not serve a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Unable {
    pub(super) policy: String,
    pub(super) why: String,
}

/// The user's rules for the candidates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ContestRules<'a> {
    /// The server's objective.
    pub(super) objective: Objective,
    /// The policy with its options that replaces the default policy.
    pub(super) chosen: Option<(&'static Policy, &'a Options)>,
    /// The only policies to compare with, if any are named.
    pub(super) against: &'a [String],
    /// True if they also have the server's admission control.
    pub(super) all_as_served: bool,
    /// True if a device may run several batches in parallel.
    pub(super) lanes: bool,
}

impl SimContestant {
    fn new(scenario: Scenario) -> SimContestant {
        let name = named(&scenario.policy, &scenario.policy_options);
        SimContestant { name, scenario }
    }

    /// Returns the policy that the server would run on this workload.
    pub(super) fn served(workload: &Scenario, rules: &ContestRules<'_>) -> SimContestant {
        let mut scenario = workload.clone();
        match rules.chosen {
            Some((policy, options)) => {
                let options = served_options(policy, options.clone(), rules.objective);
                scenario.serve_under(policy, options);
            }
            None => scenario.serve(rules.objective),
        }
        SimContestant::new(scenario)
    }

    fn rival(
        workload: &Scenario,
        policy: &'static Policy,
        options: Options,
        rules: &ContestRules<'_>,
    ) -> SimContestant {
        let (name, mut scenario) = (named(policy.name, &options), workload.clone());
        if rules.all_as_served {
            scenario.serve_under(policy, served_options(policy, options, rules.objective));
        } else {
            (scenario.policy, scenario.policy_options) = (policy.name.to_owned(), options);
            (scenario.margins, scenario.admission) = (false, false);
            if policy.has("drop") {
                let hopeless = OptionValue::Text("hopeless".to_owned());
                scenario.policy_options.entry("drop".to_owned()).or_insert(hopeless);
            }
        }
        SimContestant { name, scenario }
    }

    /// Checks that the policy serves the workload, and that all its models can be in time at some
    /// rate; the error names `file`.
    pub(super) fn check(&self, file: &str) -> anyhow::Result<()> {
        Ok(self.scenario.check_goodput(file)?)
    }

    /// Checks that the policy serves the workload.
    pub(super) fn fits(&self) -> Result<(), BuildError> {
        let Scenario { policy, .. } = &self.scenario;
        build(policy, &self.scenario.effective_setup(), &self.scenario.effective_options()).map(drop)
    }

    /// Runs the workload at this rate.
    pub(super) fn run(&self, rate: f64) -> anyhow::Result<Summary> {
        simulate_at(&self.scenario, rate, None).with_context(|| self.name.clone())
    }

    /// Runs the arrivals of a recording.
    pub(super) fn replay(&self) -> anyhow::Result<Summary> {
        simulate(&self.scenario, None).with_context(|| self.name.clone())
    }

    /// Returns the highest possible rate of evenly spaced arrivals: the first guess of a search.
    pub(super) fn bound_rps(&self) -> f64 {
        self.scenario.bound_rps()
    }
}

/// Returns all candidates that serve this workload, in the order of the catalogue, the scenario's
/// own last; and the policies that do not.
pub(super) fn contestants(
    workload: &Scenario,
    rules: &ContestRules<'_>,
) -> anyhow::Result<(Vec<SimContestant>, Vec<Unable>)> {
    let walks = workload
        .setup
        .models
        .iter()
        .any(|model| model.blocks.len() > 1 || model.walk.is_unfolded() || model.has_lengths());
    let (mut able, mut unable) = (Vec::new(), Vec::new());
    let names = |name: &String, policy: &Policy| match name.as_str() {
        SIMPLE_ONES => SIMPLE.contains(&policy.name),
        name => name == policy.name,
    };
    let invited = |policy: &&Policy| rules.against.is_empty() || rules.against.iter().any(|name| names(name, policy));
    for policy in CATALOGUE.iter().filter(invited) {
        for setting in settings(policy, walks, rules.lanes) {
            let rival = SimContestant::rival(workload, policy, options(setting)?, rules);
            match rival.fits() {
                Ok(()) => able.push(rival),
                Err(why) => unable.push(Unable { policy: policy.name.to_owned(), why: why.to_string() }),
            }
        }
    }
    unable.dedup();
    let own = find(&workload.policy).ok().filter(|policy| invited(policy) && !workload.policy_options.is_empty());
    if let Some(policy) = own {
        let own = SimContestant::rival(workload, policy, workload.policy_options.clone(), rules);
        let lanes_allowed = rules.lanes || policy.needs(&workload.policy_options).lanes == 1;
        let new = able.iter().all(|other| other.name != own.name);
        able.extend((own.fits().is_ok() && lanes_allowed && new).then_some(own));
    }
    Ok((able, unable))
}

fn settings(policy: &Policy, walks: bool, lanes: bool) -> impl Iterator<Item = &'static str> {
    let entries = FIELD.iter().filter(|entry| entry.policy == policy.name);
    entries.flat_map(move |entry| {
        let walks = if walks { entry.walks } else { &[] };
        let lanes = if lanes { entry.lanes } else { &[] };
        entry.any.iter().chain(walks).chain(lanes).copied()
    })
}

fn options(setting: &str) -> anyhow::Result<Options> {
    setting.split_whitespace().map(|pair| option(pair).map_err(|problem| anyhow!("{pair}: {problem}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "rate = 1\n[[model]]\nname = \"m\"\nslo_ms = 100\n";

    fn names(text: &str, rules: &ContestRules<'_>) -> (Vec<String>, Vec<String>) {
        let scenario = Scenario::parse(text, "test").unwrap();
        let (able, unable) = contestants(&scenario, rules).unwrap();
        (able.into_iter().map(|it| it.name).collect(), unable.into_iter().map(|it| it.policy).collect())
    }

    #[test]
    fn every_policy_takes_part_in_what_it_serves() {
        let whole = format!("{LINE}alpha_ms = 1\nbeta_ms = 5\n");
        let cells = format!(
            "{LINE}walk = \"repeat\"\nlengths = {{ kind = \"fixed\", value = 4 }}\n[[model.block]]\nname = \"c\"\nalpha_ms = 0.1\n\
             beta_ms = 1\n"
        );
        for (text, walks) in [(whole, false), (cells, true)] {
            let settings = |entry: &PolicySettings| entry.any.len() + if walks { entry.walks.len() } else { 0 };
            let (able, unable) = names(&text, &ContestRules::default());
            let of = |policy: &str| able.iter().filter(|name| name.split(' ').next() == Some(policy)).count();
            for policy in CATALOGUE {
                let expected: usize = FIELD.iter().filter(|entry| entry.policy == policy.name).map(settings).sum();
                assert!(expected > 0, "{}: give it an entry in FIELD", policy.name);
                let refused = unable.iter().any(|name| name == policy.name);
                assert_eq!(of(policy.name), if refused { 0 } else { expected }, "{}", policy.name);
            }
        }
        assert_eq!(FIELD.len(), CATALOGUE.len());
        assert!(SIMPLE.iter().all(|name| find(name).is_ok()) && find(SIMPLE_ONES).is_err());
    }

    #[test]
    fn lanes_take_part_only_if_they_are_allowed_and_what_the_scenario_says_always() {
        let text =
            format!("policy = \"timeout\"\npolicy_options = {{ timeout_ms = 7 }}\n{LINE}alpha_ms = 1\nbeta_ms = 5\n");
        let lanes = |names: &[String]| names.iter().filter(|name| name.starts_with("dva")).count();
        let (one, _) = names(&text, &ContestRules::default());
        let (many, _) = names(&text, &ContestRules { lanes: true, ..ContestRules::default() });
        assert_eq!((lanes(&one), lanes(&many), one.last().unwrap().as_str()), (1, 4, "timeout timeout_ms=7"));
        let against = ["eager".to_owned()];
        let (few, _) = names(&text, &ContestRules { against: &against, ..ContestRules::default() });
        assert_eq!(few, ["eager gather=prefix", "eager gather=window", "eager gather=fifo"]);
    }
}
