//! Tests of tasks that are gathered and answered while another one runs.

use super::tests::{Following, Scripted, model, options, task};
use super::*;
use crate::contract::model::EngineModel;
use crate::run::rows::BatchTensor;
use crate::run::runner::{BlockCall, Runner, SendAhead};
use crate::{MemberProgress, TaskMember};
use parking_lot::Mutex;
use ripieno_base::{LaneId, Lcg, RequestSlot};
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};

const PATIENCE: Duration = Duration::from_secs(60);

/// Sends the bytes of each batch, and waits for permission to run it.
struct Gated {
    begun: Sender<Vec<u8>>,
    permission: Permissions,
    ahead: Arc<SentBatches>,
}

/// The bytes of each batch that was sent ahead, by its number.
#[derive(Default)]
struct SentBatches(Mutex<Vec<Vec<u8>>>);

impl SendAhead for SentBatches {
    fn send_ahead(&self, call: &BlockCall<'_>) -> Option<u64> {
        let mut sent = self.0.lock();
        sent.push(call.inputs[0].data.to_vec());
        Some(sent.len() as u64 - 1)
    }
}

/// A receiver that the runners of several attachments share.
type Permissions = Arc<Mutex<Receiver<()>>>;

impl Runner for Gated {
    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError> {
        let bytes = call.inputs[0].data.to_vec();
        if let Some(number) = call.sent {
            assert_eq!(self.ahead.0.lock()[number as usize], bytes, "it is the batch that was sent");
        }
        self.begun.send(bytes).unwrap();
        self.permission.lock().recv_timeout(PATIENCE).unwrap();
        Scripted.run(call)
    }

    fn sender(&self) -> Option<Arc<dyn SendAhead>> {
        Some(Arc::clone(&self.ahead) as Arc<dyn SendAhead>)
    }
}

/// A device of one lane that gathers every first block ahead once its model has run.
struct GatedDevice {
    device: Box<dyn Device>,
    begun: Receiver<Vec<u8>>,
    permit: Sender<()>,
    results: Receiver<TaskResult>,
    ahead: Arc<SentBatches>,
    /// Held by a test while no result is to be sent.
    telling: Arc<Mutex<()>>,
}

impl GatedDevice {
    /// Opens the device, and runs a task on it.
    fn new(depth: usize) -> GatedDevice {
        GatedDevice::on(false, depth)
    }

    fn on(on_gpu: bool, depth: usize) -> GatedDevice {
        let ((begin, begun), (permit, permission)) = (channel(), channel());
        let permission = Arc::new(Mutex::new(permission));
        let ahead = Arc::<SentBatches>::default();
        let sent = Arc::clone(&ahead);
        let prepare: Prepare = Box::new(move |loaded, _| {
            let plan = Arc::clone(&EngineModel::<()>::of(loaded, "scripted")?.plan);
            let (begun, permission, ahead) = (begin.clone(), Arc::clone(&permission), Arc::clone(&sent));
            let runner = Gated { begun, permission, ahead };
            Ok(ReadyModel::new(plan, Box::new(runner)))
        });
        let (sender, results) = channel();
        let options = LaneOptions { depth, ..options(prepare) };
        let telling = Arc::<Mutex<()>>::default();
        let told = Arc::clone(&telling);
        let sink: Sink = Arc::new(move |result| {
            let _told = told.lock();
            drop(sender.send(result));
        });
        let device =
            LaneDevice::open_with(options, HostOptions { min_host_time: Duration::ZERO, on_gpu }, sink).unwrap();
        device.attach(ModelId(0), Arc::new(model()));
        let gated = GatedDevice { device, begun, permit, results, ahead, telling };
        gated.submit(90, task(0, &[(90, 90)]));
        gated.run(&[90]);
        assert!(gated.result(90).is_ok());
        gated
    }

    fn submit(&self, id: u32, task: Task) {
        self.device.submit(Task { id: TaskId(id), ..task }).unwrap();
    }

