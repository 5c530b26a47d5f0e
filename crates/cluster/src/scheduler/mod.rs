//! The scheduler role: an engine whose devices are remote backends and whose requests come from
//! remote frontends.
//!
//! Of several schedulers with a common epoch store one is the primary ([`leadership`]); the others
//! are spares, with the same connections and an engine without devices. The first backend
//! determines the policy, which suits its models; served is what all backends offer ([`releases`]).
//! A plan divides models and backends into sub-clusters, each with an engine ([`sub_clusters`],
//! [`placing`]); without a plan there is one. A scheduler that becomes the primary claims all
//! backends. Each is a device of its engine from the time when nothing of earlier epochs runs on it
//! until its connection ends. Event loops read and write all connections ([`connections`]);
//! outgoing messages are enqueued in a [`PeerLink`]. One lock guards the set of peers, so that a
//! backend learns of each frontend before it receives a request of it.

mod backends;
mod calls;
mod connections;
mod delay_planning;
mod device;
mod frontends;
mod leadership;
mod placing;
mod reconcile;
mod refusals;
mod releases;
mod spares;
mod store_thread;
mod sub_clusters;

use crate::handover::store::EpochStore;
use crate::handover::{ProcessId, Timing};
use crate::offer::{OfferList, OfferedModel, ServedModels};
use crate::placement::PlacementPlan;
use crate::plane::{CELLS, DecodeError, HandlerQueue, Listener, Message, PeerAddress, PeerLink, Pollers, Transport};
use crate::random_id;
use backends::BackendPeer;
use calls::ModelCallTable;
pub use device::BackendDelays;
use frontends::FrontendPeer;
use leadership::Leadership;
use parking_lot::Mutex;
use placing::PlacementTimer;
use refusals::Refusals;
use ripieno_base::DeviceId;
use ripieno_runtime::{DeviceState, Engine, NetworkDelay};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
pub use sub_clusters::ServedCluster;
use sub_clusters::{SubClusters, split};

/// An engine without devices, and the depth that its devices need.
pub struct StartedEngine {
    /// The engine.
    pub engine: Engine,
    /// The largest number of tasks on each lane of a device.
    pub depth: usize,
    /// The quantile of the measured delays that the policy plans with, in thousandths; `None` if it
    /// plans with none of them.
    pub delay_permille: Option<u32>,
}

/// Callback that starts an engine; the scheduler loads models afterwards.
pub type StartEngine = Box<dyn Fn() -> Result<StartedEngine, String> + Send + Sync>;

/// Callback for the engines and their models once they are served; `None` when they no longer are.
pub type OnServing = Box<dyn Fn(Option<ServedCluster>) + Send + Sync>;

/// The plan of a scheduler that starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InitialPlan {
    /// Every backend has all models, until a plan is set.
    #[default]
    Whole,
    /// Backends wait until a plan is set.
    Later,
    /// This plan is carried out.
    Given(PlacementPlan),
}

/// The models of a connected backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendHolding {
    /// The sub-cluster that it said that it belongs to.
    pub stated: Option<usize>,
    /// Names of the loaded models.
    pub loaded: BTreeSet<String>,
    /// The models that it can load, with their sizes in bytes; empty if it follows no plan.
    pub available: BTreeMap<String, u64>,
}

/// Configuration of a scheduler.
pub struct SchedulerConfig {
    /// Listening address.
    pub listen: SocketAddr,
    /// Addresses of all schedulers; its own may be among them.
    pub schedulers: Vec<String>,
    /// The epoch store, the same for all schedulers.
    pub store: Box<dyn EpochStore>,
    /// The timeouts of the hand-over protocol.
    pub timing: Timing,
    /// Which models share devices.
    pub plan: InitialPlan,
    /// Time for requests that have begun on a backend that the plan moves. The rest begins anew.
    pub drain_timeout: Duration,
    /// Callback that starts the engine of a sub-cluster.
    pub start: StartEngine,
    /// Callback for the served models.
    pub on_serving: OnServing,
}

/// A running scheduler.
pub struct ClusterScheduler {
    shared: Arc<SchedulerShared>,
    listener: Arc<dyn Listener>,
}

struct SchedulerShared {
    own: Weak<SchedulerShared>,
    start: StartEngine,
    on_serving: OnServing,
    leadership: Leadership,
    peers: Mutex<ConnectedPeers>,
    calls: Mutex<ModelCallTable>,
    /// Read and write the connections.
    pollers: Pollers,
    /// Messages of accepted connections whose handling may wait.
    queue: Arc<HandlerQueue>,
    placing: PlacementTimer,
    drain_timeout: Duration,
    connections: AtomicUsize,
    refusals: Refusals,
    /// Whether another scheduler has ever listened to this one.
    had_spare: AtomicBool,
    closed: AtomicBool,
}

