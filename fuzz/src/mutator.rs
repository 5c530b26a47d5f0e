//! Generates inputs that are almost valid: pieces of the corpus, cut, repeated, spliced, with a few
//! bytes changed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Upper bound on inputs, so that a count of them takes a known time.
const LONGEST: usize = 64 << 10;
/// Pieces with a meaning to parsers.
const WORDS: [&str; 30] = [
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\",
    "\\u",
    "\\ud800",
    "null",
    "true",
    "-",
    "-0",
    "1e999",
    "0.1e-400",
    "NaN",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "[[",
    "]]",
    "[[input]]\n",
    "[[block]]\n",
    "=",
    "\n",
    "\"shape\":[",
    "\u{0}",
    "é",
    "\u{feff}",
];
const NUMBERS: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, 1 << 63, u64::MAX];

/// A stream of inputs that its seed determines.
#[derive(Debug)]
pub struct Mutator {
    random: Xoshiro256PlusPlus,
}

impl Mutator {
    /// Creates the stream of this seed.
    pub fn new(seed: u64) -> Mutator {
        Mutator { random: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }

    /// Returns the next input, from a corpus that is not empty.
    pub fn next(&mut self, corpus: &[Vec<u8>], is_text: bool) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(6) {
            let other = &corpus[self.below(corpus.len())];
            self.change(&mut input, other, is_text);
            input.truncate(LONGEST);
        }
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, other: &[u8], is_text: bool) {
        let at = self.below(input.len() + 1);
        let end = at + self.below(input.len() - at + 1);
        match self.below(9) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.below(256) as u8,
            2 => drop(input.drain(at..end.min(at + 64))),
            3 => input.truncate(at),
            4 => self.repeat(input, at, end),
            5 => {
                let from = self.below(other.len() + 1);
                let piece = &other[from..from + self.below(other.len() - from + 1)];
                input.splice(at..end, piece.iter().copied());
            }
            6 if is_text => drop(input.splice(at..at, WORDS[self.below(WORDS.len())].bytes())),
            6 => self.number(input, at),
            7 => drop(input.splice(at..end.min(at + 8), WORDS[self.below(WORDS.len())].bytes())),
            _ => self.number(input, at),
        }
    }

    /// Repeats a piece many times: depth and length are where parsers break.
    fn repeat(&mut self, input: &mut Vec<u8>, at: usize, end: usize) {
        let piece = input[at..end.min(at + 256)].to_vec();
        let times = 1 << self.below(if piece.len() <= 16 { 13 } else { 5 });
        input.splice(at..at, piece.repeat(times));
    }

    /// Writes a boundary number, in one of the forms that the formats use: fixed width, or a
    /// protobuf varint.
    fn number(&mut self, input: &mut Vec<u8>, at: usize) {
        let number = NUMBERS[self.below(NUMBERS.len())];
        let width = 1 << self.below(4);
        let bytes = if self.below(2) == 0 { number.to_le_bytes()[..width].to_vec() } else { varint(number) };
        let end = (at + bytes.len()).min(input.len());
        let over = if self.below(2) == 0 { at } else { end };
        input.splice(at..over, bytes);
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.random.next_u64() % bound.max(1) as u64) as usize
    }
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_the_stream_and_inputs_stay_short() {
        let corpus = [b"{\"a\": [1, 2]}".to_vec(), Vec::new()];
        let stream = |seed| {
            let mut mutator = Mutator::new(seed);
            (0..2000).map(|at| mutator.next(&corpus, at % 2 == 0)).collect::<Vec<_>>()
        };
        let first = stream(1);
        assert_eq!(first, stream(1));
        assert_ne!(first, stream(2));
        assert!(first.iter().all(|input| input.len() <= LONGEST));
        assert!(first.iter().any(|input| input.len() > 4096) && first.iter().any(Vec::is_empty));
    }
}
