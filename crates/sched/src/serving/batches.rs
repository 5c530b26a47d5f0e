//! The former of whole models and chains: how large a batch is, when it starts, and which requests
//! are dropped. Newcomers that join a batch on its way are in `joining.rs`.

use super::arbiter::{OfferOutlook, OfferedTask, TaskOffer};
use super::cut::{Others, Waiting};
use super::decision::{Backlog, Decision};
use super::{UnifiedEntry, UnifiedScheduler};
use crate::estimate::cost;
use crate::estimate::scarcity::Price;
use crate::tables::cohorts::CohortId;
use crate::tables::requests::Requests;
use crate::{Objective, Request, WaitGain, Why};
use ripieno_base::{DeviceId, ModelId, Nanos, Permille, RequestSlot, Time};
use ripieno_model::DropRule;

impl UnifiedScheduler {
    /// Drops requests that could not be in time even alone.
    pub(super) fn drop_hopeless(&mut self, now: Time) {
        let UnifiedScheduler { models, requests, pending, load, .. } = self;
        for (_, served) in models.iter_mut() {
            let drop = served.drop;
            if served.groups.is_some() && drop == DropRule::Never {
                continue;
            }
            while let Some(head) = served.queue.head().filter(|&head| now > last_start(served, requests, head)) {
                let rows = requests.get(head).rows as usize;
                served.own.queue.pass_over(requests, now, head, drop, pending);
                served.own.load.on_lost(rows);
                load.observe(rows, true);
            }
            if served.queue.overdue().is_some() {
                let mut queue = served.queue;
                let dropped = queue.expire(requests, now, drop, |rows| alone(served, rows, 1), pending);
                served.own.queue = queue;
                served.own.load.on_lost(dropped);
            }
        }
    }

    /// Returns the time at which the next request is to be dropped.
    pub(super) fn next_drop(&self) -> Time {
        let mut next = Time::NEVER;
        for (_, served) in self.models.iter() {
            if served.groups.is_some() && served.drop == DropRule::Never {
                continue;
            }
            if let Some(head) = served.queue.head() {
                next = next.min(last_start(served, &self.requests, head).next());
            }
            next = next.min(served.queue.next_expiry(&self.requests, served.drop, |rows| alone(served, rows, 1)));
        }
        next
    }

    /// Drops requests on a free device that cannot be in time any more since others went first.
    pub(super) fn drop_overtaken(&mut self, now: Time, device: DeviceId) {
        let UnifiedScheduler { models, requests, cohorts, pending, devices, .. } = self;
        for at in (0..devices[device].held.len()).rev() {
            let cohort = devices[device].held[at];
            let id = cohorts.get(cohort).model;
            let served = models.get_mut(id);
            let mut goes_on = served.drop == DropRule::Hopeless;
            while goes_on {
                let held = cohorts.get(cohort);
                let (mean, _) = served.load.of_blocks(&served.model, held.block, held.rows, held.length);
                let end = now + devices[device].takes(mean);
                let first = cohorts.members(cohort).min_by_key(|slot| requests.get(slot.0).deadline);
                let Some(slot) = first.filter(|slot| requests.get(slot.0).deadline < end) else { break };
                goes_on = cohorts.leave(slot).is_some();
                served.own.load.on_lost(requests.get(slot.0).rows as usize);
                requests.reject(slot.0, Why::Hopeless, pending);
                if goes_on {
                    // The others may all continue at a later block.
                    cohorts.advance(cohort, |slot| unreachable!("{slot:?} had not ended"));
                } else {
                    devices[device].held.remove(at);
                    served.own.devices -= usize::from(!devices.holds_model(cohorts, device, id));
                }
            }
        }
    }

