//! One operator with what is known of its inputs, and the causes for which it has no result.

use super::value::{RowAxis, RowContent, RowRelation, RowValue, has_batch};
use super::{RowFinding, RowFindingKind};
use crate::dim::Dim;
use crate::proto::NodeProto;
use crate::shapes::axis;
use std::cell::Cell;
use std::sync::Arc;

/// Outputs of an operator.
pub(super) type Made = Result<Vec<RowValue>, RowCause>;

/// The reason for which the outputs of an operator are not rows.
#[derive(Clone, Debug)]
pub(super) struct RowCause {
    pub(super) kind: RowFindingKind,
    pub(super) why: String,
}

/// Rows meet in the operator.
pub(super) fn meet<T>(why: impl Into<String>) -> Result<T, RowCause> {
    Err(RowCause { kind: RowFindingKind::Meet, why: why.into() })
}

/// The analysis does not know whether rows meet in the operator.
pub(super) fn unknown<T>(why: impl Into<String>) -> Result<T, RowCause> {
    Err(RowCause { kind: RowFindingKind::Unknown, why: why.into() })
}

/// The reason why a tensor that is the same for all rows cannot be combined with rows.
pub(super) const FIXED: &str = "it is made for a fixed number of rows";
/// The reason why two axes of rows cannot be combined.
pub(super) const CROSSED: &str = "it combines each row with every row";

/// An operator and its inputs. `None` stands for an omitted input.
pub(super) struct RowCall<'a> {
    pub(super) node: &'a NodeProto,
    pub(super) inputs: Vec<Option<RowValue>>,
    pub(super) opset: i64,
    pub(super) symbols: &'a Cell<usize>,
    /// Stands for the axis of the rows where all inputs are constants, whose shapes follow the same
    /// rules.
    pub(super) first_axis: &'a RowAxis,
}

impl RowCall<'_> {
    /// Returns a size of which nothing is known, but that it does not depend on the batch.
    pub(super) fn fresh(&self) -> Dim {
        self.symbols.set(self.symbols.get() + 1);
        Dim::symbol(&format!("?{}", self.symbols.get()))
    }

    pub(super) fn op(&self) -> &str {
        &self.node.op_type
    }

    pub(super) fn optional(&self, at: usize) -> Option<&RowValue> {
        self.inputs.get(at)?.as_ref()
    }

    pub(super) fn input(&self, at: usize) -> Result<&RowValue, RowCause> {
        self.optional(at).map_or_else(|| unknown(format!("its input {at} is missing")), Ok)
    }

    /// Returns the dimensions of an input.
    pub(super) fn dims(&self, at: usize) -> Result<&[Dim], RowCause> {
        dims_of(self.input(at)?)
    }

    pub(super) fn given(&self) -> impl Iterator<Item = &RowValue> {
        self.inputs.iter().flatten()
    }

    /// Requires that the inputs from `from` on are the same for all rows.
    pub(super) fn constant_from(&self, from: usize) -> Result<(), RowCause> {
        match self.inputs.iter().skip(from).flatten().find(|input| !input.is_constant()) {
            None => Ok(()),
            Some(input) if input.rows == RowRelation::Count => meet(BY_COUNT),
            Some(_) => meet("what applies to all rows is computed from rows"),
        }
    }

    /// Returns an attribute as an axis of a tensor of `rank` dimensions.
    pub(super) fn axis(&self, default: i64, rank: usize) -> Result<usize, RowCause> {
        normal(self.node.int("axis", default), rank)
    }

    /// Returns the axes of an operator: an attribute of old versions, or input `at`. `None`: they
    /// are not given.
    pub(super) fn axes(&self, at: usize) -> Result<Option<Vec<i64>>, RowCause> {
        match (self.node.ints("axes"), self.optional(at)) {
            (Some(axes), _) => Ok(Some(axes.to_vec())),
            (None, None) => Ok(None),
            (None, Some(axes)) => match axes.ints() {
                Some(axes) => Ok(Some(axes)),
                None => unknown("its axes are computed"),
            },
        }
    }

    /// Returns a finding at this operator.
    pub(super) fn finding(&self, cause: RowCause) -> RowRelation {
        RowRelation::Broken(Arc::new(RowFinding::at(self.node, cause)))
    }

    /// Returns outputs of this shape for each output of the operator.
    pub(super) fn like(&self, shape: &[Dim], rows: &RowRelation) -> Made {
        let one = RowValue::new(shape.to_vec(), rows.clone());
        Ok(vec![one; self.node.output.len().max(1)])
    }

    /// Returns the row axis of plain values of an input, and its dimensions.
    pub(super) fn plain(&self, at: usize) -> Result<(&[Dim], &RowAxis), RowCause> {
        let input = self.input(at)?;
        match input.axis() {
            Some(axis) if axis.content == RowContent::Plain => Ok((dims_of(input)?, axis)),
            Some(_) => meet(BY_POSITION),
            None if input.rows == RowRelation::Count => meet(BY_COUNT),
            None if self.given().all(RowValue::is_constant) => match dims_of(input)? {
                [] => unknown("it is a scalar"),
                dims => Ok((dims, self.first_axis)),
            },
            None => unknown("its data are the same for all rows, and its parameters are not"),
        }
    }
}

