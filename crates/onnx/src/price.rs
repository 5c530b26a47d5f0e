//! Cost of a cut: the tensors carried over it, and the additional work of the engine in the blocks
//! compared with the whole model.
//!
//! Between convolutions, engines keep images in their own layout. They also fuse additions and
//! activations into the previous operator. Both end at a cut. An image carried over the cut is
//! converted to ONNX's layout, and back for the next convolution.
//!
//! An elementwise operator takes all its images in one layout. So an addition with a carried image
//! runs in ONNX's layout and is not fused. The same holds for every user of the sum, up to the next
//! convolutions. In a residual network, a cut therefore affects every following block up to one
//! whose shortcut is a convolution. On ONNX Runtime, this is most of the cost of cuts
//! (docs/guide/slicing.md). Cuts outside residual blocks do not have it.
//!
//! Prices are bytes per row that are additionally read or written. The time per byte depends on the
//! engine; a caller with an engine measures it.

use crate::cuts::Cuts;
use crate::graph::OnnxModel;
use crate::line::{OperatorLine, row_bytes};
use std::collections::{BTreeMap, BTreeSet};

/// Cost of one cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPrice {
    /// Size of the tensors carried over the cut per row, in bytes. An open length counts as 64.
    pub carried_bytes: u64,
    /// Size of the images per row, in bytes, that blocks convert between ONNX's and the engine's
    /// layout, and the whole model does not.
    pub turned_bytes: u64,
    /// Operators that the whole model fuses into the previous operator and the blocks do not, with
    /// their numbers.
    pub unfused: BTreeMap<String, usize>,
    /// Total cost in bytes per row: all moved bytes, plus a constant per additional tensor.
    pub weight: u64,
}

/// The layout in which an operator takes images.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LayoutKind {
    /// The engine's own layout; the operator converts other images to it.
    Window,
    /// Any layout, if all images of the operator have the same one.
    Elementwise,
    /// ONNX's layout.
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

/// A model with the layouts of its values when an engine runs it as a whole.
pub(crate) struct Layouts<'a> {
    line: &'a OperatorLine<'a>,
    /// Whether each value is an image in the engine's own layout.
    own: Vec<bool>,
    /// Whether an operator takes the value in ONNX's layout, so that the whole model converts it as
    /// well.
    turned: Vec<bool>,
    /// Whether only elementwise operators with outputs of the same size take the value.
    within: Vec<bool>,
    /// Size of the tensors carried over each cut, from the operator line.
    carried: Vec<Option<u64>>,
}

impl OnnxModel {
    /// Returns the cost of each cut.
    pub fn prices(&self, cuts: &Cuts) -> Vec<CutPrice> {
        let line = OperatorLine::new(self);
        let layouts = Layouts::new(&line);
        cuts.places.iter().map(|&cut| layouts.price(cut)).collect()
    }
}

impl<'a> Layouts<'a> {
    pub(crate) fn new(line: &'a OperatorLine<'a>) -> Layouts<'a> {
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

    /// Determines the layout of an operator's inputs and outputs in the whole model. `place` is the
    /// operator's place.
    fn follow(&mut self, place: usize) {
        let (kind, line) = (self.kind(place), self.line);
        let needs = &line.needs[place];
        let alike =
            kind == LayoutKind::Elementwise && needs.iter().all(|&value| self.own[value]) && self.same_shape(place);
        let own = kind == LayoutKind::Window || alike;
        for output in self.outputs(place) {
            self.own[output] = own && line.model.values[output].shape.len() == 4;
        }
        let given = self.outputs(place).map(|output| self.bytes(output)).max().unwrap_or(0);
        for &value in needs {
            self.turned[value] |= !own;
            self.within[value] &= kind == LayoutKind::Elementwise && self.bytes(value) == given;
        }
    }

