//! The tasks of a session until they end: those that wait for rows, and those that run.
//!
//! Tasks of a lane start and end in the order in which they came. Each starts once the rows of all
//! its members have arrived or are known not to come. A member whose rows do not come, or do not
//! fit the model, is excluded from the batch.
//!
//! A task waits for a member's rows until the member's deadline, and for none whose model's rows
//! last took its frontend longer than the member has left. Such a member's rows are pulled all the
//! same, which measures the frontend's link anew. So a slow link costs a device one wait.

use super::slots::SlotPool;
use crate::plane::{MemberEnd, RunMember, RunTask};
use ripieno_base::{LaneId, ModelId, RequestSlot, TaskId};
use ripieno_executor::{MemberProgress, RemoteRows, RequestEntry, Task, TaskMember, next_walk};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All tasks of a session.
pub(super) struct SessionTasks {
    held: HashMap<TaskId, HeldTask>,
    lanes: Vec<LaneTasks>,
    /// Number of the last pull.
    tags: u64,
    /// The member that a pull is for.
    pulls: HashMap<u64, (TaskId, usize)>,
    /// The frontends of pulls that were given up, until they are answered.
    given_up: HashMap<u64, u32>,
    /// The time that the rows of a frontend's requests to a model last took to come.
    row_times: HashMap<(u32, ModelId), RowTime>,
    /// The pulls that no task waits for: they only measure.
    probes: HashMap<u64, PullProbe>,
    /// The latest request in each slot of the scheduler.
    slots: HashMap<RequestSlot, SlotRequest>,
    pool: Arc<SlotPool>,
}

/// Time after which a measurement of rows no longer counts: it may have been an exception.
const ROW_TIME_VALID: Duration = Duration::from_secs(10);

/// A measurement of the time that rows take to come.
#[derive(Clone, Copy)]
struct RowTime {
    /// The time; [`Duration::MAX`] while the rows are overdue.
    took: Duration,
    /// Time of the measurement.
    at: Instant,
}

impl RowTime {
    fn measured(took: Duration) -> RowTime {
        RowTime { took, at: Instant::now() }
    }

    /// Returns whether rows are expected to take longer than `left`.
    fn exceeds(&self, left: Duration) -> bool {
        self.took >= left && (self.took == Duration::MAX || self.at.elapsed() < ROW_TIME_VALID)
    }
}

/// A pull that no task waits for.
struct PullProbe {
    frontend: u32,
    model: ModelId,
    began: Instant,
}

/// The tasks of a lane.
#[derive(Default)]
struct LaneTasks {
    /// Those that have not started, in order.
    waiting: VecDeque<TaskId>,
    /// Number of those that the device has, or whose ends are not sent.
    started: usize,
}

/// The request in a slot of the scheduler.
struct SlotRequest {
    /// The process's slot for it.
    own_slot: RequestSlot,
    /// The scheduler's number of the walk.
    walk: u64,
    /// This process's number. Devices compare the walks of all schedulers that they ever followed,
    /// and each of them counts on its own.
    own_walk: u64,
    /// The frontend of the request: only the first task of a walk names it.
    origin: Option<RemoteRows>,
}

/// A task, with the state of its members.
pub(super) struct HeldTask {
    pub(super) run: RunTask,
    came: Instant,
    /// Time at which the last of its rows had been fetched; `None` if there were none to fetch.
    pub(super) fetched: Option<Instant>,
    members: Vec<MemberInputs>,
    /// The origin of each member.
    origins: Vec<Option<RemoteRows>>,
    /// Number of members whose rows have not arrived.
    missing: usize,
}

/// The state of a member's inputs.
pub(super) enum MemberInputs {
    /// The device has the request already.
    Held,
    /// The inputs have been pulled and have not arrived.
    Missing,
    /// The inputs are here, this long after the task.
    Here(Arc<RequestEntry>, Duration),
    /// The request ends without a run.
    Excluded(MemberEnd),
}

/// The next step for a task at the head of its lane.
pub(super) enum NextTask {
    Submit(Task),
    /// All members are excluded, and no task of the lane is before it.
    Empty(TaskId),
}

impl SessionTasks {
    /// Returns an empty table for this number of lanes. Numbers of pulls begin above `tags`.
    pub(super) fn new(lanes: usize, tags: u64, pool: Arc<SlotPool>) -> SessionTasks {
        let (held, pulls, given_up, row_times, probes, slots) = Default::default();
        let mut tasks = SessionTasks { held, lanes: Vec::new(), tags, pulls, given_up, row_times, probes, slots, pool };
        tasks.open(lanes);
        tasks
    }

