//! Graphs that the embedder's code creates from requests.

use super::drive::Bench;
use super::models::{Random, Sent, int64, model};
use super::{cell_engines, check};
use ripieno_base::BlockId;
use ripieno_executor::*;
use ripieno_model::{Graph, Walk};
use std::sync::Arc;

/// Leaves look up one id each; neighbours are joined in pairs until one is left.
#[derive(Debug)]
struct Pairs;

fn pairs(leaves: usize) -> Vec<[i64; 2]> {
    let mut table = vec![[-1, -1]; leaves];
    let mut level: Vec<i64> = (0..leaves as i64).collect();
    while level.len() > 1 {
        let join = |pair: &[i64]| match *pair {
            [left, right] => {
                table.push([left, right]);
                table.len() as i64 - 1
            }
            _ => pair[0],
        };
        level = level.chunks(2).map(join).collect();
    }
    table
}

impl Unfold for Pairs {
    fn unfold(&self, inputs: &[Tensor]) -> Result<Graph, RequestError> {
        let ids = inputs.iter().find(|input| &*input.name == "token").expect("the test brings it");
        let leaves = ids.shape[1] as usize;
        let table = pairs(leaves);
        let cell = |node: usize| BlockId(u16::from(node >= leaves));
        let graph = Graph::new(table.len(), cell, |node| &table[node]);
        Ok(graph.map_err(|cause| RequestError(cause.to_string()))?.reading(|node| node as u32))
    }
}

/// Creates invalid graphs: a node with a head or a missing block, too many inputs, a missing
/// element.
#[derive(Debug)]
struct Wrong(&'static str);

impl Unfold for Wrong {
    fn unfold(&self, _: &[Tensor]) -> Result<Graph, RequestError> {
        let (block, inputs, element): (u16, &[i64], u32) = match self.0 {
            "block" => (7, &[], 0),
            "inputs" => (1, &[0, 0, 0], 0),
            _ => (0, &[], 9),
        };
        let graph = Graph::new(2, |node| BlockId(node as u16 * block), |node| &inputs[..node * inputs.len()]);
        Ok(graph.expect("it is a graph").reading(|_| element))
    }
}

fn source(unfold: impl Unfold + 'static) -> ModelSource {
    ModelSource { unfold: Some(Arc::new(unfold)), ..model(Walk::Graph) }
}

#[test]
fn a_walk_made_by_code_answers_as_the_table_that_it_stands_for() {
    for engine in cell_engines() {
        let bench = Bench::new(&*engine, source(Pairs), 2);
        assert_eq!(bench.model.inputs().iter().map(|input| &*input.name).collect::<Vec<_>>(), ["token"]);
        assert!(bench.model.example(4).is_some());
        let mut random = Random::new(5);
        let ids: Vec<Vec<i64>> = (0..60).map(|_| Sent::random(Walk::Repeat, &mut random, 20).tokens).collect();
        let requests: Vec<Vec<Tensor>> =
            ids.iter().map(|ids| vec![int64("token", &[1, ids.len() as i64], ids)]).collect();
        let answers = bench.answer_all(&requests, 9, &mut random);
        for (ids, answer) in ids.iter().zip(&answers) {
            let children = pairs(ids.len());
            let mut tokens = ids.clone();
            tokens.resize(children.len(), 0);
            check(Walk::Graph, &Sent { tokens, children }, answer);
        }
    }
}

#[test]
fn mistakes_of_the_code_are_refused_before_a_slot_is_taken() {
    for engine in cell_engines() {
        for (wrong, words) in [
            ("block", "node 1 runs block 7, which is no cell"),
            ("inputs", "node 1 has 3 inputs, but the cells take at most 2"),
            ("element", "takes element 9 of input 'token', which has 3"),
        ] {
            let model = engine.load(&source(Wrong(wrong))).unwrap();
            let refused = model.describe(&[int64("token", &[1, 3], &[1, 2, 3])]).unwrap_err();
            assert!(refused.0.contains(words), "{}", refused.0);
        }
        let model = engine.load(&source(Pairs)).unwrap();
        let ids = vec![1; 31];
        let refused = model.describe(&[int64("token", &[1, 31], &ids)]).unwrap_err();
        assert!(refused.0.contains("unfolds into 61 nodes, but the model takes at most 60"), "{}", refused.0);
        let refused = model.describe(&[int64("token", &[1, 2], &[1, 1_000])]).unwrap_err();
        assert!(refused.0.contains("holds 1000 at element 1"), "{}", refused.0);
        let tree = ModelSource { walk: Walk::Tree, ..source(Pairs) };
        let refused = engine.load(&tree).err().unwrap();
        assert!(refused.0.contains("use walk = \"graph\""), "{}", refused.0);
    }
}
