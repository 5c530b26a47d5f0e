//! A dynamic batch dimension for a file that an exporter fixed to one row.
//!
//! Exporters fix the batch to 1 unless told otherwise. Most operators take more rows all the same.
//! What does not are constants that an exporter computed for one row: the target of a `Reshape`, a
//! token that is put before each sequence, the first state of a recurrent operator. They are
//! rewritten here. The result is a candidate only: `rows` must not find rows that meet in it, and
//! it must be tried whether it computes each row as the file does.

use crate::error::{OnnxError, refuse};
use crate::file::OnnxFile;
use crate::proto::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use crate::rows::{KnownTensor, known_of_one_row};
use crate::weights::{float_elements, inline_all, int_tensor};
use prost::Message;
use std::collections::{HashMap, HashSet};

/// Version of the rewriting, for the keys of cached files.
pub const OPEN_BATCH_VERSION: u32 = 2;
/// Name of the batch dimension.
const BATCH: &str = "batch";

/// Returns the file with a dynamic first dimension at all inputs and outputs, and with all weights
/// inside. The error says why it cannot have one.
pub fn open_batch(file: &OnnxFile) -> Result<Vec<u8>, OnnxError> {
    let mut graph = file.graph().clone();
    let given: HashSet<String> = graph.initializer.iter().map(|weight| weight.name.clone()).collect();
    for info in graph.input.iter_mut().filter(|info| !given.contains(&info.name)) {
        open_first("input", info)?;
    }
    graph.output.iter_mut().try_for_each(|info| open_first("output", info))?;
    // Shapes between the operators are shapes of one row.
    graph.value_info.clear();
    inline_all(&mut graph, file)?;
    rewrite(&mut graph, &given, &known_of_one_row(file));
    Ok(ModelProto { graph: Some(graph), ..file.model.clone() }.encode_to_vec())
}

/// Makes a first dimension of 1 dynamic.
fn open_first(kind: &str, info: &mut ValueInfoProto) -> Result<(), OnnxError> {
    let shape = info.r#type.as_mut().and_then(|of| of.tensor_type.as_mut()).and_then(|tensor| tensor.shape.as_mut());
    let name = &info.name;
    match shape.and_then(|shape| shape.dim.first_mut()) {
        None => refuse(format!("{kind} '{name}' has no first dimension")),
        Some(dim) => match dim.fixed() {
            Some(1) | None => {
                (dim.dim_value, dim.dim_param) = (None, Some(BATCH.to_owned()));
                Ok(())
            }
            Some(size) => refuse(format!("{kind} '{name}' has a fixed first dimension {size}")),
        },
    }
}

/// Replaces the constants that hold for one row only.
fn rewrite(graph: &mut GraphProto, given: &HashSet<String>, known: &HashMap<String, KnownTensor>) {
    let Some(first) = graph.input.iter().map(|info| info.name.clone()).find(|name| !given.contains(name)) else {
        return;
    };
    let constants = constants(graph);
    let tensors = OneRow { known, of_request: of_request(graph, given) };
    let mut made = Vec::new();
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        match &*node.op_type {
            _ if !node.is_standard() => {}
            "Reshape" if node.input.first().is_some_and(|data| tensors.of_request.contains(data)) => {
                let zeros = node.int("allowzero", 0) != 0;
                let target = node.input.get(1).and_then(|name| known.get(name)?.ints.clone());
                // Without a size of 0, the attribute says nothing. The new target may copy sizes.
                let target = target.filter(|target| !zeros || !target.contains(&0));
                let dims = known.get(&node.input[0]).and_then(|data| data.dims.as_deref());
                if let Some(open) = target.and_then(|target| open_target(&target, dims.unwrap_or_default())) {
                    node.attribute.retain(|attribute| attribute.name != "allowzero");
                    let name = format!("{}.any_batch", node.output.first().map_or("", String::as_str));
                    made.push(int_tensor(&name, &open));
                    node.input[1] = name;
                }
            }
            "LSTM" | "GRU" | "RNN" => drop_zero_states(&mut node, &constants),
            "Concat" if node.int("axis", 0) > 0 => repeat_rows(&mut node, &tensors, &first, &mut nodes, &mut made),
            _ => {}
        }
        nodes.push(node);
    }
    graph.node = nodes;
    graph.initializer.append(&mut made);
}

/// Returns the constants of a graph by name.
fn constants(graph: &GraphProto) -> HashMap<String, TensorProto> {
    let weights = graph.initializer.iter().map(|weight| (weight.name.clone(), weight.clone()));
    let nodes = graph.node.iter().filter(|node| node.op_type == "Constant" && node.is_standard());
    let of_node = |node: &NodeProto| Some((node.output.first()?.clone(), *node.attr("value")?.t.clone()?));
    weights.chain(nodes.filter_map(of_node)).collect()
}

