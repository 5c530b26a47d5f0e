//! The search: a greedy start, random changes under a falling threshold, and a descent to the end. Few models are simply
//! tried in every way.
//!
//! Appendix A of the Symphony paper hands an integer program to a commercial solver for ten seconds. A partition of many
//! small models needs no such thing: models placed largest first are balanced to a fraction of a percent, and a search
//! that exchanges models gets far closer in a fraction of a second, while a general solver is lost in the l! names of one
//! and the same partition. What a solver could do and this cannot: prove that nothing is better.
//!
//! Work is bounded by a count of changes looked at, never by a clock, so equal problems give equal plans on any machine.
//! A change is accepted when it raises the badness by less than the threshold; unlike annealing that needs no exponential,
//! whose last bit differs between machines.

use super::instance::{BROKEN, Instance};
use super::partition::{Change, Partition, Score};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Exchanges looked at for one step of the descent; where there are more, so many of them at random.
const EXCHANGES: usize = 60_000;
/// So many partitions are simply all looked at: ten models in three sub-clusters, or sixteen in two.
const EXHAUSTIBLE: usize = 1 << 16;
/// What a step of the descent must gain, so that the last bits of a float do not pass for progress.
const LEAST_GAIN: f64 = 1e-15;
/// How often the threshold falls, and by which factor: over a whole search the deviations that pass for equal shrink to a
/// 38,000th.
const LEVELS: u64 = 200;
const FALL: f64 = 0.9;

/// The random choices of a search.
pub(super) struct Dice(Xoshiro256PlusPlus);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A number below `end`, which is at most 2³².
    pub(super) fn below(&mut self, end: usize) -> usize {
        (((self.0.next_u64() >> 32) * end as u64) >> 32) as usize
    }

    /// A real number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Models largest first, each where it fits best.
pub(super) fn greedy<'a>(instance: &'a Instance<'a>) -> Partition<'a> {
    Partition::place_each(instance, largest_first(instance, 0..instance.models()), best_place)
}

/// The models by size, rate and memory taken together.
pub(super) fn largest_first(instance: &Instance<'_>, models: impl Iterator<Item = usize>) -> Vec<usize> {
    let weight = instance.problem.memory_weight;
    let size = |model: usize| instance.rate.share(model) + weight * instance.memory.share(model);
    let mut order: Vec<usize> = models.collect();
    order.sort_by(|&a, &b| size(b).total_cmp(&size(a)).then(a.cmp(&b)));
    order
}

/// Where a model raises the badness least.
pub(super) fn best_place(partition: &Partition<'_>, model: usize) -> usize {
    let rises = (0..partition.sub_clusters()).map(|place| (partition.rise_with(place, model), place));
    rises.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0, |(_, place)| place)
}

/// Looks at `proposals` random changes, never spending more disruption than allowed, and gives the first partition seen
/// that is `done`, or the best.
pub(super) fn explore<'a>(
    mut partition: Partition<'a>,
    proposals: u64,
    dice: &mut Dice,
    done: impl Fn(&Partition<'_>) -> bool,
) -> Partition<'a> {
    if partition.sub_clusters() == 1 {
        return partition;
    }
    let mut best = Best::of(&partition);
    let mut threshold = first_threshold(&partition, best.score.broken > 0.0);
    for level in 0..LEVELS {
        for _ in proposals * level / LEVELS..proposals * (level + 1) / LEVELS {
            let Some(change) = random_change(&partition, dice) else { continue };
            let gain = partition.gain(change);
            if gain > -threshold && partition.affords(change) {
                partition.apply(change);
                if best.look(&partition) && done(&partition) {
                    return partition;
                }
            }
        }
        threshold *= FALL;
    }
    Partition::at(partition.instance, &best.places)
}

/// The same on the objective itself. It is a maximum, flat almost everywhere, so it finds nothing from afar; but close to
/// the end it tells apart what the sum of squares does not.
pub(super) fn refine<'a>(
    mut partition: Partition<'a>,
    proposals: u64,
    dice: &mut Dice,
    done: impl Fn(&Partition<'_>) -> bool,
) -> Partition<'a> {
    let mut best = Best::of(&partition);
    let mut energy = best.score.energy();
    let mut threshold = best.score.objective;
    // Scoring looks at every sub-cluster.
    let proposals = proposals / (2 + partition.sub_clusters() as u64 / 16);
    for level in 0..LEVELS {
        for _ in proposals * level / LEVELS..proposals * (level + 1) / LEVELS {
            let Some(change) = random_change(&partition, dice).filter(|&change| partition.affords(change)) else {
                continue;
            };
            let back = Change { to: partition.places()[change.model], ..change };
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
        threshold *= FALL;
    }
    Partition::at(partition.instance, &best.places)
}

/// Looks at every partition that the disruption allows, and gives the one with the lowest rank; none if there are too many
/// to look at, or none is allowed.
pub(super) fn exhaust<'a, R: PartialOrd>(
    instance: &'a Instance<'a>,
    rank: impl Fn(&Partition<'_>) -> R,
) -> Option<Partition<'a>> {
    let models = u32::try_from(instance.models()).ok()?;
    let count = instance.sub_clusters.checked_pow(models).filter(|&count| count <= EXHAUSTIBLE)?;
    let mut partition = Partition::at(instance, &vec![0; instance.models()]);
    let mut best: Option<(R, Vec<usize>)> = None;
    for _ in 0..count {
        if partition.disruption() <= instance.max_disruption {
            let rank = rank(&partition);
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, partition.places().to_vec()));
            }
        }
        count_on(&mut partition);
    }
    best.map(|(_, places)| Partition::at(instance, &places))
}

