//! Inputs and outputs of emulated cells, which have no file to read them from.
//!
//! A cell that steps along the request's elements takes one of each declared input; every cell has
//! only the outputs that answers take from it: no state is emulated. A declared input with as many
//! dimensions as one element belongs to the request as a whole; `output_length` holds the number of
//! decoder steps, which otherwise derives from a hash of the request.

use crate::cells::OUTPUT_LENGTH;
use crate::plan::BlockIo;
use crate::{BlockSource, LoadError, ModelSource};
use ripieno_base::BlockId;
use ripieno_model::{Steps, TensorSpec};

/// Returns the model without the declared links of its cells' tensors.
pub(super) fn unlinked(source: &ModelSource) -> ModelSource {
    let mut source = source.clone();
    for block in &mut source.blocks {
        block.links.clear();
        block.end = None;
        block.path = None;
    }
    source
}

/// Returns the tensors of each cell. Inputs and outputs are declared as clients see them: [-1, -1,
/// ...] where they have elements.
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
            outputs: given.collect(),
            vocabulary: Vec::new(),
        }
    };
    Ok((0..).zip(&source.blocks).map(io).collect())
}

/// Returns the specification of one element of a request's tensor, as a cell sees it: [-1, ...].
/// Open dimensions become 1.
fn element(spec: &TensorSpec) -> TensorSpec {
    let row = spec.shape.iter().skip(if spec.shape.get(1) == Some(&-1) { 2 } else { 1 });
    let shape = std::iter::once(-1).chain(row.map(|&dim| dim.max(1))).collect();
    TensorSpec { shape, ..spec.clone() }
}
