//! Requests of one row that are made up, to try, measure and warm up a model.
//!
//! A file may leave dimensions open: the height of an image, the number of tokens. What such a
//! model costs, and whether it runs at all, depends on their sizes. So sizes are taken from what
//! the user declares, else guessed from the rank and datatype of the input, else tried in turn,
//! until the model accepts a request. Rejected: one element per open dimension, which many models
//! refuse and none is used with.

use crate::probe::profile::{ExampleRunner, run_example};
use crate::{Executor, LoadedModel, Tensor};
use ripieno_base::Lcg;
use ripieno_model::{DataType, TensorSpec};
use std::sync::Arc;

/// Sizes to try for open dimensions after the guess, in order. 16, 32 and 64 suit sequences; 32,
/// 224 and 640 are the sizes of images that models with open dimensions most often require.
const SIZES: [i64; 7] = [64, 16, 1, 32, 224, 640, 128];
/// Guessed height and width of an image.
const IMAGE: i64 = 224;
/// Guessed number of colours of an image.
const COLOURS: i64 = 3;
/// Guessed size of every other dimension, such as a number of tokens.
const TOKENS: i64 = 64;
/// Largest number of elements of one row.
const MAX_ROW_ELEMENTS: i64 = 1 << 26;

/// Source of the sizes of a request's open dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExampleOrigin {
    /// No dimension is open.
    Fixed,
    /// The user declares all of them.
    Declared,
    /// Some are guessed.
    Guessed,
}

/// A request of one row that a model accepts.
#[derive(Clone, Debug)]
pub struct TrialRequest {
    /// Tensors of the request.
    pub inputs: Arc<[Tensor]>,
    /// Source of its sizes.
    pub origin: ExampleOrigin,
}

/// The way in which open dimensions get their sizes, where none is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuessedSizes {
    /// Sizes that suit the rank of the input.
    ByRank,
    /// Side length of images; the number of channels is guessed.
    Images(i64),
    /// Size of every open dimension.
    All(i64),
}

/// Kind of integers in a request, for inputs without a known range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntegerStyle {
    /// Random zeros and ones.
    Varied,
    Ones,
    Zeros,
}

/// Magnitudes of the values of a request, by its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValuePattern {
    /// Floats between -1 and 1, small integers.
    Plain,
    /// Another magnitude in each row.
    Scaled,
    /// Another magnitude in each row, and nothing below 0.
    Positive,
    /// Zeros at the end, from another place on in each row.
    Tails,
}

impl ValuePattern {
    /// All patterns. The first is the most likely to be accepted.
    pub(crate) const ALL: [ValuePattern; 4] =
        [ValuePattern::Plain, ValuePattern::Scaled, ValuePattern::Positive, ValuePattern::Tails];

    /// Returns the factor of floats in a row.
    fn scale(self, row: usize) -> f64 {
        match self {
            ValuePattern::Plain | ValuePattern::Tails => 1.0,
            ValuePattern::Scaled | ValuePattern::Positive => [1.0, 1000.0, 0.001, 30.0][row % 4],
        }
    }

    /// Returns the number of different integers in a row, for inputs without a known range.
    fn integers(self, row: usize) -> u64 {
        match self {
            ValuePattern::Plain => 2,
            ValuePattern::Tails => 10,
            ValuePattern::Scaled | ValuePattern::Positive => [2, 256, 16, 64][row % 4],
        }
    }

    /// Whether element `at` of `count` is among the zeros at the end of a row.
    fn is_zero(self, row: usize, at: i64, count: i64) -> bool {
        self == ValuePattern::Tails && at * 5 >= count * (row as i64 % 4 + 1)
    }
}

/// Parameters of a row to generate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSpec {
    pub(crate) style: IntegerStyle,
    pub(crate) sizes: GuessedSizes,
    pub(crate) pattern: ValuePattern,
    pub(crate) row: usize,
}

/// Returns a request that the model runs, or the last error if it runs none. `None` if no dimension
/// is open and the model runs the example of [`Measurement`](super::profile::Measurement), or if it
/// makes up its requests itself: they have a length, or unfold into cells.
pub fn find_example(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    declared: &[TensorSpec],
) -> Result<Option<TrialRequest>, String> {
    if model.example(1).is_some() {
        return Ok(None);
    }
    let origin = example_origin(&**model, declared);
    if origin == ExampleOrigin::Fixed && run_example(engine, model, None, 1).is_ok() {
        return Ok(None);
    }
    let mut failed = TOO_LARGE.to_owned();
    for spec in candidates(&**model, declared) {
        let Some(inputs) = request(&**model, declared, spec) else { continue };
        let inputs: Arc<[Tensor]> = inputs.into();
        let tried = ExampleRunner::new(engine, model, Arc::clone(&inputs)).map_err(|cause| cause.to_string());
        match tried.and_then(|runner| runner.once().map_err(|cause| cause.to_string())) {
            Ok(()) => return Ok(Some(TrialRequest { inputs, origin })),
            Err(cause) if is_unsupported(&cause) => return Err(cause),
            Err(cause) => failed = cause,
        }
    }
    Err(failed)
}

