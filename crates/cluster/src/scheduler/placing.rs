//! Carries out a plan: which backend belongs to which sub-cluster, and which models it loads.
//!
//! The primary tells each backend that follows a plan its sub-cluster and the models to have. These
//! are the planned ones and those that its engine still serves: so a model that moves is loaded in
//! its new sub-cluster before it leaves the old one, as far as the memory of a device allows. A
//! backend is a device of the engine once it has all models that the engine serves.
//!
//! The backends hold the state: each says which sub-cluster it belongs to and what it has. So a
//! scheduler that takes over, or starts anew, goes on where the earlier one was.
//!
//! Backends that join are placed immediately. What costs more waits until no backend has come or
//! gone for a while: a backend that moves to another sub-cluster, and models whose sub-cluster has
//! lost its last backend. A backend moves by leaving the engine, after which it connects again. It
//! is lost to the engine if the requests that have begun there do not end in time.

use super::backends::{BackendPeer, DeviceStage, JoinedDevice};
use super::sub_clusters::SubClusterEngine;
use super::{ConnectedPeers, SchedulerShared};
use crate::handover::ProcessId;
use crate::offer::encode_names;
use crate::placement::PlacementPlan;
use crate::plane::Message;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time without a change of the backends after which some of them may move: longer than a backend
/// takes to connect again, and than several take that start together.
const SETTLE: Duration = Duration::from_secs(1);

/// Changes that are made with the peers unlocked.
#[derive(Default)]
pub(super) struct PendingChanges {
    /// Backends that become devices of their engine.
    open: Vec<ProcessId>,
    /// Devices that leave their engine, because their backends stop.
    leave: Vec<JoinedDevice>,
    /// Devices that leave their engine for another one.
    moves: Vec<JoinedDevice>,
}

/// Wakes the thread that moves backends.
#[derive(Default)]
pub(super) struct PlacementTimer {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    /// Time of the last change that has not been looked at.
    changed: Option<Instant>,
    /// Devices that move, each with the time at which it is given up, the earliest first.
    moves: VecDeque<(Instant, JoinedDevice)>,
    closed: bool,
}

/// A step of the thread that moves backends.
enum PlacingStep {
    /// It moves backends, since nothing has changed for [`SETTLE`] after a change.
    Rebalance,
    /// It gives up a device whose requests have not ended in time.
    GiveUp(JoinedDevice),
}

impl PlacementTimer {
    /// Notes that a backend has come or gone, or that the plan has changed.
    pub(super) fn note_change(&self) {
        self.state.lock().changed = Some(Instant::now());
        self.changed.notify_all();
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.moves.clear();
        self.changed.notify_all();
    }

    /// Notes that a device moves, and is given up after this time. The time is always the same.
    fn note_move(&self, device: JoinedDevice, within: Duration) {
        let mut state = self.state.lock();
        if !state.closed {
            state.moves.push_back((Instant::now() + within, device));
            self.changed.notify_all();
        }
    }

    /// Waits for the next step; returns `None` once closed.
    fn wait(&self) -> Option<PlacingStep> {
        let mut state = self.state.lock();
        while !state.closed {
            let now = Instant::now();
            if let Some((_, device)) = state.moves.pop_front_if(|(until, _)| *until <= now) {
                return Some(PlacingStep::GiveUp(device));
            }
            let settled = state.changed.map(|at| at + SETTLE);
            if settled.is_some_and(|at| at <= now) {
                state.changed = None;
                return Some(PlacingStep::Rebalance);
            }
            match settled.into_iter().chain(state.moves.front().map(|(until, _)| *until)).min() {
                Some(until) => drop(self.changed.wait_until(&mut state, until)),
                None => self.changed.wait(&mut state),
            }
        }
        None
    }
}

