//! One step of LSTM, GRU and RNN in plain operators. All gates share one matrix product if the
//! formulas allow it.

use super::draft::CellDraft;
use crate::error::{OnnxError, refuse};
use crate::graph::{OnnxModel, OpNode};

/// Largest width of a layer. A wider layer indicates a damaged file.
const MAX_WIDTH: usize = 1 << 20;

/// A recurrent operator whose step can be generated.
pub(super) struct Recurrence {
    kind: CellKind,
    pub(super) hidden: usize,
    inputs: usize,
    pub(super) directions: usize,
    /// Weights of shapes [direction, gate, hidden, input], [direction, gate, hidden, hidden] and
    /// [direction, 2, gate, hidden].
    weights: [Vec<f32>; 3],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CellKind {
    Lstm,
    /// A GRU. ONNX's `linear_before_reset` tells whether the reset gate is applied after the
    /// product.
    Gru {
        linear_before_reset: bool,
    },
    Rnn {
        relu: bool,
    },
}

impl CellKind {
    fn gates(self) -> usize {
        match self {
            CellKind::Lstm => 4,
            CellKind::Gru { .. } => 3,
            CellKind::Rnn { .. } => 1,
        }
    }
}

impl Recurrence {
    /// Reads the operator's settings and weights. Refuses settings that a step cannot implement.
    pub(super) fn read(model: &OnnxModel, node: &OpNode) -> Result<Recurrence, OnnxError> {
        let label = node.proto.label();
        let no = |what: &str| refuse(format!("{label} has {what}, which cells do not have"));
        let given = |at: usize| node.inputs.get(at).copied().flatten();
        if given(4).is_some() {
            return no("an input of sequence lengths");
        }
        if given(7).is_some() {
            return no("peepholes");
        }
        if node.proto.attr("clip").is_some() || node.proto.int("input_forget", 0) != 0 {
            return no("a clip or coupled gates");
        }
        if node.proto.int("layout", 0) != 0 {
            return no("the batch first inside");
        }
        if node.proto.text("direction") == "reverse" {
            return no("the direction 'reverse' alone");
        }
        if let Some(state) = [5, 6].into_iter().find_map(|at| given(at).filter(|&state| !is_zero(model, state, 0))) {
            return no(&format!("the initial state '{}'", model.values[state].name));
        }
        let kind = kind(node)?;
        let weight = |at: usize| given(at).and_then(|value| model.values[value].weight);
        let (Some(w), Some(r)) = (weight(1), weight(2)) else {
            return refuse(format!("the weights of {label} are computed: export it with constants folded"));
        };
        let bias = match (given(3), weight(3)) {
            (Some(_), None) => {
                return refuse(format!("the bias of {label} is computed: export it with constants folded"));
            }
            (_, bias) => bias.map(|bias| model.weight_floats(bias)).transpose()?,
        };
        let (w_dims, r_dims) = (&model.weights[w].dims, &model.weights[r].dims);
        let size = |dims: &[i64], at: usize| dims.get(at).and_then(|&dim| usize::try_from(dim).ok()).unwrap_or(0);
        let (directions, inputs, hidden) = (size(w_dims, 0), size(w_dims, 2), size(r_dims, 2));
        let misfit = || OnnxError(format!("{label} has weights of shapes that do not fit each other: export it anew"));
        if !(1..=2).contains(&directions) || ![inputs, hidden].iter().all(|size| (1..=MAX_WIDTH).contains(size)) {
            return Err(misfit());
        }
        let (w, r) = (model.weight_floats(w)?, model.weight_floats(r)?);
        let rows = directions * kind.gates() * hidden;
        let bias = bias.unwrap_or_else(|| vec![0.0; 2 * rows]);
        if w.len() != rows * inputs || r.len() != rows * hidden || bias.len() != 2 * rows {
            return Err(misfit());
        }
        Ok(Recurrence { kind, hidden, inputs, directions, weights: [w, r, bias] })
    }

    /// Returns the names of a step's states, in the order of the operator's outputs.
    pub(super) fn states(&self) -> &'static [&'static str] {
        if self.kind == CellKind::Lstm { &["h", "c"] } else { &["h"] }
    }

    /// Adds the step of one direction, from `x`, `h` (and `c`) to `h_next` (and `c_next`).
    pub(super) fn step(&self, draft: &mut CellDraft, x: &str, direction: usize) {
        let hidden = self.hidden;
        match self.kind {
            CellKind::Lstm => {
                self.dense(draft, &[x, "h"], direction, 0..4, "gates");
                draft.split("gates", &["i_in", "o_in", "f_in", "g_in"], hidden);
                for (from, op, to) in [
                    ("i_in", "Sigmoid", "i"),
                    ("o_in", "Sigmoid", "o"),
                    ("f_in", "Sigmoid", "f"),
                    ("g_in", "Tanh", "g"),
                ] {
                    draft.op(op, &[from], to);
                }
                draft.op("Mul", &["f", "c"], "kept");
                draft.op("Mul", &["i", "g"], "added");
                draft.op("Add", &["kept", "added"], "c_next");
                draft.op("Tanh", &["c_next"], "c_out");
                draft.op("Mul", &["o", "c_out"], "h_next");
            }
            CellKind::Gru { linear_before_reset } => {
                self.dense(draft, &[x, "h"], direction, 0..2, "gates");
                draft.op("Sigmoid", &["gates"], "opened");
                draft.split("opened", &["z", "r"], hidden);
                if linear_before_reset {
                    self.third_gate(draft, x, direction, 0, "n_x");
                    self.third_gate(draft, "h", direction, 1, "n_h");
                    draft.op("Mul", &["r", "n_h"], "n_reset");
                    draft.op("Add", &["n_x", "n_reset"], "n_in");
                } else {
                    draft.op("Mul", &["r", "h"], "h_reset");
                    self.dense(draft, &[x, "h_reset"], direction, 2..3, "n_in");
                }
                draft.op("Tanh", &["n_in"], "n");
                draft.op("Sub", &["h", "n"], "gap");
                draft.op("Mul", &["z", "gap"], "held");
                draft.op("Add", &["n", "held"], "h_next");
            }
            CellKind::Rnn { relu } => {
                self.dense(draft, &[x, "h"], direction, 0..1, "sum");
                draft.op(if relu { "Relu" } else { "Tanh" }, &["sum"], "h_next");
            }
        }
    }

