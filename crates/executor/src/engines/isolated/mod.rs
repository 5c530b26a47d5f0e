//! Models whose engine runs in separate processes, so that a crash of the engine affects nothing
//! else.
//!
//! A gathered batch is sent over a socket to a process, which runs it and returns the outputs.
//! Everything else stays in the server: plans, request states, conditions, padding and cells. So
//! all features work as for models in the server's process. Cells whose state is on a GPU are the
//! exception: see [`cells`].
//!
//! Otherwise a model has one process for each lane that it is attached to, so no batch waits for
//! another. A [`supervisor`] thread starts a process, waits for its end and restarts it. The pause
//! before a restart doubles while the process does not stay up. If a process ends, its running
//! batch fails immediately and may be retried. The same holds for a batch that arrives while no
//! process runs.
//! [`ProcessDown`] distinguishes these failures from the engine's own. Such a batch is not run
//! again in parts, because each part might end another process. A process that sends an invalid
//! reply, or none in time, is killed; see [`life`].
//!
//! The tensors of large batches go through memory that both sides have mapped, and neither trusts;
//! see [`transfer`]. A batch that was gathered while another one runs is sent meanwhile, too, so
//! that only its number is left to send; see [`sending`]. Large outputs are copied while the next
//! batch runs; see [`receiving`].
//!
//! Rejected: one process for all batches of a model, which would have to be asynchronous.

mod ahead;
#[cfg(target_os = "linux")]
mod cells;
mod child;
mod connection;
mod declaration;
mod environment;
mod life;
mod protocol;
mod python;
mod receiving;
mod replying;
mod sending;
#[cfg(target_os = "linux")]
mod shared;
mod steps;
mod supervisor;
mod transfer;
#[cfg(not(target_os = "linux"))]
mod unshared;
mod warm_up;

#[cfg(target_os = "linux")]
pub(crate) use cells::{CellProcesses, CellPrograms, CellsOn};
pub use child::serve_engine;
pub use python::PythonEngine;

use crate::contract::model::{EngineData, EngineModel, OnnxBlocks};
use crate::run::plan::{BlockIo, ModelPlan};
use crate::run::rows::BatchTensor;
use crate::run::runner::{BlockCall, BlockOutputs, ComingOutputs, ProcessDown, ReadyModel, Runner, SendAhead};
use crate::{BlockSource, ExecError, GpuOptions, Isolation, LoadError, LoadedModel, Loss, ModelSource, Outage};
use ahead::AheadSender;
use protocol::{LoadBlock, LoadGpu, LoadRequest, PackedTensor, RangeMessage, RunReply, RunRequest, fits};
use receiving::FollowingOutputs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use supervisor::ProcessPool;
use transfer::OutgoingTensor;
use warm_up::ProcessWarmUp;

/// Settings of the engine in a process.
pub(crate) struct ProcessEngine {
    pub(crate) onnxruntime: bool,
    pub(crate) library: Option<PathBuf>,
    pub(crate) threads: usize,
    /// Smallest number of rows; see [`Runner::min_rows`].
    pub(crate) least_rows: usize,
    /// GPUs of the engine; empty on a CPU.
    pub(crate) gpus: Vec<u32>,
    pub(crate) gpu_options: GpuOptions,
    /// Whether ONNX Runtime binds tensors on the CPU, too.
    pub(crate) binds_on_cpu: bool,
}

/// A model that runs in separate processes.
pub(crate) struct Isolated {
    /// Processes on each GPU of the engine, or on the CPU.
    places: Vec<Arc<ProcessPool>>,
    least_rows: usize,
    /// Number of each block in the process.
    functions: Vec<u32>,
    /// The source with what a Python file declares.
    adopted: Option<Arc<ModelSource>>,
}

