//! A live run that is simulated from its recording reproduces the measurement.
//!
//! In the live run tasks are late by chance and requests reach the scheduler late, with the
//! margins, the admission control and the expiry of a server. The inputs and decisions of its
//! scheduler are recorded as in the runtime.

use crate::common::options;
use ripieno_base::{ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{Block, Extent, Graph, LengthProfiles, Model, Profile, Steps, Walk};
use ripieno_policies::{build_served, find};
use ripieno_sched::{Control, Event, Limits, Needs, Outbox, Request, Scheduler, SchedulerLayer, Setup, TaskDone};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Jitter, Recorded, Route, World, simulate};
use ripieno_workload::{stream, unit};

/// A scheduler that records its events.
struct Taped {
    scheduler: Box<dyn Scheduler>,
    tape: Vec<(Time, Event)>,
    graph: Option<Event>,
}

impl SchedulerLayer for Taped {
    fn inner(&self) -> &dyn Scheduler {
        self.scheduler.as_ref()
    }

    fn inner_mut(&mut self) -> &mut dyn Scheduler {
        self.scheduler.as_mut()
    }

    fn on_graph(&mut self, request: RequestSlot, graph: &Graph) {
        self.graph = Some(Event::Graph { request, graph: graph.clone() });
        self.scheduler.on_graph(request, graph);
    }

