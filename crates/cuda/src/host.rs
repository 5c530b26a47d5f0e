//! A device that runs programs on this machine's CPU, instruction by instruction, for tests of all
//! that is around a GPU.
//!
//! It is no quick engine but a strict one: memory that nothing has written holds NaN, all that lies
//! between stages is spoilt before each step, and a step takes a random time.

use crate::lane::check_entries;
use crate::program::ENTRY_WORDS;
use crate::{
    CellLane, CellModelSpec, ChainSegment, CudaError, Instr, ModelOnDevice, Op, Precision, Product, Reduce, Reduction,
    STAGED, StepDevice, StepInputs, StepStage, UNIT,
};
use half::f16;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that is none, other than the NaN that instructions give.
const SPOILT: u32 = 0x7fc0_dead;

/// The CPU as a device for cells.
#[derive(Debug, Default)]
pub struct HostDevice {
    seed: AtomicU64,
}

impl HostDevice {
    /// Creates a device whose steps take random times of up to 50 us. A seed of 0: no time.
    pub fn new(seed: u64) -> HostDevice {
        HostDevice { seed: AtomicU64::new(seed) }
    }
}

impl StepDevice for HostDevice {
    fn load(&self, spec: Arc<CellModelSpec>) -> Result<Arc<dyn ModelOnDevice>, CudaError> {
        spec.check()?;
        let mut arena = vec![SPOILT; spec.arena_words()];
        arena[..spec.row_units * UNIT].fill(0);
        let seed = self.seed.load(Ordering::Relaxed);
        Ok(Arc::new(HostModel { spec, arena: RwLock::new(arena), seed: AtomicU64::new(seed) }))
    }
}

struct HostModel {
    spec: Arc<CellModelSpec>,
    arena: RwLock<Vec<u32>>,
    seed: AtomicU64,
}

impl ModelOnDevice for HostModel {
    fn lane(self: Arc<Self>) -> Result<Box<dyn CellLane>, CudaError> {
        let rows = self.spec.max_rows();
        let per_row = |words: fn(&crate::StepProgram) -> usize| {
            self.spec.programs.iter().map(|program| vec![SPOILT; rows * words(program)]).collect()
        };
        Ok(Box::new(HostLane {
            entries: per_row(|program| program.feeds + 2),
            staged: self.spec.programs.iter().map(|program| vec![SPOILT; program.staged]).collect(),
            results: per_row(|program| program.results),
            faults: vec![0; rows],
            model: self,
        }))
    }

    fn read(&self, unit: usize, words: &mut [u32]) -> Result<(), CudaError> {
        let arena = self.arena.read();
        let from = arena.get(unit * UNIT..unit * UNIT + words.len()).ok_or(CudaError::InvalidProgram)?;
        words.copy_from_slice(from);
        Ok(())
    }
}

struct HostLane {
    model: Arc<HostModel>,
    entries: Vec<Vec<u32>>,
    staged: Vec<Vec<u32>>,
    results: Vec<Vec<u32>>,
    faults: Vec<u32>,
}

impl CellLane for HostLane {
    fn inputs(&mut self, cell: usize) -> Result<StepInputs<'_>, CudaError> {
        Ok(StepInputs { entries: &mut self.entries[cell], staged: &mut self.staged[cell] })
    }

    fn run(&mut self, cell: usize, rows: usize) -> Result<(), CudaError> {
        let spec = Arc::clone(&self.model.spec);
        let program = &spec.programs[cell];
        spec.sizes.binary_search(&rows).map_err(|_| CudaError::InvalidProgram)?;
        check_entries(&self.entries[cell][..rows * spec.entry_words(cell)], &spec, cell)?;
        self.model.delay();
        let results = &mut self.results[cell];
        results.fill(SPOILT);
        self.faults.fill(0);
        let mut step = HostStep {
            spec: &spec,
            cell,
            entries: &self.entries[cell],
            staged: &self.staged[cell],
            results,
            faults: &mut self.faults,
            scratch: vec![SPOILT; program.scratch],
            arena: &self.model.arena,
        };
        for stage in &program.stages {
            match stage {
                StepStage::Chain(segments) => {
                    for row in 0..rows {
                        segments.iter().for_each(|segment| step.segment(row, segment));
                    }
                }
                StepStage::Product(product) => (0..rows).for_each(|row| step.multiply(row, product)),
                StepStage::Reduce(reduce) => (0..rows).for_each(|row| step.reduce(row, reduce)),
            }
        }
        self.model.delay();
        Ok(())
    }

    fn results(&self, cell: usize) -> &[u32] {
        &self.results[cell]
    }

    fn faults(&self) -> &[u32] {
        &self.faults
    }
}

impl HostModel {
    fn delay(&self) {
        let next = |seed: u64| seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(seed != 0));
        let seed = self.seed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seed| Some(next(seed))).unwrap_or(0);
        if seed != 0 {
            std::thread::sleep(Duration::from_micros((seed >> 40) % 50));
        }
    }
}

struct HostStep<'a> {
    spec: &'a CellModelSpec,
    cell: usize,
    entries: &'a [u32],
    staged: &'a [u32],
    results: &'a mut [u32],
    faults: &'a mut [u32],
    scratch: Vec<u32>,
    arena: &'a RwLock<Vec<u32>>,
}

