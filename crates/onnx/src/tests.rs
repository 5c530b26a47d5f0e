//! Compares chains of blocks with the whole model, in rten.

use crate::fixture::{Draft, NamedTensors, assert_close, encoder, numbers, residual_network, run, run_chain};
use crate::proto::elem;
use crate::{Cuts, OnnxModel};
use proptest::prelude::*;
use std::path::Path;

fn names(specs: &[ripieno_model::TensorSpec]) -> Vec<&str> {
    specs.iter().map(|spec| spec.name.as_str()).collect()
}

/// Compares every set of cuts of the model, chained, with the whole.
fn check_equal(draft: &Draft, inputs: &NamedTensors, cuts: &[Cuts]) {
    let model = draft.model();
    let outputs: Vec<String> = model.outputs().into_iter().map(|spec| spec.name).collect();
    let whole = run(draft.encode(), inputs, &outputs);
    for cuts in cuts {
        let slices = model.slice(cuts, "block").unwrap();
        assert_eq!(slices.blocks.len(), cuts.blocks());
        let chained = run_chain(&slices, inputs);
        for name in &outputs {
            assert_close(&chained[name], &whole[name]);
        }
    }
}

fn all_cuttings(model: &OnnxModel) -> Vec<Cuts> {
    let layers = model.layers();
    let costs = model.estimate(&layers, 8);
    let stages = (1..=layers.blocks()).map(|count| model.stages(&layers, &costs, None, count).unwrap());
    stages.chain([Cuts::none()]).collect()
}

#[test]
fn a_residual_network_in_blocks_gives_the_same() {
    let draft = residual_network();
    let cuttings = all_cuttings(&draft.model());
    assert_eq!(cuttings.len(), 6 + 1, "the stem, two convolutions a residual block, the head");
    for batch in [1, 3] {
        let inputs = NamedTensors::from([("image".to_owned(), numbers(&[batch, 3, 8, 8]))]);
        check_equal(&draft, &inputs, &cuttings);
    }
}

#[test]
fn an_encoder_with_computed_shapes_gives_the_same_at_any_length() {
    let draft = encoder();
    let cuttings = all_cuttings(&draft.model());
    assert_eq!(cuttings.len(), 2 * 4 + 1, "query, key and value together; out; up; down");
    for (batch, length) in [(1, 5), (3, 2)] {
        let inputs = NamedTensors::from([("x".to_owned(), numbers(&[batch, length, 8]))]);
        check_equal(&draft, &inputs, &cuttings);
    }
}

#[test]
fn residuals_are_carried_and_weights_are_not_copied() {
    let draft = residual_network();
    let model = draft.model();
    let slices = model.slice(&model.layers(), "layer").unwrap();
    let blocks = &slices.blocks;
    assert_eq!(names(&blocks[1].inputs), ["stem"]);
    assert_eq!(names(&blocks[1].carried), ["stem", "a_one"]);
    assert_eq!(blocks[1].carried_bytes, 2 * 8 * 8 * 8 * 4);
    assert_eq!(names(&blocks[2].inputs), ["stem", "a_one"]);
    assert_eq!(names(&blocks[2].outputs), ["a"]);
    assert_eq!(names(&blocks[5].outputs), ["logits", "features"]);
    let whole = model.slice(&Cuts::none(), "model").unwrap();
    assert_eq!(blocks.iter().map(|block| block.weight_bytes).sum::<u64>(), whole.blocks[0].weight_bytes);
    assert_eq!(slices.shared(), 0);
    assert_eq!(blocks[0].operators[0].1, 1);
}

#[test]
fn what_is_not_rows_is_computed_again_and_never_carried() {
    let model = encoder().model();
    let slices = model.slice(&model.layers(), "layer").unwrap();
    for block in &slices.blocks {
        for spec in block.inputs.iter().chain(&block.outputs).chain(&block.carried) {
            assert_eq!(spec.shape, [-1, -1, spec.shape[2]], "{}", spec.name);
        }
    }
    let split = |block: &crate::SlicedBlock| block.operators.iter().any(|(name, _)| name == "Shape");
    assert_eq!(slices.blocks.iter().filter(|block| split(block)).count(), 2, "where heads are split and joined");
}

