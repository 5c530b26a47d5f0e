//! A cluster on loopback, in one process: roles with real connections, and clients that count their
//! answers.

use bytes::Bytes;
use ripieno_base::{ModelId, Nanos};
use ripieno_cluster::handover::store::{AloneStore, MemoryStore};
use ripieno_cluster::handover::{Epoch, Timing};
use ripieno_cluster::plane::{Tcp, Transport};
use ripieno_cluster::{
    Backend, BackendModel, BackendModels, ClusterScheduler, Frontend, FrontendConfig, InitialPlan, ModelCalls,
    ModelDescription, OfferedModel, OnOrder, PlannedModels, SchedulerConfig, StartEngine, StartedEngine, StopSignal,
    TensorDescription, encode_offers,
};
use ripieno_executor::{
    BlockSource, EmulatedEngine, EmulatedOptions, Executor, InputLength, LoadedModel, ModelSource, OutputLength, Tensor,
};
use ripieno_model::{Block, DataType, DropRule, Model, Profile, TensorSpec, Walk};
use ripieno_policies::{build, find};
use ripieno_runtime::{Engine, EngineConfig, Failure, HangBound, Job, JobResult, ServedModel};
use ripieno_sched::{Limits, Needs, Options, Setup};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A generous timeout: only a hang takes so long.
pub(crate) const SAFETY: Duration = Duration::from_secs(60);
pub(crate) const MAX_BATCH: usize = 4;
pub(crate) const DEPTH: usize = Limits::MOST_DEPTH;

/// A model whose emulated devices return its input, and its serving options.
pub(crate) struct Served {
    pub(crate) name: &'static str,
    pub(crate) walk: Walk,
    pub(crate) blocks: usize,
    /// The longest request, if requests differ in length.
    pub(crate) longest: Option<u32>,
    pub(crate) profile: Profile,
    pub(crate) slo: Nanos,
    pub(crate) answer_late: bool,
}

/// Returns a whole model of 2 ms a batch, whose late requests are answered.
pub(crate) fn whole() -> Served {
    let profile = Profile::linear(0.1, 2.0, MAX_BATCH).unwrap();
    let slo = Nanos::from_millis(200);
    Served { name: "whole", walk: Walk::Whole, blocks: 1, longest: None, profile, slo, answer_late: true }
}

impl Served {
    fn source(&self) -> ModelSource {
        let shape = if self.longest.is_some() { vec![-1, -1] } else { vec![-1, 2] };
        let spec = |name: &str| TensorSpec { name: name.to_owned(), datatype: DataType::Uint8, shape: shape.clone() };
        let names = (0..self.blocks).map(|at| format!("block{at}"));
        let block = |name: String| BlockSource { profile: Some(self.profile.clone()), ..BlockSource::new(name) };
        let blocks = names.map(block).collect();
        let mut source = ModelSource::new(self.name, blocks, MAX_BATCH);
        (source.inputs, source.outputs) = (vec![spec("x")], vec![spec("x")]);
        if let Some(longest) = self.longest {
            let (tensor, dim) = ("x".to_owned(), 1);
            source.lengths.inputs = vec![InputLength { tensor: tensor.clone(), dim, pad: 0.0 }];
            source.lengths.outputs = vec![OutputLength::new(tensor, dim)];
            source.max_length = longest;
        }
        source
    }

    fn model(&self) -> Model {
        let blocks = (0..self.blocks).map(|at| Block::new(format!("block{at}"), self.profile.clone())).collect();
        let drop = self.answer_late.then_some(DropRule::Never);
        Model { blocks, walk: self.walk, drop, ..Model::whole(self.name, self.profile.clone(), self.slo) }
    }

    /// Returns what a backend with only this model sends.
    pub(crate) fn offered(&self) -> Bytes {
        let loaded = EmulatedEngine::new(EmulatedOptions::default()).load(&self.source()).unwrap();
        encode_offers(&[OfferedModel { number: 0, superseded: false, description: self.description(&*loaded) }]).into()
    }

    /// Loads the model of these contents, as a backend's process does.
    pub(crate) fn loaded(&self, executor: &dyn Executor, digest: &str) -> BackendModel {
        let loaded = executor.load(&self.source()).unwrap();
        BackendModel {
            description: ModelDescription { digest: digest.to_owned(), ..self.description(&*loaded) },
            loaded,
        }
    }

    fn description(&self, loaded: &dyn LoadedModel) -> ModelDescription {
        let described = described(self.name, "emulated", loaded, self.model());
        ModelDescription { answer_late: self.answer_late, ..described }
    }
}