    fn on_request(&mut self, now: Time, request: &Request) {
        self.tape.extend(self.graph.take().map(|graph| (now, graph)));
        self.tape.push((now, Event::Request(*request)));
        self.scheduler.on_request(now, request);
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        let (ended, skips) = (done.ended.to_vec(), done.skips.to_vec());
        self.tape.push((now, Event::TaskDone { task: done.task, outcome: done.outcome, ended, skips }));
        self.scheduler.on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        self.tape.push((now, Event::Control(control.clone())));
        self.scheduler.on_control(now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.scheduler.settle(now, out);
        self.tape.push((now, Event::of_settle(self.scheduler.as_ref(), out.actions())));
    }
}

const JITTER: Jitter = Jitter { mean_us: 300.0, mean_percent: 3.0 };

fn linear(alpha_ms: f64, beta_ms: f64) -> Profile {
    Profile::linear(alpha_ms, beta_ms, 16).unwrap()
}

fn model(name: &str, walk: Walk, blocks: Vec<Block>, slo_ms: i64) -> Model {
    let slo = Nanos::from_millis(slo_ms);
    let (name, instances) = (name.to_owned(), usize::MAX);
    Model {
        name,
        blocks,
        walk,
        slo,
        max_batch: 16,
        instances,
        drop: None,
        weight: 1,
        dec_timesteps: None,
        in_arrival_order: false,
        pinned: false,
    }
}

fn whole(name: &str) -> Model {
    model(name, Walk::Whole, vec![Block::new(name, linear(0.4, 3.0))], 30)
}

/// Three stages, of which the first has a cost that depends on length.
fn chain(padded: bool) -> Model {
    let mut blocks: Vec<_> = (0..3).map(|at| Block::new(at.to_string(), linear(0.2, 1.0))).collect();
    if padded {
        let by_length = |part: f64| linear(0.2 * part, 1.0 * part);
        blocks.iter_mut().for_each(|block| {
            block.lengths = Some(LengthProfiles::new(vec![(8, by_length(0.3)), (32, by_length(1.0))]).unwrap());
        });
    }
    blocks[0].skips = !padded;
    model("chain", Walk::Chain, blocks, 40)
}

fn translator() -> Model {
    let cell = |name: &str, steps| Block { steps, ..Block::new(name, linear(0.02, 0.2)) };
    model("cells", Walk::EncodeDecode, vec![cell("encoder", Steps::Length), cell("decoder", Steps::UntilEnd)], 60)
}

/// Requests at a rate, with one to three rows, which reach the scheduler late; a part of them has a
/// time limit of its own.
fn arrivals(models: &[Model], rate: f64, hasty: f64, seed: u64) -> Vec<Arrival> {
    let mut random = stream(seed, 1);
    let mut draw = |span: f64| unit(&mut random) * span;
    let mut arrived = Time::ORIGIN;
    let arrivals = (0..1_500).map(|_| {
        let at = arrived;
        arrived = arrived + Nanos::from_millis_f64(-(1.0 - draw(1.0)).ln() * 1e3 / rate);
        let id = draw(models.len() as f64) as usize;
        let model = &models[id];
        let slo = model.slo.as_millis_f64();
        let limit = Nanos::from_millis_f64(if draw(1.0) < hasty { slo * 0.4 } else { slo });
        let unfolds = model.walk.is_unfolded();
        let length = if unfolds || model.has_lengths() { 1 + draw(30.0) as u32 } else { 1 };
        let (output, limited) = if unfolds { (1 + draw(20.0) as u32, 20) } else { (0, 0) };
        let rows = if unfolds { 1 } else { 1 + draw(3.0) as u32 };
        let route = match model.walk == Walk::Chain && draw(1.0) < 0.2 {
            true => Route::ALL.ending_after(ripieno_base::BlockId(1)),
            false => Route::ALL,
        };
        let extent = Extent { length, limit: limited };
        let heard = at + Nanos::from_millis_f64(draw(0.4));
        Arrival { arrived: at, rows, extent, output, route, ..Arrival::new(heard, ModelId(id as u16), at + limit) }
    });
    let mut arrivals: Vec<_> = arrivals.collect();
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

struct Served {
    setup: Setup,
    tape: Vec<(Time, Event)>,
}

/// Serves requests as a live server would, on devices that are late, and records them.
fn serve(policy: &str, set: &str, models: Vec<Model>, devices: usize, arrivals: &[Arrival], seed: u64) -> Served {
    let Needs { lanes, depth, .. } = find(policy).unwrap().needs(&options(set));
    let (requests, batch) = (400, 16);
    let limits = Limits { requests, models: models.len(), devices, lanes, depth, batch, nodes: 0 };
    let setup = Setup { models, devices, limits };
    let scheduler = build_served(policy, &setup, &options(set)).unwrap();
    let mut taped = Taped { scheduler, tape: Vec::new(), graph: None };
    let mut checkers = Checkers::new(&setup);
    let mut world = World::new(&mut taped, &setup).with_jitter(JITTER, seed);
    world = world.with_learning(&setup.models).with_expiry();
    if arrivals.iter().any(|arrival| arrival.route != Route::ALL) {
        world = world.with_routes(&setup);
    }
    world.run(arrivals.iter().copied(), [], &mut [&mut checkers]);
    checkers.finish();
    Served { tape: taped.tape, setup }
}

fn recorded(served: &Served) -> Recorded {
    let mut recorded = Recorded::new(&served.setup).unwrap();
    served.tape.iter().for_each(|(now, event)| recorded.event(*now, event).unwrap());
    recorded
}

/// Returns bad rate, p50 and p99 as measured and as simulated.
fn figures(policy: &str, set: &str, served: &Served, exact: bool) -> [[f64; 3]; 2] {
    let mut recorded = recorded(served);
    let measured = recorded.measured(policy);
    if exact {
        recorded.set_exact();
    }
    let scenario = recorded.scenario(policy, options(set), served.setup.limits).unwrap();
    let simulated = simulate(&scenario, None).unwrap();
    assert_eq!(measured.total.requests, simulated.total.requests);
    [measured, simulated].map(|run| [run.total.bad_rate, run.total.p50_ms.unwrap(), run.total.p99_ms.unwrap()])
}

/// A policy, its options, its models, and the requests per second per device.
type Case = (&'static str, &'static str, fn() -> Vec<Model>, f64);

const CASES: [Case; 12] = [
    ("unified", "objective=latency", || vec![whole("a"), whole("b")], 300.0),
    ("deferred", "", || vec![whole("a")], 400.0),
    ("timeout", "timeout_ms=3", || vec![whole("a")], 400.0),
    ("eager", "", || vec![whole("a"), whole("b")], 900.0),
    ("clockwork", "", || vec![whole("a")], 400.0),
    ("nexus", "", || vec![whole("a")], 200.0),
    ("serial", "", || vec![whole("a")], 150.0),
    ("lazy", "", || vec![chain(false)], 300.0),
    ("delay-batch", "", || vec![chain(false)], 300.0),
    ("dva", "buffers=1", || vec![chain(true), whole("a")], 300.0),
    ("cellular", "", || vec![translator(), whole("a")], 80.0),
    ("bucketed", "", || vec![translator()], 25.0),
];

/// Runs a case live; returns its figures as measured, and as simulated as served.
fn live(case: usize, set: Option<&str>, devices: usize, hasty: f64, round: usize) -> (Served, [[f64; 3]; 2]) {
    let (policy, own, models, rate) = CASES[case];
    let (set, models, seed) = (set.unwrap_or(own), models(), (case + round * CASES.len()) as u64);
    let arrivals = arrivals(&models, rate * devices as f64, hasty, seed);
    let served = serve(policy, set, models, devices, &arrivals, seed);
    let both = figures(policy, set, &served, false);
    (served, both)
}

/// Allowed difference of goodput and of p99.
const NEAR: (f64, f64) = (0.02, 0.05);

/// Asserts that in the median of the rounds goodput and p99 are within the bounds, p50 within 5 %.
fn assert_near(rounds: &[[[f64; 3]; 2]], (good, tail): (f64, f64), what: &str) {
    let median = |off: &dyn Fn(&[[f64; 3]; 2]) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(off).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let bad = median(&|[measured, simulated]| (measured[0] - simulated[0]).abs());
    let [p50, p99] = [1, 2].map(|at| median(&|[measured, simulated]| (measured[at] / simulated[at] - 1.0).abs()));
    assert!(bad <= good && p50 <= 0.05 && p99 <= tail, "{what}: bad rate, p50, p99: {rounds:?}");
}

#[test]
fn on_one_device_the_recorded_policy_reproduces_the_measurement() {
    for (at, &(policy, set, models, _)) in CASES.iter().enumerate() {
        let (served, [measured, simulated]) = live(at, None, 1, 0.0, 0);
        if models()[0].walk.is_unfolded() {
            // Queued steps begin while the one before them is late, and on other devices in the
            // simulation.
            assert_near(&[[measured, simulated]], NEAR, policy);
        } else {
            assert_eq!(measured, simulated, "{policy} {set}: bad rate, p50, p99");
        }
        let [_, exact] = figures(policy, set, &served, true);
        // Without delays it is faster. Under too much load the tail is limited by the deadlines,
        // and where batches are deferred by these less a margin, which vanishes if nothing is late.
        let tail = exact[2] < 1.01 * measured[2] || policy == "deferred";
        let faster = exact[1] < 0.98 * measured[1] && tail;
        assert!(faster, "{policy} {set}: {exact:?}, {measured:?}");
    }
}

#[test]
fn time_limits_devices_and_lanes_are_as_recorded() {
    for (at, &(policy, ..)) in CASES.iter().enumerate() {
        let rounds = |set: Option<&str>, devices| [0, 1, 2].map(|round| live(at, set, devices, 0.1, round).1);
        // The simulation chooses the devices of queued steps itself, and "bucketed" queues whole
        // batches of them.
        let near = if policy == "bucketed" { (0.03, NEAR.1) } else { NEAR };
        assert_near(&rounds(None, 2), near, policy);
        if policy == "dva" {
            // A recording does not contain the mutual slowdown of two parallel batches.
            assert_near(&rounds(Some(""), 1), (NEAR.0, 0.1), "dva on two lanes");
        }
    }
}

fn whole_run() -> Served {
    live(0, None, 1, 0.1, 0).0
}

#[test]
fn another_slo_and_more_devices_change_the_result() {
    let served = whole_run();
    let simulated = |slo_ms: i64, devices: usize| {
        let mut recorded = recorded(&served);
        recorded.set_slo(Nanos::from_millis(slo_ms));
        let limits = Limits { devices, ..served.setup.limits };
        let scenario = recorded.scenario("unified", options(""), limits).unwrap();
        simulate(&scenario, None).unwrap().total
    };
    let (tight, loose, wide) = (simulated(8, 1), simulated(200, 1), simulated(8, 4));
    assert!(tight.bad_rate > 0.2 && loose.bad_rate < 0.01, "{tight:?}, {loose:?}");
    assert!(wide.bad_rate < 0.5 * tight.bad_rate, "{wide:?}");
}

#[test]
fn a_recording_that_was_cut_off_counts_up_to_there() {
    let mut served = whole_run();
    served.tape.truncate(served.tape.len() / 2);
    let recorded = recorded(&served);
    let (measured, came) = (recorded.measured("deferred"), recorded.requests());
    // Requests without an answer at the end are not counted as measured, but simulated.
    assert!((came - 20..=came).contains(&(measured.total.requests as usize)), "{came}, {measured:?}");
    let scenario = recorded.scenario("deferred", options(""), served.setup.limits).unwrap();
    assert_eq!(simulate(&scenario, None).unwrap().total.requests, came as u64);
}

#[test]
fn recordings_that_no_server_writes_are_refused() {
    let served = whole_run();
    let refused = |setup: &Setup, events: &[(Time, Event)]| {
        let mut recorded = match Recorded::new(setup) {
            Err(problem) => return problem,
            Ok(recorded) => recorded,
        };
        let problem = events.iter().find_map(|(now, event)| recorded.event(*now, event).err());
        problem.unwrap_or_else(|| {
            let scenario = recorded.scenario("deferred", options(""), setup.limits);
            scenario.err().unwrap_or_default()
        })
    };
    let changed = |change: fn(&mut Request)| {
        let mut tape = served.tape.clone();
        let first = tape.iter_mut().find_map(|(_, event)| match event {
            Event::Request(request) => Some(request),
            _ => None,
        });
        change(first.unwrap());
        refused(&served.setup, &tape)
    };
    assert_eq!(refused(&served.setup, &served.tape), "");
    assert!(refused(&served.setup, &[]).contains("no request"));
    assert!(changed(|request| request.rows = 17).contains("17 rows for model"));
    assert!(changed(|request| request.rows = 0).contains("0 rows"));
    assert!(changed(|request| request.model = ModelId(9)).contains("no such model has been loaded"));
    assert!(changed(|request| request.extent.length = 0).contains("length 0"));
    assert!(changed(|request| request.arrived = Time(-5)).contains("cannot follow"));
    assert!(changed(|request| request.slot = RequestSlot(399)).contains("no request"));

    let end = served.tape.len() - 1;
    assert!(refused(&served.setup, &[&served.tape[..], &served.tape[..1]].concat()).contains("cannot follow"));
    let done = served.tape.iter().position(|(_, event)| matches!(event, Event::TaskDone { .. })).unwrap();
    let again = (served.tape[end].0, served.tape[done].1.clone());
    assert!(refused(&served.setup, &[&served.tape[..], &[again]].concat()).contains("it has not begun"));

    let bounds = |change: fn(&mut Setup)| {
        let mut setup = served.setup.clone();
        change(&mut setup);
        refused(&setup, &served.tape)
    };
    assert!(bounds(|setup| setup.limits.requests = 1 << 40).contains("requests = 1099511627776"));
    assert!(bounds(|setup| setup.devices = 0).contains("devices = 0"));
    assert!(bounds(|setup| setup.limits.lanes = 1 << 30).contains("lanes = "));
    assert!(bounds(|setup| setup.models[0].blocks.clear()).contains("has no block"));
    assert!(bounds(|setup| setup.models[0].max_batch = 99).contains("ends before its largest batch"));
    assert!(bounds(|setup| setup.models[0].slo = Nanos::ZERO).contains("no time"));
}
