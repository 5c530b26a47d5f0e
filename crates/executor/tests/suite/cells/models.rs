//! Models in cells, requests for them, and their expected answers, by the formulas of
//! `make_models.py`.

use crate::common::*;
use bytes::Bytes;
use ripieno_base::BlockId;
use ripieno_executor::*;
use ripieno_model::{DataType, Steps, Walk};
use ripieno_workload::{below, stream};

pub(crate) const HIDDEN: usize = 3;
pub(crate) const IDS: i64 = 17;
pub(crate) const END: i64 = 16;

type State = [f32; HIDDEN];

fn weight(at: usize, factor: usize) -> f32 {
    ((at * factor % 17) as f32 - 8.0) / 8.0
}

fn embedding(id: i64) -> State {
    std::array::from_fn(|j| weight(id as usize * HIDDEN + j, 5))
}

fn product(x: State, factor: usize) -> State {
    std::array::from_fn(|j| (0..HIDDEN).map(|i| x[i] * weight(i * HIDDEN + j, factor)).sum())
}

fn step(x: State, h: State) -> State {
    let carried = product(h, 7);
    std::array::from_fn(|j| (x[j] + carried[j]).tanh())
}

fn word(h: State) -> i64 {
    let score = |word: usize| (0..HIDDEN).map(|i| h[i] * weight(i * IDS as usize + word, 3)).sum::<f32>();
    let scores: Vec<f32> = (0..IDS as usize).map(score).collect();
    (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap() as i64
}

fn double(h: State) -> State {
    h.map(|h| h + h)
}

pub(crate) fn model(walk: Walk) -> ModelSource {
    let (blocks, answers) = match walk {
        Walk::Repeat => (vec![rnn("cell", &[])], vec![every("y", 0, "y"), last("h", 0, "h_next")]),
        Walk::Stacked => {
            let layers = vec![rnn("first", &[]), layer("second", 0), layer("third", 1)];
            (layers, vec![every("y", 2, "y"), last("h", 1, "h_next")])
        }
        Walk::Bidirectional => {
            let backward = BlockSource { backward: true, beside: true, ..rnn("backward", &[]) };
            let ends = [
                link("a", InputSource::Last(BlockId(0), "h_next".into())),
                link("b", InputSource::Last(BlockId(1), "h_next".into())),
            ];
            let blocks = vec![rnn("forward", &[]), backward, cell("head", "cell_head", Steps::Once, &ends)];
            (blocks, vec![every("back", 1, "y"), last("score", 2, "score")])
        }
        Walk::EncodeDecode => {
            let initial = |from: Initial, link: InputLink| InputLink { initial: Some(from), ..link };
            let links = [
                initial(Initial::Number(2.0), link("token", InputSource::Previous("token_next".into()))),
                initial(Initial::Last(BlockId(0), "h_next".into()), link("h", InputSource::Previous("h_next".into()))),
            ];
            let decoder = cell("decoder", "cell_decoder", Steps::UntilEnd, &links);
            (
                vec![rnn("encoder", &[]), BlockSource { end: Some("done".into()), ..decoder }],
                vec![every("tokens", 1, "token_next")],
            )
        }
        _ => {
            let child = |at: u32| InputSource::Child(at, "h_next".into());
            let leaf = cell("leaf", "cell_leaf", Steps::Nodes, &[]);
            let internal =
                cell("internal", "cell_internal", Steps::Nodes, &[link("h0", child(0)), link("h1", child(1))]);
            let root = AnswerSource { name: "h".into(), block: None, tensor: "h_next".into(), take: AnswerSteps::Last };
            let ends = ["a", "b"].map(|input| link(input, InputSource::Root("h_next".into())));
            let head = cell("head", "cell_head", Steps::Once, &ends);
            match walk {
                Walk::Tree => (vec![leaf, internal, head], vec![root, last("score", 2, "score")]),
                _ => (vec![leaf, internal], vec![root]),
            }
        }
    };
    ModelSource {
        walk,
        answers,
        max_length: 60,
        limit: StepLimit::Extra(8),
        ..ModelSource::new(walk.name(), blocks, MAX_BATCH)
    }
}

fn cell(name: &str, file: &str, steps: Steps, links: &[InputLink]) -> BlockSource {
    BlockSource { path: Some(model_path(file)), steps, links: links.to_vec(), ..BlockSource::new(name) }
}

fn rnn(name: &str, links: &[InputLink]) -> BlockSource {
    let links = [links, &[link("h", InputSource::Previous("h_next".into()))]].concat();
    cell(name, "cell_rnn", Steps::Length, &links)
}

fn layer(name: &str, below: u16) -> BlockSource {
    let links =
        [link("x", InputSource::Step(BlockId(below), "y".into())), link("h", InputSource::Previous("h_next".into()))];
    BlockSource { beside: true, ..cell(name, "cell_layer", Steps::Length, &links) }
}

pub(crate) fn link(input: &str, from: InputSource) -> InputLink {
    InputLink { input: input.into(), from, initial: None }
}

fn every(name: &str, block: u16, tensor: &str) -> AnswerSource {
    AnswerSource { take: AnswerSteps::Every, ..last(name, block, tensor) }
}

pub(crate) fn last(name: &str, block: u16, tensor: &str) -> AnswerSource {
    AnswerSource { name: name.into(), block: Some(BlockId(block)), tensor: tensor.into(), take: AnswerSteps::Last }
}

/// A client's request, before it is converted to a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) tokens: Vec<i64>,
    /// Two children per node; empty for a sequence.
    pub(crate) children: Vec<[i64; 2]>,
}

