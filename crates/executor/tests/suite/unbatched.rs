//! Models whose requests do not share batches: because their files have no batch dimension, or
//! because their rows depend on each other.

use crate::common::*;
use ripieno_base::RequestSlot;
use ripieno_executor::*;
use ripieno_model::{DataType, TensorSpec};
use ripieno_onnx::{OnnxFile, batch_first};
use std::sync::Arc;

/// A request in the devices' form: one row, before the file's own dimensions.
fn whole(tensors: Vec<Tensor>) -> Vec<TaskMember> {
    vec![TaskMember::new(RequestSlot(0), 1, Some(Arc::new(RequestEntry::of(tensors.into()))))]
}

#[test]
fn a_file_without_a_batch_runs_one_request_at_a_time() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["two_rows"]));
        assert!(!stand.model.batched());
        assert_eq!(
            (&stand.model.inputs()[0].shape[..], &stand.model.outputs()[0].shape[..]),
            (&[-1, 2, 3][..], &[-1, 2, 3][..])
        );
        let x = numbers(6, 1);
        let y = stand.run(0, whole(vec![fp32("x", &[1, 2, 3], &x)])).unwrap().remove(0).outputs.remove(0);
        assert_eq!(y.shape, [1, 2, 3]);
        let share = |at: usize| x[at].exp() / (x[at % 3].exp() + x[at % 3 + 3].exp());
        assert_close(&floats(&y), &(0..6).map(share).collect::<Vec<_>>());
        let pair = [0, 1].map(|slot| TaskMember::new(RequestSlot(slot), 1, entry(fp32("x", &[1, 2, 3], &x))));
        assert!(stand.run(0, pair.to_vec()).unwrap_err().0.contains("has 2 rows, but it must have 1 to 1"));
    }
}

#[test]
fn scalars_and_a_fixed_batch_of_one_are_answered() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["scalars"]));
        let request = whole(vec![fp32("a", &[1], &[3.0]), fp32("b", &[1], &[-0.5])]);
        let y = stand.run(0, request).unwrap().remove(0).outputs.remove(0);
        assert_eq!((&y.shape[..], floats(&y)), (&[1][..], vec![-1.5]));
        let stand = Stand::new(&*engine, &files(&["mlp_fixed_batch"]));
        let h = stand.run(0, whole(vec![fp32("x", &[1, 1, 4], &numbers(4, 2))])).unwrap().remove(0).outputs.remove(0);
        assert_eq!(h.shape, [1, 1, 8]);
        let alone = Stand::new(&*engine, &files(&["mlp_first"])).ask(fp32("x", &[1, 4], &numbers(4, 2))).unwrap();
        assert_close(&floats(&h), &floats(&alone[0]));
        assert_eq!(measure_one(&*engine, "two_rows").len(), 1);
    }
    let stand = Stand::new(&onnxruntime_engine(), &files(&["one_text"]));
    let text =
        Tensor { name: "x".into(), datatype: DataType::Bytes, shape: vec![1, 1], data: b"\x02\0\0\0ab"[..].into() };
    let y = stand.run(0, whole(vec![text.clone()])).unwrap().remove(0).outputs.remove(0);
    assert_eq!((&y.shape[..], &y.data), (&[1, 1][..], &text.data));
}

#[test]
fn a_file_that_is_given_its_batch_first_answers_as_before() {
    let path = std::env::temp_dir().join(format!("ripieno-batch-first-{}.onnx", std::process::id()));
    let file = OnnxFile::read(&model_path("batch_second")).unwrap();
    std::fs::write(&path, batch_first(&file, &[("x".to_owned(), 1), ("y".to_owned(), 1)]).unwrap()).unwrap();
    for engine in engines() {
        let block = BlockSource { path: Some(path.clone()), ..BlockSource::new("model") };
        let stand = Stand::new(&*engine, &ModelSource::new("model", vec![block], 8));
        let rows = [numbers(6, 1), numbers(6, 2), numbers(6, 3)];
        let members = (0..3)
            .map(|slot| TaskMember::new(RequestSlot(slot), 1, entry(fp32("x", &[1, 2, 3], &rows[slot as usize]))));
        let together = stand.run(0, members.collect()).unwrap();
        for (row, x) in together.into_iter().zip(&rows) {
            // weight(3, 4, 5) of make_models.py.
            let weight = |at: usize| ((at * 5 % 17) as f32 - 8.0) / 8.0;
            let unit = |step: usize, unit: usize| {
                (0..3).map(|at| x[step * 3 + at] * weight(at * 4 + unit)).sum::<f32>().tanh()
            };
            let y: Vec<f32> = (0..8).map(|at| unit(at / 4, at % 4)).collect();
            let mean: Vec<f32> = (0..4).map(|at| (y[at] + y[4 + at]) / 2.0).collect();
            assert_eq!((&row.outputs[0].shape[..], &row.outputs[1].shape[..]), (&[1, 2, 4][..], &[1, 4][..]));
            assert_close(&floats(&row.outputs[0]), &y);
            assert_close(&floats(&row.outputs[1]), &mean);
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_past_may_be_empty() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["with_past"]));
        let ask = |slot: u32, past: usize| {
            let tensors =
                [fp32("x", &[1, 1, 2], &[1.0, 2.0]), fp32("past", &[1, past as i64, 2], &vec![0.5; past * 2])];
            TaskMember::new(RequestSlot(slot), 1, Some(Arc::new(RequestEntry::of(tensors.into()))))
        };
        for past in [0, 3, 0] {
            let answers = stand.run(0, vec![ask(0, past), ask(1, past)]).unwrap();
            for answer in answers {
                let all = past as f32 * 0.5;
                assert_eq!(floats(&answer.outputs[0]), [1.0 + all, 2.0 + all]);
                assert_eq!(answer.outputs[1].shape, [1, past as i64 + 1, 2]);
            }
        }
    }
}

