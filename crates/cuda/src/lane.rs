//! A lane of a GPU: a stream, and a graph of each cell for each batch size.
//!
//! A graph is recorded once, after one run that lets cuBLAS choose and load its kernels. Its
//! addresses are fixed: members differ in their entries only, which the first kernel reads from
//! host memory. The last kernel raises the number of finished steps in host memory, which the
//! lane's thread watches: no call of the driver is as quick.
//!
//! A step is launched while the one before it runs, so that the GPU does not wait for the host
//! between them. What the host reads and writes exists once for each step in flight, and so do the
//! graphs, since their addresses are fixed. What only the GPU uses is shared: a stream runs one
//! graph after the other.

use crate::api::{Handle, pointer};
use crate::memory::{DeviceWords, GpuStream, HostWords};
use crate::program::check_entries;
use crate::resident::{GpuModel, segments_of};
use crate::{CellLane, CudaError, Precision, Product, StepInputs, StepOutputs, StepStage};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory for cuBLAS, which then takes none by itself. As much as its documentation recommends for
/// Hopper.
const WORKSPACE_WORDS: usize = 32 << 18;
/// Time after which a step without an end is an error.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after which the driver is asked for an error. No step takes so long.
const LATE: Duration = Duration::from_millis(20);
/// Number of steps in flight: one runs, and the next one is ready when it ends.
const DEPTH: usize = 2;
/// Number of looks at the signal between two looks at the clock.
const LOOKS: u32 = 1 << 10;

/// The first argument of every kernel, as in `kernels/cells.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct StepArguments {
    entries: u64,
    current: u64,
    staged: u64,
    results: u64,
    faults: u64,
    arena: u64,
    scratch: u64,
    constants: u64,
    code: u64,
    segments: u64,
    words: u64,
    signal: u64,
    entry_width: u32,
    result_width: u32,
}

pub(crate) struct GpuLane {
    // Dropped first: a graph refers to memory of the rest.
    places: Vec<StepPlace>,
    blas: Blas,
    stream: GpuStream,
    model: Arc<GpuModel>,
    signal: HostWords,
    current: DeviceWords,
    scratch: DeviceWords,
    words: DeviceWords,
    /// Cell of each step in flight, and its place; the oldest step first.
    in_flight: VecDeque<(usize, usize)>,
    /// Place of the next step.
    next: usize,
    /// Number of steps launched.
    launched: u32,
    /// Error of an earlier step, until it has been reported; later ones report that there was one.
    failure: Option<CudaError>,
}

/// Memory and graphs that one step in flight uses alone.
struct StepPlace {
    /// Graphs of each cell, by size.
    graphs: Vec<Vec<RecordedStep>>,
    entries: HostWords,
    staged: HostWords,
    results: HostWords,
    faults: HostWords,
}

/// A recorded step.
struct RecordedStep {
    model: Arc<GpuModel>,
    handle: Handle,
}

/// A handle of cuBLAS with its workspace.
struct Blas {
    model: Arc<GpuModel>,
    handle: Handle,
    /// Memory that `handle` uses.
    workspace: DeviceWords,
}

// SAFETY: handles of the driver and of cuBLAS, which may be used on any thread, one at a time.
unsafe impl Send for GpuLane {}

impl GpuLane {
    pub(crate) fn new(model: Arc<GpuModel>) -> Result<GpuLane, CudaError> {
        let (context, spec) = (&model.context, &model.spec);
        let rows = spec.max_rows();
        let most = |words: fn(&crate::StepProgram) -> usize| spec.programs.iter().map(words).max().unwrap_or(0);
        let entry = most(|program| program.feeds) + 2;
        let place = |_| {
            Ok(StepPlace {
                graphs: Vec::new(),
                entries: HostWords::new(context, rows * entry)?,
                staged: HostWords::new(context, most(|program| program.staged))?,
                results: HostWords::new(context, rows * most(|program| program.results))?,
                faults: HostWords::new(context, rows)?,
            })
        };
        let stream = GpuStream::new(context)?;
        let mut lane = GpuLane {
            places: (0..DEPTH).map(place).collect::<Result<_, CudaError>>()?,
            blas: Blas::new(&model, &stream)?,
            signal: HostWords::new(context, 1)?,
            current: DeviceWords::new(context, rows * entry, 0)?,
            scratch: DeviceWords::new(context, most(|program| program.scratch), 0)?,
            words: DeviceWords::new(context, 2, 0)?,
            stream,
            model: Arc::clone(&model),
            in_flight: VecDeque::with_capacity(DEPTH),
            next: 0,
            launched: 0,
            failure: None,
        };
        for place in 0..DEPTH {
            for cell in 0..spec.programs.len() {
                lane.clear_entries(place, cell);
                let graphs = spec.sizes.iter().map(|&size| lane.record(place, cell, size));
                let graphs = graphs.collect::<Result<_, _>>()?;
                lane.places[place].graphs.push(graphs);
            }
        }
        Ok(lane)
    }