impl Sent {
    /// A sequence, tree or graph of up to `longest` elements; a tree has an odd number of them, in
    /// a shuffled table.
    pub(crate) fn random(walk: Walk, random: &mut Random, longest: usize) -> Sent {
        let length = 1 + random.below(longest);
        let length = if walk == Walk::Tree { length | 1 } else { length };
        let tokens = (0..length).map(|_| random.below(IDS as usize) as i64).collect();
        let children = match walk {
            Walk::Tree => tree(length, random),
            Walk::Graph => graph(length, random),
            _ => Vec::new(),
        };
        Sent { tokens, children }
    }

    pub(crate) fn tensors(&self, walk: Walk) -> Vec<Tensor> {
        let length = self.tokens.len() as i64;
        let mut tensors = vec![int64("token", &[1, length], &self.tokens)];
        if !self.children.is_empty() {
            tensors.push(int64("children", &[1, length, 2], &self.children.concat()));
        }
        if walk == Walk::Graph {
            let cells: Vec<i64> = self.children.iter().map(|of| i64::from(*of != [-1, -1])).collect();
            tensors.push(int64("cell", &[1, length], &cells));
        }
        tensors
    }

    /// Returns the expected answers by name.
    pub(crate) fn expected(&self, walk: Walk) -> Vec<(&'static str, Vec<f32>)> {
        let run = |tokens: &mut dyn Iterator<Item = i64>| -> Vec<State> {
            let next = |h: &mut State, token: i64| {
                *h = step(embedding(token), *h);
                Some(*h)
            };
            tokens.scan([0.0; HIDDEN], next).collect()
        };
        let tokens = || self.tokens.iter().copied();
        let doubled = |states: &[State]| states.iter().flat_map(|&h| double(h)).collect::<Vec<f32>>();
        let last = |states: &[State]| *states.last().unwrap();
        let over = |below: &[State]| -> Vec<State> {
            let next = |h: &mut State, &x: &State| {
                *h = step(double(x), *h);
                Some(*h)
            };
            below.iter().scan([0.0; HIDDEN], next).collect()
        };
        let forward = run(&mut tokens());
        match walk {
            Walk::Repeat => vec![("y", doubled(&forward)), ("h", last(&forward).into())],
            Walk::Stacked => {
                let second = over(&forward);
                vec![("y", doubled(&over(&second))), ("h", last(&second).into())]
            }
            Walk::Bidirectional => {
                let mut backward = run(&mut tokens().rev());
                let (a, b) = (last(&forward), last(&backward));
                backward.reverse();
                vec![("back", doubled(&backward)), ("score", (0..HIDDEN).map(|j| a[j] - b[j]).collect())]
            }
            Walk::EncodeDecode => {
                let (mut token, mut h, mut words) = (2, last(&forward), Vec::new());
                while words.len() < self.tokens.len() + 8 && words.last() != Some(&(END as f32)) {
                    h = step(embedding(token), h);
                    token = word(h);
                    words.push(token as f32);
                }
                vec![("tokens", words)]
            }
            Walk::Tree => vec![("h", self.root(0).into()), ("score", vec![0.0; HIDDEN])],
            _ => vec![("h", self.root(self.tokens.len() - 1).into())],
        }
    }

