//! Rows of state, and answers of the demo models, on a device that is this machine's CPU.

use super::*;
use crate::probe::equality::{AnswerComparison, EngineWithModel, compare_walks};
use crate::{
    AnswerSource, AnswerSteps, BlockSource, GpuOptions, Initial, InputLink, InputSource, MemberProgress, Precision,
    RequestEntry, StepLimit, Task, TaskMember, Tensor,
};
use ripieno_base::{BlockId, LaneId, Lcg, ModelId, RequestSlot, TaskId};
use ripieno_model::{Steps, Walk};
use ripieno_onnx::RandomCells;
use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

fn link(input: &str, from: InputSource) -> InputLink {
    InputLink { input: input.to_owned(), from, initial: None }
}

fn previous(states: &[&str]) -> Vec<InputLink> {
    states.iter().map(|state| link(state, InputSource::Previous(format!("{state}_next")))).collect()
}

fn answer(name: &str, block: u16, tensor: &str, take: AnswerSteps) -> AnswerSource {
    AnswerSource { name: name.to_owned(), block: Some(BlockId(block)), tensor: tensor.to_owned(), take }
}

fn demo(model: &str, cell: &str) -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/repository");
    models.join(model).join("1").join(format!("{cell}.onnx"))
}

/// Returns the demo model "dates": an encoder, and a decoder that chooses tokens until its end.
fn dates() -> ModelSource {
    let encoder = BlockSource {
        path: Some(demo("dates", "encoder")),
        steps: Steps::Length,
        links: previous(&["h", "c"]),
        ..BlockSource::new("encoder")
    };
    let mut links = previous(&["token", "h", "c"]);
    links[0].initial = Some(Initial::Number(2.0));
    for (at, state) in [(1, "h_next"), (2, "c_next")] {
        links[at].initial = Some(Initial::Last(BlockId(0), state.to_owned()));
    }
    let end = Some("done".to_owned());
    let decoder = BlockSource {
        path: Some(demo("dates", "decoder")),
        steps: Steps::UntilEnd,
        links,
        end,
        ..BlockSource::new("decoder")
    };
    let answers =
        vec![answer("tokens", 1, "token_next", AnswerSteps::Every), answer("h", 1, "h_next", AnswerSteps::Last)];
    let limit = StepLimit::Fixed(16);
    ModelSource { walk: Walk::EncodeDecode, answers, limit, ..ModelSource::new("dates", vec![encoder, decoder], 8) }
}

/// Returns a model of one cell, which repeats.
fn repeated(file: PathBuf, states: &[&str], max_batch: usize) -> ModelSource {
    let cell =
        BlockSource { path: Some(file), steps: Steps::Length, links: previous(states), ..BlockSource::new("cell") };
    let answers = vec![answer("h", 0, "h_next", AnswerSteps::Last)];
    ModelSource { walk: Walk::Repeat, answers, ..ModelSource::new("cell", vec![cell], max_batch) }
}

/// Compares whole walks with the built-in engine.
fn compare(source: &ModelSource, tolerance: f64) -> AnswerComparison {
    let (own, reference) = (CudaCellsEngine::on_host(0), CpuEngine::new(CpuOptions::default()));
    let models = [own.load(source).unwrap(), reference.load(source).unwrap()];
    let side = |engine, model| EngineWithModel { engine, model };
    compare_walks(side(&own, &models[0]), side(&reference, &models[1]), tolerance)
}

#[test]
fn demo_models_answer_as_on_the_cpu_in_each_precision() {
    let sentiment = repeated(demo("sentiment", "cell"), &["h", "c"], 8);
    for source in [sentiment, dates()] {
        for (precision, tolerance) in [(Precision::Fp32, 1e-4), (Precision::Tf32, 1e-4), (Precision::Fp16, 5e-3)] {
            let gpu = GpuOptions { precision, ..GpuOptions::default() };
            let source = ModelSource { gpu, ..source.clone() };
            assert_eq!(compare(&source, tolerance), AnswerComparison::Equal, "{} {precision:?}", source.name);
        }
    }
    assert!(matches!(
        compare(
            &ModelSource { gpu: GpuOptions { precision: Precision::Fp16, ..GpuOptions::default() }, ..dates() },
            1e-9
        ),
        AnswerComparison::Different(_)
    ));
}

