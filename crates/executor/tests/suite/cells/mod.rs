//! Cells on every engine: each request gets the same answer as alone, regardless of how requests
//! share batches and devices.

mod drive;
#[cfg(target_os = "linux")]
mod lost;
mod models;
mod refused;
mod unfold;

use crate::common::*;
use drive::{Bench, mixed};
use models::{Random, Sent, int64, model, values};
use ripieno_base::{Nanos, RequestSlot};
use ripieno_executor::*;
use ripieno_model::{DataType, Extent, Profile, Steps, TensorSpec, Walk};
use std::sync::Arc;

const WALKS: [Walk; 6] =
    [Walk::Repeat, Walk::Stacked, Walk::Bidirectional, Walk::EncodeDecode, Walk::Tree, Walk::Graph];

#[track_caller]
fn check(walk: Walk, sent: &Sent, outputs: &[Tensor]) {
    let expected = sent.expected(walk);
    assert_eq!(outputs.len(), expected.len());
    for ((name, expected), output) in expected.iter().zip(outputs) {
        assert_eq!(&*output.name, *name);
        let found = values(output);
        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
        let equal = found.len() == expected.len() && found.iter().zip(expected).all(close);
        assert!(equal, "{walk:?} {sent:?}: {name} is {found:?}, not {expected:?}");
    }
}

#[test]
fn every_answer_is_the_one_alone_in_any_batches_on_one_and_two_devices() {
    for engine in cell_engines() {
        for walk in WALKS {
            for devices in [1, 2] {
                let bench = Bench::new(&*engine, model(walk), devices);
                let mut random = Random::new(walk as u64 * 31 + devices as u64);
                let sent = mixed(walk, 420, &mut random);
                let requests: Vec<Vec<Tensor>> = sent.iter().map(|sent| sent.tensors(walk)).collect();
                let answers = bench.answer_all(&requests, 20, &mut random);
                sent.iter().zip(&answers).for_each(|(sent, answer)| check(walk, sent, answer));
            }
        }
    }
}

/// Later steps of a recurrent cell may amplify a rounding difference without bound. So every row
/// must be bit by bit equal in every batch. The test uses a trained cell, because the arithmetic of
/// small cells is exact.
#[test]
fn a_row_is_computed_in_any_batch_as_alone_bit_by_bit() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/repository/sentiment/1/cell.onnx");
    let links = ["h", "c"].map(|state| models::link(state, InputSource::Previous(format!("{state}_next"))));
    let cell = BlockSource { path: Some(file), steps: Steps::Length, links: links.into(), ..BlockSource::new("cell") };
    let answers = vec![models::last("h", 0, "h_next")];
    let source = ModelSource { walk: Walk::Repeat, answers, ..ModelSource::new("sentiment", vec![cell], MAX_BATCH) };
    for engine in cell_engines() {
        let bench = Bench::new(&*engine, source.clone(), 1);
        let mut random = Random::new(9);
        let requests: Vec<Vec<Tensor>> = (0..24)
            .map(|_| (0..1 + random.below(40)).map(|_| 32 + random.below(95) as i64).collect::<Vec<i64>>())
            .map(|tokens| vec![int64("token", &[1, tokens.len() as i64], &tokens)])
            .collect();
        let alone = bench.answer_all(&requests, 1, &mut random);
        let together = bench.answer_all(&requests, 12, &mut random);
        for (number, (alone, together)) in alone.iter().zip(&together).enumerate() {
            assert!(alone[0].data == together[0].data, "request {number} on {}", engine.name());
        }
    }
}

#[test]
fn answers_have_the_declared_shapes() {
    for engine in cell_engines() {
        for walk in WALKS {
            let bench = Bench::new(&*engine, model(walk), 1);
            let sent = Sent::random(walk, &mut Random::new(7), 9);
            let answer = bench.answer_all(&[sent.tensors(walk)], 1, &mut Random::new(1)).remove(0);
            for (spec, tensor) in bench.model.outputs().iter().zip(&answer) {
                assert_eq!((spec.name.as_str(), spec.datatype), (&*tensor.name, tensor.datatype));
                let agree = |(&of, &dim): (&i64, &i64)| of == dim || of == -1;
                assert!(spec.shape.len() == tensor.shape.len() && spec.shape.iter().zip(&tensor.shape).all(agree));
                assert_eq!(tensor.shape[0], 1);
            }
        }
    }
}

