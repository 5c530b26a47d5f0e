//! "nexus": models are packed onto devices by their rates; requests are routed on arrival; each
//! device runs its models in turn.
//!
//! Source: Nexus as the baseline of "Symphony: Optimized DNN Model Serving using Deferred Batch
//! Scheduling", sections 2.2 and 5.1.
//!
//! 1. Every `epoch_s`, squishy bin packing decides from the measured rates which models each device
//!    runs, and their batch sizes (`crates/policies/src/baselines/parts/squishy.rs`).
//! 2. A request is routed on arrival to one of its model's devices, in proportion to their planned
//!    rates.
//! 3. A free device immediately runs the next of its models, in turn, that has requests.
//! 4. Heads that keep a batch below its planned size are dropped (early drop); where the deadline
//!    allows it may be larger.
//! 5. Routes are a weighted round robin. Several frontends have one each and do not know of each
//!    other.
//!
//! State: a queue per model and device; a rate meter per model. Knobs: epoch, frontends, gathering
//! rule, largest batch, drop rule. It ignores requests that wait on other devices, and the real
//! speed of a device.
//!
//! Deviations: rates are scaled to use all devices. The first plan assumes equal rates, the second
//! follows after a second, and a change of devices or models is planned for immediately, which
//! moves waiting requests. The original also plans again when a rate deviates from its plan by more
//! than about a tenth. In Symphony's words a batch has at most its planned size, which `gather =
//! "window"` does. It is not the default: where models share devices, planned sizes are one or two
//! rows. A burst of three on one device then breaks the whole set of models, worse than Symphony
//! measured (docs/internals/policies.md).

use super::parts::frontends::Frontends;
use super::parts::placement::{DeviceTable, Placement, PlacementScheduler};
use super::parts::pool::{Aim, PoolRules};
use super::parts::squishy::{MRPS_NS, Packer};
use crate::options::WHOLE;
use crate::policy::{Chains, Form, Policy};
use crate::symphony::DeviceChoice;
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_model::DropRule;
use ripieno_sched::Needs;
use ripieno_sched::estimate::rate::RateMeter;
use ripieno_sched::tables::models::BatchOptions;
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{DROP, MAX_BATCH};
use ripieno_sched::{Limits, Outbox, Request, Scheduler, Setup};

pub(crate) const POLICY: Policy = Policy {
    name: "nexus",
    source: "Nexus, as in Symphony, sections 2.2 and 5.1",
    summary: "models are packed onto devices by their rates; each device runs its models in turn",
    walks: WHOLE,
    chains: Chains::Any,
    knobs: &[
        Knob { name: "epoch_s", default: "10", help: "lifetime of a plan, in s" },
        Knob {
            name: "frontends",
            default: "1",
            help: "number of frontends that route requests, each in its own weighted round robin; at most 256",
        },
        Knob {
            name: "gather",
            default: "window-max",
            help: "requests that form a batch: \"window-max\" = heads that keep it below the planned size are passed \
                   over; \"window\" = likewise, and it has at most that size; \"prefix\" = at most that size, and no \
                   head is passed over",
        },
        MAX_BATCH,
        DROP,
    ],
    needs: |_| Needs { keeps_deadlines: true, ..Needs::ONE_TASK },
    form: Form::OnePiece(build),
};

/// The relation of a batch to its planned size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NexusGather {
    Window,
    WindowMax,
    Prefix,
}

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let gathers =
        [("window", NexusGather::Window), ("window-max", NexusGather::WindowMax), ("prefix", NexusGather::Prefix)];
    let epoch = Nanos::from_millis_f64(knobs.number("epoch_s", None)?.unwrap_or(10.0) * 1e3).max(Nanos(1));
    let frontends = knobs.count("frontends", None)?.unwrap_or(1).min(256);
    let placement =
        Nexus::new(&setup.limits, knobs.choice("gather", &gathers, NexusGather::WindowMax)?, epoch, frontends);
    let options = BatchOptions::read(setup, knobs, DropRule::Hopeless)?;
    let rules = PoolRules { options, margin: Nanos::ZERO, head_blocks: false };
    Ok(Box::new(PlacementScheduler::new(setup, DeviceChoice::SmallestId, rules, placement)))
}

/// Time until the first plan, which knows no rates, is replaced.
const FIRST_EPOCH: Nanos = Nanos(1_000_000_000);

