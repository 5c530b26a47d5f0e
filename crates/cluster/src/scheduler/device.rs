//! A remote device as the engine sees it: tasks go out as records, and their results come back.
//!
//! Messages of a backend are validated here, since the engine trusts its devices. A task that the
//! device does not hold cannot end, nor can a task before an earlier one of its lane. A task of
//! three members cannot end with two results.
//! Nothing here waits for the network.

use crate::description::RemoteModel;
use crate::offer::OfferList;
use crate::plane::{DecodeError, MemberEnd, Message, PeerLink, RunMember, RunTask, TaskEnd};
use parking_lot::Mutex;
use ripieno_base::{LaneId, ModelId, Nanos, TaskId};
use ripieno_executor::{
    BAD_REQUEST, Device, ExecError, Executor, LoadError, LoadedModel, Loss, MemberProgress, ModelSource, Payload,
    Rerun, Sink, Task, TaskMember, TaskResult,
};
use ripieno_runtime::{DataDelay, DelayEstimate, DelayPercentiles, NetworkDelay};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time after which a request whose inputs could not be fetched may be sent again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Number of batches from which on a backend's delays are planned with.
const MIN_SAMPLES: u32 = 64;

/// The models that a backend offers.
type BackendOffers = Arc<Mutex<OfferList>>;

/// Opens the one device of a backend that has connected.
pub(super) struct RemoteExecutor {
    link: Arc<PeerLink>,
    depth: usize,
    /// Time for which a task waits for its inputs.
    inputs_within: Duration,
    offers: BackendOffers,
    opened: OnceLock<Arc<RemoteState>>,
}

/// State that the device and the reader of its connection share.
pub(super) struct RemoteState {
    link: Arc<PeerLink>,
    sink: Sink,
    in_flight: Mutex<SentTasks>,
    delays: Mutex<DelayEstimates>,
    /// Whether the engine has the device.
    attached: Mutex<bool>,
}

/// The tasks in flight.
#[derive(Default)]
struct SentTasks {
    tasks: HashMap<TaskId, SentTask>,
    /// Number of tasks so far.
    sent: u64,
}

/// A task in flight.
struct SentTask {
    sent: Instant,
    /// Number among all tasks that were sent.
    number: u64,
    lane: LaneId,
    /// True if it was to stop, so that it may end before an earlier one.
    cancelled: bool,
    /// Number of members.
    members: usize,
    /// Number of rows that the backend fetches.
    rows: usize,
}

impl SentTasks {
    /// Removes a task that has ended.
    fn end(&mut self, task: TaskId) -> Result<SentTask, DecodeError> {
        let ended = self.tasks.remove(&task);
        let ended = ended.ok_or_else(|| DecodeError(format!("task {} has ended, which was not there", task.0)))?;
        let is_before = |other: &SentTask| other.lane == ended.lane && other.number < ended.number;
        if !ended.cancelled && self.tasks.values().any(is_before) {
            return Err(DecodeError(format!("task {} has ended before an earlier one of its lane", task.0)));
        }
        Ok(ended)
    }
}

/// The delays of a backend.
#[derive(Default)]
struct DelayEstimates {
    control: DelayEstimate,
    data: DelayEstimate,
    data_per_row: DelayEstimate,
    inputs: DataDelay,
}

/// The measured delays of a backend; `None` for those that have not been measured yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendDelays {
    /// A message to or from the backend.
    pub control: Option<DelayPercentiles>,
    /// The inputs of a batch, from the frontends to the backend.
    pub data: Option<DelayPercentiles>,
    /// The same for each row of the batch.
    pub data_per_row: Option<DelayPercentiles>,
}

impl DelayEstimates {
    /// Learns from the end of a task; `round` is the time since it was sent.
    fn on_end(&mut self, ended: &TaskEnd, round: Duration, rows: usize) {
        // An earlier release does not say how long it held the task.
        if ended.held_ns == 0 {
            return;
        }
        let there = [ended.held_ns, ended.took_ns, ended.ago_ns].iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
        self.control.add(round.saturating_sub(Duration::from_nanos(there)) / 2);
        if ended.fetched_ns > 0 && rows > 0 {
            let fetched = Duration::from_nanos(ended.fetched_ns);
            self.data.add(fetched);
            self.inputs.add(rows, fetched);
            self.data_per_row.add(fetched / u32::try_from(rows).unwrap_or(u32::MAX));
        }
    }
}

