//! The history of a run: calls, batches and changes, put together from the entries of a recording
//! or of the flight recorder. It answers what ran when, in which batch, and ([`causes`]) why a call
//! was late.
//!
//! A live page keeps the last seconds and forgets the rest; a recording is read whole. Both number
//! calls and tasks in the order of their beginning, and never use a number again. Of recordings
//! without [`Aside`]s the outcomes are those that the scheduler decided.

mod cause;
pub mod causes;
mod pauses;
#[cfg(test)]
mod tests;

pub use ripieno_sched::Outcome as TaskOutcome;

use crate::record::flight::{Aside, FlightEntry, RefusedWhy, RunWorld};
use crate::{Ending, RecordedEvents, ReplayError};
use ripieno_base::{BlockId, DeviceId, LaneId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Model};
use ripieno_sched::{Action, Control, CostScale, Event, Outcome, Reason, Request, WaitGain, Why};
use std::collections::{HashMap, VecDeque};
use std::path::Path;

/// Largest number of calls that are kept, some 2 GB.
const MOST_CALLS: usize = 1 << 23;

/// Shortest span without an entry that is kept as a pause.
const PAUSE: Nanos = Nanos::from_millis(2);

/// A model of the run, in all its loads.
#[derive(Clone, Debug)]
pub struct ModelRecord {
    /// The model as it was loaded last, with the profile of that time.
    pub model: Model,
    /// Time of that load; `None` if it lies before the history.
    pub loaded: Option<Time>,
}

/// A call of a client.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// Number in the history, from 0.
    pub number: u64,
    /// Index of its model.
    pub model: usize,
    /// Client of the request; 0 if clients are not distinguished.
    pub client: u16,
    /// Priority of the request.
    pub priority: u8,
    /// Cost of the request relative to the model's profile.
    pub cost: CostScale,
    /// Time at which it reached the server.
    pub arrived: Time,
    /// Time at which the scheduler received it.
    pub admitted: Time,
    /// Time at which the answer was due.
    pub deadline: Time,
    /// Number of rows.
    pub rows: u32,
    /// Length of its walk.
    pub extent: Extent,
    /// Hash of the client's own id; 0 without one.
    pub tag: u64,
    /// Numbers of its tasks.
    pub tasks: Vec<u64>,
    /// Time and way of its end; `None` while it lives.
    pub ended: Option<(Time, Ending)>,
    /// Whether the end is what its client learned, and no guess from the scheduler's decision.
    told: bool,
}

/// A batch.
#[derive(Clone, Debug)]
pub struct TaskRecord {
    /// Number in the history, from 0.
    pub number: u64,
    /// Index of its model.
    pub model: usize,
    /// The block that it ran.
    pub block: BlockId,
    /// Device of the task.
    pub device: DeviceId,
    /// Lane of the device.
    pub lane: LaneId,
    /// Length to which its members were padded.
    pub length: u32,
    /// Number of rows, or of cells where walks unfold.
    pub rows: u32,
    /// Numbers of the members' calls.
    pub calls: Vec<u64>,
    /// Time of the decision.
    pub decided: Time,
    /// Start of the execution; the time of the decision while it has not been reported.
    pub started: Time,
    /// End of the execution; `None` until it is reported.
    pub finished: Option<Time>,
    /// Time that the profile of the load allows on a device of nominal speed.
    pub profiled: Nanos,
    /// Outcome of the task; `None` until it is reported.
    pub outcome: Option<Outcome>,
    /// True if the task failed and was run again in parts.
    pub rerun: bool,
}

impl TaskRecord {
    /// Duration of the execution; zero until it is reported.
    pub fn took(&self) -> Nanos {
        self.finished.map_or(Nanos::ZERO, |finished| finished - self.started)
    }
}

/// A refusal before the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct RefusalRecord {
    /// Index of the model.
    pub model: usize,
    /// Time of the refusal.
    pub at: Time,
    /// The reason.
    pub why: RefusedWhy,
}

