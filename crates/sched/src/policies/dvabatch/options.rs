//! The catalogue row of "dva" and what its options say.

use super::DvaBatch;
use super::rules::{Diversity, Executors, MAX_LANES, SplitTerms, Stretch};
use crate::knobs::{BuildError, Knob, Knobs};
use crate::parts::models::{BatchOptions, PerModel};
use crate::policies::{DROP, MAX_BATCH, WHOLE};
use crate::policy::{Chains, Form, Needs, Policy};
use crate::{Scheduler, Setup};
use ripieno_base::Nanos;
use ripieno_model::{DropRule, Model};

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
            help: "buffer pairs, that is, batches that may run side by side on a device, each on a lane of it; with 1 all \
                   stages run one after the other, as is best where a single batch uses all of the device, like a CPU",
        },
        Knob {
            name: "executors",
            default: "lane",
            help: "what runs the stages: \"lane\" = a lane runs all stages of its batch, so that one stage may run twice at once, \
                   \"stage\" = each stage has one executor, as in the paper, and batches follow each other through the buffer \
                   pairs between them",
        },
        Knob {
            name: "diversity",
            default: "auto",
            help: "what batches are formed for: \"input\" = different lengths, \"operator\" = stages that prefer different \
                   batch sizes, \"load\" = uneven arrivals; \"auto\" = as the model's profiles say",
        },
        Knob {
            name: "groups",
            default: "16",
            help: "the most groups by length that waiting requests are divided into; fewer where larger batches are worth their \
                   padding by the profiles; the paper has 2",
        },
        Knob {
            name: "crowd",
            default: "oldest",
            help: "who makes up a batch where lengths differ and more wait than it holds: \"oldest\" = the oldest, divided \
                   into groups, as in the paper, \"alike\" = the oldest and those of like lengths among all",
        },
        Knob {
            name: "split",
            default: "true",
            help: "whether batches are split where later stages prefer smaller ones",
        },
        Knob {
            name: "stretch",
            default: "gain",
            help: "when newcomers may join a batch that runs: \"gain\" = if all together wait less by the profiles, \
                   \"comp-wait\" = until it has run for comp_wait_ms, \"never\"",
        },
        Knob {
            name: "comp_wait_ms",
            default: "half of what a batch of 8 takes",
            help: "how long after its begin a batch may be joined with stretch = \"comp-wait\", in ms",
        },
        Knob {
            name: "window_ms",
            default: "none",
            help: "how long the first request of a batch waits for others, in ms, even on an idle device",
        },
        Knob {
            name: "window",
            default: "none",
            help: "how long it waits on a busy device where lengths differ: \"none\" = until the device has room, \
                   \"first-stage\" = as long as the first stage takes at the largest batch, as in the paper; window_ms wins",
        },
        MAX_BATCH,
        Knob { default: "never", ..DROP },
    ],
    needs: |knobs| Needs { lanes: lanes(knobs).unwrap_or(1), ..Needs::ONE_TASK },
    served: &[],
    form: Form::OnePiece(build),
};

/// The most groups.
const MAX_GROUPS: usize = 16;

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let diversities = [
        ("auto", None),
        ("input", Some(Diversity::Input)),
        ("operator", Some(Diversity::Operator)),
        ("load", Some(Diversity::Load)),
    ];
    let stretches = [("gain", Stretch::Gain), ("comp-wait", Stretch::CompWait), ("never", Stretch::Never)];
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
            alike: knobs.choice("crowd", &[("alike", true), ("oldest", false)], false)?,
            splits: knobs.flag("split", true)?,
            stretch: knobs.choice("stretch", &stretches, Stretch::Gain)?,
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

/// The lanes of each device. Executors of stages take one that is free: there are as many as a device may have, since all stages of
/// a model may run at once.
fn lanes(knobs: &Knobs<'_>) -> Result<usize, BuildError> {
    Ok(executors(knobs)?.beside(MAX_LANES))
}

/// What the options say.
pub(super) struct DvaOptions {
    /// Tasks that a device runs at once.
    pub(super) lanes: usize,
    pub(super) executors: Executors,
    pub(super) batches: BatchOptions,
    pub(super) terms: SplitTerms,
    comp_wait: PerModel<Option<Nanos>>,
    window: PerModel<Option<Nanos>>,
}

impl DvaOptions {
    /// What they say about one model.
    pub(super) fn terms(&self, model: &Model) -> SplitTerms {
        let (comp_wait, window) = (self.comp_wait.of(model), self.window.of(model));
        SplitTerms { comp_wait, window, ..self.terms }
    }
}
