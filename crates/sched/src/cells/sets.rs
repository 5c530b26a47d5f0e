//! Buckets in which requests wait, and sets of requests that begin or end together.

use super::{CellModel, CellRequestState, Cells, Join, Leave, Padding, Walker};
use crate::Action;
use crate::tables::cohorts::CohortId;
use ripieno_base::{DeviceId, List, ModelId, Nanos, RequestSlot, Time};
use ripieno_model::Steps;

/// Largest number of buckets of a model; longer requests are in the last one.
pub(super) const BUCKETS: usize = 1024;

/// Turns of the buckets.
#[derive(Debug)]
pub(super) struct SetTurns {
    /// The bucket that had its turn last.
    pub(super) last: (usize, usize),
    /// Time at which an idle device may take the next set; never if no request waits for one.
    pub(super) ripens: Time,
}

/// Data of a cohort that is a set. Subgraphs hold the walks of its members, since their steps are
/// queued ahead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CellSet {
    /// Number of members whose walk is not complete.
    unfinished: u32,
    /// Number of members that have not reached the end of the block that runs until its end.
    going: u32,
    /// The device that runs the set; `None` means any.
    device: Option<DeviceId>,
    /// Number of steps of each sequence with padding; else 0.
    padded: u32,
    /// True if the members are being completed one after the other.
    busy: bool,
}

impl Cells {
    /// Puts a request into its bucket, in the order of arrival.
    pub(super) fn wait_for_set(&mut self, slot: RequestSlot) {
        let (model, bucket) = self.bucket(slot);
        let Cells { models, links, walkers, .. } = self;
        models.get_mut(model).buckets[bucket].insert_by_key(links, slot.0, |slot| walkers[slot as usize].number);
    }

    pub(super) fn leave_bucket(&mut self, slot: RequestSlot) {
        let (model, bucket) = self.bucket(slot);
        let served = self.models.get_mut(model);
        served.buckets[bucket].remove(&mut self.links, slot.0);
    }

    fn bucket(&self, slot: RequestSlot) -> (ModelId, usize) {
        let request = &self.walkers[slot.index()].request;
        let bucket = match self.served(request.model).rules.join {
            Join::InSets { width: Some(width) } => (request.extent.length.max(1) - 1) / width,
            _ => 0,
        };
        (request.model, (bucket as usize).min(BUCKETS - 1))
    }

    /// Gives an idle device without a set the next one in turn.
    pub fn assign_set(&mut self, now: Time, device: DeviceId) {
        if self.devices[device].set.is_some() {
            return;
        }
        let Some((model, bucket)) = self.next_bucket(now, device) else {
            return;
        };
        self.turns.last = (model.index(), bucket);
        let cap = self.served(model).max_batch;
        let id = self.sets.open(model, CellSet { device: Some(device), ..CellSet::default() });
        self.devices[device].set = Some(id);
        let mut nodes = 0;
        while let Some(slot) = self.served(model).buckets[bucket].front() {
            let request = self.walkers[slot as usize].request;
            let rows = self.sets.get(id).rows;
            if rows > 0 && rows + request.rows as usize > cap {
                break;
            }
            self.models.get_mut(model).buckets[bucket].remove(&mut self.links, slot);
            self.sets.push(id, &request);
            nodes += self.graph_nodes(RequestSlot(slot));
        }
        let merged = self.served(model).rules.merge_per_node * nodes;
        self.devices[device].ready = now + merged.max(Nanos::ZERO);
        let longest = self.sets.get(id).length;
        let bucket_end = match self.served(model).rules.join {
            Join::InSets { width: Some(width) } => (bucket as u32 + 1).saturating_mul(width).max(longest),
            _ => longest,
        };
        let padded = match self.padding(model) {
            Padding::None => 0,
            Padding::ToLongest => longest,
            Padding::ToBucket => bucket_end,
        };
        self.bind(id, padded);
        let mut next = self.sets.first(id);
        while let Some(slot) = next {
            next = self.sets.after(slot);
            self.open_stage(slot);
        }
    }

    /// Returns the known number of cells of a request.
    fn graph_nodes(&self, slot: RequestSlot) -> i64 {
        let request = &self.walkers[slot.index()].request;
        let steps = |steps: Steps| match steps {
            Steps::Once => 1,
            Steps::Length | Steps::UntilEnd => request.extent.length,
            Steps::Nodes => 0,
        };
        let blocks = &self.served(request.model).model.blocks;
        let lines: u32 = blocks.iter().map(|block| steps(block.steps)).sum();
        i64::from(self.graphs.len(slot) + lines)
    }

