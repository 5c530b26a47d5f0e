//! The thread that puts large answers together.
//!
//! Joining copies every output once, which for a large answer takes longer than other clients' deadlines allow the
//! scheduler thread to be away. So it hands such answers over; if the joiner falls behind, it does one itself, which
//! bounds what is queued.

use crate::answer::Answerer;
use crate::{Answered, split};
use ripieno_executor::Tensor;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

const QUEUED: usize = 64;

/// An answer in pieces.
pub(crate) struct Pieces {
    pub(crate) answerer: Answerer,
    /// The outputs of the parts, in order.
    pub(crate) parts: Vec<Vec<Tensor>>,
    /// The answer but for its outputs.
    pub(crate) answered: Answered,
}

impl Pieces {
    fn deliver(self) {
        let outputs = split::join(&self.parts);
        self.answerer.answer(Ok(Answered { outputs, ..self.answered }));
    }
}

/// Hands answers to the thread; dropping it waits until all are delivered.
pub(crate) struct Joiner {
    sender: Option<SyncSender<Pieces>>,
    thread: Option<JoinHandle<()>>,
}

impl Joiner {
    pub(crate) fn start() -> std::io::Result<Joiner> {
        let (sender, receiver): (_, Receiver<Pieces>) = sync_channel(QUEUED);
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
