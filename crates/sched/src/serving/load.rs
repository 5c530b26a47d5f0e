//! The load of all models together: utilisation, waits of models for each other, and the price of
//! device time.

use super::former::Former;
use super::model_estimate::{ModelEstimate, REFRESH, SECOND, moving_mean};
use super::{UnifiedEntry, UnifiedModel};
use crate::Objective;
use crate::estimate::scarcity::{Price, Scarcity};
use crate::tables::models::Models;
use ripieno_base::{ModelId, Nanos, Permille, Time};

/// Planned utilisation of the devices; the rest absorbs random arrivals.
const UTILISATION: Permille = Permille::from_parts(900);
/// Upper bound on the utilisation ρ where ρ / (1 − ρ) estimates the requests that wait for a device
/// while one runs.
pub(super) const MOST_UTILISATION: Permille = Permille::from_parts(900);
/// Wait for a device that a model expects if all load is of other models, in their mean batches.
const BLOCKING_BATCHES: u64 = 2;

/// The load of all models together.
#[derive(Debug)]
pub(super) struct LoadEstimate {
    /// The objective: latency or efficiency.
    pub(super) objective: Objective,
    /// Price of device time.
    scarcity: Scarcity,
    /// Mean duration of a batch.
    pub(super) mean_batch: Nanos,
    /// Number of devices that all models in batches keep busy, in batches like the recent ones.
    /// Models in cells are not counted.
    pub(super) recent_load: Permille,
    /// Number of devices that all models in batches would keep busy in batches of the target size.
    /// Padded models count in batches like the recent ones.
    pub(super) target_load: Permille,
    /// Work of the recent tasks, in the device time that the best batches would have needed.
    best_case_work: Nanos,
    /// The part of the device time that the best batches would have needed: a moving mean over 8
    /// refreshes.
    pub(super) utilisation: Permille,
    /// Time of the last refresh.
    pub(super) refreshed: Time,
    /// The model whose costs may be derived next.
    next_derived: ModelId,
}

/// Returns the models that run in batches.
pub(super) fn in_batches(models: &Models<UnifiedModel>) -> impl Iterator<Item = (ModelId, &UnifiedEntry)> {
    models.iter().filter(|(_, served)| served.load.former != Former::Cells)
}

impl LoadEstimate {
    pub(super) fn new(objective: Objective) -> LoadEstimate {
        LoadEstimate {
            objective,
            scarcity: Scarcity::default(),
            mean_batch: Nanos::ZERO,
            recent_load: Permille::ZERO,
            target_load: Permille::ZERO,
            best_case_work: Nanos::ZERO,
            utilisation: Permille::ZERO,
            refreshed: Time::ORIGIN,
            next_derived: ModelId(0),
        }
    }

    /// Returns whether rates are to be updated.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        now - self.refreshed >= REFRESH
    }

    /// Updates everything that depends on rates.
    pub(super) fn refresh(&mut self, now: Time, models: &mut Models<UnifiedModel>, devices: usize) {
        let elapsed = now - self.refreshed;
        let span = elapsed * devices.max(1) as i64;
        self.utilisation = moving_mean(self.utilisation, Permille::of(self.best_case_work, span), elapsed);
        (self.refreshed, self.best_case_work) = (now, Nanos::ZERO);
        // Deriving the costs of large batches takes a while, so a refresh derives them for one
        // model only.
        let (mut derived, next) = (false, self.next_derived);
        for (id, served) in models.iter_mut() {
            let max_batch = served.max_batch;
            if served.own.load.refresh_costs(now, &served.model, !derived && id >= next) {
                (derived, self.next_derived) = (true, ModelId(id.0 + 1));
            }
            served.own.load.refresh_need(elapsed);
            served.own.load.refresh_target(now, &served.model, max_batch);
        }
        if !derived {
            self.next_derived = ModelId(0);
        }
        let sum =
            |of: fn(&ModelEstimate) -> Permille| models.iter().map(|(_, served)| of(&served.load)).sum::<Permille>();
        let (target_load, recent_load) = (sum(|load| load.demand.target_load), sum(|load| load.demand.recent_load));
        let devices = devices.max(1) as u64;
        let (mut batches, mut work) = (0, Nanos::ZERO);
        for (_, served) in models.iter_mut().filter(|(_, served)| served.load.former != Former::Cells) {
            let most = devices.min(served.model.instances.max(1) as u64);
            let load = &mut served.own.load;
            let part = load.demand.target_load.parts();
            let share = UTILISATION.parts() * devices * part / target_load.parts().max(1);
            let room = Permille::from_parts(share.min(UTILISATION.parts() * most));
            load.refresh_sizes(now, room, recent_load - load.demand.recent_load, devices);
            let rows = load.arrivals.rate.rate(now).map_or(0, |rate| rate.rows_in(SECOND));
            batches += rows / load.sizes.min_stable_batch as u64;
            work += load.mean(load.sizes.min_stable_batch).scale(rows, load.sizes.min_stable_batch as u64);
        }
        (self.recent_load, self.target_load) = (recent_load, target_load);
        self.mean_batch = Nanos(work.0 / batches.max(1) as i64);
        self.refresh_waits(now, models, devices);
    }

    /// Updates the time for which models wait for each other.
    fn refresh_waits(&self, now: Time, models: &mut Models<UnifiedModel>, devices: u64) {
        // The device time that batches of other models may take before a request of this one: its
        // slack on each device. Half of one slack is left to requests that are as urgent.
        let wait =
            |served: &UnifiedEntry| (served.model.slo - served.load.mean(1)).max(Nanos::ZERO).scale(2 * devices - 1, 2);
        let active = in_batches(models).filter(|(_, served)| served.load.arrivals.rate.rate(now).is_some());
        let mut shortest = [(Nanos::MAX, None); 2];
        for (id, served) in active {
            let wait = (wait(served), Some(id));
            if wait.0 < shortest[0].0 {
                shortest = [wait, shortest[0]];
            } else if wait.0 < shortest[1].0 {
                shortest[1] = wait;
            }
        }
        let all = self.recent_load.parts().max(1);
        for (id, served) in models.iter_mut() {
            let load = &mut served.own.load;
            let others = self.recent_load - load.demand.recent_load;
            load.waits.blocking = self.mean_batch.scale(BLOCKING_BATCHES * others.parts(), all * devices);
            load.waits.max_wait = if shortest[0].1 == Some(id) { shortest[1].0 } else { shortest[0].0 };
        }
    }

    /// Returns the price of device time.
    pub(super) fn price(&self, now: Time) -> Price {
        match self.objective {
            Objective::Latency => self.scarcity.price(now, self.mean_batch),
            Objective::Efficiency => Price::WHOLE,
        }
    }

    /// Records rows that start, or (`passed`) that are passed over, dropped or refused.
    pub(super) fn observe(&mut self, rows: usize, passed: bool) {
        self.scarcity.observe(rows, passed);
    }

    /// Records the start of a batch.
    pub(super) fn on_start(&mut self, now: Time) {
        self.scarcity.note_activity(now, self.mean_batch);
    }

    /// Records work that the best batches would have done in `best`.
    pub(super) fn on_work(&mut self, best: Nanos) {
        self.best_case_work += best;
    }
}
