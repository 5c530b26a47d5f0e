//! Newcomers that catch up with batches of their model on a device.

use super::UnifiedScheduler;
use super::arbiter::{OfferedTask, TaskOffer};
use super::batches::queued;
use crate::Limits;
use crate::estimate::cost;
use crate::estimate::play::{Forecast, Play};
use crate::tables::cohorts::CohortId;
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, Time};

/// The forecaster of whether newcomers catch up.
#[derive(Debug)]
pub(super) struct JoinForecast {
    /// Plays both options to their end.
    play: Play,
    /// Scratch: cohorts that newcomers may join.
    stack: Vec<CohortId>,
}

impl JoinForecast {
    pub(super) fn new(limits: &Limits) -> JoinForecast {
        JoinForecast { play: Play::new(limits), stack: Vec::with_capacity(limits.requests + 1) }
    }
}

impl UnifiedScheduler {
    /// Returns the offer of newcomers that catch up with cohorts of their model on a device. There
    /// is one if the requests of both are answered sooner together, and none is late for it.
    pub(super) fn offer_joining(
        &mut self,
        now: Time,
        device: DeviceId,
        id: ModelId,
        top: CohortId,
    ) -> Option<TaskOffer> {
        let served = self.models.get(id);
        let head = served.queue.head()?;
        if served.groups.is_some() || self.cohorts.get(top).block == BlockId(0) {
            return None;
        }
        self.joining.stack.clear();
        let of_model = self.devices[device].held.iter().filter(|&&held| self.cohorts.get(held).model == id);
        self.joining.stack.extend(of_model);
        let held: usize = self.joining.stack.iter().map(|&id| self.cohorts.get(id).rows).sum();
        let room = served.load.sizes.max_batch.saturating_sub(held);
        let rows = served.queue.fill(&self.requests, head, room, served.queue.rows());
        if rows == 0 {
            return None;
        }
        let elsewhere = self.devices.frees_in(now, Some(device));
        let elsewhere = if elsewhere == Nanos::MAX { Time::NEVER } else { now + elsewhere };
        let UnifiedScheduler { joining: JoinForecast { play, stack }, models, requests, cohorts, devices, .. } = self;
        // The forecast knows profiles only.
        let profiled = cost::of_blocks(&models.get(id).model, BlockId(0), held + rows, 1);
        let learnt = models.get(id).load.of_blocks(&models.get(id).model, BlockId(0), held + rows, 1).0;
        let percent =
            devices[device].takes(learnt).scale(100, profiled.0.max(1).cast_unsigned()).0.clamp(1, 100_000) as u32;
        let forecast = Forecast { now, percent, models, until_end: |_| 1, requests, cohorts, stack };
        let joining = play.join(forecast, elsewhere, id, queued(requests, head, rows).map(RequestSlot));
        let [joined, before] = joining.ends;
        let made_late = |slot: RequestSlot| (before..joined).contains(&requests.get(slot.0).deadline);
        let any_late = stack.iter().flat_map(|&held| cohorts.members(held)).any(made_late);
        let newcomer_late = |slot: u32| (now..joined).contains(&requests.get(slot).deadline);
        if !joining.pays || any_late || queued(requests, head, rows).any(newcomer_late) {
            return None;
        }
        let members = self.joining.stack.iter().flat_map(|&held| self.cohorts.members(held)).map(|slot| slot.0);
        let members = members.chain(queued(&self.requests, head, rows));
        let outlook = self.outlook(now, id, members, joined - now);
        Some(TaskOffer { whole: joined - now, pinned: true, ..self.offer(id, OfferedTask::Join { rows }, outlook) })
    }
}