impl HostStep<'_> {
    fn segment(&mut self, row: usize, segment: &ChainSegment) {
        for column in 0..segment.width {
            let (mut top, mut stack) = (SPOILT, Vec::new());
            for instr in &segment.code {
                if matches!(instr.op, Op::Matrix | Op::Feed | Op::EntryWord | Op::Constant) {
                    stack.push(top);
                }
                top = self.run(row, column, *instr, top, &mut stack);
            }
        }
    }

    /// Runs an instruction for one row and column. Returns the accumulator.
    fn run(&mut self, row: usize, column: usize, instr: Instr, top: u32, stack: &mut Vec<u32>) -> u32 {
        let program = &self.spec.programs[self.cell];
        let [a, b, c] = [instr.a, instr.b, instr.c].map(|operand| operand as usize);
        let own = |step: usize| if step == 0 { 0 } else { column };
        let width = program.feeds + 2;
        let entry = &self.entries[row * width..(row + 1) * width];
        match instr.op {
            Op::Matrix => return self.scratch[a + row * b + own(c)],
            Op::EntryWord => return entry[a],
            Op::Constant => return self.spec.constants[a + own(c)],
            Op::Feed => {
                let at = (c >> 1) + own(c & 1);
                let from = entry[a % ENTRY_WORDS];
                return match from & STAGED {
                    0 => self.arena.read()[from as usize * UNIT + at],
                    _ => self.staged[b + row * (a / ENTRY_WORDS) + at],
                };
            }
            Op::LookUp => {
                let id = i64::from(top as i32);
                let id = if id < 0 { id + c as i64 } else { id };
                let inside = usize::try_from(id).ok().filter(|&id| id < c);
                if inside.is_none() {
                    self.faults[row] = 1;
                }
                return inside.map_or(f32::NAN.to_bits(), |id| self.spec.constants[a + id * b + column]);
            }
            Op::KeepMatrix => self.scratch[a + row * b + column] = top,
            Op::KeepHalf => {
                let at = 2 * a + row * b + c + column;
                let (word, shift) = (&mut self.scratch[at / 2], at % 2 * 16);
                let bits = u32::from(f16::from_f32(f32::from_bits(top)).to_bits());
                *word = *word & !(0xffff << shift) | bits << shift;
            }
            Op::KeepRow => self.arena.write()[entry[width - 2] as usize * UNIT + a + column] = top,
            Op::KeepResult => {
                if entry[width - 1] >> b & 1 != 0 {
                    self.results[row * program.results + a + column] = top;
                }
            }
            Op::Clear => stack.clear(),
            _ => return arithmetic(instr.op, top, stack),
        }
        top
    }

    fn multiply(&mut self, row: usize, product: &Product) {
        let Product { from, weights, transposed, inner, columns, to } = *product;
        let halves = self.spec.precision == Precision::Fp16;
        let half = |words: &[u32], at: usize| f16::from_bits((words[at / 2] >> (at % 2 * 16)) as u16).to_f32();
        let constants = &self.spec.constants[weights..];
        for column in 0..columns {
            let mut sum = 0f32;
            for k in 0..inner {
                let at = if transposed { column * inner + k } else { k * columns + column };
                let row = &self.scratch[from.base + row * from.stride..];
                sum += match halves {
                    true => half(row, k) * half(constants, at),
                    false => f32::from_bits(row[k]) * f32::from_bits(constants[at]),
                };
            }
            self.scratch[to.base + row * to.stride + column] = sum.to_bits();
        }
    }

    fn reduce(&mut self, row: usize, reduce: &Reduce) {
        let from = reduce.from.base + row * reduce.from.stride;
        let to = reduce.to.base + row * reduce.to.stride;
        let numbers: Vec<f32> =
            self.scratch[from..from + reduce.width].iter().map(|&bits| f32::from_bits(bits)).collect();
        let best = (1..numbers.len()).fold(0, |best, at| if numbers[at] > numbers[best] { at } else { best });
        match reduce.kind {
            Reduction::ArgMax => self.scratch[to] = best as u32,
            Reduction::Softmax => {
                let powers: Vec<f32> = numbers.iter().map(|number| (number - numbers[best]).exp()).collect();
                let sum: f32 = powers.iter().sum();
                powers.iter().enumerate().for_each(|(at, power)| self.scratch[to + at] = (power / sum).to_bits());
            }
        }
    }
}

fn arithmetic(op: Op, top: u32, stack: &mut Vec<u32>) -> u32 {
    let a = f32::from_bits(top);
    let mut pair = || {
        let left = stack.pop().unwrap_or(SPOILT);
        (f32::from_bits(left), left)
    };
    let float = match op {
        Op::Add => pair().0 + a,
        Op::Sub => pair().0 - a,
        Op::Mul => pair().0 * a,
        Op::Div => pair().0 / a,
        Op::Equal => return u32::from(pair().0 == a),
        Op::EqualInt => return u32::from(pair().1 == top),
        Op::Sigmoid => 1.0 / (1.0 + (-a).exp()),
        Op::Tanh => a.tanh(),
        Op::Relu => {
            if a < 0.0 {
                0.0
            } else {
                a
            }
        }
        Op::Exp => a.exp(),
        Op::Neg => -a,
        Op::Abs => a.abs(),
        Op::Sqrt => a.sqrt(),
        Op::ToFloat => top as i32 as f32,
        Op::ToInt => return a as i32 as u32,
        Op::Not => return u32::from(top == 0),
        _ => a,
    };
    float.to_bits()
}
