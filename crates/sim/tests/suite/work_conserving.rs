//! No policy falls behind at a load that a simpler one carries: random chains under random loads,
//! each work-conserving policy compared with ZeroBatch, which runs all waiting requests as soon as
//! the device is free.
//!
//! Joining, splitting and parallel execution change the order of work, and so the mean latency;
//! they must not cost throughput. No queue may grow where ZeroBatch's does not; and the mean may
//! exceed ZeroBatch's by two percent, except under published rules that pause a running batch for
//! newcomers. By default a part of the chains runs; all of
//! them with `RIPIENO_CHAINS=200 cargo test -p ripieno-sim --test suite work_conserving --
//! --nocapture`.

use crate::common::options;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::Extent;
use ripieno_policies::build;
use ripieno_sched::Request;
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, End, Observer, Scenario, World};
use ripieno_workload::{stream, unit};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Fractions of the rate that batches of the best sizes would carry.
const LOADS: [f64; 3] = [0.35, 0.65, 0.8];
/// Allowed ratio of a policy's mean to ZeroBatch's.
const SLACK: f64 = 1.02;
const REQUESTS: u32 = 3_000;

/// Seeded numbers.
struct Random(ripieno_workload::SeededRng);

impl Random {
    /// Draws from [0, 1).
    fn unit(&mut self) -> f64 {
        unit(&mut self.0)
    }

    fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.unit() * choices.len() as f64) as usize]
    }

    /// Draws with mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

/// A chain and the requests for it.
struct Case {
    scenario: Scenario,
    /// The longest request; 1 if all are equal.
    longest: u32,
    /// Number of requests per burst.
    burst: u32,
    seed: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { scenario, longest, burst, seed } = self;
        let (devices, stages) = (scenario.setup.devices, scenario.setup.models[0].blocks.len());
        write!(f, "chain {seed} ({stages} stages, {devices} devices, lengths to {longest}, {burst} at a time)")
    }
}

impl Case {
    fn draw(seed: u64) -> Case {
        let mut random = Random(stream(seed, 0));
        let devices = random.of(&[1, 1, 2]);
        let longest = random.of(&[1, 1, 1, 64, 256]);
        let burst = random.of(&[1, 1, 6]);
        let mut text = format!(
            "rate = 1.0\npolicy = \"delay-batch\"\n[cluster]\ndevices = {devices}\n[[model]]\nname = \"m\"\nslo_ms = 100000.0\n\
             walk = \"chain\"\nmax_batch = 32\n"
        );
        if longest > 1 {
            writeln!(text, "lengths = {{ kind = \"fixed\", value = {longest} }}").unwrap();
        }
        for stage in 0..random.of(&[2, 3, 4, 5, 6]) {
            writeln!(text, "[[model.block]]\nname = \"s{stage}\"\nmax_batch = 32").unwrap();
            if longest > 1 {
                let (alpha, beta) = (random.between(0.05, 1.0), random.between(0.2, 4.0));
                let at = |length: u32| {
                    format!(
                        "{{ length = {length}, alpha_ms = {}, beta_ms = {beta} }}",
                        alpha * f64::from(length) / f64::from(longest)
                    )
                };
                writeln!(text, "by_length = [{}, {}, {}]", at(8), at(longest / 2), at(longest)).unwrap();
            } else {
                let (alone, preferred) = (random.between(0.3, 6.0), random.of(&[1, 2, 4, 8, 16, 32]));
                let launch = random.of(&[0.0, 0.05, 0.3]);
                writeln!(text, "alone_ms = {alone}\npreferred_batch = {preferred}\nlaunch_ms = {launch}").unwrap();
            }
        }
        let scenario = Scenario::parse(&text, "drawn.toml").unwrap();
        Case { scenario, longest, burst, seed }
    }

    /// Draws mostly short lengths, few long ones.
    fn length(&self, random: &mut Random) -> u32 {
        if self.longest == 1 {
            return 1;
        }
        ((2.0 + random.exponential() * f64::from(self.longest) / 5.0) as u32).min(self.longest)
    }

    fn arrivals(&self, rate: f64) -> Vec<Arrival> {
        let mut random = Random(stream(self.seed, 1));
        let (mut at_ms, mut arrivals) = (0.0, Vec::new());
        while arrivals.len() < REQUESTS as usize {
            at_ms += random.exponential() / rate * 1e3 * f64::from(self.burst);
            for _ in 0..self.burst {
                let at = Time::ORIGIN + Nanos::from_millis_f64(at_ms);
                let extent = Extent { length: self.length(&mut random), ..Extent::ONE };
                let deadline = at + self.scenario.setup.models[0].slo;
                arrivals.push(Arrival { extent, ..Arrival::new(at, ModelId(0), deadline) });
            }
        }
        arrivals
    }

