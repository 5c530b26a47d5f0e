//! The thread that joins the outputs of requests that were larger than a batch.
//!
//! Joining copies every output. For a large answer this would delay the scheduler thread so long
//! that other clients miss their deadlines. So the scheduler passes such answers to this thread
//! through a bounded queue. If the queue is full, the scheduler joins the answer itself.

use crate::requests::answer::Answerer;
use crate::{JobOutput, requests::split};
use ripieno_executor::Tensor;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

const MAX_QUEUED_ANSWERS: usize = 64;

/// An answer whose outputs are not joined yet.
pub(crate) struct Pieces {
    pub(crate) answerer: Answerer,
    /// The outputs of the parts, in order.
    pub(crate) parts: Vec<Vec<Tensor>>,
    /// The answer without its outputs.
    pub(crate) answered: JobOutput,
}

impl Pieces {
    fn deliver(self) {
        let outputs = split::join(&self.parts);
        self.answerer.answer(Ok(JobOutput { outputs, ..self.answered }));
    }
}

/// Sends answers to the joiner thread. Dropping it waits until all answers are delivered.
pub(crate) struct Joiner {
    sender: Option<SyncSender<Pieces>>,
    thread: Option<JoinHandle<()>>,
}

impl Joiner {
    pub(crate) fn start() -> std::io::Result<Joiner> {
        let (sender, receiver): (_, Receiver<Pieces>) = sync_channel(MAX_QUEUED_ANSWERS);
        let deliver_all = move || receiver.iter().for_each(Pieces::deliver);
        let thread = thread::Builder::new().name("ripieno-joiner".to_owned()).spawn(deliver_all)?;
        Ok(Joiner { sender: Some(sender), thread: Some(thread) })
    }

    pub(crate) fn join(&self, pieces: Pieces) {
        let sender = self.sender.as_ref().expect("the sender lives as long as the joiner");
        match sender.try_send(pieces) {
            Ok(()) => {}
            Err(TrySendError::Full(pieces) | TrySendError::Disconnected(pieces)) => pieces.deliver(),
        }
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the joiner thread panicked");
        }
    }
}
