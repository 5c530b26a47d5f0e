//! Requests of many sizes: for models in cells, sequences, trees and graphs of given lengths and
//! shapes; for models that pad, requests of given lengths. Values are random.

use super::inputs::BenchTensor;
use anyhow::{Context, ensure};
use clap::Args;
use ripieno_model::{DataType, InputLengths, TensorSpec};
use ripieno_workload::{
    Children, LengthDistribution, SeededRng, complete_tree, counted_lengths, parse_tree, stream, tree_shapes, unit,
};
use std::path::Path;

/// Distributions of sequences and trees.
#[derive(Args, Clone, Debug)]
pub struct WalkArgs {
    /// Lengths of sequences, and of padded requests: a number; europarl, the lengths of English
    /// sentences scaled to a mean of 24; or MU,SIGMA,MIN,MAX of a log-normal distribution.
    #[arg(long, value_name = "LENGTHS", value_parser = lengths)]
    lengths: Option<LengthDistribution>,

    /// Shapes of trees, for models with an input named children: sst, the parse trees of sentences;
    /// a number of leaves, for complete trees; or a file with a tree on each line as nested
    /// brackets, x = leaf: ((xx)x). In models of walk "graph", leaves run cell 0 and the others
    /// cell 1.
    #[arg(long, value_name = "TREES", default_value = "sst")]
    trees: String,

    /// Upper bound, exclusive, of the whole-number elements of sequences and trees.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    vocabulary: u32,
}

fn lengths(text: &str) -> Result<LengthDistribution, String> {
    const FORM: &str = "use a number, europarl, or MU,SIGMA,MIN,MAX";
    if text == "europarl" {
        return europarl().map_err(|error| error.to_string());
    }
    if let Ok(length) = text.parse::<u32>() {
        return if length > 0 {
            Ok(LengthDistribution::Fixed(length))
        } else {
            Err("a length is at least 1".to_owned())
        };
    }
    let parts: Vec<&str> = text.split(',').collect();
    let [mu, sigma, min, max] = parts[..] else { return Err(FORM.to_owned()) };
    let number = |text: &str| text.parse::<f64>().map_err(|_| FORM.to_owned());
    let whole = |text: &str| text.parse::<u32>().map_err(|_| FORM.to_owned());
    LengthDistribution::log_normal(number(mu)?, number(sigma)?, whole(min)?, whole(max)?)
        .map_err(|error| error.to_string())
}

fn europarl() -> anyhow::Result<LengthDistribution> {
    Ok(LengthDistribution::Histogram(counted_lengths("europarl-en")?.scaled_to(24.0)?))
}

/// Number of different requests, which are sent in turn.
const VARIANTS: usize = 512;

impl WalkArgs {
    /// Returns true if the user or the model requires lengths or trees.
    pub fn is_needed(&self, inputs: &[TensorSpec]) -> bool {
        self.lengths.is_some() || inputs.iter().any(|input| input.name == "children")
    }

    /// Generates requests for a model with these inputs.
    pub fn requests(&self, inputs: &[TensorSpec], seed: u64) -> anyhow::Result<Vec<Vec<BenchTensor>>> {
        let mut random = stream(seed, 1);
        let bring_trees = inputs.iter().any(|input| input.name == "children");
        let trees = if bring_trees { self.trees()? } else { Vec::new() };
        let lengths = self.lengths.clone().map_or_else(europarl, Ok)?;
        let request = |_| {
            let tree = bring_trees.then(|| &trees[(unit(&mut random) * trees.len() as f64) as usize % trees.len()]);
            let length = tree.map_or_else(|| lengths.draw(&mut random) as usize, Vec::len);
            inputs.iter().map(|spec| self.tensor(spec, length, tree, &mut random)).collect()
        };
        (0..VARIANTS).map(request).collect()
    }

    /// Generates requests of `rows` rows that differ in length, up to the model's maximum.
    pub fn padded_requests(
        &self,
        inputs: &[TensorSpec],
        lengths: &InputLengths,
        rows: usize,
        seed: u64,
    ) -> anyhow::Result<Vec<Vec<BenchTensor>>> {
        let mut random = stream(seed, 1);
        let law = self.lengths.clone().map_or_else(europarl, Ok)?;
        let request = |_| {
            let length = i64::from(law.draw(&mut random).clamp(1, lengths.max));
            let input = |(spec, dim): (&TensorSpec, &Option<usize>)| {
                let mut shape: Vec<i64> = spec.shape.iter().map(|&size| size.max(1)).collect();
                shape[0] = rows as i64;
                if let Some(dim) = *dim {
                    shape[dim] = length;
                }
                // A mask marks the valid elements: all of them.
                let mask = spec.name.contains("mask");
                self.filled(spec, shape, |random| if mask { 1.0 } else { unit(random) }, &mut random)
            };
            inputs.iter().zip(&lengths.dims).map(input).collect()
        };
        (0..VARIANTS).map(request).collect()
    }

