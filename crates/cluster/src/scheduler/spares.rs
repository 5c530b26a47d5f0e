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
                let mut heard = None;
                match self.hear(&*transport, &address, &mut heard) {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(address, %error, "another scheduler is not heard"),
                }
                if let Some(process) = heard {
                    self.tell(|machine, now, _| machine.on_unheard(now, process));
                }
                again = if heard.is_some() { AGAIN_MIN } else { (again * 2).min(AGAIN_MAX) };
                thread::sleep(again);
            }
        };
        thread::Builder::new().name("scheduler-hear".to_owned()).spawn(listen).map(drop)
    }

    /// One connection, until it ends. Well, if the other is this one itself.
    fn hear(&self, transport: &dyn Transport, address: &str, heard: &mut Option<Process>) -> Result<(), Unwelcome> {
        let stream = transport.connect(address, CONNECT)?;
        let own = Greeting::new(Role::Scheduler, self.reign.epoch());
        greet(&*stream, own, Role::Scheduler).inspect_err(|_| stream.close())?;
        let link = Link::start(Arc::clone(&stream), LinkBounds::CONTROL, "scheduler-send")?;
        link.send(&Message::Peer(self.reign.me));
        let ended = self.hear_all(&link, stream, heard);
        link.close();
        Ok(ended?)
    }

    fn hear_all(&self, link: &Link, stream: Arc<dyn Stream>, heard: &mut Option<Process>) -> io::Result<()> {
        let mut reader = Reader::new(stream, Link::SILENCE);
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Peer(process) if process == self.reign.me => return Ok(()),
                Message::Peer(process) => *heard = Some(process),
                Message::Lead(epoch, process) => {
                    *heard = Some(process);
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
        link.send(&Message::Peer(self.reign.me));
        if process != self.reign.me {
            self.peers.lock().schedulers.insert(process, Arc::clone(link));
            self.tell(|machine, now, out| machine.on_member(now, process, Role::Scheduler, out));
        }
        let Err(ended) = self.hear_spare(reader);
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

    fn hear_spare(&self, reader: &mut Reader) -> io::Result<std::convert::Infallible> {
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Fenced(epoch) => self.tell(|machine, now, out| machine.on_epoch(now, epoch, out)),
                other => return Err(super::unexpected(&other)),
            }
        }
    }
}
