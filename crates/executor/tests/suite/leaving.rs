//! Requests that leave a batch early, by rules and by the embedding program's condition.

use crate::common::*;
use ripieno_base::{BlockId, RequestSlot};
use ripieno_executor::*;
use std::sync::Arc;
use std::time::Duration;

const BLOCKS: &[&str] = &["way_first", "way_second", "way_third"];

fn rule(tensor: &str, comparison: ComparisonOperator, number: f64) -> TensorRule {
    TensorRule { tensor: tensor.to_owned(), comparison, number }
}

/// Rows whose first number is above 1 end after the first block; those below -1 skip the second.
fn ways() -> ModelSource {
    let mut source = files(BLOCKS);
    source.blocks[0].exit = Some(rule("confidence", ComparisonOperator::Above, 1.0));
    source.blocks[0].skip = Some((rule("confidence", ComparisonOperator::AtMost, -1.0), BlockId(2)));
    source.blocks[0].exit_outputs = vec![("y".to_owned(), "early".to_owned())];
    source
}

fn weight(at: usize, factor: usize) -> f32 {
    ((at * factor % 17) as f32 - 8.0) / 8.0
}

/// Returns the expected answer to a row, by the path that its first number selects.
fn expected(x: &[f32], ignores_conditions: bool) -> Vec<f32> {
    let layer = |x: &[f32], columns: usize, w: usize, b: usize| -> Vec<f32> {
        let sum = |j: usize| x.iter().enumerate().map(|(i, x)| x * weight(i * columns + j, w)).sum::<f32>();
        (0..columns).map(|j| sum(j) + weight(j, b)).collect()
    };
    let hidden: Vec<f32> = layer(x, 8, 5, 3).into_iter().map(|h| h.max(0.0)).collect();
    match x[0] {
        first if first > 1.0 && !ignores_conditions => hidden[..3].to_vec(),
        first if first <= -1.0 && !ignores_conditions => layer(&hidden, 3, 7, 11),
        _ => layer(&hidden.iter().map(|h| 2.0 * h).collect::<Vec<_>>(), 3, 7, 11),
    }
}

fn rows() -> Vec<[f32; 4]> {
    [1.5f32, 0.5, -1.5, 1.0, -1.0, 0.0]
        .iter()
        .enumerate()
        .map(|(at, &first)| [first, at as f32 / 4.0, -0.5, 0.75])
        .collect()
}

fn drive(stand: &Stand, members: Vec<TaskMember>) -> Vec<Vec<Tensor>> {
    let mut answers = vec![Vec::new(); members.len()];
    let mut next: Vec<(usize, u16)> = (0..members.len()).map(|at| (at, 0)).collect();
    for block in 0..3u16 {
        let here: Vec<usize> = next.iter().filter(|&&(_, at)| at == block).map(|&(member, _)| member).collect();
        if here.is_empty() {
            continue;
        }
        let batch = here.iter().map(|&at| if block == 0 { members[at].clone() } else { later(&members[at]) });
        for (&at, progress) in here.iter().zip(stand.run(block, batch.collect()).unwrap()) {
            assert!(!progress.ended || progress.skip.is_none());
            let to = progress.skip.map_or(block + 1, |to| to.0);
            next[at].1 = if progress.ended { u16::MAX } else { to };
            answers[at] = progress.outputs;
        }
    }
    answers
}