    /// Makes all rows read zeros and write the row of no member.
    fn clear_entries(&mut self, place: usize, cell: usize) {
        let dummy = self.model.spec.row_units as u32;
        let width = self.model.spec.entry_words(cell);
        for entry in self.places[place].entries.words_mut().chunks_exact_mut(width) {
            entry.fill(0);
            entry[width - 2] = dummy;
        }
    }

    /// Runs a step of this size once, and records it.
    fn record(&mut self, place: usize, cell: usize, rows: usize) -> Result<RecordedStep, CudaError> {
        const THREAD_LOCAL: i32 = 1;
        self.queue(place, cell, rows)?;
        self.launched += 1;
        self.stream.synchronize()?;
        let recording = self.model.context.record();
        let api = &self.model.context.api;
        // SAFETY: the stream lives and is idle.
        api.check("cuStreamBeginCapture", unsafe { (api.capture_begin)(self.stream.handle, THREAD_LOCAL) })?;
        let queued = self.queue(place, cell, rows);
        let mut graph = ptr::null_mut();
        // SAFETY: the stream records, and `graph` is a place for the result.
        let ended = api.check("cuStreamEndCapture", unsafe { (api.capture_end)(self.stream.handle, &mut graph) });
        drop(recording);
        queued.and(ended)?;
        let _shared = self.model.context.share();
        let mut handle = ptr::null_mut();
        // SAFETY: `graph` was recorded just now, and `handle` is a place for the result.
        let made = unsafe { (api.graph_instantiate)(&mut handle, graph, 0) };
        // SAFETY: as above; a graph that runs does not need it any longer.
        unsafe { (api.graph_destroy)(graph) };
        api.check("cuGraphInstantiate", made)?;
        let made = RecordedStep { model: Arc::clone(&self.model), handle };
        // SAFETY: the graph and the stream live.
        api.check("cuGraphUpload", unsafe { (api.graph_upload)(handle, self.stream.handle) })?;
        self.stream.synchronize()?;
        Ok(made)
    }

    /// Returns the error of an earlier step, if there was one.
    fn check_failure(&mut self) -> Result<(), CudaError> {
        let failure = self.failure.as_mut().map(|cause| std::mem::replace(cause, CudaError::Broken));
        failure.map_or(Ok(()), Err)
    }

    fn arguments(&self, place: usize, cell: usize) -> StepArguments {
        let program = &self.model.spec.programs[cell];
        let place = &self.places[place];
        StepArguments {
            entries: place.entries.address,
            current: self.current.address,
            staged: place.staged.address,
            results: place.results.address,
            faults: place.faults.address,
            arena: self.model.arena.address,
            scratch: self.scratch.address,
            constants: self.model.constants.address,
            code: self.model.code.address,
            segments: self.model.segments.address,
            words: self.words.address,
            signal: self.signal.address,
            entry_width: self.model.spec.entry_words(cell) as u32,
            result_width: program.results as u32,
        }
    }

    /// Queues the kernels of a step.
    fn queue(&self, place: usize, cell: usize, rows: usize) -> Result<(), CudaError> {
        let (spec, mut step) = (&self.model.spec, self.arguments(place, cell));
        let before =
            spec.programs[..cell].iter().flat_map(|program| &program.stages).map(|stage| segments_of(stage).len());
        let mut first: u32 = before.sum::<usize>() as u32;
        let stages = &spec.programs[cell].stages;
        for (at, stage) in stages.iter().enumerate() {
            match stage {
                StepStage::Chain(segments) => {
                    let widest = segments.iter().map(|segment| segment.width.div_ceil(4)).max().unwrap_or(1);
                    let threads = widest.next_multiple_of(32).clamp(32, 256) as u32;
                    let (mut fresh, mut last) = (u32::from(at == 0), u32::from(at + 1 == stages.len()));
                    let mut arguments =
                        [pointer(&mut step), pointer(&mut first), pointer(&mut fresh), pointer(&mut last)];
                    self.launch(
                        self.model.context.chain,
                        [rows as u32, segments.len() as u32],
                        threads,
                        &mut arguments,
                    )?;
                    first += segments.len() as u32;
                }
                StepStage::Product(product) => self.multiply(product, rows)?,
                StepStage::Reduce(reduce) => {
                    let (from, to) = (reduce.from, reduce.to);
                    let mut numbers = [reduce.kind as usize, from.base, from.stride, reduce.width, to.base, to.stride]
                        .map(|n| n as u32);
                    let mut arguments = vec![pointer(&mut step)];
                    arguments.extend(numbers.iter_mut().map(pointer));
                    self.launch(self.model.context.reduce, [rows as u32, 1], 256, &mut arguments)?;
                }
            }
        }
        Ok(())
    }

