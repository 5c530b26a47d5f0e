//! A partition under change: the place of each model, the sums of each sub-cluster, and the effect
//! of a change on them.
//!
//! A search evaluates far more changes than it makes, so an evaluation touches two sub-clusters and
//! no other memory.

use super::instance::{Instance, VIOLATION_WEIGHT};

/// A move of a model to another sub-cluster. With a partner there, the partner moves back in
/// exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartitionChange {
    pub(super) model: usize,
    pub(super) to: usize,
    pub(super) partner: Option<usize>,
}

/// The score of a partition; a lower one is better. Violated bounds compare first.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Score {
    /// The amount by which bounds are exceeded.
    pub(super) violation: f64,
    /// The paper's objective: the largest deviation of the rate from its average and, weighted, of
    /// the memory.
    pub(super) objective: f64,
}

impl Score {
    /// Returns the score as one number, in which violated bounds weigh more than any balance.
    pub(super) fn energy(self) -> f64 {
        self.objective + VIOLATION_WEIGHT * self.violation
    }
}

/// A partition of the models.
#[derive(Debug)]
pub(super) struct Partition<'a> {
    pub(super) instance: &'a Instance<'a>,
    groups: Vec<SubClusterState>,
    /// The sub-cluster of each model, and its position among the members there.
    place: Vec<usize>,
    position: Vec<usize>,
    disruption: u64,
    /// Upper bound on the disruption after a change.
    max_disruption: u64,
}

#[derive(Clone, Debug, Default)]
struct SubClusterState {
    members: Vec<usize>,
    rate: i64,
    memory: i64,
    /// The members with the two largest runtime memories: without the first, the second is the
    /// largest.
    peaks: [Option<RuntimePeak>; 2],
    badness: f64,
}

#[derive(Clone, Copy, Debug)]
struct RuntimePeak {
    model: usize,
    runtime: i64,
}

impl<'a> Partition<'a> {
    /// Places the models one after the other in this order, where `choose` decides.
    pub(super) fn place_each(
        instance: &'a Instance<'a>,
        order: impl IntoIterator<Item = usize>,
        mut choose: impl FnMut(&Partition<'a>, usize) -> usize,
    ) -> Partition<'a> {
        let empty = SubClusterState { badness: instance.badness(0, 0, 0), ..SubClusterState::default() };
        let mut partition = Partition {
            instance,
            groups: vec![empty; instance.sub_clusters],
            place: vec![usize::MAX; instance.models()],
            position: vec![usize::MAX; instance.models()],
            disruption: 0,
            max_disruption: instance.max_disruption,
        };
        for model in order {
            let place = choose(&partition, model);
            partition.insert(model, place);
        }
        partition
    }

