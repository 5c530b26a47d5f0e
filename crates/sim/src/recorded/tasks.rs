//! The tasks of a recording: their device time, and the delay of their reports to the scheduler.
//!
//! A task could begin once its lane was free, and should have ended after its profiled time, by the
//! rule by which lanes share a device. If its end was reported earlier, it ended earlier. The
//! difference between that end and the report is caused by threads that woke up late, shared
//! processors, and work that the profile does not cover.

use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, TaskId, Time};
use ripieno_model::{Block, ExpectedEnds, LaneTask};
use ripieno_sched::{Action, CostScale, Limits, Outcome};
use std::collections::HashMap;

/// Upper bound on the tasks of a recording, which take up to 2 GB of memory.
const MOST_TASKS: usize = 1 << 25;

/// A batch that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedBatch {
    pub(super) model: ModelId,
    pub(super) device: DeviceId,
    pub(super) rows: u32,
    pub(super) began: Time,
    pub(super) ended: Time,
    /// Time of the report of its end; `None` for a task that was lost or failed.
    heard: Option<Time>,
}

/// The members of a task.
#[derive(Clone, Debug)]
pub(super) struct TaskMembers {
    /// Index of the model.
    pub(super) model: usize,
    /// Indices of the requests.
    pub(super) members: Vec<usize>,
    /// The node of each member; empty if each runs its first.
    pub(super) nodes: Vec<u32>,
}

/// The block that a batch runs, its rows, and the length that they are padded to.
pub(super) struct StartedSize<'a> {
    pub(super) spec: &'a Block,
    pub(super) rows: usize,
    pub(super) length: u32,
    /// Cost of the members relative to the profile.
    pub(super) scale: CostScale,
}

/// A batch on its device.
#[derive(Clone, Debug)]
pub(super) struct RecordedTask {
    pub(super) of: TaskMembers,
    pub(super) block: BlockId,
    rows: u32,
    device: DeviceId,
    lane: LaneId,
    /// Earliest start.
    earliest: Time,
    /// Duration of the task alone.
    alone: Nanos,
}

/// The devices of a recording.
#[derive(Clone, Debug)]
pub(super) struct RecordedTasks {
    in_flight: HashMap<TaskId, RecordedTask>,
    batches: Vec<RecordedBatch>,
    limits: Limits,
    /// End of the latest task of each lane.
    free: HashMap<(DeviceId, LaneId), Time>,
    /// Expected ends per device, for devices with several lanes.
    shared: HashMap<DeviceId, ExpectedEnds>,
    most_rows: u32,
}

impl RecordedTasks {
    pub(super) fn new(limits: &Limits) -> RecordedTasks {
        RecordedTasks {
            in_flight: HashMap::new(),
            batches: Vec::new(),
            limits: *limits,
            free: HashMap::new(),
            shared: HashMap::new(),
            most_rows: 0,
        }
    }

    pub(super) fn devices(&self) -> usize {
        self.limits.devices
    }

    pub(super) fn most_rows(&self) -> usize {
        self.most_rows as usize
    }

    pub(super) fn batches(&self) -> &[RecordedBatch] {
        &self.batches
    }

    /// Records the start of a batch.
    pub(super) fn start(
        &mut self,
        now: Time,
        action: &Action,
        size: &StartedSize<'_>,
        of: TaskMembers,
    ) -> Result<(), String> {
        let StartedSize { spec, rows, length, scale } = *size;
        let Action::Start { task: id, block, device, lane, not_before, .. } = *action else { return Ok(()) };
        if device.index() >= self.limits.devices || lane.index() >= self.limits.lanes {
            return Err(format!("{id:?} starts on {lane:?} of {device:?}, which the first line does not name"));
        }
        let (earliest, alone) = (now.max(not_before), scale.of(spec.cost(rows, length)));
        if self.limits.lanes > 1 {
            let share = spec.share(rows, length);
            let due = self.shared.entry(device).or_insert_with(|| ExpectedEnds::new(self.limits.lanes));
            due.start(now, lane, LaneTask { task: id, earliest, alone, share });
        }
        let rows = rows as u32;
        let task = RecordedTask { of, block, rows, device, lane, earliest, alone };
        match self.in_flight.insert(id, task) {
            Some(_) => Err(format!("{id:?} starts, but it has not ended")),
            None => Ok(()),
        }
    }

    /// Records the report of a task.
    pub(super) fn end(&mut self, id: TaskId, now: Time, outcome: Outcome) -> Result<RecordedTask, String> {
        if self.batches.len() == MOST_TASKS {
            return Err(format!("there are more than {MOST_TASKS} batches; cut the recording off before this line"));
        }
        let task = self.in_flight.remove(&id).ok_or_else(|| format!("{id:?} ends, but it has not begun"))?;
        let free = self.free.entry((task.device, task.lane)).or_insert(Time(i64::MIN));
        let (began, due) = match self.shared.get_mut(&task.device) {
            Some(shared) => shared.end(now, id),
            None => (task.earliest.max(*free), task.earliest.max(*free) + task.alone),
        };
        let (began, ended) = (began.min(now), due.min(now));
        *free = ended;
        let heard = (outcome == Outcome::Ok).then_some(now);
        let (model, device, rows) = (ModelId(task.of.model as u16), task.device, task.rows);
        self.most_rows = self.most_rows.max(rows);
        self.batches.push(RecordedBatch { model, device, rows, began, ended, heard });
        Ok(task)
    }

    /// Returns the end of each completed task, in order, and the time of its report.
    pub(super) fn reports(&self) -> Vec<(Time, Time)> {
        let each = self.batches.iter().filter_map(|batch| batch.heard.map(|heard| (batch.ended, heard)));
        let mut each: Vec<_> = each.collect();
        each.sort_unstable();
        each
    }

    /// Forgets the delays of the reports of these models' tasks.
    pub(super) fn forget_reports(&mut self, of: impl Fn(ModelId) -> bool) {
        self.batches.iter_mut().filter(|batch| of(batch.model)).for_each(|batch| batch.heard = None);
    }
}
