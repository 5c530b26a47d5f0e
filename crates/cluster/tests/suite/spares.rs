//! Two schedulers with one epoch store: whichever fails, and whenever, running work goes on, each
//! request has one answer, and no backend follows two schedulers.

use crate::common::{
    Client, DEPTH, RunningBackend, SAFETY, Served, anywhere, asking, backend_with, emulated, rows, starts, until, whole,
};
use crate::hanging::Hanging;
use parking_lot::Mutex;
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_cluster::handover::store::{EpochStore, MemoryStore};
use ripieno_cluster::handover::{Epoch, ProcessId, Stamp, Timing};
use ripieno_cluster::plane::{
    ByteStream, Handshake, LinkBounds, Listener, LoadCall, Message, MessageReader, PeerLink, Role, RunMember, RunTask,
    RunningReport, TaskEnd, Tcp, Transport, accept_handshake,
};
use ripieno_cluster::{ClusterScheduler, InitialPlan, OnOrder, SchedulerConfig};
use ripieno_executor::{EmulatedEngine, EmulatedOptions, RemoteRows};
use ripieno_runtime::{HangBound, JobOutput};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// TCP that can be cut: then nothing passes on its connections, and no new one is made. Bytes in
/// transit arrive when the cut ends, as with TCP.
#[derive(Clone, Default)]
struct Cut(Arc<AtomicBool>);

impl Cut {
    fn set(&self, cut: bool) {
        self.0.store(cut, Ordering::SeqCst);
    }

    fn is(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until the cut ends.
    fn pass(&self, silence: Duration) -> io::Result<()> {
        let begun = Instant::now();
        while self.is() {
            if begun.elapsed() > silence {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        Ok(())
    }
}

struct CutListener(Arc<dyn Listener>, Cut);

impl Cut {
    /// Returns a connection of its own to relay threads, which pass bytes to and from `stream`
    /// while there is no cut.
    fn relay(&self, stream: Arc<dyn ByteStream>) -> io::Result<Arc<dyn ByteStream>> {
        let listener = Tcp.listen(anywhere())?;
        let near = Tcp.connect(&listener.address().to_string(), SAFETY)?;
        let far = listener.accept()?.ok_or(io::ErrorKind::NotConnected)?;
        for (from, to) in [(Arc::clone(&stream), Arc::clone(&far)), (far, stream)] {
            let cut = self.clone();
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(read @ 1..) = from.read(&mut bytes, SAFETY) {
                    if cut.pass(SAFETY).and_then(|()| to.write_all(&bytes[..read])).is_err() {
                        break;
                    }
                }
                from.close();
                to.close();
            });
        }
        Ok(near)
    }
}

impl Listener for CutListener {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }
    fn accept(&self) -> io::Result<Option<Arc<dyn ByteStream>>> {
        self.0.accept()?.map(|stream| self.1.relay(stream)).transpose()
    }
    fn close(&self) {
        self.0.close();
    }
}

impl Transport for Cut {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>> {
        self.pass(within)?;
        self.relay(Tcp.connect(address, within)?)
    }
    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        Ok(Arc::new(CutListener(Tcp.listen(address)?, self.clone())))
    }
}

/// The claims that one backend has accepted, in order.
type AcceptedClaims = Arc<Mutex<Vec<(Stamp, ProcessId)>>>;

struct Cluster {
    cuts: [Cut; 2],
    schedulers: [Option<ClusterScheduler>; 2],
    store: MemoryStore,
    backends: Vec<(crate::common::RunningBackend, AcceptedClaims)>,
    client: Client,
}

const BACKENDS: usize = 3;

