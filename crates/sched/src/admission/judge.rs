//! Whether a request is let in: what it would take from others, and whether it, and those who wait already, would be in time.

use super::shares::YieldsTo;
use super::{Admission, AdmittedModel, Ask};
use crate::{Request, Why};
use ripieno_base::{Nanos, Time};

/// Who takes more than its share leaves so much of the tightest latency target to others, in hundredths.
const LEFT_TO_OTHERS: u64 = 30;
/// And so much of its own to the model's other clients.
const LEFT_TO_CLIENTS: u64 = 10;
/// A batch that grows by less than such a part of the latency target delays nobody who is in it.
const SMALL: i64 = 64;

impl Admission {
    /// Why a request is not let in, if it is not.
    pub(super) fn judge(&mut self, now: Time, request: &Request, ask: Ask) -> Option<Why> {
        let Ask { flow, work, futile } = ask;
        let served = self.served(request.model);
        let (corrected, may_be_late) = (served.cost.corrected(work), served.may_be_late());
        // What cannot be in time anyway is no demand: whoever sends it must not take others' share.
        if !futile && !self.shares.ask(now, flow, corrected, request.class.priority) && self.live > 0 {
            return Some(Why::Share);
        }
        if self.live == 0 || (may_be_late && self.needs.keeps_deadlines) {
            return None;
        }
        let outranked = self.shares.is_outranked(flow, request.class.priority);
        let yields = if outranked { YieldsTo::Clients } else { self.shares.yields(flow) };
        let why = match (self.crowds(now, request, work, yields), self.needs.keeps_deadlines, futile) {
            (crowds, ..) if may_be_late => return crowds.then_some(Why::Share),
            (true, ..) => Why::Share,
            (false, true, _) => return None,
            (false, false, true) => return Some(Why::Hopeless),
            (false, false, false) => self.delays(now, request, work, yields)?,
        };
        self.shares.on_loss(now, flow, corrected);
        Some(why)
    }

    /// Whether so much waits that a request takes the room of those to whom its flow gives way. A policy that goes by deadlines passes
    /// over this model's queue for another, so that only the model's own other clients stand behind it.
    fn crowds(&self, now: Time, request: &Request, work: i64, yields: YieldsTo) -> bool {
        let target = match (yields, self.needs.keeps_deadlines) {
            (YieldsTo::Nobody, _) | (YieldsTo::Models, true) => return false,
            (YieldsTo::Models, _) if self.take_turns(request) => return false,
            (YieldsTo::Clients, true) => self.served(request.model).cost.model().slo,
            (YieldsTo::Models | YieldsTo::Clients, false) => self.tightest,
        };
        let each = self.devices.together(self.waiting_with(now, request, work));
        each > target.scale(100 - LEFT_TO_OTHERS, 100).0
    }

    /// Why a request is refused for its own deadline, or that of others of its model. Some of the time is left to clients who ask for
    /// less.
    fn delays(&self, now: Time, request: &Request, work: i64, yields: YieldsTo) -> Option<Why> {
        let (served, devices) = (self.served(request.model), self.devices.present().max(1));
        let waiting = self.waiting_with(now, request, work);
        let own = served.cost.alone(request, served.together(devices) + request.rows as usize);
        let alone = self.devices.at_best(own);
        // Cells: it waits for those before it to be started, then shares each step with those that were.
        let before = if served.cost.model().walk.is_unfolded() { self.waiting(now) - served.begun(devices) } else { 0 };
        let end = now + alone + Nanos(self.devices.together((waiting - own.0).max(before).max(0)));
        let to_clients = yields == YieldsTo::Clients;
        let left = if to_clients { served.cost.model().slo.scale(LEFT_TO_CLIENTS, 100) } else { Nanos::ZERO };
        let due = served.cost.due(request) - left;
        if self.take_turns(request) {
            let late = self.end_in_turns(now, request, work, own) > due;
            return late.then_some(if to_clients { Why::Share } else { Why::Hopeless });
        }
        let late =
            (end > due && self.begins(now, request, work, own) > due - alone) || self.grown_batch(now, served, request);
        late.then_some(if to_clients { Why::Share } else { Why::Hopeless })
    }

    /// When a request begins to run that shares a batch which costs `alone`, if those before it go in order. To divide all that is to be
    /// done by the devices is the same where much waits; where little does, long tasks of another model may delay nobody.
    fn begins(&self, now: Time, request: &Request, work: i64, alone: Nanos) -> Time {
        let models = || self.models.iter().flatten().filter(|served| served.rows > 0);
        if models().any(|served| served.cost.model().walk.is_unfolded()) {
            return Time::NEVER;
        }
        let others = models().map(|served| served.unbegun(0, 0)).fold(0, i64::saturating_add);
        let served = self.served(request.model);
        let own = served.unbegun(request.rows as usize, work) - served.unbegun(0, 0);
        now + self.devices.begun_after(now, others.saturating_add(own).saturating_sub(alone.0).max(0))
    }

    /// Device time that everything in the policy is still to take, this request among it.
    fn waiting_with(&self, now: Time, request: &Request, work: i64) -> i64 {
        let served = self.served(request.model);
        let own = served.reckon(self.devices.present().max(1), request.rows as usize, work) - served.backlog;
        self.waiting(now).saturating_add(own)
    }

    /// Whether a request would make late who waits already: a batch that begins when the devices are free holds them all. Who
    /// would be late without it, too, or hardly later with it, is no reason: a model whose oldest request is starved, or waits
    /// for a batch that takes long by chance, could take none any more. Where lengths differ batches are divided by them, and who is
    /// long delays few.
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
            // The work is reckoned in smaller batches, and this request makes one more of them.
            return now <= deadline && begin + after > limits[0];
        }
        let crossed = |limit: Time| begin + before <= limit && begin + after > limit;
        (after - before).0 >= slo.0 / SMALL && limits.into_iter().any(crossed)
    }
}
