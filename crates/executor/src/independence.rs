//! Are the rows of a batch computed each on its own? Tried out at load, because nobody else would notice.
//!
//! A file says that its first dimension is dynamic, not what it means: a softmax over it, a running sum or a mean along it mix
//! the requests of a batch, and each client gets a well-formed answer that depends on who else asked. So random rows are run
//! alone, together, and together in another order, some of them as one request of two rows. A row must be what it is alone.
//!
//! This is a trial and no proof: what shows only in batches larger than [`ROWS`], or for inputs unlike those tried, passes.
//! Deriving it from the operators was rejected: it must know every operator of every engine, and where it does not, it has to
//! refuse what works.

use crate::profile::ExampleRunner;
use crate::rows;
use crate::{Engine, Entry, ExecError, Loaded, Tensor};
use ripieno_base::Random;
use ripieno_model::{DataType, TensorSpec};
use std::sync::Arc;

/// What a trial of a model's rows showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Each row is computed on its own.
    Independent,
    /// They are not: how it showed.
    Mixed(String),
    /// No request that the model takes could be made up: what the last one failed with.
    Untried(String),
}

/// The most rows in a trial.
const ROWS: usize = 4;
/// What an open dimension is tried with, one after the other until the model takes it.
const SIZES: [i64; 3] = [16, 64, 1];
/// The most elements of one row of a trial.
const MOST_ELEMENTS: i64 = 1 << 26;
/// How far a number may be off, relative to the largest one of its tensor: engines sum in another order for other batches.
const TOLERANCE: f64 = 1e-3;
/// The same of 16-bit numbers, whose own rounding is that coarse.
const COARSE_TOLERANCE: f64 = 2e-2;
/// Which share of the whole numbers of a row may differ: where rounding decides between two of them.
const FLIPPED: f64 = 0.01;

/// Tries whether the rows of a model are independent of each other. The engine must be able to run it.
pub fn check_rows(engine: &dyn Engine, model: &Arc<dyn Loaded>, max_batch: usize) -> Rows {
    let count = max_batch.min(ROWS);
    if count < 2 || !model.batched() {
        return Rows::Independent;
    }
    let mut failed = "its inputs are too large to be made up".to_owned();
    for style in [Style::Varied, Style::Ones, Style::Zeros] {
        for size in SIZES {
            let row = |row: usize| request(&**model, Draw { style, size, row });
            let Some(rows) = (0..count).map(row).collect::<Option<Vec<_>>>() else { continue };
            let tried = ExampleRunner::new(engine, model, rows[0].clone().into()).map_err(|cause| cause.to_string());
            let tried = tried.and_then(|runner| match alone(&runner, &rows) {
                Ok(answers) => Ok(together(&runner, &rows, &answers)),
                Err(cause) => Err(cause.to_string()),
            });
            match tried {
                Ok(shown) => return shown,
                Err(cause) => failed = cause,
            }
        }
    }
    Rows::Untried(failed)
}

/// The outputs of one row, tensor by tensor.
type Answer = Vec<Tensor>;

fn alone(runner: &ExampleRunner, rows: &[Vec<Tensor>]) -> Result<Vec<Answer>, ExecError> {
    // The first one twice, the second time last: a model that draws random numbers is found out.
    let run = |row: &Vec<Tensor>| Ok(runner.answers(&[&runner.entry(row.clone())])?.remove(0));
    rows.iter().chain(rows.first()).map(run).collect()
}

/// Compares what rows are alone with what they are in two batches of the same rows.
fn together(runner: &ExampleRunner, rows: &[Vec<Tensor>], alone: &[Answer]) -> Rows {
    if let Some(how) = differs(&alone[0], &alone[rows.len()], alone) {
        return Rows::Mixed(format!("the same request is answered differently when it is run again: {how}"));
    }
    let forwards: Vec<usize> = (0..rows.len()).collect();
    let backwards: Vec<usize> = forwards.iter().rev().copied().collect();
    for order in [forwards, backwards] {
        // The second request has two rows, where there are so many.
        let second = if order.len() > 2 { 1..3 } else { 1..2 };
        let parts = [&order[..1], &order[second.clone()], &order[second.end..]];
        let parts: Vec<&[usize]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let entries: Vec<Entry> = parts.iter().map(|part| runner.entry(joined(part, rows))).collect();
        let answers = match runner.answers(&entries.iter().collect::<Vec<_>>()) {
            Ok(answers) => answers,
            Err(cause) => {
                return Rows::Mixed(format!("each row runs alone, but {} together fail: {cause}", rows.len()));
            }
        };
        for (part, answer) in parts.iter().zip(answers) {
            for (at, &row) in part.iter().enumerate() {
                let own: Option<Answer> = answer.iter().map(|tensor| row_of(tensor, at)).collect();
                let how = match own {
                    Some(own) => differs(&alone[row], &own, alone),
                    None => Some("an output has too few rows".to_owned()),
                };
                if let Some(how) = how {
                    return Rows::Mixed(format!("a row is answered differently beside others: {how}"));
                }
            }
        }
    }
    Rows::Independent
}

/// One request of several of the rows.
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

