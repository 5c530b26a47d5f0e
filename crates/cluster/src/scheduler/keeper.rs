//! Asks the store on a thread of its own, because it may not answer for long, and heartbeats go on meanwhile.

use super::node::Handle;
use crate::handover::store::{Entry, EpochStore, Swap};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

#[derive(Debug)]
pub(super) struct Keeper(SyncSender<Swap>);

impl Keeper {
    /// Begins to keep the store, and reads it once, so that its connections are warm when they are needed.
    pub(super) fn new(mut store: Box<dyn EpochStore>, replies: Handle<Entry>) -> Keeper {
        let (sender, swaps) = sync_channel::<Swap>(1);
        let keep = move || {
            // What it fails of shows when it is asked.
            let _ = store.read();
            while let Ok(swap) = swaps.recv() {
                if let Ok(entry) = store.swap(&swap) {
                    replies.order(entry);
                }
            }
        };
        thread::Builder::new().name("epoch store".into()).spawn(keep).expect("there is place for a thread");
        Keeper(sender)
    }

    /// Asks, unless an earlier question is still open; the scheduler asks again.
    pub(super) fn ask(&self, swap: Swap) {
        let _ = self.0.try_send(swap);
    }
}