    /// Returns the partition with every model at the given place.
    pub(super) fn at(instance: &'a Instance<'a>, places: &[usize]) -> Partition<'a> {
        Partition::place_each(instance, 0..places.len(), |_, model| places[model])
    }

    pub(super) fn sub_clusters(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn places(&self) -> &[usize] {
        &self.place
    }

    pub(super) fn members(&self, place: usize) -> &[usize] {
        &self.groups[place].members
    }

    pub(super) fn rate(&self, place: usize) -> i64 {
        self.groups[place].rate
    }

    pub(super) fn memory(&self, place: usize) -> i64 {
        self.groups[place].memory
    }

    /// Returns the largest runtime memory among a sub-cluster's members.
    pub(super) fn runtime(&self, place: usize) -> i64 {
        self.groups[place].runtime_without(None)
    }

    pub(super) fn badness(&self, place: usize) -> f64 {
        self.groups[place].badness
    }

    /// Returns the same partition with a tighter bound on the disruption than the problem's.
    pub(super) fn within(self, most_disruption: u64) -> Partition<'a> {
        Partition { max_disruption: most_disruption, ..self }
    }

    /// Returns true if a change keeps the disruption within the bound.
    pub(super) fn is_allowed(&self, change: PartitionChange) -> bool {
        self.disruption_after(change) <= self.max_disruption
    }

    pub(super) fn disruption(&self) -> u64 {
        self.disruption
    }

    /// Returns the increase in a sub-cluster's badness if an unplaced model joined it.
    pub(super) fn rise_with(&self, place: usize, model: usize) -> f64 {
        self.badness_after(place, None, Some(model)) - self.badness(place)
    }

    /// Returns the decrease in the sum of badness by a change; negative if the change raises it.
    pub(super) fn gain(&self, change: PartitionChange) -> f64 {
        let PartitionChange { model, to, partner } = change;
        let from = self.place[model];
        let after = self.badness_after(from, Some(model), partner) + self.badness_after(to, partner, Some(model));
        self.badness(from) + self.badness(to) - after
    }

    /// Returns the disruption after a change.
    pub(super) fn disruption_after(&self, change: PartitionChange) -> u64 {
        let PartitionChange { model, to, partner } = change;
        let from = self.place[model];
        let cost = |model, place| self.instance.disruption(model, place);
        let before = cost(model, from) + partner.map_or(0, |partner| cost(partner, to));
        let after = cost(model, to).saturating_add(partner.map_or(0, |partner| cost(partner, from)));
        (self.disruption - before).saturating_add(after)
    }

    /// Makes a change.
    pub(super) fn apply(&mut self, change: PartitionChange) {
        let from = self.place[change.model];
        self.remove(change.model);
        if let Some(partner) = change.partner {
            self.remove(partner);
            self.insert(partner, from);
        }
        self.insert(change.model, change.to);
    }

    /// Returns the score of the partition.
    pub(super) fn score(&self) -> Score {
        let (mut broken, mut rate, mut memory) = (0.0, 0f64, 0f64);
        for group in &self.groups {
            broken += self.instance.violation(group.rate, group.memory, group.runtime_without(None));
            rate = rate.max(self.instance.rate.deviation(group.rate).abs());
            memory = memory.max(self.instance.memory.deviation(group.memory).abs());
        }
        Score { violation: broken, objective: rate + self.instance.problem.memory_weight * memory }
    }

    /// Returns the paper's imbalance factors (max − min) / average, of rate and of memory.
    pub(super) fn imbalance(&self) -> (f64, f64) {
        let spread = |sum: &dyn Fn(&SubClusterState) -> f64| {
            let sums = self.groups.iter().map(sum);
            let (least, most) = sums.fold((f64::MAX, f64::MIN), |(low, high), sum| (low.min(sum), high.max(sum)));
            most - least
        };
        (
            spread(&|group| self.instance.rate.deviation(group.rate)),
            spread(&|group| self.instance.memory.deviation(group.memory)),
        )
    }

    fn badness_after(&self, place: usize, out: Option<usize>, into: Option<usize>) -> f64 {
        let (group, instance) = (&self.groups[place], self.instance);
        let amount = |each: &[i64], model: Option<usize>| model.map_or(0, |model| each[model]);
        let (rates, memories) = (&instance.rate.each, &instance.memory.each);
        let rate = group.rate - amount(rates, out) + amount(rates, into);
        let memory = group.memory - amount(memories, out) + amount(memories, into);
        instance.badness(rate, memory, group.runtime_without(out).max(amount(&instance.runtime, into)))
    }

    fn insert(&mut self, model: usize, place: usize) {
        let instance = self.instance;
        let group = &mut self.groups[place];
        (self.place[model], self.position[model]) = (place, group.members.len());
        group.members.push(model);
        group.rate += instance.rate.each[model];
        group.memory += instance.memory.each[model];
        group.add_peak(RuntimePeak { model, runtime: instance.runtime[model] });
        group.badness = instance.badness(group.rate, group.memory, group.runtime_without(None));
        self.disruption = self.disruption.saturating_add(instance.disruption(model, place));
    }

    fn remove(&mut self, model: usize) {
        let instance = self.instance;
        let place = self.place[model];
        let group = &mut self.groups[place];
        group.members.swap_remove(self.position[model]);
        if let Some(&moved) = group.members.get(self.position[model]) {
            self.position[moved] = self.position[model];
        }
        group.rate -= instance.rate.each[model];
        group.memory -= instance.memory.each[model];
        if group.peaks.iter().flatten().any(|peak| peak.model == model) {
            group.peaks = [None; 2];
            for at in 0..group.members.len() {
                let model = group.members[at];
                group.add_peak(RuntimePeak { model, runtime: instance.runtime[model] });
            }
        }
        group.badness = instance.badness(group.rate, group.memory, group.runtime_without(None));
        self.disruption -= instance.disruption(model, place);
    }
}

impl SubClusterState {
    fn runtime_without(&self, model: Option<usize>) -> i64 {
        let mut rest = self.peaks.iter().flatten().filter(|peak| Some(peak.model) != model);
        rest.next().map_or(0, |peak| peak.runtime)
    }

    fn add_peak(&mut self, new: RuntimePeak) {
        let [first, second] = self.peaks;
        self.peaks = match (first, second) {
            (Some(first), _) if first.runtime < new.runtime => [Some(new), Some(first)],
            (Some(first), Some(second)) if second.runtime >= new.runtime => [Some(first), Some(second)],
            (Some(first), _) => [Some(first), Some(new)],
            (None, _) => [Some(new), None],
        };
    }
}