    fn trees(&self) -> anyhow::Result<Vec<Children>> {
        let trees = &self.trees;
        if let Ok(leaves) = trees.parse::<u32>() {
            ensure!(leaves.is_power_of_two(), "--trees {leaves}: a complete tree has 1, 2, 4, 8, … leaves");
            return Ok(vec![complete_tree(leaves)]);
        }
        let read;
        let text = if trees == "sst" {
            tree_shapes("sst-test").context("--trees sst")?
        } else {
            let form = "use sst, a number of leaves, or a file of nested brackets";
            read = std::fs::read_to_string(Path::new(trees)).with_context(|| format!("--trees {trees:?}: {form}"))?;
            &read
        };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| line.starts_with(['x', '(']));
        let parsed = lines.map(|(at, line)| parse_tree(line).with_context(|| format!("--trees {trees:?}: line {at}")));
        let parsed = parsed.collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(!parsed.is_empty(), "--trees {trees:?} holds no tree; write one a line, such as ((xx)x)");
        Ok(parsed)
    }

    /// Generates one input of a request of `length` elements or nodes.
    fn tensor(
        &self,
        spec: &TensorSpec,
        length: usize,
        tree: Option<&Children>,
        random: &mut SeededRng,
    ) -> anyhow::Result<BenchTensor> {
        let rest = spec.shape.iter().skip(2).map(|&dim| dim.max(1));
        match (spec.name.as_str(), tree) {
            ("children", Some(tree)) => {
                let widest = tree.iter().map(Vec::len).max().unwrap_or(0).max(2) as i64;
                let arity = spec.shape.get(2).copied().filter(|&arity| arity > 0).unwrap_or(widest);
                let child = |node: &Vec<i64>, at: i64| node.get(at as usize).copied().unwrap_or(-1) as f64;
                let children = tree.iter().flat_map(|node| (0..arity).map(move |at| child(node, at)));
                numbers(spec, vec![1, length as i64, arity], children)
            }
            ("cell", Some(tree)) => {
                let cells = tree.iter().map(|node| f64::from(u8::from(!node.is_empty())));
                numbers(spec, vec![1, length as i64], cells)
            }
            _ => {
                let each = spec.shape.get(1) == Some(&-1);
                let leading = [1, if each { length as i64 } else { spec.shape.get(1).copied().unwrap_or(1) }];
                let shape: Vec<i64> = leading.into_iter().take(spec.shape.len()).chain(rest).collect();
                self.filled(spec, shape, unit, random)
            }
        }
    }

    /// Generates a tensor of numbers below 1, or of whole numbers below the vocabulary; 1 stays 1.
    fn filled(
        &self,
        spec: &TensorSpec,
        shape: Vec<i64>,
        draw: impl Fn(&mut SeededRng) -> f64,
        random: &mut SeededRng,
    ) -> anyhow::Result<BenchTensor> {
        let elements = shape.iter().product::<i64>() as usize;
        let float = matches!(spec.datatype, DataType::Fp32 | DataType::Fp64);
        let whole = |drawn: f64| if drawn < 1.0 { (drawn * f64::from(self.vocabulary)).floor() } else { drawn };
        let values: Vec<f64> =
            (0..elements).map(|_| draw(random)).map(|it| if float { it } else { whole(it) }).collect();
        numbers(spec, shape, values.into_iter())
    }
}

/// Returns a tensor of these numbers in the input's type.
fn numbers(spec: &TensorSpec, shape: Vec<i64>, values: impl Iterator<Item = f64>) -> anyhow::Result<BenchTensor> {
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
    Ok(BenchTensor { name: spec.name.clone(), datatype: spec.datatype, shape, data: bytes.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches as _};

    fn walks(words: &[&str]) -> WalkArgs {
        let command = WalkArgs::augment_args(Command::new("bench").no_binary_name(true));
        WalkArgs::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    fn spec(name: &str, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype: DataType::Int64, shape: shape.to_vec() }
    }

    fn ints(tensor: &BenchTensor) -> Vec<i64> {
        tensor.data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
    }

    #[test]
    fn sequences_have_the_wanted_lengths_and_other_dimensions_as_declared() {
        let specs = [spec("token", &[-1, -1]), spec("x", &[-1, -1, 3]), spec("style", &[-1, 4])];
        assert!(!walks(&[]).is_needed(&specs) && walks(&["--lengths", "5"]).is_needed(&specs));
        let requests = walks(&["--lengths", "5", "--vocabulary", "3"]).requests(&specs, 1).unwrap();
        let shapes: Vec<_> = requests[0].iter().map(|tensor| tensor.shape.clone()).collect();
        assert_eq!((requests.len(), shapes), (VARIANTS, vec![vec![1, 5], vec![1, 5, 3], vec![1, 4]]));
        assert!(requests.iter().flatten().flat_map(ints).all(|id| (0..3).contains(&id)));
    }

    #[test]
    fn trees_come_from_a_number_a_data_set_or_a_file() {
        let specs = [spec("token", &[-1, -1]), spec("children", &[-1, -1, -1]), spec("cell", &[-1, -1])];
        assert!(walks(&[]).is_needed(&specs));
        let complete = walks(&["--trees", "2"]).requests(&specs, 1).unwrap().remove(0);
        assert_eq!((ints(&complete[1]), ints(&complete[2])), (vec![1, 2, -1, -1, -1, -1], vec![1, 0, 0]));
        let lengths: std::collections::BTreeSet<i64> =
            walks(&[]).requests(&specs, 1).unwrap().iter().map(|request| request[0].shape[1]).collect();
        assert!(lengths.len() > 10, "{lengths:?}");
        let file = std::env::temp_dir().join(format!("ripieno-trees-{}.txt", std::process::id()));
        std::fs::write(&file, "# made by hand\n((xx)x)\n").unwrap();
        let drawn = walks(&["--trees", file.to_str().unwrap()]).requests(&specs, 1).unwrap();
        assert_eq!(ints(&drawn[0][1]), [1, 4, 2, 3, -1, -1, -1, -1, -1, -1]);
        std::fs::write(&file, "((xx)\n").unwrap();
        let error = format!("{:#}", walks(&["--trees", file.to_str().unwrap()]).requests(&specs, 1).unwrap_err());
        std::fs::remove_file(&file).unwrap();
        assert!(error.contains("line 1") && error.contains("not closed"), "{error}");
        assert!(walks(&["--trees", "3"]).requests(&specs, 1).is_err());
    }
}
