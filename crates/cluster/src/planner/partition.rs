//! A partition under change: who is where, the sums of each sub-cluster, and what a change would do to them.
//!
//! A search asks about far more changes than it makes, so asking touches two sub-clusters and no memory beyond them.

use super::instance::{BROKEN, Instance};

/// Moves a model to another sub-cluster, and in exchange, if there is a partner there, the partner back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) model: usize,
    pub(super) to: usize,
    pub(super) partner: Option<usize>,
}

/// How good a partition is; a lower one is better, keeping the bounds comes first.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Score {
    /// By how much bounds are broken.
    pub(super) broken: f64,
    /// The paper's objective: the largest deviation of the rate from its average and, weighted, of the memory.
    pub(super) objective: f64,
}

impl Score {
    /// The score as one number, in which broken bounds weigh more than any balance.
    pub(super) fn energy(self) -> f64 {
        self.objective + BROKEN * self.broken
    }
}

/// The partition.
#[derive(Debug)]
pub(super) struct Partition<'a> {
    pub(super) instance: &'a Instance<'a>,
    groups: Vec<Group>,
    /// The sub-cluster of each model, and its position among the members there.
    place: Vec<usize>,
    position: Vec<usize>,
    disruption: u64,
    /// What changes may not raise the disruption above.
    most_disruption: u64,
}

#[derive(Clone, Debug, Default)]
struct Group {
    members: Vec<usize>,
    rate: i64,
    memory: i64,
    /// The members with the two largest runtime memories: without the first, the second is the largest.
    peaks: [Option<Peak>; 2],
    badness: f64,
}

#[derive(Clone, Copy, Debug)]
struct Peak {
    model: usize,
    runtime: i64,
}

impl<'a> Partition<'a> {
    /// Places the models one after the other, in the order and where `choose` says.
    pub(super) fn place_each(
        instance: &'a Instance<'a>,
        order: impl IntoIterator<Item = usize>,
        mut choose: impl FnMut(&Partition<'a>, usize) -> usize,
    ) -> Partition<'a> {
        let empty = Group { badness: instance.badness(0, 0, 0), ..Group::default() };
        let mut partition = Partition {
            instance,
            groups: vec![empty; instance.sub_clusters],
            place: vec![usize::MAX; instance.models()],
            position: vec![usize::MAX; instance.models()],
            disruption: 0,
            most_disruption: instance.max_disruption,
        };
        for model in order {
            let place = choose(&partition, model);
            partition.insert(model, place);
        }
        partition
    }

    /// The partition with every model at a given place.
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

    /// The largest runtime memory of a sub-cluster's members.
    pub(super) fn runtime(&self, place: usize) -> i64 {
        self.groups[place].runtime_without(None)
    }

    pub(super) fn badness(&self, place: usize) -> f64 {
        self.groups[place].badness
    }

    /// The same with a tighter bound on the disruption than the problem's.
    pub(super) fn within(self, most_disruption: u64) -> Partition<'a> {
        Partition { most_disruption, ..self }
    }

    /// Whether a change keeps the disruption within bounds.
    pub(super) fn affords(&self, change: Change) -> bool {
        self.disruption_after(change) <= self.most_disruption
    }

    pub(super) fn disruption(&self) -> u64 {
        self.disruption
    }

    /// How the badness of a sub-cluster would rise if a model that is nowhere joined it.
    pub(super) fn rise_with(&self, place: usize, model: usize) -> f64 {
        self.badness_after(place, None, Some(model)) - self.badness(place)
    }

    /// By how much a change lowers the sum of badness; negative if it raises it.
    pub(super) fn gain(&self, change: Change) -> f64 {
        let Change { model, to, partner } = change;
        let from = self.place[model];
        let after = self.badness_after(from, Some(model), partner) + self.badness_after(to, partner, Some(model));
        self.badness(from) + self.badness(to) - after
    }

    /// The disruption after a change.
    pub(super) fn disruption_after(&self, change: Change) -> u64 {
        let Change { model, to, partner } = change;
        let from = self.place[model];
        let cost = |model, place| self.instance.disruption(model, place);
        let before = cost(model, from) + partner.map_or(0, |partner| cost(partner, to));
        let after = cost(model, to).saturating_add(partner.map_or(0, |partner| cost(partner, from)));
        (self.disruption - before).saturating_add(after)
    }

    /// Makes a change.
    pub(super) fn apply(&mut self, change: Change) {
        let from = self.place[change.model];
        self.remove(change.model);
        if let Some(partner) = change.partner {
            self.remove(partner);
            self.insert(partner, from);
        }
        self.insert(change.model, change.to);
    }

    /// How good the partition is.
    pub(super) fn score(&self) -> Score {
        let (mut broken, mut rate, mut memory) = (0.0, 0f64, 0f64);
        for group in &self.groups {
            broken += self.instance.broken(group.rate, group.memory, group.runtime_without(None));
            rate = rate.max(self.instance.rate.deviation(group.rate).abs());
            memory = memory.max(self.instance.memory.deviation(group.memory).abs());
        }
        Score { broken, objective: rate + self.instance.problem.memory_weight * memory }
    }

    /// The paper's imbalance factors (max − min) / average, of rate and of memory.
    pub(super) fn imbalance(&self) -> (f64, f64) {
        let spread = |sum: &dyn Fn(&Group) -> f64| {
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
        group.add_peak(Peak { model, runtime: instance.runtime[model] });
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
                group.add_peak(Peak { model, runtime: instance.runtime[model] });
            }
        }
        group.badness = instance.badness(group.rate, group.memory, group.runtime_without(None));
        self.disruption -= instance.disruption(model, place);
    }
}

impl Group {
    fn runtime_without(&self, model: Option<usize>) -> i64 {
        let mut rest = self.peaks.iter().flatten().filter(|peak| Some(peak.model) != model);
        rest.next().map_or(0, |peak| peak.runtime)
    }

    fn add_peak(&mut self, new: Peak) {
        let [first, second] = self.peaks;
        self.peaks = match (first, second) {
            (Some(first), _) if first.runtime < new.runtime => [Some(new), Some(first)],
            (Some(first), Some(second)) if second.runtime >= new.runtime => [Some(first), Some(second)],
            (Some(first), _) => [Some(first), Some(new)],
            (None, _) => [Some(new), None],
        };
    }
}
