//! The process of an engine, from inside: loads what it is told, runs batch after batch, ends when the server does.
//!
//! Its standard input is a socket to the server. A thread of its own reads it, so that the process ends with the connection even
//! if the engine is busy, or hangs.

use super::protocol::{Done, Load, LoadBlock, Packed, Run, fits, number, receive, send};
use crate::{
    BlockSource, CpuEngine, CpuOptions, Device, Engine, Entry, InputRange, LoadError, Member, ModelSource,
    OnnxRuntimeEngine, OnnxRuntimeOptions, Progress, Task, TaskResult, Tensor,
};
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Engines recurse into a graph as deep as it is, when they load it. Only what is used of this is ever in memory.
const LOADING_STACK: usize = 256 << 20;

/// Serves the process that started this one, over standard input, until it is gone. Returns only with an error.
pub fn serve_engine() -> io::Result<()> {
    end_before_the_server();
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let load: Load = receive(&mut socket)?;
    let served = match limit(load.memory_limit).and_then(|()| load_deeply(&load)) {
        Ok(served) => served,
        Err(cause) => return send(&mut socket, &failed(0, cause.0)),
    };
    send(&mut socket, &Done::default())?;
    for batch in read(socket.try_clone()?)? {
        let number = batch.number;
        let outputs = served.run(batch);
        let done = outputs.map(|outputs| Done { error: None, outputs, number });
        let done = done.and_then(|done| fits(&done).map(|()| done));
        send(&mut socket, &done.unwrap_or_else(|cause| failed(number, cause)))?;
    }
    Ok(())
}

fn failed(number: u64, cause: String) -> Done {
    Done { error: Some(cause), outputs: Vec::new(), number }
}

/// Ends with the server even if it hangs then, and before the server where the machine runs out of memory. Both are Linux's;
/// elsewhere a process that hangs may outlive a server that is killed.
fn end_before_the_server() {
    #[cfg(target_os = "linux")]
    {
        // If the server has ended before this, so has the connection, before anything could hang.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
}

/// On a thread whose stack is deep, but takes no more than its part of what is allowed.
fn load_deeply(load: &Load) -> Result<Served, LoadError> {
    let stack = load.memory_limit.map_or(LOADING_STACK, |limit| LOADING_STACK.min(limit as usize / 8));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("load".to_owned()).stack_size(stack);
        let thread = thread.spawn_scoped(scope, || Served::load(load));
        let thread = thread.map_err(|cause| LoadError(format!("no thread to load it: {cause}")))?;
        thread.join().unwrap_or_else(|_| Err(LoadError("the engine panicked".to_owned())))
    })
}

/// Reads batches, as many ahead as there are: one. When no more can come, the process ends.
fn read(mut socket: UnixStream) -> io::Result<Receiver<Run>> {
    let (batches, received) = sync_channel(1);
    std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        while let Ok(batch) = receive::<Run>(&mut socket) {
            if batches.send(batch).is_err() {
                break;
            }
        }
        #[expect(clippy::disallowed_methods, reason = "a batch may be running, and has nobody to give its answer to")]
        std::process::exit(0);
    })?;
    Ok(received)
}

/// Takes no more address space than that, this process and all that it still starts.
fn limit(bytes: Option<u64>) -> Result<(), LoadError> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let Some(bytes) = bytes else { return Ok(()) };
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::As, limit).map_err(|cause| LoadError(format!("memory_limit_mb cannot be set: {cause}")))
}

/// The blocks on a device.
struct Served {
    device: Box<dyn Device>,
    results: Receiver<TaskResult>,
}

impl Served {
    fn load(load: &Load) -> Result<Served, LoadError> {
        let threads = load.threads as usize;
        let engine: Box<dyn Engine> = if load.onnxruntime {
            let library = load.library.clone().map(PathBuf::from);
            Box::new(OnnxRuntimeEngine::new(OnnxRuntimeOptions { library, threads })?)
        } else {
            Box::new(CpuEngine::new(CpuOptions { threads }))
        };
        let (sink, results) = sync_channel(1);
        // A result that nobody waits for is of a process that is about to end.
        let device = engine.open(1, Arc::new(move |result| drop(sink.send(result))))?;
        for (id, block) in (0..).map(ModelId).zip(&load.blocks) {
            device.attach(id, engine.load(&source(load, block))?);
        }
        Ok(Served { device, results })
    }

    fn run(&self, batch: Run) -> Result<Vec<Packed>, String> {
        let rows = batch.rows as usize;
        let inputs: Result<Vec<Tensor>, String> = batch.inputs.into_iter().map(tensor).collect();
        let member = Member::new(RequestSlot(0), rows, Some(Arc::new(Entry::of(inputs?.into()))));
        let model = ModelId(batch.block as u16);
        let (block, lane) = (BlockId(0), LaneId(0));
        let task = Task { id: TaskId(0), model, block, lane, members: vec![member], length: 1, not_before: None };
        self.device.submit(task).map_err(|_| "the engine is busy".to_owned())?;
        let result = self.results.recv().map_err(|cause| cause.to_string())?;
        let progress: Vec<Progress> = result.whole().map_err(|cause| cause.0)?;
        let outputs = progress.into_iter().flat_map(|progress| progress.outputs);
        Ok(outputs.map(packed).collect())
    }
}

fn source(load: &Load, block: &LoadBlock) -> ModelSource {
    let range = |range: &super::protocol::Range| InputRange {
        tensor: range.tensor.clone(),
        least: range.least,
        most: range.most,
    };
    let only = BlockSource { path: Some(PathBuf::from(&block.path)), ..BlockSource::new(&block.name) };
    ModelSource {
        unbatched: load.unbatched,
        ranges: block.ranges.iter().map(range).collect(),
        ..ModelSource::new(&block.name, vec![only], load.max_batch as usize)
    }
}

fn tensor(packed: Packed) -> Result<Tensor, String> {
    let datatype = packed.datatype()?;
    Ok(Tensor { name: packed.name.into(), datatype, shape: packed.shape, data: packed.data })
}

fn packed(tensor: Tensor) -> Packed {
    let Tensor { name, datatype, shape, data } = tensor;
    Packed { name: name.as_ref().to_owned(), datatype: number(datatype), shape, data }
}
