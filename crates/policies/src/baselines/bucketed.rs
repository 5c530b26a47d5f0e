//! "bucketed": sequences of similar lengths are padded to one length and run as one graph.
//!
//! Source: MXNet and TensorFlow as the baselines of "Low Latency RNN Inference with Cellular
//! Batching", section 7.1.
//!
//! 1. Bucket i of a model holds the requests whose length is in (i·w, (i+1)·w], w being the
//!    `width`.
//! 2. A device that has ended its last batch takes one from the next non-empty bucket in turn,
//!    without waiting for more: as many requests as fit, the oldest first.
//! 3. Every member takes as many steps as the bucket's longest possible request: the graph is
//!    materialised once per bucket.
//! 4. All members are answered when the batch has ended.
//! 5. With `window_ms` a batch that is not full waits until its oldest request has waited that long
//!    (GraphB of LazyBatching).
//!
//! State: a queue per bucket, a batch per device. Knobs: `width`, `pad`, `turn`, `window_ms`,
//! `max_batch`, `drop`. It ignores deadlines and the cost of batches, and cannot serve trees and
//! graphs: they have no common padded form.
//!
//! Readings where the paper leaves freedom. With `turn = "one"` a turn is one batch, which is round
//! robin to the letter. With `turn = "drain"`, the default, a bucket keeps its turn as long as it
//! can fill whole batches. This makes the stronger baseline.
//!
//! Choices: a block that runs until its end continues, with all rows, until the last member has
//! ended. No step is queued ahead of that end. This is better than a graph that is unfolded to the
//! longest possible output. Models share a device by turns, too, bucket after bucket. Buckets
//! beyond the 1,024th are one, padded to its longest member.

use crate::cell_scheduler::{CellRules, CellScheduler, Choose, Join, Leave, Padding, Sets};
use crate::options::SET_AHEAD;
use crate::policy::{Chains, Form, Policy};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos};
use ripieno_model::{DropRule, Model, Walk};
use ripieno_sched::Needs;
use ripieno_sched::cells::{CellModel, Cells, check};
use ripieno_sched::tables::models::{BatchOptions, PerModel};
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{DROP, MAX_BATCH};
use ripieno_sched::{Scheduler, Setup};

pub(crate) const POLICY: Policy = Policy {
    name: "bucketed",
    source: "BatchMaker, section 7.1 (MXNet, TensorFlow)",
    summary: "sequences of similar lengths are padded to one length and run as one",
    walks: &[Walk::Whole, Walk::Chain, Walk::Repeat, Walk::Stacked, Walk::Bidirectional, Walk::EncodeDecode],
    chains: Chains::NoSkips,
    knobs: &[WIDTH, PAD, TURN, WINDOW_MS, MAX_BATCH, Knob { default: "never", ..DROP }],
    needs: |_| Needs { depth: SET_AHEAD, pads: true, ..Needs::ONE_TASK },
    form: Form::OnePiece(build),
};

const WIDTH: Knob = Knob {
    name: "width",
    default: "10",
    help: "number of lengths in a bucket; narrow ones pad less, wide ones wait less",
};

const PAD: Knob = Knob {
    name: "pad",
    default: "bucket",
    help: "padding of rows: \"bucket\" = to the bucket's end, \"longest\" = to the longest of the batch",
};

const TURN: Knob = Knob {
    name: "turn",
    default: "drain",
    help: "length of a bucket's turn: \"drain\" = as long as it can fill batches, \"one\" = one batch, round robin to the \
           letter; the paper leaves it open",
};

const WINDOW_MS: Knob = Knob {
    name: "window_ms",
    default: "0",
    help: "longest wait of the oldest request of a bucket for its batch to fill, in ms; with one wide bucket and pad = \
           \"longest\" this is the graph batching that LazyBatching is compared with",
};

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    check(setup)?;
    let pads = [("bucket", Padding::ToBucket), ("longest", Padding::ToLongest)];
    let padding = knobs.choice(PAD.name, &pads, Padding::ToBucket)?;
    let drains = knobs.choice(TURN.name, &[("drain", true), ("one", false)], true)?;
    let width = PerModel::read(&setup.models, |model| knobs.count(WIDTH.name, model))?;
    let window_ms = PerModel::read(&setup.models, |model| knobs.number(WINDOW_MS.name, model))?;
    let options = BatchOptions::read(setup, knobs, DropRule::Never)?;
    let rules = move |model: &Model| CellRules {
        max_tasks: usize::MAX,
        join: Join::InSets { width: Some(width.of(model).unwrap_or(10).min(1 << 20) as u32) },
        leave: Leave::WithItsSet(padding),
        pads_output: true,
        drains,
        window: Nanos::from_millis_f64(window_ms.of(model).unwrap_or(0.0)),
        ..CellRules::STEP_BY_STEP
    };
    Ok(Box::new(CellScheduler::new(setup, options, rules, InOrder)))
}

/// Chooses blocks in the order of the walk; the device's own set determines the model, since
/// nothing else is ready for it. Shared with "graph-merge".
pub(super) struct InOrder;

impl Choose for InOrder {
    fn choose(&mut self, cells: &Cells<Sets>, device: DeviceId) -> Option<(ModelId, BlockId)> {
        let of_model = |(id, served): (ModelId, &CellModel)| {
            let block = served.cells.iter().position(|cell| cell.ready(device) > 0)?;
            Some((served.cells[block].chosen, id, BlockId(block as u16)))
        };
        let models = cells.models().filter(|(_, served)| served.may_run_on(device));
        models.filter_map(of_model).min().map(|(_, model, block)| (model, block))
    }
}
