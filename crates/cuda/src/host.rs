//! A device that runs programs on this machine's CPU, instruction by instruction, for tests of all
//! that is around a GPU.
//!
//! It is no quick engine but a strict one: memory that nothing has written holds NaN, all that lies
//! between stages is spoilt before each step, and a step takes a random time. Each lane has a
//! thread that runs its steps, so a step that is launched has truly not run yet.

use crate::program::{ENTRY_WORDS, check_entries};
use crate::{
    CellLane, CellModelSpec, ChainSegment, CudaError, Instr, ModelOnDevice, Op, Precision, Product, Reduce, Reduction,
    STAGED, StepDevice, StepInputs, StepOutputs, StepStage, UNIT,
};
use half::f16;
use parking_lot::{Condvar, Mutex, RwLock};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A number that is none, other than the NaN that instructions give.
const SPOILT: u32 = 0x7fc0_dead;

/// Number of steps in flight.
const DEPTH: usize = 4;
/// Time between two looks at what may end a wait.
const LOOK: Duration = Duration::from_micros(50);

/// The CPU as a device for cells.
#[derive(Debug, Default)]
pub struct HostDevice {
    state: Arc<HostState>,
}

#[derive(Debug, Default)]
struct HostState {
    /// State of the generator of random times; 0: steps take none.
    seed: AtomicU64,
    /// Whether no step begins.
    held: Mutex<bool>,
    /// Signals a change of `held`.
    changed: Condvar,
    /// Largest number of steps of a lane that were in flight.
    most_in_flight: AtomicUsize,
    /// Number of further steps that run, if there is a bound.
    steps_left: Mutex<Option<u64>>,
}

impl HostState {
    /// Counts a step. Returns whether it fails, as all do once the bound is reached: an error of a
    /// GPU spoils its context.
    fn fails(&self) -> bool {
        let mut left = self.steps_left.lock();
        let fails = *left == Some(0);
        *left = left.map(|left| left.saturating_sub(1));
        fails
    }
}

impl HostDevice {
    /// Creates a device whose steps take random times of up to 50 us. A seed of 0: no time.
    pub fn new(seed: u64) -> HostDevice {
        HostDevice { state: Arc::new(HostState { seed: AtomicU64::new(seed), ..HostState::default() }) }
    }

    /// Lets no further step begin, or lets them begin again.
    pub fn hold(&self, held: bool) {
        *self.state.held.lock() = held;
        self.state.changed.notify_all();
    }

    /// Lets this number of further steps run; each later one fails as with an error of a GPU.
    pub fn fail_after(&self, steps: u64) {
        *self.state.steps_left.lock() = Some(steps);
    }

    /// Returns the largest number of steps of a lane that were in flight.
    pub fn most_in_flight(&self) -> usize {
        self.state.most_in_flight.load(Ordering::Relaxed)
    }
}

impl StepDevice for HostDevice {
    fn load(&self, spec: Arc<CellModelSpec>) -> Result<Arc<dyn ModelOnDevice>, CudaError> {
        spec.check()?;
        let mut arena = vec![SPOILT; spec.arena_words()];
        arena[..spec.row_units * UNIT].fill(0);
        Ok(Arc::new(HostModel { spec, arena: RwLock::new(arena), state: Arc::clone(&self.state) }))
    }
}

struct HostModel {
    spec: Arc<CellModelSpec>,
    arena: RwLock<Vec<u32>>,
    state: Arc<HostState>,
}

impl ModelOnDevice for HostModel {
    fn lane(self: Arc<Self>) -> Result<Box<dyn CellLane>, CudaError> {
        let ((launches, launched), (done, ends)) = (channel(), channel());
        let model = Arc::clone(&self);
        let stream = std::thread::spawn(move || model.run_steps(&launched, &done));
        Ok(Box::new(HostLane {
            free: (0..DEPTH).map(|_| HostPlace::new(&self.spec)).collect(),
            model: self,
            launches: Some(launches),
            ends,
            ended: None,
            settled: None,
            in_flight: 0,
            stream: Some(stream),
        }))
    }

    fn read(&self, unit: usize, words: &mut [u32]) -> Result<(), CudaError> {
        let arena = self.arena.read();
        let from = arena.get(unit * UNIT..unit * UNIT + words.len()).ok_or(CudaError::InvalidProgram)?;
        words.copy_from_slice(from);
        Ok(())
    }

