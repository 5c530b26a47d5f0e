//! Two schedulers and one epoch: whichever ends, and when, what runs goes on, each request has one answer, and no backend
//! obeys two.

use crate::common::{Client, DEPTH, SAFETY, Served, anywhere, asking, obeying, rows, starts, until, whole};
use parking_lot::Mutex;
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_cluster::handover::store::{EpochStore, MemoryStore};
use ripieno_cluster::handover::{Epoch, Process, Stamp, Timing};
use ripieno_cluster::plane::{
    Ended, Greeting, Link, LinkBounds, Listener, Message, Reader, Report, Role, Run, RunMember, Stream, Tcp, Transport,
    welcome,
};
use ripieno_cluster::{OnOrder, Scheduler, SchedulerConfig};
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Origin};
use ripieno_runtime::{Answered, HangBound};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// TCP that can be cut: then nothing passes on the connections that were made through it, and none is made. What was on
/// its way comes when it is whole again, as with TCP.
#[derive(Clone, Default)]
struct Cut(Arc<AtomicBool>);

impl Cut {
    fn set(&self, cut: bool) {
        self.0.store(cut, Ordering::SeqCst);
    }

    fn is(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until it is whole.
    fn pass(&self, silence: Duration) -> io::Result<()> {
        let begun = Instant::now();
        while self.is() {
            if begun.elapsed() > silence {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::yield_now();
        }
        Ok(())
    }
}

struct CutStream(Arc<dyn Stream>, Cut);
struct CutListener(Arc<dyn Listener>, Cut);

impl Stream for CutStream {
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize> {
        let read = self.0.read(into, silence)?;
        self.1.pass(silence).map(|()| read)
    }
    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.1.pass(SAFETY)?;
        self.0.write_all(bytes)
    }
    fn close(&self) {
        self.0.close();
    }
    fn peer(&self) -> Option<SocketAddr> {
        self.0.peer()
    }
}

impl Listener for CutListener {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }
    fn accept(&self) -> io::Result<Option<Arc<dyn Stream>>> {
        let wrap = |stream| Arc::new(CutStream(stream, self.1.clone())) as Arc<dyn Stream>;
        Ok(self.0.accept()?.map(wrap))
    }
    fn close(&self) {
        self.0.close();
    }
}

impl Transport for Cut {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn Stream>> {
        self.pass(within)?;
        Ok(Arc::new(CutStream(Tcp.connect(address, within)?, self.clone())))
    }
    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        Ok(Arc::new(CutListener(Tcp.listen(address)?, self.clone())))
    }
}

/// What one backend has obeyed, in order.
type Obeyed = Arc<Mutex<Vec<(Stamp, Process)>>>;

