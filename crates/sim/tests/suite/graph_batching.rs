//! LazyBatching against graph batching on the paper's NPU: small versions of the comparison for
//! every window and load.

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::Extent;
use ripieno_sim::{Arrival, Scenario, Trace, simulate};

const WINDOWS_MS: [u32; 5] = [5, 25, 45, 65, 95];
const PADDED: &str = "policy = \"bucketed\"\n[policy_options]\nwidth = 1048576\npad = \"longest\"\n";
const SENTENCES: &str = "lengths = { kind = \"lognormal\", mu = 2.74, sigma = 0.5, min = 1, max = 80 }\n\
                         output_lengths = { kind = \"ratio\", sigma = 0.15 }\nmax_steps = 80\n";

/// Returns arrival, start and end of each request, in milliseconds.
fn fates(scenario: &Scenario) -> Vec<[f64; 3]> {
    let mut trace = Trace::new(&scenario.setup.models);
    simulate(scenario, Some(&mut trace)).unwrap();
    let fate = |line: &str| {
        let fields: Vec<_> = line.split(',').collect();
        [2, 3, 4].map(|at| fields[at].parse().unwrap())
    };
    trace.requests_csv().lines().skip(1).map(fate).collect()
}

fn mean_ms(fates: &[[f64; 3]]) -> f64 {
    fates.iter().map(|[arrival, _, end]| end - arrival).sum::<f64>() / fates.len() as f64
}

/// Runs some seconds of Poisson arrivals at a network.
fn run(policy: &str, network: &str, rate: f64, slo_ms: f64) -> Vec<[f64; 3]> {
    let lengths = if network == "transformer" { SENTENCES } else { "" };
    let requests = (rate * 0.8).clamp(150.0, 800.0) as u64;
    fates(
        &Scenario::parse(
            &format!(
                "requests = {requests}\nrate = {rate:?}\n{policy}[[model]]\nname = \"m\"\nnpu = \"{network}\"\n\
                 slo_ms = {slo_ms:?}\n{lengths}"
            ),
            "test",
        )
        .unwrap(),
    )
}

fn graph_batching(network: &str, window_ms: u32) -> String {
    match network {
        "transformer" => format!("{PADDED}window_ms = {window_ms}\n"),
        _ => format!(
            "policy = \"timeout\"\n[policy_options]\ngather = \"fifo\"\ndrop = \"never\"\ntimeout_ms = {window_ms}\n"
        ),
    }
}

const LAZY: &str = "policy = \"lazy\"\n[policy_options]\ndec_timesteps = 32\n";

#[test]
fn lazy_answers_sooner_than_any_window_at_any_load() {
    for network in ["resnet50", "transformer"] {
        for rate in [16.0, 256.0, 1000.0] {
            let lazy = mean_ms(&run(LAZY, network, rate, 100.0));
            for window in WINDOWS_MS {
                let graph = mean_ms(&run(&graph_batching(network, window), network, rate, 100.0));
                assert!(lazy < graph, "{network} at {rate}/s, window {window} ms: {lazy} and {graph} ms");
            }
        }
    }
}

#[test]
fn lazy_violates_nothing_from_20_ms_on() {
    for network in ["resnet50", "transformer"] {
        for slo_ms in [20.0, 60.0] {
            let late = run(LAZY, network, 1000.0, slo_ms);
            let late = late.iter().filter(|[arrival, _, end]| end - arrival > slo_ms).count();
            // The longest sentences take 13 ms alone, and `dec_timesteps` promises nothing about
            // those.
            assert_eq!(late, 0, "{network}, SLO {slo_ms} ms");
        }
    }
}

#[test]
fn a_padded_batch_waits_for_its_window_or_until_it_is_full() {
    let cell = "walk = \"repeat\"\nlengths = { kind = \"fixed\", value = 1 }\n[[model.block]]\nname = \"A\"\nlatency_ms = [1, 1, 1]\n";
    let text = format!(
        "rate = 1.0\nwarmup_fraction = 0.0\n{PADDED}window_ms = 3\n[[model]]\nname = \"m\"\nslo_ms = 100.0\n{cell}"
    );
    let mut scenario = Scenario::parse(&text, "test").unwrap();
    let arrival = |(at, length): (f64, u32)| {
        let at = Time::ORIGIN + Nanos::from_millis_f64(at);
        Arrival { extent: Extent { length, limit: 0 }, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis(100)) }
    };
    let requests = [(0.0, 2), (1.0, 1), (10.0, 1), (11.0, 1), (11.5, 1), (12.0, 1), (12.2, 1)];
    scenario.requests = Some(requests.map(arrival).into());
    let starts: Vec<f64> = fates(&scenario).iter().map(|fate| fate[1]).collect();
    // The first batch waits until 3; the second is full at 11.5; the third waits from 12 on.
    assert_eq!(starts, [3.0, 3.0, 11.5, 11.5, 11.5, 15.0, 15.0]);
}

#[test]
fn an_unknown_network_is_named() {
    let text = "rate = 1.0\n[[model]]\nname = \"m\"\nnpu = \"alexnet\"\nslo_ms = 10.0\n";
    let error = Scenario::parse(text, "test").unwrap_err().to_string();
    assert!(error.contains("npu = \"alexnet\"") && error.contains("resnet50, gnmt"), "{error}");
    let both = "rate = 1.0\n[[model]]\nname = \"m\"\nnpu = \"bert\"\nalpha_ms = 1.0\nbeta_ms = 1.0\nslo_ms = 10.0\n";
    assert!(Scenario::parse(both, "test").unwrap_err().to_string().contains("remove latencies"));
}
