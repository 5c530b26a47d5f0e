//! Comparison at load of a model's answers on two engines.
//!
//! A GPU computes by other kernels than the CPU, and an error in one of them is a well-formed
//! answer. So rows made up as for the test of independence run on both, and the answers must be
//! equal but for rounding. The test proves nothing about other rows and sizes.

use crate::probe::example::{RowSpec, TOO_LARGE, candidates, request};
use crate::probe::independence::{FLIPPED, RowOutputs, alone, flipped, floats, gap, largest_number};
use crate::probe::profile::{ExampleRunner, task};
use crate::{ExecError, Executor, LoadedModel, TaskMember, Tensor, next_walk};
use ripieno_base::RequestSlot;
use ripieno_model::{DataType, TensorSpec};
use std::sync::Arc;

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerComparison {
    /// The answers are equal within the tolerance.
    Equal,
    /// An output differs. Holds a description of the one that differs most.
    Different(String),
    /// The reference ran no generated request. Holds the last error.
    Untried(String),
}

/// A loaded model with an engine that runs it.
#[derive(Clone, Copy)]
pub struct EngineWithModel<'a> {
    /// The engine.
    pub engine: &'a dyn Executor,
    /// The model, loaded by the engine.
    pub model: &'a Arc<dyn LoadedModel>,
}

/// Number of rows that are compared.
const ROWS: usize = 3;
/// Factor of the tolerance for 16-bit numbers, which are rounded more coarsely.
const COARSER: f64 = 20.0;

/// Compares the answers of an engine with the answers of a reference. The `tolerance` is relative
/// to the largest number of each output. Open dimensions have the sizes that `declared` gives them,
/// if any.
pub fn compare_answers(
    own: EngineWithModel<'_>,
    reference: EngineWithModel<'_>,
    declared: &[TensorSpec],
    tolerance: f64,
) -> AnswerComparison {
    let model = &**reference.model;
    let mut failed = TOO_LARGE.to_owned();
    for spec in candidates(model, declared) {
        let row = |row: usize| request(model, declared, RowSpec { row, ..spec });
        let Some(rows) = (0..ROWS).map(row).collect::<Option<Vec<_>>>() else { continue };
        let run = |side: EngineWithModel<'_>| {
            let runner = ExampleRunner::new(side.engine, side.model, rows[0].clone().into());
            runner
                .map_err(|cause| cause.to_string())
                .and_then(|runner| alone(&runner, &rows).map_err(|cause| cause.to_string()))
        };
        let expected = match run(reference) {
            Ok(expected) => expected,
            Err(cause) => {
                failed = cause;
                continue;
            }
        };
        return match run(own) {
            Ok(found) => worst(&expected, &found, tolerance),
            Err(cause) => AnswerComparison::Different(format!("a request that one answers fails: {cause}")),
        };
    }
    AnswerComparison::Untried(failed)
}

/// Length of the walks that are compared: rounding differences that grow from step to step show.
const WALK_LENGTH: u32 = 32;

/// Compares the answers to whole walks of a model in cells, as [`compare_answers`].
pub fn compare_walks(own: EngineWithModel<'_>, reference: EngineWithModel<'_>, tolerance: f64) -> AnswerComparison {
    let walks: Option<Vec<_>> = (0..ROWS).map(|row| reference.model.varied_example(WALK_LENGTH, row as u64)).collect();
    let Some(walks) = walks else { return AnswerComparison::Untried("no request can be made up".to_owned()) };
    let run = |side: EngineWithModel<'_>| {
        let runner = ExampleRunner::new(side.engine, side.model, walks[0].clone().into()).map_err(|cause| cause.0)?;
        let answers = walks.iter().map(|walk| answer_of_walk(&runner, walk.clone()));
        answers.collect::<Result<Vec<_>, _>>().map_err(|cause| cause.0)
    };
    match (run(reference), run(own)) {
        (Err(cause), _) => AnswerComparison::Untried(cause),
        (Ok(_), Err(cause)) => AnswerComparison::Different(format!("a request that one answers fails: {cause}")),
        (Ok(expected), Ok(found)) => worst(&expected, &found, tolerance),
    }
}