#[test]
fn cuts_are_made_where_the_user_says() {
    let draft = residual_network();
    let model = draft.model();
    let cuts = model.cuts_at(&["b_one".to_owned(), "stem".to_owned()]).unwrap();
    let slices = model.slice(&cuts, "part").unwrap();
    let outputs: Vec<_> = slices.blocks.iter().map(|block| names(&block.outputs)).collect();
    assert_eq!(outputs, [vec!["stem"], vec!["a", "b_one"], vec!["logits", "features"]]);
    let inputs = NamedTensors::from([("image".to_owned(), numbers(&[2, 3, 8, 8]))]);
    check_equal(&draft, &inputs, &[cuts]);
    let refused = |name: &str| model.cuts_at(&[name.to_owned()]).unwrap_err().to_string();
    assert!(refused("missing").contains("no operator computes a tensor 'missing'"));
    assert!(refused("logits").contains("nothing comes behind tensor 'logits'"));
    assert!(refused("stem_w").contains("does not end an operator"));
}

#[test]
fn more_stages_than_layers_are_refused() {
    let model = residual_network().model();
    let layers = model.layers();
    let refused = model.stages(&layers, &model.estimate(&layers, 8), None, 7).unwrap_err().to_string();
    assert!(refused.contains("7 stages are asked for, but the model has 6 layers that can be parted"), "{refused}");
}

/// Time first in the middle, as recurrent operators require.
#[test]
fn a_batch_that_is_not_first_is_turned_for_its_travel() {
    let mut draft = Draft::default();
    draft.input("x", elem::FLOAT, &[-1, -2, 4]);
    draft.op("Transpose", &["x"], &["other"]).attribute = crate::fixture::perm(&[1, 0, 2]);
    for (from, to) in [("other", "h1"), ("h1", "h2")] {
        draft.weight(&format!("{to}_v"), &[4, 4]);
        draft.op("MatMul", &[from, &format!("{to}_v")], &[to]);
    }
    draft.op("Transpose", &["h2"], &["y"]).attribute = crate::fixture::perm(&[1, 0, 2]);
    draft.output("y", &[-1, -2, 4]);
    let model = draft.model();
    let cuts = model.cuts_at(&["h1".to_owned()]).unwrap();
    let slices = model.slice(&cuts, "part").unwrap();
    assert_eq!(
        (names(&slices.blocks[0].outputs), &slices.blocks[0].outputs[0].shape),
        (vec!["h1.rows"], &vec![-1, -1, 4])
    );
    let inputs = NamedTensors::from([("x".to_owned(), numbers(&[2, 5, 4]))]);
    check_equal(&draft, &inputs, &[cuts]);
}

/// Batch and length in one dimension: nothing there can be carried, so there is no cut.
#[test]
fn no_cut_where_the_batch_is_no_dimension() {
    let mut draft = Draft::default();
    draft.input("x", elem::FLOAT, &[-1, -2, 4]);
    draft.ints("flat", &[-1, 4]);
    draft.op("Reshape", &["x", "flat"], &["rows"]);
    for (from, to) in [("rows", "h1"), ("h1", "h2")] {
        draft.weight(&format!("{to}_w"), &[4, 4]);
        draft.op("MatMul", &[from, &format!("{to}_w")], &[to]);
    }
    draft.op("Shape", &["x"], &["shape"]);
    draft.op("Reshape", &["h2", "shape"], &["y"]);
    draft.output("y", &[-1, -2, 4]);
    let model = draft.model();
    assert_eq!(model.layers(), Cuts::none());
    let refused = model.cuts_at(&["h1".to_owned()]).unwrap_err().to_string();
    assert!(refused.contains("would have to carry 'h1', which has no dimension"), "{refused}");
    assert_eq!(model.outputs()[0].shape, [-1, -1, 4]);
}

