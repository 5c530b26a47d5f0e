//! Inputs and outputs of emulated cells, which have no file that declares them.
//!
//! A cell that runs once per element takes one element of each declared input. Each cell has only
//! the outputs that answers need, because no state is emulated. If a declared input has as many
//! dimensions as one element, it belongs to the whole request. The input `output_length` is the
//! number of decoder steps; without it, the number is a hash of the request.

use crate::run::cells::OUTPUT_LENGTH;
use crate::run::plan::BlockIo;
use crate::{BlockSource, LoadError, ModelSource};
use ripieno_base::BlockId;
use ripieno_model::{Steps, TensorSpec};

/// Returns the model without the declared links between its cells.
pub(super) fn unlinked(source: &ModelSource) -> ModelSource {
    let mut source = source.clone();
    for block in &mut source.blocks {
        block.links.clear();
        block.end = None;
        block.path = None;
    }
    source
}

/// Returns the inputs and outputs of each cell. They are declared as clients see them: [-1, -1,
/// ...] if they have elements.
pub(super) fn ios(
    source: &ModelSource,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
) -> Result<Vec<BlockIo>, LoadError> {
    let elements: Vec<TensorSpec> =
        inputs.iter().filter(|spec| ![OUTPUT_LENGTH, "children", "cell"].contains(&&*spec.name)).map(element).collect();
    let io = |(at, block): (u16, &BlockSource)| {
        let steps = matches!(block.steps, Steps::Length | Steps::Nodes);
        let answers = source.answers.iter().filter(|answer| match answer.block {
            Some(from) => from == BlockId(at),
            None => block.steps == Steps::Nodes,
        });
        let output = |tensor: &String, declared: Option<&TensorSpec>| {
            let spec = declared.or(outputs.first()).map(element);
            spec.map(|spec| TensorSpec { name: tensor.clone(), ..spec })
        };
        let given = answers.filter_map(|answer| {
            let declared = outputs.iter().find(|spec| spec.name == answer.name);
            output(&answer.tensor, declared)
        });
        BlockIo {
            place: format!("block '{}'", block.name),
            inputs: if steps { elements.clone() } else { Vec::new() },
            optional: Vec::new(),
            outputs: given.collect(),
            vocabulary: Vec::new(),
        }
    };
    Ok((0..).zip(&source.blocks).map(io).collect())
}

/// Returns the specification of one element of a request's tensor, which the cell takes: [-1, ...].
/// Open dimensions become 1.
fn element(spec: &TensorSpec) -> TensorSpec {
    let row = spec.shape.iter().skip(if spec.shape.get(1) == Some(&-1) { 2 } else { 1 });
    let shape = std::iter::once(-1).chain(row.map(|&dim| dim.max(1))).collect();
    TensorSpec { shape, ..spec.clone() }
}