    fn copy_row(&self, from: &dyn ModelOnDevice, row: u32, to: u32) -> Result<bool, CudaError> {
        let Some(from) = from.as_any().downcast_ref::<HostModel>() else { return Ok(false) };
        if !Arc::ptr_eq(&from.spec, &self.spec) || std::ptr::eq(from, self) {
            return Ok(false);
        }
        let ([from_word, to_word], words) = (self.spec.places_of([row, to])?, self.spec.row_units * UNIT);
        let copy = from.arena.read()[from_word..from_word + words].to_vec();
        self.arena.write()[to_word..to_word + words].copy_from_slice(&copy);
        Ok(true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Memory of one step in flight.
struct HostPlace {
    entries: Vec<Vec<u32>>,
    staged: Vec<Vec<u32>>,
    results: Vec<Vec<u32>>,
    faults: Vec<u32>,
    /// Cell of the step, and its number of rows.
    step: (usize, usize),
    has_failed: bool,
}

impl HostPlace {
    fn new(spec: &CellModelSpec) -> HostPlace {
        let rows = spec.max_rows();
        let per_row = |words: fn(&crate::StepProgram) -> usize| {
            spec.programs.iter().map(|program| vec![SPOILT; rows * words(program)]).collect()
        };
        HostPlace {
            entries: per_row(|program| program.feeds + 2),
            staged: spec.programs.iter().map(|program| vec![SPOILT; program.staged]).collect(),
            results: per_row(|program| program.results),
            faults: vec![0; rows],
            step: (0, 0),
            has_failed: false,
        }
    }
}

struct HostLane {
    model: Arc<HostModel>,
    /// Memory of further steps.
    free: VecDeque<HostPlace>,
    /// Steps for the lane's thread; `None` once it is to end.
    launches: Option<Sender<HostPlace>>,
    ends: Receiver<HostPlace>,
    /// The oldest step in flight, if it has ended.
    ended: Option<HostPlace>,
    /// The step that was settled last. Its memory is free with the next one.
    settled: Option<HostPlace>,
    in_flight: usize,
    stream: Option<JoinHandle<()>>,
}

impl HostLane {
    /// Returns the memory of the next step.
    fn next(&mut self) -> &mut HostPlace {
        self.free.extend(self.settled.take());
        self.free.front_mut().expect("fewer steps than the depth are in flight")
    }
}

impl CellLane for HostLane {
    fn depth(&self) -> usize {
        DEPTH
    }

    fn inputs(&mut self, cell: usize) -> Result<StepInputs<'_>, CudaError> {
        let place = self.next();
        Ok(StepInputs { entries: &mut place.entries[cell], staged: &mut place.staged[cell] })
    }

    fn launch(&mut self, cell: usize, rows: usize) -> Result<(), CudaError> {
        let spec = Arc::clone(&self.model.spec);
        spec.sizes.binary_search(&rows).map_err(|_| CudaError::InvalidProgram)?;
        let place = self.next();
        check_entries(&place.entries[cell][..rows * spec.entry_words(cell)], &spec, cell)?;
        place.step = (cell, rows);
        let (place, launches) = (self.free.pop_front(), self.launches.as_ref());
        let sent = place.zip(launches).is_some_and(|(place, launches)| launches.send(place).is_ok());
        if !sent {
            return Err(CudaError::Broken);
        }
        self.in_flight += 1;
        self.model.state.most_in_flight.fetch_max(self.in_flight, Ordering::Relaxed);
        Ok(())
    }

    fn wait(&mut self, stop: &dyn Fn() -> bool) -> bool {
        while self.ended.is_none() {
            match self.ends.recv_timeout(LOOK) {
                Ok(place) => self.ended = Some(place),
                Err(RecvTimeoutError::Timeout) if stop() => return false,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
        true
    }

    fn settle(&mut self) -> Result<StepOutputs<'_>, CudaError> {
        self.in_flight = self.in_flight.checked_sub(1).expect("a step is in flight");
        self.wait(&|| false);
        self.free.extend(self.settled.take());
        let place = self.settled.insert(self.ended.take().ok_or(CudaError::Broken)?);
        if place.has_failed {
            let text = "an illegal memory access was encountered".to_owned();
            return Err(CudaError::Driver { call: "cuStreamQuery", text });
        }
        Ok(StepOutputs { results: &place.results[place.step.0], faults: &place.faults })
    }
}

impl Drop for HostLane {
    fn drop(&mut self) {
        self.launches = None;
        self.model.state.changed.notify_all();
        if let Some(stream) = self.stream.take() {
            let _ = stream.join();
        }
    }
}

impl HostModel {
    /// Runs a lane's steps in order until the lane is dropped.
    fn run_steps(&self, launched: &Receiver<HostPlace>, ends: &Sender<HostPlace>) {
        for mut place in launched {
            self.state.changed.wait_while(&mut self.state.held.lock(), |held| *held);
            self.delay();
            place.has_failed = self.state.fails();
            if !place.has_failed {
                self.run_step(&mut place);
            }
            self.delay();
            if ends.send(place).is_err() {
                return;
            }
        }
    }

    fn run_step(&self, place: &mut HostPlace) {
        let (spec, (cell, rows)) = (&self.spec, place.step);
        let program = &spec.programs[cell];
        let results = &mut place.results[cell];
        results.fill(SPOILT);
        place.faults.fill(0);
        let mut step = HostStep {
            spec,
            cell,
            entries: &place.entries[cell],
            staged: &place.staged[cell],
            results,
            faults: &mut place.faults,
            scratch: vec![SPOILT; program.scratch],
            arena: &self.arena,
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
    }

    fn delay(&self) {
        let next = |seed: u64| seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(seed != 0));
        let seed = &self.state.seed;
        let seed = seed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seed| Some(next(seed))).unwrap_or(0);
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
