//! The search: a greedy start, random changes under a falling threshold, and a final descent. With
//! few models it is exhaustive.
//!
//! Appendix A of the Symphony paper solves an integer program with a commercial solver in ten
//! seconds. A partition of many small models does not need that: placing the largest models first
//! balances to a fraction of a percent, and a search that exchanges models gets far closer in a
//! fraction of a second. A general solver suffers from the l! equivalent permutations of each
//! partition. Unlike a solver, the search cannot prove that its result is optimal.
//!
//! Work is bounded by the number of changes evaluated, never by a clock, so equal problems give
//! equal plans on any machine. A change is accepted if it raises the badness by less than the
//! threshold (threshold accepting); unlike simulated annealing this needs no exponential, whose
//! last bit differs between machines.

use super::instance::{Instance, VIOLATION_WEIGHT};
use super::partition::{Partition, PartitionChange, Score};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Number of exchanges evaluated for one step of the descent; where there are more, a random sample
/// of this size.
const MAX_EXCHANGES: usize = 60_000;
/// Largest number of partitions that are searched exhaustively: ten models in three sub-clusters,
/// or sixteen in two.
const MAX_EXHAUSTIVE: usize = 1 << 16;
/// Smallest gain of a step of the descent, above the rounding error of floats.
const MIN_GAIN: f64 = 1e-15;
/// Number of times that the threshold falls, and its factor: over a whole search it shrinks to a
/// 1.4-billionth.
const LEVELS: u64 = 200;
const THRESHOLD_FACTOR: f64 = 0.9;

/// The random numbers of a search.
pub(super) struct SearchRng(Xoshiro256PlusPlus);

impl SearchRng {
    pub(super) fn new(seed: u64) -> SearchRng {
        SearchRng(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns a number below `end`, which is at most 2³².
    pub(super) fn below(&mut self, end: usize) -> usize {
        (((self.0.next_u64() >> 32) * end as u64) >> 32) as usize
    }

    /// Returns a real number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Places the models largest first, each where it fits best.
pub(super) fn greedy<'a>(instance: &'a Instance<'a>) -> Partition<'a> {
    Partition::place_each(instance, largest_first(instance, 0..instance.models()), best_place)
}

/// Returns the models in descending order of size: the weighted sum of rate and memory.
pub(super) fn largest_first(instance: &Instance<'_>, models: impl Iterator<Item = usize>) -> Vec<usize> {
    let weight = instance.problem.memory_weight;
    let size = |model: usize| instance.rate.share(model) + weight * instance.memory.share(model);
    let mut order: Vec<usize> = models.collect();
    order.sort_by(|&a, &b| size(b).total_cmp(&size(a)).then(a.cmp(&b)));
    order
}

/// Returns the sub-cluster where a model raises the badness least.
pub(super) fn best_place(partition: &Partition<'_>, model: usize) -> usize {
    let rises = (0..partition.sub_clusters()).map(|place| (partition.rise_with(place, model), place));
    rises.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0, |(_, place)| place)
}

/// Evaluates `proposals` random changes within the allowed disruption. Returns the first partition
/// that is `done`, or the best seen.
pub(super) fn explore<'a>(
    mut partition: Partition<'a>,
    proposals: u64,
    rng: &mut SearchRng,
    done: impl Fn(&Partition<'_>) -> bool,
) -> Partition<'a> {
    if partition.sub_clusters() == 1 {
        return partition;
    }
    let mut best = Best::of(&partition);
    let mut threshold = first_threshold(&partition, best.score.violation > 0.0);
    for level in 0..LEVELS {
        for _ in proposals * level / LEVELS..proposals * (level + 1) / LEVELS {
            let Some(change) = random_change(&partition, rng) else { continue };
            let gain = partition.gain(change);
            if gain > -threshold && partition.is_allowed(change) {
                partition.apply(change);
                if best.observe(&partition) && done(&partition) {
                    return partition;
                }
            }
        }
        threshold *= THRESHOLD_FACTOR;
    }
    Partition::at(partition.instance, &best.places)
}

/// The same search on the objective itself. The objective is a maximum and flat almost everywhere,
/// so it cannot guide a search from afar; close to the end it distinguishes partitions with the
/// same sum of squares.
pub(super) fn refine<'a>(
    mut partition: Partition<'a>,
    proposals: u64,
    rng: &mut SearchRng,
    done: impl Fn(&Partition<'_>) -> bool,
) -> Partition<'a> {
    let mut best = Best::of(&partition);
    let mut energy = best.score.energy();
    let mut threshold = best.score.objective;
    // Scoring visits every sub-cluster.
    let proposals = proposals / (2 + partition.sub_clusters() as u64 / 16);
    for level in 0..LEVELS {
        for _ in proposals * level / LEVELS..proposals * (level + 1) / LEVELS {
            let Some(change) = random_change(&partition, rng).filter(|&change| partition.is_allowed(change)) else {
                continue;
            };
            let back = PartitionChange { to: partition.places()[change.model], ..change };
            partition.apply(change);
            if done(&partition) {
                return partition;
            }
            let changed = partition.score();
            if changed.energy() < energy + threshold {
                energy = changed.energy();
                best.keep(&partition, changed);
            } else {
                partition.apply(back);
            }
        }
        threshold *= THRESHOLD_FACTOR;
    }
    Partition::at(partition.instance, &best.places)
}