fn measure_one(engine: &dyn Executor, file: &str) -> Vec<BlockProfile> {
    let measurement = Measurement { max_batch: 1, budget: std::time::Duration::ZERO, example: None };
    measure(engine, &engine.load(&files(&[file])).unwrap(), &measurement, &mut |_| {}).unwrap().blocks
}

#[test]
fn any_model_runs_without_a_batch_if_asked_to() {
    for engine in engines() {
        for (names, rows) in
            [(&["mlp"][..], 3), (&["mlp_first", "mlp_second"], 3), (&["mlp_fixed_batch", "mlp_second"], 1)]
        {
            let stand = Stand::new(&*engine, &ModelSource { unbatched: rows > 1, ..files(names) });
            // All rows of the file are one request, which is one row here.
            let x = numbers(rows * 4, 3);
            let mut progress = stand.run(0, whole(vec![fp32("x", &[1, rows as i64, 4], &x)])).unwrap();
            for block in 1..names.len() {
                let later = TaskMember::new(RequestSlot(0), 1, None);
                progress = stand.run(block as u16, vec![later]).unwrap();
            }
            let y = &progress[0].outputs[0];
            assert_eq!(y.shape, [1, rows as i64, 3]);
            assert_close(&floats(y), &x.chunks(4).flat_map(mlp).collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_needs_rows_is_refused_without_a_batch() {
    let engine = cpu().engine;
    let refused = |source: &ModelSource| engine.load(source).map(|_| ()).unwrap_err().to_string();
    let chain = refused(&files(&["mlp_fixed_batch", "two_rows"]));
    assert!(chain.contains("declares 'x' as FP32 [-1, 2, 3]"), "{chain}");
    let length = InputLength { tensor: "x".to_owned(), dim: 1, pad: 0.0 };
    let lengths = LengthDims { inputs: vec![length], outputs: vec![] };
    let padded = refused(&ModelSource { lengths, ..files(&["two_rows"]) });
    assert!(padded.contains("input 'x'") && padded.contains("remove every length_dim"), "{padded}");
    let cell = refused(&ModelSource { walk: ripieno_model::Walk::Repeat, ..files(&["two_rows"]) });
    assert!(cell.contains("a walk of cells steps row by row"), "{cell}");
}

#[test]
fn rows_that_depend_on_each_other_are_found() {
    for engine in engines() {
        let tried = |name: &str, max_batch| {
            let model = engine.load(&files(&[name])).unwrap();
            let confirmed = check_rows(&*engine, &model, max_batch, &[], RowTrial::Confirms);
            let decided = check_rows(&*engine, &model, max_batch, &[], RowTrial::Decides);
            assert_eq!(std::mem::discriminant(&confirmed), std::mem::discriminant(&decided), "{name}");
            confirmed
        };
        for name in ["mlp", "double", "gather", "pool", "handed_through"] {
            assert_eq!(tried(name, 16), RowIndependence::Independent, "{name}");
        }
        for name in ["softmax_of_batch", "running_sum", "centred", "turned", "sum_of_all"] {
            for max_batch in [2, 3, 16] {
                let RowIndependence::Mixed(how) = tried(name, max_batch) else {
                    panic!("{name} passes at {max_batch}")
                };
                assert!(how.contains("beside others") || how.contains("together fail"), "{name}: {how}");
            }
            assert_eq!(tried(name, 1), RowIndependence::Independent, "a row is never beside others");
        }
        let chain = engine.load(&files(&["mlp_first", "mlp_second"])).unwrap();
        assert_eq!(check_rows(&*engine, &chain, 16, &[], RowTrial::Decides), RowIndependence::Independent);
    }
}

#[test]
fn a_declared_size_lets_a_model_be_tried_that_takes_no_other() {
    let declared = [TensorSpec { name: "x".to_owned(), datatype: DataType::Fp32, shape: vec![-1, 7] }];
    for engine in engines() {
        let tried = |name: &str, declared| {
            check_rows(&*engine, &engine.load(&files(&[name])).unwrap(), 16, declared, RowTrial::Confirms)
        };
        for name in ["seven_wide", "seven_wide_centred"] {
            assert!(matches!(tried(name, &[]), RowIndependence::Untried(_)), "{name}");
        }
        assert_eq!(tried("seven_wide", &declared[..]), RowIndependence::Independent);
        let RowIndependence::Mixed(how) = tried("seven_wide_centred", &declared[..]) else { panic!("it mixes rows") };
        assert!(how.contains("differs by") && how.contains("% of its largest number"), "{how}");
    }
}
