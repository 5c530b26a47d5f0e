//! Capacity limits on admitted requests: slots, queued bytes, graph nodes, and a queue bound per
//! model.
//!
//! Server threads reserve capacity before a request enters the mailbox. So a flood of requests is
//! refused without involving the scheduler thread, and the number of slots bounds all later queues.
//! A [`Permit`] holds the reserved capacity, and only dropping it returns the capacity.

use crate::metrics::{ModelMetrics, ModelSnapshot};
use crate::requests::ending::Ending;
use crate::{Failure, ServedModel};
use crossbeam_queue::ArrayQueue;
use parking_lot::RwLock;
use ripieno_base::{BlockId, Nanos, RequestSlot};
use ripieno_executor::{LoadedModel, Outage};
use ripieno_model::bounds::{busy_devices, capacity};
use ripieno_model::{Block, Extent, Model, Profile, Steps};
use ripieno_sched::Limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const RETRY_MIN: Nanos = Nanos::from_millis(1);
const RETRY_MAX: Nanos = Nanos::from_millis(30_000);

/// Returns the number of serving devices.
pub(crate) type CountDevices = Box<dyn Fn() -> usize + Send + Sync>;

/// The limits that all models share, and their current use.
pub(crate) struct CapacityLimits {
    free: ArrayQueue<RequestSlot>,
    slots: usize,
    bytes: AtomicUsize,
    max_bytes: usize,
    /// Number of graph nodes reserved; see [`Limits::room`].
    nodes: AtomicUsize,
    max_nodes: usize,
    /// Counts the devices, by which the default bound of a queue is set.
    devices: CountDevices,
}

/// The capacity that a request needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestedCapacity {
    /// Number of slots, one per part of the request.
    pub(crate) parts: usize,
    /// Size of its inputs in bytes.
    pub(crate) bytes: usize,
    /// Number of nodes of its graph; see [`Limits::room`](ripieno_sched::Limits::room).
    pub(crate) nodes: usize,
    /// Device time of its parts in nanoseconds; see [`ModelEntry::work_ns`].
    pub(crate) work_ns: usize,
}

/// The properties of a model that server threads need at submission.
pub(crate) struct ModelEntry {
    pub(crate) name: String,
    pub(crate) slo: Nanos,
    pub(crate) max_batch: usize,
    pub(crate) blocks: usize,
    pub(crate) answer_late: bool,
    /// The loaded model, which checks a request's sequence, graph or length.
    pub(crate) loaded: Arc<dyn LoadedModel>,
    /// Whether requests run cell by cell, so that they differ in how often they run a block.
    pub(crate) unfolds: bool,
    /// Whether the state of a request stays on the device of its first block.
    pub(crate) keeps_device: bool,
    /// Whether requests differ in length and are padded to share a batch.
    pub(crate) has_lengths: bool,
    /// Whether the engine runs in separate processes, which a supervisor restarts.
    pub(crate) supervised: bool,
    max_queue: Option<usize>,
    max_queued_ns: usize,
    /// The blocks and their costs.
    costs: Box<[Block]>,
    /// The model with the profiles of now.
    model: RwLock<Model>,
    /// Number of request parts in the server, and their device time in nanoseconds.
    live: AtomicUsize,
    live_ns: AtomicUsize,
    pub(crate) metrics: ModelMetrics,
}

/// Reserved capacity: slots, bytes, nodes and places in the model's queue. Dropping the permit
/// returns all of it.
pub(crate) struct Permit {
    admission: Arc<CapacityLimits>,
    model: Arc<ModelEntry>,
    /// One slot per part, in order.
    slots: Vec<RequestSlot>,
    places: usize,
    bytes: usize,
    nodes: usize,
    work_ns: usize,
}