impl SchedulerShared {
    /// Starts the thread that moves backends.
    pub(super) fn start_placing(&self) -> io::Result<()> {
        let own = self.own.clone();
        let place = move || {
            while let Some(shared) = own.upgrade() {
                match shared.placing.wait() {
                    None => return,
                    Some(PlacingStep::Rebalance) => shared.rebalance(),
                    Some(PlacingStep::GiveUp(device)) => device.give_up(shared.drain_timeout),
                }
            }
        };
        thread::Builder::new().name("scheduler-place".to_owned()).spawn(place).map(drop)
    }

    /// Changes the plan.
    pub(super) fn set_plan(&self, plan: PlacementPlan) -> Result<(), String> {
        let mut peers = self.peers.lock();
        if peers.plan.as_ref() == Some(&plan) {
            return Ok(());
        }
        if !peers.sub_clusters.is_empty() {
            peers.sub_clusters = self.start_engines(&peers.sub_clusters, plan.sub_clusters.len())?;
        }
        let is_first = peers.effective.replace(plan.clone()).is_none();
        if is_first {
            peers.place_waiting(&plan);
        }
        peers.plan = Some(plan);
        let changes = self.reconcile(&mut peers);
        drop(peers);
        self.carry_out(changes);
        self.placing.note_change();
        Ok(())
    }

    /// Merges sub-clusters that have no backend, and moves backends to where they are missing.
    fn rebalance(&self) {
        let is_primary = self.leadership.is_primary();
        let mut peers = self.peers.lock();
        let present = peers.present();
        let Some(plan) = peers.plan.clone().filter(|_| present.iter().any(|&backends| backends > 0)) else { return };
        let merged = plan.merged(&plan.shares(present.iter().sum(), &present));
        if peers.effective.as_ref() != Some(&merged) {
            for name in plan.sub_clusters.iter().flat_map(|part| &part.models) {
                match (plan.place_of(name), merged.place_of(name)) {
                    (Some(from), Some(to)) if from != to => {
                        tracing::warn!("model {name}: sub-cluster {from} has no backend; {to} serves it");
                    }
                    (Some(from), None) => {
                        tracing::error!("model {name}: sub-cluster {from} has no backend, and none has memory for it");
                    }
                    _ => {}
                }
            }
        }
        for (from, to) in if is_primary { merged.moves(&present) } else { Vec::new() } {
            peers.move_backend(from, to);
        }
        peers.effective = Some(merged);
        let changes = self.reconcile(&mut peers);
        if !std::mem::replace(&mut peers.lists_models, true) {
            for name in &peers.loading {
                tracing::info!("model {name} is being loaded; until then requests for it are answered with 503");
            }
            peers.frontends.values().for_each(|frontend| peers.send_models(frontend));
        }
        drop(peers);
        self.carry_out(changes);
    }

    /// Makes changes that need the peers unlocked.
    pub(super) fn carry_out(&self, changes: PendingChanges) {
        let PendingChanges { open, leave, moves } = changes;
        leave.iter().chain(&moves).for_each(|device| device.leave(false));
        moves.into_iter().for_each(|device| self.placing.note_move(device, self.drain_timeout));
        if open.is_empty() {
            return;
        }
        open.into_iter().for_each(|process| self.open_device(process));
        // A model that has moved may leave its old sub-cluster now. Frontends name the new one.
        self.reconcile_now();
        let peers = self.peers.lock();
        peers.frontends.values().for_each(|frontend| peers.send_models(frontend));
    }
}

impl ConnectedPeers {
    /// Returns to the plan as it is written, if each sub-cluster may have a backend again.
    pub(super) fn undo_merges(&mut self) {
        let present = self.present();
        if let Some(plan) = &self.plan
            && plan.merged(&plan.shares(present.iter().sum(), &present)) == *plan
        {
            self.effective = Some(plan.clone());
        }
    }

    /// Places the backends that came before there was a plan.
    pub(super) fn place_waiting(&mut self, plan: &PlacementPlan) {
        let mut present = self.present();
        for backend in self.backends.values_mut().filter(|backend| backend.follows && !backend.stops) {
            present[backend.place] -= 1;
            backend.place = plan.place_for(&present, backend.stated, |name| backend.offers_model(name));
            present[backend.place] += 1;
        }
    }

