//! Shape inference: the output shapes of each operator. It also tracks the small integer tensors
//! from which exported graphs compute shapes.
//!
//! Each family of operators has a function from [`OpCall`] to [`InferredTensor`]. It returns `None`
//! if it cannot infer the shape, and the shape declared in the file is used instead. A model with
//! neither is refused, because a block must declare the types and shapes of its inputs and outputs.
//! Rejected: the shape library of an engine, which panics on damaged files and does not infer
//! element types.

mod elementwise;
mod layout;
mod linear;
mod recurrent;
mod values;
mod windows;

use crate::dim::Dim;
use crate::error::{OnnxError, refuse};
use crate::graph::{GraphValue, OnnxModel};
use crate::proto::{NodeProto, TensorProto, elem};

/// Largest number of elements of a tracked integer tensor.
const MAX_DATA: usize = 1024;

/// An operator, with the types and shapes of its inputs.
pub(crate) struct OpCall<'a> {
    pub(crate) node: &'a NodeProto,
    pub(crate) inputs: Vec<Option<&'a GraphValue>>,
    pub(crate) weights: &'a [TensorProto],
    pub(crate) opset: i64,
}

/// Inferred type and shape of an output, and its elements if they are tracked.
#[derive(Clone, Debug)]
pub(crate) struct InferredTensor {
    pub(crate) elem: i32,
    pub(crate) shape: Vec<Dim>,
    pub(crate) data: Option<Vec<Dim>>,
}

impl InferredTensor {
    pub(crate) fn new(elem: i32, shape: Vec<Dim>) -> InferredTensor {
        InferredTensor { elem, shape, data: None }
    }

    pub(crate) fn one(elem: i32, shape: Vec<Dim>) -> Option<Vec<InferredTensor>> {
        Some(vec![InferredTensor::new(elem, shape)])
    }
}

impl<'a> OpCall<'a> {
    pub(crate) fn input(&self, at: usize) -> Option<&'a GraphValue> {
        self.inputs.get(at).copied().flatten()
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.input(at).is_some()
    }

    /// Returns the elements of a small integer input, as numbers.
    pub(crate) fn ints(&self, at: usize) -> Option<Vec<i64>> {
        self.input(at)?.data.as_ref()?.iter().map(Dim::value).collect()
    }

    /// Returns the axes of an operator. Old operator versions have an attribute for them, newer
    /// ones an input.
    pub(crate) fn axes(&self, at: usize) -> Option<Vec<i64>> {
        match self.node.ints("axes") {
            Some(axes) => Some(axes.to_vec()),
            None => self.ints(at),
        }
    }

    /// Returns an unknown size.
    pub(crate) fn unknown(&self, axis: usize) -> Dim {
        let name = self.node.output.first().map_or("", String::as_str);
        Dim::symbol(&format!("?{name}.{axis}"))
    }
}

/// Returns the axis as an index from the front; negative axes count from the back.
pub(crate) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis.checked_add(rank as i64)? } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// Infers the element type and shape of every value. The error names the first operator for which
/// this fails.
pub(crate) fn infer(model: &mut OnnxModel, opset: i64) -> Result<(), OnnxError> {
    for at in 0..model.nodes.len() {
        let node = &model.nodes[at];
        let inputs = node.inputs.iter().map(|input| input.map(|value| &model.values[value])).collect();
        let call = OpCall { node: &node.proto, inputs, weights: &model.weights, opset };
        let made = if node.proto.is_standard() { of(&call) } else { None };
        for (number, output) in node.outputs.clone().into_iter().enumerate() {
            let Some(output) = output else { continue };
            let made = made.as_ref().and_then(|made| made.get(number)).cloned();
            let value = &mut model.values[output];
            match made {
                Some(made) => complete(value, made),
                None if value.elem != 0 => {}
                None => return refuse(unknown_shape(&model.nodes[at].proto, &value.name)),
            }
        }
    }
    Ok(())
}

fn unknown_shape(node: &NodeProto, output: &str) -> String {
    format!(
        "the shape of '{output}' does not follow from {}: have onnx.shape_inference.infer_shapes write it into the file",
        node.label()
    )
}

/// Sets the inferred properties of a value. Sizes that inference does not know are taken from the
/// declaration.
fn complete(value: &mut GraphValue, made: InferredTensor) {
    let InferredTensor { elem, mut shape, data } = made;
    if value.elem != 0 && value.shape.len() == shape.len() {
        for (dim, declared) in shape.iter_mut().zip(&value.shape) {
            let open = dim.value().is_none() && !dim.is_batch();
            if open && (declared.value().is_some() || dim.to_string().starts_with('?')) {
                dim.clone_from(declared);
            }
        }
    }
    let count = shape.first().map_or(Some(1), Dim::value);
    let fits = |data: &Vec<Dim>| data.len() <= MAX_DATA && shape.len() <= 1 && count == Some(data.len() as i64);
    let integer = matches!(elem, elem::INT32 | elem::INT64 | elem::BOOL);
    value.data = data.filter(|data| integer && fits(data));
    (value.elem, value.shape) = (elem, shape);
}

fn of(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    match &*call.node.op_type {
        "Conv" | "MaxPool" | "AveragePool" | "LpPool" => windows::slide(call),
        "ConvTranspose" => windows::transposed(call),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => windows::global(call),
        "Resize" | "Upsample" => windows::resize(call),
        "Pad" => windows::pad(call),
        "DepthToSpace" | "SpaceToDepth" => windows::depth_and_space(call),
        "MatMul" => linear::matmul(call),
        "Gemm" => linear::gemm(call),
        "Einsum" => linear::einsum(call),
        "LSTM" | "GRU" | "RNN" => recurrent::recurrent(call),
        "Reshape" => layout::reshape(call),
        "Flatten" => layout::flatten(call),
        "Transpose" => layout::transpose(call),
        "Squeeze" => layout::squeeze(call),
        "Unsqueeze" => layout::unsqueeze(call),
        "Concat" => layout::concat(call),
        "Split" => layout::split(call),
        "Slice" => layout::slice(call),
        "Gather" => layout::gather(call),
        "GatherElements" => InferredTensor::one(call.input(0)?.elem, call.input(1)?.shape.clone()),
        "Expand" => layout::expand(call),
        "Tile" => layout::tile(call),
        "Shape" => values::shape(call),
        "Size" => values::size(call),
        "ConstantOfShape" => values::constant_of_shape(call),
        "Range" => values::range(call),
        "Where" => elementwise::select(call),
        "ArgMax" | "ArgMin" => elementwise::reduce(call, Some(elem::INT64)),
        "TopK" => elementwise::top_k(call),
        reduction if reduction.starts_with("Reduce") => elementwise::reduce(call, None),
        _ => elementwise::infer(call),
    }
}

/// Infers the shape of an operator that slides windows, or rearranges images.
pub(crate) fn windows_of(call: &OpCall<'_>) -> Option<Vec<Dim>> {
    let made = match &*call.node.op_type {
        "Conv" | "MaxPool" | "AveragePool" | "LpPool" => windows::slide(call),
        "ConvTranspose" => windows::transposed(call),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => windows::global(call),
        "DepthToSpace" | "SpaceToDepth" => windows::depth_and_space(call),
        _ => None,
    };
    Some(made?.into_iter().next()?.shape)
}

#[cfg(test)]
mod tests;