/// Runs the whole walk of one request that is as long as the example. Returns its outputs.
fn answer_of_walk(runner: &ExampleRunner, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, ExecError> {
    let (entry, walk) = (Arc::new(runner.entry(inputs)), next_walk());
    let mut outputs = Vec::new();
    for &(block, node) in &runner.tasks {
        let member = TaskMember::new(RequestSlot(0), 1, Some(Arc::clone(&entry)));
        let progress = runner.result(task(block, 1, vec![TaskMember { node, walk, ..member }]))?.whole()?;
        outputs.extend(progress.into_iter().flat_map(|progress| progress.outputs));
    }
    Ok(outputs)
}

/// Returns the output that exceeds its tolerance by the largest factor.
fn worst(expected: &[RowOutputs], found: &[RowOutputs], tolerance: f64) -> AnswerComparison {
    let outputs = expected.first().map_or(0, Vec::len);
    let excesses = (0..outputs).map(|output| excess(expected, found, output, tolerance));
    let worst = excesses.max_by(|a, b| a.factor.total_cmp(&b.factor));
    match worst.filter(|worst| worst.factor > 1.0) {
        Some(worst) => AnswerComparison::Different(worst.text),
        None => AnswerComparison::Equal,
    }
}

/// Difference of an output as a multiple of its tolerance, with a description.
struct OutputExcess {
    factor: f64,
    text: String,
}

fn excess(expected: &[RowOutputs], found: &[RowOutputs], output: usize, tolerance: f64) -> OutputExcess {
    let pairs = || expected.iter().zip(found).map(|(a, b)| (&a[output], b.get(output)));
    let first = &expected[0][output];
    let name = &first.name;
    let infinite = |text| OutputExcess { factor: f64::INFINITY, text };
    let mut apart = 0.0;
    let mut flips = 0.0;
    for (a, b) in pairs() {
        let Some(b) = b else { return infinite(format!("output '{name}' is missing")) };
        if a.shape != b.shape {
            return infinite(format!("output '{name}' is {:?} instead of {:?}", &b.shape[1..], &a.shape[1..]));
        }
        match (floats(a), floats(b)) {
            (Some(a), Some(b)) => apart = a.iter().zip(&b).map(|(a, b)| gap(*a, *b)).fold(apart, f64::max),
            _ => flips = flipped(a, b).max(flips),
        }
    }
    if floats(first).is_none() {
        let text = format!("{:.0} % of output '{name}' differ", flips * 100.0);
        return OutputExcess { factor: flips / FLIPPED, text };
    }
    let coarse = matches!(first.datatype, DataType::Fp16 | DataType::Bf16);
    let tolerance = if coarse { tolerance * COARSER } else { tolerance };
    let apart = apart / largest_number(expected.iter().chain(found).filter_map(|answer| floats(&answer[output])));
    let text = match apart.is_finite() {
        true => format!(
            "output '{name}' differs by {:.2} % of its largest number; {:.2} % are allowed",
            apart * 100.0,
            tolerance * 100.0
        ),
        false => format!("output '{name}' is a number in one answer and none in the other"),
    };
    OutputExcess { factor: if apart > tolerance { apart / tolerance.max(f64::MIN_POSITIVE) } else { 0.0 }, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockSource, CpuEngine, CpuOptions, ModelSource};

    #[test]
    fn another_answer_is_found_and_the_same_is_equal() {
        let engine = CpuEngine::new(CpuOptions::default());
        let load = |name: &str| {
            let path = format!("{}/tests/models/{name}.onnx", env!("CARGO_MANIFEST_DIR"));
            let block = BlockSource { path: Some(path.into()), ..BlockSource::new(name) };
            engine.load(&ModelSource::new(name, vec![block], 4)).unwrap()
        };
        let compare = |own: &str, reference: &str, tolerance| {
            let [own, reference] = [own, reference].map(load);
            let side = |model| EngineWithModel { engine: &engine, model };
            compare_answers(side(&own), side(&reference), &[], tolerance)
        };
        assert_eq!(compare("mlp", "mlp", 0.0), AnswerComparison::Equal);
        assert_eq!(compare("identity_int64", "identity_int64", 1e-3), AnswerComparison::Equal);
        let AnswerComparison::Different(how) = compare("centred", "identity_fp32", 1e-3) else { panic!("equal") };
        assert!(how.starts_with("output 'y' differs by ") && how.ends_with("; 0.10 % are allowed"), "{how}");
        assert_eq!(compare("centred", "identity_fp32", 10.0), AnswerComparison::Equal);
        let AnswerComparison::Different(how) = compare("mlp", "gather", 1e-3) else { panic!("equal") };
        assert!(how.starts_with("a request that one answers fails: "), "{how}");
    }

    #[test]
    fn the_output_that_differs_most_is_named() {
        let tensor = |name: &str, number: f32| Tensor {
            name: name.into(),
            datatype: DataType::Fp32,
            shape: vec![1, 2],
            data: [1f32, number].map(f32::to_le_bytes).concat().into(),
        };
        let answers = |a, b| vec![vec![tensor("a", a), tensor("b", b)]];
        let AnswerComparison::Different(how) = worst(&answers(0.5, 0.5), &answers(0.49, 0.4), 1e-3) else {
            panic!("equal")
        };
        assert_eq!(how, "output 'b' differs by 10.00 % of its largest number; 0.10 % are allowed");
        assert_eq!(worst(&answers(0.5, 0.5), &answers(0.5, 0.5005), 1e-3), AnswerComparison::Equal);
        let AnswerComparison::Different(how) = worst(&answers(0.5, 0.5), &answers(0.4, f32::NAN), 1e-3) else {
            panic!("equal")
        };
        assert_eq!(how, "output 'b' is a number in one answer and none in the other");
    }
}
