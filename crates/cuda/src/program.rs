//! The program of a cell's step: plain data that the kernels and the host run alike.
//!
//! A step computes a few matrices with one row for each member. Its stages run in order: chains of
//! element-wise instructions, which read rows of state by index and write them by index; products
//! with constant matrices; and reductions of rows. All addresses but the rows' are fixed, so a GPU
//! records a program once for each batch size.
//!
//! Everything is counted in words of 4 bytes: 32-bit floats, and integers. An instruction works on
//! an accumulator and a stack, for each row and column on its own. A later instruction of the same
//! segment may read at its own column what an earlier one has written. The next stage may read any
//! column.

use crate::CudaError;

/// Largest depth of the stack.
pub const MAX_DEPTH: usize = 8;
/// Largest number of feeds: an entry also holds the row to write and the outputs to report.
pub const MAX_FEEDS: usize = ENTRY_WORDS - 2;
pub(crate) const ENTRY_WORDS: usize = 16;
/// Number of words in the unit in which rows are addressed, 16 bytes.
pub const UNIT: usize = 4;
/// Mark of a feed that is staged in host memory and no row of the device.
pub const STAGED: u32 = 1 << 31;

/// Operation of an instruction. The numbers are the same in `kernels/cells.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "they are named as ONNX's operators, or described below")]
pub enum Op {
    /// Pushes the accumulator and loads from a matrix: `a` its first word, `b` words a row, `c` 1
    /// if each column has its own, 0 if all read the first.
    Matrix,
    /// Pushes the accumulator and loads from a feed. `a` is its number and 16 times the words that
    /// a row of it takes among the staged feeds, `b` the place where they begin there. `c` is
    /// twice the offset, and 1 more if each column has its own.
    Feed,
    /// Pushes the accumulator and loads the word of feed `a` in the member's entry.
    EntryWord,
    /// Pushes the accumulator and loads from the constants: `a` and `c` as of `Matrix`.
    Constant,
    /// Replaces an id by its row of the table at `a`, with `b` words a row and `c` rows. An id that
    /// the table does not have gives NaN and marks the row as faulty.
    LookUp,
    /// Stores into a matrix: `a` its first word, `b` words a row.
    KeepMatrix,
    /// Stores 16-bit floats: `a` the first word, `b` halves a row, `c` the first column.
    KeepHalf,
    /// Stores into the member's row of state, at offset `a`.
    KeepRow,
    /// Stores output `b` for the host at column `a`, if the member's entry wants it.
    KeepResult,
    /// Empties the stack.
    Clear,
    Add,
    Sub,
    Mul,
    Div,
    Equal,
    EqualInt,
    Sigmoid,
    Tanh,
    Relu,
    Exp,
    Neg,
    Abs,
    Sqrt,
    ToFloat,
    ToInt,
    Not,
}

impl Op {
    /// Returns the change of the stack's depth; `None` if the operation empties the stack.
    fn depth(self) -> Option<isize> {
        match self {
            Op::Matrix | Op::Feed | Op::EntryWord | Op::Constant => Some(1),
            Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Equal | Op::EqualInt => Some(-1),
            Op::Clear => None,
            _ => Some(0),
        }
    }
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instr {
    /// Operation.
    pub op: Op,
    /// First operand.
    pub a: u32,
    /// Second operand.
    pub b: u32,
    /// Third operand.
    pub c: u32,
}

impl Instr {
    /// Creates an instruction.
    pub fn new(op: Op, [a, b, c]: [usize; 3]) -> Instr {
        Instr { op, a: a as u32, b: b as u32, c: c as u32 }
    }

    /// Creates the load of columns of a feed.
    pub fn feed(feed: usize, staged: Matrix, offset: usize, each: bool) -> Instr {
        Instr::new(Op::Feed, [feed + ENTRY_WORDS * staged.stride, staged.base, 2 * offset + usize::from(each)])
    }

    pub(crate) fn words(self) -> [u32; 4] {
        [self.op as u32, self.a, self.b, self.c]
    }
}

/// Instructions that all columns up to `width` run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainSegment {
    /// Number of columns.
    pub width: usize,
    /// Instructions.
    pub code: Vec<Instr>,
}

/// A matrix with a row for each member, in the scratch memory or where feeds are staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// First word.
    pub base: usize,
    /// Words from one row to the next.
    pub stride: usize,
}

/// Number format of products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats.
    Fp32,
    /// 32-bit floats, of which products use 10 bits of each factor.
    #[default]
    Tf32,
    /// 16-bit factors, 32-bit sums.
    Fp16,
}

