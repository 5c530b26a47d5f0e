//! Stages of a program from expressions: which matrices are computed when, and the instructions.
//!
//! Stages come in levels. In a level, a chain computes matrices, products multiply them, and
//! reductions reduce products. What reads a level's products stands in the next one. So products
//! that do not depend on each other share a level, and the fewest kernels follow each other. The
//! last level's chain computes the cell's outputs.

use super::expr::{Expr, ExprId, Exprs, MatrixId};
use ripieno_cuda::{
    ChainSegment, Instr, Matrix, Op, Precision, Product, Reduce, Reduction, StepProgram, StepStage, UNIT,
};
use std::collections::HashMap;

/// A matrix of the program.
#[derive(Clone, Copy, Debug)]
struct PlacedMatrix {
    place: Matrix,
    level: usize,
    made_by: MatrixSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatrixSource {
    Chain,
    Product,
    Reduction,
}

#[derive(Default)]
struct StageLevel {
    chain: Vec<ChainSegment>,
    products: Vec<Product>,
    reductions: Vec<Reduce>,
}

/// A constant factor of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    /// First word.
    pub(super) base: usize,
    pub(super) transposed: bool,
    pub(super) inner: usize,
    pub(super) columns: usize,
}

/// An output of the cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputPlace {
    pub(super) expr: ExprId,
    /// Offset in the row of state, if later cells read it.
    pub(super) row: Option<usize>,
    /// Column of the results for the host.
    pub(super) result: usize,
}

/// A program under construction.
pub(super) struct Schedule {
    pub(super) exprs: Exprs,
    precision: Precision,
    max_rows: usize,
    scratch: usize,
    matrices: Vec<PlacedMatrix>,
    /// Matrices of expressions, as floats and as halves.
    made: HashMap<(ExprId, bool), MatrixId>,
    levels: Vec<StageLevel>,
    /// Place of each feed among the staged ones.
    staged: Vec<Matrix>,
}

impl Schedule {
    pub(super) fn new(staged: Vec<Matrix>, max_rows: usize, precision: Precision) -> Schedule {
        Schedule {
            exprs: Exprs::default(),
            precision,
            max_rows,
            scratch: 0,
            matrices: Vec::new(),
            made: HashMap::new(),
            levels: Vec::new(),
            staged,
        }
    }

    /// Adds a product. Returns the expression of its result.
    pub(super) fn product(&mut self, from: ExprId, factor: Factor) -> Result<ExprId, String> {
        let halves = self.precision == Precision::Fp16;
        let source = self.matrix_of(from, halves)?;
        let source = self.matrices[source];
        let level = source.level + usize::from(source.made_by != MatrixSource::Chain);
        let Factor { base, transposed, inner, columns } = factor;
        let to = self.place(columns, level, MatrixSource::Product);
        let made =
            Product { from: source.place, weights: base, transposed, inner, columns, to: self.matrices[to].place };
        self.level(level).products.push(made);
        Ok(self.exprs.add(Expr::Matrix { matrix: to, offset: 0 }, columns, false))
    }

    /// Adds a reduction of each row. Returns the expression of its result.
    pub(super) fn reduction(&mut self, from: ExprId, kind: Reduction) -> Result<ExprId, String> {
        let width = self.exprs.width(from);
        let source = self.matrix_of(from, false)?;
        let source = self.matrices[source];
        let level = source.level + usize::from(source.made_by == MatrixSource::Reduction);
        let (given, is_int) = if kind == Reduction::ArgMax { (1, true) } else { (width, false) };
        let to = self.place(given, level, MatrixSource::Reduction);
        let made = Reduce { kind, from: source.place, width, to: self.matrices[to].place };
        self.level(level).reductions.push(made);
        Ok(self.exprs.add(Expr::Matrix { matrix: to, offset: 0 }, given, is_int))
    }

    /// Returns an expression of the same value that is a single load.
    pub(super) fn as_leaf(&mut self, id: ExprId) -> Result<ExprId, String> {
        if self.exprs.is_leaf(id) {
            return Ok(id);
        }
        let (width, is_int) = (self.exprs.width(id), self.exprs.get(id).is_int);
        let matrix = self.matrix_of(id, false)?;
        Ok(self.exprs.add(Expr::Matrix { matrix, offset: 0 }, width, is_int))
    }

