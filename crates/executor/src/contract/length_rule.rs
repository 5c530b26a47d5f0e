//! Length of an output as a function of the length of its request.
//!
//! An output of a model that reads a few steps at a time is shorter than its input: a recogniser of
//! text gives one letter for eight columns of an image. The rule is declared, or found at load.

use std::fmt;

/// Rule for the length of an output: n / `per` + `plus`, rounded down, or up if `up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRule {
    /// Elements of the input for each element of the output; at least 1.
    pub per: u32,
    /// Whether the quotient is rounded up.
    pub up: bool,
    /// Elements added to the quotient.
    pub plus: i32,
}

/// Largest [`LengthRule::per`].
const MAX_PER: u32 = 1024;
/// Largest absolute value of [`LengthRule::plus`].
const MAX_PLUS: i32 = 8;

impl LengthRule {
    /// The output is as long as the input.
    pub const SAME: LengthRule = LengthRule { per: 1, up: false, plus: 0 };

    /// Returns the length of the output for a request of length `n`.
    pub fn length(self, n: u32) -> i64 {
        let quotient = if self.up { n.div_ceil(self.per) } else { n / self.per };
        (i64::from(quotient) + i64::from(self.plus)).max(0)
    }

    /// Reads a rule such as `n`, `n / 8`, `ceil(n / 8)` or `n / 4 - 1`.
    pub fn parse(text: &str) -> Option<LengthRule> {
        let compact: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
        let (up, quotient, rest) = match compact.strip_prefix("ceil(") {
            Some(inner) => inner.split_once(')').map(|(quotient, rest)| (true, quotient, rest))?,
            None => {
                let end = compact.find(['+', '-']).unwrap_or(compact.len());
                (false, &compact[..end], &compact[end..])
            }
        };
        let per = match quotient.strip_prefix('n')? {
            "" => 1,
            divisor => divisor.strip_prefix('/')?.parse().ok()?,
        };
        let plus = if rest.is_empty() { 0 } else { rest.parse().ok()? };
        let fits = (1..=MAX_PER).contains(&per) && (-MAX_PLUS..=MAX_PLUS).contains(&plus);
        fits.then_some(LengthRule { per, up: up && per > 1, plus })
    }

    /// Returns the simplest rule for these lengths of requests and of an output.
    pub(crate) fn fit(points: &[(u32, i64)]) -> Option<LengthRule> {
        let pluses = (0..=MAX_PLUS).flat_map(|plus| [plus, -plus]);
        let rules = pluses.flat_map(|plus| {
            let of_plus = move |per| [false, true].map(|up| LengthRule { per, up: up && per > 1, plus });
            (1..=MAX_PER).flat_map(of_plus)
        });
        let fits = |rule: &LengthRule| points.iter().all(|&(n, length)| rule.length(n) == length);
        rules.into_iter().find(fits)
    }
}

impl fmt::Display for LengthRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.per, self.up) {
            (1, _) => write!(formatter, "n")?,
            (per, false) => write!(formatter, "n / {per}")?,
            (per, true) => write!(formatter, "ceil(n / {per})")?,
        }
        match self.plus {
            0 => Ok(()),
            1.. => write!(formatter, " + {}", self.plus),
            _ => write!(formatter, " - {}", self.plus.unsigned_abs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_shown_and_followed() {
        let cases =
            [("n", 17, 17), ("n/8", 17, 2), ("ceil( n / 8 )", 17, 3), ("n / 4 - 1", 17, 3), ("ceil(n/4) + 2", 17, 7)];
        for (text, n, length) in cases {
            let rule = LengthRule::parse(text).unwrap();
            assert_eq!(rule.length(n), length, "{text}");
            assert_eq!(LengthRule::parse(&rule.to_string()), Some(rule), "{text}");
        }
        for wrong in ["", "8", "n/0", "n*2", "m/8", "ceil(n/8", "n/8+100", "n//8"] {
            assert_eq!(LengthRule::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_simplest_rule_that_fits_is_found() {
        for text in ["n", "n / 8", "ceil(n / 8)", "n / 4 - 1", "ceil(n / 2) + 1"] {
            let rule = LengthRule::parse(text).unwrap();
            let points: Vec<(u32, i64)> =
                [40, 60, 112, 113, 114, 115, 116, 117, 118, 119, 120].map(|n| (n, rule.length(n))).to_vec();
            assert_eq!(LengthRule::fit(&points), Some(rule));
        }
        assert_eq!(LengthRule::fit(&[(8, 64), (9, 81)]), None);
    }
}
