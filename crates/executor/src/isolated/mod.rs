//! Models whose engine runs in a process of its own, so that one that takes it down takes nothing else with it.
//!
//! What differs from a model in the server's process is one thing: a batch, gathered as ever, goes over a socket to a process that
//! runs it, and what it makes comes back. Plans, walks, conditions, padding and cells stay where they are, so everything that
//! runs without a process of its own runs with it.
//!
//! There are as many processes of a model as lanes that it is attached to, as there are sessions of ONNX Runtime: a batch waits for
//! no other. A [`supervisor`], a thread, starts one, waits for its end, and starts it again; after a pause that doubles as long as it
//! does not live. What ran in it fails at once and is to be sent again, and so is what comes while there is none: [`Down`] tells
//! such a failure from one of the engine's own. The batch is not run again in parts: each of them might kill a process. One that
//! answers nonsense, or not at all, is killed; see [`life`].
//!
//! Rejected: one process for all batches of a model, which would have to be asynchronous; shared memory for tensors, which is
//! faster and needs `unsafe` on both sides of a border that is there because one side is not trusted.

mod child;
mod life;
mod protocol;
mod supervisor;

pub use child::serve_engine;

use crate::model::{LoadedModel, OnnxBlocks, Own};
use crate::plan::Plan;
use crate::rows::Batch;
use crate::runner::{Call, Down, Ready, Runner};
use crate::{ExecError, Isolation, LoadError, Loaded, Loss, ModelSource, Outage};
use protocol::{Done, Load, LoadBlock, Packed, Range, Run, fits, receive, send};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use supervisor::Processes;

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
    fn outage(&self) -> Option<Outage> {
        self.processes.outage()
    }

    fn restarts(&self) -> Option<u64> {
        Some(self.processes.restarts())
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
        let own = block.ranges(&io.inputs, &source.ranges);
        let range = |range: crate::InputRange| Range { tensor: range.tensor, least: range.least, most: range.most };
        // The process has the same working directory, but what it is told should not hang on that.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Ok(LoadBlock { name: block.name.clone(), path: text(&path)?, ranges: own.into_iter().map(range).collect() })
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
        down: Down::default(),
        batches: 0,
        least_rows: model.own.least_rows,
    };
    let down = runner.down.clone();
    Some(match model.own.processes.attach() {
        Ok(()) => Ok(Ready { plan, runner: Box::new(runner), down }),
        Err(cause) => Err(ExecError(cause.to_string())),
    })
}

/// Has batches run in a process.
struct Proxy {
    plan: Arc<Plan>,
    processes: Arc<Processes>,
    down: Down,
    /// So far; each has the next number.
    batches: u64,
    least_rows: usize,
}

impl Proxy {
    fn exchange(&mut self, run: &Run) -> Result<Done, ExecError> {
        let connection = self.processes.take().map_err(|outage| {
            self.down.set(Loss { retry_after: outage.retry_after, inside: false });
            ExecError(format!("{}; it is being started again", outage.cause))
        })?;
        let mut exchange = connection.exchange();
        let outcome = send(&mut exchange, run).and_then(|()| receive::<Done>(&mut exchange));
        let nonsense = |done: &Done| io::Error::new(io::ErrorKind::InvalidData, format!("to batch {}", done.number));
        match outcome.and_then(|done| if done.number == run.number { Ok(done) } else { Err(nonsense(&done)) }) {
            Ok(done) => {
                self.processes.put_back(connection);
                Ok(done)
            }
            Err(cause) => {
                let end = connection.give_up(&cause);
                self.down.set(Loss { retry_after: self.processes.back_in(), inside: true });
                Err(ExecError(format!(
                    "the process of the model's engine ended with the batch that the request was in: {end}"
                )))
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
        self.batches += 1;
        let run = Run { number: self.batches, block: call.block as u32, rows: call.rows as u64, inputs };
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
        self.processes.detach();
    }
}
