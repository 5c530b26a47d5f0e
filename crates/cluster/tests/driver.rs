//! The whole hand-over over TCP on loopback, each process a thread: requests run, the primary ends, requests run again.
//!
//! Nothing here is timed: what is to come is waited for, and only that it never comes fails.

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_cluster::handover::driver::{
    BackendPart, Deliver, Execute, FrontendPart, Handle, Machine, Node, Schedule, SchedulerPart, Settings, Submit,
};
use ripieno_cluster::handover::store::{Entry, EpochStore, MemoryStore};
use ripieno_cluster::handover::{
    Admitted, Answer, Backend, BackendLimits, Epoch, Frontend, Full, Outcome, Process, RequestId, Role, Scheduler,
    SchedulerAction, SchedulerLimits, Stamp, Timing, Wanted,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Nobody is taken for gone because the machine is busy.
const TIMING: Timing = Timing { gone: Nanos::from_millis(30_000), ..Timing::SHARED_HOSTS };
const PATIENCE: Duration = Duration::from_secs(60);
const BACKENDS: u16 = 4;

/// One request a batch, on any backend that is idle.
#[derive(Default)]
struct Host {
    queue: VecDeque<Admitted>,
    loads: BTreeMap<Process, usize>,
}

impl Schedule for Host {
    fn on_action(&mut self, _now: Time, action: SchedulerAction) {
        match action {
            SchedulerAction::Admit(admitted) => self.queue.push_back(admitted),
            SchedulerAction::Withdraw(request) => self.queue.retain(|admitted| admitted.request != request),
            SchedulerAction::Load { backend, batches: Some(batches) } => drop(self.loads.insert(backend, batches)),
            SchedulerAction::Load { backend, batches: None } => drop(self.loads.remove(&backend)),
            SchedulerAction::Follow => *self = Host::default(),
            _ => {}
        }
    }

    fn decide(&mut self, now: Time, scheduler: &mut Scheduler, out: &mut Vec<SchedulerAction>) {
        let idle = self.loads.iter().find(|(_, batches)| **batches == 0).map(|(&backend, _)| backend);
        if let Some(backend) = idle
            && let Some(admitted) = self.queue.pop_front()
        {
            scheduler.start(now, backend, &[admitted.request], Time::NEVER, out);
        }
    }
}

/// Batches end as soon as they have begun.
struct Instantly {
    handle: Handle<(Stamp, Outcome)>,
    obeyed: Sender<Epoch>,
    last: Stamp,
}

impl Execute for Instantly {
    fn begin(&mut self, _now: Time, batch: Stamp, _members: Vec<Wanted>) {
        self.handle.order((batch, Outcome::Ran));
    }

    fn obeyed(&mut self, _now: Time, last: Stamp) {
        assert!(last > self.last, "{last:?} is obeyed after {:?}", self.last);
        if last.epoch > self.last.epoch {
            // Nobody listens at the end of the test.
            let _ = self.obeyed.send(last.epoch);
        }
        self.last = last;
    }
}

struct Client {
    answers: Sender<Answer>,
}

impl Deliver for Client {
    fn submitted(&mut self, _tag: u64, request: Result<RequestId, Full>) {
        request.expect("there is place");
    }

    fn delivered(&mut self, _now: Time, answer: Answer) {
        let _ = self.answers.send(answer);
    }
}

/// Processes of one test; each ordinal once.
fn settings(role: Role, ordinal: u16, listen: bool, dial: &[SocketAddr]) -> Settings {
    let me = Process::new(ordinal, role as u64 + 1);
    let listen = listen.then(|| "127.0.0.1:0".parse().expect("an address"));
    Settings { me, listen, dial: dial.to_vec(), redial: TIMING.hello, connections: 64 }
}

fn run<M: Machine + Send + 'static>(node: Node<M>) {
    thread::spawn(move || node.run().map(drop).expect("the node runs"));
}

