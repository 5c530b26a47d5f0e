//! Selection of cuts: at every layer, into even stages, or at given tensors.

use crate::error::{OnnxError, refuse};
use crate::estimate;
use crate::graph::OnnxModel;
use crate::line::OperatorLine;
use crate::weights::MAX_COST;

/// Places at which a model is cut, in order. A cut at place n ends a block after the n-th operator.
/// The last block ends with the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuts {
    pub(crate) places: Vec<usize>,
}

impl Cuts {
    /// Returns the number of blocks that the cuts make.
    pub fn blocks(&self) -> usize {
        self.places.len() + 1
    }

    /// Returns the cuts that group consecutive blocks. Each entry of `ends` is the number of blocks
    /// before a cut.
    pub fn grouped(&self, ends: &[usize]) -> Cuts {
        let place = |&end: &usize| end.checked_sub(1).and_then(|at| self.places.get(at).copied());
        Cuts { places: ends.iter().filter_map(place).collect() }
    }

    /// Returns the number of blocks of `finer` before each of these cuts. Both must be cuts of one
    /// model, and `finer` must contain all of these.
    pub fn ends_among(&self, finer: &Cuts) -> Vec<usize> {
        let end = |place: &usize| finer.places.binary_search(place).ok().map(|at| at + 1);
        self.places.iter().filter_map(end).collect()
    }

    /// Returns no cuts: one block.
    pub fn none() -> Cuts {
        Cuts { places: Vec::new() }
    }
}

/// Operators that begin a layer if they have weights.
const LAYERS: [&str; 12] = [
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Einsum",
    "GRU",
    "Gemm",
    "LSTM",
    "MatMul",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "RNN",
];
/// Inverse of the smallest share of the total work that a layer may have. A smaller layer joins the
/// previous one.
const MIN_SHARE: u64 = 400;
/// Number of steps in which the search for stages raises the allowed length of the longest stage,
/// from the shortest possible to twice that.
const STEPS: u64 = 12;
/// Lower bound on the cost of one byte per row at a cut, in nanoseconds, for a batch of 8. At a
/// cut, each byte is written and read once more.
const MIN_PRICE: u64 = 2;

impl OnnxModel {
    /// Cuts between all layers. A layer is an operator with weights, its normalisation and
    /// activation, and following operators without weights.
    ///
    /// Layers with the same input (query, key and value) stay together. A layer with less than one
    /// four-hundredth of the work joins the previous layer, because the overhead of a separate
    /// block would exceed its benefit.
    pub fn layers(&self) -> Cuts {
        let line = OperatorLine::new(self);
        let prices = line.prices();
        let heads: Vec<usize> = (0..line.len()).filter(|&place| begins_layer(&line, place)).collect();
        let mut places = Vec::new();
        let mut first = usize::MAX;
        for pair in heads.windows(2) {
            if first == usize::MAX {
                first = pair[0];
            }
            let siblings = line.needs[first] == line.needs[pair[1]];
            if let Some(cut) = cheapest(&prices, pair[0] + 1, pair[1]).filter(|_| !siblings) {
                places.push(cut);
                first = pair[1];
            }
        }
        let cuts = Cuts { places };
        let costs = self.estimate(&cuts, 8);
        merge_small(cuts, &costs)
    }

    /// Groups layers into `stages` blocks. `costs` is the time of each block of `layers`. `borders`
    /// is the part of the total time that the borders between these blocks take, if measured.
    ///
    /// Chooses the cuts with the lowest cost. The cost is the sum of the cuts' own costs plus half
    /// of the longest stage, which is a new request's average wait. So stages are even, unless even
    /// stages cost more than they save.
    pub fn stages(&self, layers: &Cuts, costs: &[u64], borders: Option<u64>, stages: usize) -> Result<Cuts, OnnxError> {
        if stages == 0 || stages > layers.blocks() || costs.len() != layers.blocks() {
            return refuse(format!(
                "{}: {stages} stages are asked for, but the model has {} layers that can be parted: ask for 1 to {}",
                self.path.display(),
                layers.blocks(),
                layers.blocks()
            ));
        }
        let weights: Vec<u64> = self.prices(layers).iter().map(|price| price.weight).collect();
        let prices = prices(&weights, borders);
        let costs = without_borders(costs, &prices, borders);
        Ok(Cuts { places: best_parts(&costs, &prices, stages).into_iter().map(|at| layers.places[at]).collect() })
    }

