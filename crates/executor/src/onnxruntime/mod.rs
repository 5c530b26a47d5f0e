//! Engine "onnxruntime": ONNX by Microsoft's library, loaded at run time by the crate ort.
//!
//! A session runs one batch at a time, so a model needs as many as batches may run at once: on each device one for each lane, but
//! no more than the device has threads, since no more batches run there at once. A batch takes sessions that no other one uses, and
//! gives them back. Making them is slow (the graph is optimised again, the weights are read again), so it happens in
//! `load`, for all devices that are open then. A device opened later makes its own when the model is attached to it, on the
//! attaching thread: no other model's batch waits for it. The price is a copy of the weights for each batch at once.
//!
//! A session has all threads of its device, so that a batch that is alone has them; where lanes run side by side the system
//! shares the cores out.
//!
//! Gathered batches are read in place, and outputs stay in the library's memory until the last answer made of them is
//! sent.

mod library;
mod tensors;

use crate::isolated::{self, Kind};
use crate::lane::{DEFAULT_DEPTH, LaneOptions, Lanes};
use crate::model::{LoadedModel, Own, read_blocks};
use crate::plan::Plan;
use crate::rows::Batch;
use crate::runner::{Call, Ready, Runner};
use crate::values::Limits;
use crate::{Device, Engine, ExecError, LoadError, Loaded, ModelSource, Sink};
use library::Library;
use ort::logging::LogLevel;
use ort::session::{Session, SessionInputValue, builder::SessionBuilder};
use parking_lot::{Condvar, Mutex};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const NAME: &str = "onnxruntime";

/// How the engine uses the machine.
#[derive(Clone, Debug)]
pub struct OnnxRuntimeOptions {
    /// The library's file. If none: the environment variable `ORT_DYLIB_PATH`, else the system's library, else the
    /// Python package onnxruntime.
    pub library: Option<PathBuf>,
    /// Threads that work on one batch, for each device.
    pub threads: usize,
}

impl Default for OnnxRuntimeOptions {
    fn default() -> OnnxRuntimeOptions {
        OnnxRuntimeOptions { library: None, threads: 1 }
    }
}

/// Engine "onnxruntime".
pub struct OnnxRuntimeEngine {
    library: &'static Library,
    /// What was asked for, for processes that load it themselves.
    path: Option<PathBuf>,
    threads: usize,
    depth: usize,
    opened: AtomicUsize,
    /// How many batches may run at once, on all devices that are open.
    at_once: Arc<AtomicUsize>,
}

impl OnnxRuntimeEngine {
    /// The engine, once the library is found and loaded; a process loads it once.
    pub fn new(options: OnnxRuntimeOptions) -> Result<OnnxRuntimeEngine, LoadError> {
        let library = library::load(options.library.as_deref())?;
        let threads = options.threads.max(1);
        Ok(OnnxRuntimeEngine {
            library,
            path: options.library,
            threads,
            depth: DEFAULT_DEPTH,
            opened: AtomicUsize::new(0),
            at_once: Arc::default(),
        })
    }

    /// The same engine, whose devices hold up to `depth` tasks each, the running one included.
    pub fn with_depth(mut self, depth: usize) -> OnnxRuntimeEngine {
        self.depth = depth;
        self
    }
}

impl Engine for OnnxRuntimeEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device_key(&self) -> String {
        format!("{NAME}/{}/{}-thread", self.library.version, self.threads)
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn Loaded>, LoadError> {
        let read = read_blocks(source, NAME, Limits::default())?;
        if let Some(isolation) = &source.isolation {
            let kind = Kind { onnxruntime: true, library: self.path.clone(), threads: self.threads, least_rows: 1 };
            return isolated::load(isolation, kind, source, read);
        }
        let paths = read.blocks.iter().map(|(path, _)| path.to_path_buf()).collect();
        let at_once = Arc::clone(&self.at_once);
        let (library, threads) = (self.library, self.threads);
        let pool =
            SessionPool { library, threads, paths, at_once, state: Mutex::default(), given_back: Condvar::new() };
        let pool = Arc::new(pool);
        pool.grow()?;
        Ok(Arc::new(LoadedModel { plan: Arc::new(read.plan), own: pool }))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let lanes = lanes.max(1);
        let claim = Claim::new(&self.at_once, lanes.min(self.threads));
        let options = LaneOptions {
            name: format!("{NAME}-{}", self.opened.fetch_add(1, Ordering::Relaxed)),
            depth: self.depth,
            prepare: Box::new(move |loaded, _lane| claim.prepare(loaded)),
            enter: Arc::new(|body| body()),
            aborts: (0..lanes).map(|_| Arc::default()).collect(),
            at_once: self.threads,
        };
        Lanes::open(options, sink)
    }
}

/// How many batches may run at once on a device, for as long as it is open.
struct Claim(Arc<AtomicUsize>, usize);

impl Claim {
    fn new(at_once: &Arc<AtomicUsize>, own: usize) -> Claim {
        at_once.fetch_add(own, Ordering::Relaxed);
        Claim(Arc::clone(at_once), own)
    }

