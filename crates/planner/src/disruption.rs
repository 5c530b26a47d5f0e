//! Improves the current partition with few moves.
//!
//! While a model loads or unloads, devices do nothing else, so a plan for a running cluster starts
//! from its current partition. The paper bounds the cost of all changes (equation 10) and asks for
//! the best balance within that bound. That would spend the whole bound every few minutes on
//! improvements without effect. So there is a target as well: a partition whose imbalance is within
//! it stays as it is, and another is changed only until it is.

use super::instance::Instance;
use super::partition::{Partition, PartitionChange, Score};
use super::search::{SearchRng, best_place, descend, exhaust, explore, largest_first, refine};
use super::{FEW_MODELS, PlanOptions, SEARCH_ROUNDS};

/// Factor on the best imbalance found within which another partition with fewer moves is preferred.
const BALANCE_SLACK: f64 = 1.05;
/// Tolerance for rounding: a partition exactly on target meets the target, however its quotients
/// were rounded.
const ROUNDING: f64 = 1e-12;
/// Number of moved models up to which pairs are tried for moving back.
const MAX_PAIRED: usize = 400;

/// Changes the current partition until both imbalance factors are within the target, as far as the
/// disruption allows.
pub(super) fn reconfigure<'a>(
    instance: &'a Instance<'a>,
    current: &[Option<usize>],
    options: &PlanOptions,
    rng: &mut SearchRng,
) -> Partition<'a> {
    let settled = |partition: &Partition<'_>| settled(partition, options.target_imbalance);
    let rank = |partition: &Partition<'_>| {
        let Score { violation: broken, objective } = partition.score();
        (broken, if settled(partition) { partition.disruption() } else { u64::MAX }, objective)
    };
    let all = exhaust(instance, rank);
    let mut partition = all.unwrap_or_else(|| approach(instance, current, options.proposals, rng, settled));
    move_back(&mut partition, current, options.target_imbalance);
    partition
}

/// Changes the current partition by the best steps, and if these do not reach the target, by a
/// wider search.
pub(super) fn approach<'a>(
    instance: &'a Instance<'a>,
    current: &[Option<usize>],
    proposals: u64,
    rng: &mut SearchRng,
    settled: impl Fn(&Partition<'_>) -> bool,
) -> Partition<'a> {
    let mut near = start(instance, current);
    descend(&mut near, rng, &settled);
    if settled(&near) {
        return near;
    }
    for most in budgets(instance) {
        // With few models each search is short, and one may miss the few partitions that are so
        // near.
        let rounds = if instance.models() <= FEW_MODELS { SEARCH_ROUNDS } else { 1 };
        for _ in 0..rounds {
            let within = explore(start(instance, current).within(most), proposals / 4, rng, &settled);
            if settled(&within) {
                return within;
            }
        }
    }
    let mut wide = explore(Partition::at(instance, near.places()), proposals, rng, &settled);
    descend(&mut wide, rng, &settled);
    if !settled(&wide) {
        wide = refine(wide, proposals, rng, &settled);
    }
    if settled(&wide) || wide.score() < near.score() { wide } else { near }
}

/// Returns the disruptions that a wider search may cost: about one move first, then ever more, so
/// that it reaches the target at a low cost. The largest, which is the bound itself, is left out.
fn budgets(instance: &Instance<'_>) -> impl Iterator<Item = u64> {
    let dearest = |model: usize| (0..instance.sub_clusters).map(|place| instance.disruption(model, place)).max();
    let all = (0..instance.models()).filter_map(dearest).fold(0, u64::saturating_add);
    let most = all.min(instance.max_disruption);
    let first = (all / instance.models() as u64).max(1);
    std::iter::successors(Some(first), |&budget| budget.checked_add(budget.div_ceil(2)))
        .take_while(move |&budget| budget < most)
}

