//! Devices follow the load: a small version of Figure 15, and constant loads.

use expect_test::{Expect, expect};
use ripieno_report::WindowFigures;
use ripieno_sim::{Scenario, simulate};
use std::path::Path;

fn small() -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/autoscale/small.toml");
    Scenario::read(&path).unwrap()
}

/// Times in seconds at which the small scenario's load steps, including its start.
const STEPS_S: [f64; 4] = [0.0, 60.0, 120.0, 180.0];

/// Returns whether a window contains a step, or a part of the start-up of the devices requested at
/// its end.
fn near_step(window: &WindowFigures) -> bool {
    let start_s = window.end_s - window.span_s;
    STEPS_S.iter().any(|&step_s| start_s < step_s + 10.0 + 5.0 && window.end_s > step_s)
}

#[test]
fn devices_follow_a_load_that_changes() {
    let summary = simulate(&small(), None).unwrap();
    let windows = &summary.windows;
    assert_eq!(windows.len(), 24);
    for window in windows.iter().filter(|window| !near_step(window)) {
        assert!(window.bad_rate <= 0.01, "{} s: {}", window.end_s, window.bad_rate);
        let ratio = window.devices / window.busy_devices;
        assert!((1.0..1.5).contains(&ratio), "{} s: {ratio} devices a busy one", window.end_s);
    }
    // The last window of each phase: devices rise and fall with the load.
    let settled = [5, 11, 17, 23].map(|at| (windows[at].offered_rps, windows[at].devices));
    let devices = settled.map(|(_, devices)| devices);
    assert!(
        devices[0] * 1.4 < devices[1] && devices[1] * 1.2 < devices[2] && devices[3] * 2.5 < devices[2],
        "{settled:?}"
    );
    assert!(windows.iter().all(|window| window.devices <= 32.0 && window.devices_used as f64 <= window.devices + 15.0));
    // The summary counts the devices that were present, not the possible 32.
    let busy: f64 = windows.iter().map(|window| window.busy_devices * window.span_s).sum();
    let there: f64 = windows.iter().map(|window| window.devices * window.span_s).sum();
    assert!((summary.idle_fraction - (1.0 - busy / there)).abs() < 0.01, "{}", summary.idle_fraction);
}

#[test]
fn a_run_repeats_bit_for_bit() {
    let mut scenario = small();
    scenario.length = ripieno_sim::Length::Until(ripieno_base::Time(70_000_000_000));
    assert_eq!(simulate(&scenario, None).unwrap(), simulate(&scenario, None).unwrap());
}

const MODELS: &str = r#"
    [[model]]
    name = "ResNet50"
    alpha_ms = 0.268
    beta_ms = 5.172
    slo_ms = 20
    [[model]]
    name = "EfficientNetB4"
    alpha_ms = 2.881
    beta_ms = 4.103
    slo_ms = 31
    share = 0.1
    "#;

fn parse(text: &str) -> Scenario {
    Scenario::parse(text, "s.toml").unwrap()
}

/// Returns the smallest number of devices that keeps a constant load within 1 % bad.
fn needed(rate: f64) -> usize {
    let good = |devices: usize| {
        let text = format!("rate = {rate}\nduration_s = 10\n[cluster]\ndevices = {devices}\n{MODELS}");
        simulate(&parse(&text), None).unwrap().total.bad_rate <= 0.01
    };
    let (mut bad, mut enough) = (0, 32);
    while enough - bad > 1 {
        let middle = usize::midpoint(bad, enough);
        *(if good(middle) { &mut enough } else { &mut bad }) = middle;
    }
    enough
}

#[test]
fn under_constant_load_the_number_settles_near_the_needed_one() {
    for rate in [8_000.0, 16_000.0] {
        let needed = needed(rate) as f64;
        for start in [2, 24] {
            let scaling = format!(
                "rate = {rate}\nduration_s = 60\nwarmup_fraction = 0.0\n[cluster]\ndevices = {start}\n[autoscale]\nevery_s = 4\n\
                 startup_s = 2\nmax = 64\nburst = 0.5\nrelease_after = 2\n"
            );
            let windows = simulate(&parse(&format!("{scaling}{MODELS}")), None).unwrap().windows;
            let settled: Vec<f64> = windows[6..].iter().map(|window| window.devices).collect();
            let (least, most) = settled.iter().fold((f64::MAX, 0.0f64), |(a, b), &n| (a.min(n), b.max(n)));
            assert!(most - least <= 0.1 * most, "{rate}/s from {start}: {settled:?}");
            for window in &windows[6..] {
                let ratio = window.desired_devices as f64 / needed;
                assert!(
                    (0.85..=1.15).contains(&ratio),
                    "{rate}/s from {start}: {} of {needed}",
                    window.desired_devices
                );
            }
        }
    }
}

