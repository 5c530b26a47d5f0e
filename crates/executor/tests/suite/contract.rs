//! The executor contract on every engine: all that a scheduler relies on must hold for each of
//! them.

use crate::common::*;
use ripieno_base::{LaneId, ModelId, Nanos, TaskId};
use ripieno_executor::*;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

macro_rules! contract {
    ($($engine:ident: $($test:ident)*;)*) => {
        $(mod $engine {
            $(#[test]
            fn $test() {
                super::$test(&crate::common::$engine());
            })*
        })*
    };
    ($($engine:ident)* => $tests:tt) => {
        $(contract!(@one $engine $tests);)*
    };
    (@one $engine:ident { $($test:ident)* }) => {
        contract!($engine: $($test)*;);
    };
}

contract!(cpu onnxruntime onnxruntime_bound either emulated cpu_of_two_lanes onnxruntime_of_two_lanes emulated_of_two_lanes isolated_cpu isolated_onnxruntime_of_two_lanes => {
    a_batch_answers_as_each_request_alone
    requests_of_several_rows_keep_their_rows
    a_chain_answers_as_the_whole
    nothing_is_copied_while_the_members_stay
    members_may_leave_and_join_between_blocks
    tasks_run_in_the_order_of_submission
    the_depth_is_respected_and_handed_back
    the_receiver_may_act_on_the_device
    a_device_without_tasks_has_time_for_other_work
    each_accepted_task_ends_once_even_on_drop
    a_cancelled_task_that_waits_is_never_begun
    models_come_and_go_in_order
    a_model_may_be_on_several_devices
    different_widths_in_one_task_are_run_apart
    a_wrong_request_fails_alone
    a_wrong_request_fails_and_says_why
    a_batch_beyond_the_maximum_fails
    the_walk_is_declared
    latencies_can_be_measured
});

fn a_batch_answers_as_each_request_alone(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.whole);
    let rows: Vec<Vec<f32>> = (0..MAX_BATCH).map(|seed| numbers(4, seed)).collect();
    let members = || rows.iter().enumerate().map(|(slot, row)| request(slot as u32, row));
    let together = stand.run(0, members().collect()).unwrap();
    for ((member, row), progress) in members().zip(&rows).zip(together) {
        let alone = stand.run(0, vec![member]).unwrap().remove(0);
        assert!(progress.ended && alone.ended);
        assert_eq!((&*progress.outputs[0].name, progress.outputs[0].shape[0]), ("y", 1));
        assert_close(&floats(&progress.outputs[0]), &floats(&alone.outputs[0]));
        assert_close(&floats(&alone.outputs[0]), &(fixture.answer)(row));
    }
}

fn requests_of_several_rows_keep_their_rows(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.whole);
    let requests: Vec<Vec<f32>> = [1, 3, 2].iter().map(|rows| numbers(rows * 4, *rows)).collect();
    let members = requests.iter().enumerate().map(|(slot, rows)| request(slot as u32, rows)).collect();
    for (rows, progress) in requests.iter().zip(stand.run(0, members).unwrap()) {
        let expected: Vec<f32> = rows.chunks(4).flat_map(fixture.answer).collect();
        assert_eq!(progress.outputs[0].shape[0] as usize, rows.len() / 4);
        assert_close(&floats(&progress.outputs[0]), &expected);
    }
}

fn a_chain_answers_as_the_whole(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.chain);
    let rows: Vec<Vec<f32>> = (0..3).map(|seed| numbers(4, seed)).collect();
    let members: Vec<TaskMember> = rows.iter().enumerate().map(|(slot, row)| request(slot as u32, row)).collect();
    let first = stand.run(0, members.clone()).unwrap();
    assert!(first.iter().all(|progress| !progress.ended && progress.outputs.is_empty()));
    let second = stand.run(1, members.iter().map(later).collect()).unwrap();
    for (row, progress) in rows.iter().zip(second) {
        assert!(progress.ended);
        assert_close(&floats(&progress.outputs[0]), &(fixture.answer)(row));
    }
}

fn nothing_is_copied_while_the_members_stay(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.chain);
    let members: Vec<TaskMember> = (0..3).map(|slot| request(slot, &numbers(4, slot as usize))).collect();
    stand.run(0, members.clone()).unwrap();
    assert_eq!(stand.device.rows_gathered(), 3);
    stand.run(1, members.iter().map(later).collect()).unwrap();
    assert_eq!(stand.device.rows_gathered(), 3);
}