    fn launch(
        &self,
        kernel: Handle,
        [x, y]: [u32; 2],
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let (api, stream) = (&self.model.context.api, self.stream.handle);
        // SAFETY: the arguments have the kernel's types and live until the call returns, which
        // copies them. The program and its entries were checked, so the kernel stays in its memory.
        let status =
            unsafe { (api.launch)(kernel, x, y, 1, threads, 1, 1, 0, stream, arguments.as_mut_ptr(), ptr::null_mut()) };
        api.check("cuLaunchKernel", status)
    }

    /// Queues a product of cuBLAS, which counts matrices by columns: it computes the transposed
    /// product from the transposed factors.
    fn multiply(&self, product: &Product, rows: usize) -> Result<(), CudaError> {
        const FP32: i32 = 0;
        const FP16: i32 = 2;
        const COMPUTE_FP32: i32 = 68;
        const COMPUTE_TF32: i32 = 77;
        const DEFAULT_ALGORITHM: i32 = -1;
        let (kind, compute, per_word) = match self.model.spec.precision {
            Precision::Fp32 => (FP32, COMPUTE_FP32, 1),
            Precision::Tf32 => (FP32, COMPUTE_TF32, 1),
            Precision::Fp16 => (FP16, COMPUTE_FP32, 2),
        };
        let address = |memory: u64, word: usize| memory + word as u64 * 4;
        let weights = address(self.model.constants.address, product.weights);
        let from = address(self.scratch.address, product.from.base);
        let to = address(self.scratch.address, product.to.base);
        let (columns, inner) = (product.columns as i32, product.inner as i32);
        let weight_stride = if product.transposed { inner } else { columns };
        let (from_stride, to_stride) = ((product.from.stride * per_word) as i32, product.to.stride as i32);
        let (one, zero) = (1f32, 0f32);
        let (one, zero): (*const f32, *const f32) = (&one, &zero);
        let blas = &self.model.context.blas;
        // SAFETY: the program was checked, so the three matrices lie in their memory; both factors
        // are read from the host before the call returns.
        let status = unsafe {
            (blas.gemm)(
                self.blas.handle,
                i32::from(product.transposed),
                0,
                columns,
                rows as i32,
                inner,
                one.cast(),
                weights,
                kind,
                weight_stride,
                from,
                kind,
                from_stride,
                zero.cast(),
                to,
                FP32,
                to_stride,
                compute,
                DEFAULT_ALGORITHM,
            )
        };
        blas.check("cublasGemmEx", status)
    }

    /// Looks at the signal until the oldest step in flight has ended or `stop` returns true. Calls
    /// the driver only if the step is late. Returns whether it has ended.
    fn watch(&self, stop: &dyn Fn() -> bool) -> Result<bool, CudaError> {
        let later = self.in_flight.len().saturating_sub(1) as u32;
        let oldest = self.launched.wrapping_sub(later);
        let begun = Instant::now();
        let mut ask_at = LATE;
        loop {
            for _ in 0..LOOKS {
                if self.signal.look().wrapping_sub(oldest).cast_signed() >= 0 {
                    return Ok(true);
                }
                std::hint::spin_loop();
                if stop() {
                    return Ok(false);
                }
            }
            let waited = begun.elapsed();
            if waited >= PATIENCE {
                return Err(CudaError::Hang(PATIENCE.as_secs()));
            }
            if waited >= ask_at {
                let _shared = self.model.context.share();
                if let Some(cause) = self.stream.failure() {
                    return Err(cause);
                }
                ask_at = waited + LATE;
            }
        }
    }
}