    /// Sets the number of lanes.
    pub(super) fn open(&mut self, lanes: usize) {
        self.lanes.resize_with(lanes, LaneTasks::default);
    }

    /// Inserts a task; returns false if the lane does not exist or the id is taken.
    pub(super) fn insert(&mut self, mut run: RunTask) -> bool {
        let Some(lane) = self.lanes.get_mut(run.lane.index()) else { return false };
        if self.held.contains_key(&run.task) {
            return false;
        }
        lane.waiting.push_back(run.task);
        let brings = |origin: bool| if origin { MemberInputs::Missing } else { MemberInputs::Held };
        let members: Vec<MemberInputs> = run.members.iter().map(|member| brings(member.origin.is_some())).collect();
        let missing = members.iter().filter(|inputs| matches!(inputs, MemberInputs::Missing)).count();
        let origins = run.members.iter_mut().map(|member| self.enter(member)).collect();
        self.held.insert(run.task, HeldTask { run, came: Instant::now(), fetched: None, members, origins, missing });
        true
    }

    /// Notes the request of a member and gives it this process's slot and number of the walk.
    /// Returns its origin.
    fn enter(&mut self, member: &mut RunMember) -> Option<RemoteRows> {
        let (walk, pool) = (member.walk, &self.pool);
        let begin = |own_slot| SlotRequest { own_slot, walk, own_walk: next_walk(), origin: None };
        let known = self.slots.entry(member.slot).or_insert_with(|| begin(pool.take()));
        if known.walk != walk {
            *known = begin(known.own_slot);
        }
        (member.slot, member.walk) = (known.own_slot, known.own_walk);
        known.origin = member.origin.or(known.origin);
        known.origin
    }

    /// Registers a pull of a member's rows and returns its number. A frontend that still owes rows
    /// that were given up is not asked: the member is excluded. So is one whose rows would come too
    /// late, and one pull at a time measures whether they still do.
    pub(super) fn add_pull(&mut self, task: TaskId, member: usize) -> Option<u64> {
        let held = self.held.get(&task)?;
        let RunMember { origin, left_ns, .. } = *held.run.members.get(member)?;
        let (frontend, model, began) = (origin?.frontend, held.run.model, held.came);
        if self.given_up.values().any(|&given_up| given_up == frontend) {
            self.set_inputs(task, member, MemberInputs::lost());
            return None;
        }
        let is_late = |time: &&RowTime| left_ns.is_some_and(|left| time.exceeds(Duration::from_nanos(left)));
        let Some(&RowTime { took, .. }) = self.row_times.get(&(frontend, model)).filter(is_late) else {
            self.tags += 1;
            self.pulls.insert(self.tags, (task, member));
            return Some(self.tags);
        };
        let mut probes = self.probes.values().filter(|probe| (probe.frontend, probe.model) == (frontend, model));
        let probe = probes.next();
        let known = if took < Duration::MAX { took } else { probe.map_or(took, |probe| probe.began.elapsed()) };
        let is_measured = probe.is_some();
        self.set_inputs(task, member, MemberInputs::late(known));
        if is_measured {
            return None;
        }
        self.tags += 1;
        self.probes.insert(self.tags, PullProbe { frontend, model, began });
        Some(self.tags)
    }

    /// Removes a pull and returns the member that it is for. An answer to a pull that was given up
    /// shows that its frontend answers again.
    pub(super) fn take_pull(&mut self, tag: u64) -> Option<(TaskId, usize)> {
        if let Some(answers) = self.given_up.remove(&tag) {
            self.given_up.retain(|_, &mut frontend| frontend != answers);
        }
        if let Some(PullProbe { frontend, model, began }) = self.probes.remove(&tag) {
            self.row_times.insert((frontend, model), RowTime::measured(began.elapsed()));
        }
        let (task, member) = self.pulls.remove(&tag)?;
        if let Some(held) = self.held.get(&task)
            && let Some(origin) = held.run.members[member].origin
        {
            let time = RowTime::measured(held.until(Instant::now()));
            self.row_times.insert((origin.frontend, held.run.model), time);
        }
        Some((task, member))
    }

