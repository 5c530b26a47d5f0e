//! Sets of requests that run cell by cell and begin or end together, and the buckets in which
//! requests wait for a set.
//!
//! With [`Join::InSets`] a device without a set takes the next one in turn, and the set runs there
//! to its end. With [`Join::NextTask`] and [`Leave::WithItsSet`] the requests that begin in one
//! task are a set. The cells of all members are in [`Cells`]; this file says when they begin, how
//! they are padded, and when they are answered.

use super::rules::{CellRules, Join, Leave, Padding};
use ripieno_base::{DeviceId, Links, List, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::Steps;
use ripieno_sched::cells::{Cells, Groups, Left};
use ripieno_sched::{CohortId, Cohorts, Limits, Request};

/// Largest number of buckets of a model; longer requests are in the last one.
const BUCKETS: usize = 1024;

/// The sets and buckets of all models.
#[derive(Debug)]
pub(crate) struct Sets {
    /// Rules and buckets of each model, by id.
    models: Vec<Option<SetModel>>,
    /// The sets, as cohorts of requests. The progress of members is in [`Cells`].
    sets: Cohorts<CellSet>,
    /// Links of the buckets.
    links: Links,
    /// Arrival number of each request in a bucket, by slot.
    numbers: Vec<u64>,
    /// State of each device.
    devices: Vec<SetDevice>,
    /// Model and bucket that had their turn last.
    last: (usize, usize),
    /// Time at which an idle device may take the next set; [`Time::NEVER`] if no request waits for
    /// one.
    pub(crate) ripens: Time,
}

/// A model's rules, and the requests that wait for a set, by bucket.
#[derive(Debug)]
struct SetModel {
    /// Rules of the policy for the model.
    rules: CellRules,
    /// Requests that wait for a set, in order of arrival.
    buckets: Vec<List>,
    /// Number of buckets up to the last one that ever had a request.
    used: usize,
}

/// A device as sets use it.
#[derive(Clone, Copy, Debug)]
struct SetDevice {
    /// The set that runs on the device.
    set: Option<CohortId>,
    /// End of the merging of graphs.
    ready: Time,
}

/// Data of a set.
#[derive(Clone, Copy, Debug, Default)]
struct CellSet {
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

impl Sets {
    /// Creates the state without models.
    pub(crate) fn new(limits: &Limits) -> Sets {
        Sets {
            models: (0..limits.models).map(|_| None).collect(),
            sets: Cohorts::new(limits.requests),
            links: Links::new(limits.requests),
            numbers: vec![0; limits.requests],
            devices: vec![SetDevice { set: None, ready: Time::ORIGIN }; limits.devices],
            last: (0, 0),
            ripens: Time::NEVER,
        }
    }

    /// Adds a model with its rules.
    pub(crate) fn load(&mut self, id: ModelId, rules: CellRules) {
        let buckets = match rules.join {
            Join::NextTask => 0,
            Join::InSets { width: None } => 1,
            Join::InSets { width: Some(_) } => BUCKETS,
        };
        self.models[id.index()] = Some(SetModel { rules, buckets: vec![List::default(); buckets], used: 0 });
    }

    fn model(&self, id: ModelId) -> &SetModel {
        self.models[id.index()].as_ref().expect("a model stays while its requests live")
    }

    /// Returns the rules of a model.
    pub(crate) fn rules(&self, id: ModelId) -> &CellRules {
        &self.model(id).rules
    }

    /// Returns the earliest start of a task on a device.
    pub(crate) fn ready(&self, device: DeviceId) -> Time {
        self.devices[device.index()].ready
    }

    /// Starts the members of a set.
    fn begin(cells: &mut Cells<Sets>, id: CohortId, padded: u32) {
        let model = cells.groups.sets.get(id).model;
        let pads_output = cells.groups.rules(model).pads_output;
        // True if the members have an output whose rows are kept for the others.
        let has_end =
            pads_output && cells.served(model).model.blocks.iter().any(|block| block.steps == Steps::UntilEnd);
        let going = padded > 0 && has_end;
        Sets::each(cells, id, |cells, slot| cells.begin(slot, going));
        let unfinished = cells.groups.sets.get(id).len() as u32;
        let set = cells.groups.sets.own_mut(id);
        (set.padded, set.unfinished, set.going) = (padded, unfinished, if going { unfinished } else { 0 });
    }

    /// Does something to each member of a set.
    fn each(cells: &mut Cells<Sets>, id: CohortId, mut act: impl FnMut(&mut Cells<Sets>, RequestSlot)) {
        let mut next = cells.groups.sets.first(id);
        while let Some(slot) = next {
            next = cells.groups.sets.after(slot);
            act(cells, slot);
        }
    }

    /// Answers all members of a set if none is unfinished, which ends the set.
    fn complete(cells: &mut Cells<Sets>, id: CohortId) {
        let set = cells.groups.sets.own_mut(id);
        if set.unfinished > 0 || set.busy {
            return;
        }
        set.busy = true;
        Sets::each(cells, id, Cells::finish);
    }

    /// Records that a member has reached the end of its output; after the last one, all continue.
    fn one_less_going(cells: &mut Cells<Sets>, id: CohortId) {
        let set = cells.groups.sets.own_mut(id);
        set.going -= 1;
        if set.going > 0 {
            return;
        }
        let busy = std::mem::replace(&mut set.busy, true);
        Sets::each(cells, id, Cells::end_output);
        cells.groups.sets.own_mut(id).busy = busy;
        Sets::complete(cells, id);
    }

    /// Returns the bucket of a request whose model has buckets.
    fn bucket_of(&self, request: &Request) -> Option<usize> {
        match self.rules(request.model).join {
            Join::NextTask => None,
            Join::InSets { width: None } => Some(0),
            Join::InSets { width: Some(width) } => {
                Some(((request.extent.length.max(1) - 1) / width).min(BUCKETS as u32 - 1) as usize)
            }
        }
    }
}

impl Groups for Sets {
    /// Puts a request into its bucket, in the order of arrival, if its model has buckets.
    fn wait(cells: &mut Cells<Sets>, slot: RequestSlot) {
        let (request, number) = (*cells.request(slot), cells.number(slot));
        let Some(bucket) = cells.groups.bucket_of(&request) else { return cells.open_stage(slot) };
        let Sets { models, links, numbers, .. } = &mut cells.groups;
        numbers[slot.index()] = number;
        let own = model_of(models, request.model);
        own.used = own.used.max(bucket + 1);
        own.buckets[bucket].insert_by_key(links, slot.0, |slot| numbers[slot as usize]);
    }

    fn device(&self, slot: RequestSlot) -> Option<DeviceId> {
        self.sets.of(slot).and_then(|set| self.sets.get(set).own.device)
    }

    fn padded(&self, slot: RequestSlot) -> u32 {
        self.sets.of(slot).map_or(0, |id| self.sets.get(id).own.padded)
    }

    /// Makes a set of the requests that begin in one task, if the model's requests leave together.
    fn filled(cells: &mut Cells<Sets>, task: TaskId) {
        let Some(&first) = cells.members(task).first() else { return };
        let model = cells.request(first).model;
        let (Join::NextTask, Leave::WithItsSet(padding)) =
            (cells.groups.rules(model).join, cells.groups.rules(model).leave)
        else {
            return;
        };
        let mut id = None;
        for at in 0..cells.members(task).len() {
            let slot = cells.members(task)[at];
            if cells.groups.sets.of(slot).is_none() {
                let request = *cells.request(slot);
                let sets = &mut cells.groups.sets;
                let set = *id.get_or_insert_with(|| sets.open(model, CellSet::default()));
                sets.push(set, &request);
            }
        }
        let Some(id) = id else { return };
        let longest = cells.groups.sets.get(id).length;
        let padded = if padding == Padding::None { 0 } else { longest };
        Sets::begin(cells, id, padded);
        Sets::each(cells, id, |cells, slot| cells.pad_steps(slot, padded));
    }

    fn output_ended(cells: &mut Cells<Sets>, slot: RequestSlot) {
        let id = cells.groups.sets.of(slot).expect("it continues for its set");
        Sets::one_less_going(cells, id);
    }

    fn walk_ended(cells: &mut Cells<Sets>, slot: RequestSlot) {
        let model = cells.request(slot).model;
        match (cells.groups.rules(model).leave, cells.groups.sets.of(slot)) {
            (Leave::WithItsSet(_), Some(id)) => {
                cells.hold(slot);
                cells.groups.sets.own_mut(id).unfinished -= 1;
                Sets::complete(cells, id);
            }
            _ => cells.finish(slot),
        }
    }

    fn left(cells: &mut Cells<Sets>, slot: RequestSlot, left: Left) {
        let request = *cells.request(slot);
        let groups = &mut cells.groups;
        if let Some(bucket) = groups.bucket_of(&request).filter(|_| left.waiting) {
            model_of(&mut groups.models, request.model).buckets[bucket].remove(&mut groups.links, slot.0);
        }
        let Some(id) = groups.sets.of(slot) else { return };
        let set = groups.sets.own_mut(id);
        set.unfinished -= u32::from(!left.held);
        let device = set.device;
        match groups.sets.leave(slot) {
            None => device.into_iter().for_each(|device| groups.devices[device.index()].set = None),
            Some(id) if left.going => Sets::one_less_going(cells, id),
            Some(id) => Sets::complete(cells, id),
        }
    }

    /// Lets the rest of the device's set run anywhere.
    fn device_left(cells: &mut Cells<Sets>, device: DeviceId) {
        let Some(id) = cells.groups.devices[device.index()].set.take() else { return };
        cells.groups.sets.own_mut(id).device = None;
        Sets::each(cells, id, Cells::unpin);
    }
}

/// Gives an idle device without a set the next one in turn.
pub(crate) fn assign(cells: &mut Cells<Sets>, now: Time, device: DeviceId) {
    if cells.groups.devices[device.index()].set.is_some() {
        return;
    }
    let Some((model, bucket)) = next_bucket(cells, now, device) else { return };
    let cap = cells.served(model).max_batch;
    let groups = &mut cells.groups;
    groups.last = (model.index(), bucket);
    let id = groups.sets.open(model, CellSet { device: Some(device), ..CellSet::default() });
    groups.devices[device.index()].set = Some(id);
    let mut nodes = 0;
    while let Some(slot) = cells.groups.model(model).buckets[bucket].front() {
        let request = *cells.request(RequestSlot(slot));
        let rows = cells.groups.sets.get(id).rows;
        if rows > 0 && rows + request.rows as usize > cap {
            break;
        }
        let Sets { models, links, sets, .. } = &mut cells.groups;
        model_of(models, model).buckets[bucket].remove(links, slot);
        sets.push(id, &request);
        nodes += graph_nodes(cells, &request);
    }
    let SetModel { rules, .. } = cells.groups.model(model);
    let longest = cells.groups.sets.get(id).length;
    let padded = match (rules.leave, rules.join) {
        (Leave::AtItsEnd | Leave::WithItsSet(Padding::None), _) => 0,
        (Leave::WithItsSet(Padding::ToBucket), Join::InSets { width: Some(width) }) => {
            (bucket as u32 + 1).saturating_mul(width).max(longest)
        }
        (Leave::WithItsSet(_), _) => longest,
    };
    let ready = now + (rules.merge_per_node * nodes).max(Nanos::ZERO);
    cells.groups.devices[device.index()].ready = ready;
    Sets::begin(cells, id, padded);
    Sets::each(cells, id, Cells::open_stage);
}

/// Returns the known number of cells of a request.
fn graph_nodes(cells: &Cells<Sets>, request: &Request) -> i64 {
    let steps = |steps: Steps| match steps {
        Steps::Once => 1,
        Steps::Length | Steps::UntilEnd => request.extent.length,
        Steps::Nodes => 0,
    };
    let blocks = &cells.served(request.model).model.blocks;
    let lines: u32 = blocks.iter().map(|block| steps(block.steps)).sum();
    i64::from(cells.graph_len(request.slot) + lines)
}

/// Returns the next bucket in turn with a set in it: a full one, or one whose oldest request has
/// waited for the window.
fn next_bucket(cells: &Cells<Sets>, now: Time, device: DeviceId) -> Option<(ModelId, usize)> {
    let groups = &cells.groups;
    let ((model, bucket), count) = (groups.last, groups.models.len());
    let known = |model: usize| {
        let id = ModelId(model as u16);
        Some((id, cells.find(id).filter(|served| served.may_run_on(device))?, groups.model(id)))
    };
    if let Some((id, served, own)) = known(model) {
        let full = |list: &List| list.len() >= served.max_batch;
        if own.rules.drains && own.buckets.get(bucket).is_some_and(full) {
            return Some((id, bucket));
        }
    }
    // The order is the rest of this model's buckets, the other models, and then the earlier buckets
    // of this model.
    let some = |model: usize, range: std::ops::Range<usize>| {
        let (id, served, own) = known(model)?;
        let end = range.end.min(own.used);
        let ripe = |list: &List| {
            let waited = ripe_at(cells, own, list).is_some_and(|at| at <= now);
            waited || (!list.is_empty() && list.len() >= served.max_batch)
        };
        Some((id, (range.start..end).find(|&bucket| ripe(&own.buckets[bucket]))?))
    };
    some(model, bucket + 1..BUCKETS)
        .or_else(|| (1..count).find_map(|more| some((model + more) % count, 0..BUCKETS)))
        .or_else(|| some(model, 0..bucket + 1))
}

/// Returns the time at which the oldest request of a bucket has waited for the window.
fn ripe_at(cells: &Cells<Sets>, model: &SetModel, bucket: &List) -> Option<Time> {
    Some(cells.request(RequestSlot(bucket.front()?)).arrived + model.rules.window)
}

/// Sets the time at which the next bucket becomes ripe while a device is idle. A bucket that is
/// ripe already waits for something else, which is an event of its own.
pub(crate) fn await_next(cells: &mut Cells<Sets>, now: Time) {
    let groups = &cells.groups;
    let free = |device: DeviceId| cells.is_present(device) && cells.holds(device) == 0;
    let idle = cells.device_ids().any(|id| free(id) && groups.devices[id.index()].set.is_none());
    let waits = |model: &&SetModel| idle && model.rules.window > Nanos::ZERO;
    let models = groups.models.iter().flatten().filter(waits);
    let times =
        models.flat_map(|model| model.buckets[..model.used].iter().filter_map(|bucket| ripe_at(cells, model, bucket)));
    cells.groups.ripens = times.filter(|&at| at > now).min().unwrap_or(Time::NEVER);
}

/// Returns the state of a model.
fn model_of(models: &mut [Option<SetModel>], id: ModelId) -> &mut SetModel {
    models[id.index()].as_mut().expect("a model stays while its requests live")
}
