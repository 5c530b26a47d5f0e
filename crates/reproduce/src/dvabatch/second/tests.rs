//! The second reading beside `dva`, task by task.

use super::lego::{LegoOptions, LegoScheduler};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Block, Model, Profile, Walk};
use ripieno_policies::build;
use ripieno_sched::{Limits, OptionValue, Options, Scheduler, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Observer, Run, World};
use ripieno_workload::{SeededRng, below, stream, unit};

/// Tasks by start, stage and members.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tasks(Vec<(Time, usize, Vec<u64>)>);

impl Observer for Tasks {
    fn started(&mut self, _now: Time, run: &Run<'_>) {
        self.0.push((run.start, run.block.index(), run.ids.to_vec()));
    }
}

const STAGES: usize = 3;
const MAX_BATCH: usize = 8;

/// Returns a model whose stages take as long for every batch, the first one longest.
fn setup(random: &mut SeededRng) -> Setup {
    let mut stage = |name: &str| {
        let least_us = if name == "a" { 3_000 } else { 1_000 };
        let latency = Nanos::from_micros(least_us + below(random, 1_000) as i64);
        Block::new(name, Profile::from_table(&[latency; MAX_BATCH]).unwrap())
    };
    let blocks: Vec<_> = ["a", "b", "c"].map(&mut stage).into();
    let whole = Model::whole("staged", blocks[0].profile.clone(), Nanos::from_millis(10_000));
    let limits = Limits { requests: 1_000, lanes: STAGES, batch: MAX_BATCH, ..Limits::ONE };
    Setup { models: vec![Model { walk: Walk::Chain, blocks, max_batch: MAX_BATCH, ..whole }], devices: 1, limits }
}

fn arrivals(random: &mut SeededRng) -> Vec<Arrival> {
    let gap_ms = 0.5 + 3.0 * unit(random);
    let mut at = Time::ORIGIN;
    let mut arrival = || {
        at = at + Nanos::from_millis_f64(-gap_ms * (1.0 - unit(random)).ln()) + Nanos(1);
        Arrival::new(at, ModelId(0), at + Nanos::from_millis(10_000))
    };
    (0..200).map(|_| arrival()).collect()
}

fn tasks(setup: &Setup, arrivals: &[Arrival], scheduler: &mut dyn Scheduler) -> Tasks {
    let (mut tasks, mut checkers) = (Tasks::default(), Checkers::new(setup));
    World::new(scheduler, setup).run(arrivals.iter().copied(), [], &mut [&mut checkers, &mut tasks]);
    checkers.finish();
    tasks.0.sort();
    tasks
}

/// Without stretch both readings run the same batches at the same times. A slower later stage would
/// tell them apart: `dva` takes the first legitimate buffer pair, the public code the next one.
#[test]
fn without_stretch_both_readings_decide_alike() {
    let options = [
        ("stretch", OptionValue::Bool(false)),
        ("split", OptionValue::Bool(false)),
        ("window_ms", OptionValue::Int(0)),
        ("executors", OptionValue::Int(STAGES as i64)),
        ("buffers", OptionValue::Int(16)),
    ];
    let options: Options = options.map(|(name, value)| (name.to_owned(), value)).into();
    for seed in 0..100 {
        let random = &mut stream(seed, 0);
        let setup = setup(random);
        let arrivals = arrivals(random);
        let lego = LegoOptions { max_wait: Nanos::ZERO, buffers: 16 };
        let second = tasks(&setup, &arrivals, &mut LegoScheduler::new(&setup, lego));
        let ours = tasks(&setup, &arrivals, build("dva", &setup, &options).unwrap().as_mut());
        let differs = second.0.iter().zip(&ours.0).find(|(second, ours)| second != ours);
        assert_eq!((differs, second.0.len()), (None, ours.0.len()), "seed {seed}");
        assert!(ours.0.iter().any(|task| task.2.len() > 1), "seed {seed}");
    }
}

/// A newcomer runs the first stage beside the batch, and is one batch with it later.
#[test]
fn newcomers_catch_up_with_the_batch_at_the_next_border() {
    let stage = |name: &str| Block::new(name, Profile::from_table(&[Nanos::from_millis(4); MAX_BATCH]).unwrap());
    let blocks: Vec<_> = ["a", "b", "c"].map(stage).into();
    let whole = Model::whole("staged", blocks[0].profile.clone(), Nanos::from_millis(10_000));
    let limits = Limits { requests: 8, lanes: STAGES, batch: MAX_BATCH, ..Limits::ONE };
    let model = Model { walk: Walk::Chain, blocks, max_batch: MAX_BATCH, ..whole };
    let setup = Setup { models: vec![model], devices: 1, limits };
    let at = |ms: i64| Time::ORIGIN + Nanos::from_millis(ms);
    let arrivals = [1, 2].map(|ms| Arrival::new(at(ms), ModelId(0), at(10_000)));
    let lego = LegoOptions { max_wait: Nanos::from_millis(100), buffers: 2 };
    let Tasks(tasks) = tasks(&setup, &arrivals, &mut LegoScheduler::new(&setup, lego));
    let last: Vec<_> = tasks.iter().filter(|task| task.1 == 2).map(|task| task.2.len()).collect();
    assert_eq!(last, [2], "{tasks:?}");
    assert!(tasks.iter().filter(|task| task.1 == 0).count() == 2, "{tasks:?}");
}