/// Cells as they are made of the operators LSTM, GRU (both forms) and RNN.
#[test]
fn cells_of_recurrent_operators_answer_as_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    for (name, states) in [("lstm", &["h", "c"][..]), ("gru", &["h"]), ("gru_reset", &["h"]), ("rnn", &["h"])] {
        let cells = ripieno_onnx::OnnxModel::read(&files.join(format!("recurrent_{name}.onnx")))
            .and_then(|model| model.cells())
            .unwrap();
        cells.write(folder.path()).unwrap();
        let source = repeated(folder.path().join("cell.onnx"), states, 8);
        assert_eq!(compare(&source, 1e-4), AnswerComparison::Equal, "{name}");
    }
}

/// A model on a device, with the results of its tasks.
struct Bench {
    host: Arc<HostDevice>,
    model: Arc<dyn LoadedModel>,
    device: Box<dyn Device>,
    results: Receiver<crate::TaskResult>,
}

impl Bench {
    fn new(source: &ModelSource) -> Bench {
        Bench::open(source, 3, 1, DEFAULT_DEPTH)
    }

    fn open(source: &ModelSource, seed: u64, lanes: usize, depth: usize) -> Bench {
        let (host, (sender, results)) = (Arc::new(HostDevice::new(seed)), channel());
        let devices: Arc<[Arc<dyn StepDevice>]> = Arc::new([Arc::clone(&host) as Arc<dyn StepDevice>]);
        let engine = CudaCellsEngine::of(devices, DevicesFound::Host(seed), "host".to_owned()).with_depth(depth);
        let model = engine.load(source).unwrap();
        let device = engine.open(lanes, Arc::new(move |result| drop(sender.send(result)))).unwrap();
        device.attach(ModelId(0), Arc::clone(&model));
        Bench { host, model, device, results }
    }

    fn entry(&self, length: u32, seed: u64) -> Arc<RequestEntry> {
        let inputs = self.model.varied_example(length, seed).unwrap();
        let (extent, _) = self.model.describe(&inputs).unwrap();
        Arc::new(RequestEntry { extent, ..RequestEntry::of(inputs.into()) })
    }

    fn submit(&self, lane: u16, block: u16, members: Vec<TaskMember>) {
        let (id, model, block, lane) = (TaskId(0), ModelId(0), BlockId(block), LaneId(lane));
        let task = Task { id, model, block, lane, length: 1, members, not_before: None };
        assert!(self.device.submit(task).is_ok());
    }

    fn result(&self) -> Result<Vec<MemberProgress>, ExecError> {
        self.results.recv_timeout(Duration::from_secs(60)).unwrap().outcome
    }

    fn run(&self, block: u16, members: Vec<TaskMember>) -> Result<Vec<MemberProgress>, ExecError> {
        self.submit(0, block, members);
        self.result()
    }

    /// Returns the answer of a request that runs alone, one step after the other.
    fn alone(&self, entry: &Arc<RequestEntry>, blocks: u16) -> Vec<Tensor> {
        for block in 0..blocks {
            for node in 0.. {
                let progress = self.run(block, vec![member(0, node, entry)]).unwrap().remove(0);
                if progress.ended {
                    return progress.outputs;
                }
                if block + 1 < blocks && node + 1 == entry.extent.length {
                    break;
                }
            }
        }
        unreachable!("the last block ends the walk")
    }

    /// Waits until this number of steps of a lane were in flight.
    fn wait_for_steps(&self, count: usize) {
        let begun = Instant::now();
        while self.host.most_in_flight() < count {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} steps", self.host.most_in_flight());
            std::thread::yield_now();
        }
    }

    fn free(&self) -> (usize, usize) {
        let model = EngineModel::<CudaModel>::of(&*self.model, NAME).unwrap();
        model.data.placed[0].rows().unwrap().free()
    }
}

fn member(slot: u32, node: u32, entry: &Arc<RequestEntry>) -> TaskMember {
    TaskMember { node, ..TaskMember::new(RequestSlot(slot), 1, Some(Arc::clone(entry))) }
}

/// A request in a slot, some steps of which may be in flight.
struct RunningWalk {
    entry: Arc<RequestEntry>,
    number: u64,
    block: u16,
    planned: u32,
    settled: u32,
    expected: Vec<Tensor>,
}