    /// Ends the program with the chain that computes the outputs. Outputs of the same width share
    /// their instructions.
    pub(super) fn finish(mut self, outputs: &[OutputPlace]) -> Result<StepProgram, String> {
        let outputs: Vec<OutputPlace> =
            outputs.iter().map(|&output| self.without_concat(output)).collect::<Result<_, _>>()?;
        let mut widths: Vec<usize> = outputs.iter().map(|output| self.exprs.width(output.expr)).collect();
        widths.sort_unstable();
        widths.dedup();
        let last = outputs.iter().map(|output| self.chain_level(output.expr)).max().unwrap_or(0);
        let last = last.max(self.levels.len().saturating_sub(usize::from(self.ends_with_chain())));
        let mut chain = Vec::new();
        for width in widths {
            let own: Vec<(usize, &OutputPlace)> =
                outputs.iter().enumerate().filter(|(_, output)| self.exprs.width(output.expr) == width).collect();
            let roots: Vec<ExprId> = own.iter().map(|(_, output)| output.expr).collect();
            let mut emitter = Emitter::new(&roots, width, &self.exprs, last);
            for (bit, output) in own {
                emitter.emit(&mut self, output.expr)?;
                emitter.code.extend(output.row.map(|offset| Instr::new(Op::KeepRow, [offset, 0, 0])));
                emitter.code.push(Instr::new(Op::KeepResult, [output.result, bit, 0]));
                emitter.code.push(Instr::new(Op::Clear, [0; 3]));
            }
            chain.push(ChainSegment { width, code: emitter.code });
        }
        self.level(last).chain.extend(chain);
        let mut stages = Vec::new();
        for level in self.levels {
            stages.extend((!level.chain.is_empty()).then_some(StepStage::Chain(level.chain)));
            stages.extend(level.products.into_iter().map(StepStage::Product));
            stages.extend(level.reductions.into_iter().map(StepStage::Reduce));
        }
        Ok(StepProgram { scratch: self.scratch.max(UNIT), stages, ..StepProgram::default() })
    }

    fn ends_with_chain(&self) -> bool {
        self.levels.last().is_some_and(|level| level.products.is_empty() && level.reductions.is_empty())
    }

    fn without_concat(&mut self, output: OutputPlace) -> Result<OutputPlace, String> {
        Ok(OutputPlace { expr: self.flat(output.expr)?, ..output })
    }

    fn level(&mut self, level: usize) -> &mut StageLevel {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, StageLevel::default);
        }
        &mut self.levels[level]
    }

    fn place(&mut self, width: usize, level: usize, made_by: MatrixSource) -> MatrixId {
        let stride = width.next_multiple_of(UNIT);
        let place = Matrix { base: self.scratch, stride };
        self.scratch += stride * self.max_rows;
        self.matrices.push(PlacedMatrix { place, level, made_by });
        self.matrices.len() - 1
    }

    /// Returns the first level whose chain can compute an expression.
    fn chain_level(&self, id: ExprId) -> usize {
        if let Some(&matrix) = self.made.get(&(id, false)) {
            return self.matrices[matrix].level + 1;
        }
        match self.exprs.get(id).expr {
            Expr::Matrix { matrix, .. } => self.matrices[matrix].level + 1,
            _ => self.exprs.operands(id).iter().map(|&operand| self.chain_level(operand)).max().unwrap_or(0),
        }
    }

    /// Returns the matrix of an expression, which a chain computes if it does not exist.
    fn matrix_of(&mut self, id: ExprId, halves: bool) -> Result<MatrixId, String> {
        let width = self.exprs.width(id);
        match self.exprs.get(id).expr {
            Expr::Matrix { matrix, offset: 0 } if !halves => return Ok(matrix),
            _ => {}
        }
        if let Some(&matrix) = self.made.get(&(id, halves)) {
            return Ok(matrix);
        }
        let parts = match &self.exprs.get(id).expr {
            Expr::Concat(parts) => parts.clone(),
            _ => vec![id],
        };
        let parts: Vec<ExprId> = parts.into_iter().map(|part| self.flat(part)).collect::<Result<_, _>>()?;
        let level = parts.iter().map(|&part| self.chain_level(part)).max().unwrap_or(0);
        let matrix = self.place(if halves { width.div_ceil(2) } else { width }, level, MatrixSource::Chain);
        let Matrix { base, stride } = self.matrices[matrix].place;
        let mut column = 0;
        for part in parts {
            let own = self.exprs.width(part);
            let mut emitter = Emitter::new(&[part], own, &self.exprs, level);
            emitter.emit(self, part)?;
            emitter.code.push(match halves {
                true => Instr::new(Op::KeepHalf, [base, 2 * stride, column]),
                false => Instr::new(Op::KeepMatrix, [base + column, stride, 0]),
            });
            self.level(level).chain.push(ChainSegment { width: own, code: emitter.code });
            column += own;
        }
        self.made.insert((id, halves), matrix);
        Ok(matrix)
    }

    /// Returns an expression of the same value without concatenations inside.
    fn flat(&mut self, id: ExprId) -> Result<ExprId, String> {
        match self.exprs.get(id).expr {
            Expr::Concat(_) => self.as_leaf(id),
            _ => Ok(id),
        }
    }
}