impl Cluster {
    fn start(models: &[Served]) -> Cluster {
        let free: [TcpListener; 2] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let listen = free.each_ref().map(|listener| listener.local_addr().unwrap());
        drop(free);
        let addresses: Vec<String> = listen.iter().map(SocketAddr::to_string).collect();
        let (store, cuts) = (MemoryStore::default(), <[Cut; 2]>::default());
        let scheduler = |at: usize| {
            let config = SchedulerConfig {
                listen: listen[at],
                schedulers: addresses.clone(),
                store: Box::new(store.clone()),
                timing: Timing::SHARED_HOSTS,
                plan: InitialPlan::Whole,
                drain_timeout: SAFETY,
                start: starts("deferred", HangBound::default()),
                on_serving: Box::new(|_| {}),
            };
            Some(ClusterScheduler::start(Arc::new(cuts[at].clone()), config).unwrap())
        };
        let schedulers = [scheduler(0), scheduler(1)];
        let backend = |_| {
            let accepted = AcceptedClaims::default();
            let writes = Arc::clone(&accepted);
            let on_order: OnOrder = Arc::new(move |stamp, holder, _| writes.lock().push((stamp, holder)));
            let engine = Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH));
            (backend_with(addresses.clone(), models, engine, Some(on_order)), accepted)
        };
        let backends = (0..BACKENDS).map(backend).collect();
        let client = asking(addresses.clone());
        let cluster = Cluster { cuts, schedulers, store, backends, client };
        cluster.client.ready();
        until("all are connected to both", || cluster.commands_all(0));
        cluster
    }

    /// Returns true if all backends follow a claim of a later epoch than this.
    fn commands_all(&self, over: u64) -> bool {
        let last = |accepted: &AcceptedClaims| accepted.lock().last().map_or(0, |(stamp, _)| stamp.epoch.0);
        self.backends.iter().all(|(_, accepted)| last(accepted) > over)
    }

    fn epoch(&self) -> u64 {
        self.store.clone().read().unwrap().map_or(0, |entry| entry.epoch.0)
    }

    /// Returns the index of the primary that is not cut off.
    fn primary(&self) -> usize {
        let is_primary = |at: &usize| {
            self.schedulers[*at].as_ref().is_some_and(ClusterScheduler::is_primary) && !self.cuts[*at].is()
        };
        until("there is a primary", || (0..2).any(|at| is_primary(&at)));
        (0..2).find(is_primary).unwrap()
    }

    /// Submits requests, runs `then` half-way, and waits until each has one answer, the right one.
    fn drive(&self, requests: usize, then: impl FnOnce()) {
        let (id, mut then) = (self.client.model("m"), Some(then));
        for number in 0..requests {
            if number == requests / 2 {
                then.take().into_iter().for_each(|then| then());
            }
            self.client.submit(number, id, rows(number, 1 + number % 6, 2)).unwrap();
        }
        let mut seen = BTreeSet::new();
        for _ in 0..requests {
            let (number, answer) = self.client.answers.recv_timeout(SAFETY).expect("each has an answer");
            assert!(seen.insert(number), "request {number} was answered twice");
            let JobOutput { outputs, .. } = answer.unwrap_or_else(|failure| panic!("request {number}: {failure}"));
            assert_eq!(outputs[0].data, rows(number, 1 + number % 6, 2)[0].data, "of request {number}");
        }
        assert!(self.client.answers.try_recv().is_err(), "more answers than requests");
    }

    /// Ends all, and checks the accepted claims: no backend went back, and each epoch had one
    /// holder.
    fn end(self) {
        self.client.frontend.close();
        let mut holders = BTreeMap::new();
        for (backend, accepted) in self.backends {
            backend.abort();
            let accepted = accepted.lock();
            assert!(accepted.is_sorted_by_key(|(stamp, _)| *stamp), "{accepted:?}");
            for (stamp, holder) in accepted.iter() {
                assert_eq!(holders.entry(stamp.epoch).or_insert(*holder), holder, "{:?} is of two", stamp.epoch);
            }
        }
        assert!(holders.len() > 1, "no other scheduler took over");
    }
}

fn models(blocks: usize) -> [Served; 1] {
    let walk = if blocks == 1 { ripieno_model::Walk::Whole } else { ripieno_model::Walk::Chain };
    [Served { name: "m", walk, blocks, ..whole() }]
}

#[test]
fn a_spare_takes_over_and_no_request_is_lost() {
    for blocks in [1, 3] {
        let mut cluster = Cluster::start(&models(blocks));
        let (primary, epoch) = (cluster.primary(), cluster.epoch());
        let ends = Mutex::new(cluster.schedulers[primary].take());
        cluster.drive(400, || drop(ends.lock().take()));
        assert!(cluster.epoch() > epoch && cluster.commands_all(epoch));
        cluster.drive(100, || {});
        cluster.end();
    }
}

#[test]
fn a_primary_that_is_cut_off_is_replaced_and_returns_as_a_spare() {
    let cluster = Cluster::start(&models(1));
    let (primary, epoch) = (cluster.primary(), cluster.epoch());
    cluster.drive(400, || cluster.cuts[primary].set(true));
    until("the other commands all", || cluster.commands_all(epoch));
    let both = cluster.schedulers.iter().flatten().filter(|scheduler| scheduler.is_primary()).count();
    assert_eq!(both, 2, "who is cut off does not know");
    cluster.drive(100, || cluster.cuts[primary].set(false));
    until("it has heard of the other", || {
        cluster.schedulers.iter().flatten().filter(|scheduler| scheduler.is_primary()).count() == 1
    });
    cluster.drive(100, || {});
    cluster.end();
}

/// A scheduler that sends what the test chooses.
struct Played {
    link: Arc<PeerLink>,
    reader: MessageReader,
}

