//! The two commands over a scenario: run it, and search for its goodput.

use crate::autoscale::Autoscaler;
use crate::changing::ModelLoad;
use crate::checkers::Checkers;
use crate::ensembles::Whole;
use crate::observer::{End, Observer, Run};
use crate::scenario::{Drawn, Length, Routes, Scenario, WalkSource};
use crate::unfolding::Unfolding;
use crate::world::expires;
use crate::{Arrival, Route, Trace, World};
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_model::Graph;
use ripieno_policies::{build, build_served};
use ripieno_report::{Collector, ObservationWindow, RunInfo, Search, SearchResult, Summary, search};
use ripieno_sched::{BuildError, Request, Scheduler};
use ripieno_workload::{ArrivalError, Arrivals, ChangingArrivals, SeededRng, mix, stream as stream_of};
use std::collections::BTreeSet;
use thiserror::Error;

/// Offsets that separate the random streams of extents and of routes from the arrivals'.
const EXTENTS: u64 = 1 << 32;
const ROUTES: u64 = 1 << 33;

/// The reason for which a scenario could not be run.
#[derive(Debug, Error)]
pub enum SimError {
    /// The policy or its options do not fit.
    #[error(transparent)]
    Policy(#[from] BuildError),
    /// The arrival process does not fit the rate.
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    /// A search needs a rate to vary.
    #[error("goodput is searched by varying rate, but the scenario lists its requests in requests_file")]
    FixedRequests,
}

/// The result of a goodput search: the last good and the first bad run.
pub type Goodput = SearchResult<Summary>;

/// Runs a scenario at its own rate. `wall_s` is left at 0 for a caller with a clock.
pub fn simulate(scenario: &Scenario, trace: Option<&mut Trace>) -> Result<Summary, SimError> {
    match (&scenario.requests, scenario.rate) {
        (Some(requests), _) => run(scenario, built(scenario)?, requests.iter().copied(), last(requests), trace),
        (None, Some(rate)) => simulate_at(scenario, rate, trace),
        (None, None) => Err(ArrivalError::Rate(0.0).into()),
    }
}

/// Runs a scenario with random arrivals at `rate` requests per second.
pub fn simulate_at(scenario: &Scenario, rate: f64, trace: Option<&mut Trace>) -> Result<Summary, SimError> {
    at_rate(scenario, built(scenario)?, rate, trace)
}

/// Runs a scenario under a scheduler of the caller's instead of its policy, at `rate` requests per
/// second. The scheduler is built for [`Scenario::effective_setup`].
pub fn simulate_with(
    scenario: &Scenario,
    scheduler: Box<dyn Scheduler>,
    rate: f64,
    trace: Option<&mut Trace>,
) -> Result<Summary, SimError> {
    at_rate(scenario, scheduler, rate, trace)
}

/// Builds the policy of a scenario.
fn built(scenario: &Scenario) -> Result<Box<dyn Scheduler>, BuildError> {
    let build = if scenario.admission { build_served } else { build };
    build(&scenario.policy, &scenario.effective_setup(), &scenario.effective_options())
}

fn at_rate(
    scenario: &Scenario,
    scheduler: Box<dyn Scheduler>,
    rate: f64,
    trace: Option<&mut Trace>,
) -> Result<Summary, SimError> {
    let models: Vec<_> = scenario.loads.iter().zip(0..).filter(|(load, _)| load.share > 0.0).collect();
    let stream =
        |&(load, index): &(&ModelLoad, u16)| Stream::new(load, rate * load.share, scenario.seed, u64::from(index));
    let streams = models.iter().map(stream).collect::<Result<Vec<_>, _>>()?;
    let mut sources: Vec<_> = models.iter().map(|&(_, model)| RequestSource::new(scenario, model)).collect();
    let arrival = |(at, stream): (Time, usize)| sources[stream].draw(at, &scenario.graphs);
    let (count, until) = match scenario.length {
        Length::Requests(count) => (count, Time::NEVER),
        Length::Until(until) => (u64::MAX, until),
    };
    let arrivals = mix(streams).take_while(move |&(at, _)| at <= until).take(count as usize).map(arrival);
    let horizon = match scenario.length {
        Length::Requests(count) => Time::ORIGIN + Nanos::from_secs_f64(count as f64 / rate),
        Length::Until(until) => until,
    };
    run(scenario, scheduler, arrivals, horizon, trace)
}

/// Searches for the highest offered rate at which every model's bad rate is at most 1 %. `progress`
/// is called after each run and may fill in its `wall_s`.
pub fn goodput(scenario: &Scenario, mut progress: impl FnMut(&mut Summary)) -> Result<Goodput, SimError> {
    if scenario.requests.is_some() {
        return Err(SimError::FixedRequests);
    }
    search(Search::from_ceiling(scenario.bound_rps()), |rate| {
        let mut summary = simulate_at(scenario, rate, None)?;
        progress(&mut summary);
        Ok((summary.worst_bad_rate, summary))
    })
}

/// The source of one model's requests.
struct RequestSource<'a> {
    model: ModelId,
    slo: Nanos,
    routes: Option<&'a Routes>,
    walk: Option<&'a WalkSource>,
    /// Extents and routes come from separate streams, so that arrivals do not depend on them.
    extents: SeededRng,
    ways: SeededRng,
}

