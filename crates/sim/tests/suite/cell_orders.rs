//! Cells under random arrivals: the time of the decision, and cell types of unequal batches.

use crate::common::options;
use ripieno_sim::{Scenario, Trace, simulate};

const LENGTHS: &str = "{ kind = \"lognormal\", mu = 2.5, sigma = 0.6, min = 1, max = 100 }";

fn blocks(blocks: &[(&str, &str, u32)]) -> String {
    blocks
        .iter()
        .map(|(name, cost, priority)| format!("[[model.block]]\nname = \"{name}\"\npriority = {priority}\n{cost}\n"))
        .collect()
}

fn model(walk: &str, more: &str, parts: &[(&str, &str, u32)]) -> String {
    format!(
        "[[model]]\nname = \"m\"\nslo_ms = 1000.0\nwalk = \"{walk}\"\nlengths = {LENGTHS}\n{more}\n{}",
        blocks(parts)
    )
}

fn mean(text: &str, policy: &str, knobs: &str, load: f64) -> f64 {
    let text = format!("seed = 1\nrequests = 1500\nrate = 1.0\npolicy = \"{policy}\"\n{text}");
    let mut scenario = Scenario::parse(&text, "test").unwrap();
    scenario.policy_options = options(knobs);
    scenario.rate = Some(scenario.bound_rps() * load);
    let mut trace = Trace::new(&scenario.setup.models);
    simulate(&scenario, Some(&mut trace)).unwrap();
    let csv = trace.requests_csv();
    let latency = |line: &str| {
        let fields: Vec<f64> = line.split(',').skip(2).take(3).map(|field| field.parse().unwrap()).collect();
        fields[2] - fields[0]
    };
    let all: Vec<f64> = csv.lines().skip(1).map(latency).collect();
    all.iter().sum::<f64>() / all.len() as f64
}

/// Each decision takes the scheduler's thread a while: a task that is formed while another runs
/// comes in time.
#[test]
fn late_batching_keeps_the_device_busy() {
    let text = |policy: &str| {
        format!(
            "seed = 1\nrequests = 1500\nrate = 2000.0\npolicy = \"{policy}\"\ndecision_us = 200.0\n{}",
            model("repeat", "", &[("cell", "alpha_ms = 0.01\nbeta_ms = 0.9\nmax_batch = 16", 0)])
        )
    };
    let busy = |policy: &str, knobs: &str| {
        let mut scenario = Scenario::parse(&text(policy), "test").unwrap();
        scenario.policy_options = options(knobs);
        simulate(&scenario, None).unwrap().total.busy_fraction
    };
    let (late, idle) = (busy("late", ""), busy("cellular", "max_tasks=1"));
    assert!(late > 0.99 && idle < 0.87, "{late} and {idle} of the time busy");
}

/// The encoder takes more rows than the decoder: a table must fit into both.
#[test]
fn lazy_batching_serves_cells_of_unequal_batches() {
    let flat = ("e", "latency_points = [[1, 0.22], [64, 0.24], [256, 0.53]]", 0);
    let slow = ("d", "latency_points = [[1, 0.59], [64, 0.6]]", 1);
    let text = model("encode-decode", "output_lengths = { kind = \"ratio\", sigma = 0.2 }", &[flat, slow]);
    for policy in ["lazy", "lazy-oracle"] {
        assert!(mean(&text, policy, "", 0.5).is_finite());
    }
}
