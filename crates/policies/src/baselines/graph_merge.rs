//! "graph-merge": the graphs of a fixed set of requests are merged into one and run level by level
//! to the end.
//!
//! Sources: DyNet and TensorFlow Fold as the baselines of "Low Latency RNN Inference with Cellular
//! Batching", sections 2.3 and 7.5.
//!
//! 1. A device that has ended its last set takes the oldest requests of the next model in turn, up
//!    to `max_batch`.
//! 2. Merging takes `merge_us_per_node` for each node of their graphs; the device waits for it.
//! 3. The merged graph runs level by level, cell type by cell type: one task holds all ready nodes
//!    of one type.
//! 4. There is no padding: the batch shrinks towards the end of the set.
//! 5. All requests of the set are answered when it has ended.
//!
//! State: a queue per model, a set per device. Knobs: `max_batch` (requests in a set),
//! `merge_us_per_node`, `drop`. It ignores deadlines and the cost of batches.
//!
//! Deviations: a task is at most as large as the block's largest batch, where the original merges
//! without bound; the profile should cover the nodes of a whole set. Blocks run in the order of the
//! walk: all encoders of a set, then its decoders.

use super::bucketed::InOrder;
use crate::cell_scheduler::{CellRules, CellScheduler, Join, Leave, Padding};
use crate::options::SET_AHEAD;
use crate::policy::{Chains, Form, Policy};
use ripieno_base::Nanos;
use ripieno_model::{DropRule, Model, Walk};
use ripieno_sched::Needs;
use ripieno_sched::cells::check;
use ripieno_sched::tables::models::{BatchOptions, PerModel};
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{DROP, MAX_BATCH};
use ripieno_sched::{Scheduler, Setup};

pub(crate) const POLICY: Policy = Policy {
    name: "graph-merge",
    source: "BatchMaker, sections 2.3 and 7.5 (DyNet, TensorFlow Fold)",
    summary: "the graphs of a fixed set of requests are merged and run level by level to the end",
    walks: &Walk::ALL,
    chains: Chains::NoSkips,
    knobs: &[
        Knob {
            help: "largest number of requests in a set; a task may hold more nodes, up to the block's largest batch",
            ..MAX_BATCH
        },
        Knob {
            name: "merge_us_per_node",
            default: "0",
            help: "duration of merging per node of the set's graphs, in us; 0 for a live server, whose merging is free",
        },
        Knob { default: "never", ..DROP },
    ],
    needs: |_| Needs { depth: SET_AHEAD, nodes: true, ..Needs::ONE_TASK },
    form: Form::OnePiece(build),
};

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    check(setup)?;
    let merge_us = PerModel::read(&setup.models, |model| knobs.number("merge_us_per_node", model))?;
    let options = BatchOptions::read(setup, knobs, DropRule::Never)?;
    let rules = move |model: &Model| CellRules {
        merges: true,
        max_tasks: usize::MAX,
        join: Join::InSets { width: None },
        leave: Leave::WithItsSet(Padding::None),
        merge_per_node: Nanos::from_millis_f64(merge_us.of(model).unwrap_or(0.0) / 1e3),
        ..CellRules::STEP_BY_STEP
    };
    Ok(Box::new(CellScheduler::new(setup, options, rules, InOrder)))
}