    /// Adds the offers of a model in batches for a free device.
    pub(super) fn offer_batches(&mut self, decision: &Decision, id: ModelId) {
        let &Decision { now, device, idle, .. } = decision;
        let held = self.devices[device].held.iter().rev().copied().filter(|_| !self.devices.runs_batch(device));
        if let Some(top) = held.clone().find(|&held| self.cohorts.get(held).model == id) {
            let joining = if self.devices[device].present { self.offer_joining(now, device, id, top) } else { None };
            let offer = joining.unwrap_or_else(|| self.resume(now, device, id, top));
            self.offers.push(offer);
            return;
        }
        let served = self.models.get(id);
        // A batch behind another one of its model runs on no further device.
        let devices = served.devices - usize::from(self.devices.runs_model(device, id));
        if served.queue.any().is_none() || devices >= served.model.instances.max(1) || !self.devices[device].present {
            return;
        }
        if let Some(late) = self.late_offer(now, device, id) {
            self.offers.push(late);
            if served.model.in_arrival_order {
                return;
            }
        }
        if served.queue.head().is_none() {
            return;
        }
        if served.groups.is_some() {
            self.offer_groups(now, device, id);
            return;
        }
        let most = self.max_rows_beside_others(self.models.get(id));
        let Some((first, rows, full)) = self.candidate(now, id, device, most) else { return };
        // A batch into which the next request does not fit gains nothing from waiting for others.
        let most = if full { rows } else { most };
        let (until, gain) = self.waits_until(now, device, id, (first, rows), most);
        let last = if idle == 1 { self.leaves_last_until(decision, id, (first, rows)) } else { now };
        let (until, gain) = if last > until { (last, WaitGain::LastDevice) } else { (until, gain) };
        if until > now {
            // While the device runs a step, no device is free: the end of the step decides anew.
            if self.devices[device].running.is_none() {
                self.wakeup = self.wakeup.min(until);
                self.explain_wait(id, RequestSlot(first), gain, until);
            }
            return;
        }
        let rows = self.share_of(decision, id, (first, rows));
        let offer = self.batch_offer(now, device, id, (first, rows), OfferedTask::Batch { first, rows });
        self.offers.push(offer);
    }

    /// Returns the offer of a new batch.
    pub(super) fn batch_offer(
        &self,
        now: Time,
        device: DeviceId,
        id: ModelId,
        (first, rows): (u32, usize),
        task: OfferedTask,
    ) -> TaskOffer {
        let served = self.models.get(id);
        let device = &self.devices[device];
        let outlook =
            self.outlook(now, id, queued(&self.requests, first, rows), device.takes(served.load.promised(rows)));
        TaskOffer {
            whole: device.takes(served.load.mean(rows)),
            doubles_in: served.load.doubles_in(now, served.model.slo, rows),
            waste: served.load.waste(now, rows, |rows| served.load.mean(rows)),
            ..self.offer(id, task, outlook)
        }
    }

    /// Returns an offer without times.
    pub(super) fn offer(&self, model: ModelId, task: OfferedTask, outlook: OfferOutlook) -> TaskOffer {
        TaskOffer {
            model,
            task,
            outlook,
            span: Nanos::ZERO,
            whole: Nanos::ZERO,
            doubles_in: self.models.get(model).model.slo,
            rows: 0,
            left: 0,
            max_rows: 0,
            waste: Permille::ZERO,
            late_cost: UnifiedScheduler::late_cost(self.models.get(model)),
            pinned: false,
        }
    }

    /// Returns the urgency of requests that are answered within `promised` of their start.
    pub(super) fn outlook(
        &self,
        now: Time,
        id: ModelId,
        members: impl Iterator<Item = u32>,
        promised: Nanos,
    ) -> OfferOutlook {
        let served = self.models.get(id);
        let mut outlook = OfferOutlook::NONE;
        for request in members.map(|slot| self.requests.get(slot)) {
            let start = request.deadline - promised;
            let weight = UnifiedScheduler::weight(served, now - request.arrived, start - now);
            outlook.add(now, (request.slot, request.rows), weight, start);
        }
        outlook
    }

    /// Returns the largest batch of at most `most` rows that can be in time: from the first request
    /// on, or from a later one if passing over some lets the batch reach its target. The flag says
    /// whether the next request does not fit.
    fn candidate(&self, now: Time, id: ModelId, device: DeviceId, most: usize) -> Option<(u32, usize, bool)> {
        let served = self.models.get(id);
        let device = &self.devices[device];
        let room = |first: u32| {
            let request = self.requests.get(first);
            room(served, request, device.by_profile(request.deadline - now), most)
        };
        let from = (served.queue.head()?, served.queue.rows());
        match served.queue.gather(&self.requests, from, served.load.wanted_batch().min(most), room) {
            Some(batch) => Some(batch),
            None if served.drop == DropRule::Hopeless => None,
            // Requests that may be late keep a slow device busy.
            None => {
                let room = most.max(self.requests.get(from.0).rows as usize);
                let rows = served.queue.fill(&self.requests, from.0, room, from.1);
                Some((from.0, rows, (rows as u64) < from.1))
            }
        }
    }

