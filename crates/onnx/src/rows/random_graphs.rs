//! Random graphs, whose templates fit the shapes whatever they do to the rows.

use crate::fixture::{Draft, axis, perm};
use crate::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto, elem};
use ripieno_base::Lcg;

/// Sizes of an input's dimensions behind the batch.
pub(super) const ROW: [i64; 2] = [4, 6];

/// A tensor of a random graph. A size of 0 or below stands for this many times the batch.
#[derive(Clone)]
struct RandomTensor {
    name: String,
    shape: Vec<i64>,
}

struct GraphMaker {
    draft: Draft,
    random: Lcg,
    pool: Vec<RandomTensor>,
    count: usize,
    /// Chance in percent that an operator may combine rows.
    mixing: u64,
}

impl GraphMaker {
    fn new(seed: u64) -> GraphMaker {
        let mut random = Lcg::new(seed);
        let mixing = [0, 30, 80][random.below(3) as usize];
        let mut draft = Draft::default();
        draft.input("x", elem::FLOAT, &[-1, ROW[0], ROW[1]]);
        draft.ints("list_0", &[0]);
        draft.ints("list_1", &[1]);
        draft.scalar("int_0", 0);
        draft.scalar("int_1", 1);
        draft.op("Shape", &["x"], &["x_shape"]);
        draft.op("Gather", &["x_shape", "list_0"], &["n"]);
        let x = RandomTensor { name: "x".to_owned(), shape: vec![-1, ROW[0], ROW[1]] };
        GraphMaker { draft, random, pool: vec![x], count: 0, mixing }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("t{}", self.count)
    }

    fn op(&mut self, op: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let name = self.fresh();
        self.draft.op(op, inputs, &[&name]).attribute = attributes;
        name
    }

    fn ints(&mut self, values: &[i64]) -> String {
        let name = self.fresh();
        self.draft.ints(&name, values);
        name
    }

    fn keep(&mut self, name: String, shape: Vec<i64>) {
        if shape.len() <= 5 && shape.iter().map(|size| size.abs().max(1)).product::<i64>() <= 4096 {
            self.pool.push(RandomTensor { name, shape });
        }
    }

    /// Returns a tensor, the last ones more often.
    fn pick(&mut self) -> RandomTensor {
        let back = self.below(3).min(self.pool.len() - 1);
        self.pool[self.pool.len() - 1 - back].clone()
    }

    /// Returns an axis of a tensor that does not hold the batch, or any axis if rows may combine.
    fn axis(&mut self, of: &RandomTensor) -> Option<usize> {
        let mixes = self.random.below(100) < self.mixing;
        let axes: Vec<usize> = (0..of.shape.len()).filter(|&at| mixes || of.shape[at] > 0).collect();
        if axes.is_empty() { None } else { Some(axes[self.below(axes.len())]) }
    }

    /// Returns a list that holds the sizes of a shape at run time.
    fn sizes(&mut self, shape: &[i64]) -> String {
        let parts: Vec<String> = shape
            .iter()
            .map(|&size| match size {
                1.. => self.ints(&[size]),
                _ => {
                    let times = self.ints(&[-size]);
                    self.op("Mul", &["n", &times], vec![])
                }
            })
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.op("Concat", &parts, axis(0))
    }

    /// Adds one template.
    fn step(&mut self) {
        let from = self.pick();
        match self.below(12) {
            0 => self.unary(&from),
            1 => self.binary(&from),
            2 | 3 => self.reduction(&from),
            4 | 5 => self.layout(&from),
            6 => self.fold(&from),
            7 => self.pieces(&from),
            8 => self.product(&from),
            9 => self.network(&from),
            10 => self.selection(&from),
            _ if self.random.below(100) < self.mixing => self.trap(&from),
            _ => self.unary(&from),
        }
    }

    fn unary(&mut self, from: &RandomTensor) {
        let op = ["Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Floor", "Erf", "Identity"][self.below(8)];
        let name = self.op(op, &[&from.name], vec![]);
        self.keep(name, from.shape.clone());
    }

    fn binary(&mut self, from: &RandomTensor) {
        let others: Vec<RandomTensor> = self.pool.iter().filter(|other| other.shape == from.shape).cloned().collect();
        let other = others[self.below(others.len())].clone();
        let op = ["Add", "Sub", "Mul", "Max", "Min"][self.below(5)];
        let name = self.op(op, &[&from.name, &other.name], vec![]);
        self.keep(name, from.shape.clone());
    }