    fn prepare(&self, loaded: &dyn Loaded) -> Result<Ready, ExecError> {
        let model = LoadedModel::<Arc<SessionPool>>::of(loaded, NAME)?;
        model.own.grow().map_err(|cause| ExecError(cause.to_string()))?;
        let runner = OrtRunner { plan: Arc::clone(&model.plan), pool: Arc::clone(&model.own) };
        Ok(Ready::new(Arc::clone(&model.plan), Box::new(runner)))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Where a model's sessions are made, and where they wait while no batch uses them.
struct SessionPool {
    library: &'static Library,
    threads: usize,
    paths: Vec<PathBuf>,
    /// Of the engine.
    at_once: Arc<AtomicUsize>,
    state: Mutex<PoolState>,
    given_back: Condvar,
}

impl Own for Arc<SessionPool> {}

#[derive(Default)]
struct PoolState {
    made: usize,
    idle: Vec<Sessions>,
}

/// One session for each block.
type Sessions = Vec<Session>;

impl SessionPool {
    /// Makes what is missing for as many batches as may run at once now. Batches that run meanwhile do not wait for it.
    fn grow(&self) -> Result<(), LoadError> {
        while self.reserve() {
            let made = self.make().inspect_err(|_| self.state.lock().made -= 1)?;
            self.put(made);
        }
        Ok(())
    }

    /// Whether sessions are missing; they count as made from now on.
    fn reserve(&self) -> bool {
        let mut state = self.state.lock();
        let missing = state.made < self.wanted();
        state.made += usize::from(missing);
        missing
    }

    /// Sessions for one batch. It may have to wait while those of a device that has just been attached are being made.
    fn lend(&self) -> Lease<'_> {
        let mut state = self.state.lock();
        loop {
            match state.idle.pop() {
                Some(sessions) => return Lease { pool: self, sessions },
                None => self.given_back.wait(&mut state),
            }
        }
    }

    /// Takes sessions back, or lets them go if a device has been closed since.
    fn put(&self, sessions: Sessions) {
        let mut state = self.state.lock();
        if state.made > self.wanted() {
            state.made -= 1;
        } else {
            state.idle.push(sessions);
            self.given_back.notify_one();
        }
    }

    fn wanted(&self) -> usize {
        self.at_once.load(Ordering::Relaxed).max(1)
    }

    fn make(&self) -> Result<Sessions, LoadError> {
        let session = |path: &PathBuf| {
            self.session(path).map_err(|cause| {
                let file = path.display();
                LoadError(format!("{file}: onnxruntime cannot load it: {cause}; check the file with onnx.checker"))
            })
        };
        self.paths.iter().map(session).collect()
    }

    fn session(&self, path: &Path) -> Result<Session, ort::Error> {
        let builder = Session::builder(&self.library.environment)?;
        let mut builder = configure(builder, self.threads)?;
        builder.commit_from_file(path)
    }
}

/// The library's operator for a sum and its layer norm takes 1.4 to 2 times as long as the three that it replaces
/// (docs/slicing.md), and blocks would have it more often than the whole, since more is known of their shapes.
const SLOWER: &str = "SkipLayerNormFusion";

/// Threads that wait must sleep: the device next to this one, and the server, want the cores. Nothing is logged by the
/// library, because every error is returned.
fn configure(builder: SessionBuilder, threads: usize) -> Result<SessionBuilder, ort::Error> {
    let builder = builder.with_intra_threads(threads)?.with_inter_threads(1)?.with_intra_op_spinning(false)?;
    let builder = builder.with_disabled_optimizers(SLOWER)?;
    Ok(builder.with_log_level(LogLevel::Fatal)?)
}

/// Sessions that a batch uses; given back when it is over.
struct Lease<'a> {
    pool: &'a SessionPool,
    sessions: Sessions,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.sessions));
    }
}

struct OrtRunner {
    plan: Arc<Plan>,
    pool: Arc<SessionPool>,
}

impl Runner for OrtRunner {
    fn run(&mut self, call: &Call<'_>) -> Result<Vec<Batch>, ExecError> {
        let mut inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = Vec::with_capacity(call.inputs.len());
        for input in call.inputs {
            let value = tensors::to_ort(input, self.plan.unbatched);
            let value = value.map_err(|cause| ExecError(format!("input '{}': {cause}", input.name)))?;
            inputs.push((Cow::Borrowed(input.name), value));
        }
        let mut lent = self.pool.lend();
        let values = lent.sessions[call.block].run(inputs);
        let mut values = values.map_err(|cause| ExecError(format!("onnxruntime: {cause}")))?;
        let outputs = self.plan.blocks[call.block].outputs.iter().map(|&output| {
            let output = &self.plan.values[output];
            let refuse =
                |cause: String| ExecError(format!("output '{}' of model '{}': {cause}", output.name, self.plan.name));
            let value = values.remove(&*output.name).ok_or_else(|| refuse("the session did not give it".to_owned()))?;
            tensors::from_ort(value, output.spec.datatype, self.plan.unbatched, call.inputs).map_err(refuse)
        });
        outputs.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockSource;
    use ripieno_base::ModelId;

    #[test]
    fn there_are_sessions_for_as_many_batches_as_run_at_once() {
        let engine = OnnxRuntimeEngine::new(OnnxRuntimeOptions { threads: 2, ..Default::default() }).unwrap();
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/models/way_first.onnx");
        let block = BlockSource { path: Some(path), ..BlockSource::new("way") };
        let loaded = engine.load(&ModelSource::new("way", vec![block], 4)).unwrap();
        let pool = &LoadedModel::<Arc<SessionPool>>::of(&*loaded, NAME).unwrap().own;
        assert_eq!(pool.state.lock().made, 1);
        let open = |lanes: usize| {
            let device = engine.open(lanes, Arc::new(|_| {})).unwrap();
            device.attach(ModelId(0), Arc::clone(&loaded));
            device
        };
        let (wide, narrow) = (open(3), open(1));
        assert_eq!(
            pool.state.lock().made,
            3,
            "two at once on the device of three lanes and two threads, one on the other"
        );
        drop(wide);
        let (first, second) = (pool.lend(), pool.lend());
        drop((first, second));
        let state = pool.state.lock();
        assert_eq!((state.made, state.idle.len()), (1, 1));
        drop((state, narrow));
    }
}