/// Runs the default policy, which answers as soon as possible, from 24 devices. Returns the last
/// windows.
fn soon(rule: &str) -> Vec<WindowFigures> {
    let text = format!(
        "rate = 8000\nduration_s = 80\nwarmup_fraction = 0.0\npolicy = \"unified\"\n\
         policy_options = {{ objective = \"latency\" }}\n[cluster]\ndevices = 24\n\
         [autoscale]\nevery_s = 4\nstartup_s = 2\nmax = 32\nrelease_after = 2\n{rule}\n{MODELS}"
    );
    simulate(&parse(&text), None).unwrap().windows[10..].to_vec()
}

#[test]
fn devices_that_run_small_batches_for_short_latencies_are_released() {
    // In small batches 20 devices are busy. In the best batches some seven suffice.
    let mean =
        |windows: &[WindowFigures]| windows.iter().map(|window| window.devices).sum::<f64>() / windows.len() as f64;
    let followed = soon("objective = \"latency\"");
    for window in &followed {
        let WindowFigures { devices, bad_rate, busy_devices, .. } = *window;
        assert!((8.0..=14.0).contains(&devices), "{devices} devices, {busy_devices} of them busy");
        assert!(bad_rate <= 0.01, "{bad_rate} of the requests");
    }
    let by_idle_time = ["", "objective = \"efficiency\""].map(|rule| mean(&soon(rule)));
    assert_eq!(by_idle_time[0], by_idle_time[1]);
    assert!(by_idle_time[0] > 1.25 * mean(&followed), "{by_idle_time:?} and {}", mean(&followed));
}

#[test]
fn a_load_that_changes_has_the_rates_that_were_asked_for() {
    let text = r#"
        duration_s = 40
        rate = 3000
        window_s = 10
        warmup_fraction = 0.0
        [cluster]
        devices = 8
        [[model]]
        name = "steps"
        alpha_ms = 0.2
        beta_ms = 1
        slo_ms = 20
        rates = [[0, 1000], [20, 4000], [30, 0]]
        [[model]]
        name = "shares"
        alpha_ms = 0.2
        beta_ms = 1
        slo_ms = 20
        arrival = { kind = "uniform" }
        "#;
    let scenario = parse(text);
    assert_eq!(scenario.rate.map(f64::round), Some(4500.0));
    let windows = simulate(&scenario, None).unwrap().windows;
    let rates = |model: usize| windows.iter().map(|window| window.models[model].offered_rps).collect::<Vec<_>>();
    for (got, wanted) in rates(0).into_iter().zip([1000.0, 1000.0, 4000.0, 0.0]) {
        assert!((got - wanted).abs() <= 0.06 * wanted, "{got} {wanted}");
    }
    assert!(rates(1).iter().all(|rate| (rate - 3000.0).abs() < 1.0), "{:?}", rates(1));
    assert!(windows.iter().all(|window| window.devices == 8.0 && window.bad_rate == 0.0));
}

fn check_error(text: &str, expected: Expect) {
    expected.assert_eq(&Scenario::parse(&format!("{text}\n{MODELS}"), "s.toml").unwrap_err().to_string());
}

