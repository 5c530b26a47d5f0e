//! The end of requests: the core has finished or rejected a part, or the client is answered before.

use super::SchedulerLoop;
use crate::event_loop::dispatcher::stop_waiting;
use crate::event_loop::joiner::Pieces;
use crate::learn::shortest_time::shortest_time;
use crate::requests::ending::Ending;
use crate::requests::jobs::{LiveJob, PartStage};
use crate::requests::split;
use crate::{Aside, Failure, JobOutput, SlowLink};
use ripieno_base::{Nanos, RequestSlot, Time};
use ripieno_executor::Loss;
use ripieno_sched::{Prediction, Why};
use std::time::Duration;

impl SchedulerLoop {
    pub(super) fn finish(&mut self, now: Time, slot: RequestSlot) {
        let lead = self.leave_core(slot);
        let call = self.jobs.call(lead);
        if call.done == call.parts.len() {
            self.complete(now, lead);
        } else if let (lead, call, part) = self.jobs.owner(slot)
            && !matches!(call.parts[part].result, Some(Ok(_)))
        {
            let failure = failure(call, part);
            self.fail(now, lead, failure);
        }
        self.jobs.release_if_over(lead);
    }

    pub(super) fn reject(&mut self, now: Time, slot: RequestSlot, why: Why) {
        let lead = self.leave_core(slot);
        if matches!(why, Why::Hopeless | Why::Expired) {
            self.suspect_profile(now, slot);
        }
        let failure = match why {
            Why::Hopeless => self.hopeless(now, slot),
            Why::Failed => {
                let (_, call, part) = self.jobs.owner(slot);
                failure(call, part)
            }
            why => Failure::of_core(why, || self.jobs.call(lead).model.retry_after()),
        };
        self.fail(now, lead, failure);
        self.jobs.release_if_over(lead);
    }

    /// Records that the core has ended the part in `slot`, and returns the call's first slot.
    fn leave_core(&mut self, slot: RequestSlot) -> RequestSlot {
        let (lead, call, part) = self.jobs.owner(slot);
        let stage = std::mem::replace(&mut call.parts[part].stage, PartStage::Outside);
        assert!(stage != PartStage::Outside, "a policy ended a request twice");
        let runs = call.parts[part].in_flight > 0 && !call.model.unfolds;
        assert!(!runs, "a policy ended a request that runs");
        if stage == PartStage::Waiting {
            stop_waiting(&call.model);
        }
        call.in_core -= 1;
        self.models.of(call.id).leave(call.class.shape);
        lead
    }

    /// Answers a call whose parts all have outputs, unless it has been answered.
    fn complete(&mut self, now: Time, lead: RequestSlot) {
        self.jobs.disarm(lead);
        let call = self.jobs.call(lead);
        let Some(answerer) = call.answerer.take() else { return };
        let last = call.parts.iter().max_by_key(|part| part.started).expect("a call has parts");
        let queued = last.started.map_or(now, |started| started) - call.arrived;
        let late = now > call.deadline;
        let answered = JobOutput { outputs: Vec::new(), queued, executed: last.executed, batch: last.batch, late };
        let results = call.parts.iter_mut().map(|part| part.result.take().unwrap_or_else(|| Ok(Vec::new())));
        let parts =
            results.collect::<Result<Vec<_>, String>>().and_then(|parts| split::check_joinable(&parts).map(|()| parts));
        match parts {
            Ok(mut parts) => {
                call.model.metrics.on_success(late, call.rows, now - call.arrived, queued, answered.executed);
                self.core.aside(Aside::Ended { lead, ending: if late { Ending::Late } else { Ending::Ok } });
                if parts.len() == 1 {
                    answerer.answer(Ok(JobOutput { outputs: parts.remove(0), ..answered }));
                } else {
                    self.joiner.join(Pieces { answerer, parts, answered });
                }
            }
            Err(text) => {
                let failure = Failure::of_engine(text);
                call.model.metrics.on_failure(failure.ending(), now - call.arrived);
                self.core.aside(Aside::Ended { lead, ending: failure.ending() });
                answerer.answer(Err(failure));
            }
        }
    }

    /// Answers a call with a failure, unless it has been answered. Schedules the withdrawal of its
    /// parts from the core.
    pub(super) fn fail(&mut self, now: Time, lead: RequestSlot, failure: Failure) {
        self.jobs.disarm(lead);
        let call = self.jobs.call(lead);
        if call.answerer.is_none() {
            return;
        }
        let ending = failure.ending();
        call.model.metrics.on_failure(ending, now - call.arrived);
        self.core.aside(Aside::Ended { lead, ending });
        call.answer(Err(failure));
        self.jobs.schedule_withdrawal(lead);
    }

    /// Returns the failure of a part that could not be in time. It gives the time that the call
    /// needs even on idle devices, if that is too long. Otherwise, if the part is refused for it
    /// now, it gives the time at which the part would have been answered.
    fn hopeless(&mut self, now: Time, slot: RequestSlot) -> Failure {
        let nanos = |span: Nanos| Duration::from_nanos(span.0.max(0).unsigned_abs());
        if let Some(needed) = self.needs_too_long(slot) {
            return Failure::TooLong { needed: nanos(needed) };
        }
        let forecast = self.core.prediction(slot).filter(|forecast| forecast.made == now);
        let Some(Prediction { remaining, .. }) = forecast else { return Failure::Hopeless };
        let (_, call, _) = self.jobs.owner(slot);
        let end = now + remaining;
        // The scheduler plans for an earlier deadline than the client's.
        if end <= call.deadline {
            return Failure::Hopeless;
        }
        Failure::TooLate { expected: nanos(end - call.arrived), retry_after: nanos(end - call.deadline) }
    }

    /// Returns the time that the call of this part needs even on idle devices, if that is more than
    /// its limit and the costs of its shape are known.
    fn needs_too_long(&mut self, slot: RequestSlot) -> Option<Nanos> {
        let (concurrent, (_, call, _)) = (self.dispatcher.concurrent_batches(), self.jobs.owner(slot));
        let known = self.models.of(call.id);
        let needed = shortest_time(known.model(), &call.parts, call.class.cost, concurrent);
        let is_known = known.is_cost_known(call.class.shape);
        (is_known && needed > call.deadline - call.arrived).then_some(needed)
    }
}

/// Returns the failure of a part that failed in the engine or was lost with its device.
pub(super) fn failure(call: &LiveJob, part: usize) -> Failure {
    let failed = match &call.parts[part].result {
        Some(Err(text)) => Failure::of_engine(text.clone()),
        _ => Failure::of_core(Why::Failed, || Duration::ZERO),
    };
    if let Some(takes) = call.slow_inputs {
        return Failure::SlowLink { link: SlowLink::Inputs, takes };
    }
    match call.lost {
        Some(Loss { retry_after, .. }) => Failure::Outage { cause: failed.text().to_owned(), retry_after },
        None => failed,
    }
}
