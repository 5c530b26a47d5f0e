//! The tensors that are sent: values for a model's declared inputs.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use ripieno_model::{DataType, TensorSpec};
use ripieno_workload::{SeededRng, stream};
use serde::Deserialize;

/// One input tensor of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchTensor {
    /// The input's name.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions, rows first.
    pub shape: Vec<i64>,
    /// Little-endian, row-major bytes.
    pub data: Bytes,
}

/// Sizes of an input's dimensions from `--shape NAME:DIMS`, without the batch dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeArg {
    name: String,
    dims: Vec<i64>,
}

impl std::str::FromStr for ShapeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<ShapeArg, String> {
        let wrong = || format!("{text:?} is no shape; write NAME:DIMS without the rows, for example image:3,224,224");
        let (name, dims) = text.rsplit_once(':').ok_or_else(wrong)?;
        let dims: Vec<i64> = dims.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        if dims.iter().any(|&dim| dim < 1) {
            return Err(wrong());
        }
        Ok(ShapeArg { name: name.to_owned(), dims })
    }
}

/// A file of real rows for one input, such as models/samples/*.json.
#[derive(Clone, Debug, Deserialize)]
pub struct InputSamples {
    /// The input that the rows belong to.
    pub input: String,
    /// The shape of one row.
    pub shape: Vec<i64>,
    /// Factor for the stored integers.
    #[serde(default = "one")]
    pub scale: f64,
    /// The rows.
    pub rows: Vec<SampleRow>,
}

/// One row of a samples file.
#[derive(Clone, Debug, Deserialize)]
pub struct SampleRow {
    /// Elements of the tensor, before scaling.
    pub data: Vec<i64>,
}

fn one() -> f64 {
    1.0
}

impl InputSamples {
    /// Reads and checks a samples file.
    pub fn read(file: &Path) -> anyhow::Result<InputSamples> {
        let name = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("--input {name}"))?;
        let samples: InputSamples = serde_json::from_str(&text).with_context(|| {
            format!("--input {name}: want {{\"input\": NAME, \"shape\": [..], \"rows\": [{{\"data\": [..]}}]}}")
        })?;
        let elements: i64 = samples.shape.iter().product();
        ensure!(!samples.rows.is_empty(), "--input {name}: rows is empty");
        for (at, row) in samples.rows.iter().enumerate() {
            let have = row.data.len();
            ensure!(have as i64 == elements, "--input {name}: row {at} has {have} elements, its shape {elements}");
        }
        Ok(samples)
    }

    /// Returns `rows` rows from the row `first` on, starting over at the end.
    fn tensor(&self, rows: usize, first: usize) -> BenchTensor {
        let values = (0..rows).flat_map(|at| &self.rows[(first + at) % self.rows.len()].data);
        let data: Vec<u8> = values.flat_map(|&value| ((value as f64 * self.scale) as f32).to_le_bytes()).collect();
        let shape = std::iter::once(rows as i64).chain(self.shape.iter().copied()).collect();
        BenchTensor { name: self.input.clone(), datatype: DataType::Fp32, shape, data: data.into() }
    }
}

/// The contents of the inputs.
#[derive(Clone, Debug, Default)]
pub struct Filling {
    /// Number of rows of each request.
    pub rows: usize,
    /// Sizes for dimensions that the model leaves open.
    pub shapes: Vec<ShapeArg>,
    /// Real rows for one input.
    pub samples: Option<InputSamples>,
    /// Seed of the random inputs.
    pub seed: u64,
}

/// Upper bound on the different requests of a run, which are sent in turn: enough that a server's
/// caches do not help.
const MAX_VARIANTS: usize = 64;
/// Upper bound on their size in bytes, unless a single one is larger.
const MAX_BYTES: usize = 64 << 20;

