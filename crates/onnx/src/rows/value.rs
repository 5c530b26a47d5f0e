//! The state of a tensor in the analysis: its shape, its elements if they are sizes, and how its
//! elements belong to the rows of the batch.

use super::{RowFinding, RowFindingKind};
use crate::dim::{BATCH, Dim, product};
use crate::proto::TensorProto;
use std::sync::Arc;

/// Largest number of elements of a tensor whose elements are tracked.
pub(super) const MAX_DATA: usize = 64;

/// Largest number of dimensions of a tensor that is followed.
pub(super) const MAX_RANK: usize = 64;

/// A tensor in the analysis.
#[derive(Clone, Debug)]
pub(super) struct RowValue {
    /// Sizes of the dimensions. `None`: the number of dimensions is not known; of a value that does
    /// not depend on the rows only.
    pub(super) shape: Option<Vec<Dim>>,
    /// Elements in row-major order, if they are numbers or sizes.
    pub(super) data: Option<Vec<Dim>>,
    /// The elements' relation to the rows.
    pub(super) rows: RowRelation,
    /// Upper bound of a constant's elements, which are whole numbers from 0 to below it.
    pub(super) below: Option<Dim>,
    /// The weight, if the value is one in the file itself.
    pub(super) weight: Option<Arc<TensorProto>>,
}

/// Relation of a tensor's elements to the rows of the batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RowRelation {
    /// All elements are the same, whatever the rows and their number.
    Constant,
    /// The elements depend on the number of rows, not on the rows.
    Count,
    /// Each element belongs to one row and depends on this row only.
    Along(RowAxis),
    /// Rows meet here, or whether they do is not known.
    Broken(Arc<RowFinding>),
}

/// The axis along which the rows stand. Its size is `outer * batch * inner`. The element at index
/// `i` belongs to row `(i / inner) % batch`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RowAxis {
    pub(super) axis: usize,
    pub(super) inner: Dim,
    pub(super) content: RowContent,
}

/// Meaning of the elements of a tensor of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowContent {
    /// Values that depend on the row, not on its position.
    Plain,
    /// Indices: `stride` times the position of their row, and a number from 0 to below `extent`.
    Positions { stride: Dim, extent: Dim },
    /// Tuples along the last axis whose first element is the position of their row.
    Tuples,
    /// Other values that depend on the position of their row. They have a shape only.
    Positional,
}

impl RowContent {
    /// Returns the position of a row itself.
    pub(super) fn position() -> RowContent {
        RowContent::Positions { stride: Dim::known(1), extent: Dim::known(1) }
    }
}

impl RowAxis {
    /// Returns an axis of plain values, with `inner` elements of a row side by side.
    pub(super) fn new(axis: usize, inner: Dim) -> RowAxis {
        RowAxis { axis, inner, content: RowContent::Plain }
    }

    /// Returns this axis at another place.
    pub(super) fn at(&self, axis: usize) -> RowAxis {
        RowAxis { axis, ..self.clone() }
    }
}

impl RowValue {
    pub(super) fn new(shape: Vec<Dim>, rows: RowRelation) -> RowValue {
        RowValue { shape: Some(shape), data: None, rows, below: None, weight: None }
    }

    /// Returns a constant of unknown shape.
    pub(super) fn constant() -> RowValue {
        RowValue { shape: None, data: None, rows: RowRelation::Constant, below: None, weight: None }
    }

    /// Returns a tensor of these elements. They decide whether it depends on the number of rows.
    pub(super) fn of_data(shape: Vec<Dim>, data: Vec<Dim>) -> RowValue {
        let rows = if data.iter().any(has_batch) { RowRelation::Count } else { RowRelation::Constant };
        RowValue { data: (data.len() <= MAX_DATA).then_some(data), ..RowValue::new(shape, rows) }
    }

    /// Returns the axis of the rows, if the value has one.
    pub(super) fn axis(&self) -> Option<&RowAxis> {
        match &self.rows {
            RowRelation::Along(axis) => Some(axis),
            _ => None,
        }
    }

    pub(super) fn is_constant(&self) -> bool {
        self.rows == RowRelation::Constant
    }

    /// Returns the number of dimensions.
    pub(super) fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }

    /// Returns the elements, if all are numbers.
    pub(super) fn ints(&self) -> Option<Vec<i64>> {
        self.data.as_ref()?.iter().map(Dim::value).collect()
    }

    /// Returns the upper bound of a constant's elements, if they are whole numbers from 0 on.
    pub(super) fn bound(&self) -> Option<Dim> {
        let known = || {
            let ints = self.ints()?;
            let most = ints.iter().max()?.checked_add(1)?;
            ints.iter().all(|&int| int >= 0).then(|| Dim::known(most))
        };
        self.below.clone().or_else(known).filter(|_| self.is_constant())
    }

    /// Whether the value is known to have one element.
    pub(super) fn is_single(&self) -> bool {
        self.shape.as_ref().is_some_and(|shape| shape.iter().all(|dim| dim.is(1)))
    }
}

/// Whether a size depends on the number of rows.
pub(super) fn has_batch(dim: &Dim) -> bool {
    dim.mentions(BATCH)
}

/// Returns the number of elements before, and behind the rows: the elements of row `r` of all
/// `before * batch * behind` have the indices `(p * batch + r) * behind + q`.
pub(super) fn around(shape: &[Dim], rows: &RowAxis) -> Option<(Dim, Dim)> {
    let outer = shape.get(rows.axis)?.over(&Dim::batch())?.over(&rows.inner)?;
    let before = product(&shape[..rows.axis])?.times(&outer)?;
    let behind = product(&shape[rows.axis + 1..])?.times(&rows.inner)?;
    Some((before, behind))
}

/// Returns the finding of the first broken value; one where rows meet comes first.
pub(super) fn broken<'a>(values: impl Iterator<Item = &'a RowValue>) -> Option<RowRelation> {
    let mut found: Option<&Arc<RowFinding>> = None;
    for value in values {
        if let RowRelation::Broken(finding) = &value.rows
            && (found.is_none() || finding.kind == RowFindingKind::Meet)
        {
            found = Some(finding);
            if finding.kind == RowFindingKind::Meet {
                break;
            }
        }
    }
    found.map(|finding| RowRelation::Broken(Arc::clone(finding)))
}