/// While the same members step together in the same order, their state is never moved.
#[test]
fn nothing_is_copied_while_the_membership_stays() {
    for engine in engines() {
        let bench = Bench::new(&*engine, model(Walk::Repeat), 1);
        let sent: Vec<Sent> = (0..4).map(|at| Sent { tokens: vec![at, 1, 2, 3, 4], children: vec![] }).collect();
        let entries: Vec<Arc<RequestEntry>> =
            sent.iter().map(|sent| bench.entry(sent.tensors(Walk::Repeat)).unwrap()).collect();
        let batch = |slots: &[usize], node: u32| -> Vec<TaskMember> {
            let entry = |slot: usize| (node == 0).then(|| Arc::clone(&entries[slot]));
            slots
                .iter()
                .map(|&slot| TaskMember { node, ..TaskMember::new(RequestSlot(slot as u32), 1, entry(slot)) })
                .collect()
        };
        let counts = || (bench.devices[0].0.rows_gathered(), bench.devices[0].0.tasks_without_copy());
        bench.run(0, 0, batch(&[0, 1, 2, 3], 0));
        assert_eq!(counts(), (4, 0), "they begin with zeros");
        bench.run(0, 0, batch(&[0, 1, 2, 3], 1));
        bench.run(0, 0, batch(&[0, 1, 2, 3], 2));
        assert_eq!(counts(), (4, 2));
        // Neighbours in the previous batch are contiguous. In another order, rows are copied.
        bench.run(0, 0, batch(&[1, 2], 3));
        assert_eq!(counts(), (4, 3));
        bench.run(0, 0, batch(&[3, 0], 3));
        assert_eq!(counts(), (6, 3));
        bench.run(0, 0, batch(&[0, 1, 2], 4)).iter().zip(&sent).for_each(|(progress, sent)| {
            check(Walk::Repeat, sent, &progress.outputs);
        });
    }
}

/// Steps that were queued beyond the end of a request change nothing and move no state. The slot is
/// free for its next request.
#[test]
fn steps_beyond_the_end_are_discarded() {
    for engine in cell_engines() {
        let bench = Bench::new(&*engine, model(Walk::EncodeDecode), 1);
        let mut random = Random::new(3);
        let sent = mixed(Walk::EncodeDecode, 40, &mut random);
        let steps = |sent: &Sent| sent.expected(Walk::EncodeDecode)[0].1.len();
        let short = sent.iter().min_by_key(|sent| steps(sent)).unwrap();
        let long = sent.iter().max_by_key(|sent| steps(sent)).unwrap();
        assert!(steps(short) < steps(long));
        let entries = [long, short, long].map(|sent| bench.entry(sent.tensors(Walk::EncodeDecode)).unwrap());
        let member = |slot: usize, node: u32| {
            let entry = (node == 0).then(|| Arc::clone(&entries[slot]));
            TaskMember { node, ..TaskMember::new(RequestSlot(slot as u32), 1, entry) }
        };
        for (slot, entry) in entries.iter().enumerate() {
            (0..entry.extent.length).for_each(|node| drop(bench.run(0, 0, vec![member(slot, node)])));
        }
        let mut ended = [None, None, None];
        let mut before = (0, 0);
        for node in 0..steps(long) as u32 {
            let progress =
                bench.run(0, 1, (0..3).map(|slot| TaskMember { entry: None, ..member(slot, node) }).collect());
            for (slot, progress) in progress.into_iter().enumerate() {
                assert!(ended[slot].is_none() || (!progress.ended && progress.outputs.is_empty()));
                if progress.ended {
                    ended[slot] = Some(progress.outputs);
                }
            }
            let counts = (bench.devices[0].0.rows_gathered(), bench.devices[0].0.tasks_without_copy());
            assert!(node == 0 || counts == (before.0, before.1 + 1), "an early end moves no state");
            before = counts;
        }
        for (slot, sent) in [long, short, long].into_iter().enumerate() {
            check(Walk::EncodeDecode, sent, ended[slot].as_ref().unwrap());
        }
        // Another stale step, then the next request of the slot, which it does not disturb.
        let stale = TaskMember { node: steps(short) as u32 + 1, entry: None, ..member(1, 0) };
        assert!(!bench.run(0, 1, vec![stale])[0].ended);
        let again = bench.answer_all(&[short.tensors(Walk::EncodeDecode)], 2, &mut random);
        check(Walk::EncodeDecode, short, &again[0]);
    }
}

