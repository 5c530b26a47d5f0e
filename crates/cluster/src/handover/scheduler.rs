//! The state machine of a scheduler: a spare that may become the primary, or a primary that may
//! become a spare again.

use super::action::SchedulerAction::{self, BecomePrimary, Fenced, Heartbeat, StepDown};
use super::election::{Election, ElectionCause};
use super::ids::{Epoch, ProcessId, ReachedRoles, RequestId, Role, Stamp};
use super::primary::{Primary, RunningRows};
use super::store::EpochEntry;
use super::timing::Timing;
use ripieno_base::Time;
use std::collections::BTreeMap;

/// The state machine. After each input, the host calls [`SchedulerMachine::on_timer`] at
/// [`SchedulerMachine::next_wakeup`] at the latest.
#[derive(Clone, Debug)]
pub struct SchedulerMachine {
    timing: Timing,
    started_at: Time,
    /// The connected processes.
    members: BTreeMap<ProcessId, Role>,
    election: Election,
    primary: Option<Primary>,
    next_heartbeat: Time,
}

impl SchedulerMachine {
    /// Returns a spare without connections.
    pub fn new(now: Time, me: ProcessId, timing: Timing) -> SchedulerMachine {
        let election = Election::new(now, me, timing);
        let members = BTreeMap::new();
        SchedulerMachine { timing, started_at: now, members, election, primary: None, next_heartbeat: Time::NEVER }
    }

    /// Returns its epoch, if it is the primary.
    pub fn primary_epoch(&self) -> Option<Epoch> {
        self.primary.as_ref().map(Primary::epoch)
    }

    /// Returns true if it is the primary, or a spare that receives heartbeats from one.
    pub fn knows_primary(&self) -> bool {
        self.primary.is_some() || self.election.follows()
    }

    /// Returns true if it is the primary, and every connected backend has reported.
    pub fn all_reported(&self) -> bool {
        self.primary.as_ref().is_some_and(Primary::all_reported)
    }

    /// Returns true if it is the primary, and admits every request directly.
    pub fn is_open(&self) -> bool {
        self.primary.as_ref().is_some_and(Primary::is_open)
    }

    /// Returns the latest known epoch.
    pub fn known(&self) -> Epoch {
        self.election.known()
    }

    /// Returns the time at which [`SchedulerMachine::on_timer`] must be called.
    pub fn next_wakeup(&self) -> Time {
        if self.primary.is_some() { self.next_heartbeat } else { self.election.next_wakeup() }
    }

    /// Returns why it stood for leadership last.
    pub fn election_cause(&self) -> ElectionCause {
        self.election.cause()
    }

    /// Notes that this process runs. The host calls it before it passes an input.
    pub fn on_awake(&mut self, now: Time) {
        self.election.on_awake(now);
    }

    /// Handles the connection of a process.
    pub fn on_member(&mut self, now: Time, who: ProcessId, role: Role, out: &mut Vec<SchedulerAction>) {
        self.members.insert(who, role);
        let reach = self.reach();
        let Some(primary) = &mut self.primary else { return };
        match role {
            Role::Backend => primary.on_backend(now, who, out),
            Role::Scheduler | Role::Frontend => out.push(Heartbeat { to: who, epoch: primary.epoch(), reach }),
        }
    }

    /// Handles the loss of the connection that carries another scheduler's heartbeats.
    pub fn on_heartbeats_lost(&mut self, now: Time, who: ProcessId) {
        self.election.on_lost(now, who);
    }

    /// Handles the loss of the connection on which another scheduler receives heartbeats. It says
    /// nothing of the other's own heartbeats: a primary that steps down closes such connections.
    pub fn on_listener_lost(&mut self, who: ProcessId) {
        self.members.remove(&who);
    }

    /// Handles the loss of all connections to a process.
    pub fn on_lost(&mut self, now: Time, who: ProcessId, out: &mut Vec<SchedulerAction>) {
        self.on_heartbeats_lost(now, who);
        let role = self.members.remove(&who);
        let Some(primary) = &mut self.primary else { return };
        match role {
            Some(Role::Backend) => primary.on_backend_lost(now, who, out),
            Some(Role::Frontend) => primary.on_frontend_lost(who),
            Some(Role::Scheduler) | None => {}
        }
    }

