//! A backend that leaves ends the walks that have begun on it, and sends what its frontends still
//! have to receive.

use crate::common::*;
use crate::hanging::{Gate, Hanging};
use crate::walks;
use crate::walks::{OneProcess, Stream, Streamed};
use ripieno_base::{ModelId, Nanos};
use ripieno_cluster::plane::{ByteStream, Listener, Tcp, Transport};
use ripieno_cluster::{
    BackendModels, ClusterScheduler, InitialPlan, PlacementPlan, PlannedModels, PlannedSubCluster, SchedulerConfig,
};
use ripieno_model::Walk;
use ripieno_runtime::{DeviceSnapshot, DeviceState, Engine, Failure, HangBound, JobResult};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// More than a backend takes together.
const REQUESTS: usize = 40;

/// TCP whose connections to frontends can be held up.
struct HeldUp {
    scheduler: String,
    gate: Arc<Gate>,
}

struct HeldUpStream(Arc<dyn ByteStream>, Arc<Gate>);

impl ByteStream for HeldUpStream {
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize> {
        self.0.read(into, silence)
    }
    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.1.pass();
        self.0.write_all(bytes)
    }
    fn close(&self) {
        self.0.close();
    }
    fn peer(&self) -> Option<SocketAddr> {
        self.0.peer()
    }
}

impl Transport for HeldUp {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>> {
        let stream = Tcp.connect(address, within)?;
        if address == self.scheduler {
            return Ok(stream);
        }
        Ok(Arc::new(HeldUpStream(stream, Arc::clone(&self.gate))))
    }
    fn listen(&self, at: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        Tcp.listen(at)
    }
}

#[test]
fn the_last_outputs_of_a_backend_that_leaves_are_sent() {
    let scheduler = scheduler(1, anywhere(), "unified", HangBound::default());
    let (address, outputs, device) =
        (scheduler.address().to_string(), Arc::<Gate>::default(), Hanging::over(emulated()));
    let transport = Arc::new(HeldUp { scheduler: address.clone(), gate: Arc::clone(&outputs) });
    let models = [Served { slo: Nanos::from_millis(60_000), ..whole() }];
    let leaves = backend_over(transport, vec![address], &models, device.clone());
    let stays = backend(scheduler.address(), &models);
    let client = client(scheduler.address());
    let model = client.ready().model("whole");
    let engine = scheduler.engine().unwrap();
    until("both serve", || engine.device_metrics().len() == 2);
    device.set(true);
    let submit = |number| client.submit(number, model, rows(number, 1, 2)).is_ok();
    assert!((0..REQUESTS).all(submit));
    until("it runs a batch", || device.reached() > 0);
    // It has its inputs, so only outputs are held up.
    outputs.set(true);
    leaves.stop.leave();
    device.set(false);
    until("it has left", || engine.device_metrics().len() == 1);
    outputs.set(false);
    (0..REQUESTS).for_each(|_| drop(client.answers.recv_timeout(SAFETY).unwrap().1.unwrap()));
    leaves.thread.join().unwrap();
    stays.abort();
    client.frontend.close();
}

/// Tasks that a backend ends before it hangs.
const STEPS: usize = 2;

/// A request whose walk has more steps.
const LONG: usize = 5;

/// A scheduler, backends that hang after some steps of a walk, and a client.
struct Halfway {
    scheduler: ClusterScheduler,
    backends: Vec<(RunningBackend, Arc<Hanging>)>,
    client: Client,
}

impl Halfway {
    fn start(
        scheduler: ClusterScheduler,
        number: usize,
        start: fn(&[String], Arc<Hanging>) -> RunningBackend,
    ) -> Halfway {
        let address = [scheduler.address().to_string()];
        let begin = |_| {
            let hanging = Hanging::over(walks::cpu());
            hanging.hang_after(STEPS);
            (start(&address, Arc::clone(&hanging)), hanging)
        };
        let backends = (0..number).map(begin).collect();
        let client = client(scheduler.address());
        client.ready();
        Halfway { scheduler, backends, client }
    }