    /// Waits until a batch of these bytes has begun.
    fn begins(&self, bytes: &[u8]) {
        assert_eq!(self.begun.recv_timeout(PATIENCE).unwrap(), bytes);
    }

    /// Waits until a batch of these bytes has begun, and lets it run.
    fn run(&self, bytes: &[u8]) {
        self.begins(bytes);
        self.permit.send(()).unwrap();
    }

    fn result(&self, id: u32) -> Result<Vec<MemberProgress>, ExecError> {
        let result = self.results.recv_timeout(PATIENCE).unwrap();
        assert_eq!(result.id, TaskId(id));
        result.outcome
    }

    fn waits_for_gathered(&self, tasks: u64) {
        let until = Instant::now() + PATIENCE;
        while self.device.tasks_gathered_ahead() < tasks {
            assert!(Instant::now() < until, "no task was gathered while another one ran");
            std::thread::yield_now();
        }
    }
}

/// The result of the only member of a task: its bytes, or `None` if it goes on.
fn only(outcome: Result<Vec<MemberProgress>, ExecError>) -> Option<Vec<u8>> {
    let [progress] = &outcome.unwrap()[..] else { panic!("there is one member") };
    assert!(progress.failed.is_none(), "{progress:?}");
    progress.ended.then(|| progress.outputs[0].data.to_vec())
}

#[test]
fn the_next_batch_is_gathered_while_one_computes() {
    let gated = GatedDevice::new(2);
    for round in 0..3 {
        gated.submit(0, task(0, &[(0, 10), (1, 11)]));
        gated.begins(&[10, 11]);
        gated.submit(1, task(0, &[(2, 12), (3, 13)]));
        gated.waits_for_gathered(round + 1);
        gated.permit.send(()).unwrap();
        assert_eq!(gated.result(0).unwrap().len(), 2);
        gated.run(&[12, 13]);
        assert_eq!(gated.result(1).unwrap().len(), 2);
    }
    // Without another task nothing is left to be gathered meanwhile.
    gated.submit(0, task(0, &[(4, 14)]));
    gated.run(&[14]);
    assert_eq!((only(gated.result(0)), gated.device.tasks_gathered_ahead()), (None, 3));
    assert_eq!(*gated.ahead.0.lock(), vec![[12, 13]; 3], "each was sent to the engine meanwhile");
}

#[test]
fn a_later_block_behind_its_first_one_finds_the_state() {
    let gated = GatedDevice::new(3);
    gated.submit(0, task(0, &[(0, 10)]));
    gated.begins(&[10]);
    gated.submit(1, task(1, &[(0, 0)]));
    gated.submit(2, task(0, &[(0, 12)]));
    gated.permit.send(()).unwrap();
    assert_eq!(only(gated.result(0)), None);
    gated.begins(&[10]);
    // The slot's next request is gathered while the last block of the one before runs.
    gated.waits_for_gathered(1);
    gated.submit(3, task(1, &[(0, 0)]));
    gated.permit.send(()).unwrap();
    assert_eq!(only(gated.result(1)), Some(vec![10]));
    gated.run(&[12]);
    assert_eq!(only(gated.result(2)), None);
    gated.run(&[12]);
    assert_eq!(only(gated.result(3)), Some(vec![12]));
}

#[test]
fn a_request_that_fails_leaves_no_state_of_the_slot_behind() {
    let gated = GatedDevice::new(2);
    gated.submit(0, task(0, &[(0, 10)]));
    gated.begins(&[10]);
    gated.submit(1, task(0, &[(0, 100)]));
    gated.waits_for_gathered(1);
    gated.permit.send(()).unwrap();
    assert_eq!(only(gated.result(0)), None);
    gated.run(&[100]);
    assert!(gated.result(1).unwrap_err().0.contains("100 is beyond the table"));
    gated.submit(2, task(1, &[(0, 0)]));
    assert!(gated.result(2).unwrap_err().0.contains("holds no state"));
}

