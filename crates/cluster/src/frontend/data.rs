//! The connections of backends: they pull rows and push outputs.

use super::FrontendShared;
use super::pending::CompletedRequest;
use crate::plane::{
    ByteStream, DecodeError, Handshake, LinkBounds, Message, MessageReader, PeerAddress, PeerLink, Role,
    accept_handshake,
};
use ripieno_runtime::{Failure, StreamedStep, some_rows};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Bytes of rows beyond which they are sent before further pulls are read.
const PENDING_BYTES: usize = 1 << 20;
/// The largest number of connected backends.
const MAX_BACKENDS: usize = 4096;

pub(super) fn accept_backends(shared: &Arc<FrontendShared>) {
    loop {
        match shared.listener.accept() {
            Ok(Some(stream)) => spawn_backend(shared, stream),
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "a backend's connection could not be taken");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn spawn_backend(shared: &Arc<FrontendShared>, stream: Arc<dyn ByteStream>) {
    if shared.backends.fetch_add(1, Ordering::Relaxed) >= MAX_BACKENDS {
        shared.backends.fetch_sub(1, Ordering::Relaxed);
        return stream.close();
    }
    let shared = Arc::clone(shared);
    let serve = move || {
        if let Err(error) = shared.serve_backend(&stream) {
            let peer = PeerAddress(stream.peer());
            tracing::info!(%peer, "the connection of the backend at {peer} has ended: {error}");
        }
        stream.close();
        shared.backends.fetch_sub(1, Ordering::Relaxed);
    };
    if let Err(error) = thread::Builder::new().name("frontend-data".to_owned()).spawn(serve) {
        tracing::error!(%error, "no thread for a backend's connection");
    }
}

impl FrontendShared {
    fn serve_backend(&self, stream: &Arc<dyn ByteStream>) -> io::Result<()> {
        let own = Handshake::new(Role::Frontend, self.epoch());
        accept_handshake(&**stream, own, &[Role::Backend]).map_err(io::Error::other)?;
        let link = PeerLink::start(Arc::clone(stream), LinkBounds::DATA, "frontend-give")?;
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        self.table.lock().on_backend_connected(connection);
        let mut reader = MessageReader::new(Arc::clone(stream), PeerLink::MAX_SILENCE);
        let Err(ended) = self.serve_messages(&mut reader, &link, connection);
        link.close();
        let lost = self.table.lock().on_backend_lost(connection);
        lost.into_iter().for_each(CompletedRequest::answer);
        Err(ended)
    }

    fn serve_messages(
        &self,
        reader: &mut MessageReader,
        link: &PeerLink,
        connection: u64,
    ) -> io::Result<std::convert::Infallible> {
        // The rows of a batch, whose pulls came together, go together.
        let (mut pending, mut pending_bytes) = (Vec::new(), 0);
        loop {
            let message = if pending.is_empty() || reader.has_next() { Some(reader.read()?) } else { None };
            let goes_on = matches!(message, Some(Message::Pull { .. })) && pending_bytes <= PENDING_BYTES;
            if !pending.is_empty() && !goes_on {
                link.send_all(&pending);
                (pending, pending_bytes) = (Vec::new(), 0);
            }
            let Some(message) = message else { continue };
            match message {
                Message::KeepAlive => {}
                Message::Pull { tag, request, first_row, rows } => {
                    let mut table = self.table.lock();
                    let repeated = table.end_repeated_stream(request);
                    let pulled = table.pull(request, first_row, rows, connection);
                    drop(table);
                    self.cancel_ended(request, repeated);
                    let cut =
                        |(inputs, all): (_, u32)| some_rows(&inputs, all as usize, first_row as usize, rows as usize);
                    let inputs = pulled.and_then(cut).map(|inputs| inputs.to_vec());
                    pending_bytes += inputs.iter().flatten().map(|tensor| tensor.data.len()).sum::<usize>();
                    pending.push(Message::Rows { tag, inputs });
                }
                Message::Outputs { request, first_row, rows, pulled_us, outputs } => {
                    let due = match outputs.map(|outputs| (outputs, pulled_us)) {
                        Ok(outputs) => self.table.lock().on_outputs(request, (first_row, rows), connection, outputs),
                        // The scheduler may still hold parts of the request, so it is cancelled
                        // there.
                        Err(cause) => self.remove(request, Failure::Invalid(cause)),
                    };
                    self.answer_all(due.into_iter().collect());
                }
                Message::Step { request, last, outputs } => {
                    let receiver = self.table.lock().on_step(request, connection);
                    if let Some(receiver) = receiver {
                        receiver.receive(StreamedStep { outputs, last });
                    }
                }
                other => return Err(DecodeError(format!("a backend does not say {other:?}")).into()),
            }
        }
    }
}
