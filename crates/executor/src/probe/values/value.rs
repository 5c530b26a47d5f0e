//! Static knowledge about a tensor's elements: their origin and their bounds.

use ripieno_onnx::proto::elem;

/// Origin of elements. Elements computed from several origins have the last of them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ElementOrigin {
    /// The file.
    Constant,
    /// The shapes of a request's tensors.
    Shapes,
    /// The elements of a request's tensors.
    Request,
}

/// Bounds of a number, as floats, because only magnitudes beyond 32 bits matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NumberBounds {
    pub(super) least: f64,
    pub(super) most: f64,
}

/// The range of 32-bit integers.
pub(super) const NARROW: NumberBounds = NumberBounds { least: i32::MIN as f64, most: i32::MAX as f64 };
/// The unbounded range.
pub(super) const ANY: NumberBounds = NumberBounds { least: f64::NEG_INFINITY, most: f64::INFINITY };
/// Upper bound on dimensions and counts. No request has more elements.
pub(super) const MAX_LENGTH: f64 = (1 << 24) as f64;

impl NumberBounds {
    pub(super) fn new(least: f64, most: f64) -> NumberBounds {
        NumberBounds { least, most }
    }

    pub(super) fn union(self, other: NumberBounds) -> NumberBounds {
        NumberBounds::new(self.least.min(other.least), self.most.max(other.most))
    }

    pub(super) fn within(self, other: NumberBounds) -> bool {
        self.least >= other.least && self.most <= other.most
    }

    /// Applies `of` to all pairs of bounds and returns the bounds of the results. They are
    /// unbounded if a result is NaN.
    pub(super) fn of_ends(self, other: NumberBounds, of: impl Fn(f64, f64) -> f64) -> NumberBounds {
        let ends =
            [(self.least, other.least), (self.least, other.most), (self.most, other.least), (self.most, other.most)];
        let results = ends.map(|(a, b)| of(a, b));
        if results.iter().any(|result| result.is_nan()) {
            return ANY;
        }
        NumberBounds::new(
            results.into_iter().fold(f64::INFINITY, f64::min),
            results.into_iter().fold(f64::NEG_INFINITY, f64::max),
        )
    }

    /// Returns the bounds of a sum of at most `count` such numbers.
    pub(super) fn times(self, count: f64) -> NumberBounds {
        NumberBounds::new((self.least * count).min(0.0).min(self.least), (self.most * count).max(0.0).max(self.most))
    }

    /// Returns the range of the element type.
    pub(super) fn of_type(kind: i32) -> NumberBounds {
        match kind {
            elem::BOOL => NumberBounds::new(0.0, 1.0),
            elem::UINT8 => NumberBounds::new(0.0, 255.0),
            elem::INT8 => NumberBounds::new(-128.0, 127.0),
            elem::INT32 => NARROW,
            _ => ANY,
        }
    }
}

/// Static knowledge about a tensor.
#[derive(Clone, Debug)]
pub(super) struct TensorValue {
    /// ONNX number of the element type.
    pub(super) kind: i32,
    pub(super) origin: ElementOrigin,
    /// Bounds of all elements.
    pub(super) bounds: NumberBounds,
    /// Each element of a scalar or short list.
    pub(super) items: Option<Vec<ElementValue>>,
}

/// One element of a short list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementValue {
    pub(super) origin: ElementOrigin,
    pub(super) bounds: NumberBounds,
}

/// Largest length of a short list. Longer lists are not shapes.
pub(super) const MAX_ITEMS: usize = 16;

impl TensorValue {
    pub(super) fn new(kind: i32, origin: ElementOrigin, bounds: NumberBounds) -> TensorValue {
        TensorValue { kind, origin, bounds, items: None }
    }

    /// Creates a short list.
    pub(super) fn of_items(kind: i32, items: Vec<ElementValue>) -> TensorValue {
        let origin = items.iter().map(|item| item.origin).max().unwrap_or(ElementOrigin::Constant);
        let bounds =
            items.iter().map(|item| item.bounds).reduce(NumberBounds::union).unwrap_or(NumberBounds::new(0.0, 0.0));
        TensorValue { kind, origin, bounds, items: Some(items).filter(|items| items.len() <= MAX_ITEMS) }
    }

    /// Creates the value of a constant in the file.
    pub(super) fn constant(kind: i32, numbers: Option<impl ExactSizeIterator<Item = f64>>, dims: usize) -> TensorValue {
        let Some(numbers) = numbers else {
            return TensorValue::new(kind, ElementOrigin::Constant, NumberBounds::of_type(kind));
        };
        if dims <= 1 && numbers.len() <= MAX_ITEMS {
            let item = |number: f64| ElementValue {
                origin: ElementOrigin::Constant,
                bounds: NumberBounds::new(number, number),
            };
            return TensorValue::of_items(kind, numbers.map(item).collect());
        }
        let numbers = numbers.filter(|number| !number.is_nan());
        let bounds =
            numbers.fold(NumberBounds::new(0.0, 0.0), |all, number| all.union(NumberBounds::new(number, number)));
        TensorValue::new(kind, ElementOrigin::Constant, bounds)
    }

    /// Returns the elements of a short list, if they are constant.
    pub(super) fn known(&self) -> Option<Vec<i64>> {
        let known = |item: &ElementValue| (item.bounds.least == item.bounds.most).then_some(item.bounds.least as i64);
        self.items.as_ref()?.iter().map(known).collect()
    }
}