/// Returns true if a partition keeps the bounds and meets the target.
fn settled(partition: &Partition<'_>, target: f64) -> bool {
    let (rate, memory) = imbalance(partition);
    let target = target + ROUNDING;
    rate <= target && memory <= target && partition.score().violation == 0.0
}

/// Returns the imbalance factors; the factor of memory is 0 if memory has no weight.
fn imbalance(partition: &Partition<'_>) -> (f64, f64) {
    let (rate, memory) = partition.imbalance();
    (rate, if partition.instance.problem.memory_weight > 0.0 { memory } else { 0.0 })
}

/// Returns the current partition, with new models where they fit best, or where they cost least if
/// that exceeds the bound.
fn start<'a>(instance: &'a Instance<'a>, current: &[Option<usize>]) -> Partition<'a> {
    let known = (0..current.len()).filter(|&model| current[model].is_some());
    let new = largest_first(instance, (0..current.len()).filter(|&model| current[model].is_none()));
    let order: Vec<usize> = known.chain(new).collect();
    let place =
        |partition: &Partition<'a>, model: usize| current[model].unwrap_or_else(|| best_place(partition, model));
    let partition = Partition::place_each(instance, order.iter().copied(), place);
    if partition.disruption() <= instance.max_disruption {
        return partition;
    }
    let cheapest = |model: usize| (0..instance.sub_clusters).min_by_key(|&place| instance.disruption(model, place));
    let place = |_: &Partition<'a>, model: usize| current[model].or_else(|| cheapest(model)).unwrap_or(0);
    Partition::place_each(instance, order, place)
}

/// Moves back the models that did not have to move: single models first, then pairs, while the
/// balance stays as good.
fn move_back(partition: &mut Partition<'_>, current: &[Option<usize>], target: f64) {
    let (rate, memory) = imbalance(partition);
    let limits = ((target + ROUNDING).max(rate * BALANCE_SLACK), (target + ROUNDING).max(memory * BALANCE_SLACK));
    let broken = partition.score().violation;
    let good = |partition: &Partition<'_>| {
        let (rate, memory) = imbalance(partition);
        rate <= limits.0 && memory <= limits.1 && partition.score().violation <= broken
    };
    let moved = moved(partition, current);
    for &model in &moved {
        try_move_back(partition, current, &[model], good);
    }
    for pair in pairs(&moved) {
        try_move_back(partition, current, &pair, good);
    }
}

/// Returns the models that have moved, in descending order of cost.
fn moved(partition: &Partition<'_>, current: &[Option<usize>]) -> Vec<usize> {
    let instance = partition.instance;
    let places = partition.places();
    let elsewhere = |&model: &usize| current[model].is_some_and(|place| place != places[model]);
    let mut moved: Vec<usize> = (0..places.len()).filter(elsewhere).collect();
    moved.sort_by_key(|&model| (std::cmp::Reverse(instance.disruption(model, places[model])), model));
    moved
}

fn pairs(moved: &[usize]) -> impl Iterator<Item = [usize; 2]> {
    let few = &moved[..moved.len().min(MAX_PAIRED)];
    few.iter().enumerate().flat_map(|(at, &first)| few[at + 1..].iter().map(move |&second| [first, second]))
}

/// Moves some models back, unless one of them is there already or the partition does not stay good.
fn try_move_back(
    partition: &mut Partition<'_>,
    current: &[Option<usize>],
    models: &[usize],
    good: impl Fn(&Partition<'_>) -> bool,
) {
    let back = |partition: &Partition<'_>, &model: &usize| {
        let place = partition.places()[model];
        current[model].filter(|&home| home != place).map(|home| (model, place, home))
    };
    let Some(ways) = models.iter().map(|model| back(partition, model)).collect::<Option<Vec<_>>>() else { return };
    for &(model, _, home) in &ways {
        partition.apply(PartitionChange { model, to: home, partner: None });
    }
    if !good(partition) {
        for &(model, place, _) in &ways {
            partition.apply(PartitionChange { model, to: place, partner: None });
        }
    }
}