    /// Makes backends members of the sub-cluster whose models they have.
    pub(super) fn admit_members(&mut self) {
        self.follow_statements();
        let candidates: Vec<ProcessId> =
            self.backends.iter().filter(|(_, backend)| backend.member_of.is_none()).map(|(&id, _)| id).collect();
        for process in candidates {
            let backend = &self.backends[&process];
            if self.has_models_of(backend, backend.place) {
                let place = backend.place;
                self.backends.get_mut(&process).into_iter().for_each(|backend| backend.member_of = Some(place));
            }
        }
    }

    /// Places the backends that another scheduler commands where they say that they belong.
    fn follow_statements(&mut self) {
        let places = self.effective.as_ref().map_or(0, |plan| plan.sub_clusters.len());
        let commanded = |backend: &BackendPeer| backend.follows && backend.told.is_none();
        let stated = self.backends.iter().filter(|(_, backend)| commanded(backend));
        let stated = stated.filter_map(|(&id, backend)| Some((id, backend.stated.filter(|&place| place < places)?)));
        for (process, place) in stated.collect::<Vec<_>>() {
            let home = self.backends[&process].member_of.filter(|&home| home != place);
            let left = home.is_some_and(|home| self.has_left(&self.backends[&process], home));
            let Some(backend) = self.backends.get_mut(&process) else { continue };
            backend.place = place;
            if left {
                backend.member_of = None;
            }
        }
    }

    /// Returns true if a backend no longer has the models of a sub-cluster, or nothing is there.
    fn has_left(&self, backend: &BackendPeer, home: usize) -> bool {
        self.sub_clusters.get(home).is_none_or(|part| {
            let models = part.models.lock();
            models.names().is_empty() || models.check(&backend.offers.lock()).is_err()
        })
    }

    /// Returns true if a backend has the models that a sub-cluster serves, or if it is the first
    /// and has all that it can have.
    fn has_models_of(&self, backend: &BackendPeer, place: usize) -> bool {
        let Some(part) = self.sub_clusters.get(place) else { return false };
        if self.has_members(place) {
            return part.models.lock().check(&backend.offers.lock()).is_ok();
        }
        let planned = self.planned(place);
        let held = planned.iter().filter(|name| backend.offers_model(name)).count();
        held > 0 && (held == planned.len() || !backend.fault.is_empty())
    }

    fn planned(&self, place: usize) -> BTreeSet<String> {
        let part = self.effective.as_ref().and_then(|plan| plan.sub_clusters.get(place));
        part.map(|part| part.models.clone()).unwrap_or_default()
    }

    /// Returns true if nothing is served because there is no plan.
    pub(super) fn lacks_plan(&self) -> bool {
        self.awaits_plan && self.effective.is_none() && self.sub_clusters.listed().is_empty()
    }

    /// Returns the sub-clusters that have models by the plan and serve none.
    pub(super) fn silent_places(&self) -> Vec<usize> {
        let serves = |place| self.sub_clusters.get(place).is_some_and(|part| !part.listed().is_empty());
        let planned = self.effective.iter().flat_map(|plan| plan.sub_clusters.iter().enumerate());
        let planned = planned.filter(|(_, part)| !part.models.is_empty()).map(|(place, _)| place);
        planned.filter(|&place| !serves(place)).collect()
    }

    /// Returns the planned models that are served nowhere, and that a backend on which no load has
    /// failed is to load.
    pub(super) fn models_to_load(&self) -> Vec<String> {
        let mut names = BTreeSet::new();
        let loads = |backend: &&BackendPeer| backend.follows && !backend.stops && backend.fault.is_empty();
        for backend in self.backends.values().filter(loads) {
            names.extend(self.planned(backend.place).into_iter().filter(|name| !backend.offers_model(name)));
        }
        for part in self.sub_clusters.iter() {
            let models = part.models.lock();
            names.retain(|name| !models.serves_name(name));
        }
        names.into_iter().collect()
    }

