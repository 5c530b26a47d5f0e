//! A model's programs as words, so that another process can load them.
//!
//! Whatever the words are, what is read is a spec or none: [`StepDevice::load`] checks it before it
//! uses it.
//!
//! [`StepDevice::load`]: crate::StepDevice::load

use crate::{
    CellModelSpec, ChainSegment, Instr, Matrix, Op, Precision, Product, Reduce, Reduction, StepProgram, StepStage,
};

const CHAIN: u32 = 0;
const PRODUCT: u32 = 1;
const REDUCE: u32 = 2;

/// All number formats, each at its number.
const PRECISIONS: [Precision; 3] = [Precision::Fp32, Precision::Tf32, Precision::Fp16];
/// All operations, each at its number.
const OPS: [Op; 26] = [
    Op::Matrix,
    Op::Feed,
    Op::EntryWord,
    Op::Constant,
    Op::LookUp,
    Op::KeepMatrix,
    Op::KeepHalf,
    Op::KeepRow,
    Op::KeepResult,
    Op::Clear,
    Op::Add,
    Op::Sub,
    Op::Mul,
    Op::Div,
    Op::Equal,
    Op::EqualInt,
    Op::Sigmoid,
    Op::Tanh,
    Op::Relu,
    Op::Exp,
    Op::Neg,
    Op::Abs,
    Op::Sqrt,
    Op::ToFloat,
    Op::ToInt,
    Op::Not,
];

impl CellModelSpec {
    /// Returns the spec as words.
    pub fn to_words(&self) -> Vec<u32> {
        let mut to = Vec::with_capacity(self.constants.len() + (1 << 12));
        push(&mut to, &[self.row_units, self.rows]);
        push(&mut to, &[PRECISIONS.iter().position(|&known| known == self.precision).unwrap_or(0)]);
        push_list(&mut to, &self.sizes, |to, &size| push(to, &[size]));
        push_list(&mut to, &self.programs, push_program);
        push_list(&mut to, &self.constants, |to, &word| to.push(word));
        to
    }

    /// Reads a spec from words. `None` if they are none.
    pub fn from_words(words: &[u32]) -> Option<CellModelSpec> {
        let mut from = Words(words);
        let [row_units, rows, precision] = from.take()?;
        let precision = *PRECISIONS.get(precision)?;
        let sizes = from.list(|from| from.take().map(|[size]| size))?;
        let programs = from.list(read_program)?;
        let constants = from.list(Words::word)?;
        let is_whole = from.0.is_empty();
        is_whole.then_some(CellModelSpec { programs, constants, row_units, rows, precision, sizes })
    }
}

fn push(to: &mut Vec<u32>, numbers: &[usize]) {
    to.extend(numbers.iter().map(|&number| number as u32));
}

fn push_list<T>(to: &mut Vec<u32>, list: &[T], mut each: impl FnMut(&mut Vec<u32>, &T)) {
    push(to, &[list.len()]);
    list.iter().for_each(|one| each(to, one));
}

fn push_program(to: &mut Vec<u32>, program: &StepProgram) {
    let StepProgram { feeds, immediate, staged, results, scratch, ref stages } = *program;
    push(to, &[feeds, immediate as usize, staged, results, scratch]);
    push_list(to, stages, |to, stage| match stage {
        StepStage::Chain(segments) => {
            to.push(CHAIN);
            push_list(to, segments, |to, segment| {
                push(to, &[segment.width]);
                push_list(to, &segment.code, |to, instr| to.extend(instr.words()));
            });
        }
        StepStage::Product(Product { from, weights, transposed, inner, columns, to: result }) => {
            to.push(PRODUCT);
            push(to, &[from.base, from.stride, *weights, usize::from(*transposed), *inner, *columns]);
            push(to, &[result.base, result.stride]);
        }
        StepStage::Reduce(Reduce { kind, from, width, to: result }) => {
            to.push(REDUCE);
            push(to, &[*kind as usize, from.base, from.stride, *width, result.base, result.stride]);
        }
    });
}