/// How two answers differ, if they do; `all` tells how large an output's numbers are.
fn differs(expected: &[Tensor], found: &[Tensor], all: &[Answer]) -> Option<String> {
    expected.iter().zip(found).enumerate().find_map(|(output, (a, b))| {
        let name = &a.name;
        if a.shape != b.shape {
            return Some(format!("output '{name}' is {:?} instead of {:?}", &b.shape[1..], &a.shape[1..]));
        }
        let (Some(a), Some(b)) = (floats(a), floats(b)) else {
            let share = flipped(a, b);
            return (share > FLIPPED).then(|| format!("{:.0} % of output '{name}' differ", share * 100.0));
        };
        let of_all = all.iter().filter_map(|answer| floats(&answer[output])).flatten();
        let largest = of_all.map(f64::abs).filter(|number| number.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
        let apart = a.iter().zip(&b).map(|(a, b)| gap(*a, *b)).fold(0.0, f64::max) / largest;
        let coarse = matches!(found[output].datatype, DataType::Fp16 | DataType::Bf16);
        let tolerance = if coarse { COARSE_TOLERANCE } else { TOLERANCE };
        (apart > tolerance).then(|| format!("output '{name}' is off by {apart:.1e} of its largest number"))
    })
}

/// Two numbers that are no number, or infinite alike, do not differ.
fn gap(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    let gap = (a - b).abs();
    if gap.is_nan() { f64::INFINITY } else { gap }
}

/// The numbers of a floating-point tensor; none of any other.
fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
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

/// The share of elements that differ; of strings, whether any does.
fn flipped(a: &Tensor, b: &Tensor) -> f64 {
    let Some(size) = a.datatype.size() else { return f64::from(a.data != b.data) };
    let pairs = a.data.chunks_exact(size).zip(b.data.chunks_exact(size));
    let differ = pairs.filter(|(a, b)| a != b).count();
    differ as f64 / (a.data.len() / size).max(1) as f64
}

/// What the whole numbers of a trial are, where nothing says what they may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Zeros and ones in turn.
    Varied,
    Ones,
    Zeros,
}

/// A row to be made up.
#[derive(Clone, Copy)]
struct Draw {
    style: Style,
    size: i64,
    row: usize,
}

/// A request of one row that differs from row to row; none if it would be too large.
fn request(model: &dyn Loaded, draw: Draw) -> Option<Vec<Tensor>> {
    let length = model.lengths();
    let inputs = model.inputs().iter().enumerate().map(|(at, spec)| {
        let dim = |(dim, &size): (usize, &i64)| match length.filter(|lengths| lengths.dims[at] == Some(dim)) {
            Some(lengths) => draw.size.min(i64::from(lengths.max)),
            None if size < 0 => draw.size,
            None => size,
        };
        let row = spec.shape.iter().enumerate().skip(1).map(dim);
        let shape: Vec<i64> = [1].into_iter().chain(row).collect();
        let count = shape.iter().try_fold(1i64, |all, &size| all.checked_mul(size))?;
        // The same requests at every load.
        let mut random = Random::new(draw.row as u64 * 1_000_003 + at as u64);
        let range = model.range(&spec.name);
        let elements = (0..count.min(MOST_ELEMENTS + 1)).flat_map(|_| element(spec, range, draw.style, &mut random));
        let data: Vec<u8> = if count <= MOST_ELEMENTS { elements.collect() } else { return None };
        Some(Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data: data.into() })
    });
    inputs.collect()
}

fn element(spec: &TensorSpec, range: Option<(i64, i64)>, style: Style, random: &mut Random) -> Vec<u8> {
    let number = match (spec.datatype, range, style) {
        (DataType::Bytes, ..) => {
            let word = format!("w{}", random.below(97));
            return [&(word.len() as u32).to_le_bytes(), word.as_bytes()].concat();
        }
        (DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64, ..) => {
            random.below(4001) as f64 / 2000.0 - 1.0
        }
        (_, Some((least, most)), _) => {
            let choices = u64::try_from(most.saturating_sub(least)).unwrap_or(0).min(1 << 20) + 1;
            least.saturating_add(random.below(choices) as i64) as f64
        }
        (DataType::Uint8 | DataType::Int8, None, Style::Varied) => random.below(128) as f64,
        (_, None, Style::Varied) => random.below(2) as f64,
        (_, None, Style::Ones) => 1.0,
        (_, None, Style::Zeros) => 0.0,
    };
    crate::buffer::bytes_of(spec.datatype, number).unwrap_or_else(|| vec![0; spec.datatype.size().unwrap_or(0)])
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
        let differ = |a: [f32; 2], b: [f32; 2]| differs(&floats(a), &floats(b), &[floats(a)]);
        assert_eq!(differ([1.0, -200.0], [1.0001, -200.0]), None);
        assert_eq!(differ([f32::NAN, f32::INFINITY], [f32::NAN, f32::INFINITY]), None);
        assert!(differ([1.0, 2.0], [1.0, 2.01]).unwrap().contains("output 'y' is off by 5.0e-3"));
        assert!(differ([1.0, 2.0], [1.0, f32::NAN]).is_some());
        let bytes = |bytes: &[u8]| vec![tensor(DataType::Uint8, &[1, bytes.len() as i64], bytes)];
        let (mut many, few) = (vec![7; 200], bytes(&[1, 2]));
        let before = bytes(&many);
        many[3] = 8;
        assert_eq!(differs(&before, &bytes(&many), &[]), None, "one of two hundred is a matter of rounding");
        assert!(differs(&few, &bytes(&[1, 3]), &[]).unwrap().starts_with("50 % of output 'y'"));
        assert!(differs(&few, &bytes(&[1]), &[]).unwrap().contains("is [1] instead of [2]"));
    }

    #[test]
    fn whole_numbers_stay_in_their_range() {
        let spec = TensorSpec { name: "ids".into(), datatype: DataType::Int64, shape: vec![-1, 3] };
        let mut random = Random::new(7);
        let drawn: Vec<i64> = (0..200)
            .map(|_| element(&spec, Some((5, 8)), Style::Varied, &mut random))
            .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert!((5..=8).all(|id| drawn.contains(&id)) && drawn.iter().all(|id| (5..=8).contains(id)));
    }
}