/// Describes a loaded model as a backend's process does.
pub(crate) fn described(name: &str, platform: &str, loaded: &dyn LoadedModel, model: Model) -> ModelDescription {
    let specs = |specs: &[TensorSpec]| specs.iter().map(TensorDescription::of).collect();
    ModelDescription {
        name: name.to_owned(),
        version: "1".to_owned(),
        digest: String::new(),
        platform: platform.to_owned(),
        inputs: specs(loaded.inputs()),
        outputs: specs(loaded.outputs()),
        answers: loaded.outputs().iter().map(|spec| spec.name.clone()).collect(),
        batched: loaded.batched(),
        lengths: loaded.lengths().map(|lengths| (lengths.max, lengths.dims.clone())),
        model,
        max_queue: Some(1 << 14),
        max_queued_work: None,
        answer_late: true,
        slo_origin: "slo_ms".to_owned(),
        labels: Default::default(),
        streams: false,
        walks: loaded.walk_shape().cloned(),
    }
}

/// Returns a callback that starts an engine with this policy.
pub(crate) fn starts(policy: &'static str, hang: HangBound) -> StartEngine {
    starts_planning(policy, hang, None)
}

/// Returns a callback that starts an engine whose policy plans with this quantile of the measured
/// delays.
pub(crate) fn starts_planning(policy: &'static str, hang: HangBound, delay_permille: Option<u32>) -> StartEngine {
    Box::new(move || {
        let needs = find(policy).map_err(|error| error.to_string())?.needs(&Options::new());
        let depth = needs.depth.max(1 + usize::from(delay_permille.is_some()));
        let limits = Needs { depth, ..needs }.served(8, 4096);
        let limits = Limits { nodes: limits.nodes.min(1 << 14), ..limits };
        let setup = Setup { models: Vec::new(), devices: 0, limits };
        let scheduler = build(policy, &setup, &Options::new()).map_err(|error| error.to_string())?;
        let config = EngineConfig { hang, ..EngineConfig::new(scheduler, setup, Vec::new()) };
        let engine = Engine::start(config).map_err(|error| error.to_string())?;
        Ok(StartedEngine { engine, depth: limits.depth, delay_permille })
    })
}

pub(crate) fn scheduler(epoch: u64, at: SocketAddr, policy: &'static str, hang: HangBound) -> ClusterScheduler {
    scheduler_of(epoch, at, policy, hang, InitialPlan::Whole)
}