    /// Cuts after the operators that compute these tensors.
    pub fn cuts_at(&self, tensors: &[String]) -> Result<Cuts, OnnxError> {
        let line = OperatorLine::new(self);
        let mut places = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            places.push(self.cut_behind(&line, tensor)?);
        }
        places.sort_unstable();
        places.dedup();
        Ok(Cuts { places })
    }

    fn cut_behind(&self, line: &OperatorLine<'_>, tensor: &str) -> Result<usize, OnnxError> {
        let file = self.path.display();
        let Some(value) = self.value_named(tensor) else {
            return refuse(format!(
                "{file}: no operator computes a tensor '{tensor}': `ripieno slice --per-node` lists some"
            ));
        };
        let node = self.values[value].node;
        let Some(place) = node.and_then(|node| line.places.iter().position(|&at| at == node)) else {
            return refuse(format!("{file}: tensor '{tensor}' does not end an operator on rows: name another one"));
        };
        let cut = place + 1;
        if cut == line.len() {
            return refuse(format!("{file}: nothing comes behind tensor '{tensor}': name an earlier one"));
        }
        match line.blocking_value(cut) {
            None => Ok(cut),
            Some(stuck) => refuse(format!(
                "{file}: a cut behind '{tensor}' would have to carry '{stuck}', which has no dimension that is the batch: name \
                 another one"
            )),
        }
    }
}

fn begins_layer(line: &OperatorLine<'_>, place: usize) -> bool {
    let node = &line.model.nodes[line.places[place]];
    let weighted = node.inputs.iter().flatten().any(|&input| line.constant[input]);
    let embeds = || {
        let table = node.inputs.first().copied().flatten();
        node.proto.op_type == "Gather" && table.is_some_and(|table| line.constant[table]) && place == 0
    };
    weighted && LAYERS.contains(&&*node.proto.op_type) || embeds()
}

/// Returns the cheapest possible cut in `from..=to`. Of equally cheap cuts, returns the last.
fn cheapest(prices: &[Option<u64>], from: usize, to: usize) -> Option<usize> {
    let possible = (from..=to).filter_map(|cut| prices.get(cut).copied().flatten().map(|price| (price, cut)));
    possible.min_by_key(|&(price, cut)| (price, std::cmp::Reverse(cut))).map(|(_, cut)| cut)
}

/// Joins each layer with little work to the previous layer. The first layer is joined to the
/// second.
fn merge_small(cuts: Cuts, costs: &[u64]) -> Cuts {
    let least = costs.iter().sum::<u64>() / MIN_SHARE;
    let mut kept = Vec::new();
    let mut before = costs.first().copied().unwrap_or(0);
    for (&cut, &cost) in cuts.places.iter().zip(costs.iter().skip(1)) {
        if before >= least && cost >= least {
            kept.push(cut);
            before = cost;
        } else {
            before += cost;
        }
    }
    Cuts { places: kept }
}

/// Returns the cost of each cut in nanoseconds. If measured, the total is `borders`, shared out in
/// proportion to the bytes that each cut moves. The cost of a cut is at least the cost of its
/// memory traffic.
fn prices(weights: &[u64], borders: Option<u64>) -> Vec<u64> {
    let all: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let price = |&weight: &u64| {
        let share = u128::from(borders.unwrap_or(0)) * u128::from(weight) / all.max(1);
        (share as u64).max(weight.saturating_mul(MIN_PRICE)).min(MAX_COST)
    };
    weights.iter().map(price).collect()
}

