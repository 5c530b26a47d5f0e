//! The other schedulers: each is dialled, and listened to as long as the connection stands. Who is dialled speaks, if it is
//! the primary.

use super::Shared;
use crate::handover::Process;
use crate::plane::{Greeting, Link, LinkBounds, Message, Reader, Role, Stream, Transport, Unwelcome, greet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(2);
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_millis(250);

impl Shared {
    /// Listens to the scheduler at this address, again and again.
    pub(super) fn listen_to(self: Arc<Shared>, transport: Arc<dyn Transport>, address: String) -> io::Result<()> {
        let listen = move || {
            let mut again = AGAIN_MIN;
            while !self.closed.load(Ordering::Relaxed) {
                let mut other = None;
                match self.receive(&*transport, &address, &mut other) {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(address, %error, "another scheduler is not heard"),
                }
                if let Some(process) = other {
                    self.tell(|machine, now, _| machine.on_heartbeats_lost(now, process));
                }
                again = if other.is_some() { AGAIN_MIN } else { (again * 2).min(AGAIN_MAX) };
                thread::sleep(again);
            }
        };
        thread::Builder::new().name("scheduler-follow".to_owned()).spawn(listen).map(drop)
    }

    /// One connection, until it ends. Well, if the other is this one itself.
    fn receive(&self, transport: &dyn Transport, address: &str, other: &mut Option<Process>) -> Result<(), Unwelcome> {
        let stream = transport.connect(address, CONNECT)?;
        let own = Greeting::new(Role::Scheduler, self.leadership.epoch());
        greet(&*stream, own, Role::Scheduler).inspect_err(|_| stream.close())?;
        let link = Link::start(Arc::clone(&stream), LinkBounds::CONTROL, "scheduler-send")?;
        link.send(&Message::Peer(self.leadership.me));
        let ended = self.receive_heartbeats(&link, stream, other);
        link.close();
        Ok(ended?)
    }

    fn receive_heartbeats(&self, link: &Link, stream: Arc<dyn Stream>, other: &mut Option<Process>) -> io::Result<()> {
        let mut reader = Reader::new(stream, Link::SILENCE);
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Peer(process) if process == self.leadership.me => return Ok(()),
                Message::Peer(process) => *other = Some(process),
                Message::Heartbeat(epoch, process) => {
                    *other = Some(process);
                    let known = self.tell(|machine, now, out| {
                        machine.on_heartbeat(now, process, epoch, out);
                        machine.known()
                    });
                    if epoch < known {
                        link.send(&Message::Fenced(known));
                    }
                }
                Message::Fenced(epoch) => self.tell(|machine, now, out| machine.on_epoch(now, epoch, out)),
                other => return Err(super::unexpected(&other)),
            }
        }
    }

    /// Another scheduler listens to this one.
    pub(super) fn serve_scheduler(&self, link: &Arc<Link>, reader: &mut Reader) -> io::Result<()> {
        let process = loop {
            match reader.read()? {
                Message::Here => {}
                Message::Peer(process) => break process,
                other => return Err(super::unexpected(&other)),
            }
        };
        link.send(&Message::Peer(self.leadership.me));
        if process != self.leadership.me {
            self.peers.lock().schedulers.insert(process, Arc::clone(link));
            self.tell(|machine, now, out| machine.on_member(now, process, Role::Scheduler, out));
        }
        let Err(ended) = self.receive_from_spare(reader);
        let mut peers = self.peers.lock();
        // It may have connected again meanwhile.
        let own = peers.schedulers.get(&process).is_some_and(|known| Arc::ptr_eq(known, link));
        if own {
            peers.schedulers.remove(&process);
            drop(peers);
            self.tell(|machine, now, out| machine.on_lost(now, process, out));
        }
        Err(ended)
    }

    fn receive_from_spare(&self, reader: &mut Reader) -> io::Result<std::convert::Infallible> {
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Fenced(epoch) => self.tell(|machine, now, out| machine.on_epoch(now, epoch, out)),
                other => return Err(super::unexpected(&other)),
            }
        }
    }
}