#[test]
fn each_goes_its_way_and_the_others_stay_as_they_are() {
    for engine in engines() {
        for lanes in [1, 2] {
            let stand = Stand::of_lanes(&*engine, &ways(), lanes);
            assert_eq!(stand.model.outputs().iter().map(|spec| &*spec.name).collect::<Vec<_>>(), ["y"]);
            let members: Vec<TaskMember> = (0..).zip(rows()).map(|(slot, row)| request(slot, &row)).collect();
            for (row, answer) in rows().iter().zip(drive(&stand, members.clone())) {
                assert_eq!((&*answer[0].name, &answer[0].shape[..]), ("y", &[1, 3][..]));
                assert_close(&floats(&answer[0]), &expected(row, false));
            }
            // A request that ended has no state left. A request that skips a block does not run it.
            let first = stand.run(0, members.clone()).unwrap();
            let ended: Vec<bool> = first.iter().map(|progress| progress.ended).collect();
            let skips: Vec<Option<BlockId>> = first.iter().map(|progress| progress.skip).collect();
            assert_eq!(ended, [true, false, false, false, false, false]);
            assert_eq!(skips, [None, None, Some(BlockId(2)), None, Some(BlockId(2)), None]);
            stand.run(1, vec![later(&members[0])]).unwrap_err();
        }
    }
}

#[test]
fn a_request_of_several_rows_leaves_as_one() {
    let stand = Stand::new(&*cpu().engine, &ways());
    let both = |first: [f32; 2]| -> TaskMember {
        let rows: Vec<f32> = first.iter().flat_map(|&first| [first, 0.25, -0.5, 0.75]).collect();
        request(0, &rows)
    };
    let progress = |first| stand.run(0, vec![both(first)]).unwrap().remove(0);
    let left = progress([2.0, 3.0]);
    assert_eq!((left.ended, &left.outputs[0].shape[..]), (true, &[2, 3][..]));
    let stays = progress([2.0, 0.0]);
    assert_eq!((stays.ended, stays.skip), (false, None));
    assert_eq!(progress([-2.0, -1.0]).skip, Some(BlockId(2)));
}

#[test]
fn a_request_that_ignores_conditions_runs_every_block_and_is_measured_so() {
    let engine = cpu().engine;
    let model = engine.load(&ways()).unwrap();
    let stand = Stand::of_model(&*engine, Arc::clone(&model), 1);
    let member = |(slot, row): (u32, [f32; 4])| {
        let entry = request(slot, &row).entry.unwrap();
        let entry = RequestEntry { ignore_conditions: true, ..(*entry).clone() };
        TaskMember::new(RequestSlot(slot), 1, Some(Arc::new(entry)))
    };
    for (row, answer) in rows().iter().zip(drive(&stand, (0..).zip(rows()).map(member).collect())) {
        assert_close(&floats(&answer[0]), &expected(row, true));
    }
    // An example of ones would end after the first block.
    let measurement = Measurement { max_batch: 2, budget: Duration::from_millis(50), example: None };
    let mut eager = ways();
    eager.blocks[0].exit = Some(rule("confidence", ComparisonOperator::AtLeast, -100.0));
    let model = engine.load(&eager).unwrap();
    assert_eq!(measure(&*engine, &model, &measurement, &mut |_| {}).unwrap().blocks.len(), 3);
    run_example(&*engine, &model, None, 2).unwrap();
}

/// Ends walks where the early answer's largest number is first, and skips where the confidence is
/// negative.
#[derive(Debug)]
struct LargestFirst;

impl Condition for LargestFirst {
    fn may(&self, block: BlockId) -> AllowedExits {
        match block {
            BlockId(0) => AllowedExits { exit: true, skip_to: vec![BlockId(2)] },
            _ => AllowedExits::default(),
        }
    }

    fn judge(&self, _: BlockId, row: &OutputRow<'_>) -> BlockDecision {
        assert_eq!(row.numbers("no_such_tensor"), None);
        let early = row.numbers("early").unwrap();
        match early.iter().skip(1).all(|&number| number < early[0]) {
            true => BlockDecision::Exit,
            false if row.numbers("confidence").unwrap()[0] < 0.0 => BlockDecision::Skip(BlockId(2)),
            false => BlockDecision::Go,
        }
    }
}