/// Returns the time of each layer inside a block: the measured time minus half of the cost of each
/// adjacent border.
fn without_borders(costs: &[u64], prices: &[u64], borders: Option<u64>) -> Vec<u64> {
    let halves = |at: usize| {
        let before = at.checked_sub(1).map_or(0, |before| prices[before]);
        (before + prices.get(at).copied().unwrap_or(0)) / 2
    };
    let layer = |(at, &cost): (usize, &u64)| match borders {
        Some(_) => cost.saturating_sub(halves(at)).max(cost / 4).max(1),
        None => cost,
    };
    costs.iter().enumerate().map(layer).collect()
}

/// Returns the cuts into `parts` parts whose own cost plus half of the largest part is lowest. A
/// cut is an index in `prices`.
fn best_parts(costs: &[u64], prices: &[u64], parts: usize) -> Vec<usize> {
    let least = min_largest(costs, parts);
    let total = |places: &Vec<usize>| {
        let paid: u128 = places.iter().map(|&at| u128::from(prices[at])).sum();
        paid + u128::from(largest(costs, places)) / 2
    };
    let ways = (0..=STEPS).map(|step| cheapest_parts(costs, prices, parts, least + least / STEPS * step));
    ways.min_by_key(total).unwrap_or_default()
}

/// Returns the size of the largest part.
fn largest(costs: &[u64], places: &[usize]) -> u64 {
    let ends = places.iter().map(|&at| at + 1).chain([costs.len()]);
    let mut from = 0;
    ends.map(|end| costs[std::mem::replace(&mut from, end)..end].iter().sum()).max().unwrap_or(0)
}

/// Returns the smallest possible size of the largest part.
fn min_largest(costs: &[u64], parts: usize) -> u64 {
    let (mut low, mut high) = (costs.iter().copied().max().unwrap_or(0), costs.iter().sum());
    while low < high {
        let middle = low + (high - low) / 2;
        if parts_needed(costs, middle) <= parts { high = middle } else { low = middle + 1 }
    }
    low
}

/// Returns the number of parts needed if no part may exceed `most`.
fn parts_needed(costs: &[u64], most: u64) -> usize {
    let (mut parts, mut sum) = (1, 0u64);
    for &cost in costs {
        if sum + cost > most {
            (parts, sum) = (parts + 1, 0);
        }
        sum += cost;
    }
    parts
}

/// Returns the cheapest cuts into `parts` parts of at most `most`. A cut is an index in `prices`.
fn cheapest_parts(costs: &[u64], prices: &[u64], parts: usize, most: u64) -> Vec<usize> {
    let count = costs.len();
    let sums: Vec<u64> = std::iter::once(0).chain(costs.iter().scan(0, |sum, &cost| Some(add(sum, cost)))).collect();
    // best[k][end]: lowest cost and wait of `k + 1` parts that end before layer `end`, and the
    // first layer of the last part.
    let mut best: Vec<Vec<Option<(u128, usize)>>> = vec![vec![None; count + 1]; parts];
    // A request that arrives during a part waits for half of it, on average.
    let all = u128::from(sums[count]).max(1);
    let wait = |from: usize, to: usize| u128::from((sums[to] - sums[from]).min(1 << 50)).pow(2) / (2 * all);
    for end in 1..=count {
        best[0][end] = (sums[end] <= most).then(|| (wait(0, end), 0));
    }
    for part in 1..parts {
        for end in part + 1..=count {
            let way = |begin: usize| {
                let (before, _) = best[part - 1][begin]?;
                let fits = sums[end] - sums[begin] <= most;
                fits.then(|| (before + u128::from(prices[begin - 1]) + wait(begin, end), begin))
            };
            best[part][end] = (part..end).filter_map(way).min();
        }
    }
    let mut places = Vec::with_capacity(parts - 1);
    let mut end = count;
    for part in (1..parts).rev() {
        let Some((_, begin)) = best[part][end] else { break };
        places.push(begin - 1);
        end = begin;
    }
    places.reverse();
    places
}

fn add(sum: &mut u64, cost: u64) -> u64 {
    *sum = sum.saturating_add(cost);
    *sum
}

