//! A frontend as a backend sees it: rows are pulled from it and outputs pushed to it, over one warm
//! connection.
//!
//! The connection is made when the scheduler announces the frontend, on a thread that then reads
//! it; messages sent earlier wait. A connection that has ended is never reused: its pulls are lost,
//! and later ones need a new connection.

use crate::plane::{Handshake, LinkBounds, Message, MessageReader, PeerLink, Role, Transport, connect_handshake};
use parking_lot::Mutex;
use ripieno_executor::Tensor;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest number of messages that wait for the connection.
const MAX_WAITING: usize = 1 << 16;

/// The frontend that holds the inputs of requests.
pub(super) struct FrontendSource {
    pub(super) address: String,
    state: Mutex<ConnectionState>,
}

enum ConnectionState {
    Connecting(Vec<Message>),
    Up(Arc<PeerLink>),
    Down,
}

/// Receives rows by tag, and the end of the connection.
pub(super) trait RowReceiver: Send + Sync + 'static {
    fn on_rows(&self, tag: u64, inputs: Option<Vec<Tensor>>);
    fn on_lost(&self, frontend: u32);
}

impl FrontendSource {
    /// Connects to a frontend in the background.
    pub(super) fn connect(
        transport: Arc<dyn Transport>,
        (frontend, address): (u32, String),
        epoch: u64,
        receiver: Weak<impl RowReceiver>,
    ) -> Arc<FrontendSource> {
        let source = Arc::new(FrontendSource { address, state: Mutex::new(ConnectionState::Connecting(Vec::new())) });
        let own = Arc::clone(&source);
        let read = move || {
            if let Err(error) = own.read(&*transport, epoch, &receiver) {
                tracing::info!(frontend, address = own.address, %error, "the connection to a frontend has ended");
            }
            own.close();
            if let Some(receiver) = receiver.upgrade() {
                receiver.on_lost(frontend);
            }
        };
        if let Err(error) = thread::Builder::new().name("backend-pull".to_owned()).spawn(read) {
            tracing::error!(%error, "no thread for a frontend's connection");
            source.close();
        }
        source
    }

    fn read(&self, transport: &dyn Transport, epoch: u64, receiver: &Weak<impl RowReceiver>) -> io::Result<()> {
        let stream = transport.connect(&self.address, CONNECT_TIMEOUT)?;
        connect_handshake(&*stream, Handshake::new(Role::Backend, epoch), Role::Frontend).map_err(io::Error::other)?;
        let link = PeerLink::start(Arc::clone(&stream), LinkBounds::DATA, "backend-push")?;
        if !self.on_connected(&link) {
            link.close();
        }
        let mut reader = MessageReader::new(stream, PeerLink::MAX_SILENCE);
        loop {
            match reader.read()? {
                Message::KeepAlive => {}
                Message::Rows { tag, inputs } => match receiver.upgrade() {
                    Some(receiver) => receiver.on_rows(tag, inputs),
                    None => return Ok(()),
                },
                other => return Err(io::Error::other(format!("it says {other:?}, which is not its part"))),
            }
        }
    }

    /// Sends the waiting messages; returns false if the source has been closed.
    fn on_connected(&self, link: &Arc<PeerLink>) -> bool {
        let mut state = self.state.lock();
        let ConnectionState::Connecting(waiting) = &mut *state else { return false };
        link.send_all(waiting);
        *state = ConnectionState::Up(Arc::clone(link));
        true
    }

    /// Sends or enqueues messages; returns them if the connection has ended.
    pub(super) fn send(&self, messages: Vec<Message>) -> Result<(), Vec<Message>> {
        let link = match &mut *self.state.lock() {
            ConnectionState::Connecting(waiting) if waiting.len() < MAX_WAITING => {
                waiting.extend(messages);
                return Ok(());
            }
            ConnectionState::Up(link) if !link.is_closed() => Arc::clone(link),
            _ => return Err(messages),
        };
        link.send_all(&messages);
        Ok(())
    }

    /// Returns true once the connection has ended.
    pub(super) fn is_down(&self) -> bool {
        matches!(&*self.state.lock(), ConnectionState::Down)
    }

    /// Takes no further message. Returns the connection, which ends once those that wait are sent.
    pub(super) fn finish(&self) -> Option<Arc<PeerLink>> {
        match std::mem::replace(&mut *self.state.lock(), ConnectionState::Down) {
            ConnectionState::Up(link) => {
                link.finish();
                Some(link)
            }
            _ => None,
        }
    }

    pub(super) fn close(&self) {
        if let ConnectionState::Up(link) = std::mem::replace(&mut *self.state.lock(), ConnectionState::Down) {
            link.close();
        }
    }
}