    /// Returns the next bucket in turn with a set in it: a full one, or one whose oldest request
    /// has waited for the window.
    fn next_bucket(&self, now: Time, device: DeviceId) -> Option<(ModelId, usize)> {
        let (model, bucket) = self.turns.last;
        let count = self.models.capacity();
        if let Some(served) = self.models.find(ModelId(model as u16)) {
            let full = |list: &List| list.len() >= served.max_batch;
            if served.rules.drains && served.may_run_on(device) && served.buckets.get(bucket).is_some_and(full) {
                return Some((ModelId(model as u16), bucket));
            }
        }
        // The order is the rest of this model's buckets, the other models, and then the earlier
        // buckets of this model.
        let some = |model: usize, range: std::ops::Range<usize>| {
            let served = self.models.find(ModelId(model as u16)).filter(|served| served.may_run_on(device))?;
            let end = range.end.min(served.buckets.len());
            let ripe = |list: &List| {
                let waited = self.ripe_at(served, list).is_some_and(|at| at <= now);
                waited || (!list.is_empty() && list.len() >= served.max_batch)
            };
            let found = (range.start..end).find(|&bucket| ripe(&served.buckets[bucket]))?;
            Some((ModelId(model as u16), found))
        };
        some(model, bucket + 1..BUCKETS)
            .or_else(|| (1..count).find_map(|more| some((model + more) % count, 0..BUCKETS)))
            .or_else(|| some(model, 0..bucket + 1))
    }

    /// Returns the time at which the oldest request of a bucket has waited for the window.
    fn ripe_at(&self, served: &CellModel, bucket: &List) -> Option<Time> {
        let oldest = bucket.front()?;
        Some(self.walkers[oldest as usize].request.arrived + served.rules.window)
    }

    /// Sets the time at which the next bucket becomes ripe while a device is idle. A bucket that is
    /// ripe already waits for something else, which is an event of its own.
    pub fn await_sets(&mut self, now: Time) {
        let idle = self.devices.iter().any(|(_, device)| device.present && device.held == 0 && device.set.is_none());
        let waits = |served: &&CellModel| idle && served.rules.window > Nanos::ZERO;
        let served = self.models().map(|(_, served)| served).filter(waits);
        let times = served.flat_map(|served| served.buckets.iter().filter_map(|bucket| self.ripe_at(served, bucket)));
        self.turns.ripens = times.filter(|&at| at > now).min().unwrap_or(Time::NEVER);
    }

    /// Starts the members of a set.
    fn bind(&mut self, id: CohortId, padded: u32) {
        let Cells { models, sets, timers, walkers, .. } = self;
        // True if the members have an output whose rows are kept for the others.
        let served = models.get(sets.get(id).model);
        let has_end =
            served.rules.pads_output && served.model.blocks.iter().any(|block| block.steps == Steps::UntilEnd);
        let going = padded > 0 && has_end;
        let mut began = 0;
        for slot in sets.members(id) {
            timers.disarm(slot);
            let walker = &mut walkers[slot.index()];
            began += usize::from(walker.state == CellRequestState::Waiting);
            (walker.state, walker.going) = (CellRequestState::Running, going);
        }
        models.get_mut(sets.get(id).model).own.waiting -= began;
        let unfinished = sets.get(id).len() as u32;
        let set = sets.own_mut(id);
        (set.padded, set.unfinished, set.going) = (padded, unfinished, if going { unfinished } else { 0 });
    }

    /// Returns the device on which a request must continue, if there is one: its set's, or the one
    /// on which its chain has begun.
    pub(super) fn bound(&self, slot: RequestSlot) -> Option<DeviceId> {
        let of_set = self.sets.of(slot).and_then(|set| self.sets.get(set).own.device);
        of_set.or(self.walkers[slot.index()].held_by)
    }

    /// Returns the number of steps of a request's sequence with padding; else 0.
    pub(super) fn padded(&self, slot: RequestSlot) -> u32 {
        self.sets.of(slot).map_or(0, |id| self.sets.get(id).own.padded)
    }

