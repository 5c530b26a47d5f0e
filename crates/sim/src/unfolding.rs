//! Statistics of walks that unfold: waiting, computing, and wasted rows.

use crate::observer::{End, Observer, Run};
use ripieno_base::{Nanos, RequestSlot, Time};
use ripieno_model::{Extent, Graph, Steps};
use ripieno_report::{Latencies, UnfoldedFigures};
use ripieno_sched::{Request, Setup};

/// An observer of a run.
#[derive(Debug)]
pub(crate) struct Unfolding {
    /// Step kinds by model and block.
    steps: Vec<Vec<Steps>>,
    slots: Vec<Slot>,
    /// Per device, the members of its latest task.
    latest: Vec<Vec<RequestSlot>>,
    start: Time,
    last_arrival: Time,
    queue: Latencies,
    compute: Latencies,
    /// Times of answers, until it is known whether the window includes them.
    answers: u64,
    recent: Vec<Time>,
    figures: UnfoldedFigures,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    extent: Extent,
    output: u32,
    started: Option<Time>,
}

impl Unfolding {
    /// Returns none if no model unfolds. Events before `start` are not counted.
    pub(crate) fn new(setup: &Setup, start: Time) -> Option<Unfolding> {
        if !setup.models.iter().any(|model| model.walk.is_unfolded()) {
            return None;
        }
        let slot = Slot { extent: Extent::ONE, output: 0, started: None };
        Some(Unfolding {
            steps: setup.models.iter().map(|model| model.blocks.iter().map(|block| block.steps).collect()).collect(),
            slots: vec![slot; setup.limits.requests],
            latest: vec![Vec::new(); setup.limits.devices],
            start,
            last_arrival: Time::ORIGIN,
            queue: Latencies::new(),
            compute: Latencies::new(),
            answers: 0,
            recent: Vec::new(),
            figures: UnfoldedFigures::default(),
        })
    }

    fn arrival(&mut self, now: Time) {
        self.last_arrival = now;
        self.answers += self.recent.drain(..).filter(|&at| at >= self.start).count() as u64;
    }

    /// Returns the figures; the window ends at the last arrival.
    pub(crate) fn finish(self) -> UnfoldedFigures {
        let span = self.last_arrival - self.start;
        let answered_rps = if span > Nanos::ZERO { self.answers as f64 / span.as_secs_f64() } else { 0.0 };
        UnfoldedFigures {
            answered_rps,
            p50_queue_ms: self.queue.p50_ms(),
            p90_queue_ms: self.queue.p90_ms(),
            p99_queue_ms: self.queue.p99_ms(),
            p50_compute_ms: self.compute.p50_ms(),
            p90_compute_ms: self.compute.p90_ms(),
            p99_compute_ms: self.compute.p99_ms(),
            ..self.figures
        }
    }

    fn is_wasted(&self, slot: RequestSlot, steps: Steps, node: u32) -> bool {
        let Slot { extent, output, .. } = self.slots[slot.index()];
        match steps {
            Steps::UntilEnd if output > 0 => node >= output,
            Steps::Length | Steps::UntilEnd => node >= extent.steps(steps),
            Steps::Once | Steps::Nodes => false,
        }
    }
}

impl Observer for Unfolding {
    fn unfolds(&mut self, slot: RequestSlot, output: u32, _graph: Option<&Graph>) {
        self.slots[slot.index()].output = output;
    }

    fn accepted(&mut self, _id: u64, request: &Request) {
        self.arrival(request.arrived);
        let slot = &mut self.slots[request.slot.index()];
        (slot.extent, slot.started) = (request.extent, None);
    }

    fn refused(&mut self, now: Time, _id: u64, _model: ripieno_base::ModelId) {
        self.arrival(now);
    }

    fn started(&mut self, _now: Time, run: &Run<'_>) {
        let same = self.latest[run.device.index()] == run.slots;
        if !same {
            self.latest[run.device.index()].clear();
            self.latest[run.device.index()].extend_from_slice(run.slots);
        }
        for slot in run.slots {
            self.slots[slot.index()].started.get_or_insert(run.start);
        }
        if run.start < self.start {
            return;
        }
        let steps = self.steps[run.model.index()][run.block.index()];
        let wasted =
            run.slots.iter().zip(run.nodes).filter(|&(&slot, &node)| self.is_wasted(slot, steps, node)).count();
        self.figures.tasks += 1;
        self.figures.tasks_without_copy += u64::from(same);
        self.figures.rows += run.rows as u64;
        self.figures.wasted_rows += wasted as u64;
    }

    fn ended(&mut self, now: Time, _id: u64, request: &Request, end: End) {
        let Some(started) = self.slots[request.slot.index()].started.filter(|_| end == End::Finished) else { return };
        self.recent.push(now);
        self.figures.last_answer_s = (now - Time::ORIGIN).as_secs_f64();
        if request.arrived >= self.start {
            self.queue.record(started - request.arrived);
            self.compute.record(now - started);
        }
    }
}
