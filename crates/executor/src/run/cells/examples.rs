//! Example requests of zeros and ones, to test a model and to measure its cells.

use super::wiring::{FeedSource, Wiring};
use crate::Tensor;
use crate::contract::buffer::into_bytes;
use crate::contract::walk_shape::{CELL, CHILDREN};
use crate::probe::profile::example_of;
use ripieno_base::Lcg;
use ripieno_model::{DataType, Steps, TensorSpec, Walk};

/// Returns the range of an input's integers, if known.
type InputRanges<'a> = &'a dyn Fn(&str) -> Option<(i64, i64)>;

impl Wiring {
    /// Creates a request of this length: a sequence, a balanced tree, or a graph with alternating
    /// cells.
    pub(crate) fn example(&self, length: u32, range: InputRanges<'_>) -> Option<Vec<Tensor>> {
        let length = length.clamp(1, self.shape.max_length) as usize;
        let wanted = self.request_tensors.iter().map(|wanted| {
            let leading = if wanted.each { vec![1, length as i64] } else { vec![1] };
            let shape = [&leading[..], &wanted.row_shape].concat();
            let spec = TensorSpec { name: wanted.name.clone(), datatype: wanted.datatype, shape };
            example_of(&spec, range(&wanted.name)).ok()
        });
        let mut inputs = wanted.collect::<Option<Vec<Tensor>>>()?;
        if !self.shape.walk.brings_graph() {
            return Some(inputs);
        }
        if self.unfold.is_some() {
            return self.describe(&inputs).is_ok().then_some(inputs);
        }
        // The children of node n are arity·n + 1 and the following nodes, as in a heap. So there is
        // one root and no cycle.
        let arity = self.shape.arity.clamp(1, 2);
        let child = |at: usize| {
            Some(at + 1).filter(|&child| child < length && self.shape.arity > 0).map_or(-1, |child| child as i64)
        };
        inputs.push(table(CHILDREN, &[1, length as i64, arity as i64], (0..length * arity).map(child).collect()));
        if self.shape.walk == Walk::Graph {
            let cells: Vec<i64> =
                (0..).zip(&self.cells).filter(|(_, cell)| cell.steps == Steps::Nodes).map(|(at, _)| at).collect();
            inputs.push(table(CELL, &[1, length as i64], (0..length).map(|node| cells[node % cells.len()]).collect()));
        }
        // Alternating cells may not fit together; then no example exists.
        self.describe(&inputs).is_ok().then_some(inputs)
    }
}

impl Wiring {
    /// Creates an example whose numbers vary: ids within their tables, floats between -1 and 1.
    pub(crate) fn varied_example(&self, length: u32, seed: u64, range: InputRanges<'_>) -> Option<Vec<Tensor>> {
        let mut random = Lcg::new(seed);
        let mut inputs = self.example(length, range)?;
        for (tensor, input) in inputs.iter_mut().enumerate().take(self.request_tensors.len()) {
            let feeds = self.cells.iter().flat_map(|cell| &cell.feeds);
            let ids =
                feeds.filter(|feed| feed.from == FeedSource::Element(tensor)).filter_map(|feed| feed.vocabulary).min();
            input.data = match (input.datatype, ids) {
                (DataType::Fp32, _) => {
                    let numbers = (0..input.data.len() / 4).map(|_| random.below(2001) as f32 / 1000.0 - 1.0);
                    into_bytes(numbers.collect::<Vec<f32>>())
                }
                (DataType::Int64, Some(ids)) => {
                    let ids = (0..input.data.len() / 8).map(|_| random.below(ids.max(1) as u64) as i64);
                    into_bytes(ids.collect::<Vec<i64>>())
                }
                _ => continue,
            };
        }
        self.describe(&inputs).is_ok().then_some(inputs)
    }
}

fn table(name: &str, shape: &[i64], numbers: Vec<i64>) -> Tensor {
    Tensor { name: name.into(), datatype: DataType::Int64, shape: shape.to_vec(), data: into_bytes(numbers) }
}