/// Tasks are queued up to the lane's depth, from random requests and in random sizes. Requests are
/// given up at any time, with steps in flight, and others take their slots.
#[test]
fn answers_are_those_alone_however_far_steps_run_ahead() {
    const SLOTS: usize = 12;
    const DEPTH: usize = 5;
    for (source, blocks) in [(repeated(demo("sentiment", "cell"), &["h", "c"], 8), 1), (dates(), 2)] {
        let [bench, quiet] = [(7, DEPTH), (0, 1)].map(|(seed, depth)| Bench::open(&source, seed, 1, depth));
        let (mut random, mut number, mut ended, mut wasted) = (Lcg::new(5), 0, HashSet::new(), 0);
        let mut walks: Vec<Option<RunningWalk>> = (0..SLOTS).map(|_| None).collect();
        let mut queued: VecDeque<Vec<(usize, u64, u16)>> = VecDeque::new();
        for round in 0..400 {
            for walk in &mut walks {
                if random.below(if walk.is_some() { 64 } else { 2 }) == 0 {
                    number += 1;
                    let entry = quiet.entry(1 + random.below(9) as u32, round);
                    let expected = quiet.alone(&entry, blocks);
                    *walk = Some(RunningWalk { entry, number, block: 0, planned: 0, settled: 0, expected });
                }
            }
            let block = random.below(u64::from(blocks)) as u16;
            let (mut members, mut names) = (Vec::new(), Vec::new());
            for (slot, walk) in walks.iter_mut().enumerate() {
                let Some(walk) = walk.as_mut().filter(|walk| walk.block == block) else { continue };
                let extent = walk.entry.extent;
                let limit = if block == 0 { extent.length } else { extent.limit };
                if queued.len() < DEPTH && members.len() < 8 && walk.planned < limit && random.below(3) > 0 {
                    let one = member(slot as u32, walk.planned, &walk.entry);
                    members.push(TaskMember { walk: walk.number, ..one });
                    names.push((slot, walk.number, block));
                    walk.planned += 1;
                }
            }
            if !members.is_empty() {
                bench.submit(0, block, members);
                queued.push_back(names);
            }
            if queued.len() < DEPTH && random.below(3) > 0 {
                continue;
            }
            let Some(names) = queued.pop_front() else { continue };
            for ((slot, number, block), progress) in names.into_iter().zip(bench.result().unwrap()) {
                assert!(progress.failed.is_none(), "{progress:?}");
                let Some(walk) = walks[slot].as_mut().filter(|walk| walk.number == number) else {
                    assert!(!ended.contains(&number) || !progress.ended, "a request ends once");
                    wasted += 1;
                    continue;
                };
                walk.settled += 1;
                if progress.ended && block + 1 == blocks {
                    assert_eq!(progress.outputs, walk.expected);
                    ended.insert(number);
                    walks[slot] = None;
                } else if block + 1 < blocks && walk.settled == walk.entry.extent.length {
                    (walk.block, walk.planned, walk.settled) = (block + 1, 0, 0);
                }
            }
        }
        queued.drain(..).for_each(|_| drop(bench.result().unwrap()));
        assert!(ended.len() > 30 && wasted > 20, "{} answers, {wasted} steps without a request", ended.len());
        assert!(bench.host.most_in_flight() > 2, "steps ran ahead");
        let entry = bench.entry(1, 1);
        for (slot, block) in (0..SLOTS as u32).flat_map(|slot| (0..blocks).map(move |block| (slot, block))) {
            let limit = if block == 0 { 1 } else { entry.extent.limit };
            for node in 0..limit {
                let last = TaskMember { walk: number + 1, ..member(slot, node, &entry) };
                bench.run(block, vec![last]).unwrap();
            }
        }
        let (free, total) = bench.free();
        assert_eq!(free, total, "every row is free");
    }
}