fn members_may_leave_and_join_between_blocks(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.chain);
    let row = |slot: u32| numbers(4, slot as usize);
    let members: Vec<TaskMember> = (0..4).map(|slot| request(slot, &row(slot))).collect();
    stand.run(0, members.clone()).unwrap();
    stand.run(0, vec![request(7, &row(7))]).unwrap();
    let gathered = stand.device.rows_gathered();
    // Two of the four continue in another order, with one that came later; then the others, which
    // are not neighbours.
    for slots in [&[2u32, 7, 0][..], &[1, 3]] {
        let batch = slots.iter().map(|&slot| later(&request(slot, &row(slot)))).collect();
        for (&slot, progress) in slots.iter().zip(stand.run(1, batch).unwrap()) {
            assert_close(&floats(&progress.outputs[0]), &(fixture.answer)(&row(slot)));
        }
    }
    assert_eq!(stand.device.rows_gathered() - gathered, 5);
    stand.run(1, vec![later(&members[0])]).unwrap_err();
}

fn tasks_run_in_the_order_of_submission(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.whole);
    let (mut submitted, mut done, mut last) = (0, 0, Instant::now());
    while done < 50 {
        if submitted < 50 && stand.device.submit(task(submitted, 0, vec![request(0, &numbers(4, 1))])).is_ok() {
            submitted += 1;
            continue;
        }
        let result = stand.result();
        assert_eq!(result.id, TaskId(done));
        assert!(last <= result.started && result.started <= result.finished);
        (last, done) = (result.finished, done + 1);
    }
}

/// The receiver of results blocks the device, so that its tasks are known without a clock.
fn the_depth_is_respected_and_handed_back(fixture: &Fixture) {
    let model = fixture.engine.load(&fixture.whole).unwrap();
    let (entered_sender, entered) = channel();
    let (leave, leaving) = channel::<()>();
    let leaving = std::sync::Mutex::new(leaving);
    let sink: Sink = Arc::new(move |result: TaskResult| {
        entered_sender.send(result.id).unwrap();
        // After the end of the test, no message comes, and the receiver no longer blocks.
        let _ = leaving.lock().unwrap().recv_timeout(PATIENCE);
    });
    let device = fixture.engine.open(fixture.lanes, sink).unwrap();
    device.attach(ModelId(0), model);
    let one = |id: u32| task(id, 0, vec![request(0, &numbers(4, 1))]);
    device.submit(one(0)).unwrap();
    assert_eq!(entered.recv_timeout(PATIENCE), Ok(TaskId(0)));
    // Task 0 has ended and its result is being received: the whole depth is free again.
    for id in 1..=device.depth() as u32 {
        device.submit(one(id)).unwrap();
    }
    let refused = device.submit(one(99)).unwrap_err();
    assert_eq!((refused.id, refused.members.len()), (TaskId(99), 1));
    leave.send(()).unwrap();
    assert_eq!(entered.recv_timeout(PATIENCE), Ok(TaskId(1)));
    device.submit(refused).unwrap();
    drop(leave);
}

/// The thread that delivers a result may take a turn of the scheduler: it submits the device's next
/// task, and detaches more models than a lane has room for attachments.
fn the_receiver_may_act_on_the_device(fixture: &Fixture) {
    let model = fixture.engine.load(&fixture.whole).unwrap();
    let own: Arc<OnceLock<Weak<dyn Device>>> = Arc::default();
    let (ended_sender, ended) = channel();
    let on = Arc::clone(&own);
    let sink: Sink = Arc::new(move |result: TaskResult| {
        let device = on.get().and_then(Weak::upgrade).expect("the device is open");
        if result.id == TaskId(0) {
            (1..200).for_each(|id| device.detach(ModelId(id)));
            device.submit(task(1, 0, vec![request(1, &numbers(4, 1))])).unwrap();
            device.cancel(TaskId(0));
        }
        drop(device);
        ended_sender.send((result.id, result.outcome.is_ok())).unwrap();
    });
    let device: Arc<dyn Device> = fixture.engine.open(fixture.lanes, sink).unwrap().into();
    assert!(own.set(Arc::downgrade(&device)).is_ok());
    device.attach(ModelId(0), model);
    device.submit(task(0, 0, vec![request(0, &numbers(4, 1))])).unwrap();
    for id in 0..2 {
        assert_eq!(ended.recv_timeout(PATIENCE), Ok((TaskId(id), true)));
    }
}

