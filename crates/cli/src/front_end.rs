//! The threads that read requests and write answers. They give way to those that run models.
//!
//! Whoever sends more than the devices carry also makes the front end work more: each request is read before it is refused. On
//! cores that both share, the device would then run less the more is asked of it. So threads of the front end are *nicer* than
//! those of the devices and of the scheduler: they take what cores the devices leave, and at least a tenth beside each of them.

use std::io;
use tokio::runtime::{Builder, Runtime};

/// How much nicer: a thread that is nicer by 10 has about a tenth of the time of one beside it on the same core.
#[cfg(target_os = "linux")]
const NICER: i32 = 10;

/// A runtime for the front end alone. Threads that it starts inherit the priority, so models must not be loaded on it: an engine's
/// threads come from the thread that loads.
pub(crate) fn start() -> io::Result<Runtime> {
    Builder::new_multi_thread().thread_name("front-end").on_thread_start(give_way).enable_all().build()
}

/// On Linux the priority is the calling thread's own; elsewhere it would be the whole process's.
fn give_way() {
    #[cfg(target_os = "linux")]
    if let Err(cause) = rustix::process::nice(NICER) {
        tracing::debug!("a thread of the front end keeps its priority: {cause}");
    }
}
