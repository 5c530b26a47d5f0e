//! Models whose answers show, while they serve, that requests cannot share batches: each request
//! then runs alone, and is answered as the file answers it.

use crate::common::*;
use ripieno_base::RequestSlot;
use ripieno_executor::*;
use std::time::Instant;

/// Rows of a detector; those with a number below -5 are not found.
fn rows(found: &[bool], seed: usize) -> Vec<f32> {
    found
        .iter()
        .enumerate()
        .flat_map(|(at, found)| numbers(4, seed + at).into_iter().map(move |x| if *found { x } else { x - 9.0 }))
        .collect()
}

fn member(slot: u32, x: &[f32]) -> TaskMember {
    TaskMember::new(RequestSlot(slot), x.len() / 4, entry(fp32("x", &[x.len() as i64 / 4, 4], x)))
}

/// Requests whose boxes are as many as their rows, fewer, none, or other ones than their rows.
fn requests() -> Vec<Vec<f32>> {
    let found: [&[bool]; 6] = [&[true, true], &[false], &[true, false, true], &[false, false], &[true], &[false, true]];
    found.iter().enumerate().map(|(at, found)| rows(found, 10 * at + 1)).collect()
}

fn boxes(x: &[f32]) -> Vec<f32> {
    x.chunks(4).filter(|row| row.iter().all(|x| *x > -5.0)).flatten().copied().collect()
}

fn assert_outputs(outputs: &[Tensor], expected: &[(&str, Vec<f32>)]) {
    for (name, expected) in expected {
        let output = outputs.iter().find(|output| *output.name == **name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(output.shape, [expected.len() as i64 / 4, 4], "{name}");
        assert_close(&floats(output), expected);
    }
}

/// Waits for something that another thread does.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn detectors_answer_each_request_with_its_own_boxes() {
    for engine in engines() {
        // Alone first, and in a batch first.
        for first in [vec![1], vec![0, 1, 2, 3, 4, 5], vec![3, 0]] {
            let stand = Stand::new(&*engine, &files(&["boxes"]));
            for batch in [first, (0..6).collect(), vec![3], vec![1, 5]] {
                let requests = requests();
                let members = batch.iter().map(|&at| member(at as u32, &requests[at])).collect();
                let answers = stand.run(0, members).unwrap();
                for (&at, answer) in batch.iter().zip(answers) {
                    let x = &requests[at];
                    let twice = x.iter().map(|x| x + x).collect();
                    assert!(answer.failed.is_none(), "{}: {:?}", engine.device_key(), answer.failed);
                    assert_outputs(&answer.outputs, &[("boxes", boxes(x)), ("twice", twice)]);
                }
            }
            assert!(stand.model.batches_stopped().unwrap().contains("its first dimension must be the batch"));
        }
    }
}

#[test]
fn detectors_in_a_chain_pass_their_boxes_on() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["boxes", "boxes_negative"]));
        for batch in [vec![4, 0, 2], vec![1], vec![0, 1, 3, 5], vec![2, 4]] {
            let requests = requests();
            let members: Vec<TaskMember> = batch.iter().map(|&at| member(at as u32, &requests[at])).collect();
            let later_members = members.iter().map(later).collect();
            for progress in stand.run(0, members).unwrap() {
                assert!(progress.failed.is_none() && !progress.ended, "{progress:?}");
            }
            for (&at, answer) in batch.iter().zip(stand.run(1, later_members).unwrap()) {
                assert!(answer.failed.is_none(), "{}: {:?}", engine.device_key(), answer.failed);
                let negative = boxes(&requests[at]).iter().map(|x| -x).collect();
                assert_outputs(&answer.outputs, &[("y", negative)]);
            }
        }
    }
}

#[test]
fn padding_is_no_part_of_an_answer() {
    for engine in engines() {
        let source = ModelSource { batch_sizes: vec![4, 16], ..files(&["boxes"]) };
        let stand = Stand::new(&*engine, &source);
        for x in requests() {
            let answer = stand.run(0, vec![member(0, &x)]).unwrap().remove(0);
            assert_outputs(&answer.outputs, &[("boxes", boxes(&x))]);
        }
    }
}

#[test]
fn a_sampled_batch_whose_rows_meet_ends_the_sharing() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &files(&["centred"]));
        stand.model.watch_rows("not known at Foo 'bar'");
        let [a, b] = [1, 2].map(|seed| numbers(3, seed));
        let one = |slot, x: &[f32]| wide_request(slot, x, 3);
        let batch = || vec![one(0, &a), one(1, &b)];
        let answers = |members| -> Vec<Vec<f32>> {
            stand.run(0, members).unwrap().iter().map(|answer| floats(&answer.outputs[0])).collect()
        };
        let alone = [answers(vec![one(0, &a)]), answers(vec![one(1, &b)])].concat();
        assert_ne!(answers(batch()), alone, "the first batch is served as it was found to be");
        until("the sampled batch is not compared", || stand.model.batches_stopped().is_some());
        let why = stand.model.batches_stopped().unwrap();
        assert!(why.contains("is answered differently alone: ") && why.ends_with("; not known at Foo 'bar'"), "{why}");
        assert_eq!(answers(batch()), alone);
    }
}

#[test]
fn sampled_batches_of_independent_rows_change_nothing() {
    for engine in engines() {
        for source in [files(&["mlp"]), files(&["mlp_first", "mlp_second"])] {
            let stand = Stand::new(&*engine, &source);
            stand.model.watch_rows("not known at Foo 'bar'");
            let batch: Vec<TaskMember> = [1, 2, 3].map(|seed| request(seed as u32, &numbers(4, seed))).to_vec();
            stand.run(0, batch.clone()).unwrap();
            until("the sampled batch is not compared", || stand.model.rows_compared() == 3);
            if source.blocks.len() > 1 {
                stand.run(1, batch.iter().map(later).collect()).unwrap();
            }
            assert_eq!(stand.model.batches_stopped(), None);
        }
    }
}
