//! Construction and start of an engine.

use super::devices::open_all;
use super::{Engine, EngineConfig, Inner, Recording, StartError};
use crate::devices::DeviceDirectory;
use crate::devices::slots::DeviceSlots;
use crate::event_loop::core::{Core, Tapes};
use crate::event_loop::dispatcher::Dispatcher;
use crate::event_loop::model_ids::ModelIds;
use crate::event_loop::scheduler_loop::{LoopShared, Mails, SchedulerLoop};
use crate::event_loop::schedulers::Schedulers;
use crate::learn::capacity::CapacityLimits;
use crate::learn::server_delay::ServerDelay;
use crate::metrics::{DeviceMetrics, SchedulerMetrics};
use crate::record::flight::FlightRecorder;
use crate::record::recorder::{Header, Recorder, VERSION};
use crate::requests::answer::DrainGate;
use crate::shards;
use parking_lot::{Mutex, RwLock};
use ripieno_policies::ServedPolicy;
use ripieno_sched::{Limits, Setup};
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Opens the devices and starts the threads.
    pub fn start(config: EngineConfig) -> Result<Engine, StartError> {
        let setup = &config.setup;
        let limits = setup.limits;
        check(&config)?;
        let ServedPolicy { pieces, matchmaker } = config.scheduler;
        let (clock, gate) = (config.clock, Arc::new(DrainGate::default()));
        let model_ids = Arc::new(ModelIds::new(limits.models));
        let metrics: Arc<[DeviceMetrics]> = (0..limits.devices).map(|_| DeviceMetrics::default()).collect();
        let schedulers = Arc::new(Schedulers::new(clock, &limits, pieces.len(), matchmaker.as_ref()));
        let opened = open_all(&config.devices, &schedulers, &limits)?;
        let devices = Arc::new(DeviceDirectory::new(&opened, pieces.len(), limits.devices));
        let recorders = recorders(config.record.as_ref(), setup, pieces.len())?;
        let flight = config.flight.map(|flight| FlightRecorder::new(flight, setup, pieces.len(), clock));
        let (turns, server_delay) = (Arc::new(SchedulerMetrics::default()), Arc::new(ServerDelay::default()));
        let shared = LoopShared {
            clock,
            metrics: Arc::clone(&turns),
            server_delay: Arc::clone(&server_delay),
            model_ids: Arc::clone(&model_ids),
        };
        let mut loops = Vec::with_capacity(pieces.len());
        for (at, (piece, file)) in pieces.into_iter().zip(recorders).enumerate() {
            let tapes = Tapes { flight: flight.as_ref().map(|all| all.ring(at)), file };
            let core = Core::new(piece, &limits, tapes, schedulers.link());
            let mails = Mails::new(Arc::clone(schedulers.at(at).mailbox()), schedulers.others(at));
            let slots = DeviceSlots::new(Arc::clone(&devices), schedulers.at(at).idle(), limits.devices);
            let dispatcher = Dispatcher::new(clock, slots, Arc::clone(&metrics), &limits, config.hang);
            let started = SchedulerLoop::new(shared.clone(), mails, core, dispatcher, &limits);
            loops.push(started.map_err(StartError::Thread)?);
        }
        let threads = schedulers.start(clock, loops, matchmaker, &gate).map_err(StartError::Thread)?;
        let inner = Arc::new(Inner {
            clock,
            limits,
            least_hang: Duration::from_nanos(config.hang.least.0.unsigned_abs()),
            policy: config.policy,
            gate,
            capacity: Arc::new(capacity(&limits, config.max_queued_bytes, &devices)),
            model_ids,
            metrics,
            scheduler_metrics: turns,
            server_delay,
            devices,
            executor: config.devices.first().cloned(),
            attaching: RwLock::new(()),
            flight,
            orders: Mutex::new(()),
            schedulers,
            threads: Mutex::new(Some(threads)),
        });
        let engine = Arc::downgrade(&inner);
        inner.devices.on_end(Box::new(move |id| {
            if let Some(inner) = engine.upgrade() {
                Engine(inner).reopen(id);
            }
        }));
        Ok(Engine(inner))
    }
}

fn capacity(limits: &Limits, max_bytes: usize, devices: &Arc<DeviceDirectory>) -> CapacityLimits {
    let devices = Arc::clone(devices);
    CapacityLimits::new(limits.requests, max_bytes, limits.nodes, Box::new(move || devices.serving()))
}

/// Number of model ids, and of device ids: both have 16 bits.
const ID_SPACE: usize = 1 << 16;

fn check(config: &EngineConfig) -> Result<(), StartError> {
    let (setup, limits) = (&config.setup, &config.setup.limits);
    let fault = |text: String| Err(StartError::Config(text));
    if !setup.models.is_empty() {
        return fault("an engine starts without models; load them afterwards".to_owned());
    }
    let pieces = config.scheduler.pieces.len();
    if pieces == 0 || pieces > shards::MAX_SHARDS || (pieces > 1) != config.scheduler.matchmaker.is_some() {
        return fault(format!("a scheduler runs in 1 to {} pieces, several with a matchmaker", shards::MAX_SHARDS));
    }
    if setup.devices != config.devices.len() || setup.devices > limits.devices {
        return fault(format!(
            "the scheduler is built for {} devices (at most {}), but {} are given",
            setup.devices,
            limits.devices,
            config.devices.len()
        ));
    }
    if limits.requests == 0
        || limits.requests >= u32::MAX as usize
        || limits.batch == 0
        || limits.depth == 0
        || limits.lanes == 0
    {
        return fault("the bounds of requests, batch, lanes and depth must be at least 1".to_owned());
    }
    if limits.models > ID_SPACE || limits.devices > ID_SPACE {
        return fault(format!("there are ids for {ID_SPACE} models and as many devices; lower the bounds"));
    }
    Ok(())
}

/// Returns the recorder of each shard, or nothing for each.
fn recorders(recording: Option<&Recording>, setup: &Setup, shards: usize) -> Result<Vec<Option<Recorder>>, StartError> {
    let Some(recording) = recording else { return Ok((0..shards).map(|_| None).collect()) };
    let header = Header {
        ripieno_recording: VERSION,
        policy: recording.policy.clone(),
        options: recording.options.clone(),
        setup: setup.clone(),
        shards,
        sub_clusters: 1,
        begins: None,
    };
    let failed = |error| StartError::Recording { path: recording.path.display().to_string(), error };
    let recorders = Recorder::start(&recording.path, &header).map_err(failed)?;
    Ok(recorders.into_iter().map(Some).collect())
}
