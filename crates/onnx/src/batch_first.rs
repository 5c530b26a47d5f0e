//! Files whose batch is not the first dimension of each tensor, for example recurrent models in the
//! layout [time, batch, features].
//!
//! All else assumes rows in the first dimension. Instead of a second layout everywhere, the file is
//! given transpositions at its inputs and outputs, which any engine runs. The batch cannot be found
//! from the file, so its place is declared; whether rows are independent there is tried as always.

use crate::error::{OnnxError, refuse};
use crate::file::OnnxFile;
use crate::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::weights::inline_all;
use prost::Message;
use std::collections::HashMap;

/// Version of the rewriting, for the keys of cached files.
pub const BATCH_FIRST_VERSION: u32 = 1;

/// Returns the file with the batch as the first dimension of these tensors, given by name and the
/// index of their batch dimension, and with all weights inside.
pub fn batch_first(file: &OnnxFile, dims: &[(String, usize)]) -> Result<Vec<u8>, OnnxError> {
    let mut graph = file.graph().clone();
    // Shapes between the operators may name what is renamed.
    graph.value_info.clear();
    inline_all(&mut graph, file)?;
    let (mut before, mut after, mut names) = (Vec::new(), Vec::new(), HashMap::new());
    for (name, dim) in dims {
        let inner = format!("{name}.as_in_the_file");
        if let Some(info) = graph.input.iter_mut().find(|info| info.name == *name) {
            let rank = move_to_first(info, *dim)?;
            before
                .push(NodeProto::new("Transpose", &[name], &[&inner]).with_ints("perm", &back_from_first(rank, *dim)));
        } else if let Some(info) = graph.output.iter_mut().find(|info| info.name == *name) {
            let rank = move_to_first(info, *dim)?;
            after.push(NodeProto::new("Transpose", &[&inner], &[name]).with_ints("perm", &to_first(rank, *dim)));
        } else {
            return refuse(format!("batch_dim stands at '{name}', which is no input or output of the model"));
        }
        names.insert(name.clone(), inner);
    }
    rename(&mut graph, &names);
    before.append(&mut graph.node);
    before.append(&mut after);
    graph.node = before;
    Ok(ModelProto { graph: Some(graph), ..file.model.clone() }.encode_to_vec())
}

/// Moves a dimension to the front; returns the number of dimensions.
fn move_to_first(info: &mut ValueInfoProto, dim: usize) -> Result<usize, OnnxError> {
    let shape = info.r#type.as_mut().and_then(|of| of.tensor_type.as_mut()).and_then(|tensor| tensor.shape.as_mut());
    let dims = shape.map(|shape| &mut shape.dim);
    match dims {
        Some(dims) if dim < dims.len() => {
            let batch = dims.remove(dim);
            dims.insert(0, batch);
            Ok(dims.len())
        }
        dims => {
            refuse(format!("batch_dim = {dim}: '{}' has {} dimensions", info.name, dims.map_or(0, |dims| dims.len())))
        }
    }
}

/// Returns the permutation that moves a dimension to the front.
fn to_first(rank: usize, dim: usize) -> Vec<i64> {
    let others = (0..rank).filter(|&other| other != dim);
    std::iter::once(dim).chain(others).map(|dim| dim as i64).collect()
}

/// Returns the permutation that moves the first dimension to the place of `dim`.
fn back_from_first(rank: usize, dim: usize) -> Vec<i64> {
    let mut order: Vec<i64> = (1..rank as i64).collect();
    order.insert(dim, 0);
    order
}

/// Renames values in all operators, also in branches and loops, which see outer values.
fn rename(graph: &mut GraphProto, names: &HashMap<String, String>) {
    for node in &mut graph.node {
        for name in node.input.iter_mut().chain(&mut node.output) {
            if let Some(inner) = names.get(name) {
                name.clone_from(inner);
            }
        }
        for attribute in &mut node.attribute {
            attribute.g.iter_mut().for_each(|graph| rename(graph, names));
            attribute.graphs.iter_mut().for_each(|graph| rename(graph, names));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Declared;
    use crate::fixture::Draft;
    use crate::proto::elem;
    use std::path::Path;

    fn rewritten(draft: &Draft, dims: &[(&str, usize)]) -> Result<OnnxFile, OnnxError> {
        let (path, dims) = (Path::new("m.onnx"), dims.iter().map(|(name, dim)| ((*name).to_owned(), *dim)));
        OnnxFile::parse(batch_first(&OnnxFile::parse(draft.encode(), path)?, &dims.collect::<Vec<_>>())?, path)
    }

    fn sequence() -> Draft {
        let mut draft = Draft::default();
        draft.input("x", elem::FLOAT, &[-2, -1, 3]);
        draft.op("Relu", &["x"], &["y"]);
        draft.op("Neg", &["y"], &["z"]);
        draft.output("y", &[-2, -1, 3]);
        draft.output("z", &[-2, 3, -1]);
        draft
    }

    #[test]
    fn declared_tensors_begin_with_the_batch_and_others_stay() {
        let file = rewritten(&sequence(), &[("x", 1), ("y", 1)]).unwrap();
        let declared = Declared::of(&file).unwrap();
        assert_eq!(declared.inputs[0].shape, [-1, -1, 3]);
        let first = |info: &ValueInfoProto| {
            info.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().shape.as_ref().unwrap().dim[0].dim_param.clone()
        };
        let graph = file.graph();
        assert_eq!((first(&graph.input[0]), first(&graph.output[1])), (Some("n".into()), Some("s".into())));
        let nodes: Vec<String> =
            graph.node.iter().map(|node| format!("{} {:?} {:?}", node.op_type, node.input, node.output)).collect();
        assert_eq!(
            nodes,
            [
                "Transpose [\"x\"] [\"x.as_in_the_file\"]",
                "Relu [\"x.as_in_the_file\"] [\"y.as_in_the_file\"]",
                "Neg [\"y.as_in_the_file\"] [\"z\"]",
                "Transpose [\"y.as_in_the_file\"] [\"y\"]",
            ]
        );
    }

    #[test]
    fn permutations_undo_each_other() {
        assert_eq!((to_first(4, 2), back_from_first(4, 2)), (vec![2, 0, 1, 3], vec![1, 2, 0, 3]));
        for (rank, dim) in [(2, 1), (3, 1), (3, 2), (5, 3)] {
            let (there, back) = (to_first(rank, dim), back_from_first(rank, dim));
            assert!((0..rank).all(|at| there[back[at] as usize] == at as i64), "{rank} {dim}");
        }
    }

    #[test]
    fn what_the_file_does_not_have_is_refused() {
        let refused = |dims: &[(&str, usize)]| rewritten(&sequence(), dims).unwrap_err().to_string();
        assert_eq!(refused(&[("x", 3)]), "batch_dim = 3: 'x' has 3 dimensions");
        assert_eq!(refused(&[("w", 1)]), "batch_dim stands at 'w', which is no input or output of the model");
    }
}