fn a_device_without_tasks_has_time_for_other_work(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.whole);
    let (sender, worked_on) = channel();
    let work: IdleWork = Arc::new(move || sender.send(std::thread::current().id()).unwrap());
    let until = Instant::now() + PATIENCE;
    // The lane may still be attaching its model.
    while !stand.device.run_idle(&work) {
        assert!(Instant::now() < until, "a device that does nothing has no time");
        std::thread::yield_now();
    }
    assert_ne!(worked_on.recv_timeout(PATIENCE).unwrap(), std::thread::current().id());
    assert!(worked_on.try_recv().is_err(), "it was asked once");
    // Every lane holds a task that may not begin yet.
    let later = Some(Instant::now() + 2 * PATIENCE);
    for lane in 0..fixture.lanes as u16 {
        let task = task(u32::from(lane), 0, vec![request(u32::from(lane), &numbers(4, 1))]);
        stand.device.submit(Task { lane: LaneId(lane), not_before: later, ..task }).unwrap();
    }
    assert!(!stand.device.run_idle(&work), "it holds tasks");
    (0..fixture.lanes as u32).for_each(|id| stand.device.cancel(TaskId(id)));
    (0..fixture.lanes).for_each(|_| assert!(stand.result().outcome.is_err()));
    assert!(worked_on.try_recv().is_err(), "it was told that nothing is taken");
}

fn each_accepted_task_ends_once_even_on_drop(fixture: &Fixture) {
    let Stand { device, results, .. } = fixture.stand(&fixture.whole);
    let mut accepted = Vec::new();
    for id in 0..100 {
        if device.submit(task(id, 0, vec![request(id, &numbers(4, 1))])).is_ok() {
            accepted.push(TaskId(id));
        }
    }
    drop(device);
    assert!(!accepted.is_empty());
    assert_eq!(results.iter().map(|result| result.id).collect::<Vec<_>>(), accepted);
}

/// The receiver of results blocks the device, as above.
fn a_cancelled_task_that_waits_is_never_begun(fixture: &Fixture) {
    let model = fixture.engine.load(&fixture.whole).unwrap();
    let (ended_sender, ended) = channel();
    let (leave, leaving) = channel::<()>();
    let leaving = std::sync::Mutex::new(leaving);
    let sink: Sink = Arc::new(move |result: TaskResult| {
        ended_sender.send((result.id, result.outcome.map_err(|error| error.to_string()))).unwrap();
        let _ = leaving.lock().unwrap().recv_timeout(PATIENCE);
    });
    let device = fixture.engine.open(fixture.lanes, sink).unwrap();
    device.attach(ModelId(0), model);
    let next = || {
        let (id, outcome) = ended.recv_timeout(PATIENCE).unwrap();
        (id.0, outcome.map(|progress| progress.len()))
    };
    device.submit(task(0, 0, vec![request(0, &numbers(4, 1))])).unwrap();
    assert_eq!(next(), (0, Ok(1)));
    for id in [1, 2] {
        device.submit(task(id, 0, vec![request(id, &numbers(4, 1))])).unwrap();
    }
    // Task 0 has ended and task 7 never existed: both requests are ignored.
    for id in [1, 0, 7] {
        device.cancel(TaskId(id));
    }
    drop(leave);
    assert_eq!(next(), (1, Err("the task was cancelled".to_owned())));
    assert_eq!(next(), (2, Ok(1)));
    for id in [0, 1, 7] {
        device.submit(task(id, 0, vec![request(0, &numbers(4, 1))])).unwrap();
        assert_eq!(next(), (id, Ok(1)));
    }
}

fn models_come_and_go_in_order(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.whole);
    let ask = || stand.run(0, vec![request(0, &numbers(4, 1))]);
    ask().unwrap();
    stand.device.detach(ModelId(0));
    assert!(ask().unwrap_err().0.contains("model 0 is not attached"));
    stand.device.attach(ModelId(0), Arc::clone(&stand.model));
    stand.device.submit(task(1, 0, vec![request(0, &numbers(4, 1))])).unwrap();
    stand.device.detach(ModelId(0));
    stand.result().outcome.unwrap();
    ask().unwrap_err();
}

