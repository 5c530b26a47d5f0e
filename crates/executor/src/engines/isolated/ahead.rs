//! The sender of a lane's next batch to the process that runs the lane's batch.

use super::protocol::RunRequest;
use super::sending::SendingEnd;
use super::supervisor::ProcessPool;
use super::transfer::OutgoingTensor;
use crate::run::runner::{BlockCall, SendAhead};
use parking_lot::Mutex;
use std::sync::Arc;

/// Sends batches of a lane ahead, to the process that runs the lane's batch.
pub(super) struct AheadSender {
    processes: Arc<ProcessPool>,
    /// Number of each block in the process.
    functions: Vec<u32>,
    /// The end to that process, while it runs a batch.
    running: Mutex<Option<Arc<Mutex<SendingEnd>>>>,
}

impl AheadSender {
    pub(super) fn new(processes: &Arc<ProcessPool>, functions: &[u32]) -> Arc<AheadSender> {
        let (processes, functions) = (Arc::clone(processes), functions.to_vec());
        Arc::new(AheadSender { processes, functions, running: Mutex::default() })
    }

    /// Lets batches be sent to a process until the guard is dropped, which waits for one that is
    /// being sent.
    pub(super) fn open(&self, end: &Arc<Mutex<SendingEnd>>) -> OpenSender<'_> {
        *self.running.lock() = Some(Arc::clone(end));
        OpenSender(self)
    }
}

/// Ends sending when dropped.
pub(super) struct OpenSender<'a>(&'a AheadSender);

impl Drop for OpenSender<'_> {
    fn drop(&mut self) {
        *self.0.running.lock() = None;
    }
}

impl SendAhead for AheadSender {
    fn send_ahead(&self, call: &BlockCall<'_>) -> Option<u64> {
        let mut running = self.running.lock();
        let end = running.as_ref()?;
        let number = self.processes.next_number();
        let tensors: Vec<OutgoingTensor<'_>> = call.inputs.iter().map(OutgoingTensor::from).collect();
        let (block, rows) = (self.functions[call.block], call.rows as u64);
        let batch = RunRequest { block, rows, number, ..RunRequest::default() };
        let sent = end.lock().send_ahead(batch, &tensors);
        match sent {
            Ok(sent) => sent.then_some(number),
            Err(cause) => {
                // The lane finds the process's end, or kills it for its silence.
                tracing::debug!(%cause, "a batch was not sent ahead");
                *running = None;
                None
            }
        }
    }
}