impl RemoteExecutor {
    /// Returns an executor for this depth. The engine gives a device up that does not end a task
    /// within `hang`. Half of it is for the inputs, so that a frontend that sends none costs no
    /// device.
    pub(super) fn new(link: Arc<PeerLink>, depth: usize, hang: Duration, offers: BackendOffers) -> RemoteExecutor {
        RemoteExecutor { link, depth, inputs_within: hang / 2, offers, opened: OnceLock::new() }
    }

    pub(super) fn opened(&self) -> Option<Arc<RemoteState>> {
        self.opened.get().cloned()
    }
}

impl Executor for RemoteExecutor {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn device_key(&self) -> String {
        "remote".to_owned()
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        Err(LoadError(format!("model '{}': models are loaded by backends", source.name)))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (link, depth) = (Arc::clone(&self.link), self.depth);
        let remote = Arc::new(RemoteState {
            link,
            sink,
            in_flight: Mutex::default(),
            delays: Mutex::default(),
            attached: Mutex::new(true),
        });
        if self.opened.set(Arc::clone(&remote)).is_err() {
            return Err(LoadError("a backend is one device".to_owned()));
        }
        let wait_ns = nanos(self.inputs_within);
        self.link.send(&Message::OpenDevice(lanes as u32, wait_ns));
        Ok(Box::new(RemoteDevice { remote, lanes, depth, offers: Arc::clone(&self.offers) }))
    }
}

struct RemoteDevice {
    remote: Arc<RemoteState>,
    lanes: usize,
    depth: usize,
    offers: BackendOffers,
}

