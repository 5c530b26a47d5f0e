//! The connections to the other schedulers: each is dialled, and the primary sends heartbeats to
//! the side that dialled.

use super::SchedulerShared;
use crate::handover::ProcessId;
use crate::handover::store::EpochEntry;
use crate::plane::{
    ByteStream, Handshake, HandshakeError, LinkBounds, Message, MessageReader, PeerLink, Role, Transport,
    connect_handshake,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

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
        let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "scheduler-send")?;
        link.send(&Message::Peer(self.leadership.me));
        let ended = self.receive_heartbeats(&link, stream, other);
        link.close();
        Ok(ended?)
    }

    fn receive_heartbeats(
        &self,
        link: &PeerLink,
        stream: Arc<dyn ByteStream>,
        other: &mut Option<ProcessId>,
    ) -> io::Result<()> {
        let mut reader = MessageReader::new(stream, PeerLink::MAX_SILENCE);
        loop {
            match reader.read()? {
                Message::KeepAlive => {}
                Message::Peer(process) if process == self.leadership.me => return Ok(()),
                Message::Peer(process) => *other = Some(process),
                Message::Heartbeat(epoch, process, reach) => {
                    *other = Some(process);
                    let known = self.update(|machine, now, out| {
                        machine.on_heartbeat(now, EpochEntry { epoch, holder: process }, reach, out);
                        machine.known()
                    });
                    if epoch < known {
                        link.send(&Message::Fenced(known));
                    }
                }
                Message::Fenced(epoch) => self.update(|machine, now, out| machine.on_epoch(now, epoch, out)),
                other => return Err(super::unexpected(&other)),
            }
        }
    }

    /// Serves the connection of a scheduler that receives heartbeats from this one.
    pub(super) fn serve_scheduler(&self, link: &Arc<PeerLink>, reader: &mut MessageReader) -> io::Result<()> {
        let process = loop {
            match reader.read()? {
                Message::KeepAlive => {}
                Message::Peer(process) => break process,
                other => return Err(super::unexpected(&other)),
            }
        };
        link.send(&Message::Peer(self.leadership.me));
        if process != self.leadership.me {
            self.peers.lock().schedulers.insert(process, Arc::clone(link));
            self.had_spare.store(true, Ordering::Relaxed);
            self.update(|machine, now, out| machine.on_member(now, process, Role::Scheduler, out));
        }
        let Err(ended) = self.receive_from_spare(reader);
        let mut peers = self.peers.lock();
        // It may have reconnected meanwhile.
        let own = peers.schedulers.get(&process).is_some_and(|known| Arc::ptr_eq(known, link));
        if own {
            peers.schedulers.remove(&process);
            drop(peers);
            self.update(|machine, _, _| machine.on_listener_lost(process));
        }
        Err(ended)
    }

    fn receive_from_spare(&self, reader: &mut MessageReader) -> io::Result<std::convert::Infallible> {
        loop {
            match reader.read()? {
                Message::KeepAlive => {}
                Message::Fenced(epoch) => self.update(|machine, now, out| machine.on_epoch(now, epoch, out)),
                other => return Err(super::unexpected(&other)),
            }
        }
    }
}
