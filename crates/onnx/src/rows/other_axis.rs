//! Search for a batch that is not the first dimension, such as in `[time, batch, features]`.
//!
//! A dimension is a candidate if its name stands in each input once. Inputs whose dimensions have
//! no names are tried with their second dimension. A candidate counts only if all outputs are
//! proved to be rows of it.

use super::inputs::{self, InputDims};
use super::value::{RowContent, RowValue};
use super::walk;
use crate::dim::Dim;
use crate::file::OnnxFile;
use std::collections::HashMap;

/// Largest number of names that are tried.
const MAX_CANDIDATES: usize = 4;

/// Returns the dimensions of inputs and outputs that are a batch of independent rows, by tensor,
/// without those that are the first. `None` if no such batch is proved.
pub fn other_batch_dims(file: &OnnxFile) -> Option<Vec<(String, usize)>> {
    let tensors = inputs::dims_of_inputs(file.graph())?;
    let first = tensors.first()?;
    let named = first.dims.iter().flatten().take(MAX_CANDIDATES).map(|name| places(&tensors, name));
    let second = tensors.iter().all(|tensor| tensor.dims.len() > 1).then(|| vec![1; tensors.len()]);
    named.chain([second]).flatten().find_map(|axes| proved(file, &tensors, &axes))
}

/// Returns the dimension of this name in each input.
fn places(tensors: &[InputDims], name: &str) -> Option<Vec<usize>> {
    let place = |tensor: &InputDims| {
        let mut places = (0..tensor.dims.len()).filter(|&at| tensor.dims[at].as_deref() == Some(name));
        places.next().filter(|_| places.next().is_none())
    };
    tensors.iter().map(place).collect()
}

fn proved(file: &OnnxFile, tensors: &[InputDims], axes: &[usize]) -> Option<Vec<(String, usize)>> {
    let mut dims: Vec<(String, usize)> =
        tensors.iter().zip(axes).map(|(tensor, &axis)| (tensor.name.clone(), axis)).collect();
    let by_name: HashMap<&str, usize> = tensors.iter().map(|tensor| &*tensor.name).zip(axes.iter().copied()).collect();
    let (values, broken) = inputs::given(file.graph(), &|name| by_name.get(name).copied().unwrap_or(0));
    if broken.is_some() {
        return None;
    }
    let found = walk::run(file, values);
    for info in &file.graph().output {
        dims.push((info.name.clone(), rows_of(found.get(&info.name)?)?));
    }
    dims.retain(|(_, axis)| *axis > 0);
    (!dims.is_empty()).then_some(dims)
}

/// Returns the dimension of a tensor that holds the rows, one element each.
fn rows_of(value: &RowValue) -> Option<usize> {
    let rows = value.axis().filter(|rows| rows.content == RowContent::Plain)?;
    value.shape.as_ref()?.get(rows.axis).filter(|size| **size == Dim::batch())?;
    Some(rows.axis)
}