    /// Returns the state of the root of a tree, or of a graph's last node.
    fn root(&self, last: usize) -> State {
        let is_child = |node: usize| self.children.iter().flatten().any(|&child| child == node as i64);
        let root = if last > 0 { last } else { (0..self.children.len()).find(|&node| !is_child(node)).unwrap() };
        let mut states: Vec<Option<State>> = vec![None; self.tokens.len()];
        while states[root].is_none() {
            for node in 0..states.len() {
                let of = |child: i64| if child < 0 { Some([0.0; HIDDEN]) } else { states[child as usize] };
                let [Some(a), Some(b)] = self.children[node].map(of) else { continue };
                let (a, b) = (product(a, 7), product(b, 11));
                let joined = std::array::from_fn(|j| (a[j] - b[j]).tanh());
                states[node] =
                    Some(if self.children[node] == [-1, -1] { embedding(self.tokens[node]) } else { joined });
            }
        }
        states[root].unwrap()
    }
}

/// Joins two random roots until one is left, then renumbers the nodes.
fn tree(length: usize, random: &mut Random) -> Vec<[i64; 2]> {
    let leaves = length.div_ceil(2);
    let mut roots: Vec<i64> = (0..leaves as i64).collect();
    let mut children = vec![[-1, -1]; leaves];
    while roots.len() > 1 {
        let pair = [0, 1].map(|_| roots.swap_remove(random.below(roots.len())));
        roots.push(children.len() as i64);
        children.push(pair);
    }
    let mut numbers: Vec<i64> = (0..length as i64).collect();
    (1..length).for_each(|at| numbers.swap(at, random.below(at + 1)));
    let mut table = vec![[-1, -1]; length];
    for (node, of) in children.into_iter().enumerate() {
        table[numbers[node] as usize] = of.map(|child| if child < 0 { child } else { numbers[child as usize] });
    }
    table
}

/// Each node takes up to two earlier nodes, which may be shared or the same twice.
fn graph(length: usize, random: &mut Random) -> Vec<[i64; 2]> {
    (0..length)
        .map(|node| [0, 1].map(|_| random.below(node + 2) as i64 - 1).map(|child| child.min(node as i64 - 1)))
        .collect()
}

pub(crate) fn int64(name: &str, shape: &[i64], elements: &[i64]) -> Tensor {
    let data = Bytes::from(elements.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<u8>>());
    Tensor { name: name.into(), datatype: DataType::Int64, shape: shape.to_vec(), data }
}

/// Returns a tensor's numbers, of either datatype.
pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    match tensor.datatype {
        DataType::Int64 => tensor.data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes) as f32).collect(),
        _ => floats(tensor),
    }
}

/// Reproducible random numbers.
pub(crate) struct Random(ripieno_workload::SeededRng);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(stream(seed, 0))
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        below(&mut self.0, bound as u64) as usize
    }
}
