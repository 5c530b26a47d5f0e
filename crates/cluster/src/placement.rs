//! Which models share devices: the plan that a scheduler carries out.
//!
//! A plan divides models into sub-clusters ("Symphony: Optimized DNN Model Serving using Deferred
//! Batch Scheduling", section 5 and Appendix A). Every device of a sub-cluster has all of its
//! models loaded, and only these. This file is pure: it says how many backends each sub-cluster
//! gets, where a backend that has come belongs, and which one moves.
//!
//! The shares follow D'Hondt's method, with one backend for each sub-cluster first. They
//! never fall when a backend joins, so a cluster that grows moves nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of sub-clusters: the scheduler has an event loop for each.
pub const MAX_SUB_CLUSTERS: usize = 64;

/// Models by sub-cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementPlan {
    /// The sub-clusters, numbered from 0.
    pub sub_clusters: Vec<PlannedSubCluster>,
    /// Memory of each device, in MB; `None` for no bound.
    pub device_memory_mb: Option<u64>,
    /// Memory of models by name, in MB. A model that is not named counts as 0.
    pub memory_mb: BTreeMap<String, u64>,
}

/// One sub-cluster of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedSubCluster {
    /// Names of the models.
    pub models: BTreeSet<String>,
    /// Number of devices that its load needs. Where fewer or more are there, it is the weight of
    /// the sub-cluster's share.
    pub devices: u32,
}