/// Rates, the plan derived from them, and the turns of the devices.
struct Nexus {
    /// The rule by which a batch waits for more requests.
    gather: NexusGather,
    /// Time between two plans.
    epoch: Nanos,
    /// Frontends that route requests to sessions.
    frontends: Frontends,
    /// Arrival rate of each model.
    meters: Vec<RateMeter>,
    /// Packing of sessions onto devices.
    packer: Packer,
    /// Models on devices, ordered by model; a session has the queue of its number.
    sessions: Vec<Session>,
    /// The first queue after the sessions' queues: one per model, for times without a device.
    first_unrouted: usize,
    /// Routes of each model.
    models: Vec<NexusRoutes>,
    /// The sessions, grouped by device.
    by_device: Vec<u32>,
    /// Turns of each device.
    devices: Vec<NexusTurns>,
    /// Devices that may have a batch to start.
    touched: Vec<u16>,
    /// True for each device in `touched`.
    is_touched: Vec<bool>,
    /// The present devices.
    present: Vec<DeviceId>,
    /// Requests that move to another queue, and whether they are overdue.
    moved: Vec<(u32, bool)>,
    /// True if devices, models or profiles have changed since the plan.
    outdated: bool,
    /// True if the plan is based on rates.
    measured: bool,
    /// Time of the current plan.
    planned: Time,
    /// Time of the next plan; never while there are no requests.
    next_plan: Time,
}

/// A model on a device.
#[derive(Clone, Copy, Debug)]
struct Session {
    model: ModelId,
    device: DeviceId,
    batch: usize,
    rate_mrps: u64,
}

/// The sessions of a model.
#[derive(Clone, Copy, Debug, Default)]
struct NexusRoutes {
    first: usize,
    count: usize,
    largest_mrps: u64,
    /// True if the session has fewer instances than there are devices.
    limited: bool,
}

/// The sessions of a device: a part of `by_device`, and the next turn.
#[derive(Clone, Copy, Debug, Default)]
struct NexusTurns {
    first: usize,
    count: usize,
    next: usize,
}

impl Nexus {
    fn new(limits: &Limits, gather: NexusGather, epoch: Nanos, frontends: usize) -> Nexus {
        let sessions = limits.devices + limits.models;
        Nexus {
            gather,
            epoch,
            frontends: Frontends::new(frontends, limits.models, sessions),
            meters: vec![RateMeter::new(); limits.models],
            packer: Packer::new(limits.models, limits.devices),
            sessions: Vec::with_capacity(sessions),
            first_unrouted: sessions,
            models: vec![NexusRoutes::default(); limits.models],
            by_device: Vec::with_capacity(sessions),
            devices: vec![NexusTurns::default(); limits.devices],
            touched: Vec::with_capacity(limits.devices),
            is_touched: vec![false; limits.devices],
            present: Vec::with_capacity(limits.devices),
            moved: Vec::with_capacity(limits.requests),
            outdated: true,
            measured: false,
            planned: Time::ORIGIN,
            next_plan: Time::NEVER,
        }
    }

    /// Returns the queue of a model's requests while no device runs it.
    fn unrouted(&self, model: ModelId) -> usize {
        self.first_unrouted + model.index()
    }

    fn plan(&mut self, now: Time, table: &mut DeviceTable) {
        (self.outdated, self.planned, self.next_plan) = (false, now, Time::NEVER);
        self.present.clear();
        self.present.extend(table.present());
        self.collect(table);
        let meters = &self.meters;
        let mrps = |id: ModelId| {
            meters[id.index()].rate(now).map_or(0, |rate| {
                u64::try_from(u128::from(rate.rows) * MRPS_NS / rate.window.0.max(1) as u128).unwrap_or(u64::MAX / 2)
            })
        };
        self.measured = table.pool.in_service().any(|(id, _)| mrps(id) > 0);
        self.sessions.clear();
        self.models.fill(NexusRoutes::default());
        for share in self.packer.pack(&table.pool, self.present.len(), mrps) {
            let routes = &mut self.models[share.model.index()];
            if routes.count == 0 {
                routes.first = self.sessions.len();
                routes.limited = table.pool.served(share.model).model.instances < self.devices.len();
            }
            routes.count += 1;
            routes.largest_mrps = routes.largest_mrps.max(share.rate_mrps);
            self.sessions.push(Session {
                model: share.model,
                device: self.present[share.node],
                batch: share.batch,
                rate_mrps: share.rate_mrps,
            });
        }
        self.assign_turns();
        self.frontends.restart();
        self.redistribute(table);
    }

    /// Removes all waiting requests from their queues.
    fn collect(&mut self, table: &mut DeviceTable) {
        let unrouted = self.first_unrouted..self.first_unrouted + self.models.len();
        for queue in (0..self.sessions.len()).chain(unrouted) {
            self.moved.extend(std::iter::from_fn(|| table.pool.take_front(queue)));
        }
    }

