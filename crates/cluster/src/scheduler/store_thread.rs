//! Asks the store on a thread of its own, because it may not answer for long, and heartbeats go on meanwhile.

use crate::handover::store::{Entry, EpochStore, Swap};
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

pub(super) struct StoreThread(SyncSender<Swap>);

impl StoreThread {
    /// Begins to keep the store, and reads it once, so that its connections are warm when they are needed. Until the
    /// thread is gone, `on_held` hears what the store holds after each swap; false if nobody listens any more.
    pub(super) fn start(
        mut store: Box<dyn EpochStore>,
        on_held: impl Fn(Entry) -> bool + Send + 'static,
    ) -> io::Result<StoreThread> {
        let (sender, swaps) = sync_channel::<Swap>(1);
        let keep = move || {
            // What it fails of shows when it is asked.
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

    /// Asks, unless an earlier question is still open; the scheduler asks again.
    pub(super) fn ask(&self, swap: Swap) {
        let _ = self.0.try_send(swap);
    }
}