/// The reason of a decision about a call.
#[derive(Clone, Copy, Debug)]
pub struct ReasonRecord {
    /// Time of the decision.
    pub at: Time,
    /// Number of the call that waited or was refused.
    pub call: u64,
    /// Index of its model.
    pub model: usize,
    /// The reason.
    pub why: CallReason,
}

/// The reason for which a call waited or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallReason {
    /// A device was free, but waiting gained more.
    Waited(WaitGain),
    /// A batch of the model of this index went first.
    LostTo(usize),
    /// It would have been answered this long after its deadline.
    Refused(Nanos),
}

/// Calls, tasks and models of a run.
#[derive(Default)]
pub struct History {
    shards: Vec<ShardHistory>,
    models: Vec<ModelRecord>,
    by_name: HashMap<String, usize>,
    calls: VecDeque<CallRecord>,
    first_call: u64,
    tasks: VecDeque<TaskRecord>,
    first_task: u64,
    refusals: VecDeque<RefusalRecord>,
    reasons: VecDeque<ReasonRecord>,
    /// Spans of at least [`PAUSE`] without an entry of any shard.
    pauses: VecDeque<(Time, Time)>,
    /// Spans in which the process did not run.
    stalls: VecDeque<(Time, Time)>,
    /// Time of the last entry.
    now: Time,
}

/// State of one scheduler.
#[derive(Default)]
struct ShardHistory {
    world: RunWorld,
    /// Call of each slot, and the rows of its part there.
    slots: HashMap<RequestSlot, (u64, u32)>,
    in_flight: HashMap<TaskId, u64>,
    /// The call whose requests come next, and their number.
    coming: Option<(u64, u32)>,
}

impl History {
    /// Creates a history that begins with these worlds, one of each shard.
    pub fn new(worlds: Vec<RunWorld>) -> History {
        let mut history = History::default();
        for world in worlds {
            for (_, model) in world.models() {
                history.load(model, None);
            }
            history.shards.push(ShardHistory { world, ..ShardHistory::default() });
        }
        history
    }

    /// Reads a recording.
    pub fn read(path: &Path) -> Result<History, ReplayError> {
        let mut events = RecordedEvents::open(path)?;
        let header = events.header();
        let mut history = History::new(vec![RunWorld::new(header.setup.devices); header.shards]);
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
        if shard >= self.shards.len() {
            self.shards.resize_with(shard + 1, ShardHistory::default);
        }
        // The first entries describe the world before.
        if now - self.now >= PAUSE && self.now > Time::ORIGIN {
            self.pauses.push_back((self.now, now));
        }
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
        while self.pauses.front().is_some_and(|(_, end)| *end < time) {
            self.pauses.pop_front();
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
        self.shards.first().map_or_else(Vec::new, |shard| shard.world.devices().collect())
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
                let number = self.push_call(now, model, deadline, tag);
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

    fn push_call(&mut self, now: Time, model: usize, deadline: Time, tag: u64) -> u64 {
        let number = self.first_call + self.calls.len() as u64;
        self.calls.push_back(CallRecord {
            number,
            model,
            client: 0,
            priority: 0,
            cost: CostScale::PROFILED,
            arrived: now,
            admitted: now,
            deadline,
            rows: 0,
            extent: Extent::ONE,
            tag,
            tasks: Vec::new(),
            ended: None,
            told: false,
        });
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
                self.push_call(now, model, request.deadline, 0)
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
            Some(Why::Cancelled) => Ending::Cancelled,
            Some(Why::Expired) => Ending::Expired,
            Some(Why::Hopeless | Why::Overload) => Ending::Hopeless,
            Some(Why::Failed) => Ending::Failed,
            Some(Why::Unloaded) => Ending::Unloaded,
            Some(Why::Share) => Ending::Share,
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
