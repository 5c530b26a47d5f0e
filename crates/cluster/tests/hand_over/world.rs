//! The processes, the clock, and the queue of events.

mod breaking;
mod scheduling;

use crate::backend::{Backend, BackendAction};
use crate::checkers::Checkers;
use crate::counts::Counts;
use crate::faults::{self, Fault, Kind, is_frontend};
use crate::frontend::{Frontend, FrontendAction};
use crate::host::Host;
use crate::message::{Batch, Body, Message};
use crate::network::{Network, Place, Weather};
use crate::store::Store;
use ripieno_base::{Nanos, Time};
use ripieno_cluster::handover::store::{EpochEntry, Swap};
use ripieno_cluster::handover::{Epoch, ProcessId, RequestId, SchedulerMachine, Timing};
use ripieno_workload::{SeededRng, below, stream};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const SCHEDULERS: usize = 3;
pub(crate) const BACKENDS: usize = 4;
pub(crate) const FRONTENDS: usize = 2;
pub(crate) const PLACES: usize = SCHEDULERS + BACKENDS + FRONTENDS;
/// The store's place, for cuts.
pub(crate) const STORE: Place = PLACES;

/// A fifth of the usual timers, so that a run is short; the slowest messages take longer than the
/// tolerated silence.
const TIMING: Timing = Timing {
    heartbeat: Nanos::from_millis(2),
    silence: Nanos::from_millis(10),
    store: Nanos::from_millis(20),
    claim: Nanos::from_millis(4),
    settle: Nanos::from_millis(20),
    discovery: Nanos::from_millis(20),
    cut_off: Nanos::from_millis(200),
    rest: Nanos::from_millis(400),
};
/// Interval of hellos, which stand for the connections of the real roles.
pub(crate) const HELLO: Nanos = Nanos::from_millis(10);
/// Silence after which a process is taken for gone.
const GONE: Nanos = Nanos::from_millis(60);
/// Time after which an unconfirmed message is sent again.
pub(crate) const REPEAT: Nanos = Nanos::from_millis(20);

pub(crate) const FIRST_FAULT: Time = Time(100_000_000);
pub(crate) const FAULTS_END: Time = Time(1_000_000_000);
/// Time until which messages sent before the end of the faults arrive.
const LAST_ARRIVAL: Nanos = Nanos::from_millis(50);
/// End of a run: all earlier requests are answered.
const END: Nanos = Nanos::from_millis(450);
/// Time before the end at which submissions stop, so that all can be answered.
const LONGEST: Nanos = Nanos::from_millis(300);

/// Upper bound on the events of a run, which has some ten thousand.
const MOST_EVENTS: u64 = 500_000;

#[derive(Debug)]
enum Machine {
    Down,
    Scheduler(Box<SchedulerMachine>, Host, Peers),
    /// The process reads the store's epoch before it joins.
    Joining,
    Backend(Box<Backend>),
    Frontend(Box<Frontend>),
}

/// The processes that a scheduler has heard, with the time: its connections.
#[derive(Debug)]
struct Peers {
    when: BTreeMap<ProcessId, Time>,
    next_hello: Time,
}

#[derive(Debug)]
struct Node {
    process: ProcessId,
    machine: Machine,
    /// Error of its clock.
    offset: Nanos,
    /// Set while it hangs: the events that wait for it.
    backlog: Option<Vec<Event>>,
    resumed: Time,
    wake_at: Time,
    sticks: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Deliver { from: ProcessId, to: ProcessId, message: Message },
    Lost { to: ProcessId, who: ProcessId },
    Held { to: ProcessId, entry: EpochEntry },
    Read { to: ProcessId, entry: Option<EpochEntry> },
    TryRead { to: ProcessId },
    Ended { at: ProcessId, batch: Batch },
    Wake { to: ProcessId },
    Swap { from: ProcessId, swap: Swap },
    Submit,
    Fault(Fault),
    Restart(Place),
    Resume(Place),
    Mend { from: Place, to: Place },
    StoreUp,
    FaultsEnd,
    Recovered,
}

