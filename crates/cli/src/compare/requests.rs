//! Requests for a model: its declared inputs filled at random, sequences and trees of the wanted lengths.

use crate::bench::inputs::{Filling, ShapeArg, Tensor, requests as filled};
use anyhow::{Context, ensure};
use clap::Args;
use ripieno_executor::{InputLengths, Tensor as Input};
use ripieno_model::{DataType, TensorSpec};
use ripieno_server::registry::ServedEntry;
use ripieno_workload::{Children, Histogram, Lengths, Random, complete_tree, parse_tree, stream, tree_shapes, unit};
use std::sync::Arc;

/// What requests look like.
#[derive(Args, Clone, Debug)]
pub(crate) struct RequestArgs {
    /// Rows of each request, for models that run whole or in a chain.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    rows: u16,

    /// A size for dimensions that the model leaves open, for example image:3,224,224.
    #[arg(long = "shape", value_name = "NAME:DIMS")]
    shapes: Vec<ShapeArg>,

    /// Lengths of sequences and of requests that are padded: a number; europarl, the lengths of English sentences scaled to a mean of 24; or
    /// MU,SIGMA,MIN,MAX of a log-normal law.
    #[arg(long, value_name = "LENGTHS", default_value = "europarl", value_parser = lengths)]
    lengths: Lengths,

    /// Shapes of trees: sst, the parse trees of sentences; or a number: complete trees of so many leaves.
    #[arg(long, value_name = "TREES", default_value = "sst")]
    trees: String,

    /// Whole-number inputs are drawn below this.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    vocabulary: u32,

    /// Seed of the requests and arrivals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
}

fn lengths(text: &str) -> Result<Lengths, String> {
    const FORM: &str = "use a number, europarl, or MU,SIGMA,MIN,MAX";
    if text == "europarl" {
        let english = Histogram::named("europarl-en").map_err(|error| error.to_string())?;
        return english.scaled_to(24.0).map(Lengths::Histogram).map_err(|error| error.to_string());
    }
    if let Ok(length) = text.parse::<u32>() {
        return if length > 0 { Ok(Lengths::Fixed(length)) } else { Err("a length is at least 1".to_owned()) };
    }
    let parts: Vec<&str> = text.split(',').collect();
    let [mu, sigma, min, max] = parts[..] else { return Err(FORM.to_owned()) };
    let number = |text: &str| text.parse::<f64>().map_err(|_| FORM.to_owned());
    let whole = |text: &str| text.parse::<u32>().map_err(|_| FORM.to_owned());
    Lengths::log_normal(number(mu)?, number(sigma)?, whole(min)?, whole(max)?).map_err(|error| error.to_string())
}

/// Different requests, sent in turn.
const VARIANTS: usize = 512;

impl RequestArgs {
    /// Requests for this model.
    pub(super) fn build(&self, entry: &ServedEntry) -> anyhow::Result<Vec<Arc<[Input]>>> {
        let unfolds = entry.inputs.iter().any(|input| input.name == "children" || input.shape.get(1) == Some(&-1));
        if let Some(lengths) = &entry.lengths {
            return self.padded(entry, lengths);
        }
        if !unfolds || entry.max_batch > 1 {
            let rows = usize::from(self.rows);
            let filling = Filling { rows, shapes: self.shapes.clone(), seed: self.seed, ..Filling::default() };
            let requests = filled(&entry.inputs, &filling)?;
            return Ok(requests.into_iter().map(|tensors| tensors.into_iter().map(input).collect()).collect());
        }
        let mut random = stream(self.seed, 1);
        let trees = self.trees()?;
        let bring_trees = entry.inputs.iter().any(|input| input.name == "children");
        let request = |_| {
            let tree = bring_trees.then(|| &trees[(unit(&mut random) * trees.len() as f64) as usize % trees.len()]);
            let length = tree.map_or_else(|| self.lengths.draw(&mut random) as usize, Vec::len);
            entry.inputs.iter().map(|spec| self.unfolded(spec, length, tree, &mut random)).collect()
        };
        (0..VARIANTS).map(request).collect()
    }