impl CapacityLimits {
    pub(crate) fn new(slots: usize, max_bytes: usize, max_nodes: usize, devices: CountDevices) -> CapacityLimits {
        let free = ArrayQueue::new(slots);
        for slot in 0..slots {
            free.push(RequestSlot(slot as u32)).expect("the queue holds every slot");
        }
        let (bytes, nodes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        CapacityLimits { free, slots, bytes, max_bytes, nodes, max_nodes, devices }
    }

    /// Refuses a request that exceeds the limits even of an empty server.
    pub(crate) fn check(&self, model: &ModelEntry, rows: usize, bytes: usize) -> Result<(), Failure> {
        let most = model.min_queue().min(self.slots).saturating_mul(model.max_batch);
        if rows > most && !model.unfolds {
            return Err(Failure::TooLarge { asked: format!("{rows} rows"), most });
        }
        if bytes > self.max_bytes {
            return Err(Failure::TooLarge { asked: format!("{bytes} bytes"), most: self.max_bytes });
        }
        Ok(())
    }

    /// Reserves slots, places in the model's queue, bytes and nodes. Reserves everything or
    /// nothing.
    pub(crate) fn reserve(
        self: &Arc<CapacityLimits>,
        model: &Arc<ModelEntry>,
        requested: RequestedCapacity,
    ) -> Result<Permit, Failure> {
        let RequestedCapacity { parts, bytes, nodes, work_ns } = requested;
        let (admission, slots) = (Arc::clone(self), Vec::new());
        let mut permit =
            Permit { admission, model: Arc::clone(model), slots, places: 0, bytes: 0, nodes: 0, work_ns: 0 };
        if nodes > self.max_nodes {
            let bound = self.max_nodes;
            return Err(Failure::Invalid(format!(
                "a graph of {nodes} nodes; the server takes at most {bound} at a time"
            )));
        }
        if !try_reserve(&model.live, parts, model.min_queue()) {
            let most = model.max_queue.unwrap_or_else(|| self.default_queue(model));
            if !try_reserve(&model.live, parts, most) {
                return Err(model.refusal(most));
            }
        }
        permit.places = parts;
        let bound_ns = if model.live_ns.load(Relaxed) == 0 { usize::MAX } else { model.max_queued_ns };
        if !try_reserve(&model.live_ns, work_ns, bound_ns) {
            // The error states the bound in requests: the number of those that are admitted now.
            return Err(model.refusal((model.live.load(Relaxed) - parts).max(1)));
        }
        permit.work_ns = work_ns;
        if !try_reserve(&self.bytes, bytes, self.max_bytes) {
            // The error states the bound in requests, so this converts the byte bound: the number
            // of requests that are admitted now.
            return Err(model.refusal((self.slots - self.free.len()).max(1)));
        }
        permit.bytes = bytes;
        if !try_reserve(&self.nodes, nodes, self.max_nodes) {
            let (held, bound, retry_after) = (self.nodes.load(Relaxed), self.max_nodes, model.retry_after());
            model.metrics.on_refused();
            return Err(Failure::NodesFull { held, bound, retry_after });
        }
        permit.nodes = nodes;
        permit.slots.reserve_exact(parts.min(self.slots));
        for _ in 0..parts {
            permit.slots.push(self.free.pop().ok_or_else(|| model.refusal(self.slots))?);
        }
        Ok(permit)
    }

    /// Returns the bound on the live requests of a model that names none. A model that refuses late
    /// requests may also have as many as slots are free: its SLO bounds how long they wait, and
    /// other models keep half.
    fn default_queue(&self, model: &ModelEntry) -> usize {
        let batches = Limits::served_queue(model.max_batch, (self.devices)());
        if model.answer_late { batches } else { batches.max(self.free.len()) }
    }

    #[cfg(test)]
    fn is_untouched(&self) -> bool {
        self.free.len() == self.slots && self.bytes.load(Relaxed) == 0 && self.nodes.load(Relaxed) == 0
    }
}

/// Adds `amount` to `taken` unless the sum exceeds `bound`. Returns whether it was added.
fn try_reserve(taken: &AtomicUsize, amount: usize, bound: usize) -> bool {
    let added = |now: usize| now.checked_add(amount).filter(|&sum| sum <= bound);
    taken.fetch_update(Relaxed, Relaxed, added).is_ok()
}

impl ModelEntry {
    /// Refuses a request while no process of the model's engine runs. Otherwise its batch would use
    /// time on a device, which other models need, and then fail.
    pub(crate) fn check_outage(&self) -> Result<(), Failure> {
        let Some(Outage { cause, retry_after }) = self.loaded.outage() else { return Ok(()) };
        self.metrics.on_failure(Ending::Outage, Nanos(0));
        Err(Failure::Outage { cause: format!("{cause}; it is being started again"), retry_after })
    }