/// The padding baselines run shorter requests with longer ones.
#[test]
fn a_padded_batch_answers_as_each_alone() {
    for engine in cell_engines() {
        for walk in [Walk::Repeat, Walk::Stacked, Walk::Bidirectional] {
            let bench = Bench::new(&*engine, model(walk), 1);
            let sent = mixed(walk, 6, &mut Random::new(11));
            let entries: Vec<Arc<RequestEntry>> =
                sent.iter().map(|sent| bench.entry(sent.tensors(walk)).unwrap()).collect();
            let longest = sent.iter().map(|sent| sent.tokens.len()).max().unwrap() as u32;
            let mut answers = vec![None; sent.len()];
            for (block, of) in bench.source.blocks.iter().enumerate() {
                for node in 0..(if of.steps == Steps::Once { 1 } else { longest }) {
                    let member = |slot: usize| TaskMember {
                        node,
                        ..TaskMember::new(RequestSlot(slot as u32), 1, Some(Arc::clone(&entries[slot])))
                    };
                    for (slot, progress) in bench.run(0, block, (0..6).map(member).collect()).into_iter().enumerate() {
                        if progress.ended {
                            assert!(answers[slot].replace(progress.outputs).is_none(), "it ends once");
                        }
                    }
                }
            }
            sent.iter().zip(answers).for_each(|(sent, answer)| check(walk, sent, &answer.unwrap()));
        }
    }
}

#[test]
fn a_stream_has_every_step_as_it_comes() {
    for engine in cell_engines() {
        let bench = Bench::new(&*engine, model(Walk::EncodeDecode), 1);
        let sent = Sent { tokens: vec![3, 1, 4, 1, 5], children: vec![] };
        let entry = bench.entry(sent.tensors(Walk::EncodeDecode)).unwrap();
        let entry = Arc::new(RequestEntry { stream: true, ..(*entry).clone() });
        let member =
            |node: u32| vec![TaskMember { node, ..TaskMember::new(RequestSlot(0), 1, Some(Arc::clone(&entry))) }];
        (0..5).for_each(|node| assert!(bench.run(0, 0, member(node))[0].step.is_empty()));
        let mut streamed = Vec::new();
        for node in 0.. {
            let progress = bench.run(0, 1, member(node)).remove(0);
            assert_eq!((&*progress.step[0].name, &progress.step[0].shape[..]), ("tokens", &[1, 1][..]));
            streamed.extend(values(&progress.step[0]));
            if progress.ended {
                assert_eq!(streamed, values(&progress.outputs[0]));
                break;
            }
        }
        assert_eq!(streamed, sent.expected(Walk::EncodeDecode)[0].1);
    }
}

#[test]
fn a_task_out_of_order_fails_and_says_why() {
    for engine in cell_engines() {
        let bench = Bench::new(&*engine, model(Walk::Repeat), 1);
        let sent = Sent { tokens: vec![1, 2, 3], children: vec![] };
        let entry = bench.entry(sent.tensors(Walk::Repeat)).unwrap();
        let run = |slot: u32, node: u32, rows: usize, entry: Option<Arc<RequestEntry>>| {
            bench.submit(0, 0, vec![TaskMember { node, ..TaskMember::new(RequestSlot(slot), rows, entry) }]);
            bench.result(0).unwrap_err().0
        };
        assert!(run(5, 0, 1, None).contains("slot 5 holds no walk: its first task must bring an entry"));
        assert!(run(0, 2, 1, Some(Arc::clone(&entry))).contains("step 2 of 'cell' cannot follow step 0"));
        assert!(run(0, 0, 2, Some(entry)).contains("has 2 rows; a walk of cells has one"));
    }
}

/// Only failed requests end. Other members of tasks queued behind a failed task are not affected,
/// nor are the next requests in the failed members' slots.
#[test]
fn a_bad_request_in_cells_ends_its_own_walk_and_no_other() {
    for engine in cell_engines() {
        let bench = Bench::new(&*engine, model(Walk::Repeat), 1);
        let sent = |tokens: &[i64]| Sent { tokens: tokens.to_vec(), children: vec![] };
        // The embedding has no row with this number, and the engine detects it at the request's
        // second step.
        let requests = [sent(&[1, 1_000, 2, 3]), sent(&[4, 5, 6, 7]), sent(&[8, 9, 10])];
        let entries = requests.each_ref().map(|sent| {
            let inputs = sent.tensors(Walk::Repeat).into();
            let extent = Extent { length: sent.tokens.len() as u32, limit: 0 };
            Arc::new(RequestEntry { extent, ..RequestEntry::of(inputs) })
        });
        let member = |slot: usize, node: u32| {
            let entry = (node == 0).then(|| Arc::clone(&entries[slot]));
            TaskMember { node, ..TaskMember::new(RequestSlot(slot as u32), 1, entry) }
        };
        bench.run(0, 0, vec![member(0, 0), member(1, 0)]);
        let second = bench.run(0, 0, vec![member(0, 1), member(1, 1)]);
        assert!(second[0].failed.is_some() && second[1].failed.is_none(), "{second:?}");
        let (mut neighbour, mut later) = (None, None);
        for step in 0..3 {
            let members = [member(0, 2), member(1, 2 + step), member(2, step)];
            let progress = bench.run(0, 0, members.into_iter().filter(|member| member.node < 4).collect());
            assert!(!progress[0].ended && progress[0].failed.is_none(), "what is queued of a failed walk is padding");
            neighbour = neighbour.or_else(|| progress.iter().skip(1).find(|progress| progress.ended).cloned());
            later = progress.into_iter().last();
        }
        check(Walk::Repeat, &requests[1], &neighbour.unwrap().outputs);
        check(Walk::Repeat, &requests[2], &later.unwrap().outputs);
        let mut random = Random::new(3);
        let next = mixed(Walk::Repeat, 8, &mut random);
        let tensors: Vec<Vec<Tensor>> = next.iter().map(|sent| sent.tensors(Walk::Repeat)).collect();
        let answers = bench.answer_all(&tensors, 3, &mut random);
        next.iter().zip(&answers).for_each(|(sent, answer)| check(Walk::Repeat, sent, answer));
    }
}

