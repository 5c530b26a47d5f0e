//! The size of a dimension: a number, or an expression of sizes that only a request determines.
//!
//! A size is stored as a product of `factor` and symbols. Batches, lengths, heads and flattened
//! views are products, and products can be divided exactly, which reshapes require. A sum of
//! different terms becomes one opaque symbol. The symbol's name is the sum in a fixed order, so
//! equal sums compare equal. Arithmetic that overflows gives no size.

use std::fmt;
use std::sync::Arc;

/// The symbol of the batch, in every graph.
pub(crate) const BATCH: &str = "batch";
/// Longest name of a sum. Longer sums become unknown sizes.
const MAX_NAME: usize = 160;
const MAX_SYMBOLS: usize = 8;

/// A size.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Dim {
    factor: i64,
    /// Symbols of the product, sorted. A symbol occurs once per factor.
    symbols: Vec<Arc<str>>,
}

impl Dim {
    pub(crate) fn known(size: i64) -> Dim {
        Dim { factor: size, symbols: Vec::new() }
    }

    pub(crate) fn symbol(name: &str) -> Dim {
        Dim { factor: 1, symbols: vec![name.into()] }
    }

    pub(crate) fn batch() -> Dim {
        Dim::symbol(BATCH)
    }

    /// Returns the size as a number, if it has no symbols.
    pub(crate) fn value(&self) -> Option<i64> {
        self.symbols.is_empty().then_some(self.factor)
    }

    pub(crate) fn is(&self, size: i64) -> bool {
        self.value() == Some(size)
    }

    pub(crate) fn is_batch(&self) -> bool {
        self.factor == 1 && matches!(&self.symbols[..], [one] if &**one == BATCH)
    }

    /// Whether the size depends on this symbol, directly or inside a sum.
    pub(crate) fn mentions(&self, symbol: &str) -> bool {
        let part = |name: &str| name.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == symbol);
        self.symbols.iter().any(|name| &**name == symbol || part(name))
    }

    /// Whether this is a product of sizes of a request, which is never below 1. Sums and symbols
    /// that begin with `?` may be any number.
    pub(crate) fn is_size(&self) -> bool {
        self.factor > 0 && !self.symbols.iter().any(|name| name.contains(['(', '?']))
    }

    pub(crate) fn times(&self, other: &Dim) -> Option<Dim> {
        let factor = self.factor.checked_mul(other.factor)?;
        if factor == 0 {
            return Some(Dim::known(0));
        }
        let mut symbols = [&self.symbols[..], &other.symbols[..]].concat();
        symbols.sort_unstable();
        (symbols.len() <= MAX_SYMBOLS).then_some(Dim { factor, symbols })
    }

    /// Returns the exact quotient; `None` if the division may have a remainder.
    pub(crate) fn over(&self, other: &Dim) -> Option<Dim> {
        let factor = self.factor.checked_div(other.factor)?;
        if factor.checked_mul(other.factor)? != self.factor {
            return None;
        }
        let mut symbols = self.symbols.clone();
        for symbol in &other.symbols {
            let at = symbols.iter().position(|own| own == symbol)?;
            symbols.remove(at);
        }
        Some(Dim { factor, symbols })
    }

    pub(crate) fn plus(&self, other: &Dim) -> Option<Dim> {
        if other.is(0) {
            return Some(self.clone());
        }
        if self.is(0) {
            return Some(other.clone());
        }
        if self.symbols == other.symbols {
            let factor = self.factor.checked_add(other.factor)?;
            return Some(if factor == 0 { Dim::known(0) } else { Dim { factor, symbols: self.symbols.clone() } });
        }
        let (first, second) =
            if (&self.symbols, self.factor) >= (&other.symbols, other.factor) { (self, other) } else { (other, self) };
        Dim::opaque(&format!("({first} + {second})"))
    }

    pub(crate) fn minus(&self, other: &Dim) -> Option<Dim> {
        self.plus(&other.times(&Dim::known(-1))?)
    }

    /// Creates a size that is one symbol with this name.
    pub(crate) fn opaque(text: &str) -> Option<Dim> {
        (text.len() <= MAX_NAME).then(|| Dim::symbol(text))
    }

    /// Returns the size as a number, for estimates. `size_of` returns the value of a symbol; a sum
    /// counts as one symbol.
    pub(crate) fn estimate(&self, size_of: &dyn Fn(&str) -> i64) -> i64 {
        let sizes = self.symbols.iter().map(|symbol| size_of(symbol));
        sizes.fold(self.factor.max(0), i64::saturating_mul)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.symbols[..], self.factor) {
            ([], factor) => write!(f, "{factor}"),
            (symbols, 1) => f.write_str(&symbols.join("*")),
            (symbols, factor) => write!(f, "{factor}*{}", symbols.join("*")),
        }
    }
}

/// Returns the product of sizes.
pub(crate) fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Option<Dim> {
    dims.into_iter().try_fold(Dim::known(1), |product, dim| product.times(dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_divide_and_sums_compare() {
        let (batch, length, eight) = (Dim::batch(), Dim::symbol("length"), Dim::known(8));
        let flat = batch.times(&length).unwrap();
        let all = flat.times(&eight).unwrap();
        assert_eq!(all.to_string(), "8*batch*length");
        assert_eq!(all.over(&eight), Some(flat.clone()));
        assert_eq!(flat.over(&length), Some(Dim::batch()));
        assert!(all.over(&flat).unwrap().is(8) && flat.over(&eight).is_none() && flat.over(&Dim::known(0)).is_none());
        assert_eq!(length.plus(&eight), eight.plus(&length));
        assert!(length.minus(&length).unwrap().is(0));
        assert!(length.plus(&eight).unwrap().mentions("length") && !eight.mentions("length"));
        assert!(Dim::known(i64::MAX).times(&Dim::known(2)).is_none());
    }
}