    fn reduction(&mut self, from: &RandomTensor) {
        let Some(at) = self.axis(from) else { return };
        let op =
            ["ReduceMax", "ReduceMean", "ReduceSum", "ReduceMin", "Softmax", "CumSum", "LogSoftmax"][self.below(7)];
        match op {
            "Softmax" | "LogSoftmax" => {
                let name = self.op(op, &[&from.name], axis(at as i64));
                self.keep(name, from.shape.clone());
            }
            "CumSum" => {
                let place = format!("axis_{}", self.fresh());
                self.draft.scalar(&place, at as i64);
                let name = self.op(op, &[&from.name, &place], vec![]);
                self.keep(name, from.shape.clone());
            }
            _ => self.reduced(op, from, at),
        }
    }

    /// A reduction, alone or taken from what it reduces.
    fn reduced(&mut self, op: &str, from: &RandomTensor, at: usize) {
        let (inputs, attributes) = match op {
            "ReduceSum" => (vec![from.name.clone(), self.ints(&[at as i64])], NodeProto::default()),
            _ => (vec![from.name.clone()], NodeProto::default().with_ints("axes", &[at as i64])),
        };
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        match self.below(3) {
            0 if from.shape.len() > 1 => {
                let name = self.op(op, &inputs, attributes.with_int("keepdims", 0).attribute);
                let mut shape = from.shape.clone();
                shape.remove(at);
                self.keep(name, shape);
            }
            _ => {
                let most = self.op(op, &inputs, attributes.attribute);
                let name = self.op("Sub", &[&from.name, &most], vec![]);
                self.keep(name, from.shape.clone());
            }
        }
    }

    fn layout(&mut self, from: &RandomTensor) {
        let rank = from.shape.len();
        match self.below(4) {
            0 | 1 => {
                let mut order: Vec<i64> = (0..rank as i64).collect();
                (1..rank).for_each(|at| order.swap(at, self.random.below(at as u64 + 1) as usize));
                let name = self.op("Transpose", &[&from.name], perm(&order));
                self.keep(name, order.iter().map(|&at| from.shape[at as usize]).collect());
            }
            2 => {
                let at = self.below(rank + 1);
                let place = self.ints(&[at as i64]);
                let name = self.op("Unsqueeze", &[&from.name, &place], vec![]);
                let mut shape = from.shape.clone();
                shape.insert(at, 1);
                self.keep(name, shape);
            }
            _ => {
                let Some(at) = (0..rank).find(|&at| from.shape[at] == 1) else { return };
                let place = self.ints(&[at as i64]);
                let name = self.op("Squeeze", &[&from.name, &place], vec![]);
                let mut shape = from.shape.clone();
                shape.remove(at);
                self.keep(name, shape);
            }
        }
    }

    /// A reshape that joins two neighbours, or cuts a dimension in two.
    fn fold(&mut self, from: &RandomTensor) {
        let mut shape = from.shape.clone();
        let at = self.below(shape.len().max(1));
        let Some(&size) = shape.get(at) else { return };
        let joined =
            shape.get(at + 1).map(|next| if size < 0 && *next < 0 { 0 } else { size * next }).filter(|&size| size != 0);
        let mixes = self.random.below(100) < self.mixing;
        match joined {
            Some(joined) if self.below(2) == 0 => {
                shape.splice(at..at + 2, [joined]);
            }
            _ => {
                let part = [2, 3, 4, 6][self.below(4)];
                if size.abs() % part != 0 || (size < 0 && size.abs() < part) {
                    return;
                }
                // The batch stays before the other part, or rows are cut.
                let parts = if mixes { [part, size / part] } else { [size / part, part] };
                shape.splice(at..=at, parts);
            }
        }
        let target = match self.below(2) {
            0 if shape.iter().filter(|&&size| size < 0).count() <= 1 => {
                let open: Vec<i64> = shape.iter().map(|&size| size.max(-1)).collect();
                self.ints(&open)
            }
            _ => self.sizes(&shape),
        };
        let name = self.op("Reshape", &[&from.name, &target], vec![]);
        self.keep(name, shape);
    }