    /// Handles news of an epoch.
    pub fn on_epoch(&mut self, now: Time, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        self.election.on_epoch(epoch);
        self.step_down_if_stale(now, out);
    }

    /// Handles another scheduler's heartbeat, and which roles that one reaches if it says so.
    pub fn on_heartbeat(
        &mut self,
        now: Time,
        said: EpochEntry,
        reach: Option<ReachedRoles>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let EpochEntry { epoch, holder: from } = said;
        self.on_epoch(now, epoch, out);
        if epoch < self.known() {
            out.push(Fenced { to: from, epoch: self.known() });
        } else if self.primary.is_none() {
            let cut_off = reach.is_some_and(|reach| self.reach() == ReachedRoles::ALL && reach != ReachedRoles::ALL);
            self.election.on_heartbeat(now, from, epoch, cut_off);
        }
    }

    /// Handles a reply of the store.
    pub fn on_store(&mut self, now: Time, held: EpochEntry, out: &mut Vec<SchedulerAction>) {
        let begins = self.election.on_store(now, held);
        self.step_down_if_stale(now, out);
        if let Some(epoch) = begins {
            self.become_primary(now, epoch, out);
        }
    }

    /// Handles the passage of time.
    pub fn on_timer(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        self.on_awake(now);
        let Some(primary) = &mut self.primary else {
            return out.extend(self.election.on_timer(now).map(SchedulerAction::Swap));
        };
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.timing.heartbeat;
            primary.on_timer(now, out);
            self.send_heartbeats(Role::Scheduler, out);
        }
    }

    /// Handles the report of a backend, of this sub-cluster, on the rows that it still runs from
    /// earlier epochs, under a claim.
    pub fn on_report(
        &mut self,
        now: Time,
        from: (ProcessId, usize),
        stamp: Stamp,
        revision: u32,
        held: &[RunningRows],
        out: &mut Vec<SchedulerAction>,
    ) {
        self.on_epoch(now, stamp.epoch, out);
        if let Some(primary) = self.primary.as_mut().filter(|primary| primary.epoch() == stamp.epoch) {
            primary.on_report(now, from, (stamp.number, revision), held, out);
        }
    }

    /// Handles a frontend's submission of a request with this number of rows to a sub-cluster.
    pub fn on_ask(
        &mut self,
        now: Time,
        request: RequestId,
        (rows, place): (u32, usize),
        out: &mut Vec<SchedulerAction>,
    ) {
        if let Some(primary) = &mut self.primary {
            primary.on_ask(now, request, (rows, place), out);
        }
    }

    /// Handles the cancellation of a request.
    pub fn on_withdraw(&mut self, request: RequestId) {
        if let Some(primary) = &mut self.primary {
            primary.on_withdraw(request);
        }
    }

    fn step_down_if_stale(&mut self, now: Time, out: &mut Vec<SchedulerAction>) {
        let known = self.known();
        if self.primary.take_if(|primary| primary.epoch() < known).is_some() {
            self.election.on_fenced(now);
            out.push(StepDown);
        }
    }

    fn become_primary(&mut self, now: Time, epoch: Epoch, out: &mut Vec<SchedulerAction>) {
        let discovery = self.started_at + self.timing.discovery;
        let mut primary = Primary::new(now, epoch, discovery, self.timing);
        out.push(BecomePrimary(epoch));
        let backends = self.members.iter().filter(|(_, role)| **role == Role::Backend);
        backends.for_each(|(&backend, _)| primary.on_backend(now, backend, out));
        self.primary = Some(primary);
        self.next_heartbeat = now + self.timing.heartbeat;
        self.send_heartbeats(Role::Scheduler, out);
        self.send_heartbeats(Role::Frontend, out);
    }

    fn send_heartbeats(&self, role: Role, out: &mut Vec<SchedulerAction>) {
        let (epoch, reach) = (self.known(), self.reach());
        let those = self.members.iter().filter(|(_, own)| **own == role);
        out.extend(those.map(|(&to, _)| Heartbeat { to, epoch, reach }));
    }

    fn reach(&self) -> ReachedRoles {
        let has = |role: Role| self.members.values().any(|own| *own == role);
        ReachedRoles { backends: has(Role::Backend), frontends: has(Role::Frontend) }
    }
}
