//! The engine process: it loads a model, runs one batch after another, and ends with the server.
//!
//! Standard input is a socket to the server. A separate thread reads it, so the process ends with
//! the connection even if the engine is busy or hangs.

#[cfg(target_os = "linux")]
use super::cells::serve_cells;
use super::protocol::{LoadBlock, LoadRequest, PackedTensor, RunReply, RunRequest, receive, send};
use super::replying::{ReplyEnd, failed};
use super::transfer::{InboundTensors, accept};
use crate::contract::input_memory::InputMemory;
use crate::contract::kept;
use crate::engines::onnxruntime;
use crate::{
    BlockSource, CpuEngine, CpuOptions, Device, Executor, GpuOptions, InputRange, LoadError, LoadedModel,
    MemberProgress, ModelSource, OnnxRuntimeEngine, OnnxRuntimeOptions, RequestEntry, Task, TaskMember, TaskResult,
    Tensor,
};
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

/// Stack size of the loading thread, because engines recurse as deep as the graph. Only the used
/// part of the stack occupies memory.
const LOADING_STACK: usize = 256 << 20;

/// Serves the parent process over standard input until the parent ends. Returns only on an error.
pub fn serve_engine() -> io::Result<()> {
    end_before_the_server();
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (outbound, inbound) = accept(&socket)?;
    let load: LoadRequest = receive(&mut socket)?;
    #[cfg(target_os = "linux")]
    if let Some(cells) = &load.cells {
        return serve_cells(socket, &load, cells);
    }
    let served = match limit(load.memory_limit).and_then(|()| load_deeply(&load)) {
        Ok(served) => served,
        Err(cause) => return send(&mut socket, &failed(0, cause.0)),
    };
    send(&mut socket, &RunReply::default())?;
    let buffers = inbound.buffers();
    let memories: Vec<_> = served.models.iter().map(|model| onnxruntime::input_memory(&**model)).collect();
    let batches = read(socket.try_clone()?, BatchReader::new(inbound, memories.clone()))?;
    let replies = ReplyEnd::new(socket, outbound)?;
    loop {
        let ReceivedBatch { request, inputs, shared } = match batches.recv_timeout(kept::IDLE) {
            Ok(batch) => batch,
            Err(RecvTimeoutError::Timeout) => {
                buffers.release();
                memories.iter().flatten().for_each(|memory| memory.release());
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let bound = usize::try_from(request.kept_bound).unwrap_or(usize::MAX);
        // The server counts the shared memory.
        kept::bound_kept_bytes(bound.saturating_add(shared + replies.shared_bytes()));
        let outputs = inputs.and_then(|inputs| served.run(&request, inputs));
        let kept = kept::kept_bytes().saturating_sub(shared + replies.shared_bytes()) as u64;
        replies.answer(&request, outputs, kept)?;
    }
}

/// Makes this process end with the server even if it hangs. Also makes Linux kill this process
/// before the server when memory runs out. On other systems, a hanging process may outlive a killed
/// server.
fn end_before_the_server() {
    #[cfg(target_os = "linux")]
    {
        // If the server has ended before this call, the connection is closed and the process ends
        // anyway.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
}

/// Loads the model on a thread with a large stack, limited to a fraction of the memory limit.
fn load_deeply(load: &LoadRequest) -> Result<ChildEngine, LoadError> {
    let stack = load.memory_limit.map_or(LOADING_STACK, |limit| LOADING_STACK.min(limit as usize / 8));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("load".to_owned()).stack_size(stack);
        let thread = thread.spawn_scoped(scope, || ChildEngine::load(load));
        let thread = thread.map_err(|cause| LoadError(format!("no thread to load it: {cause}")))?;
        thread.join().unwrap_or_else(|_| Err(LoadError("the engine panicked".to_owned())))
    })
}

/// A batch to run.
pub(super) struct ReceivedBatch {
    pub(super) request: RunRequest,
    /// The inputs, or the reason for which they cannot be read.
    pub(super) inputs: Result<Vec<Tensor>, String>,
    /// Used bytes of the shared memory that they came through.
    shared: usize,
}

/// Reads the inputs of batches, and keeps those that came ahead.
pub(super) struct BatchReader {
    inbound: InboundTensors,
    /// Memory of the engine for the inputs of each block, if it has some.
    memories: Vec<Option<Arc<dyn InputMemory>>>,
    ahead: Option<(u64, Result<Vec<Tensor>, String>)>,
}

impl BatchReader {
    pub(super) fn new(inbound: InboundTensors, memories: Vec<Option<Arc<dyn InputMemory>>>) -> BatchReader {
        BatchReader { inbound, memories, ahead: None }
    }

    /// Returns the batch of a request; `None` if the request is of inputs only.
    pub(super) fn read(&mut self, mut request: RunRequest) -> Option<ReceivedBatch> {
        let came_ahead = self.ahead.take().filter(|(number, _)| request.was_sent && *number == request.number);
        let inputs = match came_ahead {
            Some((_, inputs)) => inputs,
            None if request.was_sent => Err("its inputs have not come".to_owned()),
            None => self.unpack(request.block, std::mem::take(&mut request.inputs)),
        };
        if request.is_ahead {
            self.ahead = Some((request.number, inputs));
            return None;
        }
        Some(ReceivedBatch { request, inputs, shared: self.inbound.shared_bytes() })
    }

    fn unpack(&mut self, block: u32, mut inputs: Vec<PackedTensor>) -> Result<Vec<Tensor>, String> {
        let memory = self.memories.get(block as usize).and_then(Option::as_deref);
        self.inbound.unpack(&mut inputs, memory).map_err(|cause| format!("its inputs cannot be read: {cause}"))?;
        inputs.into_iter().map(tensor).collect()
    }
}

/// Reads batches, one ahead of the running one, and their inputs. Ends the process when the
/// connection closes.
fn read(mut socket: UnixStream, mut reader: BatchReader) -> io::Result<Receiver<ReceivedBatch>> {
    let (batches, received) = sync_channel(1);
    std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        while let Ok(request) = receive::<RunRequest>(&mut socket) {
            let Some(batch) = reader.read(request) else { continue };
            if batches.send(batch).is_err() {
                break;
            }
        }
        #[expect(clippy::disallowed_methods, reason = "a batch may be running, and no process waits for its answer")]
        std::process::exit(0);
    })?;
    Ok(received)
}

