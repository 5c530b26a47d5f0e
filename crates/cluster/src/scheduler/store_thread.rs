//! Calls to the epoch store on a thread of its own: the store may not answer for long, and
//! heartbeats must continue.

use crate::handover::store::{EpochEntry, EpochStore, Swap};
use std::io;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Interval at which an idle store is read: connections and etcd's tokens stay usable, and a store
/// that is out of reach is known before a primary is lost.
const KEEP_WARM: Duration = Duration::from_secs(30);

pub(super) struct StoreThread(SyncSender<Swap>);

impl StoreThread {
    /// Starts the thread, which reads the store once so that its connections are warm when they are
    /// needed. `on_held` receives the entry that the store holds after each swap, and returns false
    /// once the receiver is gone.
    pub(super) fn start(
        mut store: Box<dyn EpochStore>,
        on_held: impl Fn(EpochEntry) -> bool + Send + 'static,
    ) -> io::Result<StoreThread> {
        let (sender, swaps) = sync_channel::<Swap>(1);
        let keep = move || {
            // A failure will also show at the first swap.
            let _ = store.read();
            let mut said = String::new();
            loop {
                let failed = match swaps.recv_timeout(KEEP_WARM) {
                    Ok(swap) => match store.swap(&swap) {
                        Ok(entry) if on_held(entry) => None,
                        Ok(_) => return,
                        Err(error) => Some(error.0),
                    },
                    Err(RecvTimeoutError::Timeout) => store.read().err().map(|error| error.0),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let failed = failed.unwrap_or_default();
                if !failed.is_empty() && failed != said {
                    tracing::warn!("the store of the epoch does not answer: {failed}; asking again");
                }
                said = failed;
            }
        };
        thread::Builder::new().name("epoch-store".to_owned()).spawn(keep)?;
        Ok(StoreThread(sender))
    }

    /// Requests a swap, unless an earlier request is still open; the scheduler repeats it.
    pub(super) fn request_swap(&self, swap: Swap) {
        let _ = self.0.try_send(swap);
    }
}
