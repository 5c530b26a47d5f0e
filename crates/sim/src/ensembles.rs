//! Ensembles in a simulated world: a request to one runs its models in the order of a graph, under
//! one deadline.

use ripieno_base::{ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{StepGraph, StepProgress, reserve};
use std::collections::BTreeMap;

/// Models as the steps of a graph.
#[derive(Clone, Debug)]
pub struct SimulatedEnsemble {
    /// Name of the ensemble.
    pub name: String,
    /// Latency target from arrival to the end of the last step.
    pub slo: Nanos,
    /// The rule for the deadlines of its steps.
    pub budget: Budget,
    /// The model of each step.
    pub steps: Vec<ModelId>,
    /// The dependencies among the steps.
    pub graph: StepGraph,
    /// Per step, its latency alone.
    pub alone: Vec<Nanos>,
    /// Per step, the latency of the longest path after it.
    pub after: Vec<Nanos>,
}

/// The rule for the deadline of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The deadline of the whole request, less the time [reserved](ripieno_model::reserve) for the
    /// steps after it.
    Whole,
    /// The SLO of the step's own model, from the step's start.
    Stage,
}

/// A request to an ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Index of the [`SimulatedEnsemble`].
    pub ensemble: usize,
    /// Time of arrival.
    pub arrived: Time,
    /// The time at which the answer is due.
    pub deadline: Time,
}

/// A request in progress.
#[derive(Debug)]
struct Under {
    whole: Whole,
    progress: StepProgress,
    /// Slots of the steps that have begun.
    slots: Vec<RequestSlot>,
}

/// Requests to ensembles in progress.
#[derive(Debug)]
pub(crate) struct Ensembles<'a> {
    pub(crate) all: &'a [SimulatedEnsemble],
    /// Requests in progress, by number.
    live: BTreeMap<u64, Under>,
    begun: u64,
    /// Per slot, the request and the step that it holds.
    steps: Vec<Option<(u64, usize)>>,
    /// Requests with a step that has ended since the last check.
    moved: Vec<u64>,
    /// Steps whose request has failed.
    orphans: Vec<RequestSlot>,
}

impl<'a> Ensembles<'a> {
    pub(crate) fn new(all: &'a [SimulatedEnsemble], slots: usize) -> Ensembles<'a> {
        let (live, moved, orphans) = (BTreeMap::new(), Vec::new(), Vec::new());
        Ensembles { all, live, begun: 0, steps: vec![None; slots], moved, orphans }
    }

    /// Begins a request; its first steps begin at the next check.
    pub(crate) fn begin(&mut self, whole: Whole) {
        self.begun += 1;
        self.live.insert(self.begun, Under { whole, progress: StepProgress::default(), slots: Vec::new() });
        self.moved.push(self.begun);
    }

    /// Returns whether the next instant needs a check.
    pub(crate) fn has_moved(&self) -> bool {
        !self.moved.is_empty() || !self.orphans.is_empty()
    }

    /// Returns the next step that may begin: its request, index, model and deadline.
    pub(crate) fn next_step(
        &mut self,
        now: Time,
        slo: impl Fn(ModelId) -> Nanos,
    ) -> Option<(u64, usize, ModelId, Time)> {
        while let Some(&id) = self.moved.last() {
            let Some(Under { whole, progress, .. }) = self.live.get_mut(&id) else {
                self.moved.pop();
                continue;
            };
            let ensemble = &self.all[whole.ensemble];
            if let Some(step) = progress.begin_next(&ensemble.graph) {
                let model = ensemble.steps[step];
                let deadline = match ensemble.budget {
                    Budget::Whole => {
                        whole.deadline - reserve(whole.deadline - now, ensemble.alone[step], ensemble.after[step])
                    }
                    Budget::Stage => now + slo(model),
                };
                return Some((id, step, model, deadline));
            }
            self.moved.pop();
        }
        None
    }

    /// Assigns a slot to a step.
    pub(crate) fn hold(&mut self, slot: RequestSlot, id: u64, step: usize) {
        self.steps[slot.index()] = Some((id, step));
        if let Some(under) = self.live.get_mut(&id) {
            under.slots.push(slot);
        }
    }

    /// Ends a step; returns its request and the result, if the request has ended with it.
    pub(crate) fn end(&mut self, slot: RequestSlot, well: bool) -> Option<(Whole, bool)> {
        let (id, step) = self.steps[slot.index()].take()?;
        if !well {
            return self.fail(id).map(|whole| (whole, false));
        }
        let Under { whole, progress, .. } = self.live.get_mut(&id)?;
        progress.end(step);
        if progress.is_over(&self.all[whole.ensemble].graph) {
            return self.live.remove(&id).map(|under| (under.whole, true));
        }
        self.moved.push(id);
        None
    }

    /// Fails a request with one of its steps; the other steps are to be cancelled.
    pub(crate) fn fail(&mut self, id: u64) -> Option<Whole> {
        let Under { whole, slots, .. } = self.live.remove(&id)?;
        let is_its = |slot: &RequestSlot| self.steps[slot.index()].is_some_and(|(of, _)| of == id);
        self.orphans.extend(slots.into_iter().filter(is_its));
        Some(whole)
    }

    /// Returns a step of a failed request, unless it has ended meanwhile.
    pub(crate) fn next_orphan(&mut self) -> Option<RequestSlot> {
        let Ensembles { orphans, steps, live, .. } = self;
        let is_orphan = |slot: &RequestSlot| steps[slot.index()].is_some_and(|(id, _)| !live.contains_key(&id));
        std::iter::from_fn(|| orphans.pop()).find(is_orphan)
    }
}