/// Generates requests for a model with these inputs.
pub fn requests(inputs: &[TensorSpec], filling: &Filling) -> anyhow::Result<Vec<Vec<BenchTensor>>> {
    for name in filling.shapes.iter().map(|shape| &shape.name).chain(filling.samples.as_ref().map(|s| &s.input)) {
        let known: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        ensure!(known.contains(&name.as_str()), "the model has no input {name:?}; its inputs are {known:?}");
    }
    let mut random = stream(filling.seed, u64::MAX);
    let mut requests = Vec::new();
    let mut bytes = 0;
    while requests.len() < MAX_VARIANTS && (requests.is_empty() || bytes < MAX_BYTES) {
        let request: Vec<BenchTensor> =
            inputs.iter().map(|input| tensor(input, filling, requests.len(), &mut random)).collect::<Result<_, _>>()?;
        bytes += request.iter().map(|tensor| tensor.data.len()).sum::<usize>();
        requests.push(request);
    }
    Ok(requests)
}

fn tensor(
    input: &TensorSpec,
    filling: &Filling,
    variant: usize,
    random: &mut SeededRng,
) -> anyhow::Result<BenchTensor> {
    if let Some(samples) = filling.samples.as_ref().filter(|samples| samples.input == input.name) {
        let datatype = input.datatype;
        ensure!(datatype == DataType::Fp32, "--input fills FP32 inputs only; {:?} is {datatype}", input.name);
        return Ok(samples.tensor(filling.rows, variant * filling.rows));
    }
    let shape = shape(input, filling)?;
    let elements = shape.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim));
    let size = input.datatype.size().unwrap_or(4);
    let Some(elements) = elements.filter(|&elements| elements <= (MAX_BYTES / size) as i64) else {
        bail!("input {:?} of shape {shape:?} is too large to generate; choose a smaller --shape or --rows", input.name);
    };
    let data = (0..elements).flat_map(|_| element(input.datatype, random)).collect::<Vec<u8>>().into();
    Ok(BenchTensor { name: input.name.clone(), datatype: input.datatype, shape, data })
}

/// Returns the declared shape with every open dimension filled: the first one by the rows, others
/// by `--shape` or 1.
fn shape(input: &TensorSpec, filling: &Filling) -> anyhow::Result<Vec<i64>> {
    let mut shape = input.shape.clone();
    let Some((first, rest)) = shape.split_first_mut() else {
        return Ok(shape);
    };
    if *first < 0 {
        *first = filling.rows as i64;
    }
    ensure!(
        *first == filling.rows as i64 || filling.rows == 1,
        "--rows {}: input {:?} takes exactly {first} rows",
        filling.rows,
        input.name
    );
    if let Some(given) = filling.shapes.iter().find(|shape| shape.name == input.name) {
        let fits = given.dims.len() == rest.len() && rest.iter().zip(&given.dims).all(|(&d, &g)| d < 0 || d == g);
        ensure!(fits, "--shape {:?}: {:?} does not fit the declared {:?}", input.name, given.dims, input.shape);
        rest.copy_from_slice(&given.dims);
    }
    rest.iter_mut().filter(|dim| **dim < 0).for_each(|dim| *dim = 1);
    Ok(shape)
}

/// Draws one element: real numbers in [0, 1), since most inputs are scaled so; zero for integers,
/// which are often indices into a table of undeclared size; empty strings.
fn element(datatype: DataType, random: &mut SeededRng) -> impl Iterator<Item = u8> + use<> {
    use ripieno_workload::unit;
    let (bytes, len) = match datatype {
        DataType::Fp32 => (widen((unit(random) as f32).to_le_bytes()), 4),
        DataType::Fp64 => (unit(random).to_le_bytes(), 8),
        // Between 0.5 and 1, where only the fraction's bits vary.
        DataType::Fp16 => (widen((0x3800 | (unit(random) * 1024.0) as u16).to_le_bytes()), 2),
        DataType::Bf16 => (widen((0x3F00 | (unit(random) * 128.0) as u16).to_le_bytes()), 2),
        other => ([0; 8], other.size().unwrap_or(4)),
    };
    bytes.into_iter().take(len)
}

fn widen<const N: usize>(bytes: [u8; N]) -> [u8; 8] {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes);
    wide
}
