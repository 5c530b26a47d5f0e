//! Models with several cell types under random arrivals: the order of the types, and the time of
//! the decision.

use crate::common::options;
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_model::Extent;
use ripieno_sched::{Options, build};
use ripieno_sim::{Arrival, Fault, Scenario, Trace, World, simulate};

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

fn cases() -> Vec<(&'static str, String)> {
    let flat = "latency_points = [[1, 0.22], [64, 0.24], [256, 0.53]]";
    let slow = "latency_points = [[1, 0.59], [64, 0.6]]";
    let lin = "alpha_ms = 0.03\nbeta_ms = 0.3\nmax_batch = 64";
    vec![
        ("two layers", model("stacked", "", &[("a", flat, 0), ("b", flat, 1)])),
        ("two layers steep", model("stacked", "", &[("a", lin, 0), ("b", lin, 1)])),
        (
            "both directions",
            model(
                "bidirectional",
                "",
                &[
                    ("f", flat, 0),
                    ("b", flat, 0),
                    ("head", "alpha_ms = 0.01\nbeta_ms = 1.0\nmax_batch = 64\nonce = true", 1),
                ],
            ),
        ),
        (
            "translate",
            model(
                "encode-decode",
                "output_lengths = { kind = \"ratio\", sigma = 0.2 }",
                &[("e", flat, 0), ("d", lin, 1)],
            ),
        ),
        (
            "translate hidden",
            model(
                "encode-decode",
                "output_lengths = { kind = \"ratio\", sigma = 0.2 }\nextra_steps = 50",
                &[("e", flat, 0), ("d", lin, 1)],
            ),
        ),
        (
            "unequal batches",
            model(
                "encode-decode",
                "output_lengths = { kind = \"ratio\", sigma = 0.2 }",
                &[("e", flat, 0), ("d", slow, 1)],
            ),
        ),
    ]
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

/// An idle device always finds a later cell with a row or two: with later cells first the earlier
/// ones never fill a batch. Turns, as equal priorities give them, starve no type; nor does urgency,
/// which weighs the size of a batch.
#[test]
fn no_cell_type_starves() {
    for (name, text) in cases() {
        let even = text.replace("priority = 1", "priority = 0");
        let mut before = 0.0;
        for load in [0.3, 0.6, 0.9] {
            let urgency = mean(&text, "cellular", "", load);
            let turns = mean(&even, "cellular", "order=priority", load);
            let later_first = mean(&text, "cellular", "order=priority", load);
            assert!(urgency <= 1.04 * turns, "{name} at {load}: {urgency} ms, {turns} by turns");
            assert!(
                urgency <= 0.9 * later_first,
                "{name} at {load}: {urgency} ms, {later_first} with later cells first"
            );
            // A smaller load never has a higher latency.
            assert!(before <= urgency, "{name} at {load}: {urgency} ms, {before} at less");
            before = urgency;
        }
    }
}

/// Turns keep all requests of three layers in progress, and none completes: those with little
/// time left go first, and complete.
#[test]
fn requests_end_one_after_the_other() {
    let layer = |name| (name, "alpha_ms = 0.02\nbeta_ms = 1.0\nmax_batch = 64", 0);
    let text = model("stacked", "", &[layer("a"), layer("b"), layer("c")]);
    for (load, at_most) in [(0.05, 0.95), (0.1, 0.9), (0.3, 0.97)] {
        let [urgency, turns] = ["", "order=priority"].map(|knobs| mean(&text, "cellular", knobs, load));
        assert!(urgency <= at_most * turns, "at {load}: {urgency} ms, {turns} by turns");
    }
}

/// Each task waits for a message on its way to the device: one that is formed while another runs
/// arrives in time.
#[test]
fn late_batching_keeps_the_device_busy() {
    let text = |policy: &str| {
        format!(
            "seed = 1\nrequests = 1500\nrate = 2000.0\npolicy = \"{policy}\"\n[network]\ncontrol_us = 200.0\n{}",
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
    let (_, text) = cases().pop().unwrap();
    for policy in ["lazy", "lazy-oracle"] {
        assert!(mean(&text, policy, "", 0.5).is_finite());
    }
}

/// Returns the answer time of the second of two requests of a whole model, in ms, beside a long
/// sequence on a device of this speed. It arrives while the first runs, so the cells are chosen
/// next, unless it would be late after their turn.
fn answered_beside_cells(percent: u32) -> f64 {
    let text = "rate = 1.0\nrequests = 1\npolicy = \"cellular\"\n\
                [[model]]\nname = \"cells\"\nslo_ms = 10000.0\nwalk = \"repeat\"\nlengths = { kind = \"fixed\", value = 100 }\n\
                [[model.block]]\nname = \"cell\"\nalpha_ms = 0.1\nbeta_ms = 1.9\nmax_batch = 4\n\
                [[model]]\nname = \"whole\"\nslo_ms = 6000.0\nalpha_ms = 0.1\nbeta_ms = 9.9\nmax_batch = 4";
    let scenario = Scenario::parse(text, "test").unwrap();
    let setup = scenario.effective_setup();
    let mut scheduler = build("cellular", &setup, &Options::new()).unwrap();
    let mut trace = Trace::new(&setup.models);
    let at = |ms: i64| Time::ORIGIN + Nanos::from_millis(ms).scale(percent.into(), 100);
    let due = |ms: i64, slo: i64| at(ms) + Nanos::from_millis(slo);
    let sequence =
        Arrival { extent: Extent { length: 100, limit: 0 }, ..Arrival::new(at(0), ModelId(0), due(0, 10_000)) };
    let whole = [1, 15].map(|ms| Arrival::new(at(ms), ModelId(1), due(ms, 60)));
    let slow = (Time::ORIGIN, Fault::Slow(DeviceId(0), percent));
    let mut world = World::new(scheduler.as_mut(), &setup);
    world.run([sequence].into_iter().chain(whole), [slow], &mut [&mut trace]);
    let csv = trace.requests_csv();
    csv.lines().rfind(|line| line.contains("whole")).and_then(|line| line.split(',').nth(4)).unwrap().parse().unwrap()
}

#[test]
fn urgency_depends_on_the_speed_of_the_device() {
    // Cells, the first, a turn of five steps, the second.
    assert_eq!(answered_beside_cells(100), 40.0);
    // Each takes three times as long: after the cells it would be answered at 120 ms, and is due at
    // 105.
    assert_eq!(answered_beside_cells(300), 90.0);
}
