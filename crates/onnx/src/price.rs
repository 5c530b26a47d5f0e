//! What a cut costs: what is carried over it, and what an engine does in the blocks that it would not do in the whole.
//!
//! Between convolutions engines keep images in a layout of their own, and run additions and activations within the operator
//! before them. A border ends both. What is carried over it is turned into ONNX's layout, and back for the next convolution. An
//! operator that goes element by element takes all its images in one layout, so an addition that takes a carried image runs in
//! ONNX's layout and on its own, and so does whatever takes its sum, up to the next convolutions: in a residual network one cut
//! undoes every block up to the next one whose shortcut is a convolution. On ONNX Runtime that is most of what cuts cost
//! (docs/slicing.md), and a cut elsewhere has none of it.
//!
//! Prices are bytes a row that are read or written once more. What a byte takes is the engine's, and measured by who has one.

use crate::cuts::Cuts;
use crate::graph::Model;
use crate::line::{Line, row_bytes};
use std::collections::{BTreeMap, BTreeSet};

/// What one cut costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    /// Bytes that are carried over it, for one row; an open length counts as 64.
    pub carried_bytes: u64,
    /// Bytes of images that are turned between ONNX's layout and an engine's own, which the whole keeps in the latter.
    pub turned_bytes: u64,
    /// Operators that the whole runs within the one before them, and the blocks on their own: how many of which.
    pub apart: BTreeMap<String, usize>,
    /// All bytes that are moved for its sake, a further tensor counting as some more.
    pub weight: u64,
}

/// How an operator takes images.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Has them turned into its own layout.
    Window,
    /// As they come, if all of them come in the same one.
    Elementwise,
    /// In ONNX's layout.
    Other,
}

const WINDOWS: [&str; 6] = ["AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"];
const ELEMENTWISE: [&str; 18] = [
    "Add",
    "BatchNormalization",
    "Clip",
    "Concat",
    "Div",
    "Elu",
    "Erf",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LayerNormalization",
    "LeakyRelu",
    "Mul",
    "PRelu",
    "Relu",
    "Sigmoid",
    "Sum",
    "Tanh",
];

/// A model with the layouts that an engine gives its values when it runs as a whole.
pub(crate) struct Layouts<'a> {
    line: &'a Line<'a>,
    /// By value: whether it is an image in the engine's own layout.
    own: Vec<bool>,
    /// By value: whether somebody takes it in ONNX's layout, so that the whole turns it, too.
    turned: Vec<bool>,
    /// By value: whether all who take it go element by element and give as much as they take.
    within: Vec<bool>,
    /// By cut: the bytes that the line tells of.
    carried: Vec<Option<u64>>,
}

impl Model {
    /// What each cut costs.
    pub fn prices(&self, cuts: &Cuts) -> Vec<Price> {
        let line = Line::new(self);
        let layouts = Layouts::new(&line);
        cuts.places.iter().map(|&cut| layouts.price(cut)).collect()
    }
}