/// Returns whether an engine's error says that it cannot run the model whatever the shapes.
pub fn is_unsupported(cause: &str) -> bool {
    ["unsupported", "not supported", "NOT_IMPLEMENTED"].iter().any(|said| cause.contains(said))
}

/// Reason for which no request can be made up.
pub(crate) const TOO_LARGE: &str = "its inputs are too large to be made up";

/// Returns the rows to try, in order.
pub(crate) fn candidates(model: &dyn LoadedModel, declared: &[TensorSpec]) -> Vec<RowSpec> {
    let has_style = |spec: &TensorSpec| is_integer(spec.datatype) && model.range(&spec.name).is_none();
    let all = [IntegerStyle::Varied, IntegerStyle::Ones, IntegerStyle::Zeros];
    let styles = if model.inputs().iter().any(has_style) { &all[..] } else { &all[..1] };
    let is_image = |spec: &TensorSpec| colours(dims(model, spec)).is_some();
    let images = if model.inputs().iter().any(is_image) { &[640, 256, 32][..] } else { &[] };
    let sizes = [GuessedSizes::ByRank].into_iter();
    let sizes = sizes.chain(images.iter().map(|&size| GuessedSizes::Images(size))).chain(SIZES.map(GuessedSizes::All));
    let sizes: Vec<GuessedSizes> = if example_origin(model, declared) == ExampleOrigin::Guessed {
        sizes.collect()
    } else {
        sizes.take(1).collect()
    };
    let of_style = |&style: &IntegerStyle| {
        sizes.iter().map(move |&sizes| RowSpec { style, sizes, pattern: ValuePattern::Plain, row: 0 })
    };
    styles.iter().flat_map(of_style).collect()
}

/// Returns the source of the sizes of the open dimensions of a model's requests. If several tensors
/// of `declared` give a dimension a size, the first one counts.
pub fn example_origin(model: &dyn LoadedModel, declared: &[TensorSpec]) -> ExampleOrigin {
    let lengths = model.lengths();
    let mut origin = ExampleOrigin::Fixed;
    for (at, spec) in model.inputs().iter().enumerate() {
        for (dim, &size) in spec.shape.iter().enumerate().skip(1) {
            // The file's own first dimension may be a batch; it is 1 where requests run alone.
            let is_batch = !model.batched() && dim == 1;
            if size >= 0 || is_batch || lengths.is_some_and(|lengths| lengths.dims[at] == Some(dim)) {
                continue;
            }
            match declared_size(model, declared, spec, dim) {
                Some(_) if origin == ExampleOrigin::Fixed => origin = ExampleOrigin::Declared,
                Some(_) => {}
                None => origin = ExampleOrigin::Guessed,
            }
        }
    }
    // A length is tried at several sizes, too.
    if lengths.is_some() { ExampleOrigin::Guessed } else { origin }
}

/// Returns the dimensions of an input without the batch.
fn dims<'a>(model: &dyn LoadedModel, spec: &'a TensorSpec) -> &'a [i64] {
    // Where each request runs alone, the file's own first dimension stands behind the batch's. It
    // may be a batch as well.
    &spec.shape[if model.batched() { 1 } else { 2 }.min(spec.shape.len())..]
}

/// Returns the size that the user declares for a dimension of an input.
fn declared_size(model: &dyn LoadedModel, declared: &[TensorSpec], spec: &TensorSpec, dim: usize) -> Option<i64> {
    let dim = if model.batched() { dim } else { dim.checked_sub(1)? };
    let mut sizes = declared.iter().filter(|declared| declared.name == spec.name);
    sizes.find_map(|declared| declared.shape.get(dim).copied().filter(|&size| size > 0))
}

/// Returns the index of the colours among the dimensions of an image.
fn colours(dims: &[i64]) -> Option<usize> {
    let few = |size: i64| (1..=4).contains(&size);
    match *dims {
        [first, _, last] if few(first) || (first < 0 && !few(last)) => Some(0),
        [_, _, last] if few(last) => Some(2),
        _ => None,
    }
}

fn guessed_size(model: &dyn LoadedModel, spec: &TensorSpec, dim: usize, sizes: GuessedSizes) -> i64 {
    let dims = dims(model, spec);
    let Some(at) = dim.checked_sub(spec.shape.len() - dims.len()) else { return 1 };
    let colours = colours(dims).filter(|_| !is_integer(spec.datatype) || spec.datatype == DataType::Uint8);
    match (sizes, colours) {
        (GuessedSizes::All(size), _) | (GuessedSizes::Images(size), None) => size,
        (GuessedSizes::ByRank | GuessedSizes::Images(_), Some(colours)) if colours == at => COLOURS,
        (GuessedSizes::Images(size), Some(_)) => size,
        (GuessedSizes::ByRank, Some(_)) => IMAGE,
        (GuessedSizes::ByRank, None) => TOKENS,
    }
}