#[test]
fn answers_are_sent_while_the_next_batch_computes() {
    let gated = GatedDevice::new(3);
    for round in 1..4 {
        gated.submit(0, task(0, &[(0, 10), (1, 11)]));
        gated.run(&[10, 11]);
        assert_eq!(gated.result(0).unwrap().len(), 2);
        gated.submit(1, task(1, &[(0, 0), (1, 0)]));
        gated.begins(&[10, 11]);
        gated.submit(2, task(0, &[(2, 12)]));
        gated.waits_for_gathered(round);
        let not_told = gated.telling.lock();
        gated.permit.send(()).unwrap();
        gated.begins(&[12]);
        assert!(gated.results.try_recv().is_err(), "it is not sent yet");
        drop(not_told);
        gated.permit.send(()).unwrap();
        assert_eq!(gated.result(1).unwrap().len(), 2);
        assert_eq!((only(gated.result(2)), gated.device.tasks_answered_beside()), (None, round));
        // A later block waits for what the one before it stores, so it is sent first.
        gated.submit(3, task(1, &[(2, 0)]));
        gated.run(&[12]);
        assert_eq!(only(gated.result(3)), Some(vec![12]));
    }
}

#[test]
fn models_come_and_go_after_the_answers_before_them() {
    let gated = GatedDevice::new(4);
    gated.submit(0, task(0, &[(0, 10)]));
    gated.run(&[10]);
    assert_eq!(only(gated.result(0)), None);
    gated.submit(1, task(1, &[(0, 0)]));
    gated.begins(&[10]);
    gated.submit(2, task(0, &[(1, 11)]));
    gated.device.detach(ModelId(0));
    gated.submit(3, task(0, &[(2, 12)]));
    gated.waits_for_gathered(1);
    let not_told = gated.telling.lock();
    gated.permit.send(()).unwrap();
    gated.run(&[11]);
    drop(not_told);
    assert_eq!(only(gated.result(1)), Some(vec![10]));
    assert_eq!(only(gated.result(2)), None);
    assert!(gated.result(3).unwrap_err().0.contains("is not attached"));
}

#[test]
fn a_gathered_task_that_is_cancelled_never_begins() {
    let gated = GatedDevice::new(3);
    gated.submit(0, task(0, &[(0, 10)]));
    gated.begins(&[10]);
    gated.submit(1, task(0, &[(1, 11)]));
    gated.waits_for_gathered(1);
    gated.device.cancel(TaskId(1));
    gated.submit(2, task(0, &[(1, 12)]));
    gated.permit.send(()).unwrap();
    assert_eq!(only(gated.result(0)), None);
    assert!(gated.result(1).unwrap_err().0.contains("cancelled"));
    gated.run(&[12]);
    assert_eq!(only(gated.result(2)), None);
}

#[test]
fn a_bad_request_in_a_gathered_batch_fails_alone() {
    let gated = GatedDevice::new(2);
    gated.submit(0, task(0, &[(0, 10)]));
    gated.begins(&[10]);
    gated.submit(1, task(0, &[(1, 11), (2, 100), (3, 13)]));
    gated.waits_for_gathered(1);
    gated.permit.send(()).unwrap();
    assert_eq!(only(gated.result(0)), None);
    for part in [&[11, 100, 13][..], &[11], &[100, 13], &[100], &[13]] {
        gated.run(part);
    }
    let failed: Vec<bool> = gated.result(1).unwrap().iter().map(|progress| progress.failed.is_some()).collect();
    assert_eq!(failed, [false, true, false]);
}

#[test]
fn models_come_and_go_in_order_beside_gathered_tasks() {
    let gated = GatedDevice::new(3);
    gated.submit(0, task(0, &[(0, 10)]));
    gated.begins(&[10]);
    gated.submit(1, task(0, &[(1, 11)]));
    gated.waits_for_gathered(1);
    gated.device.detach(ModelId(0));
    gated.device.attach(ModelId(0), Arc::new(model()));
    gated.submit(2, task(1, &[(1, 0)]));
    gated.permit.send(()).unwrap();
    assert_eq!(only(gated.result(0)), None);
    gated.run(&[11]);
    assert_eq!(only(gated.result(1)), None);
    assert!(gated.result(2).unwrap_err().0.contains("holds no state"), "the state went with the model");
}