impl<'a> Layouts<'a> {
    pub(crate) fn new(line: &'a Line<'a>) -> Layouts<'a> {
        let values = line.model.values.len();
        let mut layouts = Layouts {
            line,
            own: vec![false; values],
            turned: vec![false; values],
            within: vec![true; values],
            carried: line.prices(),
        };
        for place in 0..line.len() {
            layouts.follow(place);
        }
        line.model.outputs.iter().for_each(|&output| layouts.turned[output] = true);
        layouts
    }

    /// How the operator at a place takes its images in the whole, and leaves its results.
    fn follow(&mut self, place: usize) {
        let (kind, line) = (self.kind(place), self.line);
        let needs = &line.needs[place];
        let alike = kind == Kind::Elementwise && needs.iter().all(|&value| self.own[value]) && self.same_shape(place);
        let own = kind == Kind::Window || alike;
        for output in self.outputs(place) {
            self.own[output] = own && line.model.values[output].shape.len() == 4;
        }
        let given = self.outputs(place).map(|output| self.bytes(output)).max().unwrap_or(0);
        for &value in needs {
            self.turned[value] |= !own;
            self.within[value] &= kind == Kind::Elementwise && self.bytes(value) == given;
        }
    }

    pub(crate) fn price(&self, cut: usize) -> Price {
        let carried = self.line.carried(cut);
        let out = carried.iter().filter(|&&value| !self.turned[value]);
        let mut price = Price {
            carried_bytes: carried.iter().map(|&value| self.bytes(value)).sum(),
            turned_bytes: out.map(|&value| self.image_bytes(value)).sum(),
            apart: BTreeMap::new(),
            weight: self.carried[cut].unwrap_or(u64::MAX),
        };
        // What is in ONNX's layout behind the cut, though not in the whole; and what was turned into the other one since.
        let mut plain: BTreeSet<usize> = carried.iter().copied().filter(|&value| self.own[value]).collect();
        let parted: BTreeSet<usize> = carried.into_iter().filter(|&value| self.is_parted(value)).collect();
        let (mut turned, mut moved) = (BTreeSet::new(), 0);
        let last_use = |value: usize| self.line.last_use(value).map_or(0, |last| last + 1);
        let mut end = plain.iter().chain(&parted).map(|&value| last_use(value)).max().unwrap_or(0);
        let mut place = cut;
        while place < end {
            let needs = &self.line.needs[place];
            let is_own = self.outputs(place).any(|output| self.own[output]);
            let takes_plain = needs.iter().any(|value| plain.contains(value));
            if self.kind(place) == Kind::Window {
                let first = needs.iter().filter(|&&value| plain.contains(&value) && turned.insert(value));
                price.turned_bytes += first.map(|&value| self.bytes(value)).sum::<u64>();
            } else if is_own && takes_plain || needs.iter().any(|value| parted.contains(value)) {
                let out = needs.iter().filter(|&&value| is_own && !plain.contains(&value) && !self.turned[value]);
                price.turned_bytes += out.map(|&value| self.image_bytes(value)).sum::<u64>();
                let around = needs.iter().copied().chain(self.outputs(place));
                moved += around.map(|value| self.bytes(value)).sum::<u64>();
                *price.apart.entry(self.operator(place).to_owned()).or_default() += 1;
                for output in self.outputs(place).filter(|&output| self.own[output]) {
                    plain.insert(output);
                    end = end.max(last_use(output));
                }
            }
            place += 1;
        }
        price.weight = price.weight.saturating_add(price.turned_bytes).saturating_add(moved);
        price
    }

    /// Whether an operator computes it, and those who take it would run within that one.
    fn is_parted(&self, value: usize) -> bool {
        self.within[value] && self.line.model.values[value].node.is_some()
    }

    fn kind(&self, place: usize) -> Kind {
        match self.operator(place) {
            kind if WINDOWS.contains(&kind) => Kind::Window,
            kind if ELEMENTWISE.contains(&kind) => Kind::Elementwise,
            _ => Kind::Other,
        }
    }

    fn operator(&self, place: usize) -> &str {
        &self.line.model.nodes[self.line.places[place]].proto.op_type
    }

    fn outputs(&self, place: usize) -> impl Iterator<Item = usize> + use<'a> {
        let line = self.line;
        line.model.nodes[line.places[place]].outputs.iter().flatten().copied()
    }

    /// Engines spread a small image over a large one in ONNX's layout only.
    fn same_shape(&self, place: usize) -> bool {
        let concat = self.operator(place) == "Concat";
        let mut shapes = self.line.needs[place].iter().map(|&value| &self.line.model.values[value].shape);
        let first = shapes.next();
        concat || shapes.all(|shape| Some(shape) == first)
    }

    fn image_bytes(&self, value: usize) -> u64 {
        if self.own[value] { self.bytes(value) } else { 0 }
    }

    fn bytes(&self, value: usize) -> u64 {
        row_bytes(self.line.model, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{encoder, residual_network};

    fn prices(model: &Model, tensors: &[&str]) -> Vec<Price> {
        let tensors: Vec<String> = tensors.iter().map(|&tensor| tensor.to_owned()).collect();
        model.prices(&model.cuts_at(&tensors).unwrap())
    }

    const IMAGE: u64 = 8 * 8 * 8 * 4;

    /// Both residual blocks add what they take, so a cut before the first undoes both, before the second one of them, and before
    /// the pooling none.
    #[test]
    fn a_cut_before_residuals_undoes_them_all() {
        let model = residual_network().model();
        let [stem, a, b] = &prices(&model, &["stem", "a", "b"])[..] else { panic!("three cuts") };
        let apart = |price: &Price| price.apart.iter().map(|(name, &count)| (name.clone(), count)).collect::<Vec<_>>();
        assert_eq!(apart(stem), [("Add".to_owned(), 2), ("Relu".to_owned(), 2)]);
        assert_eq!(apart(a), [("Add".to_owned(), 1), ("Relu".to_owned(), 1)]);
        assert_eq!(apart(b), []);
        // Out, back, what each addition adds out, each sum back for the next window.
        assert_eq!([stem, a, b].map(|price| price.turned_bytes / IMAGE), [6, 4, 2]);
        assert_eq!([stem, a, b].map(|price| price.carried_bytes / IMAGE), [1, 1, 1]);
        assert!(stem.weight > a.weight && a.weight > b.weight);
    }

    #[test]
    fn a_cut_within_a_layer_parts_its_operators() {
        let model = residual_network().model();
        let [conv, norm] = &prices(&model, &["stem_conv", "stem_norm"])[..] else { panic!("two cuts") };
        assert!(conv.apart.contains_key("BatchNormalization") && norm.apart["Relu"] >= 1);
        let model = encoder().model();
        let [attended, up] = &prices(&model, &["first_attended", "first_up"])[..] else { panic!("two cuts") };
        assert_eq!(up.apart.keys().collect::<Vec<_>>(), ["Relu"], "it runs within the product before it");
        assert!(attended.apart.is_empty() && attended.turned_bytes == 0, "no image, and a product takes it");
    }
}