impl<'a> RequestSource<'a> {
    fn new(scenario: &'a Scenario, model: u16) -> RequestSource<'a> {
        let (index, random) = (usize::from(model), |what: u64| stream_of(scenario.seed, what | u64::from(model)));
        RequestSource {
            model: ModelId(model),
            slo: match scenario.setup.models.get(index) {
                Some(model) => model.slo,
                None => scenario.ensembles[index - scenario.setup.models.len()].slo,
            },
            routes: scenario.routes.get(index).and_then(Option::as_ref),
            walk: scenario.walks.get(index).and_then(Option::as_ref),
            extents: random(EXTENTS),
            ways: random(ROUTES),
        }
    }

    fn draw(&mut self, at: Time, graphs: &[Graph]) -> Arrival {
        let mut arrival = Arrival::new(at, self.model, at + self.slo);
        if let Some(routes) = self.routes {
            arrival.route = routes.draw(&mut self.ways);
        }
        let Some(walk) = self.walk else { return arrival };
        let Drawn { extent, output, graph } = walk.draw(&mut self.extents, graphs);
        Arrival { extent, output, graph, ..arrival }
    }
}

/// The arrivals of one model.
enum Stream {
    Steady(Arrivals),
    Changing(ChangingArrivals),
}

impl Stream {
    fn new(load: &ModelLoad, rate: f64, seed: u64, index: u64) -> Result<Stream, ArrivalError> {
        Ok(match &load.curve {
            None => Stream::Steady(Arrivals::new(load.arrival, rate, seed, index)?),
            Some(curve) => Stream::Changing(ChangingArrivals::new(load.arrival, curve.scaled(rate), seed, index)?),
        })
    }
}

impl Iterator for Stream {
    type Item = Time;