/// The next partition, as if the places were the digits of a number.
fn count_on(partition: &mut Partition<'_>) {
    for model in 0..partition.places().len() {
        let to = (partition.places()[model] + 1) % partition.sub_clusters();
        partition.apply(Change { model, to, partner: None });
        if to > 0 {
            return;
        }
    }
}

/// Makes the change that gains most for its disruption, again and again, until `done` or none gains.
pub(super) fn descend(partition: &mut Partition<'_>, dice: &mut Dice, done: impl Fn(&Partition<'_>) -> bool) {
    let steps = 4 * partition.places().len() + 100;
    for _ in 0..steps {
        if done(partition) {
            return;
        }
        let Some(change) = best_change(partition, dice) else { return };
        partition.apply(change);
    }
}

/// The best partition seen. Scoring looks at every sub-cluster, so with many it is done for some of the steps only.
struct Best {
    score: Score,
    places: Vec<usize>,
    unscored: usize,
}

impl Best {
    fn of(partition: &Partition<'_>) -> Best {
        Best { score: partition.score(), places: partition.places().to_vec(), unscored: 0 }
    }

    /// Keeps the partition if it is the best so far. Says whether it looked.
    fn look(&mut self, partition: &Partition<'_>) -> bool {
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

/// What exchanging models of usual size does to two balanced sub-clusters, and where bounds are broken, to those.
fn first_threshold(partition: &Partition<'_>, broken: bool) -> f64 {
    let instance = partition.instance;
    let weight = instance.problem.memory_weight;
    let effect = |model: usize| {
        let (rate, memory) = (instance.rate.share(model), instance.memory.share(model));
        let wall = if broken { BROKEN * (rate + memory) } else { 0.0 };
        rate * rate + weight * weight * memory * memory + wall
    };
    (0..instance.models()).map(effect).sum::<f64>() / instance.models() as f64
}

/// Mostly exchanges: moves alone cannot keep two sums at once.
fn random_change(partition: &Partition<'_>, dice: &mut Dice) -> Option<Change> {
    let places = partition.places();
    let model = dice.below(places.len());
    if dice.below(4) == 0 {
        let to = dice.below(partition.sub_clusters());
        return (to != places[model]).then_some(Change { model, to, partner: None });
    }
    let partner = dice.below(places.len());
    (places[partner] != places[model]).then_some(Change { model, to: places[partner], partner: Some(partner) })
}

/// The best change of the worst sub-cluster that has one.
fn best_change(partition: &Partition<'_>, dice: &mut Dice) -> Option<Change> {
    let mut order: Vec<usize> = (0..partition.sub_clusters()).collect();
    order.sort_by(|&a, &b| partition.badness(b).total_cmp(&partition.badness(a)).then(a.cmp(&b)));
    order.into_iter().find_map(|place| {
        let mut best = Step { worth: 0.0, change: None };
        moves_of(partition, place).for_each(|change| best.consider(partition, change));
        exchanges_of(partition, place, dice, |change| best.consider(partition, change));
        best.change
    })
}

/// The best change so far, by gain for each unit of disruption that it adds.
struct Step {
    worth: f64,
    change: Option<Change>,
}

impl Step {
    fn consider(&mut self, partition: &Partition<'_>, change: Change) {
        let gain = partition.gain(change);
        if gain < LEAST_GAIN || gain <= self.worth || !partition.affords(change) {
            return;
        }
        let added = partition.disruption_after(change).saturating_sub(partition.disruption());
        let worth = gain / added.max(1) as f64;
        if worth > self.worth {
            *self = Step { worth, change: Some(change) };
        }
    }
}

/// Every move of a model out of a sub-cluster or into it.
fn moves_of<'p>(partition: &'p Partition<'_>, place: usize) -> impl Iterator<Item = Change> + 'p {
    let others = move || (0..partition.sub_clusters()).filter(move |&other| other != place);
    let out = others().flat_map(move |to| partition.members(place).iter().map(move |&model| (model, to)));
    let into = others().flat_map(move |from| partition.members(from).iter().map(move |&model| (model, place)));
    out.chain(into).map(|(model, to)| Change { model, to, partner: None })
}

/// Every exchange between a sub-cluster and the others, or a sample.
fn exchanges_of(partition: &Partition<'_>, place: usize, dice: &mut Dice, mut each: impl FnMut(Change)) {
    let (members, places) = (partition.members(place), partition.places());
    let mut consider = |model: usize, partner: usize| {
        if places[partner] != place {
            each(Change { model, to: places[partner], partner: Some(partner) });
        }
    };
    if members.len() * places.len() <= EXCHANGES {
        members.iter().for_each(|&model| (0..places.len()).for_each(|partner| consider(model, partner)));
    } else if !members.is_empty() {
        (0..EXCHANGES).for_each(|_| consider(members[dice.below(members.len())], dice.below(places.len())));
    }
}
