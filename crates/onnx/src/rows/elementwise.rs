//! Operators that compute each element on its own, from inputs that broadcast.

use super::call::{Made, RowCall, broadcast, meet, unknown};
use super::sizes;
use super::value::{RowAxis, RowContent, RowRelation, RowValue};

/// Operators of which an element of each output depends on the elements at the same place.
pub(super) const ELEMENTWISE: [&str; 76] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Div",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "Reciprocal",
    "RegexFullMatch",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "StringConcat",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Where",
    "Xor",
    "Affine",
    "ImageScaler",
    "ParametricSoftplus",
    "ScaledTanh",
];

pub(super) fn elementwise(call: &RowCall<'_>) -> Made {
    // Versions before 7 align a smaller input at an axis.
    if call.node.attr("axis").is_some() || call.node.attr("broadcast").is_some() {
        return unknown("it broadcasts along an axis, as in old versions");
    }
    if call.given().any(|input| input.rows == RowRelation::Count) {
        return sizes::arithmetic(call);
    }
    let inputs: Vec<&RowValue> = match call.op() {
        // The second input gives a type only.
        "CastLike" => call.given().take(1).collect(),
        _ => call.given().collect(),
    };
    let (shape, rows) = broadcast(call, &inputs)?;
    let special = inputs.iter().filter_map(|input| input.axis()).any(|axis| axis.content != RowContent::Plain);
    let rows = match rows {
        RowRelation::Along(axis) if special => RowRelation::Along(RowAxis { content: sizes::position(call), ..axis }),
        rows => rows,
    };
    let mut value = RowValue::new(shape, rows);
    if value.is_constant() {
        value.data = sizes::elements(call);
        value.below = sizes::bound(call);
        if call.op() == "Identity" {
            value.weight = inputs.first().and_then(|input| input.weight.clone());
        }
    }
    Ok(vec![value])
}

pub(super) fn dropout(call: &RowCall<'_>) -> Made {
    let training = call.optional(2);
    let off = training.is_none_or(|training| training.ints().is_some_and(|ints| ints.iter().all(|&int| int == 0)));
    if !off || call.node.int("is_test", 1) == 0 {
        return meet("it draws random numbers");
    }
    let input = call.input(0)?;
    call.like(super::call::dims_of(input)?, &input.rows)
}

/// Computes operators whose output has the shape of their first input, and whose other inputs
/// apply to the last dimension.
pub(super) fn biased(call: &RowCall<'_>) -> Made {
    let (shape, rows) = broadcast(call, &call.given().collect::<Vec<_>>())?;
    match &rows {
        RowRelation::Along(axis) if axis.content != RowContent::Plain => meet(super::call::BY_POSITION),
        _ => call.like(&shape, &rows),
    }
}