/// Starts a scheduler that carries out this plan.
pub(crate) fn scheduler_of(
    epoch: u64,
    at: SocketAddr,
    policy: &'static str,
    hang: HangBound,
    plan: InitialPlan,
) -> ClusterScheduler {
    let begun = Instant::now();
    loop {
        let start = starts(policy, hang);
        match try_scheduler(epoch, at, start, plan.clone()) {
            Ok(scheduler) => return scheduler,
            // The earlier scheduler may still hold the port.
            Err(error) => assert!(begun.elapsed() < SAFETY, "{error}"),
        }
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
}

/// Starts a scheduler with this engine.
pub(crate) fn scheduler_starting(at: SocketAddr, start: StartEngine) -> ClusterScheduler {
    try_scheduler(1, at, start, InitialPlan::Whole).unwrap()
}

fn try_scheduler(epoch: u64, at: SocketAddr, start: StartEngine, plan: InitialPlan) -> io::Result<ClusterScheduler> {
    ClusterScheduler::start(Arc::new(Tcp), scheduler_config(epoch, at, start, plan))
}

/// Returns the configuration of a scheduler without spares.
pub(crate) fn scheduler_config(epoch: u64, at: SocketAddr, start: StartEngine, plan: InitialPlan) -> SchedulerConfig {
    SchedulerConfig {
        listen: at,
        schedulers: Vec::new(),
        store: Box::new(AloneStore { epoch: Epoch(epoch) }),
        timing: Timing::SHARED_HOSTS,
        plan,
        drain_timeout: SAFETY,
        start,
        on_serving: Box::new(|_| {}),
    }
}

/// Two schedulers with one epoch store, of which either may end and start again.
pub(crate) struct SchedulerPair {
    listen: [SocketAddr; 2],
    store: MemoryStore,
    hang: HangBound,
    schedulers: [Option<ClusterScheduler>; 2],
}

impl SchedulerPair {
    pub(crate) fn start(hang: HangBound, plan: InitialPlan) -> SchedulerPair {
        let free: [TcpListener; 2] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let listen = free.each_ref().map(|listener| listener.local_addr().unwrap());
        drop(free);
        let mut pair = SchedulerPair { listen, store: MemoryStore::default(), hang, schedulers: [None, None] };
        (0..2).for_each(|at| pair.start_again(at, plan.clone()));
        pair
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.listen.iter().map(SocketAddr::to_string).collect()
    }

    pub(crate) fn start_again(&mut self, at: usize, plan: InitialPlan) {
        let config = SchedulerConfig {
            listen: self.listen[at],
            schedulers: self.addresses(),
            store: Box::new(self.store.clone()),
            timing: Timing::SHARED_HOSTS,
            start: starts("unified", self.hang),
            on_serving: Box::new(|_| {}),
            plan,
            drain_timeout: SAFETY,
        };
        self.schedulers[at] = Some(ClusterScheduler::start(Arc::new(Tcp), config).unwrap());
    }

    /// Returns a scheduler that has not been taken.
    pub(crate) fn get(&self, at: usize) -> &ClusterScheduler {
        self.schedulers[at].as_ref().unwrap()
    }

    /// Takes a scheduler out; to drop it is a crash.
    pub(crate) fn take(&mut self, at: usize) -> Option<ClusterScheduler> {
        self.schedulers[at].take()
    }

    /// Returns the index of the primary.
    pub(crate) fn primary(&self) -> Option<usize> {
        let is_primary = |of: &Option<ClusterScheduler>| of.as_ref().is_some_and(ClusterScheduler::is_primary);
        self.schedulers.iter().position(is_primary)
    }

    /// Waits until there is a primary, which the other one follows.
    pub(crate) fn settled(&self) -> usize {
        until("the spare follows", || {
            self.primary().is_some() && self.schedulers.iter().flatten().all(ClusterScheduler::knows_primary)
        });
        self.primary().unwrap()
    }
}

pub(crate) fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A running backend.
pub(crate) struct RunningBackend {
    pub(crate) stop: Arc<StopSignal>,
    pub(crate) thread: JoinHandle<()>,
}

impl RunningBackend {
    /// Ends it as a crash would, and waits for its end.
    pub(crate) fn abort(self) {
        self.stop.abort();
        self.thread.join().unwrap();
    }

    /// Makes it leave, and waits for its end.
    pub(crate) fn leave(self) {
        self.stop.leave();
        self.thread.join().unwrap();
    }
}

pub(crate) fn backend(scheduler: SocketAddr, models: &[Served]) -> RunningBackend {
    backend_on(scheduler, models, emulated())
}

/// Returns an engine that emulates devices.
pub(crate) fn emulated() -> Arc<dyn Executor> {
    Arc::new(EmulatedEngine::new(EmulatedOptions::default()).with_depth(DEPTH))
}

pub(crate) fn backend_on(scheduler: SocketAddr, models: &[Served], executor: Arc<dyn Executor>) -> RunningBackend {
    backend_with(vec![scheduler.to_string()], models, executor, None)
}

/// Starts a backend on this transport.
pub(crate) fn backend_over(
    transport: Arc<dyn Transport>,
    schedulers: Vec<String>,
    models: &[Served],
    executor: Arc<dyn Executor>,
) -> RunningBackend {
    let offered = BackendModels::default();
    for (number, served) in (0..).zip(models) {
        offered.add(number, served.loaded(&*executor, "")).unwrap();
    }
    let (models, depth, epoch) = (Arc::new(offered), DEPTH, Epoch::default());
    let (planned, calls, on_order, usage) = (None, None, None, Arc::default());
    run(Backend { transport, schedulers, executor, depth, models, calls, planned, epoch, on_order, usage })
}

/// Starts a backend that knows all of these schedulers.
pub(crate) fn backend_with(
    schedulers: Vec<String>,
    models: &[Served],
    executor: Arc<dyn Executor>,
    on_order: Option<OnOrder>,
) -> RunningBackend {
    let offered = BackendModels::default();
    for (number, served) in (0..).zip(models) {
        offered.add(number, served.loaded(&*executor, "")).unwrap();
    }
    backend_of(schedulers, Arc::new(offered), executor, on_order, None)
}

/// Starts a backend of a process with these models, which its calls change.
pub(crate) fn backend_of(
    schedulers: Vec<String>,
    models: Arc<BackendModels>,
    executor: Arc<dyn Executor>,
    on_order: Option<OnOrder>,
    calls: Option<Arc<ModelCalls>>,
) -> RunningBackend {
    let (transport, depth, epoch) = (Arc::new(Tcp), DEPTH, Epoch::default());
    let (planned, usage) = (None, Arc::default());
    run(Backend { transport, schedulers, executor, depth, models, calls, planned, epoch, on_order, usage })
}

/// Starts a backend of a process whose models follow a plan.
pub(crate) fn backend_following(
    schedulers: Vec<String>,
    models: Arc<BackendModels>,
    executor: Arc<dyn Executor>,
    planned: Arc<PlannedModels>,
) -> RunningBackend {
    let (transport, depth, epoch) = (Arc::new(Tcp), DEPTH, Epoch::default());
    let (planned, calls, on_order, usage) = (Some(planned), None, None, Arc::default());
    run(Backend { transport, schedulers, executor, depth, models, calls, planned, epoch, on_order, usage })
}

fn run(backend: Backend) -> RunningBackend {
    let stop = Arc::new(StopSignal::default());
    let told = Arc::clone(&stop);
    RunningBackend { stop, thread: thread::spawn(move || backend.run(&told)) }
}

/// The models that a frontend received last.
pub(crate) type Known = Arc<Mutex<Vec<(ModelId, ModelDescription)>>>;

/// A frontend with a client.
pub(crate) struct Client {
    pub(crate) frontend: Frontend,
    pub(crate) known: Known,
    pub(crate) sender: Sender<(usize, JobResult)>,
    pub(crate) answers: Receiver<(usize, JobResult)>,
}

pub(crate) fn client(scheduler: SocketAddr) -> Client {
    asking(vec![scheduler.to_string()])
}

/// Starts a frontend that knows all of these schedulers.
pub(crate) fn asking(schedulers: Vec<String>) -> Client {
    asking_for(schedulers, FrontendConfig::SCHEDULER_TIMEOUT)
}

/// Starts a frontend whose requests wait so long for another scheduler.
pub(crate) fn asking_for(schedulers: Vec<String>, scheduler_timeout: Duration) -> Client {
    client_over(Arc::new(Tcp), schedulers, scheduler_timeout)
}

/// Starts such a frontend on this transport.
pub(crate) fn client_over(
    transport: Arc<dyn Transport>,
    schedulers: Vec<String>,
    scheduler_timeout: Duration,
) -> Client {
    let (known, (sender, answers)) = (Known::default(), channel());
    let config = FrontendConfig { schedulers, data: anywhere(), advertised: None, max_live: 4096, scheduler_timeout };
    let tells = Arc::clone(&known);
    let on_models = Box::new(move |models: &[_], _: &[String]| *tells.lock().unwrap() = models.to_vec());
    let frontend = Frontend::start(transport, config, on_models).unwrap();
    Client { frontend, known, sender, answers }
}

pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < SAFETY, "never: {what}");
        // A loop without a pause would take the processor from what it waits for.
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Returns rows of `width` bytes that differ from one request to the next.
pub(crate) fn rows(number: usize, rows: usize, width: usize) -> Arc<[Tensor]> {
    let data: Vec<u8> = (0..rows * width).map(|at| (number * 7 + at * 3) as u8).collect();
    let shape = vec![rows as i64, width as i64];
    Arc::new([Tensor { name: "x".into(), datatype: DataType::Uint8, shape, data: Bytes::from(data) }])
}

