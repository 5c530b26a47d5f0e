//! Rows of state, and answers of the demo models, on a device that is this machine's CPU.

use super::*;
use crate::probe::equality::{AnswerComparison, EngineWithModel, compare_walks};
use crate::{
    AnswerSource, AnswerSteps, BlockSource, GpuOptions, Initial, InputLink, InputSource, MemberProgress, Precision,
    RequestEntry, StepLimit, Task, TaskMember,
};
use ripieno_base::{BlockId, LaneId, Lcg, ModelId, RequestSlot, TaskId};
use ripieno_model::{Steps, Walk};
use ripieno_onnx::RandomCells;
use std::sync::mpsc::{Receiver, channel};

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
    model: Arc<dyn LoadedModel>,
    device: Box<dyn Device>,
    results: Receiver<crate::TaskResult>,
}

impl Bench {
    fn new(source: &ModelSource) -> Bench {
        let (engine, (sender, results)) = (CudaCellsEngine::on_host(3), channel());
        let model = engine.load(source).unwrap();
        let device = engine.open(1, Arc::new(move |result| drop(sender.send(result)))).unwrap();
        device.attach(ModelId(0), Arc::clone(&model));
        Bench { model, device, results }
    }

    fn entry(&self, length: u32, seed: u64) -> Arc<RequestEntry> {
        let inputs = self.model.varied_example(length, seed).unwrap();
        let (extent, _) = self.model.describe(&inputs).unwrap();
        Arc::new(RequestEntry { extent, ..RequestEntry::of(inputs.into()) })
    }

    fn run(&self, block: u16, members: Vec<TaskMember>) -> Result<Vec<MemberProgress>, ExecError> {
        let (id, model, block, lane) = (TaskId(0), ModelId(0), BlockId(block), LaneId(0));
        let task = Task { id, model, block, lane, length: 1, members, not_before: None };
        assert!(self.device.submit(task).is_ok());
        self.results.recv().unwrap().outcome
    }

    fn free(&self) -> (usize, usize) {
        let model = EngineModel::<CudaModel>::of(&*self.model, NAME).unwrap();
        model.data.place(0).unwrap().free()
    }
}

fn member(slot: u32, node: u32, entry: &Arc<RequestEntry>) -> TaskMember {
    TaskMember { node, ..TaskMember::new(RequestSlot(slot), 1, Some(Arc::clone(entry))) }
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