impl EngineData for Isolated {
    /// Returns an outage if no process runs on any device that has the model.
    fn outage(&self) -> Option<Outage> {
        let attached = || self.places.iter().filter(|processes| processes.is_attached());
        let outages: Option<Vec<Outage>> = match attached().next() {
            Some(_) => attached().map(|processes| processes.outage()).collect(),
            None => self.places[..1].iter().map(|processes| processes.outage()).collect(),
        };
        outages?.into_iter().min_by_key(|outage| outage.retry_after)
    }

    fn adopted_source(&self) -> Option<&ModelSource> {
        self.adopted.as_deref()
    }

    fn cell(&self, plan: &ModelPlan, block: usize) -> Option<Arc<dyn LoadedModel>> {
        let adopted = self.adopted.as_ref()?;
        let specs = |values: &[usize]| values.iter().map(|&value| plan.values[value].spec.clone()).collect::<Vec<_>>();
        let (name, linked) = (&adopted.blocks[block].name, &plan.blocks[block]);
        let io = BlockIo {
            place: format!("function '{name}'"),
            inputs: specs(&linked.inputs),
            outputs: specs(&linked.outputs),
            vocabulary: Vec::new(),
            optional: Vec::new(),
        };
        let ranges = adopted.blocks[block].ranges(&io.inputs, &adopted.ranges);
        let source = ModelSource { ranges, ..ModelSource::new(name, vec![BlockSource::new(name)], adopted.max_batch) };
        let plan = ModelPlan::link(&source, &[io]).ok()?;
        let functions = vec![self.functions[block]];
        let data = Isolated { places: self.places.clone(), least_rows: self.least_rows, functions, adopted: None };
        Some(Arc::new(EngineModel { plan: Arc::new(plan), data }))
    }

    fn restarts(&self) -> Option<u64> {
        Some(self.places.iter().map(|processes| processes.restarts()).sum())
    }
}

/// Starts the first process of a model whose files have been read. Returns an error if the engine
/// fails or crashes on them.
pub(crate) fn load(
    isolation: &Isolation,
    kind: ProcessEngine,
    source: &ModelSource,
    read: OnnxBlocks<'_>,
) -> Result<Arc<dyn LoadedModel>, LoadError> {
    let block = |(block, (path, io)): (&crate::BlockSource, &(&std::path::Path, ripieno_onnx::Declared))| {
        let own = block.ranges(&io.inputs, &source.ranges);
        let range =
            |range: crate::InputRange| RangeMessage { tensor: range.tensor, least: range.least, most: range.most };
        let ranges = own.into_iter().map(range).collect();
        Ok(LoadBlock { name: block.name.clone(), path: absolute_path(path)?, ranges })
    };
    let blocks = source.blocks.iter().zip(&read.blocks).map(block).collect::<Result<_, LoadError>>()?;
    let request = LoadRequest {
        onnxruntime: kind.onnxruntime,
        library: kind.library.as_deref().map(utf8).transpose()?,
        threads: kind.threads as u64,
        max_batch: read.plan.max_batch as u64,
        unbatched: read.plan.unbatched,
        blocks,
        memory_limit: isolation.memory_limit,
        gpu: None,
        binds_on_cpu: kind.binds_on_cpu,
        python: None,
        cells: None,
    };
    let warm_up = Arc::new(ProcessWarmUp::new(read.plan.blocks.len(), &read.plan.batch_sizes));
    let pool = |ordinal: Option<u32>| {
        let gpu = ordinal.map(|ordinal| gpu(ordinal, kind.gpu_options));
        let load = LoadRequest { gpu, ..request.clone() };
        ProcessPool::new(source.name.clone(), isolation.clone(), load, Arc::clone(&warm_up))
    };
    let places: Vec<Arc<ProcessPool>> = match &kind.gpus[..] {
        [] => vec![pool(None)],
        gpus => gpus.iter().map(|&ordinal| pool(Some(ordinal))).collect(),
    };
    places[0].provide(1)?;
    let functions = (0..read.plan.blocks.len() as u32).collect();
    let own = Isolated { places, least_rows: kind.least_rows, functions, adopted: None };
    Ok(Arc::new(EngineModel { plan: Arc::new(read.plan), data: own }))
}

