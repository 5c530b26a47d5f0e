//! "clockwork": the batch whose latest start comes first, committed some time before its device is
//! free.
//!
//! Source: Clockwork as the baseline of "Symphony: Optimized DNN Model Serving using Deferred Batch
//! Scheduling", sections 2.2 and 5.1.
//!
//! 1. Every model has a candidate for every batch size b, with the latest start d − ℓ(b), d being
//!    the deadline of its first request. Any batch size is allowed, as in Symphony's comparison.
//! 2. The device that is free first takes the candidate with the earliest latest start. Of one
//!    model's candidates with the same head that is the largest, so only the largest is kept.
//! 3. Scheduling is eager: a free device never waits.
//! 4. A batch is chosen up to `lookahead_ms` before its device is free. Requests that arrive after
//!    the choice are not in it.
//! 5. A committed batch that could not be in time any more, since its device is late, is revoked.
//!
//! State: a queue and a candidate per model; a commitment per device. Knobs: look-ahead, margin
//! before the deadline (`buffer_ms`), gathering rule, largest batch, drop rule, device choice. It
//! ignores the possible growth of a batch.
//!
//! Deviations: the public code keeps a queue per batch size. Having chosen a model, it runs the
//! largest batch that any of these queues allows, and drops the heads before it: that is `gather =
//! "window"`. The look-ahead of 10 ms and the buffer of 5 ms are `lookahead_ms = 10` and `buffer_ms
//! = 5`. A restriction to powers of two as batch sizes is not offered. Costs are known here; the
//! original estimates a cost as the slowest of the last ten batches.

use super::parts::central::{Central, CentralGather};
use super::parts::placement::{DeviceTable, Placement, PlacementScheduler};
use super::parts::pool::PoolRules;
use crate::options::{DEVICE, WHOLE, device_choice};
use crate::policy::{Chains, Form, Policy};
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_model::DropRule;
use ripieno_sched::Needs;
use ripieno_sched::tables::models::BatchOptions;
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{DROP, MAX_BATCH};
use ripieno_sched::{Outbox, Scheduler, Setup};

pub(crate) const POLICY: Policy = Policy {
    name: "clockwork",
    source: "Clockwork, as in Symphony, sections 2.2 and 5.1",
    summary: "the batch whose latest start comes first, chosen some time before its device is free",
    walks: WHOLE,
    chains: Chains::Any,
    knobs: &[
        Knob {
            name: "lookahead_ms",
            default: "5",
            help: "time before a device is free at which its next batch is chosen, in ms; 0 = when it is free",
        },
        Knob {
            name: "buffer_ms",
            default: "0",
            help: "time before its deadline at which a request is planned to be answered, in ms",
        },
        GATHER,
        MAX_BATCH,
        DROP,
        DEVICE,
    ],
    needs: |_| Needs::ONE_TASK,
    form: Form::OnePiece(build),
};

/// The gathering rule, shared with "shepherd".
pub(super) const GATHER: Knob = Knob {
    name: "gather",
    default: "prefix",
    help: "requests that form a batch: \"prefix\" = from the head, as many as its deadline allows; \"window\" = the \
           largest possible batch; heads before it are passed over",
};

/// Reads the gathering rule; shared with "shepherd".
pub(super) fn gather(knobs: &Knobs<'_>) -> Result<CentralGather, BuildError> {
    knobs.choice(
        "gather",
        &[("prefix", CentralGather::Prefix), ("window", CentralGather::Largest)],
        CentralGather::Prefix,
    )
}

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let millis = |knob, default| Ok(Nanos::from_millis_f64(knobs.number(knob, None)?.unwrap_or(default)));
    let placement = Clockwork {
        central: Central::new(&setup.limits, gather(knobs)?, |candidate| candidate.latest),
        lookahead: millis("lookahead_ms", 5.0)?,
        wakeup: Time::NEVER,
    };
    let options = BatchOptions::read(setup, knobs, DropRule::Hopeless)?;
    let rules = PoolRules { options, margin: millis("buffer_ms", 0.0)?, head_blocks: false };
    Ok(Box::new(PlacementScheduler::new(setup, device_choice(knobs)?, rules, placement)))
}

struct Clockwork {
    central: Central<Time>,
    lookahead: Nanos,
    wakeup: Time,
}

impl Clockwork {
    /// Returns the device to choose a batch for next, and the time at which it can begin.
    fn next_device(&mut self, now: Time, table: &DeviceTable) -> Option<(Time, DeviceId)> {
        if let Some(device) = table.free_device() {
            return Some((now, device));
        }
        let (ends, device) = table.next_done().filter(|_| self.lookahead > Nanos::ZERO)?;
        let opens = ends - self.lookahead;
        if opens > now {
            self.wakeup = opens;
            return None;
        }
        Some((ends.max(now), device))
    }
}

impl Placement for Clockwork {
    fn touched(&mut self, queue: usize) {
        self.central.touch(queue);
    }

    fn ended(&mut self, model: ModelId, _device: DeviceId) {
        self.central.touch(model.index());
    }

    fn changed(&mut self) {
        self.central.touch_all();
    }

    fn place(&mut self, now: Time, table: &mut DeviceTable, out: &mut Outbox) {
        self.wakeup = Time::NEVER;
        while let Some((at, device)) = self.next_device(now, table) {
            if !self.central.give(now, at, device, table, out) {
                break;
            }
        }
        self.central.end_round(now, table);
    }

    fn next_wakeup(&self) -> Time {
        self.wakeup
    }
}
