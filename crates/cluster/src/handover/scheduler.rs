//! A scheduler: a spare that may become the primary, or the primary that may be a spare again.

use super::action::SchedulerAction::{self, Follow, Greet, Lead, Send};
use super::election::Election;
use super::ids::{Epoch, Process, RequestId, Role};
use super::members::Members;
use super::message::{Body, Message};
use super::primary::Primary;
use super::store::Entry;
use super::timing::Timing;
use ripieno_base::Time;

/// How much a scheduler keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Processes of all roles.
    pub members: usize,
    /// Requests that wait, run, or have just been answered.
    pub requests: usize,
}

/// The state machine. After each input, [`Scheduler::next_wakeup`] says when it wants to be told the time at the latest.
#[derive(Clone, Debug)]
pub struct Scheduler {
    timing: Timing,
    limits: SchedulerLimits,
    born: Time,
    members: Members,
    election: Election,
    primary: Option<Primary>,
    next_hello: Time,
    next_heartbeat: Time,
}

impl Scheduler {
    /// A spare that knows nobody.
    pub fn new(now: Time, me: Process, timing: Timing, limits: SchedulerLimits) -> Scheduler {
        Scheduler {
            timing,
            limits,
            born: now,
            members: Members::new(limits.members, timing.gone),
            election: Election::new(now, me, timing),
            primary: None,
            next_hello: now,
            next_heartbeat: Time::NEVER,
        }
    }

    /// Its reign, if it is the primary.
    pub fn reigns(&self) -> Option<Epoch> {
        self.primary.as_ref().map(Primary::epoch)
    }

    /// Whether it reigns, and each backend that it knows has reported.
    pub fn commands_all(&self) -> bool {
        self.primary.as_ref().is_some_and(Primary::commands_all)
    }

    /// The latest reign that it knows of.
    pub fn known(&self) -> Epoch {
        self.election.known()
    }

    /// [`Scheduler::on_timer`] is wanted then.
    pub fn next_wakeup(&self) -> Time {
        let own = if self.primary.is_some() { self.next_heartbeat } else { self.election.ask_at() };
        own.min(self.next_hello)
    }

    /// Somebody says something.
    pub fn on_message(&mut self, now: Time, from: Process, message: &Message, out: &mut Vec<SchedulerAction>) {
        self.on_epoch(now, message.epoch, out);
        match &message.body {
            Body::Heartbeat => self.on_heartbeat(now, from, message.epoch, out),
            Body::Hello(role) => self.on_hello(now, from, *role, message.epoch, out),
            body => {
                let Some(primary) = &mut self.primary else { return };
                match body {
                    Body::Ask(wanted) => primary.on_ask(now, wanted, out),
                    Body::Report { number, held } if message.epoch == primary.epoch() => {
                        primary.on_report(now, from, *number, held, out);
                    }
                    Body::Ended { batch } => primary.on_ended(now, from, *batch, out),
                    _ => {}
                }
            }
        }
    }

    /// The connection to somebody broke.
    pub fn on_lost(&mut self, now: Time, who: Process, out: &mut Vec<SchedulerAction>) {
        self.election.on_lost(now, who);
        self.on_gone(now, who, out);
    }

    /// The store has said what it holds.
    pub fn on_store(&mut self, now: Time, held: Entry, out: &mut Vec<SchedulerAction>) {
        let begins = self.election.on_store(now, held);
        self.follow_if_over(now, out);
        if let Some(epoch) = begins {
            self.lead(now, epoch, out);
        }
    }

    /// It is later now.
    pub fn on_timer(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let hello = now >= self.next_hello;
        if hello {
            self.next_hello = now + self.timing.hello;
            out.push(Greet(Message { epoch: self.known(), body: Body::Hello(Role::Scheduler) }));
            self.members.silent(now).into_iter().for_each(|who| self.on_gone(now, who, out));
        }
        let Some(primary) = &mut self.primary else {
            out.extend(self.election.on_timer(now).map(SchedulerAction::Swap));
            return;
        };
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.timing.heartbeat;
            primary.on_timer(now, out);
            self.beat(Role::Scheduler, out);
        }
        if hello {
            self.beat(Role::Frontend, out);
        }
    }

    /// The host gives a backend a batch. What it holds by then is said by [`SchedulerAction::Load`]; whether anything was
    /// given, too: a backend may have been lost meanwhile, and requests withdrawn.
    pub fn start(
        &mut self,
        now: Time,
        backend: Process,
        batch: &[RequestId],
        due: Time,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        self.primary.as_mut().is_some_and(|primary| primary.start(now, backend, batch, due, out))
    }

    /// The host will not run this request.
    pub fn refuse(&mut self, request: RequestId, out: &mut Vec<SchedulerAction>) {
        if let Some(primary) = &mut self.primary {
            primary.refuse(request, out);
        }
    }

    fn on_epoch(&mut self, now: Time, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        self.election.on_epoch(epoch);
        self.follow_if_over(now, out);
    }

    fn follow_if_over(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let known = self.known();
        if self.primary.take_if(|primary| primary.epoch() < known).is_some() {
            self.election.on_fenced(now);
            out.push(Follow);
        }
    }

    fn on_heartbeat(&mut self, now: Time, from: Process, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        if epoch < self.known() {
            self.send(from, Body::Fenced, out);
        } else if self.primary.is_none() {
            self.election.on_heartbeat(now, from, epoch);
        }
    }

    fn on_hello(&mut self, now: Time, from: Process, role: Role, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        let Some(new) = self.members.on_hello(now, from, role) else { return };
        if new {
            let earlier = self.members.of(role).filter(|other| other.ordinal() == from.ordinal() && *other < from);
            let earlier: Vec<_> = earlier.collect();
            earlier.into_iter().for_each(|life| self.on_gone(now, life, out));
        }
        let Some(primary) = &mut self.primary else { return };
        match role {
            Role::Backend => primary.on_backend(now, from, out),
            Role::Scheduler | Role::Frontend if new || epoch < primary.epoch() => self.send(from, Body::Heartbeat, out),
            Role::Scheduler | Role::Frontend => {}
        }
    }

    fn on_gone(&mut self, now: Time, who: Process, out: &mut Vec<SchedulerAction>) {
        let role = self.members.remove(who);
        let Some(primary) = &mut self.primary else { return };
        match role {
            Some(Role::Backend) => primary.on_backend_lost(now, who, out),
            Some(Role::Frontend) => primary.on_frontend_lost(who, out),
            Some(Role::Scheduler) | None => {}
        }
    }

    fn lead(&mut self, now: Time, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        let acquainted = self.born + self.timing.hello * 2;
        let mut primary = Primary::new(now, epoch, acquainted, self.timing, self.limits.requests);
        out.push(Lead(epoch));
        self.members.of(Role::Backend).for_each(|backend| primary.on_backend(now, backend, out));
        self.primary = Some(primary);
        self.next_heartbeat = now + self.timing.heartbeat;
        self.beat(Role::Scheduler, out);
        self.beat(Role::Frontend, out);
    }

    fn beat(&self, role: Role, out: &mut Vec<SchedulerAction>) {
        self.members.of(role).for_each(|to| self.send(to, Body::Heartbeat, out));
    }

    fn send(&self, to: Process, body: Body, out: &mut Vec<SchedulerAction>) {
        out.push(Send { to, message: Message { epoch: self.known(), body } });
    }
}