impl Device for RemoteDevice {
    fn lanes(&self) -> usize {
        self.lanes
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn attach(&self, id: ModelId, model: Arc<dyn LoadedModel>) {
        let Some(RemoteModel { description, .. }) = model.as_any().downcast_ref::<RemoteModel>() else {
            return tracing::error!(model = id.0, "a model of this process cannot run elsewhere");
        };
        let offers = self.offers.lock();
        let same = offers.iter().filter(|offer| offer.description.is_same(description));
        match same.max_by_key(|offer| (!offer.superseded, offer.number)) {
            Some(offer) => self.remote.link.send(&Message::Attach(id, offer.number)),
            None => tracing::error!("a backend has freed model {} before its last batch", description.name),
        }
    }

    fn detach(&self, id: ModelId) {
        self.remote.link.send(&Message::Detach(id));
    }

    /// Sends a task. A task for a lost backend is accepted as well: the report of the loss is on
    /// its way.
    fn submit(&self, task: Task) -> Result<(), Task> {
        let message = run(&task);
        let fetched = message.members.iter().filter(|member| member.origin.is_some());
        let rows = fetched.map(|member| member.rows as usize).sum();
        let mut in_flight = self.remote.in_flight.lock();
        in_flight.sent += 1;
        let (number, members) = (in_flight.sent, task.members.len());
        let sent = SentTask { sent: Instant::now(), number, lane: task.lane, cancelled: false, members, rows };
        in_flight.tasks.insert(task.id, sent);
        drop(in_flight);
        self.remote.link.send(&Message::RunTask(message));
        Ok(())
    }

    fn cancel(&self, id: TaskId) {
        if let Some(task) = self.remote.in_flight.lock().tasks.get_mut(&id) {
            task.cancelled = true;
        }
        self.remote.link.send(&Message::CancelTask(id));
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        *self.remote.attached.lock() = false;
        self.remote.link.close();
    }
}

fn run(task: &Task) -> RunTask {
    let now = Instant::now();
    let left = |until: Instant| nanos(until.saturating_duration_since(now));
    let member = |member: &TaskMember| RunMember {
        slot: member.slot,
        rows: member.rows as u32,
        length: member.entry.as_ref().map_or(0, |entry| entry.extent.length),
        node: member.node,
        stream: member.entry.as_ref().is_some_and(|entry| entry.stream),
        walk: member.walk,
        left_ns: member.until.map(left),
        origin: member.entry.as_ref().and_then(|entry| match entry.payload {
            Payload::Elsewhere(origin) => Some(origin),
            Payload::Here(_) => None,
        }),
    };
    RunTask {
        task: task.id,
        model: task.model,
        block: task.block,
        lane: task.lane,
        length: task.length,
        wait_ns: task.not_before.map_or(0, left),
        members: task.members.iter().map(member).collect(),
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl RemoteState {
    /// Runs `act` while the engine has the device. Does nothing afterwards, when its id may belong
    /// to another device.
    pub(super) fn while_attached(&self, act: impl FnOnce()) {
        let there = self.attached.lock();
        if *there {
            act();
        }
    }

    /// Returns whether the engine has the device.
    pub(super) fn is_attached(&self) -> bool {
        *self.attached.lock()
    }

    /// Returns the delays of its messages and of its inputs.
    pub(super) fn delays(&self) -> BackendDelays {
        let delays = self.delays.lock();
        let DelayEstimates { control, data, data_per_row, .. } = &*delays;
        let [control, data, data_per_row] = [control, data, data_per_row].map(DelayEstimate::percentiles);
        BackendDelays { control, data, data_per_row }
    }

    /// Returns the time that a batch needs to reach it, as this quantile of what was measured, in
    /// thousandths; `None` while that is too little.
    pub(super) fn network_delay(&self, permille: u32) -> Option<NetworkDelay> {
        let delays = self.delays.lock();
        let DelayEstimates { control, inputs, .. } = &*delays;
        let message = control.quantile(permille).filter(|_| control.samples() >= MIN_SAMPLES)?;
        let NetworkDelay { control: rest, data_per_row } = inputs.planned(permille);
        let message = Nanos(i64::try_from(message.as_nanos()).unwrap_or(i64::MAX));
        Some(NetworkDelay { control: Nanos(message.0.saturating_add(rest.0)), data_per_row })
    }

    /// Handles a backend's report that a task has ended; `holds_next` is true if further reports
    /// have arrived.
    pub(super) fn on_end(&self, ended: TaskEnd, holds_next: bool) -> Result<(), DecodeError> {
        let held = self.in_flight.lock().end(ended.task)?;
        self.delays.lock().on_end(&ended, held.sent.elapsed(), held.rows);
        let (held, TaskEnd { task, ago_ns, took_ns, reruns: again, lost, members, .. }) = (held.members, ended);
        let outcome = match members {
            Ok(members) if members.len() != held => {
                return Err(DecodeError(format!("task {} of {held} members has ended for {}", task.0, members.len())));
            }
            Ok(members) => Ok(members.into_iter().map(progress).collect()),
            Err(cause) => Err(ExecError(cause)),
        };
        let now = Instant::now();
        let finished = now.checked_sub(Duration::from_nanos(ago_ns)).unwrap_or(now);
        let started = finished.checked_sub(Duration::from_nanos(took_ns)).unwrap_or(finished);
        let cause = ExecError("its backend's log says why".to_owned());
        let again = (again > 0).then_some(Rerun { runs: again, cause });
        let lost = lost.map(|(after, inside)| Loss { retry_after: Duration::from_nanos(after), inside });
        (self.sink)(TaskResult {
            id: task,
            outcome,
            rerun: again,
            lost,
            started,
            finished,
            host_time: Duration::ZERO,
            holds_next,
        });
        Ok(())
    }
}

fn lost(cause: String) -> MemberProgress {
    let lost = Some(Loss { retry_after: RETRY_AFTER, inside: false });
    MemberProgress { lost, ..MemberProgress::failed(ExecError(cause)) }
}

fn progress(member: MemberEnd) -> MemberProgress {
    match member {
        MemberEnd::Continues(skip) => MemberProgress { skip, ..MemberProgress::default() },
        MemberEnd::Ended => MemberProgress::ended(Vec::new()),
        MemberEnd::Failed(cause) => MemberProgress::failed(ExecError(cause)),
        MemberEnd::Refused(cause) => {
            MemberProgress { refused: true, ..MemberProgress::failed(ExecError(format!("{BAD_REQUEST}{cause}"))) }
        }
        MemberEnd::Lost(cause) => lost(cause),
        MemberEnd::Late(ms) => {
            let slow_inputs = Some(Duration::from_millis(ms.into()));
            MemberProgress { slow_inputs, ..lost("its inputs come too late".to_owned()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_a_lane_end_in_order_unless_they_were_to_stop() {
        let mut in_flight = SentTasks::default();
        for (number, (task, lane, cancelled)) in
            (0..).zip([(7, 0, false), (3, 0, false), (5, 1, false), (9, 0, true), (4, 0, false)])
        {
            let sent = SentTask { sent: Instant::now(), number, lane: LaneId(lane), cancelled, members: 1, rows: 1 };
            in_flight.tasks.insert(TaskId(task), sent);
        }
        assert!(in_flight.end(TaskId(5)).is_ok() && in_flight.end(TaskId(9)).is_ok());
        assert!(in_flight.end(TaskId(7)).is_ok() && in_flight.end(TaskId(7)).is_err());
        let early = in_flight.end(TaskId(4)).err().unwrap();
        assert_eq!(early.0, "task 4 has ended before an earlier one of its lane");
    }
}