    /// Returns the time until which a batch waits for further requests, `most` rows in all, and the
    /// gain. This is the rule for how long a batch waits: it waits while that gains more than it
    /// costs.
    ///
    /// The wait ends when no row has come for as long as the fuller batch takes. Under the
    /// objective of efficiency it lasts at least half of the time that the fuller batch leaves.
    fn waits_until(
        &self,
        now: Time,
        device: DeviceId,
        id: ModelId,
        (first, rows): (u32, usize),
        most: usize,
    ) -> (Time, WaitGain) {
        let served = self.models.get(id);
        let load = &served.load;
        let price = self.load.price(now);
        let deadline = self.requests.get(first).deadline - served.load.waits.blocking;
        let promised = |rows: usize| self.devices[device].takes(load.promised(rows));
        let frontrun = self.frontrun(served, device, (first, rows));
        let spaced = self.spaced_from(served, price > Price::ZERO, most).min(frontrun).max(now);
        // If no more rows arrived within the window than wait here, nothing is known of future
        // ones.
        let known = load.arrivals.rate.rate(now).filter(|rate| price > Price::ZERO && rate.rows > rows as u64);
        let Some(rate) = known else { return (spaced, WaitGain::EvenSpacing) };
        let last = load.arrivals.rate.last();
        for more in rows + 1..=most {
            let (latest, gather) = (deadline - promised(more), rate.gather_time(more - rows));
            if latest - gather <= now {
                break;
            }
            let apart = load.mean(rows).scale(price.parts() * more as u64, Price::WHOLE.parts() * rows as u64);
            let saved = apart - load.mean(more);
            // Nothing comes any more if nothing has come for as long as the fuller batch takes.
            let silence = load.mean(more);
            let until = match self.load.objective {
                _ if saved <= Nanos::ZERO => last,
                Objective::Latency => last + silence,
                Objective::Efficiency => last + silence.max(Nanos((latest - last).0 / 2)),
            };
            if until > now {
                return (until.min(latest - gather).max(spaced), WaitGain::FullerBatch);
            }
        }
        (spaced, WaitGain::EvenSpacing)
    }

    /// Returns the time at which a batch would have to start with one more row.
    fn frontrun(&self, served: &UnifiedEntry, device: DeviceId, (first, rows): (u32, usize)) -> Time {
        let promised = served.load.promised((rows + 1).min(served.load.sizes.max_batch).max(rows));
        self.requests.get(first).deadline - served.load.waits.blocking - self.devices[device].takes(promised)
    }

    /// Returns the time until which a batch leaves the last free device to other models. If the
    /// next request of another model would be late without that device, the batch leaves it for as
    /// long as the batch can wait. Otherwise returns `now`, also if there is only one device.
    fn leaves_last_until(&self, decision: &Decision, id: ModelId, (first, rows): (u32, usize)) -> Time {
        let &Decision { now, device, .. } = decision;
        if self.devices.present() < 2 {
            return now;
        }
        let served = self.models.get(id);
        let taken = self.devices[device].takes(served.load.mean(rows)).min(decision.frees_in);
        let is_needed = decision.tightest_other(&self.models, id) < taken;
        if is_needed { self.frontrun(served, device, (first, rows)) } else { now }
    }

    /// Returns the time from which a batch of at most `most` rows is well spaced from the last one,
    /// so that devices become free one after the other. The more random the arrivals, the less
    /// spacing gains. While device time is `short`, batches are spaced in any case, since a batch
    /// that is large by chance passes over its oldest requests.
    fn spaced_from(&self, served: &UnifiedEntry, short: bool, most: usize) -> Time {
        let load = &served.load;
        let devices = self.devices_of(served) as i64;
        let size =
            if short { load.sizes.min_stable_batch } else { load.sizes.fastest_batch.min(load.sizes.min_stable_batch) };
        let size = size.min(most);
        if devices <= 1 || size <= 1 {
            return Time::ORIGIN;
        }
        let spacing = Nanos(load.mean(size).0 / devices);
        served.started + if short { spacing } else { load.arrivals.dispersion.complement().part_of(spacing) }
    }

    /// Returns the largest batch that ends before a request of another model that arrives meanwhile
    /// must start. If no batch does, or if smaller batches cost more device time than the time for
    /// which the other models' requests would be late, returns the model's largest.
    fn max_rows_beside_others(&self, served: &UnifiedEntry) -> usize {
        let (load, all) = (&served.load, Permille::WHOLE.parts() * self.devices.present().max(1) as u64);
        let rows = served.load.sizes.max_batch.min(served.queue.rows() as usize).max(1);
        let most = cost::largest(rows, |rows| load.mean(rows) <= load.waits.max_wait);
        if most == 0 || most == rows {
            return served.load.sizes.max_batch;
        }
        let others = self.load.recent_load - load.demand.recent_load;
        let lost = (load.mean(rows) - load.waits.max_wait).scale(others.parts(), all);
        let cut = load.mean(most).scale(rows as u64, most as u64);
        if cut <= load.mean(rows) + lost { most } else { served.load.sizes.max_batch }
    }