    pub(crate) fn price(&self, cut: usize) -> CutPrice {
        let carried = self.line.carried(cut);
        let out = carried.iter().filter(|&&value| !self.turned[value]);
        let mut price = CutPrice {
            carried_bytes: carried.iter().map(|&value| self.bytes(value)).sum(),
            turned_bytes: out.map(|&value| self.image_bytes(value)).sum(),
            unfused: BTreeMap::new(),
            weight: self.carried[cut].unwrap_or(u64::MAX),
        };
        // Values in ONNX's layout after the cut that the whole model has in the engine's layout.
        // `turned` are those that were converted back.
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
            if self.kind(place) == LayoutKind::Window {
                let first = needs.iter().filter(|&&value| plain.contains(&value) && turned.insert(value));
                price.turned_bytes += first.map(|&value| self.bytes(value)).sum::<u64>();
            } else if is_own && takes_plain || needs.iter().any(|value| parted.contains(value)) {
                let out = needs.iter().filter(|&&value| is_own && !plain.contains(&value) && !self.turned[value]);
                price.turned_bytes += out.map(|&value| self.image_bytes(value)).sum::<u64>();
                let around = needs.iter().copied().chain(self.outputs(place));
                moved += around.map(|value| self.bytes(value)).sum::<u64>();
                *price.unfused.entry(self.operator(place).to_owned()).or_default() += 1;
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

    /// Whether the cut at this value prevents the engine from fusing an operator with the following
    /// ones.
    fn is_parted(&self, value: usize) -> bool {
        self.within[value] && self.line.model.values[value].node.is_some()
    }

    fn kind(&self, place: usize) -> LayoutKind {
        match self.operator(place) {
            kind if WINDOWS.contains(&kind) => LayoutKind::Window,
            kind if ELEMENTWISE.contains(&kind) => LayoutKind::Elementwise,
            _ => LayoutKind::Other,
        }
    }

    fn operator(&self, place: usize) -> &str {
        &self.line.model.nodes[self.line.places[place]].proto.op_type
    }

    fn outputs(&self, place: usize) -> impl Iterator<Item = usize> + use<'a> {
        let line = self.line;
        line.model.nodes[line.places[place]].outputs.iter().flatten().copied()
    }

    /// Whether all inputs have the same shape. Engines broadcast a small image to a large one only
    /// in ONNX's layout.
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

    fn prices(model: &OnnxModel, tensors: &[&str]) -> Vec<CutPrice> {
        let tensors: Vec<String> = tensors.iter().map(|&tensor| tensor.to_owned()).collect();
        model.prices(&model.cuts_at(&tensors).unwrap())
    }

    const IMAGE: u64 = 8 * 8 * 8 * 4;

    /// Both residual blocks add their input. So a cut before the first one affects both, a cut
    /// before the second one affects one, and a cut before the pooling affects none.
    #[test]
    fn a_cut_before_residuals_undoes_them_all() {
        let model = residual_network().model();
        let [stem, a, b] = &prices(&model, &["stem", "a", "b"])[..] else { panic!("three cuts") };
        let apart =
            |price: &CutPrice| price.unfused.iter().map(|(name, &count)| (name.clone(), count)).collect::<Vec<_>>();
        assert_eq!(apart(stem), [("Add".to_owned(), 2), ("Relu".to_owned(), 2)]);
        assert_eq!(apart(a), [("Add".to_owned(), 1), ("Relu".to_owned(), 1)]);
        assert_eq!(apart(b), []);
        // Conversions: the carried image, the other operand of each addition, and each sum for the
        // next convolution.
        assert_eq!([stem, a, b].map(|price| price.turned_bytes / IMAGE), [6, 4, 2]);
        assert_eq!([stem, a, b].map(|price| price.carried_bytes / IMAGE), [1, 1, 1]);
        assert!(stem.weight > a.weight && a.weight > b.weight);
    }

    #[test]
    fn a_cut_within_a_layer_parts_its_operators() {
        let model = residual_network().model();
        let [conv, norm] = &prices(&model, &["stem_conv", "stem_norm"])[..] else { panic!("two cuts") };
        assert!(conv.unfused.contains_key("BatchNormalization") && norm.unfused["Relu"] >= 1);
        let model = encoder().model();
        let [attended, up] = &prices(&model, &["first_attended", "first_up"])[..] else { panic!("two cuts") };
        assert_eq!(up.unfused.keys().collect::<Vec<_>>(), ["Relu"], "it runs within the product before it");
        assert!(attended.unfused.is_empty() && attended.turned_bytes == 0, "no image, and a product takes it");
    }
}