    fn redistribute(&mut self, table: &mut DeviceTable) {
        for at in 0..self.moved.len() {
            let (slot, overdue) = self.moved[at];
            let queue = self.choose(table.pool.request(slot).model);
            match overdue {
                true => table.pool.push_overdue(queue, slot),
                false => table.pool.push(queue, slot),
            }
        }
        self.moved.clear();
    }

    /// Lists the sessions of each device, and marks all devices.
    fn assign_turns(&mut self) {
        self.by_device.clear();
        self.by_device.extend(0..self.sessions.len() as u32);
        let device = |session: u32| self.sessions[session as usize].device;
        self.by_device.sort_unstable_by_key(|&session| (device(session), session));
        self.devices.fill(NexusTurns::default());
        for (at, &session) in self.by_device.iter().enumerate() {
            let turns = &mut self.devices[device(session).index()];
            if turns.count == 0 {
                turns.first = at;
            }
            turns.count += 1;
        }
        (0..self.devices.len()).for_each(|device| self.touch(device));
    }

    fn touch(&mut self, device: usize) {
        if !std::mem::replace(&mut self.is_touched[device], true) {
            self.touched.push(device as u16);
        }
    }

    /// Returns the queue for the next request of a model.
    fn choose(&mut self, model: ModelId) -> usize {
        let NexusRoutes { first, count, largest_mrps, .. } = self.models[model.index()];
        if count == 0 {
            return self.unrouted(model);
        }
        let sessions = &self.sessions;
        self.frontends.choose(model.index(), (first, count), largest_mrps, |session| sessions[session].rate_mrps)
    }

    /// Starts the next batch of a free device: punctual requests of the next model in turn, else
    /// overdue ones.
    fn serve(&mut self, now: Time, device: DeviceId, table: &mut DeviceTable, out: &mut Outbox) {
        let turns = self.devices[device.index()];
        let percent = table.percent(device);
        for step in 0..turns.count {
            let turn = (turns.next + step) % turns.count;
            let queue = self.by_device[turns.first + turn] as usize;
            let Session { model, batch, .. } = self.sessions[queue];
            let cap = table.pool.served(model).max_batch;
            let aim = match self.gather {
                NexusGather::Window => Aim { target: batch, cap: batch.min(cap) },
                NexusGather::WindowMax => Aim { target: batch, cap },
                NexusGather::Prefix => Aim { target: 0, cap: batch.min(cap) },
            };
            let candidate = table.pool.gather(queue, now, percent, aim).filter(|_| table.pool.has_instance(model));
            if let Some(candidate) = candidate {
                self.devices[device.index()].next = (turn + 1) % turns.count;
                return table.commit(now, queue, candidate, device, out);
            }
        }
        for step in 0..turns.count {
            let turn = (turns.next + step) % turns.count;
            let queue = self.by_device[turns.first + turn] as usize;
            if table.pool.has_overdue(queue) && table.pool.has_instance(self.sessions[queue].model) {
                self.devices[device.index()].next = (turn + 1) % turns.count;
                return table.commit_overdue(now, queue, device, out);
            }
        }
    }
}

impl Placement for Nexus {
    fn queues(setup: &Setup) -> usize {
        let Limits { devices, models, .. } = setup.limits;
        devices + models + models
    }

    fn arrived(&mut self, now: Time, request: &Request) {
        self.meters[request.model.index()].record(now, request.rows);
        if self.next_plan == Time::NEVER {
            let epoch = if self.measured { self.epoch } else { self.epoch.min(FIRST_EPOCH) };
            self.next_plan = (self.planned + epoch).max(now.next());
        }
    }

    fn route(&mut self, request: &Request) -> usize {
        self.choose(request.model)
    }

    fn touched(&mut self, queue: usize) {
        if let Some(session) = self.sessions.get(queue) {
            self.touch(session.device.index());
        }
    }

    fn ended(&mut self, model: ModelId, device: DeviceId) {
        self.touch(device.index());
        // A model with limited instances may run elsewhere now.
        let NexusRoutes { first, count, limited, .. } = self.models[model.index()];
        if limited {
            (first..first + count).for_each(|session| self.touch(self.sessions[session].device.index()));
        }
    }

    fn changed(&mut self) {
        self.outdated = true;
    }

    fn place(&mut self, now: Time, table: &mut DeviceTable, out: &mut Outbox) {
        if self.outdated || now >= self.next_plan {
            self.plan(now, table);
        }
        while let Some(device) = self.touched.pop() {
            self.is_touched[usize::from(device)] = false;
            if table.is_free(DeviceId(device)) {
                self.serve(now, DeviceId(device), table, out);
            }
        }
    }

    fn next_wakeup(&self) -> Time {
        self.next_plan
    }
}
