//! Operators that slide windows over images or signals, or resize them.

use super::{InferredTensor, OpCall};
use crate::dim::Dim;
use crate::proto::TensorProto;

/// Attributes of a window, per axis.
struct WindowAttributes {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
    auto: String,
}

impl WindowAttributes {
    fn of(call: &OpCall<'_>, kernel: Vec<i64>) -> Option<WindowAttributes> {
        let axes = kernel.len();
        let list = |name: &str, count: usize, default: i64| {
            let list = call.node.ints(name).map_or_else(|| vec![default; count], <[i64]>::to_vec);
            (list.len() == count).then_some(list)
        };
        let auto = call.node.text("auto_pad");
        Some(WindowAttributes {
            strides: list("strides", axes, 1)?,
            dilations: list("dilations", axes, 1)?,
            pads: list("pads", 2 * axes, 0)?,
            kernel,
            auto,
        })
    }

    fn axes(&self) -> usize {
        self.kernel.len()
    }

    /// Returns the extent of a dilated window along an axis.
    fn reach(&self, axis: usize) -> Option<i64> {
        self.kernel[axis].checked_sub(1)?.checked_mul(self.dilations[axis])?.checked_add(1)
    }

    fn padding(&self, axis: usize) -> Option<i64> {
        self.pads[axis].checked_add(self.pads[self.axes() + axis])
    }
}

/// Returns the sizes of the kernel, from the attribute or else from the last dimensions of the
/// weights.
fn kernel(call: &OpCall<'_>) -> Option<Vec<i64>> {
    match call.node.ints("kernel_shape") {
        Some(kernel) => Some(kernel.to_vec()),
        None => call.input(1)?.shape.get(2..)?.iter().map(Dim::value).collect(),
    }
}

pub(super) fn slide(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let lists = WindowAttributes::of(call, kernel(call)?)?;
    if input.shape.len() != lists.axes() + 2 {
        return None;
    }
    let channels = match &*call.node.op_type {
        "Conv" => call.input(1)?.shape.first()?.clone(),
        _ => input.shape[1].clone(),
    };
    let ceil = call.node.int("ceil_mode", 0) != 0;
    let mut shape = vec![input.shape[0].clone(), channels];
    for axis in 0..lists.axes() {
        shape.push(windows(&input.shape[axis + 2], &lists, axis, ceil)?);
    }
    let mut made = vec![InferredTensor::new(input.elem, shape.clone())];
    if call.node.op_type == "MaxPool" {
        made.push(InferredTensor::new(crate::proto::elem::INT64, shape));
    }
    Some(made)
}

fn windows(size: &Dim, lists: &WindowAttributes, axis: usize, ceil: bool) -> Option<Dim> {
    let stride = lists.strides[axis].max(1);
    if lists.auto.starts_with("SAME") {
        return match size.value() {
            Some(size) => Some(Dim::known(size.checked_add(stride - 1)? / stride)),
            None if stride == 1 => Some(size.clone()),
            None => Dim::opaque(&format!("(({size} + {}) // {stride})", stride - 1)),
        };
    }
    let padding = if lists.auto == "VALID" { 0 } else { lists.padding(axis)? };
    let span = size.plus(&Dim::known(padding.checked_sub(lists.reach(axis)?)?))?;
    match span.value() {
        Some(span) if span < 0 => None,
        Some(span) => {
            let count = if ceil { span.checked_add(stride - 1)? / stride } else { span / stride } + 1;
            // A window that begins in the padding after the end does not count.
            let begins = (count - 1).checked_mul(stride)?;
            let outside = ceil && begins >= size.value()?.checked_add(lists.pads[axis])?;
            Some(Dim::known(count - i64::from(outside)))
        }
        None if stride == 1 => span.plus(&Dim::known(1)),
        None => Dim::opaque(&format!("({span} // {stride} + 1)")),
    }
}