impl Client {
    pub(crate) fn ready(&self) -> &Client {
        until("a device serves", || self.frontend.serving_devices() > 0 && !self.known.lock().unwrap().is_empty());
        self
    }

    pub(crate) fn model(&self, name: &str) -> ModelId {
        self.known.lock().unwrap().iter().find(|(_, model)| model.name == name).expect("it is served").0
    }

    pub(crate) fn submit(&self, number: usize, model: ModelId, inputs: Arc<[Tensor]>) -> Result<u64, Failure> {
        let sender = self.sender.clone();
        // A test that has seen enough may have ended.
        let on_answer = Box::new(move |answer| drop(sender.send((number, answer))));
        let rows = inputs[0].shape[0] as usize;
        let (timeout, client, priority, on_step) = (None, 0, 0, None);
        self.frontend.submit(Job { model, inputs, rows, timeout, stage: None, client, priority, on_step, on_answer })
    }
}

/// Serves the same models with an engine in this process.
pub(crate) fn local(models: &[Served], policy: &'static str) -> (Engine, Vec<ModelId>) {
    let executor = emulated();
    let StartedEngine { engine, .. } = starts(policy, HangBound::default())().unwrap();
    let load = |served: &Served| {
        let (model, loaded) = (served.model(), executor.load(&served.source()).unwrap());
        engine
            .load(ServedModel {
                model,
                loaded,
                max_queue: Some(1 << 14),
                max_queued_work: None,
                answer_late: served.answer_late,
            })
            .unwrap()
    };
    let ids = models.iter().map(load).collect();
    engine.add_device_of(&*executor).unwrap();
    (engine, ids)
}
