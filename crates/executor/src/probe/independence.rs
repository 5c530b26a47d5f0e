//! Test at load whether a model computes the rows of a batch independently.
//!
//! A file declares its first dimension as dynamic, but not what the dimension means. A softmax,
//! running sum or mean along it mixes the requests of a batch. Each client then gets a well-formed
//! answer that depends on other requests. So random rows are run alone, together, and together in
//! another order. Two of the rows are also run as one request. The results of a row must be equal.
//!
//! The test proves nothing: it misses effects that need batches larger than [`ROWS`] or particular
//! inputs. The analysis of the graph (`ripieno_onnx::analyse_rows`) proves, and this test confirms
//! it. Where the analysis cannot tell, the test decides: it tries rows of several magnitudes, with
//! a tolerance for each number, and counts only if answers tell the rows apart. Rows that are all
//! answered by the same numbers show nothing.
//!
//! A model that accepts no random row, because its open dimensions must be certain numbers or its
//! values mean something, is [`Untried`](RowIndependence::Untried): its rows may depend on each
//! other.

use crate::probe::example::{RowSpec, TOO_LARGE, ValuePattern, candidates, request};
use crate::probe::profile::ExampleRunner;
use crate::run::rows;
use crate::{ExecError, Executor, LoadedModel, RequestEntry, Tensor};
use ripieno_model::{DataType, TensorSpec};
use std::sync::Arc;

/// Result of testing a model's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowIndependence {
    /// Each row is computed independently.
    Independent,
    /// Rows affect each other. Holds a description.
    Mixed(String),
    /// The model accepted no generated request. Holds the last error.
    Untried(String),
}

/// Purpose of a test of a model's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowTrial {
    /// The rows are proved to be independent, and one kind of rows confirms it.
    Confirms,
    /// Nothing else is known.
    Decides,
}

/// Largest number of rows in a test.
const ROWS: usize = 4;
/// Largest accepted difference of a number, relative to the largest number of its tensor. Engines
/// may sum in different orders in different batches.
const TOLERANCE: f64 = 1e-3;
/// Largest accepted difference of 16-bit numbers, which are rounded more coarsely.
const COARSE_TOLERANCE: f64 = 2e-2;
/// Largest accepted difference of a number where a test decides, relative to the largest number of
/// its own row, beside [`TOLERANCE`] of the number itself. Small numbers stand beside large ones.
const ROW_SHARE: f64 = 0.01;
/// Largest accepted share of integers in a row that differ. A rounding difference may decide
/// between two integers.
pub(crate) const FLIPPED: f64 = 0.01;

/// Tests whether a model computes rows independently. The engine must be able to run the model.
/// Open dimensions have the sizes that `declared` gives them, if any.
pub fn check_rows(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    max_batch: usize,
    declared: &[TensorSpec],
    trial: RowTrial,
) -> RowIndependence {
    let outputs = model.outputs().iter().map(|output| output.name.clone()).collect();
    try_patterns(engine, model, max_batch, declared, trial, outputs)
}

/// Tests whether a step computes rows independently. Its output `end` may be the same for all rows
/// that are tried, since few steps are the last.
pub fn check_step_rows(
    engine: &dyn Executor,
    step: &Arc<dyn LoadedModel>,
    max_batch: usize,
    trial: RowTrial,
    end: Option<&str>,
) -> RowIndependence {
    let outputs = step.outputs().iter().map(|output| output.name.clone());
    let differ = outputs.filter(|name| end != Some(name.as_str())).collect();
    try_patterns(engine, step, max_batch, &[], trial, differ)
}

