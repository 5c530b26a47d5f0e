//! The tasks of a recording: what the devices did with their time, and how late the scheduler heard of it.
//!
//! A task could begin once its lane was free, and should have ended as soon as its profile says, by the rule by which lanes
//! share a device; earlier if the scheduler heard of its end before. What lies between that end and the report are threads
//! that woke up late, processors that others used, and work that is not in the profile.

use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, TaskId, Time};
use ripieno_model::{Block, ExpectedEnds, LaneTask};
use ripieno_sched::{Action, Limits, Outcome};
use std::collections::HashMap;

/// Tasks of a recording, which take up to 2 GB of memory.
const MOST_TASKS: usize = 1 << 25;

/// A batch that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedBatch {
    pub(super) model: ModelId,
    pub(super) device: DeviceId,
    pub(super) rows: u32,
    pub(super) began: Time,
    pub(super) ended: Time,
    /// When its end was reported; none of a task that did not come to it.
    heard: Option<Time>,
}

/// Who is in a task.
#[derive(Debug)]
pub(super) struct TaskMembers {
    /// Where the model stands.
    pub(super) model: usize,
    /// Where the requests stand.
    pub(super) members: Vec<usize>,
    /// Which node each runs; empty if each runs its first.
    pub(super) nodes: Vec<u32>,
}

/// A batch on its device.
#[derive(Debug)]
pub(super) struct RecordedTask {
    pub(super) of: TaskMembers,
    pub(super) block: BlockId,
    rows: u32,
    device: DeviceId,
    lane: LaneId,
    /// Not before this.
    earliest: Time,
    /// How long it takes alone.
    alone: Nanos,
}

/// The devices of a recording.
#[derive(Debug)]
pub(super) struct RecordedTasks {
    in_flight: HashMap<TaskId, RecordedTask>,
    batches: Vec<RecordedBatch>,
    limits: Limits,
    /// When the latest task of each lane ended.
    free: HashMap<(DeviceId, LaneId), Time>,
    /// By device, where it has several lanes.
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

    /// A batch of so many rows, padded to this length, was started.
    pub(super) fn start(
        &mut self,
        now: Time,
        action: &Action,
        (spec, rows, length): (&Block, usize, u32),
        of: TaskMembers,
    ) -> Result<(), String> {
        let Action::Start { task: id, block, device, lane, not_before, .. } = *action else { return Ok(()) };
        if device.index() >= self.limits.devices || lane.index() >= self.limits.lanes {
            return Err(format!("{id:?} starts on {lane:?} of {device:?}, which the first line does not name"));
        }
        let (earliest, alone) = (now.max(not_before), spec.cost(rows, length));
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

    /// A task was reported.
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

    /// The end of each task that came to it, in order, and when it was reported.
    pub(super) fn reports(&self) -> Vec<(Time, Time)> {
        let each = self.batches.iter().filter_map(|batch| batch.heard.map(|heard| (batch.ended, heard)));
        let mut each: Vec<_> = each.collect();
        each.sort_unstable();
        each
    }

    /// Forgets how late tasks of these models were reported.
    pub(super) fn forget_reports(&mut self, of: impl Fn(ModelId) -> bool) {
        self.batches.iter_mut().filter(|batch| of(batch.model)).for_each(|batch| batch.heard = None);
    }
}
