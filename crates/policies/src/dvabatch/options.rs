//! The catalogue row of "dva" and its options.

use super::DvaBatch;
use super::rules::{Diversity, SplitTerms};
use crate::options::WHOLE;
use crate::policy::{Chains, Form, Policy};
use ripieno_base::Nanos;
use ripieno_model::{DropRule, Model};
use ripieno_sched::Needs;
use ripieno_sched::tables::models::{BatchOptions, PerModel};
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{DROP, MAX_BATCH};
use ripieno_sched::{Scheduler, Setup};

pub(crate) const POLICY: Policy = Policy {
    name: "dva",
    source: "DVABatch, sections 5 to 7",
    summary: "batches are divided by length, split where stages prefer smaller ones, and joined by newcomers while they run",
    walks: WHOLE,
    chains: Chains::Any,
    knobs: &[
        Knob {
            name: "buffers",
            default: "2",
            help: "number of buffer pairs of each stage's executor: with 2 or more, batches follow each other through \
                   the stages; with 1 all stages run one after the other, which is best where a single batch uses the \
                   whole device, like a CPU",
        },
        Knob {
            name: "executors",
            default: "4",
            help: "largest number of executors of a device that work at the same time, each on a lane; the paper's \
                   models have at most 4 stages, with one executor each",
        },
        Knob {
            name: "diversity",
            default: "auto",
            help: "property that batches are formed for: \"input\" = different lengths, \"operator\" = stages that \
                   prefer different batch sizes, \"load\" = uneven arrivals; \"auto\" = chosen by the model's profiles",
        },
        Knob {
            name: "groups",
            default: "2",
            help: "number of groups by length that waiting requests are divided into, with the least padding",
        },
        Knob {
            name: "split",
            default: "true",
            help: "split batches where later stages prefer smaller ones: true or false",
        },
        Knob {
            name: "stretch",
            default: "true",
            help: "newcomers may join a batch that has run for at most comp_wait_ms: true or false",
        },
        Knob {
            name: "comp_wait_ms",
            default: "the SLO less the largest batch's duration",
            help: "T_comp_wait: time after its start during which a batch may be joined, in ms",
        },
        Knob {
            name: "window_ms",
            default: "the largest batch's first stage where lengths differ, else none",
            help: "longest wait of the first request of a batch for others, in ms",
        },
        MAX_BATCH,
        Knob { default: "never", ..DROP },
    ],
    needs: |knobs| Needs { lanes: lanes(knobs).unwrap_or(1), ..Needs::ONE_TASK },
    form: Form::OnePiece(build),
};

/// Upper bound on the number of groups.
const MAX_GROUPS: usize = 16;
/// Upper bound on the buffer pairs, and on the lanes of a device.
const MAX_LANES: usize = 16;

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let diversities = [
        ("auto", None),
        ("input", Some(Diversity::Input)),
        ("operator", Some(Diversity::Operator)),
        ("load", Some(Diversity::Load)),
    ];
    let millis = |knob: &str, model: Option<&str>| Ok(knobs.number(knob, model)?.map(Nanos::from_millis_f64));
    let options = DvaOptions {
        lanes: lanes(knobs)?.min(setup.limits.lanes),
        buffers: buffers(knobs)?,
        batches: BatchOptions::read(setup, knobs, DropRule::Never)?,
        terms: SplitTerms {
            diversity: knobs.choice("diversity", &diversities, None)?,
            groups: knobs.count_to("groups", MAX_GROUPS)?.unwrap_or(2),
            splits: knobs.flag("split", true)?,
            stretches: knobs.flag("stretch", true)?,
            comp_wait: None,
            window: None,
        },
        comp_wait: PerModel::read(&setup.models, |model| millis("comp_wait_ms", model))?,
        window: PerModel::read(&setup.models, |model| millis("window_ms", model))?,
    };
    Ok(Box::new(DvaBatch::new(setup, options)))
}

fn buffers(knobs: &Knobs<'_>) -> Result<usize, BuildError> {
    Ok(knobs.count_to("buffers", MAX_LANES)?.unwrap_or(2))
}

/// Returns the lanes of each device. With one buffer pair a single executor works at a time.
fn lanes(knobs: &Knobs<'_>) -> Result<usize, BuildError> {
    let executors = knobs.count_to("executors", MAX_LANES)?.unwrap_or(4);
    Ok(if buffers(knobs)? == 1 { 1 } else { executors })
}

/// The options.
pub(super) struct DvaOptions {
    /// Number of concurrent tasks of a device.
    pub(super) lanes: usize,
    /// Number of buffer pairs of each executor.
    pub(super) buffers: usize,
    /// Drop rule and largest batches.
    pub(super) batches: BatchOptions,
    /// Options that hold for all models.
    pub(super) terms: SplitTerms,
    /// Time after which no newcomer joins a batch, by model.
    comp_wait: PerModel<Option<Nanos>>,
    /// Longest wait of the first request of a batch, by model.
    window: PerModel<Option<Nanos>>,
}

impl DvaOptions {
    /// Returns the options for one model.
    pub(super) fn terms(&self, model: &Model) -> SplitTerms {
        let (comp_wait, window) = (self.comp_wait.of(model), self.window.of(model));
        SplitTerms { comp_wait, window, ..self.terms }
    }
}