#[test]
fn an_embedder_brings_a_condition_of_its_own() {
    let mut source = ModelSource { condition: Some(Arc::new(LargestFirst)), ..files(BLOCKS) };
    source.blocks[0].hidden = vec!["confidence".to_owned()];
    source.blocks[0].exit_outputs = vec![("y".to_owned(), "early".to_owned())];
    for engine in engines() {
        let stand = Stand::new(&*engine, &source);
        let many: Vec<Vec<f32>> = (0..16).map(|seed| numbers(4, seed)).collect();
        let members: Vec<TaskMember> = (0..).zip(&many).map(|(slot, row)| request(slot, row)).collect();
        let progress = stand.run(0, members.clone()).unwrap();
        let mut met = [0; 3];
        for progress in progress {
            let way = if progress.ended {
                0
            } else if progress.skip.is_some() {
                1
            } else {
                2
            };
            met[way] += 1;
            if progress.ended {
                let early = floats(&progress.outputs[0]);
                assert!(early[1..].iter().all(|&number| number < early[0]));
            }
        }
        assert!(met.iter().all(|&count| count > 0), "{met:?}");
        for (row, answer) in many.iter().zip(drive(&stand, members)) {
            assert_eq!(answer[0].shape, [1, 3], "{row:?}");
        }
    }
}

#[test]
fn mistakes_are_found_at_load() {
    type Change = fn(&mut ModelSource);
    let cases: [(Change, &str); 11] = [
        (
            |m| m.blocks[0].exit.as_mut().unwrap().tensor = "sure".to_owned(),
            "exit_when compares 'sure', which the block does not give; it gives h, twice, confidence, early",
        ),
        (
            |m| m.blocks[0].exit.as_mut().unwrap().tensor = "early".to_owned(),
            "exit_when compares 'early', which is FP32 [-1, 3]; it must be one number a row",
        ),
        (|m| m.blocks[0].exit_outputs.clear(), "needs output 'y', but the block gives no 'y'"),
        (
            |m| m.blocks[0].exit_outputs[0].1 = "h".to_owned(),
            "would be 'h', which is FP32 [-1, 8], but it must be FP32 [-1, 3]",
        ),
        (
            |m| m.blocks[0].exit_outputs.push(("z".to_owned(), "h".to_owned())),
            "exit_outputs names 'z', which is no output of the model; it has y",
        ),
        (|m| m.blocks[0].exit = None, "block 'way_first' has exit_outputs, but nothing ends a walk there"),
        (
            |m| {
                m.blocks[0].exit = None;
                m.blocks[0].skip = None;
            },
            "block 'way_first' has exit_outputs, but nothing ends a walk there",
        ),
        (
            |m| m.blocks[0].skip.as_mut().unwrap().1 = BlockId(1),
            "may skip to block 1; it must be later than the next one, at most 2",
        ),
        (|m| m.blocks[0].skip.as_mut().unwrap().1 = BlockId(3), "may skip to block 3; it must be later"),
        (
            |m| m.blocks[2].exit = Some(rule("y", ComparisonOperator::Above, 0.0)),
            "block 'way_third' is the last one, so every walk ends there",
        ),
        (
            |m| {
                m.blocks[0].exit = None;
                m.blocks[0].exit_outputs.clear();
                m.blocks[1].skip = m.blocks[0].skip.take();
            },
            "skip_when compares 'confidence', which the block does not give",
        ),
    ];
    let engine = cpu().engine;
    for (change, words) in cases {
        let mut source = ways();
        change(&mut source);
        let error = engine.load(&source).err().expect(words).to_string();
        assert!(error.starts_with("model 'way_first': ") && error.contains(words), "{error}");
    }
    // The third block takes the output of the skipped second block. An earlier block must have this
    // output as well, or the model is refused.
    let mut source = files(&["way_first", "mlp_first", "mlp_second"]);
    source.blocks[0].skip = Some((rule("confidence", ComparisonOperator::Above, 0.0), BlockId(2)));
    source.blocks[1].path = Some(model_path("scaled"));
    assert!(engine.load(&source).is_ok(), "the first block gives what the third takes");
    source.blocks[0].path = Some(model_path("sure"));
    let error = engine.load(&source).err().unwrap().to_string();
    assert!(error.contains("needs 'h' of 'mlp_first', which a walk that skips does not have"), "{error}");
}