    fn next(&mut self) -> Option<Time> {
        match self {
            Stream::Steady(arrivals) => arrivals.next(),
            Stream::Changing(arrivals) => arrivals.next(),
        }
    }
}

fn last(requests: &[Arrival]) -> Time {
    requests.last().map_or(Time::ORIGIN, |arrival| arrival.at)
}

fn run(
    scenario: &Scenario,
    mut scheduler: Box<dyn Scheduler>,
    arrivals: impl Iterator<Item = Arrival>,
    horizon: Time,
    trace: Option<&mut Trace>,
) -> Result<Summary, SimError> {
    let setup = &scenario.effective_setup();
    let start = Time::ORIGIN + Nanos((horizon.0 as f64 * scenario.warmup_fraction) as i64);
    let ensembles = scenario.ensembles.iter().map(|ensemble| ensemble.name.clone());
    let names = setup.models.iter().map(|model| model.name.clone()).chain(ensembles);
    let window = ObservationWindow::from(start);
    let mut statistics = Statistics {
        collector: Collector::new(names, setup.limits.devices, setup.limits.batch, window),
        last_arrival: Time::ORIGIN,
        held_back: Vec::new(),
        steps: BTreeSet::new(),
        models: setup.models.len(),
        expires: setup.models.iter().map(|model| scenario.margins && expires(model)).collect(),
    };
    let mut checkers = scenario.check.then(|| match scenario.needs().pads {
        true => Checkers::new(setup),
        false => Checkers::new(setup).without_padding(),
    });
    let mut unfolding = Unfolding::new(setup, start);
    let mut observers: Vec<&mut dyn Observer> = vec![&mut statistics];
    observers.extend(checkers.as_mut().map(|checkers| checkers as &mut dyn Observer));
    observers.extend(unfolding.as_mut().map(|unfolding| unfolding as &mut dyn Observer));
    observers.extend(trace.map(|trace| trace as &mut dyn Observer));
    let mut world = World::new(scheduler.as_mut(), setup)
        .with_network(scenario.network, scenario.seed)
        .with_decisions(scenario.decision)
        .with_jitter(scenario.jitter, scenario.seed)
        .with_occupancy(&scenario.occupancy, scenario.seed)
        .with_reports(&scenario.reports)
        .with_graphs(&scenario.graphs)
        .with_gather(&scenario.gather)
        .with_ensembles(&scenario.ensembles)
        .with_queues(&scenario.queues);
    if scenario.margins {
        world = world.with_learning(&setup.models).with_expiry();
    }
    let leaves = |arrivals: &Vec<Arrival>| arrivals.iter().any(|arrival| arrival.route != Route::ALL);
    if scenario.routes.iter().any(Option::is_some) || scenario.requests.as_ref().is_some_and(leaves) {
        world = world.with_routes(setup);
    }
    let mut info = RunInfo { policy: scenario.policy.clone(), seed: scenario.seed, ..RunInfo::default() };
    let Some(window) = scenario.window else {
        world.run(arrivals, [], &mut observers);
        info.events = world.events();
        checkers.iter().for_each(Checkers::finish);
        let unfolded = unfolding.map(Unfolding::finish);
        return Ok(Summary { unfolded, ..statistics.finish(info) });
    };
    let mut autoscaler = Autoscaler::new(window, scenario.autoscale, setup);
    let mut meter = autoscaler.meter_handle();
    observers.push(&mut meter);
    world.run_controlled(arrivals, &mut autoscaler, &mut observers);
    let last_arrival = world.last_arrival();
    info.events = world.events();
    info.mean_devices = Some(autoscaler.mean_devices(start, last_arrival));
    checkers.iter().for_each(Checkers::finish);
    let unfolded = unfolding.map(Unfolding::finish);
    Ok(Summary { windows: autoscaler.finish(last_arrival), unfolded, ..statistics.finish(info) })
}

/// The observer that feeds the collector. The observed window ends at the last arrival, which is
/// known only after the run. So a task that ended since the latest arrival is held back until it is
/// known whether the window includes it.
struct Statistics {
    collector: Collector,
    last_arrival: Time,
    held_back: Vec<HeldBatch>,
    /// Live requests that are steps: only the whole request counts.
    steps: BTreeSet<u64>,
    models: usize,
    /// Per model, whether late answers are lost because clients stop waiting.
    expires: Vec<bool>,
}

struct HeldBatch {
    model: ModelId,
    rows: usize,
    device: DeviceId,
    start: Time,
    end: Time,
}

impl Statistics {
    fn arrival(&mut self, now: Time) {
        self.last_arrival = now;
        if !self.held_back.is_empty() {
            self.record_batches();
        }
    }

    /// Records the held batches; device time counts up to the last arrival.
    fn record_batches(&mut self) {
        for batch in self.held_back.drain(..) {
            let end = batch.end.min(self.last_arrival.max(batch.start));
            self.collector.record_batch(batch.model, batch.rows, batch.device, batch.start, end);
        }
    }

    fn finish(mut self, info: RunInfo) -> Summary {
        self.record_batches();
        self.collector.finish(self.last_arrival, info)
    }
}

impl Observer for Statistics {
    fn accepted(&mut self, id: u64, request: &Request) {
        if !self.steps.contains(&id) {
            self.arrival(request.arrived);
        }
    }

    fn is_step(&mut self, id: u64) {
        self.steps.insert(id);
    }

    fn whole_arrived(&mut self, whole: &Whole) {
        self.arrival(whole.arrived);
    }

    fn whole_ended(&mut self, now: Time, whole: &Whole, well: bool) {
        let id = ModelId((self.models + whole.ensemble) as u16);
        match well {
            true => self.collector.record_answer(id, whole.arrived, whole.deadline, now),
            false => self.collector.record_drop(id, whole.arrived),
        }
    }

    fn refused(&mut self, now: Time, id: u64, model: ModelId) {
        if self.steps.remove(&id) {
            return;
        }
        self.arrival(now);
        self.collector.record_drop(model, now);
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        let Run { model, rows, device, start, .. } = *run;
        self.held_back.push(HeldBatch { model, rows, device, start, end: now.min(run.end) });
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        if self.steps.remove(&id) {
            return;
        }
        let lost = self.expires[request.model.index()] && now > request.deadline;
        match end {
            End::Finished if lost => self.collector.record_drop(request.model, request.arrived),
            End::Finished => self.collector.record_answer(request.model, request.arrived, request.deadline, now),
            End::Rejected(_) => self.collector.record_drop(request.model, request.arrived),
        }
    }
}