impl Event {
    /// Returns the receiving process.
    fn to(&self) -> Option<ProcessId> {
        match *self {
            Event::Deliver { to, .. } | Event::Lost { to, .. } | Event::Held { to, .. } | Event::Read { to, .. } => {
                Some(to)
            }
            Event::TryRead { to } | Event::Wake { to } | Event::Ended { at: to, .. } => Some(to),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct World {
    kind: Kind,
    verbose: bool,
    now: Time,
    random: SeededRng,
    /// Future events in order; events of the same time in the order of posting.
    events: BTreeMap<(Time, u64), Event>,
    posted: u64,
    lives: u64,
    network: Network,
    store: Store,
    nodes: Vec<Node>,
    places: BTreeMap<ProcessId, Place>,
    checkers: Checkers,
    begun: BTreeSet<RequestId>,
    counts: Counts,
}

impl World {
    pub(crate) fn new(kind: Kind, seed: u64, verbose: bool) -> World {
        let mut world = World {
            kind,
            verbose,
            now: Time::ORIGIN,
            random: stream(seed, 0),
            events: BTreeMap::new(),
            posted: 0,
            lives: 0,
            network: Network::new(seed, faults::weather(kind, seed)),
            store: Store::new(seed),
            nodes: Vec::new(),
            places: BTreeMap::new(),
            checkers: Checkers::default(),
            begun: BTreeSet::new(),
            counts: Counts::default(),
        };
        for place in 0..PLACES {
            let offset = Nanos(below(&mut world.random, 1_000_000_000_000) as i64);
            let never = Time::NEVER;
            let process = ProcessId(0);
            let machine = Machine::Down;
            let node = Node { process, machine, offset, backlog: None, resumed: never, wake_at: never, sticks: false };
            world.nodes.push(node);
            world.start(place);
        }
        if kind == Kind::All {
            (world.store.unwell, world.store.slowest) = (below(&mut world.random, 300), Nanos::from_millis(45));
        }
        faults::plan(kind, seed).into_iter().for_each(|(at, fault)| world.post(at, Event::Fault(fault)));
        world.post(FAULTS_END, Event::FaultsEnd);
        world.post(recovered(), Event::Recovered);
        world.post(Time::ORIGIN, Event::Submit);
        world
    }

    /// Runs to the end, and panics when a guarantee breaks.
    pub(crate) fn run(mut self) -> Counts {
        let end = recovered() + END;
        while let Some(((at, _), event)) = self.events.pop_first().filter(|((at, _), _)| *at <= end) {
            self.now = at;
            self.counts.events += 1;
            assert!(self.counts.events < MOST_EVENTS, "at {at:?} the run does not get on");
            self.handle(event);
        }
        self.checkers.answers.finish();
        self.counts.epochs = self.checkers.epochs.count();
        (self.counts.ran, self.counts.retried) = (self.checkers.answers.ran, self.checkers.answers.retried);
        self.counts
    }

    fn post(&mut self, at: Time, event: Event) {
        self.posted += 1;
        self.events.insert((at, self.posted), event);
    }

    fn handle(&mut self, event: Event) {
        let Some(to) = event.to() else { return self.on_world(event) };
        let Some(&place) = self.places.get(&to) else { return };
        if let Some(backlog) = &mut self.nodes[place].backlog {
            return backlog.push(event);
        }
        let wake = matches!(event, Event::Wake { .. });
        if wake && self.now < self.nodes[place].wake_at {
            // It has been woken since, and will be again.
            return;
        }
        if self.verbose && !wake {
            eprintln!("{:?} {event:?}", self.now);
        }
        self.tell(place, event);
        self.settle(place);
    }

    /// Handles an event that concerns no single process.
    fn on_world(&mut self, event: Event) {
        if self.verbose {
            eprintln!("{:?} {event:?}", self.now);
        }
        match event {
            Event::Swap { from, swap } => self.on_swap(from, &swap),
            Event::Submit => self.submit(),
            Event::Fault(fault) => self.on_fault(fault),
            Event::Restart(place) => self.start(place),
            Event::Resume(place) => self.resume(place),
            Event::Mend { from, to } => self.network.mend(from, to),
            Event::StoreUp => self.store.down = false,
            Event::FaultsEnd => {
                self.network.mend_all();
                self.network.weather = Weather::CALM;
                self.store.unwell = 0;
            }
            Event::Recovered => self.on_recovered(),
            _ => unreachable!("{event:?} is for a process"),
        }
    }

    fn on_recovered(&self) {
        let mut commanded = Vec::new();
        for node in &self.nodes {
            if let Machine::Scheduler(scheduler, ..) = &node.machine
                && let Some(epoch) = scheduler.primary_epoch()
            {
                assert!(scheduler.all_reported(), "{:?} has not heard from all", node.process);
                let follows = |node: &&Node| matches!(&node.machine, Machine::Backend(it) if it.last().epoch == epoch);
                commanded.push(self.nodes.iter().filter(follows).count());
            }
        }
        let most = commanded.iter().copied().max().unwrap_or(0);
        self.checkers.recovery.due(self.now, commanded.len(), most, BACKENDS);
    }

    // Processes.

    fn start(&mut self, place: Place) {
        self.lives += 1;
        let process = ProcessId((place as u64) << 48 | self.lives);
        let now = self.now + self.nodes[place].offset;
        let machine = match place {
            _ if place < SCHEDULERS => {
                let peers = Peers { when: BTreeMap::new(), next_hello: now };
                Machine::Scheduler(Box::new(SchedulerMachine::new(now, process, TIMING)), Host::default(), peers)
            }
            _ if is_frontend(place) => Machine::Frontend(Box::new(Frontend::new(now, process))),
            _ => {
                self.post(self.now, Event::TryRead { to: process });
                Machine::Joining
            }
        };
        let node = &mut self.nodes[place];
        (node.process, node.machine, node.backlog, node.wake_at) = (process, machine, None, Time::NEVER);
        self.places.insert(process, place);
        self.settle(place);
    }

    fn until(&self, back: Nanos) -> Time {
        (self.now + back).min(FAULTS_END)
    }

    // The store.

    fn on_swap(&mut self, from: ProcessId, swap: &Swap) {
        let before = self.store.read().flatten();
        let Some(entry) = self.store.swap(swap) else { return };
        self.checkers.epochs.held(entry);
        self.counts.recognised += u64::from(before == Some(swap.next));
        self.counts.refused += u64::from(entry != swap.next);
        let cut = self.network.is_cut(STORE, (from.0 >> 48) as usize);
        if let Some(at) = self.store.reply(self.now).filter(|_| !cut) {
            self.post(at, Event::Held { to: from, entry });
        }
    }

    fn ask_store(&mut self, place: Place, from: ProcessId, swap: Swap) {
        if self.network.is_cut(place, STORE) {
            return;
        }
        // The request may be as slow as the reply: a swap takes effect long after its caller gave
        // up on it.
        if let Some(at) = self.store.reply(self.now) {
            self.post(at, Event::Swap { from, swap });
        }
    }

    fn try_read(&mut self, place: Place, to: ProcessId) {
        self.post(self.now + TIMING.store, Event::TryRead { to });
        if self.network.is_cut(place, STORE) || self.network.is_cut(STORE, place) {
            return;
        }
        if let Some(entry) = self.store.read()
            && let Some(at) = self.store.reply(self.now)
        {
            self.post(at, Event::Read { to, entry });
        }
    }

    // Requests.

    fn submit(&mut self) {
        let last = recovered() + END - LONGEST;
        let next = self.now + Nanos::from_micros(500 + below(&mut self.random, 9_000) as i64);
        if next < last {
            self.post(next, Event::Submit);
        }
        let place = SCHEDULERS + BACKENDS + below(&mut self.random, FRONTENDS as u64) as usize;
        let patience = Nanos::from_millis(20 + below(&mut self.random, 280) as i64);
        // With one fault at a time every request with enough time runs.
        let one_at_a_time = matches!(self.kind, Kind::Primaries | Kind::Backends | Kind::Pauses);
        let calm = self.now >= recovered() || one_at_a_time;
        let deadline = self.now + if calm || self.kind == Kind::Losses { LONGEST } else { patience };
        let node = &mut self.nodes[place];
        let offset = node.offset;
        let Machine::Frontend(frontend) = &mut node.machine else { return };
        if node.backlog.is_some() {
            return;
        }
        let mut out = Vec::new();
        let request = frontend.submit(self.now + offset, deadline + offset, &mut out);
        self.checkers.answers.submitted(request, deadline);
        if calm {
            self.checkers.recovery.submitted(request);
        }
        self.on_frontend(place, out);
        self.settle(place);
    }

    fn begin(&mut self, place: Place, batch: Batch) {
        self.checkers.begins.begun(place, batch);
        let lasts = Nanos::from_micros(1_000 + below(&mut self.random, 4_000) as i64);
        let node = &mut self.nodes[place];
        let stuck = std::mem::take(&mut node.sticks);
        let at = node.process;
        let end = if stuck { self.until(Nanos::from_millis(150)).max(self.now + lasts) } else { self.now + lasts };
        self.post(end, Event::Ended { at, batch });
    }

    // Inputs and outputs of the machines.

    fn tell(&mut self, place: Place, event: Event) {
        let node = &mut self.nodes[place];
        let now = self.now + node.offset;
        if let (Machine::Joining, Event::TryRead { to }) = (&node.machine, &event) {
            return self.try_read(place, *to);
        }
        match &mut node.machine {
            Machine::Scheduler(..) => self.tell_scheduler(place, now, event),
            Machine::Backend(_) => self.tell_backend(place, now, event),
            Machine::Frontend(frontend) => {
                let mut out = Vec::new();
                match event {
                    Event::Deliver { from, message, .. } => {
                        frontend.on_message(now, from, &message, &mut out);
                        self.counts.dropped += dropped(&message, &out);
                    }
                    Event::Wake { .. } => {
                        node.wake_at = Time::NEVER;
                        frontend.on_timer(now, &mut out);
                    }
                    _ => {}
                }
                self.on_frontend(place, out);
            }
            Machine::Joining => {
                if let Event::Read { entry, .. } = event {
                    let epoch = entry.map_or(Epoch::default(), |entry| entry.epoch);
                    node.machine = Machine::Backend(Box::new(Backend::new(now, epoch)));
                }
            }
            Machine::Down => unreachable!("who is down has no process"),
        }
    }

    fn tell_backend(&mut self, place: Place, now: Time, event: Event) {
        let node = &mut self.nodes[place];
        let Machine::Backend(backend) = &mut node.machine else { unreachable!("it was one") };
        let mut out = Vec::new();
        match event {
            Event::Deliver { from, message, .. } => {
                if matches!(message.body, Body::Claim { .. } | Body::Start { .. }) {
                    self.checkers.begins.latest(place, message.epoch);
                    self.counts.fenced += u64::from(message.epoch < backend.last().epoch);
                }
                if let Some(order) = backend.on_message(from, &message, &mut out) {
                    let holder = self.checkers.epochs.holder(order.0.epoch);
                    self.checkers.orders.accepted(place, from, holder, order);
                    if let Body::Start { members, .. } = &message.body {
                        let again = members.iter().filter(|wanted| !self.begun.insert(wanted.request)).count();
                        self.counts.begun_again += again as u64;
                    }
                }
            }
            Event::Ended { batch, .. } => backend.on_ended(now, batch, &mut out),
            Event::Wake { .. } => {
                node.wake_at = Time::NEVER;
                backend.on_timer(now, &mut out);
            }
            _ => {}
        }
        for action in out {
            match action {
                BackendAction::Greet(message) => self.greet(place, &message),
                BackendAction::Send { to, message } => self.send(place, to, message),
                BackendAction::Begin { batch } => self.begin(place, batch),
            }
        }
    }

    fn on_frontend(&mut self, place: Place, out: Vec<FrontendAction>) {
        let resumed = self.nodes[place].resumed;
        for action in out {
            match action {
                FrontendAction::Greet(message) => self.greet(place, &message),
                FrontendAction::Send { to, message } => self.send(place, to, message),
                FrontendAction::Deliver(answer) => {
                    self.checkers.answers.delivered(self.now, answer.request, answer.outcome, resumed);
                    self.checkers.recovery.delivered(self.now, answer.request, answer.outcome);
                }
            }
        }
    }

    fn greet(&mut self, place: Place, message: &Message) {
        for scheduler in (0..SCHEDULERS).filter(|&scheduler| scheduler != place) {
            self.send(place, self.nodes[scheduler].process, message.clone());
        }
    }

    fn send(&mut self, place: Place, to: ProcessId, message: Message) {
        let Some(&other) = self.places.get(&to) else { return };
        let from = self.nodes[place].process;
        for at in self.network.arrivals(self.now, place, other) {
            self.post(at, Event::Deliver { from, to, message: message.clone() });
        }
    }

    /// Schedules the machine's next wake-up.
    fn settle(&mut self, place: Place) {
        let node = &self.nodes[place];
        let wanted = match &node.machine {
            Machine::Scheduler(scheduler, _, peers) => scheduler.next_wakeup().min(peers.next_hello),
            Machine::Backend(backend) => backend.next_wakeup(),
            Machine::Frontend(frontend) => frontend.next_wakeup(),
            Machine::Joining | Machine::Down => return,
        };
        let at = (wanted + Nanos(-node.offset.0)).max(self.now);
        if at < node.wake_at {
            let to = node.process;
            self.nodes[place].wake_at = at;
            self.post(at, Event::Wake { to });
        }
    }
}

/// Returns the time from which everything must work.
fn recovered() -> Time {
    FAULTS_END + LAST_ARRIVAL + TIMING.recovery() + GONE
}

/// Returns the number of answers that came in vain.
fn dropped(message: &Message, out: &[FrontendAction]) -> u64 {
    let Body::Answers(answers) = &message.body else { return 0 };
    let delivered = out.iter().filter(|action| matches!(action, FrontendAction::Deliver(_))).count();
    (answers.len() - delivered) as u64
}
