//! The inputs of a graph as the analysis sees them: which of their dimensions is the batch.
//!
//! First dimensions of one name are one batch. Dimensions of different names may have different
//! sizes in a request (nodes and edges of a graph), so such inputs are not rows of one batch. Names
//! that a converter numbers itself count as no name: a file has a new one for each dimension.

use super::value::{MAX_RANK, RowAxis, RowRelation, RowValue};
use super::{RowFinding, RowFindingKind};
use crate::dim::Dim;
use crate::proto::{DimensionProto, GraphProto, ValueInfoProto};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Returns the values of the graph's inputs by name, and the first input that has no rows of the
/// batch.
pub(super) fn given(
    graph: &GraphProto,
    axis_of: &dyn Fn(&str) -> usize,
) -> (HashMap<String, RowValue>, Option<RowFinding>) {
    let weights: HashSet<&str> = graph.initializer.iter().map(|weight| &*weight.name).collect();
    let infos: Vec<&ValueInfoProto> = graph.input.iter().filter(|info| !weights.contains(&*info.name)).collect();
    let batch = infos.iter().find_map(|info| name_of(dims(info)?.get(axis_of(&info.name))?));
    let mut names = Names { batch: batch.map(str::to_owned), known: HashMap::new(), count: 0 };
    let mut first = None;
    let mut values = HashMap::new();
    for info in infos {
        let value = names.input(info, axis_of(&info.name)).unwrap_or_else(|finding| {
            first.get_or_insert_with(|| finding.clone());
            RowValue::new(Vec::new(), RowRelation::Broken(Arc::new(finding)))
        });
        values.insert(info.name.clone(), value);
    }
    (values, first)
}

/// Names of the dimensions of an input; `None` for one without a name of its own.
pub(super) struct InputDims {
    pub(super) name: String,
    pub(super) dims: Vec<Option<String>>,
}

/// Returns the names of the dimensions of all inputs that are no weights.
pub(super) fn dims_of_inputs(graph: &GraphProto) -> Option<Vec<InputDims>> {
    let weights: HashSet<&str> = graph.initializer.iter().map(|weight| &*weight.name).collect();
    let infos = graph.input.iter().filter(|info| !weights.contains(&*info.name));
    let of_input = |info: &ValueInfoProto| {
        let dims = dims(info)?.iter().map(|dim| name_of(dim).map(str::to_owned)).collect();
        Some(InputDims { name: info.name.clone(), dims })
    };
    infos.map(of_input).collect()
}

/// Returns the dimensions of a graph's input.
fn dims(info: &ValueInfoProto) -> Option<&[DimensionProto]> {
    let dims = &info.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?.dim;
    (dims.len() <= MAX_RANK).then_some(dims)
}

/// Returns the name of an open dimension; `None` if it has none of its own.
fn name_of(dim: &DimensionProto) -> Option<&str> {
    let name = dim.dim_param.as_deref().filter(|name| dim.fixed().is_none() && !name.is_empty())?;
    let numbered =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|c| c.is_ascii_digit()));
    let unnamed = matches!(name, "?" | "-1" | "None") || numbered("unk__") || numbered("DynamicDimension.");
    (!unnamed && !name.contains("_dynamic_axes_")).then_some(name)
}

struct Names {
    batch: Option<String>,
    known: HashMap<String, Dim>,
    count: usize,
}

impl Names {
    /// Returns the size of a dimension that is not the batch.
    fn other(&mut self, dim: &DimensionProto) -> Dim {
        if let Some(size) = dim.fixed() {
            return Dim::known(size);
        }
        self.count += 1;
        let size = Dim::symbol(&format!("d{}", self.count));
        match name_of(dim) {
            Some(name) => self.known.entry(name.to_owned()).or_insert(size).clone(),
            None => size,
        }
    }

    fn input(&mut self, info: &ValueInfoProto, axis: usize) -> Result<RowValue, RowFinding> {
        let found = |kind, why: String| Err(RowFinding::of_tensor("input", &info.name, kind, why));
        let Some(dims) = dims(info) else {
            return found(RowFindingKind::Unknown, "it is not a tensor of a known number of dimensions".to_owned());
        };
        let Some(own) = dims.get(axis).filter(|dim| dim.fixed().is_none()) else {
            return found(RowFindingKind::Meet, "it has no batch dimension".to_owned());
        };
        if let (Some(name), Some(batch)) = (name_of(own), &self.batch)
            && name != batch
        {
            return found(RowFindingKind::Meet, format!("its batch dimension would be '{name}' beside '{batch}'"));
        }
        let is_batch = |dim: &DimensionProto| self.batch.is_some() && name_of(dim) == self.batch.as_deref();
        if let Some(at) = (0..dims.len()).find(|&at| at != axis && is_batch(&dims[at])) {
            return found(RowFindingKind::Meet, format!("its dimension {at} has the size of the batch, too"));
        }
        let size = |(at, dim)| if at == axis { Dim::batch() } else { self.other(dim) };
        let shape = dims.iter().enumerate().map(size).collect();
        Ok(RowValue::new(shape, RowRelation::Along(RowAxis::new(axis, Dim::known(1)))))
    }
}