#[test]
fn every_accepted_task_ends_once_when_the_device_is_dropped() {
    let gated = GatedDevice::new(4);
    (0..4).for_each(|id| gated.submit(id, task(0, &[(id, 10 + id as u8)])));
    gated.begins(&[10]);
    gated.waits_for_gathered(1);
    let GatedDevice { device, begun: _begun, permit, results, .. } = gated;
    (0..4).for_each(|_| permit.send(()).unwrap());
    drop(device);
    assert_eq!(results.iter().map(|result| result.id.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn every_accepted_task_ends_once_however_early_the_device_is_dropped() {
    for round in 0..200u32 {
        let prepare: Prepare = Box::new(|loaded, _| {
            let plan = Arc::clone(&EngineModel::<()>::of(loaded, "scripted")?.plan);
            Ok(ReadyModel::new(plan, Box::new(Scripted)))
        });
        let (sender, results) = channel();
        let (host, sink) =
            (HostOptions { min_host_time: Duration::ZERO, on_gpu: false }, move |result| drop(sender.send(result)));
        let device = LaneDevice::open_with(LaneOptions { depth: 6, ..options(prepare) }, host, Arc::new(sink)).unwrap();
        device.attach(ModelId(0), Arc::new(model()));
        for (id, block) in (0..).zip([0, 1, 0, 1, 0, 1]) {
            device.submit(Task { id: TaskId(id), ..task(block, &[(id / 2, 10)]) }).unwrap();
            (0..round % 7).for_each(|_| std::thread::yield_now());
        }
        drop(device);
        assert_eq!(results.iter().map(|result| result.id.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn a_gpu_begins_when_the_batch_is_gathered_and_other_devices_before() {
    for on_gpu in [false, true] {
        let gated = GatedDevice::on(on_gpu, 2);
        let accepted = Instant::now();
        gated.submit(0, task(0, &[(0, 10), (1, 11)]));
        gated.run(&[10, 11]);
        let result = gated.results.recv_timeout(PATIENCE).unwrap();
        assert_eq!(result.host_time > Duration::ZERO, on_gpu);
        assert!(accepted <= result.started && result.started <= result.finished);
        gated.submit(1, task(1, &[(0, 0), (1, 0)]));
        gated.run(&[10, 11]);
        assert_eq!(gated.results.recv_timeout(PATIENCE).unwrap().host_time, Duration::ZERO, "it copies nothing");
    }
}

/// The state of a slot as far as the tests know.
#[derive(Clone, Copy, PartialEq)]
enum SlotState {
    Empty,
    Holds(u8),
    /// A task that may have begun was cancelled.
    Open,
}

/// A task that a lane holds.
struct TriedTask {
    id: TaskId,
    block: u16,
    /// Slot and byte of each member.
    members: Vec<(u32, u8)>,
    /// True once the device was asked to stop the task.
    stops: bool,
}

/// Checks the results of a lane, in order, against each request alone.
struct Reference {
    slots: HashMap<u32, SlotState>,
}

impl Reference {
    fn check(&mut self, sent: &TriedTask, outcome: Result<Vec<MemberProgress>, ExecError>) {
        let TriedTask { block, ref members, stops, .. } = *sent;
        let cancelled = outcome.as_ref().is_err_and(|cause| cause.0.contains("cancelled"));
        let failure = outcome.as_ref().err().cloned();
        for (at, &(slot, byte)) in members.iter().enumerate() {
            let known = self.slots.entry(slot).or_insert(SlotState::Empty);
            if stops && !cancelled && outcome.is_err() {
                // A batch that fails while it is stopped is not run again in parts.
                *known = SlotState::Open;
                continue;
            }
            if cancelled {
                *known = if block == 0 { SlotState::Open } else { *known };
                continue;
            }
            let progress = outcome.as_ref().ok().map(|all| &all[at]);
            let failed = progress.map_or(failure.clone(), |progress| progress.failed.clone());
            let held = if block == 0 { SlotState::Holds(byte) } else { *known };
            match (held, failed) {
                (SlotState::Holds(byte), Some(cause)) => {
                    assert_eq!((block, cause.0), (0, format!("{byte} is beyond the table")));
                    *known = SlotState::Empty;
                }
                (SlotState::Holds(byte), None) => {
                    assert!(byte < 100);
                    let answer = progress.filter(|progress| progress.ended).map(|all| all.outputs[0].data.to_vec());
                    assert_eq!(answer, (block == 1).then(|| vec![byte]));
                    *known = if block == 0 { held } else { SlotState::Empty };
                }
                (SlotState::Empty, failed) => assert!(failed.unwrap().0.contains("holds no state")),
                (SlotState::Open, _) => *known = SlotState::Empty,
            }
        }
    }
}

#[test]
fn random_tasks_with_cancels_answer_as_each_alone() {
    for (seed, min_host_time) in (0..12).map(|seed| (seed, if seed % 3 == 0 { MIN_HOST_TIME } else { Duration::ZERO }))
    {
        let prepare: Prepare = Box::new(move |loaded, _| {
            let plan = Arc::clone(&EngineModel::<()>::of(loaded, "scripted")?.plan);
            Ok(ReadyModel::new(plan, if seed % 2 == 0 { Box::new(Following) } else { Box::new(Scripted) }))
        });
        let (sender, results) = channel();
        let options = LaneOptions { depth: 4, aborts: vec![Arc::default(), Arc::default()], ..options(prepare) };
        let (gather, sink) = (HostOptions { min_host_time, on_gpu: false }, move |result| drop(sender.send(result)));
        let device = LaneDevice::open_with(options, gather, Arc::new(sink)).unwrap();
        device.attach(ModelId(0), Arc::new(model()));
        run_random_tasks(&*device, &results, &mut Lcg::new(seed));
    }
}

/// Runs tasks of random members on both lanes. The slots of the lanes are apart.
fn run_random_tasks(device: &dyn Device, results: &Receiver<TaskResult>, rng: &mut Lcg) {
    let mut sent: [VecDeque<TriedTask>; 2] = Default::default();
    let mut references = [0, 1].map(|_| Reference { slots: HashMap::new() });
    let mut left = 600;
    while left > 0 || sent.iter().any(|lane| !lane.is_empty()) {
        let lane = rng.below(2) as usize;
        if left > 0 && sent[lane].len() < 4 {
            left -= 1;
            let block = u16::from(rng.below(2) == 0);
            let first = 8 * lane as u32 + rng.below(4) as u32;
            let byte = |rng: &mut Lcg| if rng.below(12) == 0 { 100 + rng.below(99) } else { 10 + rng.below(90) } as u8;
            let members: Vec<(u32, u8)> = (0..1 + rng.below(4) as u32).map(|at| (first + at, byte(rng))).collect();
            let id = TaskId(left);
            let of_lane = Task { id, lane: LaneId(lane as u16), ..task(block, &members) };
            sent[lane].push_back(TriedTask { id, block, members, stops: false });
            device.submit(of_lane).unwrap();
            if rng.below(8) == 0 {
                let held = sent[lane].len() as u64;
                let stopped = &mut sent[lane][rng.below(held) as usize];
                stopped.stops = true;
                device.cancel(stopped.id);
            }
            continue;
        }
        let TaskResult { id, outcome, .. } = results.recv_timeout(PATIENCE).unwrap();
        let lane = sent.iter().position(|lane| lane.front().is_some_and(|first| first.id == id));
        let lane = lane.expect("the tasks of a lane end in order, and once");
        references[lane].check(&sent[lane].pop_front().unwrap(), outcome);
    }
    assert!(results.try_recv().is_err(), "each task ends once");
    let slots = (0..4).map(|slot| TaskMember::new(RequestSlot(slot), 1, None));
    assert!(device.submit(Task { members: slots.collect(), ..task(1, &[(0, 0)]) }).is_ok());
    assert!(results.recv_timeout(PATIENCE).is_ok());
}
