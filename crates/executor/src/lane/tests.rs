//! The lane with a runner that does as it is told: it may err, panic, or give what it should not.

use super::*;
use crate::model::LoadedModel;
use crate::plan::{BlockIo, Plan};
use crate::rows::Batch;
use crate::worker::{Call, Runner};
use crate::{BlockSource, Entry, Member, ModelSource, Tensor};
use bytes::Bytes;
use ripieno_base::{BlockId, LaneId, RequestSlot, TaskId};
use ripieno_model::{DataType, TensorSpec};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Hands bytes through, and obeys the first of them: 1 errs, 2 panics, 3 gives a row too few.
struct Obedient;

impl Runner for Obedient {
    fn run(&mut self, call: &Call<'_>) -> Result<Vec<Batch>, ExecError> {
        let data = call.inputs[0].data;
        let rows = match data[0] {
            1 => return Err(ExecError("as told".to_owned())),
            2 => panic!("as told"),
            3 => call.rows - 1,
            _ => call.rows,
        };
        let batch = Batch::new(DataType::Uint8, vec![rows as i64, 1], Bytes::copy_from_slice(&data[..rows]));
        Ok(vec![batch.map_err(ExecError)?])
    }
}

fn model() -> LoadedModel<()> {
    let spec = |name: &str| vec![TensorSpec { name: name.to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] }];
    let source = ModelSource::new("obedient", vec![BlockSource::new("first"), BlockSource::new("second")], 4);
    let io = |input, output| BlockIo {
        place: "block".to_owned(),
        inputs: spec(input),
        outputs: spec(output),
        vocabulary: Vec::new(),
    };
    let plan = Plan::link(&source, &[io("x", "h"), io("h", "y")]).unwrap();
    LoadedModel { plan: Arc::new(plan), own: () }
}

fn options(prepare: Prepare) -> LaneOptions {
    let enter: Enter = Arc::new(|body| body());
    LaneOptions { name: "obedient".to_owned(), depth: 2, prepare, enter, aborts: vec![Arc::default()], at_once: 1 }
}

fn lane() -> (Box<dyn Device>, Receiver<TaskResult>) {
    let (sender, results) = channel();
    let prepare: Prepare = Box::new(|loaded, _| {
        let plan = Arc::clone(&LoadedModel::<()>::of(loaded, "obedient")?.plan);
        Ok(Ready { plan, runner: Box::new(Obedient) })
    });
    let device = Lanes::open(options(prepare), Arc::new(move |result| drop(sender.send(result)))).unwrap();
    device.attach(ModelId(0), Arc::new(model()));
    (device, results)
}

fn task(block: u16, members: &[(u32, u8)]) -> Task {
    let member = |&(slot, byte): &(u32, u8)| {
        let data = Bytes::from(vec![byte]);
        let tensor = Tensor { name: "x".into(), datatype: DataType::Uint8, shape: vec![1, 1], data };
        let entry = (block == 0).then(|| Arc::new(Entry::of([tensor].into())));
        Member::new(RequestSlot(slot), 1, entry)
    };
    let members = members.iter().map(member).collect();
    Task { id: TaskId(0), model: ModelId(0), block: BlockId(block), lane: LaneId(0), members, not_before: None }
}

fn run(device: &dyn Device, results: &Receiver<TaskResult>, task: Task) -> Result<Vec<Progress>, ExecError> {
    device.submit(task).unwrap();
    results.recv_timeout(Duration::from_secs(60)).unwrap().outcome
}

#[test]
fn an_error_and_a_panic_answer_and_the_device_goes_on() {
    let (device, results) = lane();
    for (byte, words) in [(1, "as told"), (2, "the engine panicked: as told")] {
        let error = run(&*device, &results, task(0, &[(0, byte), (1, 0)])).unwrap_err();
        assert_eq!(error.0, words);
    }
    run(&*device, &results, task(0, &[(0, 9)])).unwrap();
    let ended = run(&*device, &results, task(1, &[(0, 0)])).unwrap();
    assert_eq!((ended[0].ended, &ended[0].outputs[0].data[..]), (true, &[9][..]));
}

#[test]
fn an_output_without_the_batch_fails_its_task() {
    let (device, results) = lane();
    let error = run(&*device, &results, task(0, &[(0, 3), (1, 0)])).unwrap_err();
    assert!(error.0.contains("has 1 rows for a batch of 2"), "{error}");
}

#[test]
fn a_failed_or_finished_walk_leaves_nothing_behind() {
    let (device, results) = lane();
    run(&*device, &results, task(0, &[(0, 1)])).unwrap_err();
    let error = run(&*device, &results, task(1, &[(0, 0)])).unwrap_err();
    assert!(error.0.contains("slot 0 has no walk"), "{error}");
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
    let device = Lanes::open(options(prepare), sink).unwrap();
    for id in [0, 1] {
        device.submit(Task { id: TaskId(id), ..task(0, &[(0, 0)]) }).unwrap();
    }
    drop(device);
    assert_eq!(results.iter().collect::<Vec<_>>(), [TaskId(0), TaskId(1)]);
}