/// Instructions of one segment.
struct Emitter {
    width: usize,
    level: usize,
    code: Vec<Instr>,
    /// Number of uses of each expression in the segment.
    uses: HashMap<ExprId, usize>,
    /// Matrices of expressions that the segment uses more than once. A column reads what it wrote.
    kept: HashMap<ExprId, Matrix>,
}

/// Largest number of instructions in a segment.
const MAX_CODE: usize = 512;

impl Emitter {
    fn new(roots: &[ExprId], width: usize, exprs: &Exprs, level: usize) -> Emitter {
        let mut uses = HashMap::new();
        let mut open = roots.to_vec();
        while let Some(id) = open.pop() {
            let seen: &mut usize = uses.entry(id).or_default();
            *seen += 1;
            if *seen == 1 {
                open.extend(exprs.operands(id));
            }
        }
        Emitter { width, level, code: Vec::new(), uses, kept: HashMap::new() }
    }

    /// Adds the instructions that compute an expression into the accumulator.
    fn emit(&mut self, schedule: &mut Schedule, id: ExprId) -> Result<(), String> {
        if self.code.len() > MAX_CODE {
            return Err("its element-wise operators are too many for one kernel".to_owned());
        }
        let each = usize::from(schedule.exprs.width(id) > 1 || self.width == 1);
        let made = schedule.made.get(&(id, false)).map(|&matrix| schedule.matrices[matrix]);
        let made = made.filter(|made| made.level < self.level).map(|made| made.place);
        if let Some(Matrix { base, stride }) = self.kept.get(&id).copied().or(made) {
            self.code.push(Instr::new(Op::Matrix, [base, stride, each]));
            return Ok(());
        }
        match schedule.exprs.get(id).expr.clone() {
            Expr::Feed { feed, offset } => {
                self.code.push(Instr::feed(feed, schedule.staged[feed], offset, each == 1));
            }
            Expr::EntryWord { feed } => self.code.push(Instr::new(Op::EntryWord, [feed, 0, 0])),
            Expr::Constant { base } => self.code.push(Instr::new(Op::Constant, [base, 0, each])),
            Expr::Matrix { matrix, offset } => {
                let Matrix { base, stride } = schedule.matrices[matrix].place;
                self.code.push(Instr::new(Op::Matrix, [base + offset, stride, each]));
            }
            Expr::Table { base, stride, count, id } => {
                self.emit(schedule, id)?;
                self.code.push(Instr::new(Op::LookUp, [base, stride, count]));
            }
            Expr::Unary(op, a) => {
                self.emit(schedule, a)?;
                self.code.push(Instr::new(op, [0; 3]));
            }
            Expr::Binary(op, a, b) => {
                self.emit(schedule, a)?;
                self.emit(schedule, b)?;
                self.code.push(Instr::new(op, [0; 3]));
            }
            Expr::Concat(_) => return Err("it joins columns in the middle of element-wise operators".to_owned()),
        }
        let shared = self.uses.get(&id).is_some_and(|&uses| uses > 1) && schedule.exprs.width(id) == self.width;
        if shared && !schedule.exprs.is_leaf(id) {
            let matrix = schedule.place(self.width, self.level, MatrixSource::Chain);
            let place = schedule.matrices[matrix].place;
            self.code.push(Instr::new(Op::KeepMatrix, [place.base, place.stride, 0]));
            self.kept.insert(id, place);
        }
        Ok(())
    }
}