fn scheduler(ordinal: u16, store: &MemoryStore) -> (SocketAddr, Handle<Entry>) {
    let settings = settings(Role::Scheduler, ordinal, true, &[]);
    let limits = SchedulerLimits { members: 64, requests: 1_000 };
    let scheduler = Scheduler::new(Time::ORIGIN, settings.me, TIMING, limits);
    let part = |handle| SchedulerPart::new(scheduler, Host::default(), Box::new(store.clone()), handle);
    let (node, handle) = Node::new(settings, part).expect("loopback listens");
    let address = node.address().expect("it listens");
    run(node);
    (address, handle)
}

fn backend(ordinal: u16, dial: &[SocketAddr], obeyed: Sender<Epoch>) {
    let limits = BackendLimits { running: 1, waiting: 1, answers: 100 };
    let part = |handle| {
        let backend = Backend::new(Time::ORIGIN, Epoch::default(), TIMING, limits);
        BackendPart::new(backend, Instantly { handle, obeyed, last: Stamp::default() })
    };
    run(Node::new(settings(Role::Backend, ordinal, false, dial), part).expect("a node").0);
}

fn frontend(dial: &[SocketAddr]) -> (SocketAddr, Handle<Submit>, Receiver<Answer>) {
    let settings = settings(Role::Frontend, 0, true, dial);
    let frontend = Frontend::new(Time::ORIGIN, settings.me, TIMING, 1_000);
    let (sender, answers) = channel();
    let part = |_| FrontendPart::new(frontend, Client { answers: sender });
    let (node, handle) = Node::new(settings, part).expect("loopback listens");
    let address = node.address().expect("it listens");
    run(node);
    (address, handle, answers)
}

/// Waits until all backends obey somebody of a later epoch than the one that is over.
fn commanded(obeyed: &Receiver<Epoch>, over: Epoch) -> Epoch {
    let mut heard = BTreeMap::<Epoch, u16>::new();
    loop {
        let epoch = obeyed.recv_timeout(PATIENCE).expect("somebody commands the backends");
        let count = heard.entry(epoch).or_default();
        *count += u16::from(epoch > over);
        if *count == BACKENDS {
            return epoch;
        }
    }
}

/// So many requests are each answered once, and have run.
fn all_run(frontend: &Handle<Submit>, answers: &Receiver<Answer>, count: u64) {
    (0..count).for_each(|tag| frontend.order(Submit { tag, model: ModelId(0), left: Nanos::from_millis(600_000) }));
    let mut seen: Vec<RequestId> = Vec::new();
    while seen.len() < count as usize {
        let answer = answers.recv_timeout(PATIENCE).expect("each request is answered");
        assert_eq!(answer.outcome, Outcome::Ran);
        assert!(!seen.contains(&answer.request), "{answer:?} comes twice");
        seen.push(answer.request);
    }
}

#[test]
fn a_spare_takes_over_and_requests_run_on() {
    let mut store = MemoryStore::default();
    let schedulers = [scheduler(0, &store), scheduler(1, &store)];
    let addresses = schedulers.each_ref().map(|(address, _)| *address);
    schedulers.iter().for_each(|(_, handle)| handle.dial(addresses.to_vec()));
    let (client, frontend, answers) = frontend(&addresses);
    let (sender, obeyed) = channel();
    let dial = [addresses[0], addresses[1], client];
    (0..BACKENDS).for_each(|ordinal| backend(ordinal, &dial, sender.clone()));

    let first = commanded(&obeyed, Epoch::default());
    all_run(&frontend, &answers, 50);
    let holder = store.read().expect("memory is there").expect("somebody reigns").holder;
    // Some requests are on their way when the primary ends.
    (0..50).for_each(|tag| frontend.order(Submit { tag, model: ModelId(0), left: Nanos::from_millis(600_000) }));
    schedulers[usize::from(holder.ordinal())].1.stop();
    assert!(commanded(&obeyed, first) > first);
    for _ in 0..50 {
        assert_eq!(answers.recv_timeout(PATIENCE).expect("each is answered").outcome, Outcome::Ran);
    }
    all_run(&frontend, &answers, 50);
}