pub(super) fn transposed(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let (input, weights) = (call.input(0)?, call.input(1)?);
    let lists = WindowAttributes::of(call, kernel(call)?)?;
    if input.shape.len() != lists.axes() + 2 {
        return None;
    }
    let channels = weights.shape.get(1)?.times(&Dim::known(call.node.int("group", 1)))?;
    let mut shape = vec![input.shape[0].clone(), channels];
    let more = call.node.ints("output_padding").map_or_else(|| vec![0; lists.axes()], <[i64]>::to_vec);
    let given = call.node.ints("output_shape");
    for axis in 0..lists.axes() {
        let size = &input.shape[axis + 2];
        let stride = Dim::known(lists.strides[axis]);
        shape.push(match given {
            Some(given) => Dim::known(*given.get(axis)?),
            None if lists.auto.starts_with("SAME") => size.times(&stride)?,
            None => {
                let extra = lists.reach(axis)?.checked_sub(lists.padding(axis)?)?.checked_add(*more.get(axis)?)?;
                size.minus(&Dim::known(1))?.times(&stride)?.plus(&Dim::known(extra))?
            }
        });
    }
    InferredTensor::one(input.elem, shape)
}

pub(super) fn global(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let channels = input.shape.get(..2)?.to_vec();
    let ones = vec![Dim::known(1); input.shape.len() - 2];
    InferredTensor::one(input.elem, [channels, ones].concat())
}

pub(super) fn resize(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let old = call.node.op_type == "Upsample" || call.opset < 11;
    let rank = input.shape.len();
    let mut axes: Vec<usize> = (0..rank).collect();
    if let Some(named) = call.node.ints("axes") {
        axes = named.iter().map(|&at| super::axis(at, rank)).collect::<Option<_>>()?;
    }
    let mut shape = input.shape.clone();
    if let Some(sizes) = call.input(3).filter(|_| !old).and_then(|sizes| sizes.data.as_ref()) {
        for (&axis, size) in axes.iter().zip(sizes) {
            shape[axis] = size.clone();
        }
        return InferredTensor::one(input.elem, shape);
    }
    let scales = scales(call, if old { 1 } else { 2 })?;
    for (&axis, &scale) in axes.iter().zip(&scales) {
        shape[axis] = scaled(&input.shape[axis], scale).unwrap_or_else(|| call.unknown(axis));
    }
    InferredTensor::one(input.elem, shape)
}

fn scaled(size: &Dim, scale: f32) -> Option<Dim> {
    let whole = scale.fract() == 0.0 && (1.0..=1024.0).contains(&scale);
    match size.value() {
        _ if whole => size.times(&Dim::known(scale as i64)),
        Some(size) if scale > 0.0 && scale.is_finite() => {
            Some(Dim::known((size as f64 * f64::from(scale)).floor() as i64))
        }
        _ => None,
    }
}

fn scales(call: &OpCall<'_>, at: usize) -> Option<Vec<f32>> {
    if let Some(attribute) = call.node.attr("scales") {
        return Some(attribute.floats.clone());
    }
    floats(call.weights.get(call.input(at)?.weight?)?)
}

/// Returns the elements of a small tensor of floats, if they are in the file itself.
fn floats(tensor: &TensorProto) -> Option<Vec<f32>> {
    match &tensor.raw_data {
        Some(raw) if tensor.data_type == crate::proto::elem::FLOAT => {
            Some(raw.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
        }
        Some(_) => None,
        None => Some(tensor.float_data.clone()).filter(|floats| !floats.is_empty()),
    }
}

pub(super) fn pad(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let rank = input.shape.len();
    let pads = call.node.ints("pads").map(<[i64]>::to_vec).or_else(|| call.ints(1))?;
    let axes: Vec<i64> = if call.has(3) { call.ints(3)? } else { (0..rank as i64).collect() };
    let mut shape = input.shape.clone();
    for (number, &at) in axes.iter().enumerate() {
        let at = super::axis(at, rank)?;
        let more = pads.get(number)?.checked_add(*pads.get(axes.len() + number)?)?;
        shape[at] = shape[at].plus(&Dim::known(more))?;
    }
    InferredTensor::one(input.elem, shape)
}

pub(super) fn depth_and_space(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let input = call.input(0)?;
    let [batch, depth, height, width] = &input.shape[..] else { return None };
    let size = call.node.int("blocksize", 1);
    let (side, area) = (Dim::known(size), Dim::known(size.checked_mul(size)?));
    let shape = match &*call.node.op_type {
        "DepthToSpace" => [depth.over(&area)?, height.times(&side)?, width.times(&side)?],
        _ => [depth.times(&area)?, height.over(&side)?, width.over(&side)?],
    };
    InferredTensor::one(input.elem, [&[batch.clone()][..], &shape].concat())
}