impl Played {
    fn accept(listener: &dyn Listener) -> Played {
        let stream = listener.accept().unwrap().unwrap();
        accept_handshake(&*stream, Handshake::new(Role::Scheduler, 0), &[Role::Backend]).unwrap();
        let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "test").unwrap();
        Played { link, reader: MessageReader::new(stream, SAFETY) }
    }

    /// Returns the backend's next message that is not a keep-alive.
    fn hears(&mut self) -> Message {
        loop {
            match self.reader.read().unwrap() {
                Message::KeepAlive | Message::RegisterBackend { .. } => {}
                message => return message,
            }
        }
    }

    fn claims(&mut self, epoch: u64, number: u64) -> Message {
        let stamp = Stamp { epoch: Epoch(epoch), number };
        self.link.send(&Message::Claim { stamp, holder: ProcessId(epoch) });
        self.hears()
    }

    /// Orders the first task of a session, of one row that frontend 9 has.
    fn orders(&self, task: u32) {
        self.link.send(&Message::OpenDevice(1, 0));
        self.link.send(&Message::Attach(ModelId(0), 0));
        self.runs(task, Some(RemoteRows { frontend: 9, request: 1, first_row: 0 }));
    }

    /// Orders a task of one row, which the device has if no frontend has it.
    fn runs(&self, task: u32, origin: Option<RemoteRows>) {
        let (slot, walk, rows, length) = (RequestSlot(task), 1, 1, 1);
        let members = vec![RunMember { slot, rows, length, node: 0, stream: false, walk, left_ns: None, origin }];
        let (model, block, lane, length, wait_ns) = (ModelId(0), BlockId(0), LaneId(0), 1, 0);
        let task = RunTask { task: TaskId(task), model, block, lane, length, wait_ns, members };
        self.link.send(&Message::RunTask(task));
    }
}

/// Starts a backend of two schedulers that the test plays.
fn backend_of_two() -> (RunningBackend, [Played; 2]) {
    let listeners = [(); 2].map(|()| Tcp.listen(anywhere()).unwrap());
    let engine = Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH));
    let schedulers = listeners.iter().map(|listener| listener.address().to_string()).collect();
    let backend = backend_with(schedulers, &models(1), engine, None);
    (backend, listeners.each_ref().map(|listener| Played::accept(&**listener)))
}

#[test]
fn a_frontend_that_one_scheduler_has_lost_stays_with_the_other() {
    let (backend, [mut primary, mut spare]) = backend_of_two();
    let frontend = Tcp.listen(anywhere()).unwrap();
    let announced = || Message::AddFrontend(9, frontend.address().to_string());
    primary.link.send(&announced());
    primary.claims(1, 1);
    spare.link.send(&announced());
    assert!(matches!(spare.claims(0, 1), Message::Fenced(_)), "both have announced it");
    primary.link.send(&Message::RemoveFrontend(9));
    assert!(matches!(primary.claims(1, 2), Message::Report(_)), "the primary has lost it");
    assert!(matches!(spare.claims(2, 1), Message::Report(_)));
    spare.orders(1);
    let stream = frontend.accept().unwrap().unwrap();
    accept_handshake(&*stream, Handshake::new(Role::Frontend, 0), &[Role::Backend]).unwrap();
    let mut reader = MessageReader::new(stream, SAFETY);
    let mut messages = std::iter::from_fn(|| reader.read().ok());
    let pulled = messages.find(|message| !matches!(message, Message::KeepAlive));
    assert!(matches!(pulled, Some(Message::Pull { request: 1, .. })), "{pulled:?}");
    backend.abort();
}

#[test]
fn a_backend_follows_only_the_latest_claim() {
    let (backend, [mut old, mut new]) = backend_of_two();
    // No frontend was announced: the rows of tasks cannot be fetched.
    let reported = |message: Message, epoch: u64| {
        let Message::Report(RunningReport { stamp, held, .. }) = message else { panic!("{message:?}") };
        assert!(stamp.epoch == Epoch(epoch) && held.is_empty());
    };
    reported(old.claims(1, 4), 1);
    old.orders(1);
    assert!(matches!(old.hears(), Message::TaskEnd(TaskEnd { task: TaskId(1), .. })));
    reported(new.claims(2, 1), 2);
    old.orders(2);
    for _ in 0..3 {
        assert!(matches!(old.hears(), Message::Fenced(Epoch(2))), "of each order");
    }
    assert!(matches!(old.claims(1, 5), Message::Fenced(Epoch(2))));
    new.orders(1);
    assert!(matches!(new.hears(), Message::TaskEnd(TaskEnd { task: TaskId(1), .. })));
    backend.abort();
}

#[test]
fn a_task_starts_once_the_one_before_it_is_withdrawn() {
    let [listener, frontend] = [(); 2].map(|()| Tcp.listen(anywhere()).unwrap());
    let device = Hanging::over(emulated());
    device.set(true);
    let backend = backend_with(vec![listener.address().to_string()], &models(1), device.clone(), None);
    let mut scheduler = Played::accept(&*listener);
    scheduler.link.send(&Message::AddFrontend(9, frontend.address().to_string()));
    assert!(matches!(scheduler.claims(1, 1), Message::Report(_)));
    // The frontend never sends the row of the first.
    scheduler.orders(1);
    scheduler.runs(2, None);
    scheduler.link.send(&Message::CancelTask(TaskId(1)));
    assert!(matches!(scheduler.hears(), Message::TaskEnd(TaskEnd { task: TaskId(1), .. })));
    // The backend applies orders one after another, so the answer to this one comes last.
    let name = "m".to_owned();
    scheduler.link.send(&Message::LoadCall(LoadCall { call: 1, unload: false, name }));
    assert!(matches!(scheduler.hears(), Message::LoadCallEnd(1, _)));
    assert_eq!(device.given(), 1, "the second one runs");
    device.set(false);
    backend.abort();
}