/// Tests rows of all patterns. `alike` are the outputs that must tell rows apart.
fn try_patterns(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    max_batch: usize,
    declared: &[TensorSpec],
    trial: RowTrial,
    mut alike: Vec<String>,
) -> RowIndependence {
    let count = max_batch.min(ROWS);
    if count < 2 || !model.batched() {
        return RowIndependence::Independent;
    }
    let patterns = match trial {
        RowTrial::Confirms => &ValuePattern::ALL[..1],
        RowTrial::Decides => &ValuePattern::ALL,
    };
    for (number, &pattern) in patterns.iter().enumerate() {
        match try_rows(engine, model, declared, RowDraw { count, pattern, trial }) {
            Ok((RowIndependence::Independent, answers)) if model.batches_stopped().is_none() => {
                alike.retain(|name| !tells_apart(name, &answers))
            }
            Ok((RowIndependence::Independent, _)) => break,
            Ok((other, _)) => return other,
            Err(cause) if number == 0 => return RowIndependence::Untried(cause),
            // Values beyond those that the model accepts.
            Err(_) => {}
        }
    }
    // The device has run the rows of a batch alone, because an answer showed that they cannot share
    // it.
    if let Some(why) = model.batches_stopped() {
        return RowIndependence::Mixed(format!("each row runs alone, but rows together fail: {why}"));
    }
    match alike.first().filter(|_| trial == RowTrial::Decides) {
        Some(name) => {
            RowIndependence::Untried(format!("output '{name}' is empty, or the same for all rows that were tried"))
        }
        None => RowIndependence::Independent,
    }
}

/// Rows of one test.
#[derive(Clone, Copy)]
struct RowDraw {
    count: usize,
    pattern: ValuePattern,
    trial: RowTrial,
}

/// Runs rows of one pattern alone and together. Returns the result and the answers to single rows,
/// or the error of the last rows if the model runs none.
fn try_rows(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    declared: &[TensorSpec],
    RowDraw { count, pattern, trial }: RowDraw,
) -> Result<(RowIndependence, Vec<RowOutputs>), String> {
    let mut failed = TOO_LARGE.to_owned();
    for spec in candidates(&**model, declared) {
        let row = |row: usize| request(&**model, declared, RowSpec { row, pattern, ..spec });
        let Some(rows) = (0..count).map(row).collect::<Option<Vec<_>>>() else { continue };
        let tried = ExampleRunner::new(engine, model, rows[0].clone().into()).map_err(|cause| cause.to_string());
        let tried = tried.and_then(|runner| match alone(&runner, &rows) {
            Ok(answers) => Ok((together(&runner, &rows, &answers, trial), answers)),
            Err(cause) => Err(cause.to_string()),
        });
        match tried {
            Ok(shown) => return Ok(shown),
            Err(cause) => failed = cause,
        }
    }
    Err(failed)
}

/// Whether an output differs between two rows by more than numbers that are none.
fn tells_apart(name: &str, answers: &[RowOutputs]) -> bool {
    let mut outputs = answers.iter().filter_map(|answer| answer.iter().find(|output| *output.name == *name));
    let Some(first) = outputs.next() else { return false };
    outputs.any(|other| match (floats(first), floats(other)) {
        (Some(a), Some(b)) => a.iter().zip(&b).any(|(a, b)| a != b && !a.is_nan() && !b.is_nan()),
        _ => first.data != other.data,
    })
}

/// Tests whether `opened`, a rewritten form of `fixed` with a batch dimension, computes rows
/// independently and as `fixed` does, whose requests run alone. Returns how they differ.
pub fn check_opened(
    engine: &dyn Executor,
    fixed: &Arc<dyn LoadedModel>,
    opened: &Arc<dyn LoadedModel>,
    max_batch: usize,
    declared: &[TensorSpec],
    trial: RowTrial,
) -> Result<(), String> {
    match check_rows(engine, opened, max_batch.clamp(2, ROWS), declared, trial) {
        RowIndependence::Independent => {}
        RowIndependence::Mixed(how) | RowIndependence::Untried(how) => return Err(how),
    }
    let mut failed = TOO_LARGE.to_owned();
    for spec in candidates(&**opened, declared) {
        let Some(rows) = (0..2).map(|row| request(&**opened, declared, RowSpec { row, ..spec })).collect() else {
            continue;
        };
        match answers_of_both(engine, fixed, opened, rows) {
            Ok((expected, found)) => {
                let differ =
                    expected.iter().zip(&found).find_map(|(a, b)| differs(a, b, &expected, RowTrial::Confirms));
                return differ.map_or(Ok(()), |how| Err(format!("a row is answered differently: {how}")));
            }
            Err(cause) => failed = cause,
        }
    }
    Err(failed)
}