    /// Makes a set of the requests that begin in one task, if the model's requests leave together.
    /// Must precede the next step of these requests.
    pub(super) fn make_set(&mut self, task: ripieno_base::TaskId, model: ModelId) {
        let Leave::WithItsSet(padding) = self.served(model).rules.leave else {
            return;
        };
        let Cells { sets, tasks, walkers, .. } = self;
        let mut id = None;
        for &slot in tasks.members(task) {
            if sets.of(slot).is_none() {
                let set = *id.get_or_insert_with(|| sets.open(model, CellSet::default()));
                sets.push(set, &walkers[slot.index()].request);
            }
        }
        let Some(id) = id else { return };
        let longest = sets.get(id).length;
        self.bind(id, if padding == Padding::None { 0 } else { longest });
        let mut next = self.sets.first(id);
        while let Some(slot) = next {
            next = self.sets.after(slot);
            self.pad_first_stage(slot, longest);
        }
    }

    fn pad_first_stage(&mut self, slot: RequestSlot, longest: u32) {
        let model = self.walkers[slot.index()].request.model;
        let mut next = self.subgraphs.first(slot).filter(|_| self.padded(slot) > 0);
        while let Some(id) = next {
            next = self.subgraphs.next(id);
            let steps = self.served(model).steps(self.subgraphs.at(id).block);
            let subgraph = self.subgraphs.at_mut(id);
            if steps == Steps::Length {
                subgraph.total = subgraph.total.max(longest);
            }
        }
    }

    /// Records that a member's walk is complete.
    pub(super) fn one_less_unfinished(&mut self, id: CohortId) {
        self.sets.own_mut(id).unfinished -= 1;
        self.complete_set(id);
    }

    /// Answers all members of a set if none is unfinished, which ends the set.
    fn complete_set(&mut self, id: CohortId) {
        let set = self.sets.own_mut(id);
        if set.unfinished > 0 || set.busy {
            return;
        }
        set.busy = true;
        let mut next = self.sets.first(id);
        while let Some(request) = next {
            next = self.sets.after(request);
            self.end(request, Action::Finish { request });
        }
    }

    /// Records that a member has reached the end of its output; after the last one, all continue.
    pub(super) fn one_less_going(&mut self, id: CohortId) {
        let set = self.sets.own_mut(id);
        set.going -= 1;
        if set.going > 0 {
            return;
        }
        let busy = std::mem::replace(&mut set.busy, true);
        let mut next = self.sets.first(id);
        while let Some(slot) = next {
            next = self.sets.after(slot);
            self.complete_open_end(slot);
        }
        self.sets.own_mut(id).busy = busy;
        self.complete_set(id);
    }

    fn complete_open_end(&mut self, slot: RequestSlot) {
        let model = self.walkers[slot.index()].request.model;
        let mut next = self.subgraphs.first(slot);
        while let Some(id) = next {
            next = self.subgraphs.next(id);
            let subgraph = self.subgraphs.at(id);
            if !subgraph.over && self.served(model).steps(subgraph.block) == Steps::UntilEnd {
                self.complete(id);
                self.tidy(slot, id);
                return;
            }
        }
    }

    /// Removes a request from its set, if it has one.
    pub(super) fn leave_set(&mut self, slot: RequestSlot, unfinished: bool) {
        let Some(id) = self.sets.of(slot) else { return };
        let going = std::mem::take(&mut self.walker(slot).going);
        let set = self.sets.own_mut(id);
        set.unfinished -= u32::from(unfinished);
        let device = set.device;
        match self.sets.leave(slot) {
            None => device.into_iter().for_each(|device| self.devices[device].set = None),
            Some(id) if going => self.one_less_going(id),
            Some(id) => self.complete_set(id),
        }
    }

    /// Releases the work of a device that has left and holds no task: the rest of its set may run
    /// anywhere, and chains that have begun there start over.
    pub(super) fn release_device(&mut self, device: DeviceId) {
        if self.devices[device].present || self.devices[device].held > 0 {
            return;
        }
        for slot in (0..self.walkers.len() as u32).map(RequestSlot) {
            let Walker { state, held_by, .. } = self.walkers[slot.index()];
            if state == CellRequestState::Running && held_by == Some(device) {
                self.stop(slot);
                self.start_over(slot);
            }
        }
        let Some(id) = self.devices[device].set.take() else {
            return;
        };
        self.sets.own_mut(id).device = None;
        let mut next = self.sets.first(id);
        while let Some(slot) = next {
            next = self.sets.after(slot);
            let mut subgraph = self.subgraphs.first(slot);
            while let Some(id) = subgraph {
                self.pin(id, None);
                subgraph = self.subgraphs.next(id);
            }
        }
    }
}