    pub(crate) fn new(served: &ServedModel) -> ModelEntry {
        let model = &served.model;
        // A cell's batch may hold several nodes of one request, so it may be larger than
        // `max_batch`.
        let largest = model.blocks.iter().map(|block| block.max_batch()).chain([model.max_batch]).max().unwrap_or(1);
        ModelEntry {
            name: model.name.clone(),
            slo: model.slo,
            max_batch: model.max_batch,
            blocks: model.blocks.len(),
            answer_late: served.answer_late,
            loaded: Arc::clone(&served.loaded),
            unfolds: model.walk.is_unfolded(),
            keeps_device: model.pinned || !model.walk.is_unfolded(),
            has_lengths: served.loaded.lengths().is_some(),
            supervised: served.loaded.restarts().is_some(),
            max_queue: served.max_queue,
            max_queued_ns: served.max_queued_work.map_or(usize::MAX, |work| work.0.max(0) as usize),
            costs: model.blocks.clone().into(),
            model: RwLock::new(model.clone()),
            live: AtomicUsize::new(0),
            live_ns: AtomicUsize::new(0),
            metrics: ModelMetrics::new(largest),
        }
    }

    /// Returns whether a request goes on after the reported end of a block, because other blocks
    /// complete its outputs.
    pub(crate) fn continues(&self, block: BlockId, steps: Steps) -> bool {
        self.unfolds && steps.ends_by_report() && block.index() + 1 < self.blocks
    }

    /// Returns the bound on its live requests, whatever the number of devices.
    fn min_queue(&self) -> usize {
        self.max_queue.unwrap_or(ServedModel::MIN_QUEUE)
    }

    /// Replaces the profile of a block.
    pub(crate) fn replace_profile(&self, block: BlockId, profile: Profile) {
        self.model.write().blocks[block.index()].profile = profile;
    }

    /// Returns the largest rate at which this number of devices answers the model's rows by their
    /// deadlines, in rows per second, if it has the devices for itself. `None` if requests differ
    /// in cost.
    pub(crate) fn rows_per_s(&self, devices: usize) -> Option<f64> {
        capacity(&self.model.read(), devices).map(|bound| bound.goodput_rps)
    }

    /// Returns the number of devices that a rate in rows per second keeps busy in its best batches.
    /// `None` if requests differ in cost.
    pub(crate) fn busy_devices(&self, rows_per_s: f64) -> Option<f64> {
        busy_devices(&self.model.read(), rows_per_s)
    }

    pub(crate) fn snapshot(&self) -> ModelSnapshot {
        self.metrics.snapshot(self.live.load(Relaxed))
    }

    fn refusal(&self, bound: usize) -> Failure {
        self.metrics.on_refused();
        Failure::QueueFull { bound, retry_after: self.retry_after() }
    }

    /// Returns the device time in nanoseconds that a number of rows needs in full batches of rows
    /// that are as long.
    pub(crate) fn work_ns(&self, rows: usize, extent: Extent) -> usize {
        let each = self.costs.iter().map(|block| {
            let full = self.max_batch.min(block.profile.max_batch()).max(1);
            let row = block.cost(full, extent.length).0 / full as i64;
            row.saturating_mul(i64::from(extent.steps(block.steps)))
        });
        (each.fold(0, i64::saturating_add).max(1) as usize).saturating_mul(rows)
    }

