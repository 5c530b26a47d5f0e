//! Requests that differ in length: padded into one batch, each answered as if alone.

use crate::common::*;
use ripieno_base::{Nanos, RequestSlot, TaskId};
use ripieno_executor::*;
use ripieno_model::{DataType, Extent, LengthProfiles, Profile};
use ripieno_workload::{below, stream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONGEST: u32 = 12;

/// The model of `make_models.py` that averages looked-up rows under a mask.
fn pool(files_of: &[&str]) -> ModelSource {
    let input = |tensor: &str| InputLength { tensor: tensor.to_owned(), dim: 1, pad: 0.0 };
    let inputs = if files_of == ["pool_blind"] { vec![input("ids")] } else { vec![input("ids"), input("mask")] };
    let lengths = LengthDims { inputs, outputs: vec![OutputLength::new("tokens", 1)] };
    ModelSource { lengths, max_length: LONGEST, ..files(files_of) }
}

const WHOLE: &[&str] = &["pool"];
const CHAIN: &[&str] = &["pool_first", "pool_second"];

fn ids(name: &str, rows: usize, numbers: impl Iterator<Item = i64>) -> Tensor {
    let data: Vec<u8> = numbers.flat_map(i64::to_le_bytes).collect();
    let shape = vec![rows as i64, (data.len() / 8 / rows) as i64];
    Tensor { name: name.into(), datatype: DataType::Int64, shape, data: data.into() }
}

fn request_of(slot: u32, rows: usize, length: usize, seed: usize) -> TaskMember {
    let count = rows * length;
    let words = ids("ids", rows, (0..count).map(|at| ((at * 7 + seed * 13 + 5) % 17) as i64));
    let mask = ids("mask", rows, (0..count).map(|_| 1));
    member(slot, rows, length, [words, mask].into())
}

fn member(slot: u32, rows: usize, length: usize, inputs: Arc<[Tensor]>) -> TaskMember {
    let extent = Extent { length: length as u32, limit: 0 };
    TaskMember::new(RequestSlot(slot), rows, Some(Arc::new(RequestEntry { extent, ..RequestEntry::of(inputs) })))
}

/// A request for the emulated model.
fn row(slot: usize, x: &[f32]) -> TaskMember {
    member(slot as u32, 1, x.len(), [fp32("x", &[1, x.len() as i64], x)].into())
}

/// Returns two blocks like the one of a model.
fn two(source: &ModelSource) -> Vec<BlockSource> {
    [&source.blocks[..], &source.blocks[..]].concat()
}

/// Runs a block with members that are padded to this length.
fn run_padded(
    stand: &Stand,
    block: u16,
    length: u32,
    members: Vec<TaskMember>,
) -> Result<Vec<MemberProgress>, ExecError> {
    stand.device.submit(Task { length, ..task(0, block, members) }).unwrap();
    stand.result().outcome
}

/// Numbers without a pattern that a test could depend on.
fn scrambled(at: usize) -> usize {
    below(&mut stream(at as u64, 0), 1 << 32) as usize
}

fn walk(stand: &Stand, members: &[TaskMember], blocks: u16) -> Vec<Vec<Tensor>> {
    let (mut answers, length) = (Vec::new(), task(0, 0, members.to_vec()).length);
    for block in 0..blocks {
        let members = members.iter().map(|member| if block == 0 { member.clone() } else { later(member) });
        answers = run_padded(stand, block, length, members.collect()).unwrap();
    }
    answers.into_iter().map(|progress| progress.outputs).collect()
}

fn assert_same(found: &[Tensor], expected: &[Tensor]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((&found.name, &found.shape), (&expected.name, &expected.shape));
        assert_close(&floats(found), &floats(expected));
    }
}

fn every_answer_is_that_of_the_request_alone(engine: &dyn Executor, blocks: &[&str]) {
    every_answer_in_sizes_is_that_of_the_request_alone(engine, blocks, &[]);
    every_answer_in_sizes_is_that_of_the_request_alone(engine, blocks, &[3, 7, MAX_BATCH]);
}

/// Batches are padded to these sizes, too.
fn every_answer_in_sizes_is_that_of_the_request_alone(engine: &dyn Executor, blocks: &[&str], sizes: &[usize]) {
    let stand = Stand::new(engine, &ModelSource { batch_sizes: sizes.to_vec(), ..pool(blocks) });
    let count = blocks.len() as u16;
    for round in 0..40 {
        let requests = 1 + scrambled(round) % 6;
        let member = |at: usize| {
            let seed = round * 10 + at;
            request_of(at as u32, 1 + scrambled(seed + 3) % 2, 1 + scrambled(seed) % LONGEST as usize, seed)
        };
        let members: Vec<TaskMember> = (0..requests).map(member).collect();
        let together = walk(&stand, &members, count);
        for (member, together) in members.iter().zip(&together) {
            let alone = walk(&stand, std::slice::from_ref(member), count).remove(0);
            assert_same(together, &alone);
            let length = member.entry.as_ref().unwrap().inputs()[0].shape[1];
            assert_eq!(alone[1].shape, [member.rows as i64, length, 3]);
        }
    }
}