/// Limits the address space of this process and of its child processes.
fn limit(bytes: Option<u64>) -> Result<(), LoadError> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let Some(bytes) = bytes else { return Ok(()) };
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::As, limit).map_err(|cause| LoadError(format!("memory_limit_mb cannot be set: {cause}")))
}

/// The model's blocks, loaded on a device.
struct ChildEngine {
    device: Box<dyn Device>,
    models: Vec<Arc<dyn LoadedModel>>,
    results: Receiver<TaskResult>,
}

impl ChildEngine {
    fn load(load: &LoadRequest) -> Result<ChildEngine, LoadError> {
        let threads = load.threads as usize;
        let engine: Box<dyn Executor> = if load.onnxruntime {
            let library = load.library.clone().map(PathBuf::from);
            let gpus = load.gpu.iter().map(|gpu| gpu.ordinal).collect();
            Box::new(OnnxRuntimeEngine::new(OnnxRuntimeOptions {
                library,
                threads,
                gpus,
                binds_on_cpu: load.binds_on_cpu,
            })?)
        } else {
            Box::new(CpuEngine::new(CpuOptions { threads }))
        };
        let (sink, results) = sync_channel(1);
        // If the receiver is gone, the process is about to end.
        let device = engine.open(1, Arc::new(move |result| drop(sink.send(result))))?;
        let mut models = Vec::with_capacity(load.blocks.len());
        for (id, block) in (0..).map(ModelId).zip(&load.blocks) {
            let model = engine.load(&source(load, block))?;
            device.attach(id, Arc::clone(&model));
            models.push(model);
        }
        Ok(ChildEngine { device, models, results })
    }

    fn run(&self, batch: &RunRequest, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, String> {
        if batch.alone {
            self.models[batch.block as usize].stop_batches("the server runs each request alone");
        }
        // A block of a request that runs alone may get no rows.
        let rows = if batch.alone { batch.rows.max(1) } else { batch.rows } as usize;
        let member = TaskMember::new(RequestSlot(0), rows, Some(Arc::new(RequestEntry::of(inputs.into()))));
        let model = ModelId(batch.block as u16);
        let (block, lane) = (BlockId(0), LaneId(0));
        let task = Task { id: TaskId(0), model, block, lane, members: vec![member], length: 1, not_before: None };
        self.device.submit(task).map_err(|_| "the engine is busy".to_owned())?;
        let result = self.results.recv().map_err(|cause| cause.to_string())?;
        let progress: Vec<MemberProgress> = result.whole().map_err(|cause| cause.0)?;
        Ok(progress.into_iter().flat_map(|progress| progress.outputs).collect())
    }
}

fn source(load: &LoadRequest, block: &LoadBlock) -> ModelSource {
    let range = |range: &super::protocol::RangeMessage| InputRange {
        tensor: range.tensor.clone(),
        least: range.least,
        most: range.most,
    };
    let only = BlockSource { path: Some(PathBuf::from(&block.path)), ..BlockSource::new(&block.name) };
    ModelSource {
        unbatched: load.unbatched,
        ranges: block.ranges.iter().map(range).collect(),
        gpu: load.gpu.map_or_else(GpuOptions::default, |gpu| GpuOptions {
            memory_limit: gpu.memory_limit,
            allow_cpu_nodes: gpu.allow_cpu_nodes,
            ..GpuOptions::default()
        }),
        ..ModelSource::new(&block.name, vec![only], load.max_batch as usize)
    }
}

fn tensor(packed: PackedTensor) -> Result<Tensor, String> {
    let datatype = packed.datatype()?;
    Ok(Tensor { name: packed.name.into(), datatype, shape: packed.shape, data: packed.data })
}