/// Returns the answers of both forms of a model to the same rows, as rows of a batch.
fn answers_of_both(
    engine: &dyn Executor,
    fixed: &Arc<dyn LoadedModel>,
    opened: &Arc<dyn LoadedModel>,
    rows: Vec<Vec<Tensor>>,
) -> Result<(Vec<RowOutputs>, Vec<RowOutputs>), String> {
    // A request that runs alone is one row, which contains the file's own first dimension.
    let wrapped = |tensor: &Tensor| Tensor { shape: [&[1], &tensor.shape[..]].concat(), ..tensor.clone() };
    let unwrapped = |mut tensor: Tensor| {
        tensor.shape.remove(0);
        tensor
    };
    let whole: Vec<Vec<Tensor>> = rows.iter().map(|row| row.iter().map(wrapped).collect()).collect();
    let run = |model: &Arc<dyn LoadedModel>, rows: &[Vec<Tensor>]| {
        let runner = ExampleRunner::new(engine, model, rows[0].clone().into()).map_err(|cause| cause.to_string())?;
        alone(&runner, rows).map_err(|cause| cause.to_string())
    };
    let expected = run(fixed, &whole)?.into_iter().map(|row| row.into_iter().map(unwrapped).collect()).collect();
    Ok((expected, run(opened, &rows)?))
}

/// The outputs of one row, by tensor.
pub(crate) type RowOutputs = Vec<Tensor>;

pub(crate) fn alone(runner: &ExampleRunner, rows: &[Vec<Tensor>]) -> Result<Vec<RowOutputs>, ExecError> {
    // The first row is run again at the end, to detect a model that draws random numbers.
    let run = |row: &Vec<Tensor>| Ok(runner.answers(&[&runner.entry(row.clone())])?.remove(0));
    rows.iter().chain(rows.first()).map(run).collect()
}

/// Compares the results of single rows with the results of the same rows in two batches.
fn together(runner: &ExampleRunner, rows: &[Vec<Tensor>], alone: &[RowOutputs], trial: RowTrial) -> RowIndependence {
    if let Some(how) = differs(&alone[0], &alone[rows.len()], alone, trial) {
        return RowIndependence::Mixed(format!("the same request is answered differently when it is run again: {how}"));
    }
    let forwards: Vec<usize> = (0..rows.len()).collect();
    let backwards: Vec<usize> = forwards.iter().rev().copied().collect();
    for order in [forwards, backwards] {
        // The second request gets two rows, if there are enough rows.
        let second = if order.len() > 2 { 1..3 } else { 1..2 };
        let parts = [&order[..1], &order[second.clone()], &order[second.end..]];
        let parts: Vec<&[usize]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let entries: Vec<RequestEntry> = parts.iter().map(|part| runner.entry(joined(part, rows))).collect();
        let answers = match runner.answers(&entries.iter().collect::<Vec<_>>()) {
            Ok(answers) => answers,
            Err(cause) => {
                return RowIndependence::Mixed(format!(
                    "each row runs alone, but {} together fail: {cause}",
                    rows.len()
                ));
            }
        };
        for (part, answer) in parts.iter().zip(answers) {
            for (at, &row) in part.iter().enumerate() {
                let own: Option<RowOutputs> = answer.iter().map(|tensor| row_of(tensor, at)).collect();
                let how = match own {
                    Some(own) => differs(&alone[row], &own, alone, trial),
                    None => Some("an output has too few rows".to_owned()),
                };
                if let Some(how) = how {
                    return RowIndependence::Mixed(format!("a row is answered differently beside others: {how}"));
                }
            }
        }
    }
    RowIndependence::Independent
}

