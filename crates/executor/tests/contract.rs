//! The executor contract, over every engine: whatever a scheduler relies on must hold for all of them alike.

mod common;

use common::*;
use ripieno_base::{ModelId, Nanos, TaskId};
use ripieno_executor::*;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

macro_rules! contract {
    ($($engine:ident: $($test:ident)*;)*) => {
        $(mod $engine {
            $(#[test]
            fn $test() {
                super::$test(&super::common::$engine());
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

contract!(cpu onnxruntime emulated => {
    a_batch_answers_as_each_request_alone
    requests_of_several_rows_keep_their_rows
    a_chain_answers_as_the_whole
    nothing_is_copied_while_the_members_stay
    members_may_leave_and_join_between_blocks
    tasks_run_in_the_order_of_submission
    the_depth_is_respected_and_handed_back
    each_accepted_task_ends_once_even_on_drop
    a_cancelled_task_that_waits_is_never_begun
    models_come_and_go_in_order
    a_model_may_be_on_several_devices
    different_widths_cannot_share_a_batch
    a_wrong_request_fails_and_says_why
    a_batch_beyond_the_maximum_fails
    the_walk_is_declared
    latencies_can_be_measured
});

fn a_batch_answers_as_each_request_alone(fixture: &Fixture) {
    let stand = Stand::new(&*fixture.engine, &fixture.whole);
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
    let stand = Stand::new(&*fixture.engine, &fixture.whole);
    let requests: Vec<Vec<f32>> = [1, 3, 2].iter().map(|rows| numbers(rows * 4, *rows)).collect();
    let members = requests.iter().enumerate().map(|(slot, rows)| request(slot as u32, rows)).collect();
    for (rows, progress) in requests.iter().zip(stand.run(0, members).unwrap()) {
        let expected: Vec<f32> = rows.chunks(4).flat_map(fixture.answer).collect();
        assert_eq!(progress.outputs[0].shape[0] as usize, rows.len() / 4);
        assert_close(&floats(&progress.outputs[0]), &expected);
    }
}

fn a_chain_answers_as_the_whole(fixture: &Fixture) {
    let stand = Stand::new(&*fixture.engine, &fixture.chain);
    let rows: Vec<Vec<f32>> = (0..3).map(|seed| numbers(4, seed)).collect();
    let members: Vec<Member> = rows.iter().enumerate().map(|(slot, row)| request(slot as u32, row)).collect();
    let first = stand.run(0, members.clone()).unwrap();
    assert!(first.iter().all(|progress| !progress.ended && progress.outputs.is_empty()));
    let second = stand.run(1, members.iter().map(later).collect()).unwrap();
    for (row, progress) in rows.iter().zip(second) {
        assert!(progress.ended);
        assert_close(&floats(&progress.outputs[0]), &(fixture.answer)(row));
    }
}

fn nothing_is_copied_while_the_members_stay(fixture: &Fixture) {
    let stand = Stand::new(&*fixture.engine, &fixture.chain);
    let members: Vec<Member> = (0..3).map(|slot| request(slot, &numbers(4, slot as usize))).collect();
    stand.run(0, members.clone()).unwrap();
    assert_eq!(stand.device.rows_gathered(), 3);
    stand.run(1, members.iter().map(later).collect()).unwrap();
    assert_eq!(stand.device.rows_gathered(), 3);
}

fn members_may_leave_and_join_between_blocks(fixture: &Fixture) {
    let stand = Stand::new(&*fixture.engine, &fixture.chain);
    let row = |slot: u32| numbers(4, slot as usize);
    let members: Vec<Member> = (0..4).map(|slot| request(slot, &row(slot))).collect();
    stand.run(0, members.clone()).unwrap();
    stand.run(0, vec![request(7, &row(7))]).unwrap();
    let gathered = stand.device.rows_gathered();
    // Two of the four go on in another order, with one that came later; then the others, who are not neighbours.
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
    let stand = Stand::new(&*fixture.engine, &fixture.whole);
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

/// The receiver of results holds the device up, so that what it holds is known without a clock.
fn the_depth_is_respected_and_handed_back(fixture: &Fixture) {
    let model = fixture.engine.load(&fixture.whole).unwrap();
    let (entered_sender, entered) = channel();
    let (leave, leaving) = channel::<()>();
    let leaving = std::sync::Mutex::new(leaving);
    let sink: Sink = Arc::new(move |result: TaskResult| {
        entered_sender.send(result.id).unwrap();
        // Once the test is over, nobody says so, and nothing is held up any more.
        let _ = leaving.lock().unwrap().recv_timeout(PATIENCE);
    });
    let device = fixture.engine.open(sink).unwrap();
    device.attach(ModelId(0), model);
    let one = |id: u32| task(id, 0, vec![request(0, &numbers(4, 1))]);
    device.submit(one(0)).unwrap();
    assert_eq!(entered.recv_timeout(PATIENCE), Ok(TaskId(0)));
    // Task 0 is over, its result is being received: the whole depth is free again.
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

fn each_accepted_task_ends_once_even_on_drop(fixture: &Fixture) {
    let Stand { device, results, .. } = Stand::new(&*fixture.engine, &fixture.whole);
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

/// As above, the receiver of results holds the device up.
fn a_cancelled_task_that_waits_is_never_begun(fixture: &Fixture) {
    let model = fixture.engine.load(&fixture.whole).unwrap();
    let (ended_sender, ended) = channel();
    let (leave, leaving) = channel::<()>();
    let leaving = std::sync::Mutex::new(leaving);
    let sink: Sink = Arc::new(move |result: TaskResult| {
        ended_sender.send((result.id, result.outcome.map_err(|error| error.to_string()))).unwrap();
        let _ = leaving.lock().unwrap().recv_timeout(PATIENCE);
    });
    let device = fixture.engine.open(sink).unwrap();
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
    // Task 0 is over and task 7 was never there: neither matters.
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
    let stand = Stand::new(&*fixture.engine, &fixture.whole);
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
    let first = Stand::new(&*fixture.engine, &fixture.whole);
    let (sender, results) = channel();
    let device = fixture.engine.open(Arc::new(move |result| drop(sender.send(result)))).unwrap();
    device.attach(ModelId(0), Arc::clone(&first.model));
    let second = Stand { device, results, model: Arc::clone(&first.model) };
    let x = numbers(4, 1);
    for stand in [&first, &second] {
        let answer = stand.run(0, vec![request(0, &x)]).unwrap();
        assert_close(&floats(&answer[0].outputs[0]), &(fixture.answer)(&x));
    }
}

fn different_widths_cannot_share_a_batch(fixture: &Fixture) {
    let stand = Stand::new(&*fixture.engine, &fixture.any_width);
    let member = |slot: u32, width: usize| wide_request(slot, &numbers(width, 1), width);
    let error = stand.run(0, vec![member(0, 5), member(1, 7)]).unwrap_err();
    assert_eq!(error.0, "requests of different shapes cannot share a batch: input 'x' has rows of [5] and of [7]");
    for width in [5, 7] {
        let outputs = stand.run(0, vec![member(0, width), member(1, width)]).unwrap();
        assert_eq!(outputs[1].outputs[0].shape, [1, width as i64]);
    }
}

fn a_wrong_request_fails_and_says_why(fixture: &Fixture) {
    let stand = Stand::new(&*fixture.engine, &fixture.whole);
    let good = request(0, &numbers(4, 1));
    let with = |tensor: Tensor| Member { entry: entry(tensor), ..good.clone() };
    let tensor = good.entry.as_ref().unwrap().inputs[0].clone();
    let cases = [
        (Member { entry: None, ..good.clone() }, "does not bring it"),
        (with(Tensor { name: "z".into(), ..tensor.clone() }), "does not bring it"),
        (with(Tensor { datatype: ripieno_model::DataType::Int32, ..tensor.clone() }), "it is INT32, not FP32"),
        (with(Tensor { shape: vec![1, 5], ..tensor.clone() }), "it holds 16 bytes"),
        (Member { rows: 2, ..good.clone() }, "it has 1 rows, the request 2"),
        (Member { rows: 0, ..good.clone() }, "without rows"),
    ];
    for (member, words) in cases {
        let error = stand.run(0, vec![member]).unwrap_err();
        assert!(error.0.contains(words), "{error}");
    }
    stand.run(9, vec![good.clone()]).unwrap_err();
    stand.run(0, vec![good]).unwrap();
}

fn a_batch_beyond_the_maximum_fails(fixture: &Fixture) {
    let stand = Stand::new(&*fixture.engine, &fixture.whole);
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
    let profiles = measure(&*fixture.engine, &model, &measurement, &mut |step| sizes.push(step.batch)).unwrap();
    assert_eq!(profiles.len(), 2);
    assert!(profiles.iter().all(|of| of.profile.max_batch() == 6 && of.profile.latency(1) > Nanos::ZERO));
    assert!([1, 2, 4, 6].starts_with(&sizes) && !sizes.is_empty(), "{sizes:?}");
}