struct Cluster {
    cuts: [Cut; 2],
    schedulers: [Option<Scheduler>; 2],
    store: MemoryStore,
    backends: Vec<(crate::common::RunningBackend, Obeyed)>,
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
                start: starts("deferred", HangBound::default()),
                on_serving: Box::new(|_| {}),
            };
            Some(Scheduler::start(Arc::new(cuts[at].clone()), config).unwrap())
        };
        let schedulers = [scheduler(0), scheduler(1)];
        let backend = |_| {
            let obeyed = Obeyed::default();
            let writes = Arc::clone(&obeyed);
            let on_order: OnOrder = Arc::new(move |stamp, holder, _| writes.lock().push((stamp, holder)));
            let engine = Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH));
            (obeying(addresses.clone(), models, engine, Some(on_order)), obeyed)
        };
        let backends = (0..BACKENDS).map(backend).collect();
        let client = asking(addresses.clone());
        let cluster = Cluster { cuts, schedulers, store, backends, client };
        cluster.client.ready();
        until("all are connected to both", || cluster.commands_all(0));
        cluster
    }

    /// Whether all backends obey a claim of a later epoch than this.
    fn commands_all(&self, over: u64) -> bool {
        let last = |obeyed: &Obeyed| obeyed.lock().last().map_or(0, |(stamp, _)| stamp.epoch.0);
        self.backends.iter().all(|(_, obeyed)| last(obeyed) > over)
    }

    fn epoch(&self) -> u64 {
        self.store.clone().read().unwrap().map_or(0, |entry| entry.epoch.0)
    }

    /// Which of them is the primary, and is not cut off.
    fn primary(&self) -> usize {
        let is_primary =
            |at: &usize| self.schedulers[*at].as_ref().is_some_and(Scheduler::is_primary) && !self.cuts[*at].is();
        until("there is a primary", || (0..2).any(|at| is_primary(&at)));
        (0..2).find(is_primary).unwrap()
    }

    /// Submits requests, does something in their midst, and waits until each has one answer, the right one.
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
            let Answered { outputs, .. } = answer.unwrap_or_else(|failure| panic!("request {number}: {failure}"));
            assert_eq!(outputs[0].data, rows(number, 1 + number % 6, 2)[0].data, "of request {number}");
        }
        assert!(self.client.answers.try_recv().is_err(), "more answers than requests");
    }

    /// Ends all, and looks at what was obeyed: no backend went back, and each epoch was one scheduler's.
    fn end(self) {
        self.client.frontend.close();
        let mut holders = BTreeMap::new();
        for (backend, obeyed) in self.backends {
            backend.stop.cut();
            backend.thread.join().unwrap();
            let obeyed = obeyed.lock();
            assert!(obeyed.is_sorted_by_key(|(stamp, _)| *stamp), "{obeyed:?}");
            for (stamp, holder) in obeyed.iter() {
                assert_eq!(holders.entry(stamp.epoch).or_insert(*holder), holder, "{:?} is of two", stamp.epoch);
            }
        }
        assert!(holders.len() > 1, "nobody took over");
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
fn a_primary_that_is_cut_off_is_obeyed_by_nobody_once_another_reigns_and_is_a_spare_when_it_is_back() {
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

/// A scheduler that says what the test has it say.
struct Played {
    link: Arc<Link>,
    reader: Reader,
}

impl Played {
    fn accept(listener: &dyn Listener) -> Played {
        let stream = listener.accept().unwrap().unwrap();
        welcome(&*stream, Greeting::new(Role::Scheduler, 0), &[Role::Backend]).unwrap();
        let link = Link::start(Arc::clone(&stream), LinkBounds::CONTROL, "test").unwrap();
        Played { link, reader: Reader::new(stream, SAFETY) }
    }

    /// What the backend says next that is more than that it is there.
    fn hears(&mut self) -> Message {
        loop {
            match self.reader.read().unwrap() {
                Message::Here | Message::Offer { .. } => {}
                message => return message,
            }
        }
    }

    fn claims(&mut self, epoch: u64, number: u64) -> Message {
        let stamp = Stamp { epoch: Epoch(epoch), number };
        self.link.send(&Message::Claim { stamp, holder: Process(epoch) });
        self.hears()
    }
}

#[test]
fn a_backend_obeys_the_latest_claim_only() {
    let listeners = [(); 2].map(|()| Tcp.listen(anywhere()).unwrap());
    let engine = Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH));
    let schedulers = listeners.iter().map(|listener| listener.address().to_string()).collect();
    let backend = obeying(schedulers, &models(1), engine, None);
    let [mut old, mut new] = listeners.each_ref().map(|listener| Played::accept(&**listener));
    let orders = |played: &Played, task: u32| {
        played.link.send(&Message::Open(1));
        played.link.send(&Message::Attach(ModelId(0), 0));
        let (slot, walk, rows, length) = (RequestSlot(task), 1, 1, 1);
        // Nobody has told of this frontend: its rows cannot be had.
        let origin = Some(Origin { frontend: 9, request: 1, first_row: 0 });
        let members = vec![RunMember { slot, rows, length, walk, left_ns: None, origin }];
        let (model, block, lane, length, wait_ns) = (ModelId(0), BlockId(0), LaneId(0), 1, 0);
        played.link.send(&Message::Run(Run { task: TaskId(task), model, block, lane, length, wait_ns, members }));
    };
    let reported = |message: Message, epoch: u64| {
        let Message::Report(Report { stamp, held, .. }) = message else { panic!("{message:?}") };
        assert!(stamp.epoch == Epoch(epoch) && held.is_empty());
    };
    reported(old.claims(1, 4), 1);
    orders(&old, 1);
    assert!(matches!(old.hears(), Message::Ended(Ended { task: TaskId(1), .. })));
    reported(new.claims(2, 1), 2);
    orders(&old, 2);
    for _ in 0..3 {
        assert!(matches!(old.hears(), Message::Fenced(Epoch(2))), "of each order");
    }
    assert!(matches!(old.claims(1, 5), Message::Fenced(Epoch(2))));
    orders(&new, 1);
    assert!(matches!(new.hears(), Message::Ended(Ended { task: TaskId(1), .. })));
    backend.stop.cut();
    backend.thread.join().unwrap();
}