/// A product of a matrix with a constant one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Left factor; 16-bit floats with [`Precision::Fp16`], and the stride still in words.
    pub from: Matrix,
    /// First word of the constant factor.
    pub weights: usize,
    /// Whether the constant factor is stored as [columns, inner] instead of [inner, columns].
    pub transposed: bool,
    /// Columns of the left factor.
    pub inner: usize,
    /// Columns of the product.
    pub columns: usize,
    /// Product, 32-bit floats.
    pub to: Matrix,
}

/// Kind of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reduction {
    /// Index of the largest number, the first of equal ones, as an integer.
    ArgMax,
    /// Softmax over the row.
    Softmax,
}

/// A reduction of each row of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// Kind.
    pub kind: Reduction,
    /// Matrix that is read, from its first column.
    pub from: Matrix,
    /// Number of columns that are read.
    pub width: usize,
    /// Result.
    pub to: Matrix,
}

/// One stage of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepStage {
    /// Segments that do not depend on each other.
    Chain(Vec<ChainSegment>),
    /// A product.
    Product(Product),
    /// A reduction.
    Reduce(Reduce),
}

/// The program of a cell. The last stage is a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepProgram {
    /// Number of feeds.
    pub feeds: usize,
    /// Feeds whose words in an entry are their values, as bits.
    pub immediate: u32,
    /// Words of the staged feeds of the largest batch, feed by feed.
    pub staged: usize,
    /// Words of a member's outputs for the host.
    pub results: usize,
    /// Words of scratch memory for the largest batch.
    pub scratch: usize,
    /// Stages.
    pub stages: Vec<StepStage>,
}

impl StepProgram {
    /// Returns the feeds that a step may read from where they are staged, with their places there.
    pub fn staged_feeds(&self) -> Vec<(usize, Matrix)> {
        let mut feeds = Vec::new();
        let chains = self.stages.iter().filter_map(|stage| match stage {
            StepStage::Chain(segments) => Some(segments),
            StepStage::Product(_) | StepStage::Reduce(_) => None,
        });
        let code = chains.flatten().flat_map(|segment| &segment.code);
        for instr in code.filter(|instr| instr.op == Op::Feed) {
            let (feed, stride) = (instr.a as usize % ENTRY_WORDS, instr.a as usize / ENTRY_WORDS);
            let staged = (feed, Matrix { base: instr.b as usize, stride });
            if !feeds.contains(&staged) {
                feeds.push(staged);
            }
        }
        feeds
    }
}

/// A model's programs with what they share.
#[derive(Clone, Debug, Default)]
pub struct CellModelSpec {
    /// StepProgram of each cell.
    pub programs: Vec<StepProgram>,
    /// Weights, tables and numbers.
    pub constants: Vec<u32>,
    /// Units of one row of state.
    pub row_units: usize,
    /// Number of rows of state. Row 0 holds zeros; row 1 receives what is stored for no member.
    pub rows: usize,
    /// Number format of products.
    pub precision: Precision,
    /// Batch sizes that are recorded, ascending.
    pub sizes: Vec<usize>,
}

impl CellModelSpec {
    /// Returns the largest batch.
    pub fn max_rows(&self) -> usize {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// Returns the words of an entry: a row for each feed, the row to write, and a bit for each
    /// output that the host wants.
    pub fn entry_words(&self, cell: usize) -> usize {
        self.programs[cell].feeds + 2
    }

    /// Returns the words of these rows, each of which exists and holds state.
    pub(crate) fn places_of(&self, rows: [u32; 2]) -> Result<[usize; 2], CudaError> {
        let holds_state = |&row: &u32| row > 1 && (row as usize) < self.rows;
        match rows.iter().all(holds_state) {
            true => Ok(rows.map(|row| row as usize * self.row_units * UNIT)),
            false => Err(CudaError::InvalidProgram),
        }
    }

    pub(crate) fn units(&self) -> usize {
        self.rows * self.row_units
    }

    /// Returns the words of all rows, and of one more, into which a feed of the last row may reach.
    pub(crate) fn arena_words(&self) -> usize {
        (self.rows + 1) * self.row_units * UNIT
    }

    /// Checks that no stage reads or writes outside of its memory, whatever the entries say.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        let fits = self.sizes.windows(2).all(|pair| pair[0] < pair[1])
            && self.sizes.first().is_some_and(|&first| first > 0)
            && self.rows > 2
            && self.units() < STAGED as usize
            && self.programs.iter().all(|program| self.fits(program));
        if fits { Ok(()) } else { Err(CudaError::InvalidProgram) }
    }