/// Returns the target of a `Reshape` for any number of rows; `None` if it already is. `dims` are
/// the dimensions of the data, as far as they are known.
fn open_target(target: &[i64], dims: &[Option<i64>]) -> Option<Vec<i64>> {
    let mut open = target.to_vec();
    if let Some(at) = behind_others(target, dims) {
        open[at] = -1;
        return Some(open);
    }
    if target.contains(&-1) {
        // The batch is copied from the input.
        return (target.first() == Some(&1)).then(|| {
            open[0] = 0;
            open
        });
    }
    // A first size above 1 is a batch together with another dimension, unless the batch is second.
    let at = if target.first() != Some(&1) && target.get(1) == Some(&1) { 1 } else { 0 };
    *open.get_mut(at).filter(|size| **size > 0)? = -1;
    Some(open)
}

/// Returns the place of the batch in a target whose data have other dimensions before it: where as
/// many elements are before it as in the data. In a matrix for a product it joins the first
/// dimension.
fn behind_others(target: &[i64], dims: &[Option<i64>]) -> Option<usize> {
    let place = dims.iter().position(|dim| *dim == Some(1)).filter(|place| *place > 0)?;
    let before = dims[..place].iter().try_fold(1i64, |all, dim| all.checked_mul((*dim)?))?;
    let above = |at: &usize| target[..*at].iter().try_fold(1i64, |all, &size| all.checked_mul(size)) == Some(before);
    if let [_, width] = *target
        && dims[place + 1..].iter().try_fold(1i64, |all, dim| all.checked_mul((*dim)?)) == Some(width)
    {
        return (width > 0).then_some(0);
    }
    (0..target.len()).find(above).filter(|&at| !target.contains(&-1) && target[at] > 0)
}

/// Removes first states of zeros, which are the default for any number of rows.
fn drop_zero_states(node: &mut NodeProto, constants: &HashMap<String, TensorProto>) {
    for state in node.input.iter_mut().skip(5).take(2) {
        let elements = constants.get(state).and_then(float_elements);
        if elements.is_some_and(|elements| elements.iter().all(|&element| element == 0.0)) {
            state.clear();
        }
    }
}

/// The tensors of a graph for one row.
struct OneRow<'a> {
    known: &'a HashMap<String, KnownTensor>,
    /// Names of the tensors that depend on the values of a request.
    of_request: HashSet<String>,
}

impl OneRow<'_> {
    /// Returns the number of dimensions of a constant whose first one is a row; `None` for any
    /// other tensor.
    fn rank_of_row(&self, name: &str) -> Option<usize> {
        let dims = self.known.get(name).filter(|_| !self.of_request.contains(name))?.dims.as_ref()?;
        (dims.first() == Some(&Some(1))).then_some(dims.len())
    }
}

/// Returns the names of the tensors that depend on the values of a request.
fn of_request(graph: &GraphProto, given: &HashSet<String>) -> HashSet<String> {
    let mut names: HashSet<String> =
        graph.input.iter().map(|info| info.name.clone()).filter(|name| !given.contains(name)).collect();
    for node in graph.node.iter().filter(|node| !matches!(&*node.op_type, "Shape" | "Size")) {
        let holds_graph = node.attribute.iter().any(|attribute| attribute.g.is_some());
        if holds_graph || node.input.iter().any(|name| names.contains(name)) {
            names.extend(node.output.iter().cloned());
        }
    }
    names
}