/// Visits every partition within the allowed disruption and returns the one with the lowest rank;
/// `None` if there are too many partitions, or none is allowed.
pub(super) fn exhaust<'a, R: PartialOrd>(
    instance: &'a Instance<'a>,
    rank: impl Fn(&Partition<'_>) -> R,
) -> Option<Partition<'a>> {
    let models = u32::try_from(instance.models()).ok()?;
    let count = instance.sub_clusters.checked_pow(models).filter(|&count| count <= MAX_EXHAUSTIVE)?;
    let mut partition = Partition::at(instance, &vec![0; instance.models()]);
    let mut best: Option<(R, Vec<usize>)> = None;
    for _ in 0..count {
        if partition.disruption() <= instance.max_disruption {
            let rank = rank(&partition);
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, partition.places().to_vec()));
            }
        }
        next_partition(&mut partition);
    }
    best.map(|(_, places)| Partition::at(instance, &places))
}

/// Advances to the next partition by counting up; each model's place is one digit.
fn next_partition(partition: &mut Partition<'_>) {
    for model in 0..partition.places().len() {
        let to = (partition.places()[model] + 1) % partition.sub_clusters();
        partition.apply(PartitionChange { model, to, partner: None });
        if to > 0 {
            return;
        }
    }
}

/// Makes the change with the largest gain for its disruption repeatedly, until `done` or no change
/// gains.
pub(super) fn descend(partition: &mut Partition<'_>, rng: &mut SearchRng, done: impl Fn(&Partition<'_>) -> bool) {
    let steps = 4 * partition.places().len() + 100;
    for _ in 0..steps {
        if done(partition) {
            return;
        }
        let Some(change) = best_change(partition, rng) else { return };
        partition.apply(change);
    }
}

/// The best partition seen. Scoring visits every sub-cluster, so with many of them only some steps
/// are scored.
struct Best {
    score: Score,
    places: Vec<usize>,
    unscored: usize,
}

impl Best {
    fn of(partition: &Partition<'_>) -> Best {
        Best { score: partition.score(), places: partition.places().to_vec(), unscored: 0 }
    }

    /// Scores the partition if it is time, and keeps the best. Returns true if it was scored.
    fn observe(&mut self, partition: &Partition<'_>) -> bool {
        self.unscored += 1;
        let looks = self.unscored * 8 >= partition.sub_clusters();
        if looks {
            self.unscored = 0;
            self.keep(partition, partition.score());
        }
        looks
    }

    fn keep(&mut self, partition: &Partition<'_>, score: Score) {
        if score < self.score {
            self.score = score;
            self.places.copy_from_slice(partition.places());
        }
    }
}

