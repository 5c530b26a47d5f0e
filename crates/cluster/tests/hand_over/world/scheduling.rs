//! The schedulers: their inputs, the connections that end, and the execution of their actions.

use super::{Event, GONE, HELLO, Machine, Peers, World};
use crate::host::{Host, Said};
use crate::message::{Answer, Body, Message, Outcome, Wanted};
use crate::network::Place;
use ripieno_base::Time;
use ripieno_cluster::handover::store::EpochEntry;
use ripieno_cluster::handover::{ProcessId, RequestId, Role, SchedulerAction, SchedulerMachine, Stamp};

impl World {
    pub(super) fn tell_scheduler(&mut self, place: Place, now: Time, event: Event) {
        let node = &mut self.nodes[place];
        let Machine::Scheduler(scheduler, host, peers) = &mut node.machine else { unreachable!("it was one") };
        let mut out = Vec::new();
        scheduler.on_awake(now);
        match event {
            Event::Deliver { from, message, .. } => {
                self.counts.adopted += u64::from(adopts(&message));
                scheduler.on_epoch(now, message.epoch, &mut out);
                if let Some(seen) = peers.when.get_mut(&from) {
                    *seen = now;
                }
                match message.body {
                    Body::Hello(role) => {
                        // An earlier process at the same place has ended.
                        let earlier = |other: &ProcessId| other.0 >> 48 == from.0 >> 48 && *other < from;
                        let gone: Vec<ProcessId> = peers.when.keys().copied().filter(earlier).collect();
                        let new = peers.when.insert(from, now).is_none();
                        gone.into_iter().for_each(|who| lose((scheduler, host, peers), now, who, &mut out));
                        if new || scheduler.primary_epoch().is_some_and(|epoch| message.epoch < epoch) {
                            scheduler.on_member(now, from, role, &mut out);
                        }
                    }
                    Body::Heartbeat(reach) => scheduler.on_heartbeat(
                        now,
                        EpochEntry { epoch: message.epoch, holder: from },
                        Some(reach),
                        &mut out,
                    ),
                    Body::Report { number, revision, held } => {
                        let stamp = Stamp { epoch: message.epoch, number };
                        scheduler.on_report(
                            now,
                            (from, usize::from(from.0 >> 48 & 1 != 0)),
                            stamp,
                            revision,
                            &held,
                            &mut out,
                        );
                    }
                    Body::Ask(wanted) if scheduler.primary_epoch().is_some() => {
                        let new = wanted.into_iter().filter(|&wanted| host.ask(now, wanted));
                        // Its host runs any request on any backend.
                        let place = |request: RequestId| usize::from(request.number & 1 != 0);
                        new.for_each(|Wanted { request, .. }| {
                            scheduler.on_ask(now, request, (1, place(request)), &mut out);
                        });
                    }
                    Body::Ended { batch } => host.ended(now, from, batch),
                    _ => {}
                }
            }
            Event::Lost { who, .. } => {
                lose((scheduler, host, peers), now, who, &mut out);
                // Immediately, if that was the primary.
                scheduler.on_timer(now, &mut out);
            }
            Event::Held { entry, .. } => scheduler.on_store(now, entry, &mut out),
            _ => {
                node.wake_at = Time::NEVER;
                scheduler.on_timer(now, &mut out);
                if now >= peers.next_hello {
                    peers.next_hello = now + HELLO;
                    let silent: Vec<_> = peers.when.iter().filter(|(_, at)| **at + GONE <= now).collect();
                    let silent: Vec<ProcessId> = silent.into_iter().map(|(&who, _)| who).collect();
                    silent.into_iter().for_each(|who| lose((scheduler, host, peers), now, who, &mut out));
                    let hello = Message { epoch: scheduler.known(), body: Body::Hello(Role::Scheduler) };
                    self.greet(place, &hello);
                }
            }
        }
        self.on_scheduler(place, out);
    }

    fn on_scheduler(&mut self, place: Place, mut out: Vec<SchedulerAction>) {
        let now = self.now + self.nodes[place].offset;
        loop {
            for action in std::mem::take(&mut out) {
                self.on_action(place, now, action);
            }
            // The host acts once all its inputs are handled.
            let Machine::Scheduler(scheduler, host, peers) = &mut self.nodes[place].machine else { return };
            let mut said = Vec::new();
            match host.overdue(now) {
                Some(backend) => lose((scheduler, host, peers), now, backend, &mut out),
                None => host.schedule(now, &mut said),
            }
            if out.is_empty() && said.is_empty() {
                return;
            }
            self.say(place, said);
        }
    }

    fn say(&mut self, place: Place, said: Vec<Said>) {
        let Machine::Scheduler(scheduler, ..) = &self.nodes[place].machine else { return };
        let epoch = scheduler.known();
        for said in said {
            let (to, body) = match said {
                Said::Start { backend, batch, members } => (backend, Body::Start { batch, members }),
                Said::Refused(request) => {
                    (request.frontend, Body::Answers(vec![Answer { request, outcome: Outcome::Retry }]))
                }
            };
            self.send(place, to, Message { epoch, body });
        }
    }

    fn on_action(&mut self, place: Place, now: Time, action: SchedulerAction) {
        let process = self.nodes[place].process;
        let Machine::Scheduler(_, host, _) = &mut self.nodes[place].machine else { unreachable!("it is one") };
        let mut said = Vec::new();
        match action {
            SchedulerAction::Swap(swap) => self.ask_store(place, process, swap),
            SchedulerAction::Heartbeat { to, epoch, reach } => {
                self.send(place, to, Message { epoch, body: Body::Heartbeat(reach) })
            }
            SchedulerAction::Fenced { to, epoch } => self.send(place, to, Message { epoch, body: Body::Fenced }),
            SchedulerAction::Claim { to, stamp } => {
                let message = Message { epoch: stamp.epoch, body: Body::Claim { number: stamp.number } };
                self.send(place, to, message);
            }
            SchedulerAction::BecomePrimary(epoch) => self.checkers.epochs.begins(process, epoch),
            SchedulerAction::StepDown => {
                self.counts.stepped_down += 1;
                host.forget();
            }
            SchedulerAction::Admit(request) => host.admit(request),
            SchedulerAction::Completed(request) => host.over(now, request),
            SchedulerAction::Join { backend, stamp } => host.join(backend, stamp),
            SchedulerAction::Leave(backend) => host.leave(backend, &mut said),
        }
        self.say(place, said);
    }
}

/// Ends its connection to a process.
fn lose(
    (scheduler, host, peers): (&mut SchedulerMachine, &mut Host, &mut Peers),
    now: Time,
    who: ProcessId,
    out: &mut Vec<SchedulerAction>,
) {
    peers.when.remove(&who);
    host.frontend_lost(who);
    scheduler.on_lost(now, who, out);
}

/// Returns true if a backend reports rows that an earlier primary has started.
fn adopts(message: &Message) -> bool {
    matches!(&message.body, Body::Report { held, .. } if !held.is_empty())
}