    /// Returns true if a model is served in this sub-cluster, by a device if there is any.
    pub(super) fn serves_at(&self, place: usize, model: &str) -> bool {
        let any = |place| self.backends.values().any(|backend| backend.member_of == place && backend.has_joined());
        let anywhere = self.backends.values().any(BackendPeer::has_joined);
        let serves = self.sub_clusters.get(place).is_some_and(|part| part.models.lock().serves_name(model));
        serves && (any(Some(place)) || !anywhere)
    }

    /// Makes one backend of a sub-cluster belong to another: rather one that does not serve yet.
    fn move_backend(&mut self, from: usize, to: usize) {
        // One that awaits its first order may belong elsewhere: it moves later.
        let has_orders = |backend: &BackendPeer| !backend.follows || backend.told.is_some();
        let moves = self.backends.values_mut();
        let moves = moves.filter(|backend| backend.place == from && !backend.stops && has_orders(backend));
        if let Some(backend) = moves.min_by_key(|backend| (backend.has_joined(), !backend.follows)) {
            tracing::info!(from, to, "a backend moves from sub-cluster {from} to {to}");
            backend.place = to;
            if backend.follows && matches!(backend.stage, DeviceStage::Absent) {
                backend.member_of = None;
            }
        }
    }

    /// Sends orders to the backends that this scheduler commands, and returns the changes of their
    /// devices.
    pub(super) fn pending_changes(&mut self) -> PendingChanges {
        let mut changes = PendingChanges::default();
        let ready: Vec<ProcessId> =
            self.backends.iter().filter(|(_, backend)| backend.ready).map(|(&process, _)| process).collect();
        for process in ready {
            if self.backends[&process].follows && self.effective.is_none() {
                continue;
            }
            let (names, leaves) = self.models_for(&self.backends[&process]);
            let Some(backend) = self.backends.get_mut(&process) else { continue };
            let told = (backend.place, names);
            if backend.follows && !backend.stops && backend.told.as_ref() != Some(&told) {
                // Sent under the lock of the peers, since the last order that is sent must be the
                // latest.
                let place = u32::try_from(told.0).unwrap_or(u32::MAX);
                backend.link.send(&Message::Place(place, encode_names(&told.1).into()));
                backend.told = Some(told);
            }
            if leaves && backend.has_joined() {
                let left = if backend.stops { &mut changes.leave } else { &mut changes.moves };
                left.extend(backend.begin_leave());
            } else if backend.member_of.is_some() && matches!(backend.stage, DeviceStage::Absent) {
                backend.stage = DeviceStage::Opening(false);
                changes.open.push(process);
            }
        }
        changes
    }

    /// Returns the models that a backend shall have, and whether it leaves its sub-cluster for
    /// another now.
    fn models_for(&self, backend: &BackendPeer) -> (BTreeSet<String>, bool) {
        let names = |part: &Arc<SubClusterEngine>| part.models.lock().names();
        let home = backend.member_of.and_then(|place| self.sub_clusters.get(place));
        let mut held = home.map(names).unwrap_or_default();
        let planned = self.planned(backend.place);
        let fits = |held: &BTreeSet<String>, model: &String| {
            self.effective.as_ref().is_none_or(|plan| held.contains(model) || plan.fits(held.iter().chain([model])))
        };
        let mut all_fit = true;
        for model in planned {
            let fits = fits(&held, &model);
            all_fit &= fits;
            if fits {
                held.insert(model);
            }
        }
        let leaves = |home: &SubClusterEngine| home.place != backend.place || backend.stops;
        let Some(home) = home.filter(|home| leaves(home)) else { return (held, false) };
        let is_other = |other: &&BackendPeer| other.member_of == Some(home.place) && other.has_joined();
        let is_needed = self.backends.values().filter(is_other).count() < 2 && !names(home).is_empty();
        let is_prepared = !backend.follows || backend.stops || !all_fit || self.has_models_of(backend, backend.place);
        (held, !is_needed && is_prepared)
    }
}
