//! One or several bad requests in a batch. The other requests get the same answers as without them.

use crate::common::*;
use ripieno_base::RequestSlot;
use ripieno_executor::*;
use ripieno_model::{DataType, Extent, Steps, Walk};
use std::sync::Arc;

/// Number of rows of the table that the model looks up; row i is [i, -i].
const ROWS: usize = 100;
const NEIGHBOURS: usize = 12;

/// Creates a request that looks up row `row`. The row is not checked as an id, so only the engine
/// detects an invalid one.
fn pick(slot: usize, row: usize, input: &str) -> TaskMember {
    TaskMember::new(RequestSlot(slot as u32), 1, entry(fp32(input, &[1], &[row as f32])))
}

/// Returns the rows that twelve requests look up. Each request in `bad` looks up a different row
/// that does not exist.
fn asked(bad: &[usize]) -> Vec<usize> {
    (0..NEIGHBOURS).map(|slot| if bad.contains(&slot) { ROWS + 1 + 7 * slot } else { slot * 8 % ROWS }).collect()
}

const CASES: [&[usize]; 5] = [&[5], &[0], &[2, 9], &[10, 11], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]];

/// Checks each request's result. A request for an existing row must get the row. Any other must get
/// an error that contains no other request's number.
fn judge(asked: &[usize], progress: &[MemberProgress], sign: f32) {
    assert_eq!(asked.len(), progress.len());
    for (&row, progress) in asked.iter().zip(progress) {
        match &progress.failed {
            None => {
                assert!(row < ROWS && progress.ended, "row {row} is not there");
                assert_close(&floats(&progress.outputs[0]), &[row as f32 * sign, row as f32 * -sign]);
            }
            Some(cause) => {
                assert!(row >= ROWS && !progress.ended && progress.outputs.is_empty(), "row {row}: {cause}");
                speaks_of(cause, row, asked);
            }
        }
    }
}

/// Checks that no number in a message is another request's.
fn speaks_of(cause: &ExecError, own: usize, asked: &[usize]) {
    let others = asked.iter().filter(|&&row| row != own && row >= ROWS);
    let digits =
        |text: &str| text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect::<Vec<usize>>();
    let said = digits(&cause.0);
    others.for_each(|other| assert!(!said.contains(other), "{cause} speaks of {other}"));
}

#[test]
fn the_bad_requests_of_a_batch_fail_alone() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["pick_third"]));
        for bad in CASES {
            let rows = asked(bad);
            let members = rows.iter().enumerate().map(|(slot, &row)| pick(slot, row, "g"));
            stand.device.submit(task(0, 0, members.collect())).unwrap();
            let result = stand.result();
            let runs = result.rerun.expect("the batch failed").runs as usize;
            // Halving costs at most 2 runs per level for each bad request, and at most one run per
            // node of the tree of halves.
            assert!(runs <= (2 * 4 * bad.len()).min(2 * NEIGHBOURS - 2), "{runs} further runs for {bad:?}");
            judge(&rows, &result.outcome.unwrap(), 1.0);
        }
    }
}

#[test]
fn bad_requests_of_the_third_block_leave_a_chain_alone() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["pick_first", "pick_second", "pick_third"]));
        for bad in CASES {
            let rows = asked(bad);
            let members: Vec<TaskMember> = rows.iter().enumerate().map(|(slot, &row)| pick(slot, row, "x")).collect();
            stand.run(0, members.clone()).unwrap();
            let go_on: Vec<TaskMember> = members.iter().map(later).collect();
            assert!(stand.run(1, go_on.clone()).unwrap().iter().all(|progress| progress.failed.is_none()));
            judge(&rows, &stand.run(2, go_on.clone()).unwrap(), 1.0);
            let gone = stand.run(2, go_on).unwrap();
            assert!(gone.iter().all(|progress| progress.failed.is_some()), "nothing is left of walks that are over");
        }
    }
}

/// Adds up the rows that it looks up, one per step.
fn sums() -> ModelSource {
    let carried = InputLink { input: "h".into(), from: InputSource::Previous("h_next".into()), initial: None };
    let cell = BlockSource {
        path: Some(model_path("cell_pick")),
        steps: Steps::Length,
        links: vec![carried],
        ..BlockSource::new("cell")
    };
    let answer = AnswerSource {
        name: "h".into(),
        block: Some(ripieno_base::BlockId(0)),
        tensor: "h_next".into(),
        take: AnswerSteps::Last,
    };
    ModelSource { walk: Walk::Repeat, answers: vec![answer], ..empty("sums", vec![cell]) }
}

