//! The history of a run: calls, batches and changes, put together from the entries of a recording
//! or of the flight recorder. It answers what ran when, in which batch, and ([`causes`]) why a call
//! was late.
//!
//! A live page keeps the last seconds and forgets the rest; a recording is read whole. Both number
//! calls and tasks in the order of their beginning, and never use a number again. Of recordings
//! without [`Aside`]s the outcomes are those that the scheduler decided.

mod cause;
pub mod causes;
mod offered;
mod pauses;
mod records;
#[cfg(test)]
mod tests;

pub use records::{CallReason, CallRecord, ModelRecord, ReasonRecord, RefusalRecord, TaskRecord};
pub use ripieno_sched::Outcome as TaskOutcome;

use crate::record::flight::{Aside, FlightEntry, RunWorld};
use crate::{Ending, Failure, RecordedEvents, ReplayError};
use ripieno_base::{DeviceId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::Model;
use ripieno_sched::{Action, Control, CostScale, Event, Reason, Request, WaitGain, Why};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::Duration;

/// Largest number of calls that are kept, some 2 GB.
const MOST_CALLS: usize = 1 << 23;

/// Shortest span without an entry that is kept as a pause.
const PAUSE: Nanos = Nanos::from_millis(2);

/// Calls, tasks and models of a run.
#[derive(Default)]
pub struct History {
    shards: Vec<ShardHistory>,
    /// Entries of each sub-cluster; without a cluster there is one.
    sub_clusters: Vec<SubClusterTimes>,
    models: Vec<ModelRecord>,
    by_name: HashMap<String, usize>,
    calls: VecDeque<CallRecord>,
    first_call: u64,
    tasks: VecDeque<TaskRecord>,
    first_task: u64,
    refusals: VecDeque<RefusalRecord>,
    reasons: VecDeque<ReasonRecord>,
    /// Spans in which the process did not run.
    stalls: VecDeque<(Time, Time)>,
    /// Time of the last entry.
    now: Time,
}

/// Times of the entries of a sub-cluster.
#[derive(Default)]
struct SubClusterTimes {
    /// Time of the last entry.
    last: Time,
    /// Spans of at least [`PAUSE`] without an entry.
    pauses: VecDeque<(Time, Time)>,
}

/// State of one scheduler.
#[derive(Default)]
struct ShardHistory {
    sub_cluster: usize,
    world: RunWorld,
    /// Call of each slot, and the rows of its part there.
    slots: HashMap<RequestSlot, (u64, u32)>,
    in_flight: HashMap<TaskId, u64>,
    /// The call whose requests come next, and their number.
    coming: Option<(u64, u32)>,
}

impl History {
    /// Creates a history that begins with these worlds, one of each shard. Each sub-cluster has as
    /// many shards as the others; without a cluster there is one sub-cluster.
    pub fn new(worlds: Vec<RunWorld>, sub_clusters: usize) -> History {
        let mut history = History::default();
        let shards = worlds.len().div_ceil(sub_clusters.max(1)).max(1);
        for (at, world) in worlds.into_iter().enumerate() {
            for (_, model) in world.models() {
                history.load(model, None);
            }
            history.push_shard(ShardHistory { sub_cluster: at / shards, world, ..ShardHistory::default() });
        }
        history
    }

    fn push_shard(&mut self, shard: ShardHistory) {
        let sub_clusters = self.sub_clusters.len().max(shard.sub_cluster + 1);
        self.sub_clusters.resize_with(sub_clusters, SubClusterTimes::default);
        self.shards.push(shard);
    }

    /// Reads a recording.
    pub fn read(path: &Path) -> Result<History, ReplayError> {
        let mut events = RecordedEvents::open(path)?;
        let header = events.header();
        let worlds = vec![RunWorld::new(header.setup.devices); header.shards];
        let mut history = History::new(worlds, header.sub_clusters);
        let begins = header.begins;
        while let Some((shard, now, entry)) = events.next_entry()? {
            let ahead = begins.is_some_and(|begins| now < begins);
            history.add(shard, now, &entry);
            if ahead {
                history.models.iter_mut().for_each(|model| model.loaded = None);
            }
            if history.calls.len() > MOST_CALLS {
                break;
            }
        }
        Ok(history)
    }

    /// Adds the next entry of a shard.
    pub fn add(&mut self, shard: usize, now: Time, entry: &FlightEntry) {
        while shard >= self.shards.len() {
            self.push_shard(ShardHistory::default());
        }
        let times = &mut self.sub_clusters[self.shards[shard].sub_cluster];
        // The first entries describe the world before.
        if now - times.last >= PAUSE && times.last > Time::ORIGIN {
            times.pauses.push_back((times.last, now));
        }
        times.last = times.last.max(now);
        self.now = self.now.max(now);
        match entry {
            FlightEntry::Event(event) => self.event(shard, now, event),
            FlightEntry::Aside(aside) => self.aside(shard, now, *aside),
        }
    }

    /// Forgets calls, tasks and refusals that began before this time.
    pub fn forget_before(&mut self, time: Time) {
        while self.calls.front().is_some_and(|call| call.admitted < time) {
            self.calls.pop_front();
            self.first_call += 1;
        }
        while self.tasks.front().is_some_and(|task| task.decided < time) {
            self.tasks.pop_front();
            self.first_task += 1;
        }
        while self.refusals.front().is_some_and(|refusal| refusal.at < time) {
            self.refusals.pop_front();
        }
        while self.reasons.front().is_some_and(|reason| reason.at < time) {
            self.reasons.pop_front();
        }
        for SubClusterTimes { pauses, .. } in &mut self.sub_clusters {
            while pauses.front().is_some_and(|(_, end)| *end < time) {
                pauses.pop_front();
            }
        }
        while self.stalls.front().is_some_and(|(_, end)| *end < time) {
            self.stalls.pop_front();
        }
        for shard in &mut self.shards {
            shard.slots.retain(|_, (call, _)| *call >= self.first_call);
        }
    }

    /// Time of the last entry.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Time of the first call or task.
    pub fn from(&self) -> Time {
        let call = self.calls.front().map_or(Time::NEVER, |call| call.arrived);
        call.min(self.tasks.front().map_or(Time::NEVER, |task| task.decided)).min(self.now)
    }

    /// The models by index.
    pub fn models(&self) -> &[ModelRecord] {
        &self.models
    }

    /// Returns the index of a model.
    pub fn model_named(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The calls in the order of their arrival at the scheduler.
    pub fn calls(&self) -> impl DoubleEndedIterator<Item = &CallRecord> + ExactSizeIterator {
        self.calls.iter()
    }

    /// Returns the call with this number.
    pub fn call(&self, number: u64) -> Option<&CallRecord> {
        self.calls.get(usize::try_from(number.checked_sub(self.first_call)?).ok()?)
    }

    /// The tasks in the order of their decisions.
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = &TaskRecord> + ExactSizeIterator {
        self.tasks.iter()
    }

    /// Returns the task with this number.
    pub fn task(&self, number: u64) -> Option<&TaskRecord> {
        self.tasks.get(usize::try_from(number.checked_sub(self.first_task)?).ok()?)
    }

    /// The refusals before the scheduler.
    pub fn refusals(&self) -> impl Iterator<Item = &RefusalRecord> {
        self.refusals.iter()
    }

    /// The reasons of decisions, by time. Recordings of policies that give no reasons have none.
    pub fn reasons(&self) -> impl Iterator<Item = &ReasonRecord> {
        self.reasons.iter()
    }

    /// Returns a reason in words.
    pub fn reason_text(&self, why: CallReason) -> String {
        match why {
            CallReason::Waited(WaitGain::FullerBatch) => "waited for a fuller batch".to_owned(),
            CallReason::Waited(WaitGain::EvenSpacing) => "waited for even spacing of batches".to_owned(),
            CallReason::Waited(WaitGain::LastDevice) => "left the last free device to a tighter model".to_owned(),
            CallReason::LostTo(model) => format!("a batch of {} went first", self.models[model].model.name),
            CallReason::Refused(_) => "refused: its forecast was late".to_owned(),
        }
    }

    /// The reasons of decisions in a span.
    fn reasons_between(&self, from: Time, to: Time) -> impl Iterator<Item = &ReasonRecord> {
        let first = self.reasons.partition_point(|reason| reason.at < from);
        self.reasons.range(first..).take_while(move |reason| reason.at <= to)
    }

    /// Returns the devices that serve, with their latency in percent of the profile.
    pub fn devices(&self) -> Vec<(DeviceId, u32)> {
        (0..self.sub_clusters.len()).flat_map(|sub_cluster| self.devices_of(sub_cluster)).collect()
    }

    /// Returns the devices of a sub-cluster that serve, with their latency in percent of the
    /// profile.
    pub fn devices_of(&self, sub_cluster: usize) -> Vec<(DeviceId, u32)> {
        // Its shards share the devices.
        let shard = self.shards.iter().find(|shard| shard.sub_cluster == sub_cluster);
        shard.map_or_else(Vec::new, |shard| shard.world.devices().collect())
    }

    /// Returns the number of sub-clusters; 1 without a cluster.
    pub fn sub_clusters(&self) -> usize {
        self.sub_clusters.len()
    }

    fn load(&mut self, model: &Model, loaded: Option<Time>) {
        let record = ModelRecord { model: model.clone(), loaded };
        match self.by_name.get(&model.name) {
            Some(&at) => self.models[at] = record,
            None => {
                self.by_name.insert(model.name.clone(), self.models.len());
                self.models.push(record);
            }
        }
    }

    /// Returns the index of the model that has this id in a shard.
    fn model_index(&self, shard: usize, id: ripieno_base::ModelId) -> Option<usize> {
        self.model_named(&self.shards[shard].world.model(id)?.name)
    }

    fn aside(&mut self, shard: usize, now: Time, aside: Aside) {
        match aside {
            Aside::Call { lead, model, parts, deadline, tag } => {
                let Some(model) = self.model_index(shard, model) else { return };
                let call = CallRecord::arriving(now, model, self.shards[shard].sub_cluster);
                let number = self.push_call(CallRecord { deadline, tag, ..call });
                self.shards[shard].coming = Some((number, parts));
                self.shards[shard].slots.insert(lead, (number, 0));
            }
            Aside::Ended { lead, ending } => {
                let number = self.shards[shard].slots.get(&lead).copied();
                if let Some(call) = number.and_then(|(number, _)| self.call_mut(number)).filter(|call| !call.told) {
                    (call.ended, call.told) = (Some((now, ending)), true);
                }
            }
            Aside::Ran { task, started, finished, rerun } => {
                let number = self.shards[shard].in_flight.get(&task).copied();
                if let Some(task) = number.and_then(|number| self.task_mut(number)) {
                    (task.started, task.finished, task.rerun) = (started, Some(finished), rerun);
                }
            }
            Aside::Refused { model, why } => {
                if let Some(model) = self.model_index(shard, model) {
                    self.refusals.push_back(RefusalRecord { model, at: now, why });
                }
            }
            Aside::Stalled { from, to } => self.stalls.push_back((from, to)),
            Aside::Decided(reason) => self.reasons.extend(self.reason(shard, now, reason)),
        }
    }

    /// Returns the record of a reason; `None` if its requests came before the history.
    fn reason(&self, shard: usize, at: Time, reason: Reason) -> Option<ReasonRecord> {
        let call_of = |slot: RequestSlot| self.call(self.shards[shard].slots.get(&slot)?.0);
        let (request, why) = match reason {
            Reason::Waited { request, gain, .. } => (request, CallReason::Waited(gain)),
            Reason::Lost { request, to } => {
                // The scheduler takes each shape for a model; here no model waits for itself.
                let winner = call_of(to)?.model;
                if winner == call_of(request)?.model {
                    return None;
                }
                (request, CallReason::LostTo(winner))
            }
            Reason::Refused { request, end } => {
                (request, CallReason::Refused((end - call_of(request)?.deadline).max(Nanos::ZERO)))
            }
        };
        let call = call_of(request)?;
        Some(ReasonRecord { at, call: call.number, model: call.model, why })
    }

    /// Adds a call and returns its number.
    fn push_call(&mut self, call: CallRecord) -> u64 {
        let number = self.first_call + self.calls.len() as u64;
        self.calls.push_back(CallRecord { number, ..call });
        number
    }

    fn event(&mut self, shard: usize, now: Time, event: &Event) {
        match event {
            Event::Request(request) => self.request(shard, now, request),
            Event::TaskDone { task, outcome, .. } => {
                let Some(number) = self.shards[shard].in_flight.remove(task) else { return };
                if let Some(task) = self.task_mut(number) {
                    task.outcome = Some(*outcome);
                    task.finished = task.finished.or(Some(now));
                }
            }
            Event::Control(control) => {
                self.shards[shard].world.apply(control);
                if let Control::ModelLoaded(_, model) = control {
                    self.load(model, Some(now));
                }
            }
            Event::Settle { actions, members, .. } => self.settle(shard, now, actions, members),
            Event::Graph { .. } | Event::Grant(_) => {}
        }
    }

    fn request(&mut self, shard: usize, now: Time, request: &Request) {
        let number = match self.shards[shard].coming.take() {
            Some((number, parts)) => {
                self.shards[shard].coming = (parts > 1).then(|| (number, parts - 1));
                number
            }
            None => {
                let Some(model) = self.model_index(shard, request.model) else { return };
                let call = CallRecord::arriving(now, model, self.shards[shard].sub_cluster);
                self.push_call(CallRecord { deadline: request.deadline, ..call })
            }
        };
        self.shards[shard].slots.insert(request.slot, (number, request.rows));
        if let Some(call) = self.call_mut(number) {
            call.arrived = request.arrived;
            (call.client, call.priority, call.cost) =
                (request.class.client, request.class.priority, request.class.cost);
            call.rows += request.rows;
            call.extent = request.extent;
        }
    }

    fn settle(&mut self, shard: usize, now: Time, actions: &[Action], members: &[Vec<RequestSlot>]) {
        let mut members = members.iter();
        for action in actions {
            match *action {
                Action::Start { .. } => {
                    let Some(members) = members.next() else { return };
                    self.start(shard, now, action, members);
                }
                Action::Finish { request } => self.decided_end(shard, now, request, None),
                Action::Reject { request, why } => self.decided_end(shard, now, request, Some(why)),
                Action::Cancel { .. } => {}
            }
        }
    }

    fn start(&mut self, shard: usize, now: Time, action: &Action, members: &[RequestSlot]) {
        let Action::Start { task, model: id, block, device, lane, length, .. } = *action else { return };
        let Some(model) = self.model_index(shard, id) else { return };
        let number = self.first_task + self.tasks.len() as u64;
        self.shards[shard].in_flight.insert(task, number);
        let unfolds = self.models[model].model.walk.is_unfolded();
        let (mut rows, mut calls) = (0, Vec::with_capacity(members.len()));
        for slot in members {
            let Some(&(call, of_part)) = self.shards[shard].slots.get(slot) else { continue };
            if calls.last() != Some(&call) && !calls.contains(&call) {
                calls.push(call);
            }
            rows += if unfolds { 1 } else { of_part };
        }
        let record = &self.models[model].model;
        let most = record.blocks.get(block.index()).map_or(1, |block| block.max_batch() as u32);
        let rows = rows.clamp(1, most.max(1));
        let profiled = record.blocks.get(block.index()).map_or(Nanos::ZERO, |block| block.cost(rows as usize, length));
        let mut cost = CostScale::PROFILED;
        for &call in &calls {
            if let Some(call) = self.call_mut(call) {
                call.tasks.push(number);
                cost = call.cost;
            }
        }
        // Requests of different cost share no batch.
        let profiled = cost.of(profiled);
        let (decided, started) = (now, now);
        self.tasks.push_back(TaskRecord {
            number,
            model,
            sub_cluster: self.shards[shard].sub_cluster,
            block,
            device,
            lane,
            length,
            rows,
            calls,
            decided,
            started,
            finished: None,
            profiled,
            outcome: None,
            rerun: false,
        });
    }

    /// Notes the end of a request as the scheduler decided it, unless its client's answer is known.
    fn decided_end(&mut self, shard: usize, now: Time, slot: RequestSlot, why: Option<Why>) {
        let number = self.shards[shard].slots.get(&slot).copied();
        let call = number.and_then(|(number, _)| self.call_mut(number)).filter(|call| !call.told);
        let Some(call) = call else { return };
        let late = now > call.deadline;
        let ending = match why {
            None if late => Ending::Late,
            None => Ending::Ok,
            Some(Why::Cancelled) if late => Ending::Expired,
            Some(why) => Failure::of_core(why, || Duration::ZERO).ending(),
        };
        call.ended = Some((now, ending));
    }

    fn call_mut(&mut self, number: u64) -> Option<&mut CallRecord> {
        self.calls.get_mut(usize::try_from(number.checked_sub(self.first_call)?).ok()?)
    }

    fn task_mut(&mut self, number: u64) -> Option<&mut TaskRecord> {
        self.tasks.get_mut(usize::try_from(number.checked_sub(self.first_task)?).ok()?)
    }
}