#[test]
fn what_cannot_be_sliced_is_refused_with_the_reason() {
    let plain = |op: &str| {
        let mut draft = Draft::default();
        draft.input("x", elem::FLOAT, &[-1, 4]);
        draft.op(op, &["x"], &["y"]);
        draft.output("y", &[-1, 4]);
        draft
    };
    assert!(plain("Loop").refused().contains("Loop 'y' is control flow"));
    let mut unknown = plain("Mystery");
    assert_eq!(unknown.model().outputs()[0].shape, [-1, 4], "the declared shape stands in");
    unknown.op("Mystery", &["y"], &["z"]);
    assert!(unknown.refused().contains("the shape of 'z' does not follow from Mystery 'z'"));
    let mut dangling = plain("Relu");
    dangling.op("Add", &["y", "missing"], &["z"]);
    assert!(dangling.refused().contains("Add 'z' takes 'missing', which nothing gives"));
    let mut twice = plain("Relu");
    twice.op("Relu", &["x"], &["y"]);
    assert!(twice.refused().contains("'y' is computed twice"));
    let mut fixed = plain("Relu");
    fixed.input("w", elem::FLOAT, &[1, 4]);
    assert!(fixed.refused().contains("input 'w' has a fixed first dimension 1"));
    let mut dynamic = plain("Relu");
    dynamic.input("w", elem::FLOAT, &[-1, -2, -3]);
    assert!(dynamic.refused().contains("the dynamic dimension 't' beside 's': only the batch and one length"));
    let mut circle = plain("Relu");
    circle.op("Add", &["y", "b"], &["a"]);
    circle.op("Relu", &["a"], &["b"]);
    assert!(circle.refused().contains("in a circle"));
    let garbage = OnnxModel::parse(&b"not a model"[..], Path::new("a.onnx")).unwrap_err().to_string();
    assert_eq!(garbage, "a.onnx: not an ONNX model: export the model to ONNX anew");
    assert!(OnnxModel::read(Path::new("nowhere.onnx")).unwrap_err().to_string().contains("cannot read nowhere.onnx"));
}

#[test]
fn nodes_out_of_order_are_put_in_order() {
    let mut draft = residual_network();
    draft.graph.node.reverse();
    let inputs = NamedTensors::from([("image".to_owned(), numbers(&[1, 3, 8, 8]))]);
    let model = draft.model();
    let slices = model.slice(&model.layers(), "layer").unwrap();
    let whole = run(residual_network().encode(), &inputs, &["logits".to_owned()]);
    assert_close(&run_chain(&slices, &inputs)["logits"], &whole["logits"]);
}

/// Reads, infers, cuts and encodes; must not panic with any input.
fn survive(bytes: Vec<u8>) {
    let Ok(model) = OnnxModel::parse(bytes, Path::new("fuzz.onnx")) else { return };
    let layers = model.layers();
    let costs = model.estimate(&layers, 8);
    for cuts in [model.stages(&layers, &costs, None, 2), Ok(layers)].into_iter().flatten() {
        let Ok(slices) = model.slice(&cuts, "block") else { continue };
        slices.blocks.iter().for_each(|block| drop(slices.encode(block)));
    }
}

proptest! {
    #[test]
    fn damaged_files_are_errors_and_never_panics(
        which in 0..2usize,
        cut in 0.0..1.0f64,
        flips in prop::collection::vec((0.0..1.0f64, any::<u8>()), 0..12),
    ) {
        let mut bytes = [residual_network, encoder][which]().encode();
        for (place, byte) in flips {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = byte;
        }
        if cut < 0.5 {
            bytes.truncate((cut * 2.0 * bytes.len() as f64) as usize);
        }
        survive(bytes);
    }

    /// Damage after the weights' bytes, in the nodes' numbers.
    #[test]
    fn wild_attributes_and_shapes_are_errors_and_never_panics(
        which in 0..2usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<i64>(), 0..4usize), 1..6),
    ) {
        let mut draft = [residual_network, encoder][which]();
        for (index, number, what) in edits {
            let number = if number % 2 == 0 { number } else { number % 9 };
            wild(&mut draft, index, number, what);
        }
        survive(draft.encode());
    }
}

fn wild(draft: &mut Draft, index: prop::sample::Index, number: i64, what: usize) {
    let nodes = draft.graph.node.len();
    match what {
        0 => {
            let node = &mut draft.graph.node[index.index(nodes)];
            for attribute in &mut node.attribute {
                attribute.i = attribute.i.map(|_| number);
                attribute.ints.iter_mut().step_by(2).for_each(|int| *int = number);
            }
        }
        1 => {
            let weights = draft.graph.initializer.len();
            draft.graph.initializer[index.index(weights)].dims = vec![number; (number % 4).unsigned_abs() as usize];
        }
        2 => {
            const OPS: [&str; 12] = [
                "Slice",
                "Concat",
                "Resize",
                "Pad",
                "Split",
                "Squeeze",
                "Unsqueeze",
                "Expand",
                "Tile",
                "Range",
                "LSTM",
                "ConvTranspose",
            ];
            let op = OPS[number.unsigned_abs() as usize % OPS.len()];
            draft.graph.node[index.index(nodes)].op_type = op.to_owned();
        }
        _ => {
            let (from, to) = (index.index(nodes), number.unsigned_abs() as usize % nodes);
            draft.graph.node[to].input = draft.graph.node[from].input.clone();
        }
    }
}