impl PlacementPlan {
    /// Checks a plan from outside; the error names what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let number = self.sub_clusters.len();
        if number == 0 || number > MAX_SUB_CLUSTERS {
            return Err(format!("it has {number} sub-clusters; 1 to {MAX_SUB_CLUSTERS} are possible"));
        }
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for (place, part) in self.sub_clusters.iter().enumerate() {
            for model in &part.models {
                if let Some(other) = places.insert(model, place) {
                    return Err(format!("model {model:?} is in sub-clusters {other} and {place}; name it once"));
                }
            }
            let (memory, bound) = (self.memory(&part.models), self.device_memory_mb);
            if let Some(bound) = bound.filter(|&bound| memory > bound) {
                return Err(format!("the models of sub-cluster {place} need {memory} MB, and a device has {bound} MB"));
            }
        }
        if places.is_empty() { Err("it names no model".to_owned()) } else { Ok(()) }
    }

    /// Returns the sub-cluster of a model.
    pub(crate) fn place_of(&self, model: &str) -> Option<usize> {
        self.sub_clusters.iter().position(|part| part.models.contains(model))
    }

    /// Returns the memory of these models, in MB.
    pub fn memory<'a>(&self, models: impl IntoIterator<Item = &'a String>) -> u64 {
        models.into_iter().filter_map(|model| self.memory_mb.get(model)).fold(0, |sum, &each| sum.saturating_add(each))
    }

    /// Returns true if these models fit a device.
    pub(crate) fn fits<'a>(&self, models: impl IntoIterator<Item = &'a String>) -> bool {
        self.device_memory_mb.is_none_or(|bound| self.memory(models) <= bound)
    }

    /// Returns the number of backends that each sub-cluster should have, of `backends` in total;
    /// `present` are there now, also in sub-clusters that the plan does not have. Sub-clusters
    /// without models get none.
    pub(crate) fn shares(&self, backends: usize, present: &[usize]) -> Vec<usize> {
        let mut shares: Vec<usize> = vec![0; present.len().max(self.sub_clusters.len())];
        let weight = |place: usize| u64::from(self.sub_clusters[place].devices.max(1));
        let mut needy: Vec<usize> =
            (0..self.sub_clusters.len()).filter(|&place| !self.sub_clusters[place].models.is_empty()).collect();
        // With too few backends, the sub-clusters that have one keep it.
        needy.sort_by_key(|&place| (Reverse(present[place] > 0), Reverse(weight(place)), place));
        for &place in needy.iter().take(backends) {
            shares[place] = 1;
        }
        for _ in needy.len()..backends {
            let better = |&first: &usize, &second: &usize| {
                let next = |place: usize| shares[place] as u64 + 1;
                let (own, other) = (weight(first) * next(second), weight(second) * next(first));
                own.cmp(&other).then(second.cmp(&first))
            };
            let Some(most) = needy.iter().copied().max_by(better) else { break };
            shares[most] += 1;
        }
        shares
    }

    /// Returns the plan for sub-clusters of which some have no backend: their models move, largest
    /// first, to where most memory is left. A model that fits nowhere has no place.
    pub(crate) fn merged(&self, shares: &[usize]) -> PlacementPlan {
        let mut merged = self.clone();
        let mut homeless: Vec<String> = Vec::new();
        for (part, _) in merged.sub_clusters.iter_mut().zip(shares).filter(|(_, share)| **share == 0) {
            homeless.extend(std::mem::take(&mut part.models));
        }
        homeless.sort_by_key(|model| (Reverse(self.memory([model])), model.clone()));
        for model in homeless {
            let left = |&place: &usize| {
                let models = &merged.sub_clusters[place].models;
                let fits = self.fits(models.iter().chain([&model]));
                fits.then(|| (self.memory(models), models.len(), place))
            };
            let roomiest = (0..shares.len()).filter(|&place| shares[place] > 0).filter_map(|place| left(&place)).min();
            if let Some((.., place)) = roomiest {
                merged.sub_clusters[place].models.insert(model);
            }
        }
        merged
    }

    /// Returns the sub-cluster of a backend that has come: the one that it says it belongs to, else
    /// one that needs a backend and whose models it holds.
    pub(crate) fn place_for(&self, present: &[usize], stated: Option<usize>, holds: impl Fn(&str) -> bool) -> usize {
        if let Some(place) = stated.filter(|&place| place < self.sub_clusters.len()) {
            return place;
        }
        let shares = self.shares(present.iter().sum::<usize>() + 1, present);
        let lacking = (0..shares.len()).filter(|&place| present[place] < shares[place]);
        let fit = |place: usize| {
            let models = &self.sub_clusters[place].models;
            let held = models.iter().filter(|model| holds(model)).count();
            (held * 1_000 / models.len().max(1), shares[place] - present[place], Reverse(place))
        };
        lacking.max_by_key(|&place| fit(place)).unwrap_or(0)
    }

    /// Returns the moves of backends, from one sub-cluster to another, that give each its share.
    pub(crate) fn moves(&self, present: &[usize]) -> Vec<(usize, usize)> {
        let shares = self.shares(present.iter().sum(), present);
        let (mut present, mut moves) = (present.to_vec(), Vec::new());
        while let Some(to) = (0..shares.len()).find(|&place| present[place] < shares[place]) {
            let over = |&place: &usize| present[place].saturating_sub(shares[place]);
            let Some(from) = (0..present.len()).filter(|place| over(place) > 0).max_by_key(over) else { break };
            present[from] -= 1;
            present[to] += 1;
            moves.push((from, to));
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(parts: &[(&[&str], u32)]) -> PlacementPlan {
        let part = |&(models, devices): &(&[&str], u32)| PlannedSubCluster {
            models: models.iter().map(|&model| model.to_owned()).collect(),
            devices,
        };
        PlacementPlan { sub_clusters: parts.iter().map(part).collect(), ..PlacementPlan::default() }
    }

    #[test]
    fn shares_follow_the_weights_and_never_fall_as_backends_join() {
        let plan = plan(&[(&["a"], 6), (&["b"], 3), (&["c"], 1), (&[], 9)]);
        assert_eq!(plan.shares(10, &[0; 4]), [6, 3, 1, 0]);
        assert_eq!(plan.shares(3, &[0; 4]), [1, 1, 1, 0]);
        assert_eq!(plan.shares(1, &[0; 4]), [1, 0, 0, 0]);
        assert_eq!(plan.shares(1, &[0, 0, 1, 0]), [0, 0, 1, 0], "it stays where it is");
        for backends in 3..100 {
            let (fewer, more) = (plan.shares(backends, &[0; 4]), plan.shares(backends + 1, &[0; 4]));
            assert!(fewer.iter().zip(&more).all(|(fewer, more)| fewer <= more), "{fewer:?} {more:?}");
            assert_eq!(more.iter().sum::<usize>(), backends + 1);
        }
    }

    #[test]
    fn a_backend_goes_where_it_says_or_where_one_is_missing_that_holds_what_it_holds() {
        let plan = plan(&[(&["a"], 2), (&["b", "c"], 2)]);
        assert_eq!(plan.place_for(&[5, 0], Some(0), |_| false), 0);
        assert_eq!(plan.place_for(&[1, 0], Some(7), |_| false), 1, "there is no such sub-cluster");
        assert_eq!(plan.place_for(&[1, 1], None, |model| model == "b"), 0, "none is missing in the other one");
        assert_eq!(plan.place_for(&[2, 1], None, |_| true), 1);
        assert_eq!(plan.place_for(&[0, 0], None, |_| false), 0);
    }

    #[test]
    fn backends_move_until_each_sub_cluster_has_its_share() {
        let plan = plan(&[(&["a"], 1), (&["b"], 3), (&[], 1)]);
        assert_eq!(plan.moves(&[1, 3, 0]), []);
        assert_eq!(plan.moves(&[2, 0, 2]), [(2, 1), (2, 1), (0, 1)]);
        assert_eq!(plan.moves(&[0, 1, 0]), [], "one cannot serve two places");
        assert_eq!(plan.moves(&[0, 2, 0]), [(1, 0)]);
    }

    #[test]
    fn models_without_a_backend_go_where_memory_is_left() {
        let mut plan = plan(&[(&["a"], 1), (&["b"], 1), (&["big", "c", "d"], 1)]);
        plan.device_memory_mb = Some(100);
        for (model, memory) in [("a", 70), ("b", 50), ("big", 60), ("c", 30), ("d", 25)] {
            plan.memory_mb.insert(model.to_owned(), memory);
        }
        let merged = plan.merged(&[1, 1, 0]);
        let models = |place: usize| merged.sub_clusters[place].models.iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!((models(0), models(1), models(2)), (vec!["a", "d"], vec!["b", "c"], vec![]));
        assert_eq!((merged.place_of("big"), merged.place_of("c")), (None, Some(1)));
        assert_eq!(plan.merged(&[1, 2, 1]), plan);
    }

    #[test]
    fn a_plan_that_cannot_be_carried_out_is_refused_by_name() {
        let refused = |plan: PlacementPlan| plan.check().unwrap_err();
        assert!(refused(plan(&[])).contains("0 sub-clusters"));
        assert!(refused(plan(&[(&[], 1)])).contains("no model"));
        assert!(refused(plan(&[(&["a"], 1), (&["a", "b"], 1)])).contains("\"a\" is in sub-clusters 0 and 1"));
        let mut large = plan(&[(&["a", "b"], 1)]);
        large.device_memory_mb = Some(10);
        large.memory_mb = [("a".to_owned(), 6), ("b".to_owned(), 6)].into();
        assert!(refused(large.clone()).contains("need 12 MB, and a device has 10 MB"));
        large.device_memory_mb = Some(12);
        assert_eq!(large.check(), Ok(()));
    }
}
