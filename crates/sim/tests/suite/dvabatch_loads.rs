//! DVABatch under Poisson arrivals on declared stage profiles, compared with the batcher that runs
//! all waiting requests when the device is free: small versions of the promises for every load.

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Block, Model, Profile, Walk};
use ripieno_policies::build;
use ripieno_sched::{Limits, OptionValue, Options, Request, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, End, Observer, Scenario, Trace, World, simulate};
use ripieno_workload::{stream, unit};

const BATCH: usize = 64;
const REQUESTS: usize = 4_000;

#[derive(Default)]
struct Mean {
    sum_ms: f64,
    count: u32,
}

impl Observer for Mean {
    fn ended(&mut self, now: Time, _id: u64, request: &Request, _end: End) {
        self.sum_ms += (now - request.arrived).as_millis_f64();
        self.count += 1;
    }
}

/// Stages with a constant duration in ms up to the batch size that they prefer, and proportional
/// beyond.
fn uneven(stages: &[(f64, usize)]) -> Model {
    let cost = |ms: f64, preferred: usize, rows: usize| ms * (rows as f64 / preferred as f64).max(1.0);
    model(stages.iter().map(|&(ms, preferred)| (1..=BATCH).map(|rows| cost(ms, preferred, rows)).collect()))
}

/// Stages that take αb + β ms.
fn model(stages: impl Iterator<Item = Vec<f64>>) -> Model {
    let block = |(at, table): (usize, Vec<f64>)| {
        let table: Vec<_> = table.into_iter().map(Nanos::from_millis_f64).collect();
        Block::new(at.to_string(), Profile::from_table(&table).unwrap())
    };
    let blocks: Vec<_> = stages.enumerate().map(block).collect();
    let slo = Nanos::from_millis(200);
    Model { blocks, walk: Walk::Chain, ..Model::whole("m", Profile::linear(1.0, 1.0, BATCH).unwrap(), slo) }
}

/// Returns the requests per second at which batches of the best size keep the device busy.
fn peak(model: &Model) -> f64 {
    let profile = model.profile();
    (1..=BATCH).map(|rows| rows as f64 / profile.latency(rows).as_millis_f64() * 1e3).fold(0.0, f64::max)
}

/// Returns the mean latency at a fraction of the peak load.
fn mean_ms(policy: &str, knobs: &[(&str, &str)], lanes: usize, model: &Model, load: f64) -> f64 {
    let (mut random, mut at_ms, rate) = (stream(11, 0), 0.0, load * peak(model));
    let arrivals = (0..REQUESTS).map(|_| {
        at_ms -= (1.0 - unit(&mut random)).ln() / rate * 1e3;
        let at = Time::ORIGIN + Nanos::from_millis_f64(at_ms);
        Arrival::new(at, ModelId(0), at + model.slo)
    });
    let limits = Limits { requests: REQUESTS, lanes, batch: BATCH, ..Limits::ONE };
    let setup = Setup { models: vec![model.clone()], devices: 1, limits };
    let options: Options =
        knobs.iter().map(|&(name, word)| (name.to_owned(), OptionValue::Text(word.to_owned()))).collect();
    let mut scheduler = build(policy, &setup, &options).unwrap();
    let (mut mean, mut checkers) = (Mean::default(), Checkers::new(&setup));
    World::new(scheduler.as_mut(), &setup).run(arrivals, [], &mut [&mut checkers, &mut mean]);
    checkers.finish();
    mean.sum_ms / f64::from(mean.count)
}

fn resnet() -> Model {
    uneven(&[(3.0, 8); 4])
}

fn unet() -> Model {
    uneven(&[(10.0, 32), (10.0, 32), (3.0, 8), (3.0, 8)])
}

/// The paper's fixed time pauses batches that gain nothing by it.
#[test]
fn stretch_costs_latency_where_batches_are_large() {
    let (free, fixed) = (mean_ms("delay-batch", &[], 1, &resnet(), 0.75), mean_ms("dva", &[], 4, &resnet(), 0.75));
    assert!(fixed > 1.1 * free, "{fixed} and {free} ms");
    let without = mean_ms("dva", &[("stretch", "false")], 4, &resnet(), 0.75);
    assert!(without <= 1.02 * free, "{without} and {free} ms");
}

