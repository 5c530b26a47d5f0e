//! Makes engines serve what the backends offer and the plan has, after each change of either.

use super::placing::PendingChanges;
use super::releases::{TableModel, common};
use super::sub_clusters::SubClusterEngine;
use super::{ConnectedPeers, SchedulerShared};
use crate::description::ModelDescription;
use crate::plane::PeerLink;
use ripieno_base::ModelId;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time for frontends to name the newer model in their requests: one that does nothing for longer
/// counts as gone.
const RETIRE_GRACE: Duration = PeerLink::MAX_SILENCE;
/// Longest time for the last requests of a model that is replaced.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which they are counted.
const RETIRE_POLL: Duration = Duration::from_millis(50);

impl SchedulerShared {
    /// Serves in each sub-cluster what all of its backends offer, and returns what is to be done
    /// once the peers are unlocked. Call it after each change of them.
    pub(super) fn reconcile(&self, peers: &mut ConnectedPeers) -> PendingChanges {
        peers.admit_members();
        let (mut changed, mut left) = (false, Vec::new());
        let wanted: Vec<_> = peers.sub_clusters.iter().map(|part| wanted_of(peers, part.place)).collect();
        for (part, wanted) in peers.sub_clusters.iter().zip(&wanted) {
            changed |= load_wanted(part, wanted);
        }
        for (part, wanted) in peers.sub_clusters.iter().zip(&wanted) {
            let has_members = peers.has_members(part.place);
            let is_over = |description: &ModelDescription| match peers.place_of(&description.name) {
                Some(place) if place == part.place => {
                    has_members && !wanted.iter().any(|other| other.is_same(description))
                }
                Some(place) => peers.serves_at(place, &description.name),
                None => true,
            };
            let gone = part.models.lock().leave_others(wanted, is_over);
            left.extend(gone.into_iter().map(|id| (Arc::clone(part), id)));
        }
        peers.lists_models |= peers.silent_places().is_empty() && !peers.lacks_plan();
        let loading = peers.models_to_load();
        let loads_others = std::mem::replace(&mut peers.loading, loading) != peers.loading;
        changed |= !left.is_empty();
        if changed {
            (self.on_serving)(Some(peers.sub_clusters.served()));
        }
        if changed || loads_others {
            peers.frontends.values().for_each(|frontend| peers.send_models(frontend));
        }
        for (part, id) in left {
            let own = self.own.clone();
            let retire = thread::Builder::new().name("scheduler-retire".to_owned()).spawn(move || {
                part.retire(id);
                if let Some(own) = own.upgrade() {
                    own.reconcile_now();
                }
            });
            if let Err(error) = retire {
                tracing::error!(%error, "no thread to unload a model");
            }
        }
        peers.pending_changes()
    }

    /// Applies a change of what is planned or served.
    pub(super) fn reconcile_now(&self) {
        let mut peers = self.peers.lock();
        let changes = self.reconcile(&mut peers);
        drop(peers);
        self.carry_out(changes);
    }
}

/// Returns the models that a sub-cluster serves by its plan and its backends.
fn wanted_of(peers: &ConnectedPeers, place: usize) -> Vec<ModelDescription> {
    let mut wanted = common(&peers.offers(place));
    wanted.retain(|description| peers.place_of(&description.name) == Some(place));
    wanted
}

/// Loads the wanted models that the engine does not have. Returns true if there were any.
fn load_wanted(part: &SubClusterEngine, wanted: &[ModelDescription]) -> bool {
    let mut table = part.models.lock();
    let mut changed = false;
    for description in wanted {
        if table.serves(description) {
            continue;
        }
        let (name, version) = (&description.name, &description.version);
        let loaded = description.served().and_then(|model| part.engine.load(model).map_err(|error| error.to_string()));
        match loaded {
            Ok(id) => {
                tracing::info!(sub_cluster = part.place, "model {name}: version {version} is served by all backends");
                table.faults.remove(name);
                table.models.push(TableModel { id, description: description.clone(), leaving: false });
                changed = true;
            }
            Err(cause) => {
                // Each backend that comes or goes has the model tried again.
                if table.set_fault(name, cause.clone()) {
                    tracing::error!("model {name}: version {version} is not served: {cause}");
                }
            }
        }
    }
    changed
}

impl SubClusterEngine {
    /// Unloads a model once its last request has ended.
    fn retire(&self, id: ModelId) {
        thread::sleep(RETIRE_GRACE);
        let begun = Instant::now();
        let is_live = || self.engine.model_metrics(id).is_some_and(|model| model.live > 0);
        while is_live() && begun.elapsed() < RETIRE_TIMEOUT {
            thread::sleep(RETIRE_POLL);
        }
        if let Err(error) = self.engine.unload(id) {
            tracing::debug!(model = id.0, %error, "a model is gone already");
        }
        self.models.lock().models.retain(|model| model.id != id);
    }
}
