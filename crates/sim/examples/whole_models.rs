//! How far the policy that serves whole models by default is from the best of the others, over random workloads.
//!
//! usage: `cargo run --release -p ripieno-sim --example whole_models -- [FIRST_SEED [CASES [REQUESTS]]]`, or a scenario file
//!
//! Each seed is a workload: one or several models on 1 to 64 devices with Poisson, uniform or bursty arrivals. The
//! goodput of each policy is searched (at most 1 % bad of any model). Then each runs at 30, 60 and 85 % of the best
//! goodput, where the geometric mean of the models' median latencies is compared, and at 110 %, where the share of
//! requests answered in time is, of the model that fares worst. A ratio of 1 is the best of the others.

use ripieno_sched::{OptionValue, Options};
use ripieno_sim::{Scenario, goodput, simulate_at};
use ripieno_workload::{stream, unit};
use std::fmt::Write;

/// What is compared: a name, the policy, its options. The first are ours, behind the server's door.
const POLICIES: &[(&str, &str, &str)] = &[
    ("latency", "deferred", "objective=latency"),
    ("efficiency", "deferred", "objective=efficiency"),
    ("eager", "eager", ""),
    ("eager, spare", "eager", "gather=spare"),
    ("dva 1", "dva", "buffers=1"),
    ("delay-batch", "delay-batch", ""),
    ("eager prefix", "eager", ""),
    ("eager window", "eager", "gather=window"),
    ("timeout 2 ms", "timeout", "timeout_ms=2"),
    ("timeout 5 ms", "timeout", "timeout_ms=5"),
    ("deferred", "deferred", ""),
    ("deferred prefix", "deferred", "gather=prefix"),
    ("nexus", "nexus", ""),
];
/// How many of them are ours.
const OURS: usize = 6;
const LOADS: [f64; 4] = [0.30, 0.60, 0.85, 1.10];

/// A workload from its seed.
fn workload(seed: u64, requests: u64) -> String {
    let mut random = stream(seed, 0);
    let mut between = |low: f64, high: f64| low + unit(&mut random) * (high - low);
    let devices = [1, 1, 2, 4, 8, 16, 32, 64][between(0.0, 8.0) as usize];
    let models = if between(0.0, 1.0) < 0.4 { 1 } else { 2 + between(0.0, 7.0) as usize };
    let mut text = format!("seed = {seed}\nrate = 1\nrequests = {requests}\n[cluster]\ndevices = {devices}\n");
    for model in 0..models {
        let (alpha, beta) = (between(0.2, 4.0), between(0.0, 25.0));
        let slo = (alpha * 8.0 + beta) * between(1.5, 6.0);
        let popularity = 1.0 / (1.0 + model as f64).powf(between(0.0, 1.2));
        let arrival = match between(0.0, 4.0) as usize {
            0 | 1 => "{ kind = \"poisson\" }".to_owned(),
            2 => "{ kind = \"uniform\" }".to_owned(),
            _ => format!("{{ kind = \"gamma\", shape = {:.2} }}", between(0.1, 0.6)),
        };
        let _ = write!(
            text,
            "[[model]]\nname = \"m{model}\"\nalpha_ms = {alpha:.3}\nbeta_ms = {beta:.3}\nslo_ms = {slo:.1}\nmax_batch = 32\n\
             share = {popularity:.3}\narrival = {arrival}\n"
        );
    }
    text
}

fn options(text: &str) -> Options {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    let value = |text: &str| text.parse().map_or_else(|_| OptionValue::Text(text.to_owned()), OptionValue::Int);
    pairs.map(|(key, text)| (key.to_owned(), value(text))).collect()
}

/// By policy: goodput and, by load, what is to be large: one over the latency, or the share in time.
fn measure(mut scenario: Scenario) -> (String, Vec<[f64; 5]>) {
    let seed = scenario.seed;
    let set = |scenario: &mut Scenario, at: usize| {
        let (_, policy, given) = POLICIES[at];
        (scenario.policy, scenario.policy_options) = (policy.to_owned(), options(given));
        scenario.admission = at < OURS - 1;
    };
    let found: Vec<f64> = (0..POLICIES.len())
        .map(|at| {
            set(&mut scenario, at);
            goodput(&scenario, |_| ()).expect("the policy runs").goodput_rps()
        })
        .collect();
    let peak = found[OURS..].iter().copied().fold(0.0, f64::max);
    let rows = (0..POLICIES.len()).map(|at| {
        set(&mut scenario, at);
        let mut row = [found[at]; 5];
        for (load, cell) in LOADS.iter().zip(&mut row[1..]) {
            let summary = simulate_at(&scenario, peak * load, None).expect("the policy runs");
            let median = |figures: &ripieno_report::ModelFigures| figures.figures.p50_ms.unwrap_or(1e9).ln();
            let medians: f64 = summary.models.iter().map(median).sum();
            let calm = summary.worst_bad_rate <= 0.05;
            *cell = match *load < 1.0 {
                true if calm => (-medians / summary.models.len() as f64).exp(),
                true => 1e-9,
                false => 1.0 - summary.worst_bad_rate,
            };
        }
        row
    });
    let rows = rows.collect();
    let about = format!(
        "{seed:4} {:3} devices {:2} models peak {peak:8.0}",
        scenario.setup.devices,
        scenario.setup.models.len()
    );
    (about, rows)
}

fn main() {
    let file = std::env::args().nth(1).filter(|text| text.ends_with(".toml"));
    let number = |text: String| text.parse::<u64>().expect("a number or a scenario file");
    let mut arguments = std::env::args().skip(1).filter(|_| file.is_none()).map(number);
    let (first, cases) =
        (arguments.next().unwrap_or(1), arguments.next().unwrap_or(if file.is_some() { 1 } else { 48 }));
    let requests = arguments.next().unwrap_or(20_000);
    let scenario = |seed: u64| match &file {
        Some(file) => Scenario::read(file.as_ref()),
        None => Scenario::parse(&workload(seed, requests), "workload"),
    };
    let mut ratios = vec![vec![Vec::new(); 5]; POLICIES.len()];
    for seed in first..first + cases {
        let (about, rows) = measure(scenario(seed).expect("the scenario is well-formed"));
        let best = |cell: usize| rows[OURS..].iter().map(|row| row[cell]).fold(0.0, f64::max);
        let mut line = about;
        for cell in 0..5 {
            for (at, row) in rows.iter().enumerate() {
                ratios[at][cell].push((row[cell] / best(cell)).max(0.05));
            }
            let _ = write!(line, " {:.3}", rows[0][cell] / best(cell));
        }
        eprintln!("{line}");
    }
    println!("geometric mean and minimum of the ratio to the best of the others, {cases} workloads\n");
    println!("| policy | goodput | 30 % | 60 % | 85 % | 110 % |\n|---|---|---|---|---|---|");
    for (at, (name, ..)) in POLICIES.iter().enumerate() {
        let mut line = format!("| {name} |");
        for cell in &ratios[at] {
            let mean = (cell.iter().map(|ratio| ratio.ln()).sum::<f64>() / cell.len() as f64).exp();
            let least = cell.iter().copied().fold(f64::INFINITY, f64::min);
            let near = cell.iter().filter(|&&ratio| ratio >= 0.98).count() * 100 / cell.len();
            let _ = write!(line, " {mean:.3} ({least:.2}, {near} %) |");
        }
        println!("{line}");
    }
}
