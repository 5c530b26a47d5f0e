//! Tests of the lane with a scripted runner: it can fail, panic, or give wrong outputs.

use super::*;
use crate::contract::model::EngineModel;
use crate::run::plan::{BlockIo, ModelPlan};
use crate::run::rows::BatchTensor;
use crate::run::runner::{BlockCall, BlockOutputs, ComingOutputs, Runner};
use crate::{BlockSource, Loss, MemberProgress, ModelSource, RequestEntry, TaskMember, Tensor};
use bytes::Bytes;
use ripieno_base::{BlockId, LaneId, RequestSlot, TaskId};
use ripieno_model::{DataType, TensorSpec};
use std::sync::mpsc::{Receiver, channel};

/// Passes bytes through and interprets them: 1 fails, 2 panics, 3 gives a row too few; those from
/// 100 on fail with their value.
pub(super) struct Scripted;

impl Runner for Scripted {
    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError> {
        let data = call.inputs[0].data;
        if let Some(byte) = data.iter().find(|&&byte| byte >= 100) {
            return Err(ExecError(format!("{byte} is beyond the table")));
        }
        let rows = match data.iter().find(|&&byte| (1..=3).contains(&byte)) {
            Some(1) => return Err(ExecError("as told".to_owned())),
            Some(2) => panic!("as told"),
            Some(_) => call.rows - 1,
            None => call.rows,
        };
        let batch = BatchTensor::new(DataType::Uint8, vec![rows as i64, 1], Bytes::copy_from_slice(&data[..rows]));
        Ok(vec![batch.map_err(ExecError)?])
    }
}

/// A [`Scripted`] engine whose outputs follow wherever they may, and whose last block fails if a
/// byte that ends with 7 shares a batch.
pub(super) struct Following;

impl Runner for Following {
    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError> {
        let shares = call.block == 1 && call.rows > 1;
        match shares && call.inputs[0].data.iter().any(|byte| byte % 10 == 7) {
            true => Err(ExecError("not together".to_owned())),
            false => Scripted.run(call),
        }
    }

    fn compute(&mut self, call: &BlockCall<'_>) -> Result<BlockOutputs, ExecError> {
        let outputs = self.run(call)?;
        match call.outputs_may_follow {
            true => Ok(BlockOutputs::Coming(Box::new(Coming(outputs)))),
            false => Ok(BlockOutputs::Here(outputs)),
        }
    }
}

struct Coming(Vec<BatchTensor>);

impl ComingOutputs for Coming {
    fn have_rows(&self, rows: usize) -> bool {
        self.0.iter().all(|output| output.rows() == rows)
    }

    fn receive(self: Box<Self>) -> Result<Vec<BatchTensor>, (ExecError, Option<Loss>)> {
        Ok(self.0)
    }
}

impl crate::contract::model::EngineData for () {}

pub(super) fn model() -> EngineModel<()> {
    let spec = |name: &str| vec![TensorSpec { name: name.to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] }];
    let source = ModelSource::new("scripted", vec![BlockSource::new("first"), BlockSource::new("second")], 4);
    let io = |input, output| BlockIo {
        place: "block".to_owned(),
        inputs: spec(input),
        optional: Vec::new(),
        outputs: spec(output),
        vocabulary: Vec::new(),
    };
    let plan = ModelPlan::link(&source, &[io("x", "h"), io("h", "y")]).unwrap();
    EngineModel { plan: Arc::new(plan), data: () }
}

pub(super) fn options(prepare: Prepare) -> LaneOptions {
    let enter: Enter = Arc::new(|body| body());
    LaneOptions {
        name: "scripted".to_owned(),
        depth: 2,
        prepare,
        place: 0,
        enter,
        aborts: vec![Arc::default()],
        max_concurrent: 1,
    }
}

fn lane() -> (Box<dyn Device>, Receiver<TaskResult>) {
    let (sender, results) = channel();
    let prepare: Prepare = Box::new(|loaded, _| {
        let plan = Arc::clone(&EngineModel::<()>::of(loaded, "scripted")?.plan);
        Ok(ReadyModel::new(plan, Box::new(Scripted)))
    });
    let device = LaneDevice::open(options(prepare), Arc::new(move |result| drop(sender.send(result)))).unwrap();
    device.attach(ModelId(0), Arc::new(model()));
    (device, results)
}

pub(super) fn task(block: u16, members: &[(u32, u8)]) -> Task {
    let member = |&(slot, byte): &(u32, u8)| {
        let data = Bytes::from(vec![byte]);
        let tensor = Tensor { name: "x".into(), datatype: DataType::Uint8, shape: vec![1, 1], data };
        let entry = (block == 0).then(|| Arc::new(RequestEntry::of([tensor].into())));
        TaskMember::new(RequestSlot(slot), 1, entry)
    };
    let members = members.iter().map(member).collect();
    Task {
        id: TaskId(0),
        model: ModelId(0),
        block: BlockId(block),
        lane: LaneId(0),
        length: 1,
        members,
        not_before: None,
    }
}

fn run(device: &dyn Device, results: &Receiver<TaskResult>, task: Task) -> Result<Vec<MemberProgress>, ExecError> {
    device.submit(task).unwrap();
    results.recv_timeout(Duration::from_secs(60)).unwrap().outcome
}

