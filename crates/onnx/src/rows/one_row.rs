//! Tensors of a graph that an exporter fixed to one row: their shapes, and elements that follow
//! from constants and sizes. A file is opened to a batch with them.

use super::value::{MAX_RANK, RowRelation, RowValue};
use super::walk;
use crate::dim::Dim;
use crate::file::OnnxFile;
use std::collections::HashMap;

/// Facts of a tensor that hold in each request.
pub(crate) struct KnownTensor {
    /// Elements of a small integer tensor, if they are numbers.
    pub(crate) ints: Option<Vec<i64>>,
    /// Sizes of the dimensions; `None` for a size that is no number.
    pub(crate) dims: Option<Vec<Option<i64>>>,
}

/// Returns the facts of a graph's tensors. The first dimension of inputs is open.
pub(crate) fn known_of_one_row(file: &OnnxFile) -> HashMap<String, KnownTensor> {
    let inputs = file.graph().input.iter().enumerate().filter_map(|(number, info)| {
        let shape = info.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?;
        if shape.dim.len() > MAX_RANK {
            return None;
        }
        let size = |(at, dim): (usize, &crate::proto::DimensionProto)| match dim.fixed() {
            // The first dimension is symbolic: a size derived from it is no constant of the file.
            _ if at == 0 => Dim::symbol("rows"),
            Some(size) => Dim::known(size),
            None => Dim::symbol(&format!("input{number}dim{at}")),
        };
        let dims = shape.dim.iter().enumerate().map(size).collect();
        Some((info.name.clone(), RowValue::new(dims, RowRelation::Constant)))
    });
    let found = walk::run(file, inputs.collect());
    let known = |value: &RowValue| KnownTensor {
        ints: value.ints(),
        dims: value.shape.as_ref().map(|shape| shape.iter().map(Dim::value).collect()),
    };
    found.iter().map(|(name, value)| (name.clone(), known(value))).collect()
}