fn gpu(ordinal: u32, GpuOptions { memory_limit, allow_cpu_nodes, .. }: GpuOptions) -> LoadGpu {
    LoadGpu { ordinal, memory_limit, allow_cpu_nodes }
}

/// Returns the path of a file independent of the working directory of the process that reads it.
fn absolute_path(path: &Path) -> Result<String, LoadError> {
    utf8(&std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()))
}

fn utf8(path: &Path) -> Result<String, LoadError> {
    path.to_str().map(str::to_owned).ok_or_else(|| LoadError(format!("{}: its name is no UTF-8", path.display())))
}

/// Returns the runner of an isolated model on a lane of a device at `place`, and waits until the
/// lane has a process. `None` if the model is not isolated.
pub(crate) fn prepare(loaded: &dyn LoadedModel, place: usize) -> Option<Result<ReadyModel, ExecError>> {
    let model: &EngineModel<Isolated> = loaded.as_any().downcast_ref()?;
    let plan = Arc::clone(&model.plan);
    let processes = &model.data.places[place];
    let runner = ProcessRunner {
        plan: Arc::clone(&plan),
        processes: Arc::clone(processes),
        down: ProcessDown::default(),
        least_rows: model.data.least_rows,
        functions: model.data.functions.clone(),
        ahead: AheadSender::new(processes, &model.data.functions),
    };
    let down = runner.down.clone();
    Some(match processes.attach() {
        Ok(()) => Ok(ReadyModel { plan, runner: Box::new(runner), down }),
        Err(cause) => Err(ExecError(cause.to_string())),
    })
}

/// Runs batches in a process.
struct ProcessRunner {
    plan: Arc<ModelPlan>,
    processes: Arc<ProcessPool>,
    down: ProcessDown,
    least_rows: usize,
    /// See [`Isolated::functions`].
    functions: Vec<u32>,
    ahead: Arc<AheadSender>,
}

impl ProcessRunner {
    /// Runs a batch in a process and returns its reply with the data of all tensors, and its
    /// outputs if they follow.
    fn exchange(&mut self, call: &BlockCall<'_>) -> Result<(RunReply, Option<FollowingOutputs>), ExecError> {
        let block = self.functions[call.block];
        let mut connection = self.processes.acquire(call.sent).map_err(|outage| {
            self.down.set(Loss { retry_after: outage.retry_after, inside: false });
            ExecError(format!("{}; it is being started again", outage.cause))
        })?;
        let inputs: Vec<OutgoingTensor<'_>> = call.inputs.iter().map(OutgoingTensor::from).collect();
        let kept_bound = connection.kept_bound() as u64;
        let number = call.sent.unwrap_or_else(|| self.processes.next_number());
        let packed = connection.sending().lock().pack(number, &inputs);
        let run = packed.and_then(|inputs| {
            let (rows, alone, was_sent) = (call.rows as u64, self.plan.sharing.is_stopped(), inputs.is_none());
            let inputs = inputs.unwrap_or_default();
            // A Python model's process answers each batch whole.
            let may_follow = call.outputs_may_follow && self.processes.declared().is_none();
            let is_ahead = false;
            let run = RunRequest { number, block, rows, inputs, alone, kept_bound, was_sent, is_ahead, may_follow };
            fits(&run).map(|()| run)
        });
        let run = match run {
            Ok(run) => run,
            Err(cause) => {
                self.processes.release(connection);
                return Err(ExecError(cause));
            }
        };
        match connection.run(&run, |end| self.ahead.open(end)) {
            Ok(done) => {
                if done.0.error.is_none() {
                    self.processes.warm_up().record(block as usize, call);
                }
                self.processes.release(connection);
                Ok(done)
            }
            Err(cause) => {
                let (cause, loss) = lost(&self.processes, &connection.give_up(&cause));
                self.down.set(loss);
                Err(cause)
            }
        }
    }
}

