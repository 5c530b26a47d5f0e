//! The policy of a server, and the options with which it runs: one rule for the server and for
//! `simulate --as-served`.

use crate::Policy;
use ripieno_sched::{OBJECTIVE, Objective, OptionValue, Options};

/// The policy of a server whose user names none.
pub const DEFAULT_POLICY: &str = "unified";

/// Returns the options with which a server runs a policy: the given ones, and the server's
/// objective if the policy has one and none is given.
pub fn served_options(policy: &Policy, mut options: Options, objective: Objective) -> Options {
    if policy.has_objective() {
        options.entry(OBJECTIVE.to_owned()).or_insert_with(|| OptionValue::Text(objective.name().to_owned()));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find;
    use ripieno_model::Walk;

    #[test]
    fn the_default_policy_serves_every_walk_with_the_servers_objective() {
        let policy = find(DEFAULT_POLICY).unwrap();
        assert_eq!(policy.walks, &Walk::ALL);
        for objective in [Objective::Latency, Objective::Efficiency] {
            let options = served_options(policy, Options::new(), objective);
            assert_eq!(options["objective"], OptionValue::Text(objective.name().to_owned()));
        }
    }

    #[test]
    fn needs_follow_the_options() {
        let int = |value| OptionValue::Int(value);
        let needs = |policy: &str, options: &[(&str, OptionValue)]| {
            let options = options.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
            find(policy).unwrap().needs(&options)
        };
        let lanes = |buffers| needs("dva", &[("buffers", int(buffers))]).lanes;
        assert_eq!((needs("dva", &[]).lanes, lanes(1), lanes(3), lanes(99), lanes(-1)), (4, 1, 4, 1, 1));
        let depth = |tasks| needs("cellular", &[("max_tasks", int(tasks))]).depth;
        assert_eq!((needs("cellular", &[]).depth, depth(1), depth(9)), (5, 1, 9));
        assert_eq!((needs("late", &[]).depth, needs("bucketed", &[]).depth, needs("lazy", &[]).depth), (2, 16, 1));
        for policy in ["deferred", "timeout", "eager", "serial"] {
            let ahead = |knob, value| needs(policy, &[(knob, int(value))]).depth;
            assert_eq!((needs(policy, &[]).depth, ahead("control_us", 1), ahead("data_us_per_row", 1)), (1, 2, 2));
        }
        let word = OptionValue::Text("false".to_owned());
        let pads = |value| needs("cellular", &[("early_leave", value)]).pads;
        assert_eq!((pads(OptionValue::Bool(false)), pads(word), pads(OptionValue::Bool(true))), (true, true, false));
        assert!(!needs("cellular", &[]).pads && needs("bucketed", &[]).pads);
    }

    #[test]
    fn needs_and_forms_agree_with_the_served_walks() {
        let limits = ripieno_sched::Limits { requests: 4, batch: 4, ..ripieno_sched::Limits::ONE };
        let setup = ripieno_sched::Setup { models: Vec::new(), devices: 1, limits };
        for policy in crate::CATALOGUE {
            let options = served_options(policy, Options::new(), Objective::Latency);
            assert!(options.keys().all(|name| policy.has(name)), "{}", policy.name);
            let needs = policy.needs(&options);
            assert_eq!(needs.nodes, policy.walks.iter().any(|walk| walk.brings_graph()), "{}", policy.name);
            let limits = ripieno_sched::Limits { lanes: needs.lanes, depth: needs.depth, ..limits };
            assert!(crate::build(policy.name, &ripieno_sched::Setup { limits, ..setup.clone() }, &options).is_ok());
            let halves = crate::build_halves(policy.name, &setup, &options, 2);
            assert_eq!(halves.is_ok(), policy.is_sharded(), "{}", policy.name);
        }
    }
}