/// The connected processes.
#[derive(Default)]
struct ConnectedPeers {
    /// All connections, also those whose peer has not yet registered.
    links: Vec<Arc<PeerLink>>,
    /// Whether backends that follow a plan may come before there is one.
    awaits_plan: bool,
    /// The plan as it is written.
    plan: Option<PlacementPlan>,
    /// The plan for the backends that are there: with too few, sub-clusters are merged.
    effective: Option<PlacementPlan>,
    sub_clusters: SubClusters,
    /// True once frontends may learn of models: each sub-cluster serves some, or its backends have
    /// had time to connect.
    lists_models: bool,
    /// Planned models that backends are loading, as frontends know them.
    loading: Vec<String>,
    frontends: BTreeMap<u32, Arc<FrontendPeer>>,
    backends: BTreeMap<ProcessId, BackendPeer>,
    /// Schedulers that receive heartbeats from this one.
    schedulers: BTreeMap<ProcessId, Arc<PeerLink>>,
}

impl ClusterScheduler {
    /// Listens for frontends and backends, as a spare until it becomes the primary.
    pub fn start(transport: Arc<dyn Transport>, config: SchedulerConfig) -> io::Result<ClusterScheduler> {
        let SchedulerConfig { listen, schedulers, store, timing, plan, drain_timeout, start, on_serving } = config;
        let listener = transport.listen(listen)?;
        let awaits_plan = plan != InitialPlan::Whole;
        let plan = if let InitialPlan::Given(plan) = plan { Some(plan) } else { None };
        let peers = ConnectedPeers { awaits_plan, effective: plan.clone(), plan, ..ConnectedPeers::default() };
        let (pollers, queue) = (Pollers::start("scheduler-poll")?, Arc::<HandlerQueue>::default());
        let shared = Arc::new_cyclic(|own| SchedulerShared {
            own: own.clone(),
            start,
            on_serving,
            leadership: Leadership::new(ProcessId(random_id()), timing),
            peers: Mutex::new(peers),
            placing: PlacementTimer::default(),
            drain_timeout,
            calls: Mutex::default(),
            pollers,
            queue: Arc::clone(&queue),
            connections: AtomicUsize::new(0),
            refusals: Refusals::default(),
            had_spare: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        shared.start_election(store)?;
        shared.start_placing()?;
        shared.start_delay_planning()?;
        thread::Builder::new().name("scheduler-peers".to_owned()).spawn(move || queue.run())?;
        let (accepting, owner) = (Arc::clone(&listener), Arc::clone(&shared));
        thread::Builder::new()
            .name("scheduler-accept".to_owned())
            .spawn(move || owner.accept_connections(&*accepting))?;
        for address in schedulers {
            Arc::clone(&shared).listen_to(Arc::clone(&transport), address)?;
        }
        Ok(ClusterScheduler { shared, listener })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns the engine of the first sub-cluster, once a backend has registered.
    pub fn engine(&self) -> Option<Engine> {
        self.engines().into_iter().next()
    }

    /// Returns the engine of each sub-cluster, once a backend has registered.
    pub fn engines(&self) -> Vec<Engine> {
        self.shared.peers.lock().sub_clusters.iter().map(|part| part.engine.clone()).collect()
    }

    /// Returns the engines and their models, once a backend has registered.
    pub fn served(&self) -> Option<ServedCluster> {
        let peers = self.shared.peers.lock();
        (!peers.sub_clusters.is_empty()).then(|| peers.sub_clusters.served())
    }

    /// Returns the models of each connected backend.
    pub fn holdings(&self) -> Vec<BackendHolding> {
        self.shared.peers.lock().backends.values().map(BackendPeer::holding).collect()
    }

    /// Returns the measured delays of each backend, by its sub-cluster and its device there.
    pub fn delays(&self) -> Vec<(usize, DeviceId, BackendDelays)> {
        self.shared.peers.lock().backends.values().filter_map(BackendPeer::delays).collect()
    }

    /// Returns the time that the policy of each sub-cluster plans for the way of a batch. `None`
    /// while too little was measured, or if the policy plans with none.
    pub fn planned_delays(&self) -> Vec<Option<NetworkDelay>> {
        self.shared.peers.lock().sub_clusters.iter().map(|part| *part.delay.lock()).collect()
    }

    /// Returns the plan, if there is one.
    pub fn plan(&self) -> Option<PlacementPlan> {
        self.shared.peers.lock().plan.clone()
    }

    /// Changes the plan: models are loaded in their new sub-cluster before they leave the old one.
    /// The error says why the plan cannot be carried out; then the earlier one stays.
    pub fn set_plan(&self, plan: PlacementPlan) -> Result<(), String> {
        plan.check()?;
        self.shared.set_plan(plan)
    }

    /// Returns its id.
    pub fn process(&self) -> ProcessId {
        self.shared.leadership.me
    }

    /// Returns the number of times that it became the primary.
    pub fn elections(&self) -> u64 {
        self.shared.leadership.elections()
    }

    /// Returns true if it is the primary.
    pub fn is_primary(&self) -> bool {
        self.shared.leadership.is_primary()
    }

    /// Returns true if it is the primary, or a spare that receives heartbeats from one.
    pub fn knows_primary(&self) -> bool {
        self.shared.leadership.knows_primary()
    }

    /// Returns the number of other schedulers that listen to this one; `None` before the first.
    pub fn spares(&self) -> Option<usize> {
        let had_spare = self.shared.had_spare.load(Ordering::Relaxed);
        had_spare.then(|| self.shared.peers.lock().schedulers.len())
    }

    /// Returns the backends that were refused in the last seconds, and those that cannot load what
    /// the plan says, each with the reason.
    pub fn refused(&self) -> Vec<String> {
        let mut refused = self.shared.refusals.backends();
        let peers = self.shared.peers.lock();
        for backend in peers.backends.values().filter(|backend| !backend.fault.is_empty()) {
            let (peer, place, fault) = (PeerAddress(backend.link.peer()), backend.place, &backend.fault);
            refused.push(format!("the backend at {peer} of sub-cluster {place} lacks a model: {fault}"));
        }
        refused
    }

    /// Stops listening and ends all connections.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.leadership.close();
        self.shared.placing.close();
        self.listener.close();
        self.shared.peers.lock().links.iter().for_each(|link| link.close());
        self.shared.pollers.close();
        self.shared.queue.close();
    }
}

impl Drop for ClusterScheduler {
    fn drop(&mut self) {
        self.close();
    }
}

impl SchedulerShared {
    /// Sends the number of serving devices to all frontends.
    fn broadcast_device_count(&self) {
        let peers = self.peers.lock();
        let message = Message::Devices(peers.serving());
        peers.frontends.values().for_each(|frontend| frontend.link.send(&message));
    }
}

impl ConnectedPeers {
    /// Returns the connection to a process of any role.
    fn link(&self, process: ProcessId) -> Option<Arc<PeerLink>> {
        let frontend = || Some(&self.frontends.get(&u32::try_from(process.0).ok()?)?.link);
        let backend = || self.backends.get(&process).map(|backend| &backend.link);
        self.schedulers.get(&process).or_else(backend).or_else(frontend).cloned()
    }

    fn serving(&self) -> u32 {
        let devices = self.sub_clusters.iter().flat_map(|part| part.engine.device_metrics());
        devices.filter(|device| device.state == DeviceState::Serving).count() as u32
    }

    /// Returns what the backends of a sub-cluster offer: each list once that several share.
    fn offers(&self, place: usize) -> Vec<OfferList> {
        let mut lists: Vec<OfferList> = Vec::new();
        for backend in self.backends.values().filter(|backend| backend.member_of == Some(place)) {
            let list = backend.offers.lock();
            if !lists.iter().rev().any(|known| Arc::ptr_eq(known, &list)) {
                lists.push(Arc::clone(&list));
            }
        }
        lists
    }

    /// Returns true if a sub-cluster has a backend.
    fn has_members(&self, place: usize) -> bool {
        self.backends.values().any(|backend| backend.member_of == Some(place))
    }

    /// Returns a list of models, which is another backend's if that offers the same.
    fn shared(&self, models: &[OfferedModel]) -> OfferList {
        let same = self.backends.values().find_map(|backend| {
            let list = backend.offers.lock();
            (**list == *models).then(|| Arc::clone(&list))
        });
        same.unwrap_or_else(|| models.into())
    }

    /// Returns the sub-cluster that the plan has for a model; without a plan there is one for all.
    fn place_of(&self, model: &str) -> Option<usize> {
        self.effective.as_ref().map_or(Some(0), |plan| plan.place_of(model))
    }

    /// Sends a frontend the served models that it knows how to describe.
    fn send_models(&self, frontend: &FrontendPeer) {
        // A model that a frontend does not learn of is unknown to clients, so a partial list waits.
        if self.sub_clusters.is_empty() || !self.lists_models {
            return;
        }
        let served = |place, name: &str| self.serves_at(place, name);
        let anywhere = |name: &str| self.sub_clusters.iter().any(|part| served(part.place, name));
        let mut listed = self.sub_clusters.listed();
        // A model that moves is asked for where it was until a device has it where it goes.
        listed.retain(|(number, model)| served(split(*number).0, &model.name) || !anywhere(&model.name));
        listed.retain(|(_, model)| model.walks.is_none() || frontend.revision >= CELLS);
        let served = ServedModels { models: listed, loading: self.loading.clone() };
        frontend.link.send(&Message::Models(served.encode().into()));
    }
}

/// Returns the error for a message that the peer's role must not send.
fn unexpected(message: &Message) -> io::Error {
    let text = format!("{message:?}");
    DecodeError(format!("it is not for this role to say {}", text.split([' ', '(']).next().unwrap_or_default())).into()
}
