//! Padded models under bursts: the default does not fall behind where a simpler policy keeps up.
//!
//! Random models whose costs depend on length, alone or in chains, on one to four devices. The
//! loads are fractions of the best simpler policy's throughput on a backlog. By default a part of
//! the models runs; more of them, with a table, with `RIPIENO_BURSTS=200 cargo test -p ripieno-sim
//! --test suite bursts -- --nocapture`.

use crate::common::options;
use ripieno_sim::{Scenario, Trace, simulate_at};
use ripieno_workload::{SeededRng, stream, unit};
use std::collections::BTreeMap;
use std::fmt::Write;

const LOADS: [f64; 4] = [0.3, 0.6, 0.8, 0.9];
const REQUESTS: usize = 2_000;
/// "bucketed" forms batches of similar lengths among all waiting requests, the others of any
/// lengths; "serial" does not batch.
const SIMPLE: [(&str, &str); 4] = [("eager", "drop=never"), ("delay-batch", ""), ("bucketed", ""), ("serial", "")];
/// Policies, their options, and the allowed ratio of their mean to the best of the simple ones.
/// "dva" is not among them: its window and its bound on requests are its paper's.
const JUDGED: [(&str, &str, f64); 1] = [("unified", "", 1.05)];

fn of<T: Copy>(random: &mut SeededRng, choices: &[T]) -> T {
    choices[(unit(random) * choices.len() as f64) as usize]
}

/// Draws a padded model, its lengths, and the arrivals of its requests.
fn draw(seed: u64) -> Scenario {
    let mut random = stream(seed, 0);
    let (devices, shape) = (of(&mut random, &[1, 1, 2, 4]), of(&mut random, &[0.2, 0.3, 0.5, 1.0]));
    let (longest, max_batch) = (of(&mut random, &[64, 256]), of(&mut random, &[8, 32, 32, 64]));
    let mut between = |from: f64, to: f64| from + (to - from) * unit(&mut random);
    let (alpha, beta) = (between(0.2, 2.0), between(0.2, 6.0) * if between(0.0, 3.0) < 1.0 { 4.0 } else { 1.0 });
    let mu = between(2.3, 3.6) + if between(0.0, 1.0) < 0.5 { (f64::from(longest) / 64.0).ln() } else { 0.0 };
    let sigma = between(0.2, 1.2);
    let stages = of(&mut random, &[1, 1, 2, 3]);
    let at = |length: i32| {
        let alpha = alpha * f64::from(length) / f64::from(longest);
        format!("{{ length = {length}, alpha_ms = {alpha}, beta_ms = {beta} }}")
    };
    let by_length = format!("by_length = [{}, {}, {}]\n", at(8), at(longest / 2), at(longest));
    let block = |stage: i32| format!("[[model.block]]\nname = \"s{stage}\"\nmax_batch = {max_batch}\n{by_length}");
    let blocks: String = if stages == 1 {
        by_length
    } else {
        "walk = \"chain\"\n".to_owned() + &(0..stages).map(block).collect::<String>()
    };
    let text = format!(
        "seed = {seed}\nrequests = {REQUESTS}\nrate = 1.0\npolicy = \"eager\"\n[cluster]\ndevices = {devices}\n[[model]]\nname = \"m\"\n\
         slo_ms = 100000.0\nmax_batch = {max_batch}\narrival = {{ kind = \"gamma\", shape = {shape} }}\n\
         lengths = {{ kind = \"lognormal\", mu = {mu}, sigma = {sigma}, min = 2, max = {longest} }}\n{blocks}"
    );
    Scenario::parse(&text, "drawn.toml").unwrap()
}

/// The latencies of a run.
struct Latencies {
    mean_ms: f64,
    median_ms: f64,
    /// Time of the last answer.
    end_ms: f64,
    /// Whether requests that arrive in the last quarter wait more than twice as long as those in
    /// the second, and more than a tenth of the run.
    falls_behind: bool,
}

