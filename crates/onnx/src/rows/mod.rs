//! Proof from the graph that the rows of a batch are independent, or the operator at which they
//! meet.
//!
//! # What is proved
//! An output is [`Independent`](RowVerdict::Independent) if row `i` of it is a function of row `i`
//! of the inputs alone: neither of other rows, nor of the number of rows, nor of a row's position.
//! Then each client's answer is the same in any batch, but for rounding.
//!
//! # How
//! `walk` visits the operators in order and keeps a [`RowValue`](value::RowValue) for each tensor.
//! It says along which axis the rows stand, and how many elements of a row stand side by side. So
//! `[batch, time, width]` reshaped to `[batch * time, width]` and back is followed. Sizes are
//! [`Dim`]s, and tensors of sizes are computed, since exported graphs reshape by `Shape`. The first
//! operator of which the rule is broken ends the proof for all that depend on it.
//!
//! # What always holds
//! An operator without a rule is never assumed to be row by row: its outputs are unknown, unless
//! all its inputs are the same for any batch. Dimensions that a rule cannot compute get new
//! symbols, which equal no other size. Shapes that the file declares between operators may be
//! wrong and are not used. All rules hold for sizes of at least 1.
//!
//! # What was rejected
//! A proof by trials: effects of larger batches or of certain values stay hidden. Shape inference
//! of `shapes/`, apart from windows: it assumes sizes where the slicer may.

mod attention;
mod call;
mod catalogue;
mod control;
mod elementwise;
mod indexing;
mod inputs;
mod layout;
mod learned;
mod linear;
mod normal;
mod one_row;
mod other_axis;
mod pieces;
mod quantised;
#[cfg(test)]
mod random;
#[cfg(test)]
mod random_graphs;
mod recurrent;
mod reduce;
mod resize;
mod scope;
mod sizes;
#[cfg(test)]
mod tests;
mod value;
mod walk;
mod windows;

use crate::dim::Dim;
use crate::file::OnnxFile;
use crate::proto::NodeProto;
use call::RowCause;
pub(crate) use one_row::{KnownTensor, known_of_one_row};
pub use other_axis::other_batch_dims;
use std::fmt;
use value::{RowRelation, RowValue};

/// Result of the analysis for one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowVerdict {
    /// Each row depends on the same row of the inputs only.
    Independent,
    /// Rows depend on each other, or on their number.
    Meet(RowFinding),
    /// The analysis cannot tell.
    Unknown(RowFinding),
}

/// The operator at which the proof ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFinding {
    /// Whether rows meet, or the analysis cannot tell.
    pub kind: RowFindingKind,
    /// Type of the operator; `input` or `output` for a tensor of the graph.
    pub operator: String,
    /// Name of the node, or of its first output if it has no name.
    pub node: String,
    /// The reason, as a clause.
    pub why: String,
}

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFindingKind {
    /// Rows meet.
    Meet,
    /// The analysis cannot tell.
    Unknown,
}

/// Result of the analysis of a graph.
#[derive(Clone, Debug)]
pub struct RowAnalysis {
    /// Verdicts by output, in the order of the graph.
    pub outputs: Vec<(String, RowVerdict)>,
    /// The first input that cannot be joined with inputs of other requests.
    pub input: Option<RowFinding>,
}

impl RowFinding {
    fn at(node: &NodeProto, cause: RowCause) -> RowFinding {
        let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
        let operator = node.op_type.clone();
        RowFinding { kind: cause.kind, operator, node: name.cloned().unwrap_or_default(), why: cause.why }
    }

    fn of_tensor(operator: &str, name: &str, kind: RowFindingKind, why: impl Into<String>) -> RowFinding {
        RowFinding { kind, operator: operator.to_owned(), node: name.to_owned(), why: why.into() }
    }

    /// Whether rows meet in a dynamic quantisation, which takes one scale from all of them. Their
    /// effect on each other is a rounding error, which an owner may accept.
    pub fn is_quantisation(&self) -> bool {
        self.kind == RowFindingKind::Meet && self.operator.starts_with("DynamicQuantize")
    }
}

