//! Calls to the epoch store on a thread of its own: the store may not answer for long, and
//! heartbeats must continue.

use crate::handover::store::{EpochEntry, EpochStore, Swap};
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

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
            while let Ok(swap) = swaps.recv() {
                match store.swap(&swap) {
                    Ok(entry) if on_held(entry) => said.clear(),
                    Ok(_) => return,
                    Err(error) if said != error.0 => {
                        tracing::warn!("{error}; asking again");
                        said = error.0;
                    }
                    Err(_) => {}
                }
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
