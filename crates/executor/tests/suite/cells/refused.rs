//! Refusals: of requests before they take a slot, and of models before they serve.

use super::models::{int64, link, model};
use crate::common::*;
use ripieno_base::BlockId;
use ripieno_executor::*;
use ripieno_model::Walk;

fn refused(walk: Walk, inputs: &[Tensor]) -> String {
    let model = cpu().engine.load(&model(walk)).unwrap();
    model.describe(inputs).expect_err("it must be refused").0
}

#[test]
fn a_bad_sequence_is_refused() {
    let cases = [
        (vec![], "input 'token': the request lacks it"),
        (vec![int64("token", &[1, 0], &[])], "input 'token' has no elements; send at least one"),
        (vec![int64("token", &[1, 61], &[0; 61])], "input 'token' has 61 elements, but the model takes at most 60"),
        (vec![int64("token", &[2, 1], &[0; 2])], "has the shape [2, 1]; its first dimension must be 1"),
        (vec![int64("token", &[1, 2], &[0; 3])], "it holds 24 bytes, which is not INT64 [2]"),
        (vec![int64("token", &[1, 2, 1], &[0; 2])], "it is INT64 [1, 2, 1], but must be INT64 [1, 2]"),
        (
            vec![int64("token", &[1, 3], &[0, 17, 1])],
            "input 'token' holds 17 at element 1, but the cell 'cell' knows 0 to 16",
        ),
        (vec![int64("token", &[1, 1], &[-1])], "holds -1 at element 0"),
    ];
    for (inputs, cause) in cases {
        let error = refused(Walk::Repeat, &inputs);
        assert!(error.contains(cause), "{error}");
    }
}

#[test]
fn a_bad_tree_is_refused() {
    let tree = |children: &[i64]| {
        let nodes = children.len() as i64 / 2;
        vec![int64("token", &[1, nodes], &vec![0; nodes as usize]), int64("children", &[1, nodes, 2], children)]
    };
    let cases = [
        (tree(&[1, -1, 0, -1]), "input 'children': node 0 depends on itself through its inputs"),
        (tree(&[1, 7, -1, -1]), "node 0 names 7 as its input, which is no node; use -1 for none"),
        (tree(&[1, -5, -1, -1]), "node 0 names -5 as its input; use -1 for none"),
        (tree(&[-1, -1, -1, -1]), "node 1 is a second root; a tree has exactly one node without a parent"),
        (tree(&[1, 1, -1, -1]), "node 1 has 2 parents; in a tree each node has at most one"),
        (vec![int64("token", &[1, 1], &[0])], "input 'children': the request lacks it"),
        (vec![int64("token", &[1, 1], &[0]), int64("children", &[1, 0, 2], &[])], "input 'children' has no elements"),
        (vec![int64("token", &[1, 1], &[0]), int64("children", &[1, 4], &[0; 4])], "it must be [1, nodes, arity]"),
        (
            vec![int64("token", &[1, 2], &[0; 2]), int64("children", &[1, 2, 3], &[-1, -1, 1, -1, -1, -1])],
            "node 0 has a child number 3, but the cells take at most 2",
        ),
        (
            vec![int64("token", &[1, 3], &[0; 3]), int64("children", &[1, 1, 2], &[-1, -1])],
            "input 'token' has 3 elements, but 'children' has 1; send as many of each",
        ),
        (
            vec![int64("token", &[1, 1], &[99]), int64("children", &[1, 1, 2], &[-1, -1])],
            "the cell 'leaf' knows 0 to 16",
        ),
    ];
    for (inputs, cause) in cases {
        let error = refused(Walk::Tree, &inputs);
        assert!(error.contains(cause), "{error}");
    }
    let graph = [tree(&[-1, -1]), vec![int64("cell", &[1, 1], &[2])]].concat();
    let error = refused(Walk::Graph, &graph);
    assert!(
        error.contains("node 0 names cell 2, which the model does not have; it has 0 to 1 (leaf, internal)"),
        "{error}"
    );
}