/// Returns the effect of exchanging models of average size between two balanced sub-clusters; where
/// bounds are violated, on the violation.
fn first_threshold(partition: &Partition<'_>, broken: bool) -> f64 {
    let instance = partition.instance;
    let weight = instance.problem.memory_weight;
    let effect = |model: usize| {
        let (rate, memory) = (instance.rate.share(model), instance.memory.share(model));
        let wall = if broken { VIOLATION_WEIGHT * (rate + memory) } else { 0.0 };
        rate * rate + weight * weight * memory * memory + wall
    };
    (0..instance.models()).map(effect).sum::<f64>() / instance.models() as f64
}

/// Returns a random change, mostly an exchange: moves alone cannot balance two sums at the same
/// time.
fn random_change(partition: &Partition<'_>, rng: &mut SearchRng) -> Option<PartitionChange> {
    let places = partition.places();
    let model = rng.below(places.len());
    if rng.below(4) == 0 {
        let to = rng.below(partition.sub_clusters());
        return (to != places[model]).then_some(PartitionChange { model, to, partner: None });
    }
    let partner = rng.below(places.len());
    (places[partner] != places[model]).then_some(PartitionChange { model, to: places[partner], partner: Some(partner) })
}

/// Returns the best change of the worst sub-cluster that has one.
fn best_change(partition: &Partition<'_>, rng: &mut SearchRng) -> Option<PartitionChange> {
    let mut order: Vec<usize> = (0..partition.sub_clusters()).collect();
    order.sort_by(|&a, &b| partition.badness(b).total_cmp(&partition.badness(a)).then(a.cmp(&b)));
    order.into_iter().find_map(|place| {
        let mut best = BestChange { gain_per_cost: 0.0, change: None };
        moves_of(partition, place).for_each(|change| best.consider(partition, change));
        exchanges_of(partition, place, rng, |change| best.consider(partition, change));
        best.change
    })
}

/// The best change so far, by gain per unit of additional disruption.
struct BestChange {
    gain_per_cost: f64,
    change: Option<PartitionChange>,
}

impl BestChange {
    fn consider(&mut self, partition: &Partition<'_>, change: PartitionChange) {
        let gain = partition.gain(change);
        if gain < MIN_GAIN || gain <= self.gain_per_cost || !partition.is_allowed(change) {
            return;
        }
        let added = partition.disruption_after(change).saturating_sub(partition.disruption());
        let worth = gain / added.max(1) as f64;
        if worth > self.gain_per_cost {
            *self = BestChange { gain_per_cost: worth, change: Some(change) };
        }
    }
}

/// Returns every move of a model out of a sub-cluster or into it.
fn moves_of<'p>(partition: &'p Partition<'_>, place: usize) -> impl Iterator<Item = PartitionChange> + 'p {
    let others = move || (0..partition.sub_clusters()).filter(move |&other| other != place);
    let out = others().flat_map(move |to| partition.members(place).iter().map(move |&model| (model, to)));
    let into = others().flat_map(move |from| partition.members(from).iter().map(move |&model| (model, place)));
    out.chain(into).map(|(model, to)| PartitionChange { model, to, partner: None })
}

/// Visits every exchange between a sub-cluster and the others, or a sample.
fn exchanges_of(partition: &Partition<'_>, place: usize, rng: &mut SearchRng, mut each: impl FnMut(PartitionChange)) {
    let (members, places) = (partition.members(place), partition.places());
    let mut consider = |model: usize, partner: usize| {
        if places[partner] != place {
            each(PartitionChange { model, to: places[partner], partner: Some(partner) });
        }
    };
    if members.len() * places.len() <= MAX_EXCHANGES {
        members.iter().for_each(|&model| (0..places.len()).for_each(|partner| consider(model, partner)));
    } else if !members.is_empty() {
        (0..MAX_EXCHANGES).for_each(|_| consider(members[rng.below(members.len())], rng.below(places.len())));
    }
}
