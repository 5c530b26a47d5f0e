//! Operators that keep the shape, broadcast it, or remove an axis.

use super::{InferredTensor, OpCall, axis, values};
use crate::dim::Dim;
use crate::proto::elem;

/// Operators whose output has the type and shape of their first input.
const LIKE_FIRST: [&str; 57] = [
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "BatchNormalization",
    "BitwiseNot",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "CumSum",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "InstanceNormalization",
    "LRN",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "MeanVarianceNormalization",
    "Mish",
    "Neg",
    "Not",
    "PRelu",
    "RMSNormalization",
    "Reciprocal",
    "Relu",
    "Round",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Trilu",
];
/// Operators of several inputs that broadcast.
const BROADCAST: [&str; 17] = [
    "Add",
    "And",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "Pow",
    "Sub",
    "Sum",
    "Xor",
];
const COMPARE: [&str; 5] = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"];

pub(super) fn infer(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let first = call.input(0)?;
    let name = &*call.node.op_type;
    let data = values::elementwise(call);
    let made = |elem, shape| Some(vec![InferredTensor { elem, shape, data: data.clone() }]);
    match name {
        "LayerNormalization" if call.node.output.len() > 1 => None,
        "Dropout" => Some(vec![
            InferredTensor::new(first.elem, first.shape.clone()),
            InferredTensor::new(elem::BOOL, first.shape.clone()),
        ]),
        _ if LIKE_FIRST.contains(&name) => made(first.elem, first.shape.clone()),
        "IsInf" | "IsNaN" => made(elem::BOOL, first.shape.clone()),
        "Cast" => made(i32::try_from(call.node.int("to", 0)).ok()?, first.shape.clone()),
        "CastLike" => made(call.input(1)?.elem, first.shape.clone()),
        "DequantizeLinear" => made(call.input(1)?.elem, first.shape.clone()),
        "QuantizeLinear" => made(call.input(2).map_or(elem::UINT8, |zero| zero.elem), first.shape.clone()),
        _ if BROADCAST.contains(&name) => made(first.elem, broadcast_all(call, 0)?),
        _ if COMPARE.contains(&name) => made(elem::BOOL, broadcast_all(call, 0)?),
        _ => None,
    }
}

pub(super) fn select(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    Some(vec![InferredTensor { elem: call.input(1)?.elem, shape: broadcast_all(call, 0)?, data: values::select(call) }])
}

fn broadcast_all(call: &OpCall<'_>, from: usize) -> Option<Vec<Dim>> {
    let shapes = call.inputs.iter().skip(from).map(|input| input.map(|value| &value.shape[..]));
    shapes.into_iter().try_fold(Vec::new(), |all, shape| broadcast(&all, shape?))
}

/// Returns the shape that two shapes broadcast to.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut shape = long.to_vec();
    let offset = long.len() - short.len();
    for (dim, other) in shape[offset..].iter_mut().zip(short) {
        *dim = broadcast_dim(dim, other)?;
    }
    Some(shape)
}

/// Returns the size that two sizes broadcast to. If they differ, one of them must be 1 at run time.
/// A number above 1 is the result, and the batch is assumed not to be 1.
fn broadcast_dim(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a.value(), b.value()) {
        _ if a == b => Some(a.clone()),
        (Some(1), _) => Some(b.clone()),
        (_, Some(1)) => Some(a.clone()),
        (Some(_), Some(_)) => None,
        (Some(_), None) => Some(a.clone()),
        (None, Some(_)) => Some(b.clone()),
        (None, None) if a.is_batch() => Some(a.clone()),
        (None, None) if b.is_batch() => Some(b.clone()),
        (None, None) => Some(a.clone().max(b.clone())),
    }
}

pub(super) fn reduce(call: &OpCall<'_>, elem: Option<i32>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let keep = call.node.int("keepdims", 1) != 0;
    let rank = input.shape.len();
    let axes = match elem {
        Some(_) => Some(vec![call.node.int("axis", 0)]),
        None if call.node.ints("axes").is_none() && !call.has(1) => None,
        None => Some(call.axes(1)?),
    };
    let all = match &axes {
        None => true,
        Some(axes) => axes.is_empty() && call.node.int("noop_with_empty_axes", 0) == 0,
    };
    let axes = axes.unwrap_or_default().into_iter().map(|at| axis(at, rank)).collect::<Option<Vec<_>>>()?;
    let mut shape = Vec::with_capacity(rank);
    for (at, dim) in input.shape.iter().enumerate() {
        match all || axes.contains(&at) {
            true if keep => shape.push(Dim::known(1)),
            true => {}
            false => shape.push(dim.clone()),
        }
    }
    InferredTensor::one(elem.unwrap_or(input.elem), shape)
}

pub(super) fn top_k(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let count = match call.node.attr("k") {
        Some(attribute) => Dim::known(attribute.i?),
        None => call.input(1)?.data.as_ref().and_then(|data| data.first().cloned()).unwrap_or_else(|| call.unknown(0)),
    };
    let mut shape = input.shape.clone();
    let at = axis(call.node.int("axis", -1), shape.len())?;
    shape[at] = count;
    Some(vec![InferredTensor::new(input.elem, shape.clone()), InferredTensor::new(elem::INT64, shape)])
}
