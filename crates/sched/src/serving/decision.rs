//! A decision: which task a device runs next. What it needs of the other devices and of all models
//! is computed once.

use super::devices::UnifiedDevice;
use super::load::in_batches;
use super::model_estimate::SECOND;
use super::{UnifiedEntry, UnifiedModel};
use crate::tables::devices::Devices;
use crate::tables::models::Models;
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use std::cell::OnceCell;

/// A device that is free, or that gets its next task ahead.
#[derive(Debug)]
pub(super) struct Decision {
    /// Start of the task, if it is a batch.
    pub(super) now: Time,
    pub(super) device: DeviceId,
    /// Number of free devices with this one; 1 for a task ahead.
    pub(super) idle: usize,
    /// Time until another device is free; `Nanos::MAX` if there is none.
    pub(super) frees_in: Nanos,
    /// The two models whose next request could wait least, and that time.
    tightest: OnceCell<[(Nanos, Option<ModelId>); 2]>,
    /// Backlog of all models in batches.
    backlog: OnceCell<Backlog>,
}

/// Waiting rows of models in batches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backlog {
    /// Number of rows.
    pub(super) rows: u64,
    /// Device time that they take.
    pub(super) work: Nanos,
    /// Rows that arrive per second.
    pub(super) rate: u64,
}

impl Decision {
    pub(super) fn new(devices: &Devices<UnifiedDevice>, now: Time, device: DeviceId, idle: usize) -> Decision {
        let frees_in = devices.frees_in(now, Some(device));
        Decision { now, device, idle, frees_in, tightest: OnceCell::new(), backlog: OnceCell::new() }
    }

    /// Returns how long a request of any other model that has arrivals could wait;
    /// [`Nanos::MAX`] without one.
    pub(super) fn tightest_other(&self, models: &Models<UnifiedModel>, id: ModelId) -> Nanos {
        let [(least, whose), (second, _)] = *self.tightest.get_or_init(|| {
            let mut least = [(Nanos::MAX, None); 2];
            for (id, served) in in_batches(models).filter(|(_, of)| of.load.arrivals.rate.rate(self.now).is_some()) {
                let slack = served.model.slo - served.load.mean(1);
                if slack < least[0].0 {
                    least = [(slack, Some(id)), least[0]];
                } else if slack < least[1].0 {
                    least[1] = (slack, Some(id));
                }
            }
            least
        });
        if whose == Some(id) { second } else { least }
    }

    /// Returns the backlog of all models but one, which runs in batches.
    pub(super) fn backlog_of_others(&self, models: &Models<UnifiedModel>, id: ModelId) -> Backlog {
        let all = self.backlog.get_or_init(|| {
            in_batches(models).map(|(_, served)| backlog(served, self.now)).fold(Backlog::default(), |sum, of| {
                Backlog { rows: sum.rows + of.rows, work: sum.work + of.work, rate: sum.rate + of.rate }
            })
        });
        let own = backlog(models.get(id), self.now);
        Backlog { rows: all.rows - own.rows, work: all.work - own.work, rate: all.rate - own.rate }
    }
}

fn backlog(served: &UnifiedEntry, now: Time) -> Backlog {
    let rows = served.queue.rows();
    let batch = rows.min(served.load.costs.reach.largest() as u64).max(1);
    let work = if rows > 0 { served.load.mean(batch as usize).scale(rows, batch) } else { Nanos::ZERO };
    Backlog { rows, work, rate: served.load.arrivals.rate.rate(now).map_or(0, |rate| rate.rows_in(SECOND)) }
}