    /// Runs a policy; returns none if it does not serve the chain.
    fn run(&self, policy: &str, knobs: &str, load: f64) -> Option<Answered> {
        let mut scenario = self.scenario.clone();
        (scenario.policy, scenario.policy_options) = (policy.to_owned(), options(knobs));
        let setup = scenario.effective_setup();
        let mut scheduler = build(policy, &setup, &scenario.effective_options()).ok()?;
        let arrivals = self.arrivals(load * self.scenario.bound_rps());
        let mut answered = Answered { last: arrivals.last()?.at, ..Answered::default() };
        let mut checkers = Checkers::new(&setup).without_padding();
        World::new(scheduler.as_mut(), &setup).run(arrivals.into_iter(), [], &mut [&mut checkers, &mut answered]);
        checkers.finish();
        Some(answered)
    }
}

/// The answers to the requests.
#[derive(Default)]
struct Answered {
    last: Time,
    /// Latencies in ms, in the order of arrival.
    latencies: Vec<(u64, f64)>,
}

impl Observer for Answered {
    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        assert_eq!(end, End::Finished, "nothing is dropped here");
        self.latencies.push((id, (now - request.arrived).as_millis_f64()));
    }
}

impl Answered {
    fn mean(&self) -> f64 {
        mean(&self.latencies)
    }

    /// Returns whether the queue grows: requests that arrive in the last quarter wait more than
    /// twice as long as those in the second, and more than a tenth of the run.
    fn falls_behind(&mut self) -> bool {
        self.latencies.sort_unstable_by_key(|latency| latency.0);
        let quarter = self.latencies.len() / 4;
        let of = |at: usize| mean(&self.latencies[at * quarter..][..quarter]);
        of(3) > 2.0 * of(1) && of(3) > 0.1 * self.last.as_millis_f64()
    }
}

fn mean(latencies: &[(u64, f64)]) -> f64 {
    latencies.iter().map(|latency| latency.1).sum::<f64>() / latencies.len() as f64
}

/// Policies that start all waiting requests on an idle device, and batch. The others of the
/// catalogue wait on purpose ("deferred" also with an objective: it spaces batches), plan for
/// deadlines, or do not batch ("serial"); "bucketed" pads to its buckets' ends, and "delay-batch"
/// is the reference.
const POLICIES: [(&str, &str); 2] = [("eager", "drop=never"), ("graph-merge", "")];
/// Those that pause a running batch for newcomers, run other blocks between its blocks, or divide
/// what waits.
const PAUSING: [(&str, &str); 8] = [
    ("dva", "buffers=1"),
    ("dva", "stretch=false"),
    ("dva", ""),
    ("lazy", ""),
    ("lazy-oracle", ""),
    ("cellular", ""),
    ("cellular", "max_tasks=1"),
    ("late", ""),
];

/// The results of one policy over all cases.
#[derive(Default)]
struct Record {
    runs: u32,
    missed: u32,
    unstable: u32,
    worst: f64,
    logarithms: f64,
}

#[test]
fn no_policy_falls_behind_zero_batch() {
    let chains: u64 = std::env::var("RIPIENO_CHAINS").map_or(4, |count| count.parse().expect("a number of chains"));
    let mut records: BTreeMap<String, Record> = BTreeMap::new();
    let mut missed = String::new();
    for case in (0..chains).map(Case::draw) {
        for load in LOADS {
            let mut zero = case.run("delay-batch", "", load).unwrap();
            if zero.falls_behind() {
                continue;
            }
            for (policy, knobs) in POLICIES.into_iter().chain(PAUSING) {
                let Some(mut answered) = case.run(policy, knobs, load) else { continue };
                let (ratio, unstable) = (answered.mean() / zero.mean(), answered.falls_behind());
                let record = records.entry(format!("{policy} {knobs}")).or_default();
                record.runs += 1;
                record.unstable += u32::from(unstable);
                record.worst = record.worst.max(ratio);
                record.logarithms += ratio.ln();
                if unstable || (ratio > SLACK && !PAUSING.contains(&(policy, knobs))) {
                    record.missed += 1;
                    writeln!(missed, "{policy} {knobs}, {case} at {load}: {ratio:.3} of {:.1} ms", zero.mean())
                        .unwrap();
                }
            }
        }
    }
    let mut table = String::new();
    for (name, record) in &records {
        let Record { runs, missed, unstable, worst, logarithms } = record;
        let mean = (logarithms / f64::from(*runs)).exp();
        writeln!(
            table,
            "{name}: {runs} runs, mean ratio {mean:.3}, worst {worst:.3}, {missed} missed, {unstable} unstable"
        )
        .unwrap();
    }
    assert_eq!(records.len(), POLICIES.len() + PAUSING.len(), "each policy serves some chain:\n{table}");
    assert!(missed.is_empty(), "{missed}{table}");
    println!("{table}");
}
