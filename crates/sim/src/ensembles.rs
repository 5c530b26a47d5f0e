//! Ensembles in a simulated world: a request to one runs its models in the order of a graph, under one deadline.

use ripieno_base::{ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{StepGraph, StepProgress, reserve};
use std::collections::BTreeMap;

/// Models as the steps of a graph.
#[derive(Clone, Debug)]
pub struct SimulatedEnsemble {
    /// Its name.
    pub name: String,
    /// From arrival to the end of the last step.
    pub slo: Nanos,
    /// By when its steps are due.
    pub budget: Budget,
    /// The model of each step.
    pub steps: Vec<ModelId>,
    /// Which step needs which.
    pub graph: StepGraph,
    /// By step, what it takes alone.
    pub alone: Vec<Nanos>,
    /// By step, what comes after it takes alone, on the longest way.
    pub after: Vec<Nanos>,
}

/// By when a step is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The deadline of the whole, less what is [reserved](ripieno_model::reserve) for the steps after it.
    Whole,
    /// The latency target of its own model, from when the step began.
    Stage,
}

/// What a request to an ensemble is, beside the requests for its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Among the [`SimulatedEnsemble`]s.
    pub ensemble: usize,
    /// When it came.
    pub arrived: Time,
    /// When its answer is due.
    pub deadline: Time,
}

/// A request that is under way.
#[derive(Debug)]
struct Under {
    whole: Whole,
    progress: StepProgress,
    /// Of its steps, those that have begun; what has ended of them is found by its slot.
    slots: Vec<RequestSlot>,
}

/// Requests to ensembles that are under way.
#[derive(Debug)]
pub(crate) struct Ensembles<'a> {
    pub(crate) all: &'a [SimulatedEnsemble],
    /// By the number of the request.
    live: BTreeMap<u64, Under>,
    begun: u64,
    /// By slot, the request that it is a step of, and which.
    steps: Vec<Option<(u64, usize)>>,
    /// Requests of which a step has ended since the world looked.
    moved: Vec<u64>,
    /// Steps whose request has failed.
    orphans: Vec<RequestSlot>,
}

impl<'a> Ensembles<'a> {
    pub(crate) fn new(all: &'a [SimulatedEnsemble], slots: usize) -> Ensembles<'a> {
        let (live, moved, orphans) = (BTreeMap::new(), Vec::new(), Vec::new());
        Ensembles { all, live, begun: 0, steps: vec![None; slots], moved, orphans }
    }

    /// A request that has come; its first steps begin when the world looks.
    pub(crate) fn begin(&mut self, whole: Whole) {
        self.begun += 1;
        self.live.insert(self.begun, Under { whole, progress: StepProgress::default(), slots: Vec::new() });
        self.moved.push(self.begun);
    }

    /// Whether the world is to look at the next instant.
    pub(crate) fn has_moved(&self) -> bool {
        !self.moved.is_empty() || !self.orphans.is_empty()
    }

    /// The next step that may begin: its request, which step, its model and when it is due.
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

    /// A step has a slot.
    pub(crate) fn hold(&mut self, slot: RequestSlot, id: u64, step: usize) {
        self.steps[slot.index()] = Some((id, step));
        if let Some(under) = self.live.get_mut(&id) {
            under.slots.push(slot);
        }
    }

    /// A step has ended, well or not; what its request is, if that has ended with it.
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

    /// A request fails with one of its steps; the others are not wanted any more.
    pub(crate) fn fail(&mut self, id: u64) -> Option<Whole> {
        let Under { whole, slots, .. } = self.live.remove(&id)?;
        let is_its = |slot: &RequestSlot| self.steps[slot.index()].is_some_and(|(of, _)| of == id);
        self.orphans.extend(slots.into_iter().filter(is_its));
        Some(whole)
    }

    /// A step that nobody waits for, unless it has ended meanwhile.
    pub(crate) fn next_orphan(&mut self) -> Option<RequestSlot> {
        let Ensembles { orphans, steps, live, .. } = self;
        let is_orphan = |slot: &RequestSlot| steps[slot.index()].is_some_and(|(id, _)| !live.contains_key(&id));
        std::iter::from_fn(|| orphans.pop()).find(is_orphan)
    }
}