    fn fits(&self, program: &StepProgram) -> bool {
        let last_row = self.max_rows() - 1;
        let matrix = |at: Matrix, words: usize| at.base + last_row * at.stride + words <= program.scratch;
        let stage = |stage: &StepStage| match stage {
            StepStage::Chain(segments) => {
                !segments.is_empty() && segments.iter().all(|segment| self.segment_fits(program, segment))
            }
            StepStage::Product(product) => {
                let words = product.inner * product.columns;
                let words = if self.precision == Precision::Fp16 { words.div_ceil(2) } else { words };
                matrix(
                    product.from,
                    if self.precision == Precision::Fp16 { product.inner.div_ceil(2) } else { product.inner },
                ) && matrix(product.to, product.columns)
                    && product.weights + words <= self.constants.len()
                    && product.inner > 0
                    && product.columns > 0
            }
            StepStage::Reduce(reduce) => {
                let given = if reduce.kind == Reduction::ArgMax { 1 } else { reduce.width };
                reduce.width > 0 && matrix(reduce.from, reduce.width) && matrix(reduce.to, given)
            }
        };
        program.feeds <= MAX_FEEDS
            && matches!(program.stages.last(), Some(StepStage::Chain(_)))
            && matches!(program.stages.first(), Some(StepStage::Chain(_)))
            && program.stages.iter().all(stage)
    }

    fn segment_fits(&self, program: &StepProgram, segment: &ChainSegment) -> bool {
        let mut depth = 0isize;
        segment.code.iter().all(|instr| {
            let [a, b, c] = [instr.a, instr.b, instr.c].map(|operand| operand as usize);
            let words = |step: usize| if step == 0 { 1 } else { segment.width };
            let last_row = self.max_rows() - 1;
            let inside = match instr.op {
                Op::Matrix => a + last_row * b + words(c) <= program.scratch,
                Op::KeepMatrix => a + last_row * b + segment.width <= program.scratch,
                Op::KeepHalf => 2 * a + last_row * b + c + segment.width <= 2 * program.scratch,
                Op::Feed => {
                    let (feed, stride, end) = (a % ENTRY_WORDS, a / ENTRY_WORDS, (c >> 1) + words(c & 1));
                    let staged = end <= stride && b + last_row * stride + end <= program.staged;
                    feed < program.feeds && staged && end <= self.row_units * UNIT
                }
                Op::EntryWord => a < program.feeds,
                Op::Constant => a + words(c) <= self.constants.len(),
                Op::LookUp => b >= segment.width && c < 1 << 31 && a + b * c <= self.constants.len(),
                Op::KeepRow => a + segment.width <= self.row_units * UNIT,
                Op::KeepResult => b < 32 && a + segment.width <= program.results,
                _ => true,
            };
            depth = instr.op.depth().map_or(0, |change| depth + change);
            inside && (0..=MAX_DEPTH as isize).contains(&depth)
        })
    }
}

impl ChainSegment {
    /// Whether four neighbouring columns can be loaded and stored together: all places begin at
    /// multiples of 16 bytes.
    pub(crate) fn is_wide(&self, results: usize) -> bool {
        let even = |number: u32| number.is_multiple_of(UNIT as u32);
        let even_words = |words: usize| words.is_multiple_of(UNIT);
        even_words(self.width)
            && self.code.iter().all(|Instr { op, a, b, c }| match op {
                Op::Matrix => *c == 0 || even(*a) && even(*b),
                Op::KeepMatrix | Op::LookUp => even(*a) && even(*b),
                Op::Feed => c & 1 == 0 || even(*b) && even(c >> 1) && even(a / ENTRY_WORDS as u32),
                Op::Constant => *c == 0 || even(*a),
                Op::KeepRow => even(*a),
                Op::KeepResult => even(*a) && even_words(results),
                _ => true,
            })
    }
}

/// Checks that the entries name rows that exist.
pub(crate) fn check_entries(entries: &[u32], spec: &CellModelSpec, cell: usize) -> Result<(), CudaError> {
    // A feed may begin inside of a row; memory goes on for one row behind the last one.
    let (width, units) = (spec.entry_words(cell), spec.units() as u32);
    let immediate = spec.programs[cell].immediate;
    let inside = |unit: u32| unit < units;
    let fits = |entry: &[u32]| {
        let (feeds, rest) = entry.split_at(width - 2);
        let known = |(feed, &unit): (usize, &u32)| immediate >> feed & 1 != 0 || unit & STAGED != 0 || inside(unit);
        feeds.iter().enumerate().all(known) && inside(rest[0])
    };
    if entries.chunks_exact(width).all(fits) { Ok(()) } else { Err(CudaError::InvalidProgram) }
}
