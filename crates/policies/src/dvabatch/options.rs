//! The catalogue row of "dva" and its options.

use super::DvaBatch;
use super::rules::{Diversity, Executors, MAX_LANES, SplitTerms};
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
            help: "number of buffer pairs, that is, of batches that may run in parallel on a device, each on its own \
                   lane; with 1 all stages run one after the other, which is best where a single batch uses the whole \
                   device, like a CPU",
        },
        Knob {
            name: "executors",
            default: "lane",
            help: "executors of the stages: \"lane\" = a lane runs all stages of its batch, so that two lanes may run \
                   the same stage, \"stage\" = each stage has one executor, as in the paper, and batches follow each \
                   other through the buffer pairs between them",
        },
        Knob {
            name: "diversity",
            default: "auto",
            help: "property that batches are formed for: \"input\" = different lengths, \"operator\" = stages that \
                   prefer different batch sizes, \"load\" = uneven arrivals; \"auto\" = chosen by the model's profiles",
        },
        Knob {
            name: "groups",
            default: "16",
            help: "largest number of groups by length that waiting requests are divided into; fewer where the profiles \
                   favour larger batches over less padding; the paper has 2",
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
            default: "half of what a batch of 8 takes",
            help: "time after its start during which a batch may be joined, in ms",
        },
        Knob {
            name: "window_ms",
            default: "none",
            help: "longest wait of the first request of a batch for others, in ms, even on an idle device",
        },
        Knob {
            name: "window",
            default: "none",
            help: "its wait on a busy device where lengths differ: \"none\" = until the device has room, \
                   \"first-stage\" = the duration of the first stage at the largest batch, as in the paper; window_ms \
                   takes precedence",
        },
        MAX_BATCH,
        Knob { default: "never", ..DROP },
    ],
    needs: |knobs| Needs { lanes: lanes(knobs).unwrap_or(1), ..Needs::ONE_TASK },
    form: Form::OnePiece(build),
};

/// Upper bound on the number of groups.
const MAX_GROUPS: usize = 16;

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let diversities = [
        ("auto", None),
        ("input", Some(Diversity::Input)),
        ("operator", Some(Diversity::Operator)),
        ("load", Some(Diversity::Load)),
    ];
    let millis = |knob: &str, model: Option<&str>| Ok(knobs.number(knob, model)?.map(Nanos::from_millis_f64));
    let lanes = lanes(knobs)?.min(setup.limits.lanes);
    let options = DvaOptions {
        lanes,
        executors: match executors(knobs)? {
            Executors::Lanes(_) => Executors::Lanes(lanes),
            stages @ Executors::Stages(_) => stages,
        },
        batches: BatchOptions::read(setup, knobs, DropRule::Never)?,
        terms: SplitTerms {
            diversity: knobs.choice("diversity", &diversities, None)?,
            groups: knobs.count("groups", None)?.unwrap_or(MAX_GROUPS).min(MAX_GROUPS),
            splits: knobs.flag("split", true)?,
            stretches: knobs.flag("stretch", true)?,
            comp_wait: None,
            window: None,
            first_stage_window: knobs.choice("window", &[("none", false), ("first-stage", true)], false)?,
        },
        comp_wait: PerModel::read(&setup.models, |model| millis("comp_wait_ms", model))?,
        window: PerModel::read(&setup.models, |model| millis("window_ms", model))?,
    };
    Ok(Box::new(DvaBatch::new(setup, options)))
}

fn executors(knobs: &Knobs<'_>) -> Result<Executors, BuildError> {
    let buffers = knobs.count_to("buffers", MAX_LANES)?.unwrap_or(2);
    let kinds = [("lane", Executors::Lanes(buffers)), ("stage", Executors::Stages(buffers))];
    knobs.choice("executors", &kinds, kinds[0].1)
}

/// Returns the lanes of each device. Executors of stages take any free lane: there are as many as a
/// device may have, since all stages of a model may run concurrently.
fn lanes(knobs: &Knobs<'_>) -> Result<usize, BuildError> {
    Ok(executors(knobs)?.beside(MAX_LANES))
}

/// The options.
pub(super) struct DvaOptions {
    /// Number of concurrent tasks of a device.
    pub(super) lanes: usize,
    /// The way in which stages share the lanes.
    pub(super) executors: Executors,
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