    /// Adds one matrix product of the input and the state together, for some of the gates.
    fn dense(
        &self,
        draft: &mut CellDraft,
        [x, h]: &[&str; 2],
        direction: usize,
        gates: std::ops::Range<usize>,
        to: &str,
    ) {
        let columns: Vec<usize> = gates.flat_map(|gate| gate * self.hidden..(gate + 1) * self.hidden).collect();
        let both = [(0, self.inputs), (1, self.hidden)];
        let matrix =
            both.iter().flat_map(|&(side, rows)| self.turned(side, rows, direction, &columns)).collect::<Vec<_>>();
        let bias: Vec<f32> =
            columns.iter().map(|&at| self.bias(0, direction, at) + self.bias(1, direction, at)).collect();
        let (joined, product) = (format!("{to}_joined"), format!("{to}_product"));
        draft.join(&[x, h], &joined);
        draft.matrix(&format!("{to}_w"), self.inputs + self.hidden, &matrix);
        draft.vector(&format!("{to}_b"), &bias);
        draft.op("MatMul", &[&joined, &format!("{to}_w")], &product);
        draft.op("Add", &[&product, &format!("{to}_b")], to);
    }

    /// Adds the third gate's matrix product of the input (side 0) or the state (side 1) only.
    fn third_gate(&self, draft: &mut CellDraft, from: &str, direction: usize, side: usize, to: &str) {
        let columns: Vec<usize> = (2 * self.hidden..3 * self.hidden).collect();
        let rows = [self.inputs, self.hidden][side];
        let matrix: Vec<f32> = self.turned(side, rows, direction, &columns).collect();
        let bias: Vec<f32> = columns.iter().map(|&at| self.bias(side, direction, at)).collect();
        let product = format!("{to}_product");
        draft.matrix(&format!("{to}_w"), rows, &matrix);
        draft.vector(&format!("{to}_b"), &bias);
        draft.op("MatMul", &[from, &format!("{to}_w")], &product);
        draft.op("Add", &[&product, &format!("{to}_b")], to);
    }

    fn turned<'a>(
        &'a self,
        side: usize,
        rows: usize,
        direction: usize,
        columns: &'a [usize],
    ) -> impl Iterator<Item = f32> + 'a {
        let all = self.kind.gates() * self.hidden;
        let weights = &self.weights[side];
        (0..rows)
            .flat_map(move |row| columns.iter().map(move |&column| weights[(direction * all + column) * rows + row]))
    }

    fn bias(&self, side: usize, direction: usize, at: usize) -> f32 {
        let all = self.kind.gates() * self.hidden;
        self.weights[2][(direction * 2 + side) * all + at]
    }
}

fn kind(node: &OpNode) -> Result<CellKind, OnnxError> {
    let named = node.proto.attr("activations").map(|attribute| {
        attribute.strings.iter().map(|name| String::from_utf8_lossy(name).to_lowercase()).collect::<Vec<_>>()
    });
    let activations = named.unwrap_or_default();
    let all = |usual: &[&str]| activations.chunks(usual.len()).all(|chunk| chunk == usual);
    match &*node.proto.op_type {
        "LSTM" if all(&["sigmoid", "tanh", "tanh"]) => Ok(CellKind::Lstm),
        "GRU" if all(&["sigmoid", "tanh"]) => {
            Ok(CellKind::Gru { linear_before_reset: node.proto.int("linear_before_reset", 0) != 0 })
        }
        "RNN" if all(&["tanh"]) => Ok(CellKind::Rnn { relu: false }),
        "RNN" if all(&["relu"]) => Ok(CellKind::Rnn { relu: true }),
        _ => refuse(format!("{} has unusual activations: {}", node.proto.label(), activations.join(", "))),
    }
}

/// Whether a value is zeros for every request: a weight of zeros, or an expression that exporters
/// write for zeros.
fn is_zero(model: &OnnxModel, value: usize, depth: usize) -> bool {
    const KEEPS: [&str; 9] =
        ["Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Split"];
    let value = &model.values[value];
    if let Some(weight) = value.weight {
        return model.weight_floats(weight).is_ok_and(|floats| floats.iter().all(|&float| float == 0.0));
    }
    let Some(node) = value.node.map(|node| &model.nodes[node]).filter(|_| depth < 16) else { return false };
    match &*node.proto.op_type {
        "ConstantOfShape" => {
            let fill = node.proto.attr("value").and_then(|attribute| attribute.t.as_deref());
            fill.is_none_or(|fill| {
                let raw = fill.raw_data.as_ref().is_none_or(|raw| raw.iter().all(|&byte| byte == 0));
                raw && fill.float_data.iter().all(|&float| float == 0.0)
            })
        }
        name if KEEPS.contains(&name) => {
            node.inputs.first().copied().flatten().is_some_and(|input| is_zero(model, input, depth + 1))
        }
        _ => false,
    }
}
