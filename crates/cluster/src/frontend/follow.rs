//! The schedulers, as a front end sees them: it is connected to all of them, and asks the primary.

use super::Shared;
use super::table::{Due, Followed};
use crate::description::{self, Description};
use crate::handover::{Epoch, Process};
use crate::plane::{Ask, Garbled, Greeting, Link, LinkBounds, Message, Reader, Role, Unwelcome, greet};
use ripieno_base::ModelId;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const CONNECT: Duration = Duration::from_secs(2);
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_millis(250);

/// What a scheduler has said on this connection.
#[derive(Default)]
struct Said {
    models: Option<Vec<(ModelId, Description)>>,
    devices: u32,
    /// That it is the primary.
    primary: Option<(Epoch, Process)>,
}

impl Shared {
    /// Keeps up the connection to a scheduler.
    pub(super) fn follow(&self, scheduler: &str) {
        let (mut again, mut said) = (AGAIN_MIN, String::new());
        loop {
            let (stood, error) = self.connection(scheduler);
            let cause = error.to_string();
            if self.is_stopped_within(Duration::ZERO) {
                return;
            }
            if cause != said {
                tracing::warn!(scheduler, "{cause}; connecting again");
                said = cause;
            }
            again = if stood { AGAIN_MIN } else { (again * 2).min(AGAIN_MAX) };
            if self.is_stopped_within(again) {
                return;
            }
        }
    }

    /// One connection, until it ends: whether it stood, and why it ended.
    fn connection(&self, scheduler: &str) -> (bool, Unwelcome) {
        let (link, mut reader) = match self.connect(scheduler) {
            Ok(connected) => connected,
            Err(error) => return (false, error),
        };
        self.links.lock().push(Arc::clone(&link));
        let mut said = Said::default();
        let error = loop {
            let received = reader.read().and_then(|message| self.receive(&link, &mut said, message));
            if let Err(error) = received {
                break error;
            }
        };
        link.close();
        self.links.lock().retain(|other| !Arc::ptr_eq(other, &link));
        let due = self.table.lock().lose(&link, Instant::now());
        self.answer(due);
        (true, Unwelcome::Io(error))
    }

    fn connect(&self, scheduler: &str) -> Result<(Arc<Link>, Reader), Unwelcome> {
        let stream = self.transport.connect(scheduler, CONNECT)?;
        let own = Greeting::new(Role::Frontend, self.epoch());
        greet(&*stream, own, Role::Scheduler).inspect_err(|_| stream.close())?;
        let link = Link::start(Arc::clone(&stream), LinkBounds::CONTROL, "frontend-ask")?;
        link.send(&Message::DataAt(self.id, self.advertised.clone()));
        Ok((link, Reader::new(stream, Link::SILENCE)))
    }

    /// The latest epoch that it knows of.
    pub(super) fn epoch(&self) -> u64 {
        self.table.lock().following.epoch().0
    }

    fn receive(&self, link: &Arc<Link>, said: &mut Said, message: Message) -> io::Result<()> {
        match message {
            Message::Here => {}
            Message::End(end) => {
                let mut table = self.table.lock();
                // One who is the primary no more has been asked in vain, and the other has been asked again.
                let due = if table.asks(link) { table.end(end.request, end.answer, Instant::now()) } else { None };
                drop(table);
                due.into_iter().for_each(Due::answer);
            }
            Message::Devices(serving) => {
                said.devices = serving;
                if self.table.lock().asks(link) {
                    self.devices.store(serving, Ordering::Relaxed);
                }
            }
            Message::Models(text) => {
                said.models = Some(description::read_served(&text).map_err(Garbled)?);
                if said.primary.is_some() {
                    self.adopt(link, said)?;
                }
            }
            Message::Heartbeat(epoch, process) => {
                said.primary = Some((epoch, process));
                self.adopt(link, said)?;
            }
            Message::Refused(cause) => return Err(io::Error::other(format!("the scheduler refuses: {cause}"))),
            other => return Err(Garbled(format!("a scheduler does not say {other:?}")).into()),
        }
        Ok(())
    }

    /// A scheduler says that it is the primary: it is asked from now on, if no later one and its models are known.
    fn adopt(&self, link: &Arc<Link>, said: &Said) -> io::Result<()> {
        let (Some((epoch, process)), Some(models)) = (said.primary, &said.models) else { return Ok(()) };
        if self.epoch() > epoch.0 {
            link.send(&Message::Fenced(Epoch(self.epoch())));
            return Ok(());
        }
        let known = self.models.write().renew(models.clone()).map_err(Garbled)?;
        (self.on_models)(&known);
        let followed = self.table.lock().follow_primary(link, (epoch, process), Instant::now());
        match followed {
            Followed::Stale(epoch) => link.send(&Message::Fenced(epoch)),
            Followed::Asks { due, again } => {
                self.devices.store(said.devices, Ordering::Relaxed);
                self.answer(due);
                again.into_iter().for_each(|ask: Ask| self.ask(link, ask));
            }
        }
        Ok(())
    }

    /// Answers those whose outputs are all here, and tells the primary that nobody waits for them.
    pub(super) fn answer(&self, due: Vec<Due>) {
        let scheduler = self.table.lock().scheduler();
        for due in due {
            if let Some(request) = due.orphan() {
                scheduler.iter().for_each(|scheduler| scheduler.send(&Message::Withdraw(request)));
            }
            due.answer();
        }
    }
}