impl CellLane for GpuLane {
    fn depth(&self) -> usize {
        DEPTH
    }

    fn inputs(&mut self, cell: usize) -> Result<StepInputs<'_>, CudaError> {
        assert!(self.in_flight.len() < DEPTH, "the next step has no memory while {DEPTH} are in flight");
        self.check_failure()?;
        let spec = &self.model.spec;
        let (rows, entry, staged) = (spec.max_rows(), spec.entry_words(cell), spec.programs[cell].staged);
        let place = &mut self.places[self.next];
        let (entries, staged_words) = (place.entries.words_mut(), place.staged.words_mut());
        Ok(StepInputs { entries: &mut entries[..rows * entry], staged: &mut staged_words[..staged] })
    }

    fn launch(&mut self, cell: usize, rows: usize) -> Result<(), CudaError> {
        assert!(self.in_flight.len() < DEPTH, "{DEPTH} steps are in flight");
        self.check_failure()?;
        let (spec, place) = (&self.model.spec, &mut self.places[self.next]);
        let size = spec.sizes.binary_search(&rows).map_err(|_| CudaError::InvalidProgram)?;
        check_entries(&place.entries.words()[..rows * spec.entry_words(cell)], spec, cell)?;
        // Clearing words that are zero would take their cache lines from the GPU for no gain.
        if place.faults.words().iter().any(|&fault| fault != 0) {
            place.faults.words_mut().fill(0);
        }
        self.model.context.enter()?;
        let api = &self.model.context.api;
        let graph = place.graphs[cell][size].handle;
        // The entries must be in memory before the GPU reads them.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        // SAFETY: the graph and the stream live, and no step in flight uses the graph's memory in
        // the host.
        let launched = api.check("cuGraphLaunch", unsafe { (api.graph_launch)(graph, self.stream.handle) });
        launched.inspect_err(|_| self.failure = Some(CudaError::Broken))?;
        self.launched = self.launched.wrapping_add(1);
        self.in_flight.push_back((cell, self.next));
        self.next = (self.next + 1) % DEPTH;
        Ok(())
    }

    fn wait(&mut self, stop: &dyn Fn() -> bool) -> bool {
        if self.failure.is_none() {
            match self.watch(stop) {
                Ok(ended) => return ended,
                Err(cause) => self.failure = Some(cause),
            }
        }
        true
    }

    fn settle(&mut self) -> Result<StepOutputs<'_>, CudaError> {
        self.wait(&|| false);
        let (cell, place) = self.in_flight.pop_front().expect("a step is in flight");
        self.check_failure()?;
        let (spec, place) = (&self.model.spec, &self.places[place]);
        let results = &place.results.words()[..spec.max_rows() * spec.programs[cell].results];
        Ok(StepOutputs { results, faults: place.faults.words() })
    }
}

impl Drop for GpuLane {
    fn drop(&mut self) {
        // A step in flight writes memory that is given back below.
        let _ = self.stream.synchronize();
    }
}

impl Drop for RecordedStep {
    fn drop(&mut self) {
        let _shared = self.model.context.share();
        if self.model.context.enter().is_ok() {
            // SAFETY: the graph was made by `record` and is destroyed once.
            unsafe { (self.model.context.api.graph_exec_destroy)(self.handle) };
        }
    }
}

impl Blas {
    fn new(model: &Arc<GpuModel>, stream: &GpuStream) -> Result<Blas, CudaError> {
        let blas = &model.context.blas;
        let workspace = DeviceWords::new(&model.context, WORKSPACE_WORDS, 0)?;
        let _shared = model.context.share();
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a place for the result, and the context is current.
        blas.check("cublasCreate", unsafe { (blas.create)(&mut handle) })?;
        let made = Blas { model: Arc::clone(model), handle, workspace };
        // SAFETY: both handles live.
        blas.check("cublasSetStream", unsafe { (blas.set_stream)(handle, stream.handle) })?;
        let bytes = WORKSPACE_WORDS * 4;
        // SAFETY: the workspace has that many bytes and lives as long as the handle.
        blas.check("cublasSetWorkspace", unsafe { (blas.set_workspace)(handle, made.workspace.address, bytes) })?;
        Ok(made)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let _shared = self.model.context.share();
        if self.model.context.enter().is_ok() {
            // SAFETY: the handle was made by `new` and is destroyed once.
            unsafe { (self.model.context.blas.destroy)(self.handle) };
        }
    }
}
