//! Models whose engine runs in a process of its own, so that one that takes it down takes nothing else with it.
//!
//! What differs from a model in the server's process is one thing: a batch, gathered as ever, goes over a socket to a process that
//! runs it, and what it makes comes back. Plans, walks, conditions, padding and cells stay where they are, so everything that
//! runs without a process of its own runs with it.
//!
//! Each device that the model is attached to (and each lane) has a process, as it has a session of ONNX Runtime: a batch waits for
//! no other. A *keeper*, a thread, starts it, waits for its end, and starts it again; after a pause that doubles as long as it
//! does not live. What ran in it fails at once and is to be sent again, and so is what comes before it is back: such a failure
//! is told by [`Outage`] from one of the engine's own, and is nobody's fault among the members of the batch, so the batch is not
//! run again in parts.
//!
//! Rejected: one process for all batches of a model, which would have to be asynchronous; shared memory for tensors, which is
//! faster and needs `unsafe` on both sides of a border that is there because one side is not trusted.

mod child;
mod keeper;
mod protocol;

pub use child::serve_engine;

use crate::model::{LoadedModel, OnnxBlocks, Own};
use crate::plan::Plan;
use crate::rows::Batch;
use crate::worker::{Call, Ready, Runner};
use crate::{ExecError, LoadError, Loaded, ModelSource};
use keeper::{Connection, Processes};
use protocol::{Done, Load, LoadBlock, Packed, Range, Run, fits, receive, send};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How to run a model's engine in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// The program to start; it calls [`serve_engine`].
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The most bytes of address space that it may take.
    pub memory_limit: Option<u64>,
}

/// Whether a runner's last batch failed because there is no process to run it, and when there may be one again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outage(Arc<AtomicU64>);

impl Outage {
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn set(&self, for_about: Duration) {
        self.0.store((for_about.as_millis() as u64).max(1), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        let millis = self.0.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }
}

/// Which engine a process is to be.
pub(crate) struct Kind {
    pub(crate) onnxruntime: bool,
    pub(crate) library: Option<PathBuf>,
    pub(crate) threads: usize,
    /// As [`Runner::least_rows`] of the engine.
    pub(crate) least_rows: usize,
}

/// A model in processes.
pub(crate) struct Isolated {
    processes: Arc<Processes>,
    least_rows: usize,
}

impl Own for Isolated {
    fn outage(&self) -> Option<Duration> {
        self.processes.outage()
    }
}

/// Starts the first process of a model whose files have been read. An engine that fails on them, or ends on them, is the error.
pub(crate) fn load(
    isolation: &Isolation,
    kind: Kind,
    source: &ModelSource,
    read: OnnxBlocks<'_>,
) -> Result<Arc<dyn Loaded>, LoadError> {
    let text = |path: &std::path::Path| {
        path.to_str().map(str::to_owned).ok_or_else(|| LoadError(format!("{}: its name is no UTF-8", path.display())))
    };
    let block = |(block, (path, io)): (&crate::BlockSource, &(&std::path::Path, ripieno_onnx::Declared))| {
        let own = source.ranges.iter().filter(|range| io.inputs.iter().any(|input| input.name == range.tensor));
        let range =
            |range: &crate::InputRange| Range { tensor: range.tensor.clone(), least: range.least, most: range.most };
        // The process has the same working directory, but what it is told should not hang on that.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Ok(LoadBlock { name: block.name.clone(), path: text(&path)?, ranges: own.map(range).collect() })
    };
    let blocks = source.blocks.iter().zip(&read.blocks).map(block).collect::<Result<_, LoadError>>()?;
    let message = Load {
        onnxruntime: kind.onnxruntime,
        library: kind.library.as_deref().map(text).transpose()?,
        threads: kind.threads as u64,
        max_batch: read.plan.max_batch as u64,
        unbatched: read.plan.unbatched,
        blocks,
        memory_limit: isolation.memory_limit,
    };
    let processes = Processes::new(source.name.clone(), isolation.clone(), message);
    processes.provide(1)?;
    let own = Isolated { processes, least_rows: kind.least_rows };
    Ok(Arc::new(LoadedModel { plan: Arc::new(read.plan), own }))
}

/// What runs an isolated model on a lane; none if the model is not one. Waits until there is a process for it.
pub(crate) fn prepare(loaded: &dyn Loaded) -> Option<Result<Ready, ExecError>> {
    let model: &LoadedModel<Isolated> = loaded.as_any().downcast_ref()?;
    let plan = Arc::clone(&model.plan);
    let runner = Proxy {
        plan: Arc::clone(&plan),
        processes: Arc::clone(&model.own.processes),
        connection: None,
        outage: Outage::default(),
        least_rows: model.own.least_rows,
    };
    let outage = runner.outage.clone();
    Some(match model.own.processes.attach() {
        Ok(()) => Ok(Ready { plan, runner: Box::new(runner), outage }),
        Err(cause) => Err(ExecError(cause.to_string())),
    })
}

/// Has batches run in a process.
struct Proxy {
    plan: Arc<Plan>,
    processes: Arc<Processes>,
    connection: Option<Connection>,
    outage: Outage,
    least_rows: usize,
}

impl Proxy {
    fn exchange(&mut self, run: &Run) -> Result<Done, ExecError> {
        let connection = self.connection.take().filter(Connection::is_open).or_else(|| self.processes.take());
        let Some(mut connection) = connection else {
            self.outage.set(self.processes.outage().unwrap_or_default());
            return Err(ExecError("the process of the model's engine has ended and is being started again".to_owned()));
        };
        let outcome = send(&mut connection.socket, run).and_then(|()| receive(&mut connection.socket));
        match outcome {
            Ok(done) => {
                self.connection = Some(connection);
                Ok(done)
            }
            Err(cause) => {
                // Its keeper sees the end, of the process or of what it says.
                drop(connection);
                self.outage.set(self.processes.outage().unwrap_or(keeper::FIRST_PAUSE));
                Err(ExecError(format!("the process of the model's engine ended: {cause}")))
            }
        }
    }
}

impl Runner for Proxy {
    fn least_rows(&self) -> usize {
        self.least_rows
    }

    fn run(&mut self, call: &Call<'_>) -> Result<Vec<Batch>, ExecError> {
        let inputs = call.inputs.iter().map(Packed::of_input).collect();
        let run = Run { block: call.block as u32, rows: call.rows as u64, inputs };
        fits(&run).map_err(ExecError)?;
        let mut done = self.exchange(&run)?;
        if let Some(cause) = done.error {
            return Err(ExecError(cause));
        }
        let outputs = self.plan.blocks[call.block].outputs.iter().map(|&output| {
            let output = &self.plan.values[output];
            let refuse =
                |cause: &str| ExecError(format!("output '{}' of model '{}': {cause}", output.name, self.plan.name));
            let at = done.outputs.iter().position(|packed| packed.name == *output.name);
            let packed = done.outputs.swap_remove(at.ok_or_else(|| refuse("the process did not give it"))?);
            let batch = packed.into_batch().map_err(|cause| refuse(&cause))?;
            match batch.datatype == output.spec.datatype {
                true => Ok(batch),
                false => Err(refuse(&format!("it is {}, not {}", batch.datatype, output.spec.datatype))),
            }
        });
        outputs.collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.processes.leave(self.connection.take());
    }
}