/// Returns none if the policy does not serve the model: "bucketed" pads no chains.
fn run(scenario: &Scenario, policy: &str, knobs: &str, rate: f64) -> Option<Latencies> {
    let mut scenario = scenario.clone();
    (scenario.policy, scenario.policy_options) = (policy.to_owned(), options(knobs));
    let mut trace = Trace::new(&scenario.setup.models);
    simulate_at(&scenario, rate, Some(&mut trace)).ok()?;
    let csv = trace.requests_csv();
    // Arrival and answer time of each request, by arrival.
    let of = |line: &str| {
        let mut fields = line.split(',').skip(2).map(|field| field.parse::<f64>().unwrap());
        (fields.next().unwrap(), fields.nth(1).unwrap())
    };
    let mut requests: Vec<_> =
        csv.lines().skip(1).map(|line| of(line.rsplit_once(',').expect("an outcome").0)).collect();
    requests.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut latencies: Vec<_> = requests.iter().map(|(arrived, ended)| ended - arrived).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let quarter = |at: usize| mean(&latencies[at * REQUESTS / 4..][..REQUESTS / 4]);
    let falls_behind = quarter(3) > 2.0 * quarter(1) && quarter(3) > 0.1 * requests[REQUESTS - 1].0;
    let end_ms = requests.iter().map(|request| request.1).fold(0.0, f64::max);
    let mean_ms = mean(&latencies);
    latencies.sort_by(f64::total_cmp);
    Some(Latencies { mean_ms, median_ms: latencies[REQUESTS / 2], end_ms, falls_behind })
}

#[test]
fn of_padded_requests_it_is_never_far_behind() {
    let cases: u64 = std::env::var("RIPIENO_BURSTS").map_or(6, |count| count.parse().expect("a number of models"));
    let mut ratios: BTreeMap<(&str, &str), Vec<[f64; 2]>> = BTreeMap::new();
    let (mut missed, mut unstable) = (String::new(), 0);
    for (seed, scenario) in (0..cases).map(|seed| (seed, draw(seed))) {
        let backlog = |(policy, knobs): &(&str, &str)| Some(run(&scenario, policy, knobs, 1e6)?.end_ms);
        let capacity = REQUESTS as f64 * 1e3 / SIMPLE.iter().filter_map(backlog).fold(f64::INFINITY, f64::min);
        for load in LOADS {
            let simple: Vec<_> =
                SIMPLE.iter().filter_map(|(policy, knobs)| run(&scenario, policy, knobs, load * capacity)).collect();
            let calm = simple.iter().filter(|latencies| !latencies.falls_behind);
            let least = |of: fn(&Latencies) -> f64| calm.clone().map(of).fold(f64::INFINITY, f64::min);
            let (mean_ms, median_ms) = (least(|latencies| latencies.mean_ms), least(|latencies| latencies.median_ms));
            if mean_ms == f64::INFINITY {
                continue;
            }
            for (policy, knobs, most) in JUDGED {
                let judged = run(&scenario, policy, knobs, load * capacity).unwrap();
                let ratio = [judged.mean_ms / mean_ms, judged.median_ms / median_ms];
                ratios.entry((policy, knobs)).or_default().push(ratio);
                unstable += u32::from(judged.falls_behind);
                if judged.falls_behind || ratio.iter().any(|&ratio| ratio > most) {
                    writeln!(
                        missed,
                        "{policy} {knobs}, model {seed} at {load}: {ratio:.3?} of {mean_ms:.1} ms, unstable: {}",
                        judged.falls_behind
                    )
                    .unwrap();
                }
            }
        }
    }
    let mut table = String::new();
    for ((policy, knobs), ratios) in ratios {
        let sorted = |at: usize| {
            let mut of: Vec<f64> = ratios.iter().map(|ratio| ratio[at]).collect();
            of.sort_by(f64::total_cmp);
            [of[of.len() / 2], of[of.len() * 95 / 100], of[of.len() - 1]]
        };
        let (mean, median) = (sorted(0), sorted(1));
        writeln!(
            table,
            "{policy} {knobs}: {} runs, mean over the best, p50 p95 max {mean:.3?}, median {median:.3?}",
            ratios.len()
        )
        .unwrap();
    }
    println!("{missed}{table}{unstable} unstable");
    assert!(missed.is_empty(), "{missed}{table}");
}
