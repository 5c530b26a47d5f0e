//! Worlds: how long tasks take, and where the arrivals come from.
//!
//! A policy that is the best while each task takes exactly its profile may be the worst on a real
//! engine, whose tasks are late. So the same workloads run in both, and recordings of live runs
//! bring their own arrivals and delays.

use super::random::Kind;
use clap::ValueEnum;
use ripieno_sim::{Occupancy, Scenario};
use serde::Serialize;

/// A world in which scenarios run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TaskWorld {
    /// Tasks take what their profile says, or what `[occupancy]` of the scenario says.
    Exact,
    /// Tasks take 1.2 times their profile, and an exponential time with a mean of a tenth of the
    /// largest batch's latency besides; the scheduler does not know it.
    Late,
    /// A recording: arrivals, pauses and delays of a live run. No scenario can be in it.
    #[value(skip)]
    Replayed,
}

/// Factor on every task of the late world, and mean of the additional time.
const FACTOR: f64 = 1.2;
const TAIL: f64 = 0.1;

impl TaskWorld {
    pub(super) fn name(self) -> &'static str {
        match self {
            TaskWorld::Exact => "exact",
            TaskWorld::Late => "late",
            TaskWorld::Replayed => "replayed",
        }
    }

    /// Returns the name of a scenario in this world.
    pub(super) fn of(self, name: &str) -> String {
        match self {
            TaskWorld::Exact | TaskWorld::Replayed => name.to_owned(),
            TaskWorld::Late => format!("{name}-late"),
        }
    }

    /// Moves a scenario into this world.
    pub(super) fn apply(self, scenario: &mut Scenario) {
        if self == TaskWorld::Late {
            scenario.occupancy = Occupancy { factor: FACTOR, tail: TAIL, steps: Vec::new() };
        }
    }

    /// Returns the keys of a scenario file in this world.
    pub(super) fn keys(self) -> String {
        match self {
            TaskWorld::Exact | TaskWorld::Replayed => String::new(),
            TaskWorld::Late => format!("[occupancy]\nfactor = {FACTOR}\ntail = {TAIL}\n"),
        }
    }
}

/// Returns the kind of a scenario's models, as random workloads have it.
pub(super) fn kind_of(scenario: &Scenario) -> Kind {
    let models = &scenario.setup.models;
    let cells = models.iter().filter(|model| model.walk.is_unfolded()).count();
    if cells > 0 && cells < models.len() {
        Kind::Mixed
    } else if cells > 0 {
        Kind::Cells
    } else if models.iter().any(ripieno_model::Model::has_lengths) {
        Kind::Padded
    } else if models.iter().any(|model| model.blocks.len() > 1) {
        Kind::Chain
    } else {
        Kind::Whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::compare_policies::random::workload;

    #[test]
    fn a_kept_file_is_in_the_world_of_the_comparison() {
        let text = workload(Kind::Chain, 3, 100);
        let mut applied = Scenario::parse(&text, "exact").unwrap();
        TaskWorld::Late.apply(&mut applied);
        let kept = Scenario::parse(&(text.clone() + &TaskWorld::Late.keys()), "late").unwrap();
        assert_eq!(kept.occupancy, applied.occupancy);
        assert_ne!(kept.occupancy, Scenario::parse(&text, "exact").unwrap().occupancy);
    }

    #[test]
    fn a_scenario_is_of_the_kind_that_its_seed_was_drawn_for() {
        for kind in [Kind::Whole, Kind::Chain, Kind::Padded, Kind::Cells, Kind::Mixed] {
            let scenario = Scenario::parse(&workload(kind, 5, 100), "drawn").unwrap();
            assert_eq!(kind_of(&scenario), kind);
        }
    }
}