fn a_model_may_be_on_several_devices(fixture: &Fixture) {
    let first = fixture.stand(&fixture.whole);
    let second = Stand::of_model(&*fixture.engine, Arc::clone(&first.model), fixture.lanes);
    let x = numbers(4, 1);
    for stand in [&first, &second] {
        let answer = stand.run(0, vec![request(0, &x)]).unwrap();
        assert_close(&floats(&answer[0].outputs[0]), &(fixture.answer)(&x));
    }
}

fn different_widths_in_one_task_are_run_apart(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.any_width);
    let widths = [5, 7, 5, 4, 7];
    let member = |(slot, &width): (u32, &usize)| wide_request(slot, &numbers(width, slot as usize), width);
    let members: Vec<TaskMember> = (0..).zip(&widths).map(member).collect();
    let alone = |member: &TaskMember| stand.run(0, vec![member.clone()]).unwrap().remove(0).outputs.remove(0);
    let alone: Vec<Tensor> = members.iter().map(alone).collect();
    let together = stand.run(0, members).unwrap();
    for ((progress, alone), &width) in together.iter().zip(&alone).zip(&widths) {
        assert_eq!((&progress.outputs[0].shape[..], progress.ended), (&[1, width as i64][..], true));
        assert_close(&floats(&progress.outputs[0]), &floats(alone));
    }
}

fn a_wrong_request_fails_alone(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.whole);
    let mut members: Vec<TaskMember> = (0..5).map(|slot| request(slot, &numbers(4, slot as usize))).collect();
    members[2].entry = None;
    for (slot, progress) in stand.run(0, members).unwrap().into_iter().enumerate() {
        match slot {
            2 => assert!(progress.failed.unwrap().0.contains("the request lacks it")),
            _ => assert_close(&floats(&progress.outputs[0]), &(fixture.answer)(&numbers(4, slot))),
        }
    }
}

fn a_wrong_request_fails_and_says_why(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.whole);
    let good = request(0, &numbers(4, 1));
    let with = |tensor: Tensor| TaskMember { entry: entry(tensor), ..good.clone() };
    let tensor = good.entry.as_ref().unwrap().inputs()[0].clone();
    let cases = [
        (TaskMember { entry: None, ..good.clone() }, "the request lacks it"),
        (with(Tensor { name: "z".into(), ..tensor.clone() }), "the request lacks it"),
        (with(Tensor { datatype: ripieno_model::DataType::Int32, ..tensor.clone() }), "it is INT32, not FP32"),
        (with(Tensor { shape: vec![1, 5], ..tensor.clone() }), "it holds 16 bytes"),
        (TaskMember { rows: 2, ..good.clone() }, "it has 1 rows, the request 2"),
        (TaskMember { rows: 0, ..good.clone() }, "without rows"),
    ];
    for (member, words) in cases {
        let error = stand.run(0, vec![member]).unwrap_err();
        assert!(error.0.contains(words), "{error}");
    }
    stand.run(9, vec![good.clone()]).unwrap_err();
    stand.run(0, vec![good]).unwrap();
}

fn a_batch_beyond_the_maximum_fails(fixture: &Fixture) {
    let stand = fixture.stand(&fixture.whole);
    let rows = MAX_BATCH + 1;
    let error = stand.run(0, vec![request(0, &numbers(rows * 4, 1))]).unwrap_err();
    assert!(error.0.contains("has 17 rows, but it must have 1 to 16"), "{error}");
}

fn the_walk_is_declared(fixture: &Fixture) {
    for (source, blocks) in [(&fixture.whole, 1), (&fixture.chain, 2)] {
        let model = fixture.engine.load(source).unwrap();
        assert_eq!(model.blocks(), blocks);
        assert_eq!((&*model.inputs()[0].name, &*model.outputs()[0].name), ("x", "y"));
        assert_eq!((model.inputs().len(), model.outputs().len()), (1, 1));
        assert_eq!(model.inputs()[0].shape, [-1, 4]);
    }
}

fn latencies_can_be_measured(fixture: &Fixture) {
    let model = fixture.engine.load(&fixture.chain).unwrap();
    let measurement = Measurement { max_batch: 6, budget: Duration::from_secs(2), example: None };
    let mut sizes = Vec::new();
    let profiles = measure(&*fixture.engine, &model, &measurement, &mut |step| sizes.push(step.batch)).unwrap().blocks;
    assert_eq!(profiles.len(), 2);
    assert!(profiles.iter().all(|of| of.profile.max_batch() == 6 && of.profile.latency(1) > Nanos::ZERO));
    assert!([1, 2, 4, 6].starts_with(&sizes) && !sizes.is_empty(), "{sizes:?}");
}