#[test]
fn mistakes_about_the_load_are_named() {
    check_error(
        "rate = 1\n[[phase]]\nduration_s = 1\nrate = 1",
        expect!["s.toml: both rate and [[phase]] tables are given; remove one"],
    );
    check_error(
        "duration_s = 1\n[[phase]]\nduration_s = 1\nrate = 1",
        expect!["s.toml: the [[phase]] tables say how long the run is; remove duration_s"],
    );
    check_error(
        "requests = 1\n[[phase]]\nduration_s = 1\nrate = 1",
        expect![
            "s.toml: requests is given, but a load that changes needs to know how long it is; replace it by duration_s or by the phases alone"
        ],
    );
    check_error("[[phase]]\nduration_s = 0\nrate = 1", expect!["s.toml: phase 1: duration_s = 0; it must be above 0"]);
    check_error(
        "[[phase]]\nduration_s = 1\nrate = -1",
        expect!["s.toml: phase 1: rate = -1; it must be at least 0 requests per second"],
    );
    check_error(
        "[[phase]]\nduration_s = 1\nrate = 0",
        expect!["s.toml: no request ever arrives; give a [[phase]] or the rates of a model a rate above 0"],
    );
    for (keys, expected) in [
        (
            "rate = 1\n[[model]]\nname = \"a\"\nrates = [[0, 1]]",
            expect!["s.toml: duration_s is missing; a load that changes needs to know how long it is"],
        ),
        (
            "rate = 1\nduration_s = 1\n[[model]]\nname = \"a\"\nrates = [[1, 1]]",
            expect![[
                r#"s.toml: model "a": rates = [(1.0, 1.0)]; they must be [[second, requests per second], …] with ascending seconds from 0 and rates of at least 0"#
            ]],
        ),
        (
            "duration_s = 1\n[[model]]\nname = \"a\"\nrates = [[0, 1]]",
            expect!["s.toml: rate is missing; give it, or [[phase]] tables, or rates to every model"],
        ),
        (
            "rate = 1\nduration_s = 1\n[[model]]\nname = \"a\"\ndrift = { amplitude = 2, period_s = 1 }",
            expect![[r#"s.toml: model "a": drift.amplitude = 2; it must be from 0 to 1"#]],
        ),
        (
            "rate = 1\nduration_s = 1\n[[model]]\nname = \"a\"\ndrift = { amplitude = 0.1, period_s = 0 }",
            expect![[r#"s.toml: model "a": drift.period_s = 0; it must be at least 0.0001"#]],
        ),
    ] {
        check_error(&format!("{keys}\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 10"), expected);
    }
}

#[test]
fn mistakes_about_the_autoscaler_are_named() {
    check_error(
        "rate = 1\n[autoscale]\nevery_s = 1",
        expect!["s.toml: autoscale.max is missing; give the most devices that may ever be there"],
    );
    check_error(
        "rate = 1\n[autoscale]\nmax = 8\nevery_s = 0",
        expect!["s.toml: autoscale.every_s = 0; it must be a number of seconds of at least 0.001"],
    );
    check_error(
        "rate = 1\n[autoscale]\nmax = 8\nmin = 9",
        expect!["s.toml: autoscale.min = 9 and max = 8; they must be 1 <= min <= max <= 65536"],
    );
    check_error(
        "rate = 1\n[autoscale]\nmax = 8\nmin = 2",
        expect![
            "s.toml: cluster.devices = 1; the run begins with them, so it must be from autoscale.min = 2 to autoscale.max = 8"
        ],
    );
    check_error(
        "rate = 1\n[autoscale]\nmax = 8\nthreshold = nan",
        expect!["s.toml: autoscale.threshold = NaN; it must be at least 0 and less than 1"],
    );
    check_error(
        "rate = 1\n[autoscale]\nmax = 8\nheadroom = 1.0",
        expect!["s.toml: autoscale.headroom = 1; it must be at least 0 and less than 1"],
    );
    check_error(
        "rate = 1\nwindow_s = 1\n[autoscale]\nmax = 8",
        expect!["s.toml: window_s has no effect beside [autoscale], whose every_s is the window"],
    );
}

#[test]
fn devices_come_and_go_under_shards_and_delays() {
    let text = format!(
        "duration_s = 9\nwarmup_fraction = 0.0\npolicy_options = {{ shards = 2, link_us = 20 }}\nrate = 8000\n[network]\n\
         control_us = 30\n[cluster]\ndevices = 2\n[autoscale]\nevery_s = 1\nmax = 16\nburst = 0.5\n{MODELS}"
    );
    let windows = simulate(&parse(&text), None).unwrap().windows;
    let (first, last) = (&windows[0], &windows[8]);
    assert!(first.bad_rate > 0.1 && last.bad_rate <= 0.01 && last.devices > first.devices, "{first:?} {last:?}");
}