impl RowVerdict {
    /// Returns the verdict on two graphs of one model: the worse one.
    pub fn and(self, other: RowVerdict) -> RowVerdict {
        match (self, other) {
            (meet @ RowVerdict::Meet(_), _) | (_, meet @ RowVerdict::Meet(_)) => meet,
            (unknown @ RowVerdict::Unknown(_), _) | (_, unknown @ RowVerdict::Unknown(_)) => unknown,
            _ => RowVerdict::Independent,
        }
    }

    /// Returns the verdict on what the analysis cannot read.
    pub fn unread(what: &str, why: impl Into<String>) -> RowVerdict {
        RowVerdict::Unknown(RowFinding::of_tensor("file", what, RowFindingKind::Unknown, why))
    }
}

impl fmt::Display for RowFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}': {}", self.operator, self.node, self.why)
    }
}

impl RowAnalysis {
    /// Returns the verdict on the whole graph: rows meet if they meet in one output.
    pub fn verdict(&self) -> RowVerdict {
        let of_output = |(_, verdict): &(String, RowVerdict)| match verdict {
            RowVerdict::Independent => None,
            RowVerdict::Meet(finding) | RowVerdict::Unknown(finding) => Some(finding.clone()),
        };
        let findings: Vec<RowFinding> =
            self.input.iter().cloned().chain(self.outputs.iter().filter_map(of_output)).collect();
        let meet = findings.iter().find(|finding| finding.kind == RowFindingKind::Meet);
        match (meet, findings.first()) {
            (Some(finding), _) => RowVerdict::Meet(finding.clone()),
            (None, Some(finding)) => RowVerdict::Unknown(finding.clone()),
            (None, None) => RowVerdict::Independent,
        }
    }
}

/// Analyses a graph whose batch is the first dimension of each input and output.
pub fn analyse_rows(file: &OnnxFile) -> RowAnalysis {
    analyse_rows_at(file, &|_| 0)
}

/// Analyses a graph whose batch is the dimension `axis_of` of an input or output of this name.
pub fn analyse_rows_at(file: &OnnxFile, axis_of: &dyn Fn(&str) -> usize) -> RowAnalysis {
    let (values, input) = inputs::given(file.graph(), axis_of);
    let found = walk::run(file, values);
    let outputs = file.graph().output.iter().map(|info| {
        let verdict = match found.get(&info.name) {
            Some(value) => of_output(&info.name, value, axis_of(&info.name)),
            None => RowVerdict::Unknown(RowFinding::of_tensor(
                "output",
                &info.name,
                RowFindingKind::Unknown,
                "no operator computes it",
            )),
        };
        (info.name.clone(), verdict)
    });
    RowAnalysis { outputs: outputs.collect(), input }
}

/// Returns the verdict on a tensor that is an output with its batch at `axis`.
fn of_output(name: &str, value: &RowValue, axis: usize) -> RowVerdict {
    let meet = |why: &str| RowVerdict::Meet(RowFinding::of_tensor("output", name, RowFindingKind::Meet, why));
    let is_batch = |axis: usize| value.shape.as_ref().and_then(|shape| shape.get(axis)).is_some_and(Dim::is_batch);
    match &value.rows {
        RowRelation::Broken(finding) => match finding.kind {
            RowFindingKind::Meet => RowVerdict::Meet((**finding).clone()),
            RowFindingKind::Unknown => RowVerdict::Unknown((**finding).clone()),
        },
        RowRelation::Along(rows) if rows.content != value::RowContent::Plain => meet(call::BY_POSITION),
        RowRelation::Along(rows) if rows.axis == axis && is_batch(axis) => RowVerdict::Independent,
        RowRelation::Along(rows) if rows.axis == axis => meet("it has another number of rows than the inputs"),
        RowRelation::Along(rows) => meet(&format!("its rows stand along dimension {}", rows.axis)),
        RowRelation::Constant => meet("it is the same for all rows and has no batch dimension"),
        RowRelation::Count => meet(call::BY_COUNT),
    }
}