    fn pieces(&mut self, from: &RandomTensor) {
        let Some(at) = self.axis(from) else { return };
        let (size, place) = (from.shape[at], self.ints(&[at as i64]));
        let mut shape = from.shape.clone();
        let name = match self.below(4) {
            0 => {
                shape[at] = 2 * size;
                self.op("Concat", &[&from.name, &from.name], axis(at as i64))
            }
            1 if size >= 2 => {
                shape[at] = size - 1;
                let (start, end) = (self.ints(&[1]), self.ints(&[i64::MAX]));
                self.op("Slice", &[&from.name, &start, &end, &place], vec![])
            }
            2 => {
                // The first row is there in any batch.
                shape.remove(at);
                self.op("Gather", &[&from.name, "int_0"], axis(at as i64))
            }
            _ => {
                let times: Vec<i64> = (0..shape.len()).map(|other| if other == at { 2 } else { 1 }).collect();
                let times = self.ints(&times);
                shape[at] = 2 * size;
                self.op("Tile", &[&from.name, &times], vec![])
            }
        };
        self.keep(name, shape);
    }

    fn product(&mut self, from: &RandomTensor) {
        let rank = from.shape.len();
        let Some(&last) = from.shape.last().filter(|&&last| last > 0) else { return };
        match self.below(3) {
            0 if rank >= 2 && self.random.below(100) < self.mixing => {
                // All pairs of the last but one dimension.
                let mut order: Vec<i64> = (0..rank as i64).collect();
                order.swap(rank - 1, rank - 2);
                let turned = self.op("Transpose", &[&from.name], perm(&order));
                let name = self.op("MatMul", &[&from.name, &turned], vec![]);
                let mut shape = from.shape.clone();
                shape[rank - 1] = shape[rank - 2];
                self.keep(name, shape);
            }
            _ => {
                let weight = format!("w_{}", self.fresh());
                self.draft.weight(&weight, &[last, 6]);
                let name = self.op("MatMul", &[&from.name, &weight], vec![]);
                let mut shape = from.shape.clone();
                shape[rank - 1] = 6;
                self.keep(name, shape);
            }
        }
    }

    fn network(&mut self, from: &RandomTensor) {
        let rank = from.shape.len();
        match (self.below(3), &from.shape[..]) {
            (0, [.., last]) if *last > 0 => {
                let scale = format!("s_{}", self.fresh());
                self.draft.weight(&scale, &[*last]);
                let name = self.op("LayerNormalization", &[&from.name, &scale], axis(-1));
                self.keep(name, from.shape.clone());
            }
            (1, [time, batch, width]) if *time > 0 && *width > 0 => {
                let (w, r) = (format!("w_{}", self.fresh()), format!("r_{}", self.fresh()));
                self.draft.weight(&w, &[1, 9, *width]);
                self.draft.weight(&r, &[1, 9, 3]);
                let attributes =
                    NodeProto::default().with_int("hidden_size", 3).with_int("linear_before_reset", 1).attribute;
                let name = self.op("GRU", &[&from.name, &w, &r], attributes);
                self.keep(name, vec![*time, 1, *batch, 3]);
            }
            (_, [_, channels, ..]) if *channels > 0 && rank >= 3 => {
                let name = self.op("GlobalAveragePool", &[&from.name], vec![]);
                let mut shape = vec![1; rank];
                shape[..2].copy_from_slice(&from.shape[..2]);
                self.keep(name, shape);
            }
            _ => {}
        }
    }

    /// Operators that pick by index or by condition.
    fn selection(&mut self, from: &RandomTensor) {
        let Some(at) = self.axis(from) else { return };
        let most = self.op("ArgMax", &[&from.name], NodeProto::default().with_int("axis", at as i64).attribute);
        match self.below(3) {
            0 => {
                let name = self.op("GatherElements", &[&from.name, &most], axis(at as i64));
                let mut shape = from.shape.clone();
                shape[at] = 1;
                self.keep(name, shape);
            }
            1 => {
                let real = self.op("Cast", &[&most], NodeProto::default().with_int("to", 1).attribute);
                let name = self.op("Add", &[&from.name, &real], vec![]);
                self.keep(name, from.shape.clone());
            }
            _ => {
                let real = self.op("Cast", &[&most], NodeProto::default().with_int("to", 1).attribute);
                let test = self.op("Greater", &[&from.name, &real], vec![]);
                let minus = self.op("Neg", &[&from.name], vec![]);
                let name = self.op("Where", &[&test, &from.name, &minus], vec![]);
                self.keep(name, from.shape.clone());
            }
        }
    }