/// The receiver of the first lane's result waits for the second lane's: it would deadlock if lanes
/// blocked each other.
#[test]
fn lanes_run_beside_each_other_and_each_holds_its_depth() {
    for fixture in [cpu_of_two_lanes(), onnxruntime_of_two_lanes(), emulated_of_two_lanes()] {
        let model = fixture.engine.load(&fixture.whole).unwrap();
        let (beside, came) = channel();
        let (ended_sender, ended) = channel();
        let came = std::sync::Mutex::new(came);
        let beside = std::sync::Mutex::new(beside);
        let sink: Sink = Arc::new(move |result: TaskResult| {
            let met = match result.id {
                TaskId(0) => came.lock().unwrap().recv_timeout(PATIENCE).is_ok(),
                _ => beside.lock().unwrap().send(()).is_ok(),
            };
            ended_sender.send((result.id.0, met && result.outcome.is_ok())).unwrap();
        });
        let device = fixture.engine.open(2, sink).unwrap();
        device.attach(ModelId(0), model);
        assert_eq!((device.lanes(), device.depth()), (2, 2));
        let on = |lane: u16, id: u32| Task { lane: LaneId(lane), ..task(id, 0, vec![request(id, &numbers(4, 1))]) };
        device.submit(on(0, 0)).unwrap();
        device.submit(on(1, 1)).unwrap();
        let mut ends = [ended.recv_timeout(PATIENCE).unwrap(), ended.recv_timeout(PATIENCE).unwrap()];
        ends.sort_unstable();
        assert_eq!(ends, [(0, true), (1, true)]);
        assert_eq!(device.submit(on(2, 2)).unwrap_err().id, TaskId(2), "there is no such lane");
    }
}

/// Walks use both lanes in turn and concurrently, in batches that change from block to block.
#[test]
fn walks_go_from_lane_to_lane_while_others_run() {
    for fixture in [cpu_of_two_lanes(), onnxruntime_of_two_lanes(), emulated_of_two_lanes()] {
        let stand = fixture.stand(&fixture.chain);
        let row = |slot: u32| numbers(4, slot as usize);
        for round in 0..30u32 {
            let slots: Vec<u32> = (0..8).map(|at| round * 8 + at).collect();
            let submit = |id: u32, block: u16, slots: &[u32]| {
                let members = slots.iter().map(|&slot| match block {
                    0 => request(slot, &row(slot)),
                    _ => later(&request(slot, &row(slot))),
                });
                let lane = LaneId(((id + round) % 2) as u16);
                stand.device.submit(Task { lane, ..task(id, block, members.collect()) }).unwrap();
            };
            submit(0, 0, &slots[..3]);
            submit(1, 0, &slots[3..]);
            for _ in 0..2 {
                stand.result().outcome.unwrap();
            }
            let crossed: Vec<u32> = (0..8).map(|at| slots[at * 3 % 8]).collect();
            submit(2, 1, &crossed[..5]);
            submit(3, 1, &crossed[5..]);
            for _ in 0..2 {
                let result = stand.result();
                let of = if result.id == TaskId(2) { &crossed[..5] } else { &crossed[5..] };
                for (&slot, progress) in of.iter().zip(result.outcome.unwrap()) {
                    assert_close(&floats(&progress.outputs[0]), &(fixture.answer)(&row(slot)));
                }
            }
        }
    }
}

/// A device of one thread runs one batch at a time, regardless of its lanes; the others wait and
/// can be cancelled.
#[test]
fn a_device_of_one_thread_takes_its_lanes_in_turn() {
    let fixture = Fixture { lanes: 2, ..cpu() };
    let stand = fixture.stand(&fixture.whole);
    let mut spans = Vec::new();
    for id in 0..40u32 {
        let batch = (0..8).map(|slot| request(100 * (id % 2) + slot, &numbers(4, 1))).collect();
        stand.device.submit(Task { lane: LaneId((id % 2) as u16), ..task(id, 0, batch) }).unwrap();
        if id % 2 == 1 {
            for _ in 0..2 {
                let result = stand.result();
                result.outcome.unwrap();
                spans.push((result.started, result.finished));
            }
        }
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two batches ran concurrently");
}