    /// Returns the time after which a retry may succeed: the time in which one device runs all
    /// requests in the server in full batches.
    pub(crate) fn retry_after(&self) -> Duration {
        let clear = Nanos(self.live_ns.load(Relaxed).min(i64::MAX as usize) as i64).clamp(RETRY_MIN, RETRY_MAX);
        Duration::from_nanos(clear.0.cast_unsigned())
    }
}

impl Permit {
    pub(crate) fn slots(&self) -> &[RequestSlot] {
        &self.slots
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            self.admission.free.push(slot).expect("every slot came from the queue");
        }
        self.admission.bytes.fetch_sub(self.bytes, Relaxed);
        self.admission.nodes.fetch_sub(self.nodes, Relaxed);
        self.model.live.fetch_sub(self.places, Relaxed);
        self.model.live_ns.fetch_sub(self.work_ns, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::served;
    use ripieno_model::LengthProfiles;

    fn bound_of(result: Result<Permit, Failure>) -> usize {
        match result {
            Err(Failure::QueueFull { bound, retry_after }) => {
                assert!(retry_after >= Duration::from_millis(1));
                bound
            }
            Err(other) => panic!("refused otherwise: {other}"),
            Ok(_) => panic!("not refused"),
        }
    }

    #[test]
    fn each_bound_refuses_and_gives_everything_back() {
        let admission = Arc::new(CapacityLimits::new(4, 100, 50, Box::new(|| 1)));
        let requested = |parts, bytes| RequestedCapacity { parts, bytes, ..RequestedCapacity::default() };
        let model = Arc::new(ModelEntry::new(&served(1, 8)));
        let narrow = Arc::new(ModelEntry::new(&served(1, 2)));
        let held = admission.reserve(&model, requested(1, 60)).unwrap();
        assert_eq!(bound_of(admission.reserve(&narrow, requested(3, 1))), 2);
        assert_eq!(bound_of(admission.reserve(&model, requested(1, 41))), 1);
        assert_eq!(bound_of(admission.reserve(&model, requested(4, 1))), 4);
        assert_eq!(bound_of(admission.reserve(&model, requested(8, 1))), 8);
        let rest = admission.reserve(&model, RequestedCapacity { nodes: 30, ..requested(3, 40) }).unwrap();
        assert_eq!(rest.slots().len(), 3);
        drop((held, rest));
        assert!(admission.is_untouched());
        assert_eq!((model.live.load(Relaxed), narrow.live.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_request_too_large_for_an_empty_server_is_refused_for_good() {
        let admission = Arc::new(CapacityLimits::new(4, 100, 50, Box::new(|| 1)));
        let (wide, narrow) = (ModelEntry::new(&served(8, 8)), ModelEntry::new(&served(8, 2)));
        let most = |model, rows, bytes| match admission.check(model, rows, bytes) {
            Err(Failure::TooLarge { most, .. }) => Some(most),
            Err(other) => panic!("{other}"),
            Ok(()) => None,
        };
        assert_eq!((most(&wide, 33, 1), most(&wide, 32, 1)), (Some(32), None));
        assert_eq!((most(&narrow, 17, 1), most(&narrow, 16, 1)), (Some(16), None));
        assert_eq!((most(&wide, 1, 101), most(&wide, 1, 100)), (Some(100), None));
    }

    #[test]
    fn a_queue_without_a_bound_grows_with_the_devices() {
        let devices = Arc::new(AtomicUsize::new(1));
        let serving = Arc::clone(&devices);
        let count = Box::new(move || serving.load(Relaxed));
        let admission = Arc::new(CapacityLimits::new(10_000, 100_000, 1, count));
        let late = ServedModel { max_queue: None, answer_late: true, ..served(32, 1) };
        let model = Arc::new(ModelEntry::new(&late));
        let ask = || admission.reserve(&model, RequestedCapacity { parts: 1, ..RequestedCapacity::default() });
        let mut held: Vec<_> = (0..1_000).map(|_| ask().unwrap()).collect();
        assert_eq!(bound_of(ask()), 1_000, "one device needs at most 512");
        devices.store(2, Relaxed);
        held.extend((1_000..1_024).map(|_| ask().unwrap()));
        assert_eq!(bound_of(ask()), 1_024, "16 batches of 32 each");
        devices.store(64, Relaxed);
        assert!(ask().is_ok());
    }

    #[test]
    fn a_model_that_refuses_late_requests_may_have_as_many_as_are_free() {
        let admission = Arc::new(CapacityLimits::new(3_600, 100_000, 1, Box::new(|| 1)));
        let model = || Arc::new(ModelEntry::new(&ServedModel { max_queue: None, ..served(32, 1) }));
        let ask = |model: &Arc<ModelEntry>| {
            admission.reserve(model, RequestedCapacity { parts: 1, ..RequestedCapacity::default() })
        };
        let fill = |model: &Arc<ModelEntry>| -> Vec<Permit> { std::iter::from_fn(|| ask(model).ok()).collect() };
        let (first, second, third) = (model(), model(), model());
        let held = [fill(&first), fill(&second), fill(&third)];
        // Half of all, half of the rest, and the thousand that each model may have.
        assert_eq!(held.map(|held| held.len()), [1_800, 1_000, 800]);
    }

    #[test]
    fn nodes_of_graphs_are_bounded() {
        let admission = Arc::new(CapacityLimits::new(4, 100, 50, Box::new(|| 1)));
        let model = Arc::new(ModelEntry::new(&served(1, 8)));
        let requested = |nodes| RequestedCapacity { parts: 1, nodes, ..RequestedCapacity::default() };
        let held = admission.reserve(&model, requested(30)).unwrap();
        let full = admission.reserve(&model, requested(21)).err().unwrap();
        assert!(matches!(full, Failure::NodesFull { held: 30, bound: 50, .. }), "{full}");
        drop(held);
        assert!(admission.reserve(&model, requested(50)).is_ok());
        assert!(matches!(admission.reserve(&model, requested(51)).err().unwrap(), Failure::Invalid(_)));
        assert!(admission.is_untouched());
    }

    #[test]
    fn retry_after_grows_with_the_queue() {
        let model = ModelEntry::new(&served(4, 8));
        model.live_ns.store(model.work_ns(80, Extent::ONE), Relaxed);
        let Failure::QueueFull { retry_after, .. } = model.refusal(8) else { panic!("another refusal") };
        assert_eq!(retry_after, Duration::from_millis(100));
    }

    #[test]
    fn a_request_takes_as_much_of_the_queue_as_its_length_costs() {
        let (short, long) = (Profile::linear(1.0, 0.0, 4).unwrap(), Profile::linear(100.0, 0.0, 4).unwrap());
        let mut served = served(4, 1_000);
        served.model.blocks[0].lengths = Some(LengthProfiles::new(vec![(1, short), (256, long.clone())]).unwrap());
        served.model.blocks[0].profile = long;
        served.max_queued_work = Some(Nanos::from_millis(1_000));
        let model = Arc::new(ModelEntry::new(&served));
        let admission = Arc::new(CapacityLimits::new(1_000, 1, 1, Box::new(|| 1)));
        let ask = |length: u32, rows: usize| {
            let work_ns = model.work_ns(rows, Extent { length, limit: 0 });
            let requested = RequestedCapacity { parts: 1, work_ns, ..RequestedCapacity::default() };
            admission.reserve(&model, requested)
        };
        let held: Vec<_> = (0..1_000).map_while(|_| ask(1, 1).ok()).collect();
        assert_eq!(held.len(), 1_000, "each costs 1 ms");
        drop(held);
        let mut held: Vec<_> = (0..1_000).map_while(|_| ask(256, 1).ok()).collect();
        assert_eq!(held.len(), 10, "each costs 100 ms");
        held.truncate(4);
        let Err(Failure::QueueFull { bound, retry_after }) = ask(256, 7) else { panic!("not refused") };
        assert_eq!((bound, retry_after), (4, Duration::from_millis(400)));
        drop(held);
        assert!(ask(256, 11).is_ok(), "it would never be accepted otherwise");
        assert!(admission.is_untouched());
    }
}