/// The GPU fails while steps of several requests are in flight, and some have not been launched.
#[test]
fn an_error_of_the_gpu_fails_each_task_once_and_frees_every_row() {
    for runs in [0, 1, 5, 9] {
        let bench = Bench::open(&repeated(demo("sentiment", "cell"), &["h", "c"], 8), 3, 1, 5);
        let entries: Vec<_> = (0..4).map(|seed| bench.entry(9, seed)).collect();
        bench.host.hold(true);
        bench.host.fail_after(runs);
        let step = |node: u32| (0..).zip(&entries).map(|(slot, entry)| member(slot, node, entry)).collect();
        (0..5).for_each(|node| bench.submit(0, 0, step(node)));
        bench.host.hold(false);
        let mut failed = 0;
        for node in 5..9 {
            failed += u64::from(bench.result().is_err());
            bench.submit(0, 0, step(node));
        }
        let last: Vec<_> = (0..5).map(|_| bench.result()).collect();
        failed += last.iter().filter(|result| result.is_err()).count() as u64;
        assert_eq!(failed, 9 - runs, "{last:?}");
        let causes = last.into_iter().filter_map(Result::err);
        assert!(causes.clone().all(|cause| cause.0.contains("illegal memory access") || cause.0.contains("earlier")));
        assert!(bench.results.try_recv().is_err(), "each task ends once");
        bench.device.detach(ModelId(0));
        let begun = Instant::now();
        while bench.free().0 < bench.free().1 {
            assert!(begun.elapsed() < Duration::from_secs(60), "rows are held");
            std::thread::yield_now();
        }
    }
}

