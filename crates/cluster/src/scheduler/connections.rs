//! The connections that a scheduler has accepted, from their greeting to their end.
//!
//! A connection has a thread of its own for its greeting, whose cryptography is slow and whose peer
//! may be. From then on an event loop reads and writes it, with all others: see
//! [`plane::poll`](crate::plane). Its handler acts by the role of the peer. Requests and ends of
//! tasks never wait, so that the event loop handles them. All other messages may have to wait for
//! the peers' lock or for an engine: one thread handles them for all connections.

use super::SchedulerShared;
use super::backends::BackendConnection;
use super::frontends::FrontendConnection;
use super::refusals::{NotAccepted, RegistrationError};
use super::spares::SpareConnection;
use super::unexpected;
use crate::handover::Epoch;
use crate::plane::{
    ByteStream, ConnectionHandler, Handshake, LinkBounds, Listener, Message, PeerAddress, PeerLink, Role,
    accept_handshake,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// The largest number of connections.
const MAX_PEERS: usize = 4096;

/// Handles an accepted connection.
struct PeerConnection {
    shared: Arc<SchedulerShared>,
    link: Arc<PeerLink>,
    peer: ConnectedPeer,
}

/// The other side of a connection.
enum ConnectedPeer {
    /// It has this role, and this revision of the protocol, and has not registered.
    Unregistered(Role, u16),
    Frontend(FrontendConnection),
    Backend(BackendConnection),
    Scheduler(SpareConnection),
    /// It was refused for this reason. It closes the connection when it has read that.
    Refused(String),
}

impl SchedulerShared {
    pub(super) fn accept_connections(self: Arc<SchedulerShared>, listener: &dyn Listener) {
        loop {
            match listener.accept() {
                Ok(Some(stream)) => self.spawn_greeting(stream),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Greets a peer on a thread of its own, and then gives the connection to an event loop.
    fn spawn_greeting(self: &Arc<SchedulerShared>, stream: Arc<dyn ByteStream>) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= MAX_PEERS {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return stream.close();
        }
        let shared = Arc::clone(self);
        let greet = move || {
            if let Err(error) = shared.greet(&stream) {
                stream.close();
                shared.note_end(PeerAddress(stream.peer()), &error);
            }
        };
        if let Err(error) = thread::Builder::new().name("scheduler-greet".to_owned()).spawn(greet) {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            tracing::error!(%error, "no thread for a connection");
        }
    }

    fn greet(self: &Arc<SchedulerShared>, stream: &Arc<dyn ByteStream>) -> io::Result<()> {
        let own = Handshake::new(Role::Scheduler, self.leadership.epoch());
        let all = [Role::Frontend, Role::Scheduler, Role::Backend];
        let greeting = accept_handshake(&**stream, own, &all).map_err(|error| NotAccepted::error(&error))?;
        self.update(|machine, now, out| machine.on_epoch(now, Epoch(greeting.epoch), out));
        let connection = self.pollers.prepare(Arc::clone(stream), LinkBounds::CONTROL);
        let link = Arc::clone(connection.link());
        self.register_link(&link);
        let peer = ConnectedPeer::Unregistered(greeting.role, greeting.revision);
        connection.serve(&self.queue, Box::new(PeerConnection { shared: Arc::clone(self), link, peer }));
        Ok(())
    }

    /// Registers a connection, so that the scheduler's end closes it.
    fn register_link(&self, link: &Arc<PeerLink>) {
        let mut peers = self.peers.lock();
        peers.links.push(Arc::clone(link));
        if self.closed.load(Ordering::Relaxed) {
            link.close();
        }
    }

    fn note_end(&self, peer: PeerAddress, error: &io::Error) {
        let again = error.get_ref().is_some_and(|cause| cause.is::<NotAccepted>())
            && !self.refusals.note(peer.0, &error.to_string(), false);
        if !again {
            tracing::info!(%peer, "the connection of {peer} has ended: {error}");
        }
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PeerConnection {
    /// Handles the first message of a peer.
    fn register(&self, role: Role, revision: u16, message: Message) -> Result<ConnectedPeer, RegistrationError> {
        let PeerConnection { shared, link, .. } = self;
        Ok(match (role, message) {
            (Role::Frontend, Message::RegisterFrontend(id, address)) => {
                ConnectedPeer::Frontend(shared.connect_frontend(link, id, address, revision)?)
            }
            (Role::Backend, Message::RegisterBackend { depth, models }) => {
                ConnectedPeer::Backend(shared.connect_backend(link, depth as usize, &models)?)
            }
            (Role::Scheduler, Message::Peer(process)) => ConnectedPeer::Scheduler(shared.connect_spare(link, process)),
            (_, other) => return Err(unexpected(&other).into()),
        })
    }
}

impl ConnectionHandler for PeerConnection {
    fn try_handle(&mut self, message: Message, holds_next: bool) -> io::Result<Option<Message>> {
        match &mut self.peer {
            ConnectedPeer::Frontend(frontend) => frontend.try_handle(&self.shared, message),
            ConnectedPeer::Backend(backend) => backend.try_handle(message, holds_next),
            ConnectedPeer::Refused(_) => Ok(None),
            ConnectedPeer::Unregistered(..) | ConnectedPeer::Scheduler(_) => Ok(Some(message)),
        }
    }

    fn handle(&mut self, message: Message, holds_next: bool) -> io::Result<()> {
        match &mut self.peer {
            &mut ConnectedPeer::Unregistered(role, revision) => match self.register(role, revision, message) {
                Ok(peer) => self.peer = peer,
                Err(RegistrationError::Io(error)) => return Err(error),
                Err(RegistrationError::Refused(cause)) => {
                    self.link.send(&Message::Refused(cause.clone()));
                    self.peer = ConnectedPeer::Refused(cause);
                }
            },
            ConnectedPeer::Frontend(frontend) => frontend.handle(&self.shared, message)?,
            ConnectedPeer::Backend(backend) => backend.handle(&self.shared, message, holds_next)?,
            ConnectedPeer::Scheduler(_) => SpareConnection::handle(&self.shared, message)?,
            ConnectedPeer::Refused(_) => {}
        }
        Ok(())
    }

    fn on_pause(&mut self) {
        if let ConnectedPeer::Frontend(frontend) = &mut self.peer {
            frontend.on_pause();
        }
    }

    fn on_end(self: Box<Self>, error: io::Error) {
        let PeerConnection { shared, link, peer } = *self;
        let error = match peer {
            ConnectedPeer::Unregistered(..) => error,
            ConnectedPeer::Frontend(frontend) => {
                frontend.on_end(&shared);
                error
            }
            ConnectedPeer::Backend(backend) => {
                backend.on_end(&shared);
                error
            }
            ConnectedPeer::Scheduler(spare) => {
                spare.on_end(&shared);
                error
            }
            ConnectedPeer::Refused(cause) => NotAccepted::error(&cause),
        };
        shared.peers.lock().links.retain(|other| !Arc::ptr_eq(other, &link));
        shared.note_end(PeerAddress(link.peer()), &error);
    }
}
