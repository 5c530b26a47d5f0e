//! Requests for a model: its declared inputs with random values, sequences and trees of given
//! lengths.

use clap::Args;
use ripieno_bench::inputs::{BenchTensor, Filling, ShapeArg, requests as filled};
use ripieno_bench::unfolded::WalkArgs;
use ripieno_executor::Tensor as Input;
use ripieno_repository::registry::ServedEntry;
use std::sync::Arc;

/// The form of requests.
#[derive(Args, Clone, Debug)]
pub(crate) struct RequestArgs {
    /// Rows of each request, for models that run whole or in a chain.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    rows: u16,

    /// Sizes of an input's open dimensions, for example image:3,224,224.
    #[arg(long = "shape", value_name = "NAME:DIMS")]
    shapes: Vec<ShapeArg>,

    #[command(flatten)]
    walks: WalkArgs,

    /// Seed of the requests and arrivals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
}

impl RequestArgs {
    /// Generates requests for this model.
    pub(super) fn build(&self, entry: &ServedEntry) -> anyhow::Result<Vec<Arc<[Input]>>> {
        let unfolds = entry.inputs.iter().any(|input| input.name == "children" || input.shape.get(1) == Some(&-1));
        let rows = usize::from(self.rows);
        let requests = if let Some(lengths) = &entry.lengths {
            self.walks.padded_requests(&entry.inputs, lengths, rows, self.seed)?
        } else if unfolds && entry.batched && entry.max_batch == 1 {
            self.walks.requests(&entry.inputs, self.seed)?
        } else {
            let filling = Filling { rows, shapes: self.shapes.clone(), seed: self.seed, ..Filling::default() };
            filled(&entry.inputs, &filling)?
        };
        Ok(requests.into_iter().map(|tensors| tensors.into_iter().map(input).collect()).collect())
    }
}

fn input(tensor: BenchTensor) -> Input {
    Input { name: tensor.name.as_str().into(), datatype: tensor.datatype, shape: tensor.shape, data: tensor.data }
}