#[test]
fn newcomers_gain_where_batches_are_small() {
    let (free, dva) = (mean_ms("delay-batch", &[], 1, &resnet(), 0.1), mean_ms("dva", &[], 4, &resnet(), 0.1));
    assert!(dva < 0.96 * free, "{dva} and {free} ms");
}

#[test]
fn split_answers_sooner_at_high_load() {
    for load in [0.9, 1.5] {
        // Beyond the peak only throughput matters: splitting loses none.
        let (split, whole) =
            (mean_ms("dva", &[], 4, &unet(), load), mean_ms("dva", &[("split", "false")], 4, &unet(), load));
        assert!(split <= whole, "{load}: {split} and {whole} ms");
    }
    let (dva, unjoined) =
        (mean_ms("dva", &[], 4, &unet(), 0.9), mean_ms("dva", &[("stretch", "false")], 4, &unet(), 0.9));
    for dispatch in ["free", "start"] {
        let whole = mean_ms("delay-batch", &[("dispatch", dispatch)], 1, &unet(), 0.9);
        assert!(unjoined < 0.95 * whole, "{dispatch}: {unjoined} and {whole} ms");
    }
    let unsplit = mean_ms("dva", &[("split", "false")], 4, &unet(), 0.9);
    assert!(dva < 0.95 * unsplit, "{dva} and {unsplit} ms");
}

/// Returns mean and 99th percentile of the latencies of RTE's sentence pairs on two stages of 4.4
/// ms at 512 tokens.
fn sentences_ms(policy: &str, rate: f64) -> (f64, f64) {
    let stage = |name: &str| format!("[[model.block]]\nname = \"{name}\"\nalone_ms = 4.4\npreferred_tokens = 512\n");
    let text = format!(
        "seed = 1\nrequests = 4000\nrate = {rate:?}\n{policy}\n[[model]]\nname = \"bert\"\nslo_ms = 200.0\nmax_batch = 64\n\
         drop = \"never\"\nwalk = \"chain\"\nlengths = {{ kind = \"histogram\", dataset = \"glue-rte\" }}\n{}{}",
        stage("lower"),
        stage("upper"),
    );
    let scenario = Scenario::parse(&text, "test").unwrap();
    let mut trace = Trace::new(&scenario.setup.models);
    simulate(&scenario, Some(&mut trace)).unwrap();
    let latency = |line: &str| {
        let fields: Vec<f64> = line.split(',').skip(2).take(3).map(|field| field.parse().unwrap()).collect();
        fields[2] - fields[0]
    };
    let mut latencies: Vec<_> = trace.requests_csv().lines().skip(1).map(latency).collect();
    latencies.sort_by(f64::total_cmp);
    (latencies.iter().sum::<f64>() / latencies.len() as f64, latencies[latencies.len() * 99 / 100])
}

#[test]
fn short_requests_do_not_pay_for_long_ones() {
    let dva = |knobs: &str| format!("policy = \"dva\"\npolicy_options = {{ {knobs} }}");
    for rate in [100.0, 200.0, 300.0] {
        for dispatch in ["free", "start"] {
            let padded = format!("policy = \"delay-batch\"\npolicy_options = {{ dispatch = \"{dispatch}\" }}");
            let ((padded, _), (mean, _)) = (sentences_ms(&padded, rate), sentences_ms(&dva("window_ms = 0"), rate));
            assert!(mean <= padded, "{rate}/s: {mean} and {padded} ms ({dispatch})");
        }
    }
    // A load beyond the padding batcher's peak is still punctual with groups.
    let (_, padded) = sentences_ms("policy = \"delay-batch\"", 400.0);
    let (_, grouped) = sentences_ms(&dva(""), 400.0 * 1.4);
    assert!(padded > 1_000.0 && grouped < 200.0, "{padded} and {grouped} ms");
    // The window of policy I alone takes longer than all else at low load.
    let ((windowed, _), (bare, _)) = (sentences_ms(&dva(""), 100.0), sentences_ms(&dva("window_ms = 0"), 100.0));
    assert!(windowed > 2.0 * bare, "{windowed} and {bare} ms");
}