/// A request restarts on another device, while its first device, which was given up, still runs the
/// old walk.
#[test]
fn a_stale_walk_of_a_slot_does_not_affect_a_later_one() {
    for engine in cell_engines() {
        let bench = Bench::new(&*engine, model(Walk::Repeat), 2);
        let sent = Sent { tokens: vec![1, 2, 3], children: vec![] };
        let entry = bench.entry(sent.tensors(Walk::Repeat)).unwrap();
        let (old, new) = (next_walk(), next_walk());
        let member = |walk: u64, node: u32| {
            let entry = (node == 0).then(|| Arc::clone(&entry));
            vec![TaskMember { node, walk, ..TaskMember::new(RequestSlot(0), 1, entry) }]
        };
        bench.run(0, 0, member(old, 0));
        bench.run(1, 0, member(new, 0));
        for node in [1, 0] {
            bench.submit(0, 0, member(old, node));
            assert!(bench.result(0).unwrap_err().to_string().contains("begun anew"));
        }
        bench.run(1, 0, member(new, 1));
        let last = bench.run(1, 0, member(new, 2));
        assert!(last[0].ended);
        check(Walk::Repeat, &sent, &last[0].outputs);
    }
}

#[test]
fn cells_are_measured_on_an_example() {
    for engine in cell_engines() {
        for walk in WALKS {
            let model = engine.load(&model(walk)).unwrap();
            let measurement =
                Measurement { max_batch: 4, budget: std::time::Duration::from_millis(200), example: None };
            let profiles = measure(&*engine, &model, &measurement, &mut |_| {}).unwrap().blocks;
            assert_eq!(profiles.len(), model.blocks());
            assert!(profiles.iter().all(|of| of.profile.max_batch() == 4 && of.profile.latency(1) > Nanos::ZERO));
        }
    }
}

/// No length is computed here, so the request declares it or it derives from a hash of the request.
#[test]
fn emulated_cells_walk_as_real_ones() {
    let engine = EmulatedEngine::new(EmulatedOptions::default());
    for walk in WALKS {
        let mut source = model(walk);
        for block in &mut source.blocks {
            block.path = None;
            block.profile = Some(Profile::from_table(&[Nanos::from_micros(10); MAX_BATCH]).unwrap());
        }
        source.inputs = vec![TensorSpec { name: "token".into(), datatype: DataType::Int64, shape: vec![-1, -1] }];
        source.outputs = vec![TensorSpec { name: "tokens".into(), datatype: DataType::Int64, shape: vec![-1, -1] }];
        let bench = Bench::new(&engine, source, 2);
        let mut random = Random::new(5);
        let sent = mixed(walk, 30, &mut random);
        let requests: Vec<Vec<Tensor>> = sent
            .iter()
            .zip(1..)
            .map(|(sent, length)| [sent.tensors(walk), vec![int64("output_length", &[1, 1], &[length])]].concat())
            .collect();
        let answers = bench.answer_all(&requests, 8, &mut random);
        assert!(answers.iter().all(|answer| answer.len() == bench.model.outputs().len()));
        if walk == Walk::EncodeDecode {
            for ((sent, answer), told) in sent.iter().zip(&answers).zip(1..) {
                assert_eq!(answer[0].shape, [1, told.min(sent.tokens.len() as i64 + 8)]);
            }
        }
    }
}
