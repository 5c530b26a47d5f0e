//! Batches that are padded to certain sizes.

use crate::common::*;
use ripieno_base::RequestSlot;
use ripieno_executor::*;
use ripieno_model::DataType;
use std::sync::Arc;
use std::time::Duration;

const SIZES: [usize; 4] = [1, 2, 6, MAX_BATCH];

fn sized(source: &ModelSource) -> ModelSource {
    ModelSource { batch_sizes: SIZES.to_vec(), ..source.clone() }
}

/// A model that answers 1 divided by the number of rows that the engine runs, if they are alike.
fn counting() -> ModelSource {
    files(&["softmax_of_batch"])
}

fn rows_run(stand: &Stand, members: Vec<TaskMember>) -> f32 {
    let progress = stand.run(0, members).unwrap();
    let answers: Vec<f32> = progress.iter().flat_map(|progress| floats(&progress.outputs[0])).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    1.0 / answers[0]
}

#[test]
fn an_engine_runs_no_other_size() {
    for engine in engines() {
        let (stand, free) = (Stand::new(&*engine, &sized(&counting())), Stand::new(&*engine, &counting()));
        assert_eq!(stand.model.batch_sizes(), SIZES);
        for rows in 1..=MAX_BATCH {
            let alike = |slot: u32, rows: usize| {
                let tensor = fp32("x", &[rows as i64], &vec![0.5; rows]);
                TaskMember::new(RequestSlot(slot), rows, entry(tensor))
            };
            let members = || (0..rows as u32).map(|slot| alike(slot, 1)).collect::<Vec<_>>();
            let next = SIZES.into_iter().find(|&size| size >= rows).unwrap();
            assert!((rows_run(&stand, members()) - next as f32).abs() < 1e-3, "{rows} rows");
            assert!((rows_run(&free, members()) - rows as f32).abs() < 1e-3, "{rows} rows");
            assert!((rows_run(&stand, vec![alike(0, rows)]) - next as f32).abs() < 1e-3, "one request of {rows} rows");
        }
    }
}

#[test]
fn padded_batches_answer_as_others() {
    for fixture in [cpu(), onnxruntime_bound(), isolated_cpu(), isolated_onnxruntime_of_two_lanes(), emulated()] {
        let (whole, chain) = (fixture.stand(&sized(&fixture.whole)), fixture.stand(&sized(&fixture.chain)));
        for count in 1..=MAX_BATCH {
            let rows: Vec<Vec<f32>> = (0..count).map(|seed| numbers(4, seed)).collect();
            let members: Vec<TaskMember> = (0..).zip(&rows).map(|(slot, row)| request(slot, row)).collect();
            chain.run(0, members.clone()).unwrap();
            let second = chain.run(1, members.iter().map(later).collect()).unwrap();
            let answers = [whole.run(0, members).unwrap(), second];
            for (row, progress) in answers.iter().flat_map(|answers| rows.iter().zip(answers)) {
                assert_eq!(progress.outputs[0].shape[0], 1);
                assert_close(&floats(&progress.outputs[0]), &(fixture.answer)(row));
            }
        }
    }
}

#[test]
fn members_leave_a_padded_batch_and_join_another() {
    for fixture in [cpu(), onnxruntime(), isolated_onnxruntime_of_two_lanes()] {
        let stand = fixture.stand(&sized(&fixture.chain));
        let row = |slot: u32| numbers(4, slot as usize);
        stand.run(0, (0..5).map(|slot| request(slot, &row(slot))).collect()).unwrap();
        stand.run(0, vec![request(9, &row(9))]).unwrap();
        // The first are followed by a row of another request, the others by no row at all.
        for slots in [&[0u32, 1, 2][..], &[4], &[3, 9]] {
            let members = slots.iter().map(|&slot| later(&request(slot, &row(slot)))).collect();
            for (&slot, progress) in slots.iter().zip(stand.run(1, members).unwrap()) {
                assert_close(&floats(&progress.outputs[0]), &(fixture.answer)(&row(slot)));
            }
        }
    }
}

#[test]
fn strings_are_padded_too() {
    for engine in [onnxruntime_bound().engine, isolated_onnxruntime_of_two_lanes().engine] {
        let stand = Stand::new(&*engine, &sized(&files(&["identity_bytes"])));
        let row = b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c";
        let data = bytes::Bytes::from(row.repeat(3));
        let tensor = Tensor { name: "x".into(), datatype: DataType::Bytes, shape: vec![3, 3], data: data.clone() };
        let outputs = stand.ask(tensor).unwrap();
        assert_eq!((&outputs[0].shape[..], &outputs[0].data), (&[3, 3][..], &data));
    }
}

#[test]
fn a_profile_has_a_step_for_each_size() {
    for fixture in [cpu(), onnxruntime()] {
        let model = fixture.engine.load(&sized(&fixture.chain)).unwrap();
        let mut measured = Vec::new();
        let measurement = Measurement { max_batch: MAX_BATCH, budget: Duration::from_millis(200), example: None };
        let profile = measure(&*fixture.engine, &model, &measurement, &mut |step| measured.push(step.batch)).unwrap();
        assert_eq!(measured, SIZES);
        for block in &profile.blocks {
            assert_eq!(block.profile.stepped(&SIZES), block.profile);
            assert_eq!(block.profile.max_batch(), MAX_BATCH);
        }
    }
}

#[test]
fn wrong_sizes_are_refused() {
    let engine = cpu().engine;
    for sizes in [vec![1, 8], vec![4, 2, MAX_BATCH], vec![0, MAX_BATCH], vec![MAX_BATCH, MAX_BATCH]] {
        let refused = engine.load(&ModelSource { batch_sizes: sizes.clone(), ..files(&["mlp"]) });
        let cause = refused.map(|_| ()).unwrap_err().to_string();
        assert!(cause.contains(&format!("batch_sizes {sizes:?} must ascend")), "{cause}");
    }
}

#[test]
fn requests_that_share_no_batch_are_not_padded() {
    let engine = cpu().engine;
    let alone = ModelSource { unbatched: true, ..sized(&files(&["mlp"])) };
    let loaded: Arc<dyn LoadedModel> = engine.load(&alone).unwrap();
    assert!(loaded.batch_sizes().is_empty());
}
