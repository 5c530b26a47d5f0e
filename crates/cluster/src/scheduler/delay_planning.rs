//! Gives the measured delays to the engines, which plan with them.
//!
//! Every batch of a sub-cluster is planned with the delays of its slowest backend: which backend
//! will run a batch is open while the batch is formed. The rejected alternative, delays of each
//! device, would need that choice first.

use super::SchedulerShared;
use super::sub_clusters::SubClusterEngine;
use ripieno_runtime::NetworkDelay;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Time between two looks at what was measured.
const INTERVAL: Duration = Duration::from_secs(1);

impl SchedulerShared {
    /// Starts the thread that hands on what was measured.
    pub(super) fn start_delay_planning(&self) -> io::Result<()> {
        let own = self.own.clone();
        let plan = move || {
            loop {
                thread::sleep(INTERVAL);
                let Some(shared) = own.upgrade() else { return };
                shared.plan_delays();
            }
        };
        thread::Builder::new().name("scheduler-delay".to_owned()).spawn(plan).map(drop)
    }

    /// Tells each engine the delay of its slowest backend, if that has changed.
    fn plan_delays(&self) {
        let mut slowest: BTreeMap<usize, (Arc<SubClusterEngine>, NetworkDelay)> = BTreeMap::new();
        for (part, delay) in self.peers.lock().backends.values().filter_map(|backend| backend.planned_delay()) {
            let (_, of_part) = slowest.entry(part.place).or_insert_with(|| (Arc::clone(part), delay));
            of_part.control = of_part.control.max(delay.control);
            of_part.data_per_row = of_part.data_per_row.max(delay.data_per_row);
        }
        for (place, (part, delay)) in slowest {
            if part.delay.lock().replace(delay) != Some(delay) {
                let [control_us, row_us] = [delay.control, delay.data_per_row].map(|delay| delay.0 / 1_000);
                tracing::debug!(sub_cluster = place, control_us, row_us, "batches are planned with these delays");
                part.engine.set_network_delay(delay);
            }
        }
    }
}
