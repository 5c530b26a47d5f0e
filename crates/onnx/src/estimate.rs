//! Estimates an operator's cost from its shapes: operations and bytes, each at a fixed speed.

use crate::graph::{OnnxModel, OpNode};
use crate::line::nominal;
use crate::weights::MAX_COST;
use crate::weights::element_bytes;

/// Approximate speed of one current CPU core, in operations and bytes per nanosecond.
const FLOPS: u64 = 60;
const BYTES: u64 = 8;

/// Estimates the time of a node in nanoseconds.
pub(crate) fn nanos(model: &OnnxModel, node: usize, rows: i64) -> u64 {
    let node = &model.nodes[node];
    let bytes = |value: &Option<usize>| value.map_or(0, |value| bytes(model, value, rows));
    let moved = node.inputs.iter().chain(&node.outputs).map(bytes).fold(0, u64::saturating_add);
    let work = operations(model, node, rows).unwrap_or(0);
    (work / FLOPS).saturating_add(moved / BYTES).min(MAX_COST)
}

fn elements(model: &OnnxModel, value: usize, rows: i64) -> u64 {
    let sizes = model.values[value].shape.iter().map(|dim| nominal(dim, rows).unsigned_abs());
    sizes.fold(1, u64::saturating_mul)
}

fn bytes(model: &OnnxModel, value: usize, rows: i64) -> u64 {
    elements(model, value, rows).saturating_mul(element_bytes(model.values[value].elem).unwrap_or(1) as u64)
}

/// Returns the number of floating-point operations of an operator that multiplies. `None` for other
/// operators, whose cost is their bytes.
fn operations(model: &OnnxModel, node: &OpNode, rows: i64) -> Option<u64> {
    let input = |at: usize| node.inputs.get(at).copied().flatten();
    let output = node.outputs.iter().flatten().next().map(|&output| elements(model, output, rows))?;
    let size =
        |value: usize, axis: usize| model.values[value].shape.get(axis).map(|dim| nominal(dim, rows).unsigned_abs());
    let per_element = |per: u64| Some(output.saturating_mul(per).saturating_mul(2));
    match &*node.proto.op_type {
        "Conv" => {
            let weights = &model.values[input(1)?].shape;
            per_element(
                weights.iter().skip(1).map(|dim| nominal(dim, rows).unsigned_abs()).fold(1, u64::saturating_mul),
            )
        }
        "ConvTranspose" => {
            let weights = &model.values[input(1)?].shape;
            let window: u64 =
                weights.iter().skip(1).map(|dim| nominal(dim, rows).unsigned_abs()).fold(1, u64::saturating_mul);
            Some(elements(model, input(0)?, rows).saturating_mul(window).saturating_mul(2))
        }
        "MatMul" => per_element(size(input(0)?, model.values[input(0)?].shape.len().checked_sub(1)?)?),
        "Gemm" => per_element(size(input(0)?, usize::from(node.proto.int("transA", 0) == 0))?),
        "LSTM" | "GRU" | "RNN" => {
            let (wide, deep) = (input(1)?, input(2)?);
            let weights = elements(model, wide, rows).saturating_add(elements(model, deep, rows));
            let steps = size(input(0)?, 0)?.saturating_mul(size(input(0)?, 1)?);
            Some(weights.saturating_mul(steps).saturating_mul(2))
        }
        _ => None,
    }
}