/// Repeats constants of one row that are joined to each row.
fn repeat_rows(
    node: &mut NodeProto,
    tensors: &OneRow<'_>,
    first: &str,
    nodes: &mut Vec<NodeProto>,
    made: &mut Vec<TensorProto>,
) {
    let rank = |name: &String| tensors.rank_of_row(name);
    let is_row = |name: &String| rank(name).is_some();
    if node.input.iter().all(is_row) {
        return;
    }
    let label = node.output.first().cloned().unwrap_or_default();
    for (at, name) in node.input.iter_mut().enumerate().filter(|(_, name)| is_row(name)) {
        let part = |what: &str| format!("{label}.{what}{at}");
        let [shape, index, rows, rest, target, repeated] =
            ["shape", "index", "rows", "rest", "target", "repeated"].map(part);
        made.push(int_tensor(&index, &[0]));
        made.push(int_tensor(&rest, &vec![1; rank(name).unwrap_or(1) - 1]));
        nodes.push(NodeProto::new("Shape", &[first], &[&shape]));
        nodes.push(NodeProto::new("Gather", &[&shape, &index], &[&rows]));
        nodes.push(NodeProto::new("Concat", &[&rows, &rest], &[&target]).with_int("axis", 0));
        nodes.push(NodeProto::new("Expand", &[name, &target], &[&repeated]));
        *name = repeated;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Draft, axis};
    use crate::proto::elem;
    use crate::rows::{RowVerdict, analyse_rows};
    use crate::weights::small_ints;
    use std::path::Path;

    fn opened(draft: &Draft) -> Result<OnnxFile, OnnxError> {
        let path = Path::new("m.onnx");
        OnnxFile::parse(open_batch(&OnnxFile::parse(draft.encode(), path)?)?, path)
    }

    fn target(file: &OnnxFile, node: usize) -> Vec<i64> {
        let name = &file.graph().node[node].input[1];
        let weight = file.graph().initializer.iter().find(|weight| weight.name == *name);
        small_ints(weight.expect("the target is a weight")).unwrap()
    }

    #[test]
    fn constants_for_one_row_hold_for_any_number() {
        let mut draft = Draft::default();
        draft.input("x", elem::FLOAT, &[1, 4, 8]);
        draft.weight("token", &[1, 1, 8]);
        draft.ints("heads", &[1, 5, 2, 4]);
        draft.ints("flat", &[1, -1]);
        draft.op("Concat", &["token", "x"], &["longer"]).attribute = axis(1);
        draft.op("Reshape", &["longer", "heads"], &["split"]);
        draft.op("Reshape", &["split", "flat"], &["y"]);
        draft.output("y", &[1, 40]);
        let file = opened(&draft).unwrap();
        let declared = crate::Declared::of(&file).unwrap();
        assert_eq!(
            (declared.inputs[0].shape.clone(), declared.outputs[0].shape.clone()),
            (vec![-1, 4, 8], vec![-1, 40])
        );
        assert_eq!(declared.no_batch, None);
        let kinds: Vec<&str> = file.graph().node.iter().map(|node| &*node.op_type).collect();
        assert_eq!(kinds, ["Shape", "Gather", "Concat", "Expand", "Concat", "Reshape", "Reshape"]);
        assert_eq!((target(&file, 5), target(&file, 6)), (vec![-1, 5, 2, 4], vec![0, -1]));
        assert_eq!(file.graph().node[4].input, ["longer.repeated0", "x"]);
    }

    #[test]
    fn targets_and_tokens_that_are_computed_from_constants_are_opened() {
        let mut draft = Draft::default();
        draft.input("x", elem::FLOAT, &[1, 4, 8]);
        draft.weight("token", &[1, 1, 8]);
        for (name, list) in [("one", &[1][..]), ("rest", &[5, 8]), ("row", &[1, 1, 8]), ("flat", &[1, 40])] {
            draft.ints(name, list);
        }
        draft.op("Expand", &["token", "row"], &["tokens"]);
        draft.op("Concat", &["tokens", "x"], &["longer"]).attribute = axis(1);
        draft.op("Concat", &["one", "rest"], &["target"]).attribute = axis(0);
        draft.op("Reshape", &["longer", "target"], &["same"]);
        *draft.op("Reshape", &["same", "flat"], &["y"]) =
            NodeProto::new("Reshape", &["same", "flat"], &["y"]).with_int("allowzero", 1);
        draft.output("y", &[1, 40]);
        let file = opened(&draft).unwrap();
        let kinds: Vec<&str> = file.graph().node.iter().map(|node| &*node.op_type).collect();
        assert_eq!(kinds, ["Expand", "Shape", "Gather", "Concat", "Expand", "Concat", "Concat", "Reshape", "Reshape"]);
        assert_eq!((target(&file, 7), target(&file, 8)), (vec![-1, 5, 8], vec![-1, 40]));
        assert_eq!(analyse_rows(&file).verdict(), RowVerdict::Independent);
    }

    #[test]
    fn a_first_dimension_that_is_no_single_row_stays() {
        for (dims, why) in [(&[2, 3][..], "has a fixed first dimension 2"), (&[], "has no first dimension")] {
            let mut draft = Draft::default();
            draft.input("x", elem::FLOAT, dims);
            draft.op("Relu", &["x"], &["y"]);
            draft.output("y", dims);
            let refused = opened(&draft).unwrap_err().to_string();
            assert_eq!(refused, format!("input 'x' {why}"));
        }
    }

    #[test]
    fn targets_keep_what_is_not_the_batch() {
        assert_eq!(open_target(&[50, 12, 64], &[Some(50), Some(1), Some(768)]), Some(vec![50, -1, 64]));
        let heads = [Some(50), Some(1), Some(12), Some(64)];
        assert_eq!(open_target(&[50, 768], &heads), Some(vec![-1, 768]));
        let cases: [(&[i64], Option<&[i64]>); 6] = [
            (&[1, 12, 64], Some(&[-1, 12, 64])),
            (&[1, -1, 64], Some(&[0, -1, 64])),
            (&[-1, 64], None),
            (&[49, 1, 64], Some(&[49, -1, 64])),
            (&[12, 49, 32], Some(&[-1, 49, 32])),
            (&[0, 0, 64], None),
        ];
        for (from, to) in cases {
            assert_eq!(open_target(from, &[]).as_deref(), to, "{from:?}");
        }
    }
}