    /// Ways in which rows meet that no axis shows.
    fn trap(&mut self, from: &RandomTensor) {
        let real = |maker: &mut GraphMaker, of: &str| {
            maker.op("Cast", &[of], NodeProto::default().with_int("to", 1).attribute)
        };
        let name = match self.below(6) {
            0 => {
                let count = real(self, "n");
                self.op("Div", &[&from.name, &count], vec![])
            }
            1 => {
                let q = self.fresh();
                let (scale, zero) = (format!("{q}_scale"), format!("{q}_zero"));
                self.draft.op("DynamicQuantizeLinear", &[&from.name], &[&q, &scale, &zero]);
                self.op("DequantizeLinear", &[&q, &scale, &zero], vec![])
            }
            2 => {
                let most = self.op("ReduceMax", &[&from.name], NodeProto::default().with_int("keepdims", 0).attribute);
                let limit = format!("limit_{most}");
                self.draft.weight(&limit, &[]);
                let test = self.op("Greater", &[&most, &limit], vec![]);
                let branches = ["then_branch", "else_branch"].map(|name| branch(name, &from.name));
                self.op("If", &[&test], branches.to_vec())
            }
            3 => {
                let places = self.op("NonZero", &[&from.name], vec![]);
                let size = self.op("Size", &[&places], vec![]);
                let count = real(self, &size);
                self.op("Add", &[&from.name, &count], vec![])
            }
            4 => {
                let count = self.op("Squeeze", &["n", "list_0"], vec![]);
                let range = self.op("Range", &["int_0", &count, "int_1"], vec![]);
                let most = self.op("ReduceMax", &[&range], NodeProto::default().with_int("keepdims", 0).attribute);
                let count = real(self, &most);
                self.op("Mul", &[&from.name, &count], vec![])
            }
            _ => {
                let Some(at) = from.shape.iter().position(|&size| size == -1) else { return };
                let count = self.op("Squeeze", &["n", "list_0"], vec![]);
                let range = self.op("Range", &["int_0", &count, "int_1"], vec![]);
                let range = real(self, &range);
                let mut shape = vec![1; from.shape.len()];
                shape[at] = -1;
                let target = self.ints(&shape);
                let column = self.op("Reshape", &[&range, &target], vec![]);
                self.op("Add", &[&from.name, &column], vec![])
            }
        };
        self.keep(name, from.shape.clone());
    }

    /// Makes the last tensor the output, with the batch first.
    fn finish(mut self) -> Draft {
        let last = self.pool[self.pool.len() - 1].clone();
        let name = match last.shape.iter().position(|&size| size < 0) {
            Some(at) if last.shape.iter().filter(|&&size| size < 0).count() == 1 => {
                let order: Vec<i64> = std::iter::once(at)
                    .chain((0..last.shape.len()).filter(|&other| other != at))
                    .map(|at| at as i64)
                    .collect();
                let turned = self.op("Transpose", &[&last.name], perm(&order));
                let rows = self.sizes(&[-1, last.shape.iter().map(|size| size.abs()).product()]);
                self.op("Reshape", &[&turned, &rows], vec![])
            }
            _ => {
                let all = self.op("ReduceMax", &[&last.name], NodeProto::default().with_int("keepdims", 0).attribute);
                self.op("Add", &["x", &all], vec![])
            }
        };
        self.draft.op("Identity", &[&name], &["y"]);
        self.draft.output("y", &[-1, -2]);
        self.draft
    }
}

/// A branch that gives a tensor as it is, or without what is below zero.
fn branch(name: &str, from: &str) -> AttributeProto {
    let (op, to) = (if name == "then_branch" { "Relu" } else { "Identity" }, format!("{from}_{name}"));
    let node = vec![NodeProto::new(op, &[from], &[&to])];
    let output = vec![ValueInfoProto { name: to, ..Default::default() }];
    let graph = GraphProto { node, output, ..GraphProto::default() };
    AttributeProto { name: name.to_owned(), g: Some(Box::new(graph)), r#type: 5, ..AttributeProto::default() }
}

/// Returns a graph of up to twenty operators.
pub(super) fn random_graph(seed: u64) -> Draft {
    let mut maker = GraphMaker::new(seed);
    for _ in 0..3 + maker.below(18) {
        maker.step();
    }
    maker.finish()
}