#[test]
fn an_error_and_a_panic_answer_and_the_device_goes_on() {
    let (device, results) = lane();
    for (byte, words) in [(1, "as told"), (2, "the engine panicked: as told")] {
        let error = run(&*device, &results, task(0, &[(0, byte)])).unwrap_err();
        assert!(error.0.contains(words), "{error}");
        let both = run(&*device, &results, task(0, &[(0, byte), (1, 9)])).unwrap();
        assert!(both[0].failed.as_ref().unwrap().0.contains(words) && both[1].failed.is_none());
        let ended = run(&*device, &results, task(1, &[(1, 9)])).unwrap();
        assert_eq!((ended[0].ended, &ended[0].outputs[0].data[..]), (true, &[9][..]));
    }
    // An answer of no rows is an answer, and its neighbours keep theirs.
    let both = run(&*device, &results, task(0, &[(0, 3), (1, 9)])).unwrap();
    assert!(both.iter().all(|progress| progress.failed.is_none()));
    let ended = run(&*device, &results, task(1, &[(1, 9)])).unwrap();
    assert_eq!((ended[0].ended, &ended[0].outputs[0].data[..]), (true, &[9][..]));
}

/// The result of each member: its bytes or its error.
fn told(progress: &[MemberProgress]) -> Vec<Result<Vec<u8>, String>> {
    let one = |progress: &MemberProgress| match &progress.failed {
        Some(cause) => Err(cause.0.clone()),
        None => Ok(progress.outputs[0].data.to_vec()),
    };
    progress.iter().map(one).collect()
}

#[test]
fn neighbours_of_a_bad_request_are_answered_and_errors_stay_separate() {
    let (device, results) = lane();
    for bad in [0b0001_u8, 0b0100, 0b1010, 0b0111, 0b1111] {
        let byte = |at: u8| if bad & 1 << at == 0 { 10 + at } else { 100 + at };
        let members: Vec<(u32, u8)> = (0..4).map(|at| (u32::from(at), byte(at))).collect();
        let result = {
            device.submit(task(0, &members)).unwrap();
            results.recv_timeout(Duration::from_secs(60)).unwrap()
        };
        assert!(result.rerun.as_ref().is_some_and(|rerun| (2..=6).contains(&rerun.runs)), "{:?}", result.rerun);
        let first = result.outcome.unwrap();
        let good: Vec<(u32, u8)> = members.iter().copied().filter(|&(_, byte)| byte < 100).collect();
        let answers = if good.is_empty() { Vec::new() } else { run(&*device, &results, task(1, &good)).unwrap() };
        assert_eq!(told(&answers), good.iter().map(|&(_, byte)| Ok(vec![byte])).collect::<Vec<_>>());
        for (&(_, byte), progress) in members.iter().zip(&first) {
            let own = progress.failed.as_ref().map(|cause| cause.0.clone());
            assert_eq!(own, (byte >= 100).then(|| format!("{byte} is beyond the table")));
            assert!(!progress.ended, "the second block is still to come");
        }
    }
}

#[test]
fn a_bad_request_leaves_nothing_behind() {
    let (device, results) = lane();
    run(&*device, &results, task(0, &[(0, 100), (1, 9)])).unwrap();
    let second = run(&*device, &results, task(1, &[(0, 0), (1, 0)])).unwrap();
    assert!(second[0].failed.as_ref().unwrap().0.contains("slot 0: this device holds no state"));
    assert_eq!(second[1].outputs[0].data[..], [9], "who stands beside a walk that is not there is answered");
}

#[test]
fn a_failed_or_finished_walk_leaves_nothing_behind() {
    let (device, results) = lane();
    run(&*device, &results, task(0, &[(0, 1)])).unwrap_err();
    let error = run(&*device, &results, task(1, &[(0, 0)])).unwrap_err();
    assert!(error.0.contains("slot 0: this device holds no state"), "{error}");
    run(&*device, &results, task(0, &[(0, 9)])).unwrap();
    run(&*device, &results, task(1, &[(0, 0)])).unwrap();
    run(&*device, &results, task(1, &[(0, 0)])).unwrap_err();
}

#[test]
fn a_slot_begins_anew_with_its_first_block() {
    let (device, results) = lane();
    run(&*device, &results, task(0, &[(0, 7)])).unwrap();
    run(&*device, &results, task(0, &[(0, 8)])).unwrap();
    let ended = run(&*device, &results, task(1, &[(0, 0)])).unwrap();
    assert_eq!(ended[0].outputs[0].data[..], [8]);
}

#[test]
fn a_walk_may_not_change_its_rows() {
    let (device, results) = lane();
    run(&*device, &results, task(0, &[(0, 7)])).unwrap();
    let mut wider = task(1, &[(0, 0)]);
    wider.members[0].rows = 2;
    let error = run(&*device, &results, wider).unwrap_err();
    assert!(error.0.contains("with 1 rows, not 2"), "{error}");
}

#[test]
fn a_task_waits_for_its_instant() {
    let (device, results) = lane();
    let not_before = Instant::now() + Duration::from_millis(20);
    device.submit(Task { not_before: Some(not_before), ..task(0, &[(0, 0)]) }).unwrap();
    let result = results.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(result.started >= not_before && result.finished >= result.started);
}

#[test]
fn a_receiver_that_panics_does_not_stop_the_device() {
    let (sender, results) = channel();
    let sink: Sink = Arc::new(move |result: TaskResult| {
        sender.send(result.id).unwrap();
        assert!(result.id != TaskId(0), "as told");
    });
    let prepare: Prepare = Box::new(|_, _| Err(ExecError("no model".to_owned())));
    let device = LaneDevice::open(options(prepare), sink).unwrap();
    for id in [0, 1] {
        device.submit(Task { id: TaskId(id), ..task(0, &[(0, 0)]) }).unwrap();
    }
    drop(device);
    assert_eq!(results.iter().collect::<Vec<_>>(), [TaskId(0), TaskId(1)]);
}