fn read_program(from: &mut Words<'_>) -> Option<StepProgram> {
    let [feeds, immediate, staged, results, scratch] = from.take()?;
    let stages = from.list(|from| {
        Some(match from.word()? {
            CHAIN => StepStage::Chain(from.list(|from| {
                let [width] = from.take()?;
                Some(ChainSegment { width, code: from.list(read_instr)? })
            })?),
            PRODUCT => {
                let [base, stride, weights, transposed, inner, columns, to_base, to_stride] = from.take()?;
                let (from, to) = (Matrix { base, stride }, Matrix { base: to_base, stride: to_stride });
                let transposed = *[false, true].get(transposed)?;
                StepStage::Product(Product { from, weights, transposed, inner, columns, to })
            }
            REDUCE => {
                let [kind, base, stride, width, to_base, to_stride] = from.take()?;
                let kind = *[Reduction::ArgMax, Reduction::Softmax].get(kind)?;
                let (from, to) = (Matrix { base, stride }, Matrix { base: to_base, stride: to_stride });
                StepStage::Reduce(Reduce { kind, from, width, to })
            }
            _ => return None,
        })
    })?;
    Some(StepProgram { feeds, immediate: immediate as u32, staged, results, scratch, stages })
}

fn read_instr(from: &mut Words<'_>) -> Option<Instr> {
    let [op, a, b, c] = from.take()?;
    Some(Instr::new(*OPS.get(op)?, [a, b, c]))
}

/// Words that are left.
struct Words<'a>(&'a [u32]);

impl Words<'_> {
    fn word(&mut self) -> Option<u32> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn take<const N: usize>(&mut self) -> Option<[usize; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(first.map(|word| word as usize))
    }

    /// Reads a list. Each entry takes a word at least, so a length beyond the words is an error.
    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let [count] = self.take()?;
        if count > self.0.len() {
            return None;
        }
        (0..count).map(|_| each(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> CellModelSpec {
        let matrix = |base| Matrix { base, stride: 4 };
        let code = OPS.iter().map(|&op| Instr::new(op, [1, 2, 3])).collect();
        let product = Product { from: matrix(0), weights: 7, transposed: true, inner: 3, columns: 2, to: matrix(8) };
        let reduce = |kind| StepStage::Reduce(Reduce { kind, from: matrix(1), width: 9, to: matrix(2) });
        let stages = vec![
            StepStage::Chain(vec![ChainSegment { width: 5, code }, ChainSegment::default()]),
            StepStage::Product(product),
            reduce(Reduction::ArgMax),
            reduce(Reduction::Softmax),
        ];
        let program = StepProgram { feeds: 2, immediate: 1 << 31, staged: 6, results: 7, scratch: 8, stages };
        CellModelSpec {
            programs: vec![program, StepProgram::default()],
            constants: vec![u32::MAX, 0, 9],
            row_units: 3,
            rows: 70_000,
            precision: Precision::Fp16,
            sizes: vec![1, 2, 4],
        }
    }

    #[test]
    fn a_spec_comes_back() {
        let (spec, back) = (spec(), CellModelSpec::from_words(&spec().to_words()).unwrap());
        assert_eq!(back.programs, spec.programs);
        assert_eq!((back.constants, back.sizes), (spec.constants, spec.sizes));
        assert_eq!((back.row_units, back.rows, back.precision), (spec.row_units, spec.rows, spec.precision));
        assert!(OPS.iter().enumerate().all(|(number, &op)| op as usize == number));
    }

    #[test]
    fn words_that_are_no_spec_are_refused_and_never_take_memory_that_is_not_there() {
        let words = spec().to_words();
        for cut in 0..words.len() {
            assert!(CellModelSpec::from_words(&words[..cut]).is_none(), "{cut}");
        }
        for at in 0..words.len() {
            for value in [0, 1, 27, u32::MAX] {
                let mut broken = words.clone();
                broken[at] = value;
                if let Some(back) = CellModelSpec::from_words(&broken) {
                    assert_eq!(back.to_words(), broken);
                }
            }
        }
    }
}
