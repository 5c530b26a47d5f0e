//! The connections to the other schedulers: each is dialled, and the primary sends heartbeats to
//! the side that dialled.

use super::SchedulerShared;
use crate::handover::ProcessId;
use crate::handover::store::EpochEntry;
use crate::plane::{
    ConnectionHandler, HandlerQueue, Handshake, HandshakeError, LinkBounds, Message, PeerLink, Role, Transport,
    connect_handshake,
};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use thiserror::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_millis(250);

impl SchedulerShared {
    /// Receives heartbeats of the scheduler at this address, reconnecting until the scheduler is
    /// closed.
    pub(super) fn listen_to(
        self: Arc<SchedulerShared>,
        transport: Arc<dyn Transport>,
        address: String,
    ) -> io::Result<()> {
        let listen = move || {
            let mut again = RECONNECT_MIN;
            while !self.closed.load(Ordering::Relaxed) {
                let mut other = None;
                match self.receive(&*transport, &address, &mut other) {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(address, %error, "another scheduler is not heard"),
                }
                if let Some(process) = other {
                    self.update(|machine, now, _| machine.on_heartbeats_lost(now, process));
                }
                again = if other.is_some() { RECONNECT_MIN } else { (again * 2).min(RECONNECT_MAX) };
                thread::sleep(again);
            }
        };
        thread::Builder::new().name("scheduler-follow".to_owned()).spawn(listen).map(drop)
    }

    /// Serves one connection until it ends. Returns `Ok` if the other side is this scheduler
    /// itself.
    fn receive(
        &self,
        transport: &dyn Transport,
        address: &str,
        other: &mut Option<ProcessId>,
    ) -> Result<(), HandshakeError> {
        let stream = transport.connect(address, CONNECT_TIMEOUT)?;
        let own = Handshake::new(Role::Scheduler, self.leadership.epoch());
        connect_handshake(&*stream, own, Role::Scheduler).inspect_err(|_| stream.close())?;
        let connection = self.pollers.prepare(stream, LinkBounds::CONTROL);
        let link = Arc::clone(connection.link());
        link.send(&Message::Peer(self.leadership.me));
        let Some(shared) = self.own.upgrade() else { return Ok(()) };
        let (outcome, queue) = (Arc::<Mutex<HeartbeatsOutcome>>::default(), Arc::<HandlerQueue>::default());
        let source = HeartbeatSource { shared, link, queue: Arc::clone(&queue), outcome: Arc::clone(&outcome) };
        connection.serve(&queue, Box::new(source));
        queue.run();
        let HeartbeatsOutcome { process, ended } = std::mem::take(&mut *outcome.lock());
        *other = process;
        ended.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Registers a scheduler that receives heartbeats from this one.
    pub(super) fn connect_spare(&self, link: &Arc<PeerLink>, process: ProcessId) -> SpareConnection {
        link.send(&Message::Peer(self.leadership.me));
        if process != self.leadership.me {
            self.peers.lock().schedulers.insert(process, Arc::clone(link));
            self.had_spare.store(true, Ordering::Relaxed);
            self.update(|machine, now, out| machine.on_member(now, process, Role::Scheduler, out));
        }
        SpareConnection { process, link: Arc::clone(link) }
    }
}

/// The connection of a scheduler that receives heartbeats from this one.
pub(super) struct SpareConnection {
    process: ProcessId,
    link: Arc<PeerLink>,
}

impl SpareConnection {
    pub(super) fn handle(shared: &SchedulerShared, message: Message) -> io::Result<()> {
        match message {
            Message::Fenced(epoch) => shared.update(|machine, now, out| machine.on_epoch(now, epoch, out)),
            other => return Err(super::unexpected(&other)),
        }
        Ok(())
    }

    pub(super) fn on_end(self, shared: &SchedulerShared) {
        let SpareConnection { process, link } = self;
        let mut peers = shared.peers.lock();
        // It may have reconnected meanwhile.
        let own = peers.schedulers.get(&process).is_some_and(|known| Arc::ptr_eq(known, &link));
        if own {
            peers.schedulers.remove(&process);
            drop(peers);
            shared.update(|machine, _, _| machine.on_listener_lost(process));
        }
    }
}

/// The connection to another scheduler, whose heartbeats arrive here. Its messages are handled by
/// the thread that has made the connection: no handler of another connection delays a heartbeat.
struct HeartbeatSource {
    shared: Arc<SchedulerShared>,
    link: Arc<PeerLink>,
    queue: Arc<HandlerQueue>,
    outcome: Arc<Mutex<HeartbeatsOutcome>>,
}

/// The result of a connection to another scheduler.
#[derive(Default)]
struct HeartbeatsOutcome {
    /// The other scheduler, once it has said its id.
    process: Option<ProcessId>,
    /// The reason for which the connection has ended; `None` if the other side is this scheduler.
    ended: Option<io::Error>,
}

impl ConnectionHandler for HeartbeatSource {
    fn try_handle(&mut self, message: Message, _: bool) -> io::Result<Option<Message>> {
        Ok(Some(message))
    }

    fn handle(&mut self, message: Message, _: bool) -> io::Result<()> {
        let HeartbeatSource { shared, link, outcome, .. } = self;
        match message {
            Message::Peer(process) if process == shared.leadership.me => return Err(io::Error::other(OwnConnection)),
            Message::Peer(process) => outcome.lock().process = Some(process),
            Message::Heartbeat(epoch, process, reach) => {
                outcome.lock().process = Some(process);
                let known = shared.update(|machine, now, out| {
                    machine.on_heartbeat(now, EpochEntry { epoch, holder: process }, reach, out);
                    machine.known()
                });
                if epoch < known {
                    link.send(&Message::Fenced(known));
                }
            }
            Message::Fenced(epoch) => shared.update(|machine, now, out| machine.on_epoch(now, epoch, out)),
            other => return Err(super::unexpected(&other)),
        }
        Ok(())
    }

    fn on_end(self: Box<Self>, error: io::Error) {
        let is_own = error.get_ref().is_some_and(|cause| cause.is::<OwnConnection>());
        self.outcome.lock().ended = (!is_own).then_some(error);
        self.queue.close();
    }
}

/// The end of a connection that this scheduler has made to itself.
#[derive(Debug, Error)]
#[error("this scheduler has connected to itself")]
struct OwnConnection;