/// Neither the check nor the walk recurses.
#[test]
fn a_tree_of_depth_ten_thousand_is_refused_by_its_length_or_described() {
    let nodes = 10_000_i64;
    let children: Vec<i64> = (0..nodes).flat_map(|node| [if node + 1 < nodes { node + 1 } else { -1 }, -1]).collect();
    let inputs = [int64("token", &[1, nodes], &vec![1; nodes as usize]), int64("children", &[1, nodes, 2], &children)];
    let error = refused(Walk::Tree, &inputs);
    assert!(error.contains("has 10000 elements, but the model takes at most 60"), "{error}");
    let source = ModelSource { max_length: 20_000, ..model(Walk::Tree) };
    let (extent, graph) = cpu().engine.load(&source).unwrap().describe(&inputs).unwrap();
    assert_eq!((extent.length, graph.unwrap().len()), (10_000, 10_000));
}

fn load_error(change: impl Fn(&mut ModelSource), walk: Walk) -> String {
    let mut source = model(walk);
    change(&mut source);
    cpu().engine.load(&source).err().expect("it must not load").to_string()
}

#[test]
fn every_mistake_in_the_links_gives_one_clear_error() {
    type Change = Box<dyn Fn(&mut ModelSource)>;
    let relink = |block: usize, input: &'static str, from: InputSource| -> Change {
        Box::new(move |source| {
            source.blocks[block].links.retain(|link| link.input != input);
            source.blocks[block].links.push(link(input, from.clone()));
        })
    };
    let previous = |name: &str| InputSource::Previous(name.to_owned());
    let cases: Vec<(Walk, Change, &str)> = vec![
        (Walk::Repeat, relink(0, "z", previous("h_next")), "has no input 'z'; its inputs are token, h"),
        (Walk::Repeat, relink(0, "h", previous("c")), "which has no such output; its outputs are h_next, y"),
        (
            Walk::Repeat,
            relink(0, "token", previous("h_next")),
            "input 'token' is INT64 [-1], but 'h_next' of block 'cell'",
        ),
        (
            Walk::Repeat,
            relink(0, "h", InputSource::Child(0, "h_next".into())),
            "but only the cells of a tree or graph have children",
        ),
        (Walk::Repeat, relink(0, "h", InputSource::Step(BlockId(0), "y".into())), "which must stand before it"),
        (Walk::Tree, relink(1, "h0", previous("h_next")), "takes 'previous.h_next', but the cell does not repeat"),
        (Walk::Tree, relink(1, "h0", InputSource::Child(0, "c".into())), "takes 'c' of block 'leaf' ("),
        (Walk::Tree, relink(2, "a", InputSource::Last(BlockId(0), "h_next".into())), "a head takes \"root.h_next\""),
        (Walk::EncodeDecode, Box::new(|source| source.blocks[1].end = None), "the key end is missing"),
        (Walk::EncodeDecode, Box::new(|source| source.blocks[1].end = Some("over".into())), "is none of its outputs"),
        (
            Walk::EncodeDecode,
            Box::new(|source| source.blocks[1].end = Some("h_next".into())),
            "it must be [-1], one number",
        ),
        (Walk::Repeat, Box::new(|source| source.answers.clear()), "there is no [[output]]"),
        (
            Walk::Repeat,
            Box::new(|source| source.answers[0].tensor = "z".into()),
            "has no output 'z'; its outputs are h_next, y",
        ),
        (Walk::Tree, Box::new(|source| source.answers[0].block = Some(BlockId(1))), "write from = \"root.h_next\""),
        (Walk::Tree, Box::new(|source| source.walk = Walk::Repeat), "walk = \"repeat\" needs one block that repeats"),
    ];
    for (walk, change, cause) in cases {
        let error = load_error(change, walk);
        assert!(error.starts_with(&format!("model '{}': ", walk.name())) && error.contains(cause), "{error}");
    }
    let wrong_begin = |source: &mut ModelSource| source.blocks[1].links[0].initial = Some(Initial::Number(0.5));
    let error = load_error(wrong_begin, Walk::EncodeDecode);
    assert!(error.contains("input 'token' cannot begin as 0.5, which is no INT64"), "{error}");
}
