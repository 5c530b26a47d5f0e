//! The connections of a frontend to the schedulers: it is connected to all of them, and sends
//! requests to the primary.

use super::FrontendShared;
use super::pending::CompletedRequest;
use super::table::HeartbeatOutcome;
use crate::handover::{Epoch, ProcessId};
use crate::offer::ServedModels;
use crate::plane::{
    DecodeError, Handshake, HandshakeError, LinkBounds, Message, MessageReader, PeerLink, Role, connect_handshake,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_millis(250);

/// The messages that a scheduler has sent on this connection.
#[derive(Default)]
struct SchedulerView {
    models: Option<ServedModels>,
    /// Whether clients do not know of them.
    models_are_new: bool,
    devices: u32,
    /// Epoch and id of the scheduler, if it is the primary, and the time of its first heartbeat of
    /// that epoch.
    primary: Option<((Epoch, ProcessId), Instant)>,
}

impl FrontendShared {
    /// Keeps a connection to a scheduler until the frontend is closed.
    pub(super) fn follow(&self, scheduler: &str) {
        let (mut again, mut said) = (RECONNECT_MIN, String::new());
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
            again = if stood { RECONNECT_MIN } else { (again * 2).min(RECONNECT_MAX) };
            if self.is_stopped_within(again) {
                return;
            }
        }
    }

    /// Serves one connection until it ends. Returns whether it was established, and the error that
    /// ended it.
    fn connection(&self, scheduler: &str) -> (bool, HandshakeError) {
        let (link, mut reader) = match self.connect(scheduler) {
            Ok(connected) => connected,
            Err(error) => return (false, error),
        };
        self.links.lock().push(Arc::clone(&link));
        let mut said = SchedulerView::default();
        let error = loop {
            let received = reader.read().and_then(|message| self.receive(&link, &mut said, message));
            if let Err(error) = received {
                break error;
            }
        };
        link.close();
        self.links.lock().retain(|other| !Arc::ptr_eq(other, &link));
        self.calls.on_scheduler_lost(&link);
        let due = self.table.lock().on_scheduler_lost(&link, Instant::now());
        self.answer_all(due);
        (true, HandshakeError::Io(error))
    }

    fn connect(&self, scheduler: &str) -> Result<(Arc<PeerLink>, MessageReader), HandshakeError> {
        let stream = self.transport.connect(scheduler, CONNECT_TIMEOUT)?;
        let own = Handshake::new(Role::Frontend, self.epoch());
        connect_handshake(&*stream, own, Role::Scheduler).inspect_err(|_| stream.close())?;
        let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "frontend-ask")?;
        link.send(&Message::RegisterFrontend(self.id, self.advertised.clone()));
        Ok((link, MessageReader::new(stream, PeerLink::MAX_SILENCE)))
    }

    /// Returns the latest epoch that the frontend knows of.
    pub(super) fn epoch(&self) -> u64 {
        self.table.lock().following.epoch().0
    }

    fn receive(&self, link: &Arc<PeerLink>, said: &mut SchedulerView, message: Message) -> io::Result<()> {
        match message {
            Message::KeepAlive => {}
            Message::RequestEnd(end) => {
                let mut table = self.table.lock();
                // A scheduler that is no longer the primary is ignored: its requests have been sent
                // to the new one.
                let due =
                    if table.is_primary(link) { table.on_end(end.request, end.answer, Instant::now()) } else { None };
                drop(table);
                if let Some(due) = due {
                    due.answer();
                }
            }
            Message::Devices(serving) => {
                said.devices = serving;
                if self.table.lock().is_primary(link) {
                    self.devices.store(serving, Ordering::Relaxed);
                }
            }
            Message::LoadCallEnd(call, failure) => self.calls.end(call, failure),
            Message::Models(text) => {
                said.models = Some(ServedModels::decode(&text).map_err(DecodeError)?);
                said.models_are_new = true;
                if said.primary.is_some() {
                    self.follow_if_primary(link, said)?;
                }
            }
            Message::Heartbeat(epoch, process, _) => {
                let primary = (epoch, process);
                if said.primary.is_none_or(|(known, _)| known != primary) {
                    said.primary = Some((primary, Instant::now()));
                }
                self.follow_if_primary(link, said)?;
            }
            Message::Refused(cause) => return Err(io::Error::other(format!("the scheduler refuses: {cause}"))),
            other => return Err(DecodeError(format!("a scheduler does not say {other:?}")).into()),
        }
        Ok(())
    }

    /// Sends requests to this scheduler from now on, if it is the primary of the latest epoch and
    /// its models are known. A scheduler learns of models as backends connect to it: another one is
    /// followed once it lists all served ones, at the latest when requests would wait no longer.
    fn follow_if_primary(&self, link: &Arc<PeerLink>, said: &mut SchedulerView) -> io::Result<()> {
        let (Some(((epoch, process), since)), Some(listed)) = (said.primary, &said.models) else { return Ok(()) };
        if self.epoch() > epoch.0 {
            link.send(&Message::Fenced(Epoch(self.epoch())));
            return Ok(());
        }
        // Heartbeats come every few milliseconds, models rarely.
        let table = self.table.lock();
        let (is_new, timeout) = (!table.is_primary(link), table.scheduler_timeout);
        drop(table);
        if is_new && since.elapsed() < timeout && !self.models.read().are_in(&listed.models) {
            return Ok(());
        }
        if said.models_are_new || is_new {
            let known = self.models.write().replace(listed.models.clone(), !is_new).map_err(DecodeError)?;
            (self.on_models)(&known, &listed.loading);
            said.models_are_new = false;
        }
        let followed = self.table.lock().on_heartbeat(link, (epoch, process), Instant::now());
        match followed {
            HeartbeatOutcome::Stale(epoch) => link.send(&Message::Fenced(epoch)),
            HeartbeatOutcome::Primary { completed: due, resend: again } => {
                if is_new {
                    let address = link.peer().map(|address| address.to_string()).unwrap_or_default();
                    tracing::info!(address, epoch = epoch.0, "requests go to the scheduler at {address}");
                }
                self.devices.store(said.devices, Ordering::Relaxed);
                self.answer_all(due);
                again.into_iter().for_each(|ask| self.send_request(link, ask));
            }
        }
        Ok(())
    }

    /// Answers completed requests, and cancels those at the primary that it may still hold.
    pub(super) fn answer_all(&self, due: Vec<CompletedRequest>) {
        let scheduler = self.table.lock().scheduler();
        for due in due {
            if let (Some(request), Some(scheduler)) = (due.orphaned_id(), &scheduler) {
                scheduler.send(&Message::CancelRequest(request));
            }
            due.answer();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{ModelDescription, described};
    use crate::frontend::{Frontend, FrontendConfig};
    use crate::plane::{Tcp, Transport, accept_handshake};
    use ripieno_base::ModelId;
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{Receiver, channel};

    /// Starts a frontend of schedulers that the test plays. Returns their connections, and what the
    /// frontend tells clients: the number of models, each time.
    fn played(scheduler_timeout: Duration) -> (Frontend, [Arc<PeerLink>; 2], Receiver<usize>) {
        let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
        let listeners = [(); 2].map(|()| Tcp.listen(anywhere).unwrap());
        let schedulers = listeners.iter().map(|listener| listener.address().to_string()).collect();
        let config = FrontendConfig { schedulers, data: anywhere, advertised: None, max_live: 8, scheduler_timeout };
        let (sender, told) = channel();
        let frontend =
            Frontend::start(Arc::new(Tcp), config, Box::new(move |models, _| sender.send(models.len()).unwrap()));
        let links = listeners.each_ref().map(|listener| {
            let stream = listener.accept().unwrap().unwrap();
            accept_handshake(&*stream, Handshake::new(Role::Scheduler, 0), &[Role::Frontend]).unwrap();
            PeerLink::start(stream, LinkBounds::CONTROL, "test").unwrap()
        });
        (frontend.unwrap(), links, told)
    }

    fn lists(link: &PeerLink, models: &[(ModelId, ModelDescription)]) {
        let served = ServedModels { models: models.to_vec(), ..ServedModels::default() };
        link.send(&Message::Models(served.encode().into()));
    }

    fn leads(link: &PeerLink, epoch: u64) {
        link.send(&Message::Heartbeat(Epoch(epoch), ProcessId(epoch), None));
    }

    #[test]
    fn another_primary_is_followed_once_it_lists_what_is_served() {
        let (frontend, [first, second], told) = played(Duration::from_secs(60));
        lists(&first, &[(ModelId(0), described())]);
        leads(&first, 1);
        assert_eq!(told.recv().unwrap(), 1);
        lists(&second, &[]);
        leads(&second, 2);
        lists(&second, &[(ModelId(3), described())]);
        assert_eq!(told.recv().unwrap(), 1, "the empty list is not told");
        lists(&second, &[]);
        assert_eq!(told.recv().unwrap(), 0, "what the same primary serves no longer");
        frontend.close();
    }

    #[test]
    fn a_primary_that_lists_fewer_models_is_followed_when_requests_would_wait_no_longer() {
        let (frontend, [first, second], told) = played(Duration::from_millis(1));
        lists(&first, &[(ModelId(0), described())]);
        leads(&first, 1);
        assert_eq!(told.recv().unwrap(), 1);
        lists(&second, &[]);
        let followed = (0..1000).any(|_| {
            leads(&second, 2);
            told.recv_timeout(Duration::from_millis(5)) == Ok(0)
        });
        assert!(followed);
        frontend.close();
    }
}
