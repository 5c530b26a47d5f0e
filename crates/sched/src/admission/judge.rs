//! The admission decision: the share of a request's flow, and whether it and the waiting requests
//! would be in time.

use super::shares::YieldsTo;
use super::{Admission, AdmissionDemand, AdmittedModel};
use crate::{Request, Why};
use ripieno_base::{ModelId, Nanos, Time};

/// Part of the tightest SLO, in hundredths, that a flow above its share leaves to others.
const LEFT_TO_OTHERS: u64 = 30;
/// Part of its own SLO, in hundredths, that it leaves to the model's other clients.
const LEFT_TO_CLIENTS: u64 = 10;
/// Reciprocal of the part of the SLO below which the growth of a batch delays no member noticeably.
const SMALL: i64 = 64;

impl Admission {
    /// Returns the reason for which a request is refused, if it is.
    pub(super) fn decide(&mut self, now: Time, request: &Request, demand: AdmissionDemand) -> Option<Why> {
        let AdmissionDemand { flow, work, hopeless } = demand;
        let served = self.served(request.model);
        let (corrected, may_be_late) = (served.cost.corrected(work), served.may_be_late());
        // A request that cannot be in time is no demand: its flow must not take others' share.
        if !hopeless && !self.shares.admit(now, flow, corrected, request.class.priority) && self.live > 0 {
            return Some(Why::Share);
        }
        if self.live == 0 || (may_be_late && self.checks_deadlines(request)) {
            return None;
        }
        let outranked = self.shares.is_outranked(flow, request.class.priority);
        let yields = if outranked { YieldsTo::Clients } else { self.shares.yields(flow) };
        let why = match (self.exceeds_room(now, request, work, yields), self.checks_deadlines(request), hopeless) {
            (exceeds_room, ..) if may_be_late => return exceeds_room.then_some(Why::Share),
            (true, ..) => Why::Share,
            (false, true, _) => return None,
            (false, false, true) => return Some(Why::Hopeless),
            (false, false, false) => self.delays(now, request, work, yields)?,
        };
        self.shares.on_loss(now, flow, corrected);
        Some(why)
    }

    /// Returns whether the policy itself refuses requests of this model that would be late. Of
    /// cells the published ones do not: a request that has begun is not refused for its neighbours.
    fn checks_deadlines(&self, request: &Request) -> bool {
        let unfolds = self.served(request.model).cost.model().walk.is_unfolded();
        self.needs.keeps_deadlines && (!unfolds || self.needs.learns_occupancy)
    }

    /// Returns whether the backlog is so long that a request would take the room of flows to which
    /// its flow yields. A policy with deadlines passes over this model's queue for another, so only
    /// the model's other clients are affected.
    fn exceeds_room(&self, now: Time, request: &Request, work: i64, yields: YieldsTo) -> bool {
        let to_clients = yields == YieldsTo::Clients;
        let to_models = !self.checks_deadlines(request)
            && (to_clients || (yields == YieldsTo::Models && !self.take_turns(request)));
        if !to_clients && !to_models {
            return false;
        }
        let each = self.devices.together(self.waiting_with(now, request, work));
        (to_clients && each > room(self.served(request.model).cost.model().slo))
            || (to_models && each > room(self.tightest_slo) && self.delays_others(now, request, each))
    }

    /// Returns whether a backlog of `each` on every device would make requests of another model
    /// late that a shorter backlog would not. Where late answers are acceptable, none is late; and
    /// if this request alone keeps a device for too long, refusing the ones behind it saves none.
    fn delays_others(&self, now: Time, request: &Request, each: i64) -> bool {
        let (rows, length) = (request.rows as usize, request.extent.length);
        let alone = self.devices.at_best(self.served(request.model).cost.takes(0, rows, length, request.class.cost)).0;
        let others = self.models.iter().zip(0..).filter(|(_, id)| ModelId(*id) != request.model);
        others.filter_map(|(other, _)| other.as_ref()).filter(|other| other.needs_room(now)).any(|other| {
            let room = room(other.cost.model().slo);
            each > room && alone <= room
        })
    }