    /// Requests that differ in length; none is longer than the model takes.
    fn padded(&self, entry: &ServedEntry, lengths: &InputLengths) -> anyhow::Result<Vec<Arc<[Input]>>> {
        let mut random = stream(self.seed, 1);
        let request = |_| {
            let length = i64::from(self.lengths.draw(&mut random).clamp(1, lengths.max));
            let input = |(spec, dim): (&TensorSpec, &Option<usize>)| {
                let mut shape: Vec<i64> = spec.shape.iter().map(|&size| size.max(1)).collect();
                shape[0] = i64::from(self.rows);
                dim.iter().for_each(|&dim| shape[dim] = length);
                // A mask says what counts: all of it.
                let mask = spec.name.contains("mask");
                self.filled(spec, shape, |random| if mask { 1.0 } else { unit(random) }, &mut random)
            };
            entry.inputs.iter().zip(&lengths.dims).map(input).collect()
        };
        (0..VARIANTS).map(request).collect()
    }

    fn trees(&self) -> anyhow::Result<Vec<Children>> {
        if let Ok(leaves) = self.trees.parse::<u32>() {
            ensure!(leaves.is_power_of_two(), "--trees {leaves}: a complete tree has 1, 2, 4, 8, … leaves");
            return Ok(vec![complete_tree(leaves)]);
        }
        ensure!(self.trees == "sst", "--trees {:?}: use sst, or a number of leaves", self.trees);
        let shapes = tree_shapes("sst-test").context("--trees sst")?;
        shapes.lines().filter(|line| line.starts_with(['x', '('])).map(|line| Ok(parse_tree(line)?)).collect()
    }

    /// One input of a request of `length` elements or nodes.
    fn unfolded(
        &self,
        spec: &TensorSpec,
        length: usize,
        tree: Option<&Children>,
        random: &mut Random,
    ) -> anyhow::Result<Input> {
        let rest = spec.shape.iter().skip(2).map(|&dim| dim.max(1));
        let shape: Vec<i64> = [1, length as i64].into_iter().chain(rest).collect();
        if let Some(tree) = tree.filter(|_| spec.name == "children") {
            let arity = spec.shape.get(2).copied().filter(|&arity| arity > 0).unwrap_or(2);
            let slots = (0..arity as usize).collect::<Vec<_>>();
            let children = tree.iter().flat_map(|node| slots.iter().map(|&at| node.get(at).copied().unwrap_or(-1)));
            let data = children.map(|child| child as f64);
            return numbers(spec, vec![1, length as i64, arity], data);
        }
        self.filled(spec, shape, unit, random)
    }

    /// A tensor of numbers below 1, or of whole numbers below the vocabulary; 1 stays 1.
    fn filled(
        &self,
        spec: &TensorSpec,
        shape: Vec<i64>,
        draw: impl Fn(&mut Random) -> f64,
        random: &mut Random,
    ) -> anyhow::Result<Input> {
        let elements = shape.iter().product::<i64>() as usize;
        let float = matches!(spec.datatype, DataType::Fp32 | DataType::Fp64);
        let whole = |drawn: f64| if drawn < 1.0 { (drawn * f64::from(self.vocabulary)).floor() } else { drawn };
        let values: Vec<f64> =
            (0..elements).map(|_| draw(random)).map(|it| if float { it } else { whole(it) }).collect();
        numbers(spec, shape, values.into_iter())
    }
}

/// A tensor of these numbers in the input's type.
fn numbers(spec: &TensorSpec, shape: Vec<i64>, values: impl Iterator<Item = f64>) -> anyhow::Result<Input> {
    let bytes: Vec<u8> = match spec.datatype {
        DataType::Fp32 => values.flat_map(|value| (value as f32).to_le_bytes()).collect(),
        DataType::Fp64 => values.flat_map(f64::to_le_bytes).collect(),
        DataType::Int32 => values.flat_map(|value| (value as i32).to_le_bytes()).collect(),
        DataType::Int64 => values.flat_map(|value| (value as i64).to_le_bytes()).collect(),
        other => anyhow::bail!(
            "input {:?} is {other}; sequences and trees are generated in FP32, FP64, INT32 and INT64",
            spec.name
        ),
    };
    Ok(Input { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data: bytes.into() })
}

fn input(tensor: Tensor) -> Input {
    Input { name: tensor.name.as_str().into(), datatype: tensor.datatype, shape: tensor.shape, data: tensor.data }
}
