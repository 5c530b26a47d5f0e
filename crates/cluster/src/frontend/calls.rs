//! Calls of clients to load and unload models, which the primary passes on to all backends.

use crate::plane::{LoadCall, Message, PeerLink};
use crate::random_id;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Longest time for all backends to load a model.
const CALL_TIMEOUT: Duration = Duration::from_secs(1800);

/// The calls that wait for their end, by number.
#[derive(Default)]
pub(super) struct FrontendCalls(Mutex<HashMap<u64, WaitingCall>>);

/// The scheduler that has the call, and the client that waits for its end.
type WaitingCall = (Arc<PeerLink>, SyncSender<String>);

impl FrontendCalls {
    /// Makes a call and waits for its end.
    pub(super) fn make(&self, scheduler: &Arc<PeerLink>, name: &str, unload: bool) -> Result<(), String> {
        let (ended, end) = sync_channel(1);
        let call = random_id();
        self.0.lock().insert(call, (Arc::clone(scheduler), ended));
        scheduler.send(&Message::LoadCall(LoadCall { call, unload, name: name.to_owned() }));
        if scheduler.is_closed() {
            self.on_scheduler_lost(scheduler);
        }
        let outcome = end.recv_timeout(CALL_TIMEOUT);
        self.0.lock().remove(&call);
        match outcome {
            Ok(failure) if failure.is_empty() => Ok(()),
            Ok(failure) => Err(failure),
            Err(RecvTimeoutError::Timeout) => Err(format!("not all backends have answered within {CALL_TIMEOUT:?}")),
            Err(RecvTimeoutError::Disconnected) => {
                Err("the scheduler was lost; backends may have done it all the same: call again".to_owned())
            }
        }
    }

    /// Handles the end of a call; `failure` is empty if it has succeeded.
    pub(super) fn end(&self, call: u64, failure: String) {
        if let Some((_, ended)) = self.0.lock().remove(&call) {
            // Its client may have gone.
            let _ = ended.try_send(failure);
        }
    }

    /// Ends the calls that this scheduler had.
    pub(super) fn on_scheduler_lost(&self, scheduler: &Arc<PeerLink>) {
        self.0.lock().retain(|_, (link, _)| !Arc::ptr_eq(link, scheduler));
    }
}