/// Joins several rows into one request.
fn joined(part: &[usize], rows: &[Vec<Tensor>]) -> Vec<Tensor> {
    let joined = |input: usize| {
        let first = &rows[part[0]][input];
        let data: Vec<u8> = part.iter().flat_map(|&row| &rows[row][input].data[..]).copied().collect();
        let mut shape = first.shape.clone();
        shape[0] = part.len() as i64;
        Tensor { shape, data: data.into(), ..first.clone() }
    };
    (0..rows[0].len()).map(joined).collect()
}

fn row_of(tensor: &Tensor, at: usize) -> Option<Tensor> {
    let rows = rows::Rows::of_tensor(tensor).ok().filter(|rows| at < rows.count())?;
    Some(rows.at(at).to_tensor(&tensor.name))
}

/// Describes how two answers differ, if they do. `all` determines the magnitude of each output,
/// unless the trial decides: then each number is compared by its own magnitude and its row's.
pub(crate) fn differs(expected: &[Tensor], found: &[Tensor], all: &[RowOutputs], trial: RowTrial) -> Option<String> {
    expected.iter().zip(found).enumerate().find_map(|(output, (a, b))| {
        let name = &a.name;
        if a.shape != b.shape {
            return Some(format!("output '{name}' is {:?} instead of {:?}", &b.shape[1..], &a.shape[1..]));
        }
        let (Some(a), Some(b)) = (floats(a), floats(b)) else {
            let share = flipped(a, b);
            return (share > FLIPPED).then(|| format!("{:.0} % of output '{name}' differ", share * 100.0));
        };
        let coarse = matches!(found[output].datatype, DataType::Fp16 | DataType::Bf16);
        let tolerance = if coarse { COARSE_TOLERANCE } else { TOLERANCE };
        let of_row = largest_number([a.clone(), b.clone()].into_iter());
        let apart = match trial {
            RowTrial::Decides => {
                let scale = |a: f64| if a.is_finite() { a.abs() + ROW_SHARE * of_row } else { of_row };
                a.iter().zip(&b).map(|(a, b)| gap(*a, *b) / scale(*a)).fold(0.0, f64::max)
            }
            RowTrial::Confirms => {
                // The other answer counts too: single rows may all give zeros.
                let of_all = all.iter().filter_map(|answer| floats(&answer[output]));
                let largest = largest_number(of_all.chain([b.clone()]));
                a.iter().zip(&b).map(|(a, b)| gap(*a, *b)).fold(0.0, f64::max) / largest
            }
        };
        (apart > tolerance).then(|| match (apart.is_finite(), trial) {
            (true, RowTrial::Confirms) => {
                format!("output '{name}' differs by {:.1} % of its largest number", apart * 100.0)
            }
            (true, RowTrial::Decides) => format!("a number of output '{name}' differs by {:.1} %", apart * 100.0),
            (false, _) => format!("output '{name}' is a number in one answer and none in the other"),
        })
    })
}

/// Returns the largest finite absolute number, to which differences are relative.
pub(crate) fn largest_number(tensors: impl Iterator<Item = Vec<f64>>) -> f64 {
    tensors.flatten().map(f64::abs).filter(|number| number.is_finite()).fold(f64::MIN_POSITIVE, f64::max)
}

/// Returns the difference of two numbers; 0 for two NaNs or equal infinities.
pub(crate) fn gap(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    let gap = (a - b).abs();
    if gap.is_nan() { f64::INFINITY } else { gap }
}

/// Returns the numbers of a floating-point tensor; `None` for other datatypes.
pub(crate) fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let data = &tensor.data[..];
    let half = |read: fn([u8; 2]) -> f64| data.as_chunks().0.iter().map(|&bytes| read(bytes)).collect();
    match tensor.datatype {
        DataType::Fp16 => Some(half(|bytes| half::f16::from_le_bytes(bytes).to_f64())),
        DataType::Bf16 => Some(half(|bytes| half::bf16::from_le_bytes(bytes).to_f64())),
        DataType::Fp32 => Some(data.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect()),
        DataType::Fp64 => Some(data.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect()),
        _ => None,
    }
}