/// The reason why values must not depend on the number of rows.
pub(super) const BY_COUNT: &str = "its values depend on the number of rows";
/// The reason why values must not depend on the position of a row.
pub(super) const BY_POSITION: &str = "its values depend on a row's position in the batch";

/// Returns the dimensions of a tensor.
pub(super) fn dims_of(value: &RowValue) -> Result<&[Dim], RowCause> {
    value.shape.as_deref().map_or_else(|| unknown("the number of dimensions of an input is not known"), Ok)
}

/// Returns an axis as an index from the front.
pub(super) fn normal(at: i64, rank: usize) -> Result<usize, RowCause> {
    axis(at, rank).map_or_else(|| unknown(format!("its axis {at} is not one of {rank}")), Ok)
}

/// Returns the shape and the rows of tensors that broadcast. Shapes count from the back.
pub(super) fn broadcast(call: &RowCall<'_>, inputs: &[&RowValue]) -> Result<(Vec<Dim>, RowRelation), RowCause> {
    if inputs.iter().any(|input| input.rows == RowRelation::Count) {
        return meet(BY_COUNT);
    }
    let shapes = inputs.iter().map(|input| dims_of(input)).collect::<Result<Vec<_>, _>>()?;
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut out = vec![Dim::known(1); rank];
    for shape in &shapes {
        for (dim, other) in out[rank - shape.len()..].iter_mut().zip(*shape) {
            *dim = broadcast_dim(call, dim, other);
        }
    }
    let along = inputs.iter().zip(&shapes).filter_map(|(input, shape)| {
        let axis = input.axis()?;
        Some((axis.at(axis.axis + rank - shape.len()), &shape[axis.axis]))
    });
    let along: Vec<(RowAxis, &Dim)> = along.collect();
    let Some((rows, size)) = along.first() else { return Ok((out, RowRelation::Constant)) };
    if along.iter().any(|(other, _)| other.axis != rows.axis) {
        return meet(CROSSED);
    }
    if along.iter().any(|(other, other_size)| other.inner != rows.inner || other_size != size) {
        return unknown("its inputs hold rows in different order");
    }
    let fixed = inputs.iter().zip(&shapes).filter(|(input, _)| input.axis().is_none());
    for (_, shape) in fixed {
        let at = (rows.axis + shape.len()).checked_sub(rank);
        if at.is_some_and(|at| !shape[at].is(1)) {
            return meet(FIXED);
        }
    }
    out[rows.axis] = (*size).clone();
    if out.iter().enumerate().any(|(at, dim)| at != rows.axis && has_batch(dim)) {
        return meet(CROSSED);
    }
    Ok((out, RowRelation::Along(rows.clone())))
}

/// Returns the smaller one of two sizes.
pub(super) fn clipped(size: &Dim, most: &Dim) -> Option<Dim> {
    Dim::opaque(&format!("min({size}, {most})"))
}

/// Whether a size is another one, or a number above 1 if that is smaller. Broadcast with the other,
/// it is that.
fn is_clip(size: &Dim, of: &Dim) -> bool {
    let name = size.to_string();
    let most = name.strip_prefix(&format!("min({of}, ")).and_then(|rest| rest.strip_suffix(')'));
    most.and_then(|most| most.parse::<i64>().ok()).is_some_and(|most| most > 1)
}

/// Returns the size that two sizes broadcast to. Where neither is known to be 1 or the result, it
/// is a new size.
fn broadcast_dim(call: &RowCall<'_>, a: &Dim, b: &Dim) -> Dim {
    match (a.value(), b.value()) {
        _ if a == b => a.clone(),
        (Some(1), _) => b.clone(),
        (_, Some(1)) => a.clone(),
        (Some(_), None) => a.clone(),
        (None, Some(_)) => b.clone(),
        _ if is_clip(b, a) => a.clone(),
        _ if is_clip(a, b) => b.clone(),
        _ => call.fresh(),
    }
}
