//! The threads of the HTTP and gRPC server, which read requests and write answers. They yield to
//! those that run models.
//!
//! Overload also makes the server work more: each request is read before it is refused. On shared
//! cores the devices would then run less the more is offered. So the server's threads are *nicer*
//! than the threads of the devices and of the scheduler: they take the cores that the devices
//! leave, and at least a tenth of a core that they share with one.

use std::io;
use std::thread;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Niceness of the server's threads: a thread that is nicer by 10 has about a tenth of the time of
/// another one on the same core.
#[cfg(target_os = "linux")]
const NICER: i32 = 10;

/// The threads of the HTTP and gRPC server, as many as there are cores, each with a runtime of its
/// own. They end when this is dropped, together with the work in progress on them.
///
/// Threads that they start inherit the priority, so models must not be loaded on them: an engine's
/// threads are started by the thread that loads.
pub(crate) struct ServerThreads {
    runtimes: Vec<Handle>,
    _running: Vec<oneshot::Sender<()>>,
}

impl ServerThreads {
    pub(crate) fn start() -> io::Result<ServerThreads> {
        // Here, so that its thread does not inherit the priority of the server's threads.
        ripieno_server::watch_processor()?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: io::Result<Vec<_>> = (0..cores).map(|_| start_thread()).collect();
        let (runtimes, running) = threads?.into_iter().unzip();
        Ok(ServerThreads { runtimes, _running: running })
    }

    /// Returns the runtimes for connections; the server itself runs on the first.
    pub(crate) fn runtimes(&self) -> &[Handle] {
        &self.runtimes
    }
}

/// Starts a thread, and returns its runtime and the channel whose end stops it.
fn start_thread() -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (running, ended) = oneshot::channel();
    thread::Builder::new().name("front-end".to_owned()).spawn(move || {
        lower_priority();
        // Nothing is ever sent.
        let _ = runtime.block_on(ended);
        runtime.shutdown_background();
    })?;
    Ok((handle, running))
}

/// Lowers the priority. On Linux it is the calling thread's own; elsewhere it would be the whole
/// process's.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(cause) = rustix::process::nice(NICER) {
        tracing::debug!("a thread of the HTTP and gRPC server keeps its priority: {cause}");
    }
}
