//! Connections of backends: they ask for rows and leave outputs.

use super::Shared;
use super::table::Due;
use crate::plane::{Garbled, Greeting, Link, LinkBounds, Message, Reader, Role, Stream, welcome};
use ripieno_runtime::{Failure, Refused, some_rows};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// The most backends.
const MOST: usize = 4096;

pub(super) fn take_all(shared: &Arc<Shared>) {
    loop {
        match shared.door.accept() {
            Ok(Some(stream)) => take(shared, stream),
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "a backend's connection could not be taken");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn take(shared: &Arc<Shared>, stream: Arc<dyn Stream>) {
    if shared.backends.fetch_add(1, Ordering::Relaxed) >= MOST {
        shared.backends.fetch_sub(1, Ordering::Relaxed);
        return stream.close();
    }
    let shared = Arc::clone(shared);
    let serve = move || {
        if let Err(error) = shared.serve_backend(&stream) {
            tracing::info!(peer = ?stream.peer(), %error, "a backend's connection has ended");
        }
        stream.close();
        shared.backends.fetch_sub(1, Ordering::Relaxed);
    };
    if let Err(error) = thread::Builder::new().name("frontend-data".to_owned()).spawn(serve) {
        tracing::error!(%error, "no thread for a backend's connection");
    }
}

impl Shared {
    fn serve_backend(&self, stream: &Arc<dyn Stream>) -> io::Result<()> {
        let own = Greeting::new(Role::Frontend, self.epoch());
        welcome(&**stream, own, &[Role::Backend]).map_err(io::Error::other)?;
        let link = Link::start(Arc::clone(stream), LinkBounds::DATA, "frontend-give")?;
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        self.table.lock().connect(connection);
        let mut reader = Reader::new(Arc::clone(stream), Link::SILENCE);
        let Err(ended) = self.listen(&mut reader, &link, connection);
        link.close();
        let lost = self.table.lock().disconnect(connection);
        lost.into_iter().for_each(Due::answer);
        Err(ended)
    }

    fn listen(&self, reader: &mut Reader, link: &Link, connection: u64) -> io::Result<std::convert::Infallible> {
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Pull { tag, request, first_row, rows } => {
                    let pulled = self.table.lock().pull(request, first_row, rows, connection);
                    let cut =
                        |(inputs, all): (_, u32)| some_rows(&inputs, all as usize, first_row as usize, rows as usize);
                    let inputs = pulled.and_then(cut).map(|inputs| inputs.to_vec());
                    link.send(&Message::Rows { tag, inputs });
                }
                Message::Outputs { request, first_row, rows, outputs } => {
                    let due = match outputs {
                        Ok(outputs) => self.table.lock().outputs(request, first_row, rows, outputs),
                        // The scheduler may yet have parts of it.
                        Err(cause) => self.withdraw(request, Failure::Refused(Refused::Invalid(cause))),
                    };
                    self.answer(due.into_iter().collect());
                }
                other => return Err(Garbled(format!("a backend does not say {other:?}")).into()),
            }
        }
    }
}