    /// Starts such a cluster, of backends whose models are their own.
    fn of(policy: &'static str, number: usize) -> Halfway {
        let scheduler = scheduler(1, anywhere(), policy, HangBound::default());
        let halfway = Halfway::start(scheduler, number, |at, hanging| walks::backend(at, hanging, &[Walk::Repeat]));
        until("all serve", || count(&halfway.engine(), DeviceState::Serving) == number);
        halfway
    }

    fn engine(&self) -> Engine {
        self.scheduler.engine().unwrap()
    }

    fn model(&self) -> ModelId {
        self.client.model(Walk::Repeat.name())
    }

    fn submit(&self) -> Stream {
        walks::stream(|job| assert!(self.client.frontend.submit(job).is_ok()), self.model(), Walk::Repeat, LONG)
    }

    /// Submits a request, and waits until its client has steps and its backend hangs. Returns it
    /// with the index of the backend.
    fn begin(&self) -> (Stream, usize) {
        let hangs = |(_, hanging): &(RunningBackend, Arc<Hanging>)| hanging.reached() > STEPS;
        let before: Vec<bool> = self.backends.iter().map(hangs).collect();
        let on = || self.backends.iter().zip(&before).position(|(backend, before)| !before && hangs(backend));
        let mut stream = self.submit();
        (0..STEPS).for_each(|_| stream.await_step());
        until("its backend hangs", || on().is_some());
        (stream, on().unwrap())
    }

    fn go_on(&self) {
        self.backends.iter().for_each(|(_, hanging)| hanging.set(false));
    }

    fn end(self) {
        self.client.frontend.close();
        until("nothing is left in the scheduler", || {
            self.scheduler.engines().iter().all(|engine| engine.unanswered() == 0)
        });
        self.backends.into_iter().for_each(|(backend, _)| backend.abort());
    }
}

fn count(engine: &Engine, state: DeviceState) -> usize {
    engine.device_metrics().iter().filter(|device: &&DeviceSnapshot| device.state == state).count()
}

/// Checks the steps and the answer of a request.
fn check(streamed: Streamed) {
    let right = OneProcess::start(1).streamed(Walk::Repeat, LONG);
    assert!(right.steps.len() > STEPS + 1);
    assert_eq!(streamed.answer.unwrap().outputs, right.answer.unwrap().outputs);
    assert_eq!(streamed.steps, right.steps);
}

fn is_outage(answer: &JobResult) -> bool {
    matches!(answer, Err(Failure::Outage { .. }))
}

fn a_stream_goes_on_on_a_backend_that_leaves(policy: &'static str) {
    let mut halfway = Halfway::of(policy, 2);
    let (begun, on) = halfway.begin();
    let (leaves, hanging) = halfway.backends.remove(on);
    leaves.stop.leave();
    until("it leaves", || count(&halfway.engine(), DeviceState::Leaving) == 1);
    // The other one has all newcomers.
    let given = hanging.given();
    halfway.go_on();
    check(halfway.submit().end());
    assert_eq!(hanging.given(), given);
    hanging.set(false);
    check(begun.end());
    leaves.thread.join().unwrap();
    until("it has left", || halfway.engine().device_metrics().len() == 1);
    halfway.end();
}

#[test]
fn a_stream_goes_on_on_a_backend_that_leaves_under_unified() {
    a_stream_goes_on_on_a_backend_that_leaves("unified");
}

#[test]
fn a_stream_goes_on_on_a_backend_that_leaves_under_each_policy_of_cells() {
    ["cellular", "late", "graph-merge", "bucketed", "lazy"]
        .into_iter()
        .for_each(a_stream_goes_on_on_a_backend_that_leaves);
}

#[test]
fn the_last_backend_that_leaves_ends_what_has_begun_there_and_nothing_else() {
    let mut halfway = Halfway::of("unified", 1);
    let (begun, _) = halfway.begin();
    let waits = halfway.submit();
    until("the scheduler has both", || halfway.engine().unanswered() == 2);
    let (leaves, hanging) = halfway.backends.remove(0);
    leaves.stop.leave();
    assert!(is_outage(&waits.end().answer), "it has not begun");
    hanging.set(false);
    check(begun.end());
    leaves.thread.join().unwrap();
    until("it has left", || halfway.engine().device_metrics().is_empty());
    halfway.end();
}