#[test]
fn a_padded_batch_answers_as_each_request_alone() {
    for engine in engines() {
        every_answer_is_that_of_the_request_alone(&*engine, WHOLE);
        every_answer_is_that_of_the_request_alone(&*engine, CHAIN);
    }
}

#[test]
fn an_emulated_model_pads_and_cuts_as_well() {
    let fixture = emulated();
    let lengths = LengthDims {
        inputs: vec![InputLength { tensor: "x".to_owned(), dim: 1, pad: 7.0 }],
        outputs: vec![OutputLength::new("y", 1)],
    };
    let source = ModelSource { lengths, max_length: LONGEST, ..fixture.any_width.clone() };
    let stand = Stand::new(&*fixture.engine, &source);
    let rows = [numbers(2, 1), numbers(5, 2), numbers(3, 3)];
    let members = || rows.iter().enumerate().map(|(slot, x)| row(slot, x)).collect();
    let answers = stand.run(0, members()).unwrap();
    // Padded beyond the longest request, all have the same answers.
    let further = run_padded(&stand, 0, LONGEST, members()).unwrap();
    assert!(answers.iter().zip(&further).all(|(a, b)| a.outputs == b.outputs));
    for (row, answer) in rows.iter().zip(answers) {
        assert_eq!(
            (&answer.outputs[0].shape[..], floats(&answer.outputs[0])),
            (&[1, row.len() as i64][..], row.clone())
        );
    }
}

/// A short batch takes 5 ms, a long one ten minutes.
#[test]
fn an_emulated_batch_takes_as_long_as_its_longest_member() {
    let fixture = emulated();
    let flat = |ms| Profile::from_table(&[Nanos::from_millis(ms); MAX_BATCH]).unwrap();
    let lengths = LengthDims {
        inputs: vec![InputLength { tensor: "x".to_owned(), dim: 1, pad: 0.0 }],
        outputs: vec![OutputLength::new("y", 1)],
    };
    let mut source = ModelSource { lengths, max_length: LONGEST, ..fixture.any_width.clone() };
    source.blocks[0].profile = Some(flat(600_000));
    source.blocks[0].lengths = Some(LengthProfiles::new(vec![(2, flat(5)), (LONGEST, flat(600_000))]).unwrap());
    let stand = Stand::new(&*fixture.engine, &source);
    let batch = |lengths: &[usize]| {
        let member = |(slot, &length): (usize, &usize)| row(slot, &numbers(length, slot));
        task(0, 0, lengths.iter().enumerate().map(member).collect())
    };
    // The earliest start; a late thread start does not make it longer.
    let ready = Instant::now();
    stand.device.submit(batch(&[1, 2])).unwrap();
    let short = stand.result();
    assert!(short.outcome.is_ok() && short.finished - ready >= Duration::from_millis(5));
    stand.device.submit(batch(&[1, 12])).unwrap();
    stand.device.cancel(TaskId(0));
    assert!(stand.result().outcome.is_err(), "it cannot have ended by itself");
}

#[test]
fn what_a_block_leaves_is_not_padded_again() {
    for engine in engines() {
        let stand = Stand::new(&*engine, &pool(CHAIN));
        let members: Vec<TaskMember> =
            [3, 5, 2, 5].iter().zip(0..).map(|(&length, slot)| request_of(slot, 1, length, slot as usize)).collect();
        let alone: Vec<_> =
            members.iter().map(|member| walk(&stand, std::slice::from_ref(member), 2).remove(0)).collect();
        stand.run(0, members[..2].to_vec()).unwrap();
        stand.run(0, vec![members[2].clone()]).unwrap();
        stand.run(0, vec![members[3].clone()]).unwrap();
        // The first member was padded to 5, the length of the last one. The third member was not,
        // so it runs separately.
        let apart = run_padded(&stand, 1, 5, vec![later(&members[0]), later(&members[2])]).unwrap();
        for (progress, alone) in apart.iter().zip([&alone[0], &alone[2]]) {
            assert!(progress.ended && progress.failed.is_none());
            progress.outputs.iter().zip(alone).for_each(|(found, alone)| assert_eq!(found.shape, alone.shape));
        }
        stand.run(0, vec![members[0].clone(), members[1].clone()]).unwrap();
        let mixed = run_padded(&stand, 1, 5, vec![later(&members[3]), later(&members[0])]).unwrap();
        assert_same(&mixed[0].outputs, &alone[3]);
        assert_same(&mixed[1].outputs, &alone[0]);
    }
}