pub(crate) fn is_integer(datatype: DataType) -> bool {
    !matches!(datatype, DataType::Bf16 | DataType::Bytes | DataType::Fp16 | DataType::Fp32 | DataType::Fp64)
}

/// Generates a request of one row. Different rows differ. `None` if the row would be too large.
pub(crate) fn request(model: &dyn LoadedModel, declared: &[TensorSpec], draw: RowSpec) -> Option<Vec<Tensor>> {
    let length = model.lengths();
    let inputs = model.inputs().iter().enumerate().map(|(at, spec)| {
        let dim = |(dim, &size): (usize, &i64)| {
            let open = || {
                let declared = declared_size(model, declared, spec, dim);
                declared.unwrap_or_else(|| guessed_size(model, spec, dim, draw.sizes))
            };
            match length.filter(|lengths| lengths.dims[at] == Some(dim)) {
                Some(lengths) => guessed_size(model, spec, dim, draw.sizes).min(i64::from(lengths.max)),
                None if size < 0 => open(),
                None => size,
            }
        };
        let row = spec.shape.iter().enumerate().skip(1).map(dim);
        let shape: Vec<i64> = [1].into_iter().chain(row).collect();
        let count = shape.iter().try_fold(1i64, |all, &size| all.checked_mul(size))?;
        // Seeded so that every load uses the same requests.
        let mut random = Lcg::new(draw.row as u64 * 1_000_003 + at as u64);
        let range = model.range(&spec.name);
        let elements = (0..count.min(MAX_ROW_ELEMENTS + 1)).flat_map(|at| {
            let zero = draw.pattern.is_zero(draw.row, at, count);
            element(spec, range, draw, zero, &mut random)
        });
        let data: Vec<u8> = if count <= MAX_ROW_ELEMENTS { elements.collect() } else { return None };
        Some(Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data: data.into() })
    });
    inputs.collect()
}

fn element(spec: &TensorSpec, range: Option<(i64, i64)>, draw: RowSpec, zero: bool, random: &mut Lcg) -> Vec<u8> {
    let RowSpec { style, pattern, row, .. } = draw;
    let number = match (spec.datatype, range, style) {
        (DataType::Bytes, ..) => {
            let word = format!("w{}", random.below(97));
            return [&(word.len() as u32).to_le_bytes(), word.as_bytes()].concat();
        }
        (DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64, ..) => {
            let number = (random.below(4001) as f64 / 2000.0 - 1.0) * pattern.scale(row);
            if pattern == ValuePattern::Positive { number.abs() } else { number }
        }
        (_, Some((least, most)), _) => {
            let choices = u64::try_from(most.saturating_sub(least)).unwrap_or(0).min(1 << 20) + 1;
            least.saturating_add(random.below(choices) as i64) as f64
        }
        (DataType::Uint8 | DataType::Int8, None, IntegerStyle::Varied) if pattern == ValuePattern::Plain => {
            random.below(128) as f64
        }
        (DataType::Int8, None, IntegerStyle::Varied) => random.below(pattern.integers(row).min(128)) as f64,
        (_, None, IntegerStyle::Varied) => random.below(pattern.integers(row)) as f64,
        (_, None, IntegerStyle::Ones) => 1.0,
        (_, None, IntegerStyle::Zeros) => 0.0,
    };
    let least = range.map_or(0.0, |(least, most)| 0_i64.clamp(least, most.max(least)) as f64);
    let number = if zero { least } else { number };
    crate::contract::buffer::bytes_of(spec.datatype, number)
        .unwrap_or_else(|| vec![0; spec.datatype.size().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_stay_in_their_range() {
        let spec = TensorSpec { name: "ids".into(), datatype: DataType::Int64, shape: vec![-1, 3] };
        let mut random = Lcg::new(7);
        let draw =
            RowSpec { style: IntegerStyle::Varied, sizes: GuessedSizes::ByRank, pattern: ValuePattern::Plain, row: 0 };
        let drawn: Vec<i64> = (0..200)
            .map(|_| element(&spec, Some((5, 8)), draw, false, &mut random))
            .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert!((5..=8).all(|id| drawn.contains(&id)) && drawn.iter().all(|id| (5..=8).contains(id)));
    }

    #[test]
    fn colours_stand_where_few_elements_are() {
        assert_eq!([&[3, -1, -1][..], &[-1, -1, 3], &[1, 28, 28]].map(colours), [Some(0), Some(2), Some(0)]);
        assert_eq!([&[-1, -1, -1][..], &[16, -1, -1], &[-1, 64], &[]].map(colours), [Some(0), None, None, None]);
    }
}
