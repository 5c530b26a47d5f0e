//! Bans in the pure crates: clocks, threads, I/O, hash order, and floats where an order is decided.
//!
//! The simulator and the server run the same core. That holds only while the core cannot see a
//! clock. Equal inputs give equal outputs only while no decision depends on a hash seed or on the
//! rounding of a float.

use super::Finding;
use super::source::{Source, lines_with};

/// A word that is banned from the sources of some crates.
struct Ban {
    rule: &'static str,
    crates: &'static [&'static str],
    words: &'static [&'static str],
    /// Whether tests are bound as well.
    tests_too: bool,
    /// Files that are exempt, each with its reason.
    exempt: &'static [(&'static str, &'static str)],
    instead: &'static str,
}

const CORE: &[&str] = &["base", "model", "calibration", "sched", "policies"];

const BANS: [Ban; 4] = [
    Ban {
        rule: "clock",
        crates: &["base", "model", "calibration", "sched", "policies", "workload", "report", "sim"],
        words: &["Instant", "SystemTime", "UNIX_EPOCH"],
        tests_too: true,
        exempt: &[],
        instead: "take `now` as an argument; only runtime, executor, server, cluster and cli read the clock",
    },
    Ban {
        rule: "pure-core",
        crates: CORE,
        words: &[
            "std::thread",
            "std::fs",
            "std::net",
            "std::io",
            "std::env",
            "std::process",
            "std::sync",
            "println!",
            "eprintln!",
            "async fn",
        ],
        tests_too: false,
        exempt: &[],
        instead: "the core decides and does nothing else; let a driver do it",
    },
    Ban {
        rule: "hash-order",
        crates: CORE,
        words: &["HashMap", "HashSet", "RandomState", "DefaultHasher"],
        tests_too: false,
        exempt: &[],
        instead: "use a Vec indexed by id or a BTreeMap: equal inputs must give equal outputs",
    },
    Ban {
        rule: "float-order",
        crates: &["calibration", "sched", "policies"],
        words: &["f32", "f64", "partial_cmp", "total_cmp"],
        tests_too: false,
        exempt: &[
            ("crates/sched/src/contract/knobs.rs", "knobs are numbers that a person writes"),
            ("crates/policies/src/baselines/timeout.rs", "a window may be written as a fraction of the SLO"),
        ],
        instead: "count in integer nanoseconds and rows; an exempt file is named in tidy with its reason",
    },
];

/// Checks every ban.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ban in &BANS {
        for source in sources.iter().filter(|source| binds(ban, source)) {
            let code = if ban.tests_too { &source.code } else { source.code_without_tests() };
            for word in ban.words {
                findings.extend(
                    lines_with(code, word).map(|line| {
                        source.finding(line, ban.rule, format!("`{word}` is banned here: {}", ban.instead))
                    }),
                );
            }
        }
    }
    findings
}

fn binds(ban: &Ban, source: &Source) -> bool {
    let in_crate = |name: &&str| source.path.starts_with(&format!("crates/{name}/"));
    source.is("rs") && ban.crates.iter().any(in_crate) && !ban.exempt.iter().any(|(path, _)| source.path == *path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let source = Source::new(path, Some(text.into()));
        check(&[source]).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_clock_in_the_simulator_is_found() {
        assert_eq!(rules("crates/sim/src/run.rs", "use std::time::Instant;\n"), ["clock"]);
        assert_eq!(rules("crates/sim/tests/run.rs", "let t = std::time::SystemTime::now();\n"), ["clock"]);
    }

    #[test]
    fn a_clock_in_a_driver_or_a_comment_is_not() {
        assert!(rules("crates/runtime/src/clock.rs", "use std::time::Instant;\n").is_empty());
        assert!(rules("crates/sim/src/run.rs", "/// Unlike Instant, this is virtual.\n").is_empty());
    }

    #[test]
    fn the_core_does_no_input_or_output() {
        assert_eq!(rules("crates/model/src/a.rs", "fn f() { println!(); }\n"), ["pure-core"]);
        assert_eq!(rules("crates/sched/src/a.rs", "use std::thread;\n"), ["pure-core"]);
        assert!(rules("crates/workload/src/a.rs", "use std::fs;\n").is_empty());
    }

    #[test]
    fn hash_order_is_found_outside_tests() {
        assert_eq!(rules("crates/sched/src/a.rs", "use std::collections::HashMap;\n"), ["hash-order"]);
        assert!(rules("crates/sched/tests/a.rs", "use std::collections::HashMap;\n").is_empty());
        assert!(rules("crates/server/src/a.rs", "use std::collections::HashMap;\n").is_empty());
    }

    #[test]
    fn floats_in_the_scheduler_are_found_outside_the_catalogue() {
        assert_eq!(rules("crates/policies/src/a.rs", "let x = a as f64;\n"), ["float-order"]);
        assert_eq!(rules("crates/sched/src/tables/a.rs", "a.partial_cmp(&b)\n"), ["float-order"]);
        assert!(rules("crates/sched/src/contract/knobs.rs", "knob: f64\n").is_empty());
        assert!(rules("crates/model/src/profile.rs", "alpha: f64\n").is_empty());
    }
}