#[test]
fn steps_of_one_request_are_launched_before_the_first_has_ended() {
    let bench = Bench::open(&repeated(demo("sentiment", "cell"), &["h", "c"], 8), 3, 1, 4);
    let entry = bench.entry(3, 1);
    let expected = bench.alone(&entry, 1);
    bench.host.hold(true);
    (0..3).for_each(|node| bench.submit(0, 0, vec![TaskMember { walk: 1, ..member(0, node, &entry) }]));
    bench.wait_for_steps(3);
    assert!(bench.results.try_recv().is_err(), "no step has ended");
    let (launched, before) = (Instant::now(), bench.device.spent());
    while launched.elapsed() < Duration::from_millis(2) {
        std::thread::yield_now();
    }
    bench.host.hold(false);
    let progress: Vec<MemberProgress> = (0..3).map(|_| bench.result().unwrap().remove(0)).collect();
    assert_eq!(progress.iter().map(|one| one.ended).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(progress[2].outputs, expected);
    let computed = bench.device.spent().compute_ns - before.compute_ns;
    assert!(computed >= 2_000_000, "the device held the first step for 2 ms, not {computed} ns");
}

/// The step of one member fails while later steps of it are in flight.
#[test]
fn a_member_that_fails_leaves_the_steps_behind_it_to_the_others() {
    let bench = Bench::open(&repeated(demo("sentiment", "cell"), &["h", "c"], 8), 3, 1, 4);
    let entry = bench.entry(3, 1);
    let expected = bench.alone(&entry, 1);
    let mut inputs = entry.inputs().to_vec();
    let ids = [1i64, 1 << 20, 2].map(i64::to_le_bytes).concat();
    assert_eq!(inputs[0].data.len(), ids.len());
    inputs[0].data = ids.into();
    let wrong = Arc::new(RequestEntry { extent: entry.extent, ..RequestEntry::of(inputs.into()) });
    bench.host.hold(true);
    for node in 0..3 {
        let both = [(0, &wrong), (1, &entry)].map(|(slot, entry)| member(slot, node, entry));
        bench.submit(0, 0, both.map(|one| TaskMember { walk: 1, ..one }).into());
    }
    bench.wait_for_steps(3);
    bench.host.hold(false);
    let progress: Vec<_> = (0..3).map(|_| bench.result().unwrap()).collect();
    let failed = |of: usize| progress.iter().map(|both| both[of].failed.is_some()).collect::<Vec<_>>();
    assert_eq!((failed(0), failed(1)), (vec![false, true, false], vec![false; 3]));
    assert!(!progress[2][0].ended && progress[2][0].outputs.is_empty());
    assert_eq!(progress[2][1].outputs, expected);
    assert_eq!(bench.free().0, bench.free().1);
}

/// Only one lane keeps the order of a request's steps.
#[test]
fn another_lane_does_not_read_the_state_that_a_step_in_flight_writes() {
    let bench = Bench::open(&repeated(demo("sentiment", "cell"), &["h", "c"], 8), 3, 2, 2);
    let entry = bench.entry(2, 1);
    let expected = bench.alone(&entry, 1);
    let one = |slot: u32, walk: u64, node: u32| vec![TaskMember { walk, ..member(slot, node, &entry) }];
    bench.host.hold(true);
    bench.submit(0, 0, one(0, 1, 0));
    bench.submit(0, 0, one(1, 1, 0));
    // The first step is planned once the second one is launched.
    bench.wait_for_steps(2);
    bench.submit(1, 0, one(0, 1, 1));
    let refused = bench.result().unwrap_err().0;
    assert!(refused.contains("still runs on another lane"), "{refused}");
    bench.host.hold(false);
    for _ in 0..2 {
        assert!(!bench.result().unwrap()[0].ended);
    }
    bench.run(0, one(0, 2, 0)).unwrap();
    bench.submit(1, 0, one(0, 2, 1));
    assert_eq!(bench.result().unwrap().remove(0).outputs, expected, "a step that has ended may be read anywhere");
}

/// Requests end, or are given up at a random step; at the end every row is free.
#[test]
fn rows_taken_are_rows_freed_after_ends_and_cancellations() {
    const SLOTS: u32 = 12;
    let bench = Bench::new(&repeated(demo("sentiment", "cell"), &["h", "c"], 8));
    let total = bench.free().1;
    let mut random = Lcg::new(11);
    let mut walks: Vec<Option<(Arc<RequestEntry>, u32)>> = vec![None; SLOTS as usize];
    for round in 0..600 {
        for walk in &mut walks {
            let (begins, length) = (random.below(8) == 0, 1 + random.below(9) as u32);
            // A new request may take the slot of one that is in progress.
            if begins {
                *walk = Some((bench.entry(length, round), 0));
            }
        }
        let (mut chosen, mut members) = (Vec::new(), Vec::new());
        for (slot, walk) in (0..).zip(&walks) {
            let Some((entry, node)) = walk.as_ref().filter(|_| members.len() < 8 && random.below(2) == 0) else {
                continue;
            };
            chosen.push(slot as usize);
            members.push(member(slot, *node, entry));
        }
        if members.is_empty() {
            continue;
        }
        let progress = bench.run(0, members).unwrap();
        for (slot, progress) in chosen.into_iter().zip(progress) {
            let (entry, node) = walks[slot].take().unwrap();
            assert_eq!(progress.ended, node + 1 == entry.extent.length);
            walks[slot] = (!progress.ended).then_some((entry, node + 1));
        }
        let begun = walks.iter().flatten().filter(|(_, node)| *node > 0).count();
        let (free, total) = bench.free();
        assert!(total - free >= begun && total - free <= SLOTS as usize, "{} of {begun} rows", total - free);
    }
    for slot in 0..SLOTS {
        let entry = bench.entry(1, 1000);
        assert!(bench.run(0, vec![member(slot, 0, &entry)]).unwrap()[0].ended);
    }
    assert_eq!(bench.free(), (total, total));
}

/// A walk that another device goes on with takes its rows along, and leaves none behind.
#[test]
fn a_walk_that_changes_devices_takes_its_rows_along() {
    let source = dates();
    let alone = Bench::open(&source, 0, 1, DEFAULT_DEPTH);
    let hosts = [3, 4].map(|seed| Arc::new(HostDevice::new(seed)) as Arc<dyn StepDevice>);
    let engine = CudaCellsEngine::of(Arc::new(hosts), DevicesFound::Host(0), "host".to_owned());
    let model = engine.load(&source).unwrap();
    let devices: Vec<_> = (0..2)
        .map(|_| {
            let (sender, results) = channel();
            let device = engine.open(1, Arc::new(move |result| drop(sender.send(result)))).unwrap();
            device.attach(ModelId(0), Arc::clone(&model));
            (device, results)
        })
        .collect();
    let run = |on: usize, block: u16, members: Vec<TaskMember>| {
        let (id, lane) = (TaskId(0), LaneId(0));
        let task = Task { id, model: ModelId(0), block: BlockId(block), lane, length: 1, members, not_before: None };
        assert!(devices[on].0.submit(task).is_ok());
        devices[on].1.recv_timeout(Duration::from_secs(60)).unwrap().outcome.unwrap()
    };
    let mut random = Lcg::new(11);
    for round in 0..6 {
        let entries: Vec<_> = (0..3).map(|slot| alone.entry(4 + slot, u64::from(slot) + 10 * round)).collect();
        let expected: Vec<_> = entries.iter().map(|entry| alone.alone(entry, 2)).collect();
        let mut found: Vec<Option<Vec<Tensor>>> = vec![None; entries.len()];
        let mut walk = |block: u16, slots: &[usize], node: u32| {
            let members = slots.iter().map(|&slot| member(slot as u32, node, &entries[slot])).collect();
            let progress = run(random.below(2) as usize, block, members);
            for (&slot, progress) in slots.iter().zip(progress).filter(|(_, progress)| progress.ended) {
                found[slot] = Some(progress.outputs);
            }
            slots.iter().copied().filter(|&slot| found[slot].is_none()).collect::<Vec<usize>>()
        };
        for node in 0..6 {
            let slots: Vec<usize> = (0..3).filter(|&slot| node < entries[slot].extent.length).collect();
            walk(0, &slots, node);
        }
        let (mut left, mut node) = (vec![0, 1, 2], 0);
        while !left.is_empty() {
            left = walk(1, &left, node);
            node += 1;
        }
        for (expected, found) in expected.iter().zip(found) {
            let found = found.unwrap();
            assert!(expected.iter().zip(&found).all(|(a, b)| a.data == b.data), "round {round}");
        }
    }
    assert!(devices.iter().all(|(device, _)| device.rows_gathered() > 0), "both took rows of the other");
    let data = &EngineModel::<CudaModel>::of(&*model, NAME).unwrap().data;
    let entries: Vec<_> = (0..3).map(|slot| alone.entry(1, slot)).collect();
    // Requests of one step in the slots let the rows of the earlier ones go.
    for (slot, entry) in entries.iter().enumerate() {
        run(0, 0, vec![member(slot as u32, 0, entry)]);
    }
    let held: usize =
        data.placed.iter().map(|placed| placed.rows().unwrap().free()).map(|(free, all)| all - free).sum();
    assert_eq!(held, 3, "a row for each request in progress");
}

#[test]
fn a_model_whose_rows_are_all_taken_fails_the_request_and_goes_on() {
    let limit = Some(64 << 10);
    let source = repeated(demo("sentiment", "cell"), &["h", "c"], 8);
    let bench = Bench::new(&ModelSource { gpu: GpuOptions { memory_limit: limit, ..GpuOptions::default() }, ..source });
    let total = bench.free().1;
    let entry = bench.entry(3, 1);
    for slot in 0..total as u32 {
        bench.run(0, vec![member(slot, 0, &entry)]).unwrap();
    }
    assert_eq!(bench.free(), (0, total));
    let full = bench.run(0, vec![member(total as u32, 0, &entry)]).unwrap_err();
    assert!(full.0.contains(&format!("all {total} rows of state")), "{full}");
    let begun = bench.entry(1, 2);
    let again = bench.run(0, vec![member(0, 0, &begun)]).unwrap();
    assert!(again[0].ended, "the request that begins anew takes the row of the one before it in its slot");
    assert_eq!(bench.free(), (1, total));
}

#[test]
fn what_the_gpu_does_not_know_is_refused_with_its_name() {
    let load = |source: &ModelSource| CudaCellsEngine::on_host(0).load(source).err().unwrap().0;
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/models/{name}.onnx"));
    let refused = load(&ModelSource { max_length: 4, ..repeated(file("cell_cumulative"), &["h"], 8) });
    assert!(refused.contains("cell 'cell': CumSum: the GPU's cells do not know it"), "{refused}");
}

#[test]
fn random_cells_have_the_fewest_stages() {
    let folder = tempfile::tempdir().unwrap();
    let lstm = RandomCells::lstm(8, 12, 1);
    let path = folder.path().join("cell.onnx");
    std::fs::write(&path, &lstm.blocks[0].1).unwrap();
    let model = CudaCellsEngine::on_host(0).load(&repeated(path, &["h", "c"], 8)).unwrap();
    let model = EngineModel::<CudaModel>::of(&*model, NAME).unwrap();
    let stages = &model.data.compiled.spec.programs[0].stages;
    assert_eq!(stages.len(), 3, "gather, product, gates: {stages:?}");
}