    /// Returns the number of rows of a batch that the device takes, leaving the others to devices
    /// that become free soon, so that all wait least.
    fn share_of(&self, decision: &Decision, id: ModelId, (first, rows): (u32, usize)) -> usize {
        let &Decision { now, idle, .. } = decision;
        let served = self.models.get(id);
        let Some(rate) =
            served.load.arrivals.rate.rate(now).filter(|_| rows > 1 && self.load.price(now) == Price::ZERO)
        else {
            return rows;
        };
        let all = Permille::from_parts(1_000 * self.devices.present() as u64);
        let Backlog { rows: waiting, work, rate: per_second } = decision.backlog_of_others(&self.models, id);
        let others = Others {
            spare: all - (self.load.recent_load - served.load.demand.recent_load),
            rows: waiting,
            work,
            rate: per_second,
            idle: (idle - 1).min(served.model.instances.saturating_sub(served.devices + 1)),
        };
        let least = served.load.sizes.fastest_batch.min(served.load.sizes.min_stable_batch);
        let queue = served.queue.rows();
        let share =
            Waiting { rows, queue, rate, slo: served.model.slo, least }.cut(&others, |rows| served.load.mean(rows));
        served.queue.fill(&self.requests, first, share.max(self.requests.get(first).rows as usize), rows as u64)
    }

    /// Returns the offer of the next block of a cohort.
    fn resume(&self, now: Time, device: DeviceId, id: ModelId, cohort: CohortId) -> TaskOffer {
        let held = self.cohorts.get(cohort);
        let served = self.models.get(id);
        let state = &self.devices[device];
        let (mean, promised) = served.load.of_blocks(&served.model, held.block, held.rows, held.length);
        let members = self.cohorts.members(cohort).map(|slot| slot.0);
        let outlook = self.outlook(now, id, members, state.takes(promised));
        TaskOffer { whole: state.takes(mean), pinned: true, ..self.offer(id, OfferedTask::Resume(cohort), outlook) }
    }

    /// Moves a batch from the queue of a model into a cohort on a device. Requests before its first
    /// one are passed over: they run where no other request needs the device.
    pub(super) fn open_batch(&mut self, now: Time, device: DeviceId, id: ModelId, first: u32, rows: usize) -> CohortId {
        let UnifiedScheduler { models, requests, cohorts, pending, load, .. } = self;
        let served = models.get_mut(id);
        let cohort = cohorts.open(id, ());
        let mut passed = 0;
        while let Some(head) = served.queue.head().filter(|&head| head != first) {
            passed += requests.get(head).rows as usize;
            served.own.queue.remove(requests, head);
            served.own.queue.push_overdue(requests, head);
        }
        let drop = served.drop;
        served.own.queue.take(requests, now, (first, rows), drop, pending, |request| cohorts.push(cohort, request));
        let cost = served.load.mean(rows);
        served.own.load.on_start(now, rows, cost);
        served.own.started = now;
        load.observe(passed, true);
        load.observe(rows, false);
        load.on_start(now);
        self.hold(device, id, cohort);
        cohort
    }

    /// Puts a new cohort on a device.
    pub(super) fn hold(&mut self, device: DeviceId, id: ModelId, cohort: CohortId) {
        let first = !self.devices.holds_model(&self.cohorts, device, id);
        self.models.get_mut(id).own.devices += usize::from(first);
        self.devices[device].held.push(cohort);
    }
}

/// Returns the last time at which a request may start, alone on a nominal device.
fn last_start(served: &UnifiedEntry, requests: &Requests, slot: u32) -> Time {
    let request = requests.get(slot);
    request.deadline - alone(served, request.rows, request.extent.length)
}

/// Returns the largest batch, of at most `most` rows or the request's, that a request with `left`
/// until its deadline allows. If no batch can be promised to be in time, the mean time decides.
pub(super) fn room(served: &UnifiedEntry, request: &Request, left: Nanos, most: usize) -> usize {
    let rows = request.rows as usize;
    let room = served.load.largest_within(left).min(most.max(rows));
    if room >= rows { room } else { cost::largest(most.max(rows), |rows| served.load.mean(rows) <= left) }
}

/// Returns the mean time of a request alone.
pub(super) fn alone(served: &UnifiedEntry, rows: u32, length: u32) -> Nanos {
    match served.groups.is_some() {
        true => served.load.padded().mean(rows as usize, served.load.padded().place(length)),
        false => served.load.mean(rows as usize),
    }
}

/// Returns the requests of a queue from `first` on, of `rows` rows together.
pub(super) fn queued(requests: &Requests, first: u32, rows: usize) -> impl Iterator<Item = u32> + Clone {
    let (mut next, mut left) = (Some(first), rows);
    std::iter::from_fn(move || {
        let slot = next.filter(|_| left > 0)?;
        left = left.saturating_sub(requests.get(slot).rows as usize);
        next = requests.links.next(slot);
        Some(slot)
    })
}
