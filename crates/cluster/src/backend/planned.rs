//! The models of a backend's process that follow a plan: loaded and unloaded as the primary says.
//!
//! The devices of a process may belong to different sub-clusters; the process has the models of
//! all. One thread changes them, one model at a time: a load may take minutes, and meanwhile later
//! orders replace earlier ones. A model is loaded before another one is unloaded.

use super::models::BackendModels;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Time after which a load that failed is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Loads or unloads a model of this process's repository, by name; the flag says unload.
type ChangeModel = Box<dyn Fn(&str, bool) -> Result<(), String> + Send + Sync>;

/// The planned models of a process, which its devices share.
pub struct PlannedModels {
    change: ChangeModel,
    models: Arc<BackendModels>,
    orders: Mutex<PlacementOrders>,
    changed: Condvar,
}

#[derive(Default)]
struct PlacementOrders {
    /// The models that each device shall have, by the device's number.
    wanted: BTreeMap<u64, BTreeSet<String>>,
    /// The number of orders so far.
    revision: u64,
}

impl PlannedModels {
    /// Returns the models that `change` loads and unloads, none of which is loaded yet. `available`
    /// has the models of the repository, with their sizes in bytes.
    pub fn start(
        models: Arc<BackendModels>,
        available: BTreeMap<String, u64>,
        change: ChangeModel,
    ) -> io::Result<Arc<PlannedModels>> {
        models.follow_plans(available);
        let planned = Arc::new(PlannedModels { change, models, orders: Mutex::default(), changed: Condvar::new() });
        let own = Arc::downgrade(&planned);
        thread::Builder::new().name("backend-plan".to_owned()).spawn(move || carry_out(&own))?;
        Ok(planned)
    }

    /// Sets the models that a device shall have.
    pub(super) fn set(&self, device: u64, models: BTreeSet<String>) {
        let mut orders = self.orders.lock();
        orders.wanted.insert(device, models);
        orders.revision += 1;
        self.changed.notify_all();
    }

    /// Makes one change towards the orders. Returns false if nothing is left to do, or nothing that
    /// has not failed.
    fn advance(&self, loaded: &mut BTreeSet<String>, failed: &mut BTreeMap<String, String>) -> bool {
        let wanted: BTreeSet<String> = self.orders.lock().wanted.values().flatten().cloned().collect();
        failed.retain(|name, _| wanted.contains(name));
        let missing = wanted.iter().find(|name| !loaded.contains(*name) && !failed.contains_key(*name)).cloned();
        if let Some(name) = missing {
            tracing::info!("the plan has model {name} here: it is loaded");
            match (self.change)(&name, false) {
                Ok(()) => drop(loaded.insert(name)),
                Err(cause) => drop(failed.insert(name, cause)),
            }
            return true;
        }
        let Some(name) = loaded.difference(&wanted).next().cloned() else { return false };
        tracing::info!("the plan does not have model {name} here: it is unloaded");
        if let Err(cause) = (self.change)(&name, true) {
            tracing::warn!("model {name} is not unloaded: {cause}");
        }
        loaded.remove(&name);
        true
    }

    /// Waits for orders later than `seen`, or until failed loads are tried again.
    fn wait(&self, seen: u64) {
        let mut orders = self.orders.lock();
        if orders.revision == seen {
            self.changed.wait_for(&mut orders, RETRY);
        }
    }
}

/// Carries out orders as long as the process has use for them.
fn carry_out(planned: &Weak<PlannedModels>) {
    let (mut loaded, mut failed) = (BTreeSet::new(), BTreeMap::new());
    while let Some(planned) = planned.upgrade() {
        let next = planned.orders.lock().revision;
        while planned.advance(&mut loaded, &mut failed) {}
        let fault = |(name, cause): (&String, &String)| format!("model {name:?}: {cause}");
        planned.models.set_fault(failed.iter().map(fault).collect::<Vec<_>>().join("; "));
        planned.wait(next);
        failed.clear();
    }
}