#[test]
fn a_batch_is_padded_to_what_its_task_says() {
    let fixture = emulated();
    let lengths = LengthDims {
        inputs: vec![InputLength { tensor: "x".to_owned(), dim: 1, pad: 0.0 }],
        outputs: vec![OutputLength::new("y", 1)],
    };
    let source =
        ModelSource { lengths, max_length: LONGEST, blocks: two(&fixture.any_width), ..fixture.any_width.clone() };
    let stand = Stand::new(&*fixture.engine, &source);
    let members = || vec![row(0, &numbers(2, 1)), row(1, &numbers(5, 2))];
    let beyond = run_padded(&stand, 0, LONGEST + 1, members()).unwrap_err();
    assert!(beyond.0.contains("padded to 13, but it takes at most 12"), "{beyond}");
    // A longer request fails alone.
    let cut = run_padded(&stand, 0, 4, members()).unwrap();
    assert!(cut[0].failed.is_none());
    let failed = cut[1].failed.as_ref().unwrap();
    assert!(failed.0.contains("slot 1 of model 'emulated' is 5 long, but its batch is padded to 4"), "{failed}");
    // The other is before the second block, padded to 4.
    let shrunk = run_padded(&stand, 1, 3, vec![later(&members()[0])]).unwrap_err();
    assert!(shrunk.0.contains("is 4 long, but its batch is padded to 3"), "{shrunk}");
}

#[test]
fn requests_of_no_length_or_two_are_refused_before_they_wait() {
    let engine = cpu().engine;
    let model = engine.load(&pool(WHOLE)).unwrap();
    let lengths = model.lengths().unwrap();
    assert_eq!((lengths.max, &lengths.dims[..]), (LONGEST, &[Some(1), Some(1)][..]));
    let describe = |member: TaskMember| model.describe(member.entry.unwrap().inputs());
    assert_eq!(describe(request_of(0, 2, 7, 0)).unwrap().0.length, 7);
    assert!(describe(request_of(0, 1, 13, 0)).unwrap_err().0.contains("but the model takes 1 to 12"));
    let mut inputs = request_of(0, 1, 7, 0).entry.unwrap().inputs().to_vec();
    inputs[1] = ids("mask", 1, [1; 6].into_iter());
    assert!(model.describe(&inputs).unwrap_err().0.contains("'mask' is 6 long, but 'ids' is 7"));
    let fixed = ModelSource { lengths: pool(WHOLE).lengths, ..files(&["gather"]) };
    assert!(engine.load(&fixed).err().unwrap().to_string().contains("its dimension 1 is always 2"));
}

#[test]
fn a_model_that_padding_changes_is_found_out() {
    for engine in engines() {
        let check = |source: &ModelSource| {
            let checked = check_padding(&*engine, &engine.load(source).unwrap());
            checked.map_err(|error| error.to_string())
        };
        for blocks in [WHOLE, CHAIN] {
            assert_eq!(check(&pool(blocks)), Ok(()));
        }
        let blind = check(&pool(&["pool_blind"])).unwrap_err();
        assert!(blind.starts_with("output 'mean' changes by") && blind.contains("attention mask"), "{blind}");
        let mut uncut = pool(WHOLE);
        uncut.lengths.outputs.clear();
        let uncut = check(&uncut).unwrap_err();
        assert!(uncut.starts_with("output 'tokens' is as long as the batch is padded"), "{uncut}");
        assert!(uncut.ends_with("length_dim = 1"), "{uncut}");
        assert_eq!(check(&files(&["mlp"])), Ok(()));
    }
}

#[test]
fn latencies_are_measured_by_length() {
    let engine = cpu().engine;
    let model = engine.load(&pool(CHAIN)).unwrap();
    let measurement = Measurement { max_batch: 4, budget: Duration::from_millis(500), example: None };
    let mut told = Vec::new();
    let blocks =
        measure(&*engine, &model, &measurement, &mut |step| told.push((step.done, step.sizes))).unwrap().blocks;
    assert_eq!(blocks.len(), 2);
    for block in &blocks {
        let table = block.lengths.as_ref().unwrap().table();
        assert_eq!(table.iter().map(|&(length, _)| length).collect::<Vec<u32>>(), [1, 2, 4, 8, 12]);
        assert_eq!(block.profile, table[4].1);
        assert!(table.iter().all(|(_, profile)| profile.max_batch() == 4 && profile.latency(1) > Nanos::ZERO));
    }
    assert_eq!(told.last().map(|&(_, sizes)| sizes), Some(15));
    run_example(&*engine, &model, None, 4).unwrap();
}