    /// Excludes the members whose deadlines have passed before their rows came. Returns whether
    /// there were any.
    pub(super) fn exclude_overdue(&mut self, now: Instant) -> bool {
        let (held, mut overdue) = (&self.held, Vec::new());
        self.pulls.retain(|&tag, &mut (task, member)| {
            let Some(held) = held.get(&task) else { return true };
            let RunMember { left_ns, origin, .. } = held.run.members[member];
            let is_overdue = left_ns.is_some_and(|left| held.until(now) >= Duration::from_nanos(left));
            let Some(origin) = origin.filter(|_| is_overdue) else { return true };
            let probe = PullProbe { frontend: origin.frontend, model: held.run.model, began: held.came };
            overdue.push((tag, task, member, probe));
            false
        });
        let any = !overdue.is_empty();
        for (tag, task, member, probe) in overdue {
            self.set_inputs(task, member, MemberInputs::late(now.saturating_duration_since(probe.began)));
            self.row_times.insert((probe.frontend, probe.model), RowTime::measured(Duration::MAX));
            self.probes.insert(tag, probe);
        }
        any
    }

    /// Excludes the members whose rows were not sent `within` this time. Returns their frontends.
    pub(super) fn give_up_inputs(&mut self, now: Instant, within: Duration) -> BTreeSet<u32> {
        let (held, mut late) = (&self.held, Vec::new());
        self.pulls.retain(|&tag, &mut (task, member)| {
            let Some(held) = held.get(&task).filter(|held| held.until(now) >= within) else { return true };
            let origin = held.run.members[member].origin;
            late.extend(origin.map(|origin| (tag, task, member, origin.frontend)));
            false
        });
        let mut frontends = BTreeSet::new();
        for (tag, task, member, frontend) in late {
            self.given_up.insert(tag, frontend);
            frontends.insert(frontend);
            self.set_inputs(task, member, MemberInputs::lost());
        }
        frontends
    }

    /// Iterates over all tasks, waiting and running.
    pub(super) fn all(&self) -> impl Iterator<Item = &HeldTask> {
        self.held.values()
    }

    /// Removes all tasks that have not started.
    pub(super) fn discard_waiting(&mut self) {
        let waiting: Vec<TaskId> = self.lanes.iter_mut().flat_map(|lane| lane.waiting.drain(..)).collect();
        waiting.into_iter().for_each(|task| drop(self.remove(task)));
    }

    pub(super) fn get(&self, task: TaskId) -> Option<&HeldTask> {
        self.held.get(&task)
    }

    /// Sets a member's inputs, once.
    pub(super) fn set_inputs(&mut self, task: TaskId, member: usize, inputs: MemberInputs) {
        let Some(held) = self.held.get_mut(&task) else { return };
        if matches!(held.members.get(member), Some(MemberInputs::Missing)) {
            // The time until rows are given up says nothing of the network.
            held.fetched = if matches!(inputs, MemberInputs::Excluded(_)) { None } else { Some(Instant::now()) };
            held.members[member] = inputs;
            held.missing -= 1;
        }
    }

    /// Excludes the members whose pulls went to a frontend that is lost.
    pub(super) fn on_frontend_lost(&mut self, frontend: u32) {
        self.given_up.retain(|_, &mut silent| silent != frontend);
        self.probes.retain(|_, probe| probe.frontend != frontend);
        self.row_times.retain(|(silent, _), _| *silent != frontend);
        let (held, mut lost) = (&self.held, Vec::new());
        self.pulls.retain(|_, &mut (task, member)| {
            let origin = held.get(&task).and_then(|held| held.run.members[member].origin);
            let is_lost = origin.is_none_or(|origin| origin.frontend == frontend);
            if is_lost {
                lost.push((task, member));
            }
            !is_lost
        });
        lost.into_iter().for_each(|(task, member)| self.set_inputs(task, member, MemberInputs::lost()));
    }

    /// Removes the next task of a lane from the queue, if it may start, or end without a run.
    pub(super) fn next(&mut self, lane: LaneId) -> Option<NextTask> {
        let lane = self.lanes.get_mut(lane.index())?;
        let held = lane.waiting.front().and_then(|task| self.held.get(task)).filter(|held| held.missing == 0)?;
        let next = held.ready();
        match next {
            NextTask::Submit(_) => lane.started += 1,
            NextTask::Empty(_) if lane.started > 0 => return None,
            NextTask::Empty(_) => {}
        }
        lane.waiting.pop_front();
        Some(next)
    }

    /// Notes that the end of a task that had started is sent.
    pub(super) fn end_sent(&mut self, lane: LaneId) {
        self.lanes[lane.index()].started -= 1;
    }

    /// Excludes all members of a task that the device did not take, and puts it back.
    pub(super) fn refuse(&mut self, task: TaskId, cause: &str) {
        let Some(held) = self.held.get_mut(&task) else { return };
        let failed = || MemberInputs::Excluded(MemberEnd::Failed(cause.to_owned()));
        held.members.iter_mut().for_each(|inputs| *inputs = failed());
        let lane = &mut self.lanes[held.run.lane.index()];
        lane.started -= 1;
        lane.waiting.push_front(task);
    }

