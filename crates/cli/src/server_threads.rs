//! The threads that read requests and write answers. They give way to those that run models.
//!
//! Whoever sends more than the devices carry also makes the front end work more: each request is read before it is refused. On
//! cores that both share, the device would then run less the more is asked of it. So threads of the front end are *nicer* than
//! those of the devices and of the scheduler: they take what cores the devices leave, and at least a tenth beside each of them.

use std::io;
use std::thread;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// How much nicer: a thread that is nicer by 10 has about a tenth of the time of one beside it on the same core.
#[cfg(target_os = "linux")]
const NICER: i32 = 10;

/// Threads of the front end alone, as many as there are cores, each with a runtime of its own. They end when this is dropped,
/// with what is still under way on them.
///
/// Threads that they start inherit the priority, so models must not be loaded on them: an engine's threads come from the thread
/// that loads.
pub(crate) struct ServerThreads {
    runtimes: Vec<Handle>,
    _running: Vec<oneshot::Sender<()>>,
}

impl ServerThreads {
    pub(crate) fn start() -> io::Result<ServerThreads> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: io::Result<Vec<_>> = (0..cores).map(|_| start_thread()).collect();
        let (runtimes, running) = threads?.into_iter().unzip();
        Ok(ServerThreads { runtimes, _running: running })
    }

    /// Where connections are served; the server itself runs on the first.
    pub(crate) fn runtimes(&self) -> &[Handle] {
        &self.runtimes
    }
}

/// A thread, and what it lives as long as.
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

/// On Linux the priority is the calling thread's own; elsewhere it would be the whole process's.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(cause) = rustix::process::nice(NICER) {
        tracing::debug!("a thread of the front end keeps its priority: {cause}");
    }
}
