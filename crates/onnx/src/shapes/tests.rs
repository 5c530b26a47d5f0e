use crate::fixture::{Draft, axis};
use crate::proto::{NodeProto, elem};

/// Returns the shape of `y`. One operator computes `y` from x [batch, s, 6, 4] and from values that
/// `build` adds.
fn shape_of(build: impl Fn(&mut Draft)) -> String {
    let mut draft = Draft::default();
    draft.input("x", elem::FLOAT, &[-1, -2, 6, 4]);
    build(&mut draft);
    draft.output("y", &[]);
    let model = draft.model();
    let value = &model.values[model.value_named("y").unwrap()];
    value.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn of(op: &str, ints: &[(&str, &[i64])], attributes: impl Fn(NodeProto) -> NodeProto) -> String {
    shape_of(|draft| {
        let mut inputs = vec!["x"];
        for (name, list) in ints {
            draft.ints(name, list);
            inputs.push(name);
        }
        draft.op(op, &inputs, &["y"]);
        let node = draft.graph.node.pop().unwrap();
        draft.graph.node.push(attributes(node));
    })
}

#[test]
fn layout() {
    let plain = |node| node;
    assert_eq!(of("Reshape", &[("to", &[0, 0, -1])], plain), "batch s 24");
    assert_eq!(of("Reshape", &[("to", &[-1, 4])], plain), "6*batch*s 4");
    assert_eq!(of("Reshape", &[("to", &[0, -1])], plain), "batch 24*s");
    assert_eq!(of("Flatten", &[], |node| node.with_int("axis", 2)), "batch*s 24");
    assert_eq!(of("Transpose", &[], |node| node.with_ints("perm", &[0, 2, 1, 3])), "batch 6 s 4");
    assert_eq!(of("Unsqueeze", &[("axes", &[-1, 0])], plain), "1 batch s 6 4 1");
    assert_eq!(of("Tile", &[("times", &[1, 2, 1, 3])], plain), "batch 2*s 6 12");
    let slice =
        |start: i64, end: i64, at: i64| of("Slice", &[("from", &[start]), ("to", &[end]), ("at", &[at])], plain);
    assert_eq!(slice(1, i64::MAX, 2), "batch s 5 4");
    assert_eq!(slice(1, i64::MAX, 1), "batch (s + -1) 6 4");
    assert_eq!(slice(0, -1, 3), "batch s 6 3");
    assert_eq!(slice(-1, i64::MAX, 1), "batch 1 6 4");
    assert_eq!(of("Slice", &[("from", &[5]), ("to", &[i64::MIN]), ("at", &[2]), ("by", &[-2])], plain), "batch s 3 4");
}

#[test]
fn windows() {
    let pool = |node: NodeProto| node.with_ints("kernel_shape", &[3, 2]);
    assert_eq!(of("MaxPool", &[], pool), "batch s 4 3");
    let strided = |node| pool(node).with_ints("strides", &[2, 2]);
    assert_eq!(of("AveragePool", &[], strided), "batch s 2 2");
    assert_eq!(of("AveragePool", &[], |node| strided(node).with_int("ceil_mode", 1)), "batch s 3 2");
    assert_eq!(of("GlobalMaxPool", &[], |node| node), "batch s 1 1");
    assert_eq!(of("Pad", &[("pads", &[0, 0, 1, 2, 0, 0, 1, 0])], |node| node), "batch s 8 6");
}

#[test]
fn reductions_and_products() {
    assert_eq!(of("ReduceMean", &[("axes", &[1, -1])], |node| node.with_int("keepdims", 0)), "batch 6");
    assert_eq!(of("ReduceSum", &[], |node| node), "1 1 1 1");
    assert_eq!(of("ArgMax", &[], |node| node.with_int("axis", -1)), "batch s 6 1");
    let product = shape_of(|draft| {
        draft.weight("w", &[4, 9]);
        draft.op("MatMul", &["x", "w"], &["y"]);
    });
    assert_eq!(product, "batch s 6 9");
}

/// The form in which exporters write `mask.expand(n, s, 6)`: it compares the sizes with -1.
#[test]
fn sizes_that_the_graph_computes() {
    let shape = shape_of(|draft| {
        for (name, index) in [("i0", 0), ("i1", 1)] {
            draft.scalar(name, index);
        }
        draft.ints("front", &[0]);
        draft.ints("six", &[6]);
        draft.ints("minus", &[-1, -1, -1]);
        draft.ints("ones", &[1, 1, 1]);
        draft.weight("seed", &[1]);
        draft.op("Shape", &["x"], &["shape"]);
        draft.op("Gather", &["shape", "i0"], &["n0"]);
        draft.op("Gather", &["shape", "i1"], &["s0"]);
        draft.op("Unsqueeze", &["n0", "front"], &["n1"]);
        draft.op("Unsqueeze", &["s0", "front"], &["s1"]);
        draft.op("Concat", &["n1", "s1", "six"], &["sizes"]).attribute = axis(0);
        draft.op("Equal", &["sizes", "minus"], &["same"]);
        draft.op("Where", &["same", "ones", "sizes"], &["chosen"]);
        draft.op("Expand", &["seed", "chosen"], &["y"]);
    });
    assert_eq!(shape, "batch s 6");
    let range = shape_of(|draft| {
        draft.scalar("zero", 0);
        draft.scalar("one", 1);
        draft.op("Shape", &["x"], &["shape"]);
        draft.op("Gather", &["shape", "one"], &["length"]);
        draft.op("Range", &["zero", "length", "one"], &["y"]);
    });
    assert_eq!(range, "s");
}