impl OnnxModel {
    /// Estimates the time of each block for `rows` rows in nanoseconds, from the operations and
    /// bytes that the shapes imply.
    ///
    /// The estimate suffices to compare blocks with each other. Measured times are more accurate.
    pub fn estimate(&self, cuts: &Cuts, rows: i64) -> Vec<u64> {
        let line = OperatorLine::new(self);
        let ends = cuts.places.iter().copied().chain([line.len()]);
        let mut from = 0;
        let mut costs = Vec::with_capacity(cuts.blocks());
        for end in ends {
            let nodes = line.places[from..end].iter();
            costs.push(nodes.fold(1u64, |sum, &node| sum.saturating_add(estimate::nanos(self, node, rows))));
            from = end;
        }
        costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_as_even_as_can_be() {
        let costs = [4, 1, 1, 1, 1, 4, 2, 2];
        let most = min_largest(&costs, 4);
        assert_eq!(most, 4);
        assert_eq!(cheapest_parts(&costs, &[1; 7], 4, most), [0, 4, 5]);
        assert_eq!(cheapest_parts(&costs, &[1; 7], 1, 16), []);
        assert_eq!(cheapest_parts(&costs, &[1; 7], 8, 4), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn groups_of_blocks_are_named_by_their_ends() {
        let layers = Cuts { places: vec![3, 5, 9, 12] };
        let cuts = layers.grouped(&[1, 3]);
        assert_eq!(cuts.places, [3, 9]);
        assert_eq!(cuts.ends_among(&layers), [1, 3]);
        assert_eq!(layers.grouped(&[]), Cuts::none());
        assert_eq!(layers.grouped(&[0, 5]), Cuts::none(), "there is no cut before the first block or behind the last");
    }

    #[test]
    fn a_smaller_tensor_is_worth_a_little_unevenness() {
        let costs = [10, 10, 10, 10, 10];
        assert_eq!(cheapest_parts(&costs, &[9, 9, 1, 9], 2, 30), [2]);
        assert_eq!(cheapest_parts(&costs, &[9, 1, 9, 9], 2, 30), [1]);
        assert_eq!(cheapest_parts(&costs, &[1, 9, 9, 9], 2, 30), [1], "a part of 40 would be too large");
    }

    #[test]
    fn a_cut_is_moved_as_far_as_its_price_is_worth() {
        let costs = [100, 100, 100, 100, 100, 100];
        assert_eq!(best_parts(&costs, &[5; 5], 2), [2], "all alike: even");
        assert_eq!(
            best_parts(&costs, &[5, 5, 60, 5, 5], 2),
            [1],
            "50 more for half of the longest, 55 less for the cut"
        );
        assert_eq!(best_parts(&costs, &[5, 5, 50, 5, 5], 2), [2]);
        assert_eq!(best_parts(&costs, &[1, 5, 150, 60, 60], 2), [1]);
    }

    #[test]
    fn measured_borders_are_shared_out_and_taken_off_the_layers() {
        assert_eq!(prices(&[10, 30], Some(400)), [100, 300]);
        assert_eq!(prices(&[10, 30], Some(4)), [20, 60], "memory takes as much");
        assert_eq!(prices(&[10, 30], None), [20, 60]);
        assert_eq!(without_borders(&[1000, 1000, 200], &[100, 300], Some(400)), [950, 800, 50]);
        assert_eq!(without_borders(&[1000, 1000, 200], &[100, 300], None), [1000, 1000, 200]);
    }

    #[test]
    fn what_is_hardly_any_work_joins_its_neighbour() {
        let cuts = Cuts { places: vec![1, 2, 3, 4] };
        assert_eq!(merge_small(cuts.clone(), &[1000, 1, 1000, 1, 1000]).places, [2, 4]);
        assert_eq!(merge_small(cuts.clone(), &[1, 1000, 1000, 1000, 1]).places, [2, 3]);
        assert_eq!(merge_small(cuts.clone(), &[1; 5]), cuts);
    }
}
