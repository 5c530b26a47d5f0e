//! What is known of a tensor's elements without running the model: where they come from, and within which bounds they lie.

use ripieno_onnx::proto::elem;

/// Where elements come from; what is made of several has the last of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The file.
    Constant,
    /// The shapes of what a request brings.
    Shapes,
    /// The elements of what a request brings.
    Request,
}

/// Bounds of a number; floats, since no more than the magnitude of what leaves 32 bits matters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub(super) least: f64,
    pub(super) most: f64,
}

/// The 32-bit integers.
pub(super) const NARROW: Bounds = Bounds { least: i32::MIN as f64, most: i32::MAX as f64 };
/// Any number.
pub(super) const ANY: Bounds = Bounds { least: f64::NEG_INFINITY, most: f64::INFINITY };
/// No dimension and no count is taken to be larger: a request has not as many elements.
pub(super) const LONGEST: f64 = (1 << 24) as f64;

impl Bounds {
    pub(super) fn new(least: f64, most: f64) -> Bounds {
        Bounds { least, most }
    }

    pub(super) fn union(self, other: Bounds) -> Bounds {
        Bounds::new(self.least.min(other.least), self.most.max(other.most))
    }

    pub(super) fn within(self, other: Bounds) -> bool {
        self.least >= other.least && self.most <= other.most
    }

    /// The bounds of `of` at all pairs of ends; any number where one of them is none.
    pub(super) fn of_ends(self, other: Bounds, of: impl Fn(f64, f64) -> f64) -> Bounds {
        let ends =
            [(self.least, other.least), (self.least, other.most), (self.most, other.least), (self.most, other.most)];
        let results = ends.map(|(a, b)| of(a, b));
        if results.iter().any(|result| result.is_nan()) {
            return ANY;
        }
        Bounds::new(
            results.into_iter().fold(f64::INFINITY, f64::min),
            results.into_iter().fold(f64::NEG_INFINITY, f64::max),
        )
    }

    /// Of the sum of up to so many such numbers, and of none.
    pub(super) fn times(self, count: f64) -> Bounds {
        Bounds::new((self.least * count).min(0.0).min(self.least), (self.most * count).max(0.0).max(self.most))
    }

    /// Every number that the type holds.
    pub(super) fn of_type(kind: i32) -> Bounds {
        match kind {
            elem::BOOL => Bounds::new(0.0, 1.0),
            elem::UINT8 => Bounds::new(0.0, 255.0),
            elem::INT8 => Bounds::new(-128.0, 127.0),
            elem::INT32 => NARROW,
            _ => ANY,
        }
    }
}

/// The elements of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// ONNX's number of the element type.
    pub(super) kind: i32,
    pub(super) origin: Origin,
    /// Of all elements.
    pub(super) bounds: Bounds,
    /// Of each, of a scalar or of a short list.
    pub(super) items: Option<Vec<Item>>,
}

/// One element of a short list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) origin: Origin,
    pub(super) bounds: Bounds,
}

/// Longer lists are no shapes.
pub(super) const MOST_ITEMS: usize = 16;

impl Value {
    pub(super) fn new(kind: i32, origin: Origin, bounds: Bounds) -> Value {
        Value { kind, origin, bounds, items: None }
    }

    /// A short list of these items.
    pub(super) fn of_items(kind: i32, items: Vec<Item>) -> Value {
        let origin = items.iter().map(|item| item.origin).max().unwrap_or(Origin::Constant);
        let bounds = items.iter().map(|item| item.bounds).reduce(Bounds::union).unwrap_or(Bounds::new(0.0, 0.0));
        Value { kind, origin, bounds, items: Some(items).filter(|items| items.len() <= MOST_ITEMS) }
    }

    /// A constant of the file.
    pub(super) fn constant(kind: i32, numbers: Option<impl ExactSizeIterator<Item = f64>>, dims: usize) -> Value {
        let Some(numbers) = numbers else { return Value::new(kind, Origin::Constant, Bounds::of_type(kind)) };
        if dims <= 1 && numbers.len() <= MOST_ITEMS {
            let item = |number: f64| Item { origin: Origin::Constant, bounds: Bounds::new(number, number) };
            return Value::of_items(kind, numbers.map(item).collect());
        }
        let numbers = numbers.filter(|number| !number.is_nan());
        let bounds = numbers.fold(Bounds::new(0.0, 0.0), |all, number| all.union(Bounds::new(number, number)));
        Value::new(kind, Origin::Constant, bounds)
    }

    /// The numbers of a constant short list.
    pub(super) fn known(&self) -> Option<Vec<i64>> {
        let known = |item: &Item| (item.bounds.least == item.bounds.most).then_some(item.bounds.least as i64);
        self.items.as_ref()?.iter().map(known).collect()
    }
}