#[test]
fn bad_requests_in_cells_fail_alone_at_any_step() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &sums());
        for (bad, at) in CASES.iter().zip([0, 2, 1, 2, 0]) {
            let last = asked(bad);
            let number = |slot: usize, step: usize| if step == at { last[slot] } else { slot + step };
            let sequences: Vec<Vec<f32>> =
                (0..NEIGHBOURS).map(|slot| (0..3).map(|step| number(slot, step) as f32).collect()).collect();
            let extent = Extent { length: 3, limit: 0 };
            let entries: Vec<Arc<RequestEntry>> = sequences
                .iter()
                .map(|of| Arc::new(RequestEntry { extent, ..RequestEntry::of([fp32("g", &[1, 3], of)].into()) }))
                .collect();
            let mut over = [false; NEIGHBOURS];
            for step in 0..3 {
                let member = |slot: usize| TaskMember {
                    node: step as u32,
                    ..TaskMember::new(RequestSlot(slot as u32), 1, Some(Arc::clone(&entries[slot])))
                };
                // The failed members stay in the batches that were queued ahead.
                let progress = stand.run(0, (0..NEIGHBOURS).map(member).collect()).unwrap();
                for (slot, progress) in progress.into_iter().enumerate() {
                    let bad_one = bad.contains(&slot) && step == at;
                    assert_eq!(
                        progress.failed.is_some(),
                        bad_one,
                        "request {slot} at step {step}: {:?}",
                        progress.failed
                    );
                    progress.failed.iter().for_each(|cause| speaks_of(cause, last[slot], &last));
                    over[slot] |= bad_one;
                    assert_eq!(progress.ended, step == 2 && !over[slot]);
                    if progress.ended {
                        let sum: f32 = sequences[slot].iter().sum();
                        assert_close(&floats(&progress.outputs[0]), &[sum, -sum]);
                    }
                }
            }
        }
    }
}

#[test]
fn a_request_without_a_waiting_client_is_not_run_again() {
    let stand = Stand::new(&*cpu().engine, &files(&["pick_third"]));
    let mut members: Vec<TaskMember> =
        asked(&[3]).iter().enumerate().map(|(slot, &row)| pick(slot, row, "g")).collect();
    members[8].until = Some(std::time::Instant::now());
    let progress = stand.run(0, members).unwrap();
    let failed: Vec<usize> = (0..NEIGHBOURS).filter(|&slot| progress[slot].failed.is_some()).collect();
    assert_eq!(failed, [3, 8]);
    assert!(progress[8].failed.as_ref().unwrap().0.contains("send the request again"));
}

#[test]
fn text_that_is_none_fails_alone() {
    let engine = onnxruntime_engine();
    let stand = Stand::new(&engine, &files(&["identity_bytes"]));
    let element = |slot: usize| if slot == 4 { vec![0xff, 0xfe] } else { vec![b'a' + slot as u8] };
    let strings = |slot: usize| {
        let elements =
            (0..3).map(|_| element(slot)).flat_map(|of| [&(of.len() as u32).to_le_bytes()[..], &of].concat());
        Tensor {
            name: "x".into(),
            datatype: DataType::Bytes,
            shape: vec![1, 3],
            data: elements.collect::<Vec<u8>>().into(),
        }
    };
    let members = (0..NEIGHBOURS).map(|slot| TaskMember::new(RequestSlot(slot as u32), 1, entry(strings(slot))));
    for (slot, progress) in stand.run(0, members.collect()).unwrap().into_iter().enumerate() {
        assert_eq!(progress.failed.is_some(), slot == 4);
        assert!(slot == 4 || progress.outputs[0].data == strings(slot).data);
    }
    let refused = stand.model.describe(&[strings(4)]).unwrap_err();
    assert!(refused.0.contains("input 'x' holds no UTF-8 text without zero bytes at element 0"), "{refused}");
    stand.model.describe(&[strings(0)]).unwrap();
}

#[test]
fn ids_that_no_table_has_are_refused_at_admission() {
    for engine in engines() {
        // Directly, and after a change of type and shape.
        for (model, rows) in [("gather", 10_i64), ("gather_cast", 100)] {
            let loaded = engine.load(&files(&[model])).unwrap();
            let ids = |ids: [i64; 2]| {
                let data = ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>().into();
                Tensor { name: "ids".into(), datatype: DataType::Int64, shape: vec![1, 2], data }
            };
            let refused = loaded.describe(&[ids([0, rows])]).unwrap_err().0;
            let words = format!(
                "input 'ids' holds {rows} at element 1, but the model has a table of {rows} rows there; send ids from -{rows} to {}",
                rows - 1
            );
            assert_eq!(refused, words);
            assert!(loaded.describe(&[ids([-rows - 1, 0])]).is_err());
            loaded.describe(&[ids([-rows, rows - 1])]).unwrap();
            let stand = Stand::of_model(&*engine, loaded, 1);
            assert_eq!(floats(&stand.ask(ids([-rows, rows - 1])).unwrap()[0])[2], (rows - 1) as f32);
        }
    }
}