impl Runner for ProcessRunner {
    fn min_rows(&self) -> usize {
        self.least_rows
    }

    fn sender(&self) -> Option<Arc<dyn SendAhead>> {
        // A Python model's process reads nothing while it runs a batch.
        let reads_ahead = self.processes.declared().is_none();
        reads_ahead.then(|| Arc::clone(&self.ahead) as Arc<dyn SendAhead>)
    }

    /// Gives back what this end keeps. The process does the same by itself.
    fn release_memory(&mut self) {
        self.processes.each_idle(|connection| connection.release_memory());
    }

    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError> {
        match self.compute(&BlockCall { outputs_may_follow: false, ..*call })? {
            BlockOutputs::Here(outputs) => Ok(outputs),
            BlockOutputs::Coming(outputs) => outputs.receive().map_err(|(cause, loss)| {
                loss.into_iter().for_each(|loss| self.down.set(loss));
                cause
            }),
        }
    }

    fn compute(&mut self, call: &BlockCall<'_>) -> Result<BlockOutputs, ExecError> {
        let (done, following) = self.exchange(call)?;
        if let Some(cause) = done.error {
            return Err(ExecError(cause));
        }
        let (plan, block) = (Arc::clone(&self.plan), call.block);
        match following {
            Some(following) => {
                let processes = Arc::clone(&self.processes);
                Ok(BlockOutputs::Coming(Box::new(ComingFromProcess { plan, block, processes, following })))
            }
            None => outputs_of(&plan, block, done.outputs).map(BlockOutputs::Here),
        }
    }
}

/// Returns the outputs of a block, in its order.
fn outputs_of(plan: &ModelPlan, block: usize, mut given: Vec<PackedTensor>) -> Result<Vec<BatchTensor>, ExecError> {
    let outputs = plan.blocks[block].outputs.iter().map(|&output| {
        let output = &plan.values[output];
        let refuse = |cause: &str| ExecError(format!("output '{}' of model '{}': {cause}", output.name, plan.name));
        let at = given.iter().position(|packed| packed.name == *output.name);
        let packed = given.swap_remove(at.ok_or_else(|| refuse("the process did not give it"))?);
        let batch = packed.into_batch().map_err(|cause| refuse(&cause))?;
        match batch.datatype == output.spec.datatype {
            true => Ok(batch),
            false => Err(refuse(&format!("it is {}, not {}", batch.datatype, output.spec.datatype))),
        }
    });
    outputs.collect()
}

/// Returns the error and the loss of a batch whose process has ended so.
fn lost(processes: &ProcessPool, end: &str) -> (ExecError, Loss) {
    let cause = format!("the process of the model's engine ended with the batch that the request was in: {end}");
    (ExecError(cause), Loss { retry_after: processes.back_in(), inside: true })
}

/// Outputs of a batch that follow its reply.
struct ComingFromProcess {
    plan: Arc<ModelPlan>,
    block: usize,
    processes: Arc<ProcessPool>,
    following: FollowingOutputs,
}

impl ComingOutputs for ComingFromProcess {
    fn have_rows(&self, rows: usize) -> bool {
        let shapes = self.following.shapes();
        shapes.iter().all(|shape| shape.first().is_some_and(|&first| usize::try_from(first) == Ok(rows)))
    }

    fn receive(self: Box<Self>) -> Result<Vec<BatchTensor>, (ExecError, Option<Loss>)> {
        let ComingFromProcess { plan, block, processes, following } = *self;
        let given = following.receive().map_err(|end| {
            let cause = format!("the process of the model's engine ended before the batch's outputs had come: {end}");
            // The batch had run, so another one has ended the process.
            (ExecError(cause), Some(Loss { retry_after: processes.back_in(), inside: false }))
        })?;
        let given = given.map_err(|cause| (ExecError(cause), None))?;
        outputs_of(&plan, block, given).map_err(|cause| (cause, None))
    }
}

impl Drop for ProcessRunner {
    fn drop(&mut self) {
        self.processes.detach();
    }
}
