//! "shepherd": the largest batch first; a batch several times as large as a running one takes its
//! device.
//!
//! Source: Shepherd's "Flex" scheduling as the baseline of "Symphony: Optimized DNN Model Serving
//! using Deferred Batch Scheduling", sections 2.2 and 5.1.
//!
//! 1. The candidate of a model is the largest batch from its queue that can finish by the first
//!    member's deadline.
//! 2. A free device immediately takes the largest candidate of all models; of equal ones the most
//!    urgent.
//! 3. Without a free device, a candidate of at least `preempt_ratio` times the rows of the smallest
//!    running batch takes that batch's device.
//! 4. The running batch is aborted and its work is lost; its requests return to their queue, by
//!    their deadlines.
//! 5. Requests that cannot be punctual any more leave from the head of the queue.
//!
//! State: a queue and a candidate per model; the batch on each device. Knobs: preemption ratio,
//! head of line, gathering rule, largest batch, drop rule, device choice. It ignores urgency
//! between models: a small batch waits however late it is.
//!
//! Deviations: the new batch is formed when it preempts, and starts when the device has stopped, so
//! that the returned requests are not in it. The one public implementation looks for expired
//! requests at the tail of the queue. An expired head therefore blocks the whole queue there; here
//! it does so only with `head_of_line = "published"`. The planner that assigns models to groups of
//! devices is not built, as in Symphony's comparison.

use super::clockwork::{GATHER, gather};
use super::parts::central::Central;
use super::parts::placement::{DeviceTable, Placement, PlacementScheduler};
use super::parts::pool::{PoolCandidate, PoolRules};
use crate::options::{DEVICE, WHOLE, device_choice};
use crate::policy::{Chains, Form, Policy};
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_model::DropRule;
use ripieno_sched::Needs;
use ripieno_sched::tables::models::BatchOptions;
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{DROP, MAX_BATCH};
use ripieno_sched::{Outbox, Scheduler, Setup};
use std::cmp::Reverse;

pub(crate) const POLICY: Policy = Policy {
    name: "shepherd",
    source: "Shepherd, as in Symphony, sections 2.2 and 5.1",
    summary: "the largest batch first; one several times as large as a batch that runs aborts it",
    walks: WHOLE,
    chains: Chains::Any,
    knobs: &[
        Knob {
            name: "preempt_ratio",
            default: "3",
            help: "ratio of the rows of a waiting batch to those of a running one from which it takes its device, \
                   whose work is lost; 0 = never",
        },
        Knob {
            name: "head_of_line",
            default: "fixed",
            help: "time at which an expired request leaves its queue: \"fixed\" = immediately, \"published\" = when \
                   the last one of the queue has expired, too, as in the public code; until then it blocks its model",
        },
        GATHER,
        MAX_BATCH,
        DROP,
        DEVICE,
    ],
    needs: |_| Needs::ONE_TASK,
    form: Form::OnePiece(build),
};

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let placement = Shepherd {
        central: Central::new(&setup.limits, gather(knobs)?, rank),
        preempt_permille: (knobs.number("preempt_ratio", None)?.unwrap_or(3.0) * 1e3) as usize,
    };
    let head_blocks = knobs.choice("head_of_line", &[("fixed", false), ("published", true)], false)?;
    let options = BatchOptions::read(setup, knobs, DropRule::Hopeless)?;
    let rules = PoolRules { options, margin: Nanos::ZERO, head_blocks };
    Ok(Box::new(PlacementScheduler::new(setup, device_choice(knobs)?, rules, placement)))
}

/// The largest first, then the most urgent.
type Rank = (Reverse<usize>, Time);

fn rank(candidate: &PoolCandidate) -> Rank {
    (Reverse(candidate.rows), candidate.latest)
}

struct Shepherd {
    central: Central<Rank>,
    /// Thousandths of the running batch's rows; 0 disables preemption.
    preempt_permille: usize,
}

impl Shepherd {
    /// Lets the largest candidate take the device of the smallest batch, if the ratio of their rows
    /// allows it.
    fn preempt(&mut self, now: Time, table: &mut DeviceTable, out: &mut Outbox) -> bool {
        let Some((rows, device)) = table.smallest_batch().filter(|_| self.preempt_permille > 0) else {
            return false;
        };
        // The device cannot begin in the same instant.
        let at = now.next();
        self.central.refresh(&table.pool, at);
        let least = rows.saturating_mul(self.preempt_permille).div_ceil(1_000);
        if self.central.best().is_none_or(|candidate| candidate.rows < least) {
            return false;
        }
        // A slow device may take less; then it is set aside, and the next one is tried.
        if self.central.give_large(now, at, device, least, table, out) {
            table.cancel(device, out);
        }
        true
    }
}

impl Placement for Shepherd {
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
        while let Some(device) = table.free_device() {
            if !self.central.give(now, now, device, table, out) {
                break;
            }
        }
        while table.free_device().is_none() && self.preempt(now, table, out) {}
        self.central.end_round(now, table);
    }
}