/// Returns the share of elements that differ. For strings, returns 1 if any element differs.
pub(crate) fn flipped(a: &Tensor, b: &Tensor) -> f64 {
    let Some(size) = a.datatype.size() else { return f64::from(a.data != b.data) };
    let pairs = a.data.chunks_exact(size).zip(b.data.chunks_exact(size));
    let differ = pairs.filter(|(a, b)| a != b).count();
    differ as f64 / (a.data.len() / size).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(datatype: DataType, shape: &[i64], data: &[u8]) -> Tensor {
        Tensor { name: "y".into(), datatype, shape: shape.to_vec(), data: data.to_vec().into() }
    }

    #[test]
    fn rounding_is_no_difference_and_another_answer_is() {
        let floats = |numbers: [f32; 2]| vec![tensor(DataType::Fp32, &[1, 2], &numbers.map(f32::to_le_bytes).concat())];
        let differ = |a: [f32; 2], b: [f32; 2]| differs(&floats(a), &floats(b), &[floats(a)], RowTrial::Confirms);
        assert_eq!(differ([1.0, -200.0], [1.0001, -200.0]), None);
        assert_eq!(differ([f32::NAN, f32::INFINITY], [f32::NAN, f32::INFINITY]), None);
        assert_eq!(differ([1.0, 2.0], [1.0, 2.01]).unwrap(), "output 'y' differs by 0.5 % of its largest number");
        assert_eq!(differ([0.0, 0.0], [0.0, 0.5]).unwrap(), "output 'y' differs by 100.0 % of its largest number");
        assert!(
            differ([1.0, 2.0], [1.0, f32::NAN]).unwrap().ends_with("is a number in one answer and none in the other")
        );
        let bytes = |bytes: &[u8]| vec![tensor(DataType::Uint8, &[1, bytes.len() as i64], bytes)];
        let (mut many, few) = (vec![7; 200], bytes(&[1, 2]));
        let before = bytes(&many);
        many[3] = 8;
        assert_eq!(
            differs(&before, &bytes(&many), &[], RowTrial::Confirms),
            None,
            "one of two hundred is a matter of rounding"
        );
        assert!(differs(&few, &bytes(&[1, 3]), &[], RowTrial::Confirms).unwrap().starts_with("50 % of output 'y'"));
        assert!(differs(&few, &bytes(&[1]), &[], RowTrial::Confirms).unwrap().contains("is [1] instead of [2]"));
    }

    #[test]
    fn small_numbers_beside_large_ones_are_compared_where_the_trial_decides() {
        let floats = |numbers: [f32; 2]| vec![tensor(DataType::Fp32, &[1, 2], &numbers.map(f32::to_le_bytes).concat())];
        let differ = |trial| differs(&floats([0.5, 640.0]), &floats([0.52, 640.0]), &[floats([0.5, 640.0])], trial);
        assert_eq!(differ(RowTrial::Confirms), None);
        assert_eq!(differ(RowTrial::Decides).unwrap(), "a number of output 'y' differs by 0.3 %");
    }

    #[test]
    fn only_numbers_tell_rows_apart() {
        let answers = |rows: [f32; 2]| rows.map(|row| vec![tensor(DataType::Fp32, &[1, 1], &row.to_le_bytes())]);
        assert!(tells_apart("y", &answers([1.0, 2.0])) && !tells_apart("y", &answers([1.0, 1.0])));
        assert!(!tells_apart("y", &answers([f32::NAN, f32::NAN])) && !tells_apart("x", &answers([1.0, 2.0])));
        assert!(!tells_apart(
            "y",
            &[vec![tensor(DataType::Fp32, &[1, 0], &[])], vec![tensor(DataType::Fp32, &[1, 0], &[])]]
        ));
    }
}