/// Starts a scheduler with two backends that run walks, and a third for another model. Returns it
/// with a stream on each of the two.
fn two_of_three(drain_timeout: Duration) -> (Halfway, Vec<Stream>) {
    let start = starts("unified", HangBound::default());
    let config = scheduler_config(1, anywhere(), start, InitialPlan::Given(plan(2)));
    let scheduler = ClusterScheduler::start(Arc::new(Tcp), SchedulerConfig { drain_timeout, ..config }).unwrap();
    let halfway = Halfway::start(scheduler, 3, planned);
    until("all serve", || serving(&halfway.scheduler) == [2, 1] && halfway.client.known.lock().unwrap().len() == 2);
    let streams = (0..2).map(|_| halfway.begin().0).collect();
    (halfway, streams)
}

/// Returns a plan in which this number of three backends has the model of the streams.
fn plan(devices: u32) -> PlacementPlan {
    let part = |walk: Walk, devices| PlannedSubCluster { models: BTreeSet::from([walk.name().to_owned()]), devices };
    let sub_clusters = vec![part(Walk::Repeat, devices), part(Walk::Stacked, 3 - devices)];
    PlacementPlan { sub_clusters, ..PlacementPlan::default() }
}

/// Starts a backend that follows a plan.
fn planned(schedulers: &[String], executor: Arc<Hanging>) -> RunningBackend {
    const NAMES: [Walk; 2] = [Walk::Repeat, Walk::Stacked];
    let (models, next) = (Arc::new(BackendModels::default()), AtomicU32::new(0));
    let (engine, offered) = (Arc::clone(&executor), Arc::clone(&models));
    let change = move |name: &str, unload: bool| {
        let walk = NAMES.into_iter().find(|walk| walk.name() == name).ok_or("there is no such model")?;
        let number = next.fetch_add(1, Ordering::SeqCst);
        // A backend that moves keeps what it has.
        if unload { Ok(()) } else { offered.add(number, walks::loaded(walk, &*engine)) }
    };
    let sizes = NAMES.map(|walk| (walk.name().to_owned(), 1_000_000)).into_iter().collect::<BTreeMap<_, _>>();
    let follows = PlannedModels::start(Arc::clone(&models), sizes, Box::new(change)).unwrap();
    backend_following(schedulers.to_vec(), models, executor, follows)
}

fn serving(scheduler: &ClusterScheduler) -> Vec<usize> {
    scheduler.engines().iter().map(|engine| count(engine, DeviceState::Serving)).collect()
}

#[test]
fn a_stream_goes_on_on_a_backend_that_moves() {
    let (halfway, streams) = two_of_three(SAFETY);
    halfway.scheduler.set_plan(plan(1)).unwrap();
    until("one of them moves", || count(&halfway.engine(), DeviceState::Leaving) == 1);
    halfway.go_on();
    streams.into_iter().for_each(|stream| check(stream.end()));
    until("it has moved", || serving(&halfway.scheduler) == [1, 2]);
    halfway.end();
}

#[test]
fn a_backend_that_moves_is_not_waited_for_without_end() {
    let (halfway, streams) = two_of_three(Duration::ZERO);
    halfway.scheduler.set_plan(plan(1)).unwrap();
    until("one of them is given up", || halfway.engine().device_metrics().len() == 1);
    halfway.go_on();
    let (lost, right): (Vec<_>, Vec<_>) = streams.into_iter().map(Stream::end).partition(|of| is_outage(&of.answer));
    assert!(lost.len() == 1 && lost[0].steps.len() <= STEPS + 1);
    right.into_iter().for_each(check);
    until("it has moved", || serving(&halfway.scheduler) == [1, 2]);
    halfway.end();
}