    /// Returns the number of lanes.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Removes a task that has not started.
    pub(super) fn withdraw(&mut self, task: TaskId) -> Option<HeldTask> {
        let lane = self.held.get(&task)?.run.lane;
        let waiting = &mut self.lanes[lane.index()].waiting;
        let at = waiting.iter().position(|&other| other == task)?;
        waiting.remove(at);
        self.remove(task)
    }

    /// Removes a task that has ended.
    pub(super) fn remove(&mut self, task: TaskId) -> Option<HeldTask> {
        let held = self.held.remove(&task)?;
        if held.missing > 0 {
            self.pulls.retain(|_, &mut (other, _)| other != task);
        }
        Some(held)
    }
}

impl Drop for SessionTasks {
    fn drop(&mut self) {
        self.pool.give_back(self.slots.drain().map(|(_, request)| request.own_slot));
    }
}

impl MemberInputs {
    pub(super) fn lost() -> MemberInputs {
        MemberInputs::Excluded(MemberEnd::Lost("its inputs could not be had of its frontend".to_owned()))
    }

    /// Returns the state of a member whose rows come too late: after this time.
    fn late(took: Duration) -> MemberInputs {
        let ms = u16::try_from(took.as_millis()).unwrap_or(u16::MAX);
        MemberInputs::Excluded(MemberEnd::Late(ms.max(1)))
    }
}

impl HeldTask {
    /// Returns the time from its arrival until an instant.
    pub(super) fn until(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.came)
    }

    /// Returns the origin of a member, and its number of rows.
    pub(super) fn origin(&self, member: usize) -> Option<(RemoteRows, u32)> {
        Some(((*self.origins.get(member)?)?, self.run.members[member].rows))
    }

    /// Returns the time that the pull of a member's inputs took; `None` if it brought none.
    pub(super) fn pulled(&self, member: usize) -> Option<Duration> {
        match self.members.get(member)? {
            MemberInputs::Here(_, took) => Some(*took),
            _ => None,
        }
    }

    /// Iterates over the members that run, by position in the task.
    pub(super) fn running(&self) -> impl Iterator<Item = usize> + '_ {
        let runs = |inputs: &MemberInputs| matches!(inputs, MemberInputs::Held | MemberInputs::Here(..));
        self.members.iter().enumerate().filter(move |(_, inputs)| runs(inputs)).map(|(at, _)| at)
    }

    fn ready(&self) -> NextTask {
        let HeldTask { run, came, members, .. } = self;
        let until = |left: u64| came.checked_add(Duration::from_nanos(left));
        let member = |at: usize| {
            let told = &run.members[at];
            let entry = match &members[at] {
                MemberInputs::Here(entry, _) => Some(Arc::clone(entry)),
                _ => None,
            };
            let until = told.left_ns.and_then(until);
            let RunMember { slot, rows, node, walk, .. } = *told;
            TaskMember { node, walk, until, ..TaskMember::new(slot, rows as usize, entry) }
        };
        let members: Vec<TaskMember> = self.running().map(member).collect();
        if members.is_empty() {
            return NextTask::Empty(run.task);
        }
        let not_before = until(run.wait_ns).filter(|_| run.wait_ns > 0);
        let RunTask { task: id, model, block, lane, length, .. } = *run;
        NextTask::Submit(Task { id, model, block, lane, length, members, not_before })
    }

    /// Returns the result of each member: the device's for those that ran, and the reason for those
    /// that were excluded.
    pub(super) fn ends(&self, progress: &[MemberProgress]) -> Vec<MemberEnd> {
        let mut ran = progress.iter();
        let end = |inputs: &MemberInputs| match inputs {
            MemberInputs::Excluded(end) => end.clone(),
            _ => ran.next().map_or_else(|| MemberEnd::Failed("it did not run".to_owned()), member_end),
        };
        self.members.iter().map(end).collect()
    }
}

fn member_end(progress: &MemberProgress) -> MemberEnd {
    match progress {
        MemberProgress { failed: Some(cause), lost: Some(_), .. } => MemberEnd::Lost(cause.to_string()),
        MemberProgress { failed: Some(cause), .. } => MemberEnd::Failed(cause.to_string()),
        MemberProgress { ended: true, .. } => MemberEnd::Ended,
        MemberProgress { skip, .. } => MemberEnd::Continues(*skip),
    }
}

#[cfg(test)]
mod tests;