    /// Returns the reason for refusing a request for its own deadline, or that of others of its
    /// model. Some time is left to clients with smaller demands.
    fn delays(&self, now: Time, request: &Request, work: i64, yields: YieldsTo) -> Option<Why> {
        let (served, devices) = (self.served(request.model), self.devices.present().max(1));
        let waiting = self.waiting_with(now, request, work);
        let own = served.cost.alone(request, served.together(devices) + request.rows as usize);
        let alone = self.devices.at_best(own);
        // For cells it waits for the requests before it to start, then shares each step with the
        // started ones.
        let before =
            if served.cost.model().walk.is_unfolded() { self.waiting(now) - served.started(devices) } else { 0 };
        let end = now + alone + Nanos(self.devices.together((waiting - own.0).max(before).max(0)));
        let to_clients = yields == YieldsTo::Clients;
        let left = if to_clients { served.cost.model().slo.scale(LEFT_TO_CLIENTS, 100) } else { Nanos::ZERO };
        let due = served.cost.due(request) - left;
        if self.take_turns(request) {
            let late = self.end_in_turns(now, request, work, own) > due;
            return late.then_some(if to_clients { Why::Share } else { Why::Hopeless });
        }
        let late = (end > due && self.start_time(now, request, work, own) > due - alone)
            || self.grown_batch(now, served, request);
        late.then_some(if to_clients { Why::Share } else { Why::Hopeless })
    }

    /// Returns the start of a request in a batch that costs `alone`, if earlier requests go in
    /// order. With a long backlog, dividing all work by the devices gives the same; with a short
    /// one, long tasks of another model may delay no request.
    fn start_time(&self, now: Time, request: &Request, work: i64, alone: Nanos) -> Time {
        let models = || self.models.iter().flatten().filter(|served| served.rows > 0);
        if models().any(|served| served.cost.model().walk.is_unfolded()) {
            return Time::NEVER;
        }
        let others = models().map(|served| served.not_started(0, 0)).fold(0, i64::saturating_add);
        let served = self.served(request.model);
        let own = served.not_started(request.rows as usize, work) - served.not_started(0, 0);
        now + self.devices.begun_after(now, others.saturating_add(own).saturating_sub(alone.0).max(0))
    }

    /// Returns the remaining device time of all requests in the policy, including this one.
    fn waiting_with(&self, now: Time, request: &Request, work: i64) -> i64 {
        let served = self.served(request.model);
        let own = served.estimate(self.devices.present().max(1), request.rows as usize, work) - served.backlog;
        self.waiting(now).saturating_add(own)
    }

    /// Returns whether a request would make a waiting one late: a batch that begins when the
    /// devices are free holds them all. A request that would be late anyway, or hardly later, is no
    /// reason: otherwise a model whose oldest request is starved could accept none. Where lengths
    /// differ, batches are divided by them, and a long request delays few.
    fn grown_batch(&self, now: Time, served: &AdmittedModel, request: &Request) -> bool {
        let model = served.cost.model();
        let Some(head) = served.waiting.front().filter(|_| !model.walk.is_unfolded() && !model.has_lengths()) else {
            return false;
        };
        let rows = served.waiting_rows + request.rows as usize;
        if rows > served.cost.model().max_batch {
            return false;
        }
        let others = (self.waiting(now)
            - served.cost.corrected(served.cost.in_batches_of(served.waiting_work, served.waiting_rows)))
        .max(0);
        let begin = now + Nanos(self.devices.together(others));
        let alone = |rows| self.devices.at_best(served.cost.alone(request, rows));
        let (before, after) = (alone(served.waiting_rows), alone(rows));
        let (deadline, slo) = (self.entries[head as usize].deadline, served.cost.model().slo);
        let limits = [deadline - served.cost.margin(), deadline];
        if rows > served.cost.largest() {
            // Work is estimated in smaller batches, and this request adds one.
            return now <= deadline && begin + after > limits[0];
        }
        let crossed = |limit: Time| begin + before <= limit && begin + after > limit;
        (after - before).0 >= slo.0 / SMALL && limits.into_iter().any(crossed)
    }
}

/// Returns the part of an SLO that the backlog of a flow above its share may take.
fn room(slo: Nanos) -> i64 {
    slo.scale(100 - LEFT_TO_OTHERS, 100).0
}
