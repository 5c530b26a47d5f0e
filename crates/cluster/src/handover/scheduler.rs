//! A scheduler: a spare that may become the primary, or the primary that may be a spare again.

use super::action::SchedulerAction::{self, BecomePrimary, Fenced, Heartbeat, StepDown};
use super::election::Election;
use super::ids::{Epoch, Process, RequestId, Role};
use super::primary::{Held, Primary};
use super::store::Entry;
use super::timing::Timing;
use ripieno_base::Time;
use std::collections::BTreeMap;

/// The state machine. After each input, [`Scheduler::next_wakeup`] says when it wants to be told the time at the latest.
#[derive(Clone, Debug)]
pub struct Scheduler {
    timing: Timing,
    born: Time,
    /// Who is connected.
    members: BTreeMap<Process, Role>,
    election: Election,
    primary: Option<Primary>,
    next_heartbeat: Time,
}

impl Scheduler {
    /// A spare that knows nobody.
    pub fn new(now: Time, me: Process, timing: Timing) -> Scheduler {
        let election = Election::new(now, me, timing);
        let members = BTreeMap::new();
        Scheduler { timing, born: now, members, election, primary: None, next_heartbeat: Time::NEVER }
    }

    /// Its epoch, if it is the primary.
    pub fn primary_epoch(&self) -> Option<Epoch> {
        self.primary.as_ref().map(Primary::epoch)
    }

    /// Whether it is the primary, or a spare that hears one.
    pub fn knows_primary(&self) -> bool {
        self.primary.is_some() || self.election.follows()
    }

    /// Whether it is the primary, and each backend that is connected has reported.
    pub fn commands_all(&self) -> bool {
        self.primary.as_ref().is_some_and(Primary::commands_all)
    }

    /// Whether it is the primary, and would admit all that is asked.
    pub fn is_open(&self) -> bool {
        self.primary.as_ref().is_some_and(Primary::is_open)
    }

    /// The latest epoch that it knows of.
    pub fn known(&self) -> Epoch {
        self.election.known()
    }

    /// [`Scheduler::on_timer`] is wanted then.
    pub fn next_wakeup(&self) -> Time {
        if self.primary.is_some() { self.next_heartbeat } else { self.election.ask_at() }
    }

    /// Somebody is connected.
    pub fn on_member(&mut self, now: Time, who: Process, role: Role, out: &mut Vec<SchedulerAction>) {
        self.members.insert(who, role);
        let Some(primary) = &mut self.primary else { return };
        match role {
            Role::Backend => primary.on_backend(now, who, out),
            Role::Scheduler | Role::Frontend => out.push(Heartbeat { to: who, epoch: primary.epoch() }),
        }
    }

    /// The connection to another scheduler broke, on which its heartbeats come.
    pub fn on_heartbeats_lost(&mut self, now: Time, who: Process) {
        self.election.on_lost(now, who);
    }

    /// The connection to somebody broke.
    pub fn on_lost(&mut self, now: Time, who: Process, out: &mut Vec<SchedulerAction>) {
        self.on_heartbeats_lost(now, who);
        let role = self.members.remove(&who);
        let Some(primary) = &mut self.primary else { return };
        match role {
            Some(Role::Backend) => primary.on_backend_lost(now, who, out),
            Some(Role::Frontend) => primary.on_frontend_lost(who),
            Some(Role::Scheduler) | None => {}
        }
    }

    /// Somebody knows of this epoch.
    pub fn on_epoch(&mut self, now: Time, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        self.election.on_epoch(epoch);
        self.follow_if_over(now, out);
    }

    /// Another scheduler says that this is its epoch.
    pub fn on_heartbeat(&mut self, now: Time, from: Process, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        self.on_epoch(now, epoch, out);
        if epoch < self.known() {
            out.push(Fenced { to: from, epoch: self.known() });
        } else if self.primary.is_none() {
            self.election.on_heartbeat(now, from, epoch);
        }
    }

    /// The store has said what it holds.
    pub fn on_store(&mut self, now: Time, held: Entry, out: &mut Vec<SchedulerAction>) {
        let begins = self.election.on_store(now, held);
        self.follow_if_over(now, out);
        if let Some(epoch) = begins {
            self.become_primary(now, epoch, out);
        }
    }

    /// It is later now.
    pub fn on_timer(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let Some(primary) = &mut self.primary else {
            return out.extend(self.election.on_timer(now).map(SchedulerAction::Swap));
        };
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.timing.heartbeat;
            primary.on_timer(now, out);
            self.beat(Role::Scheduler, out);
        }
    }

    /// A backend says what it still runs of earlier epochs: under the claim of this epoch and number, for this time.
    pub fn on_report(
        &mut self,
        now: Time,
        from: Process,
        (epoch, number, revision): (Epoch, u64, u32),
        held: &[Held],
        out: &mut Vec<SchedulerAction>,
    ) {
        self.on_epoch(now, epoch, out);
        if let Some(primary) = self.primary.as_mut().filter(|primary| primary.epoch() == epoch) {
            primary.on_report(now, from, (number, revision), held, out);
        }
    }

    /// A frontend waits for this request of so many rows.
    pub fn on_ask(&mut self, request: RequestId, rows: u32, out: &mut Vec<SchedulerAction>) {
        if let Some(primary) = &mut self.primary {
            primary.on_ask(request, rows, out);
        }
    }

    /// It does not any more.
    pub fn on_withdraw(&mut self, request: RequestId) {
        if let Some(primary) = &mut self.primary {
            primary.on_withdraw(request);
        }
    }

    fn follow_if_over(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let known = self.known();
        if self.primary.take_if(|primary| primary.epoch() < known).is_some() {
            self.election.on_fenced(now);
            out.push(StepDown);
        }
    }

    fn become_primary(&mut self, now: Time, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        let discovery = self.born + self.timing.discovery;
        let mut primary = Primary::new(now, epoch, discovery, self.timing);
        out.push(BecomePrimary(epoch));
        let backends = self.members.iter().filter(|(_, role)| **role == Role::Backend);
        backends.for_each(|(&backend, _)| primary.on_backend(now, backend, out));
        self.primary = Some(primary);
        self.next_heartbeat = now + self.timing.heartbeat;
        self.beat(Role::Scheduler, out);
        self.beat(Role::Frontend, out);
    }

    fn beat(&self, role: Role, out: &mut Vec<SchedulerAction>) {
        let epoch = self.known();
        let those = self.members.iter().filter(|(_, own)| **own == role);
        out.extend(those.map(|(&to, _)| Heartbeat { to, epoch }));
    }
}
