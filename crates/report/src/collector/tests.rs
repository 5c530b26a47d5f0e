use super::*;

const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);

fn ms(ms: i64) -> Time {
    Time::ORIGIN + Nanos::from_millis(ms)
}

fn collector() -> Collector {
    Collector::new(["a", "b"], 2, 8, ObservationWindow { start: ms(1000), end: ms(3000) })
}

fn info() -> RunInfo {
    RunInfo { policy: "deferred".into(), seed: 7, events: 12, wall_s: 0.5, mean_devices: None }
}

#[test]
fn requests_count_by_arrival_and_outcome() {
    let mut collector = collector();
    collector.record_answer(A, ms(999), ms(1100), ms(1050));
    collector.record_answer(A, ms(1000), ms(1025), ms(1025));
    collector.record_answer(A, ms(1000), ms(1025), ms(1026));
    collector.record_answer(B, ms(3000), ms(3025), ms(3020));
    collector.record_drop(B, ms(2000));
    collector.record_drop(B, ms(3001));
    let summary = collector.finish(ms(4000), info());
    let total = &summary.total;
    assert_eq!((total.requests, total.late, total.dropped), (4, 1, 1));
    assert_eq!((total.offered_rps, total.goodput_rps, total.bad_rate), (2.0, 1.0, 0.5));
    assert!((total.p50_ms.unwrap() - 25.0).abs() < 0.025);
    assert!((total.p99_ms.unwrap() - 26.0).abs() < 0.026);
    assert_eq!((summary.models[1].figures.bad_rate, summary.worst_bad_rate), (0.5, 0.5));
}

#[test]
fn busy_time_is_clipped_and_batches_count_once_each() {
    let mut collector = collector();
    collector.record_batch(A, 8, DeviceId(0), ms(500), ms(1500));
    collector.record_batch(A, 1, DeviceId(0), ms(1500), ms(2000));
    collector.record_batch(B, 4, DeviceId(0), ms(2500), ms(9000));
    collector.record_batch(B, 2, DeviceId(1), ms(3500), ms(9000));
    let summary = collector.finish(ms(9000), info());
    assert_eq!((summary.total.busy_fraction, summary.total.devices_used), (0.375, 1));
    assert_eq!((summary.total.mean_batch, summary.total.median_batch), (2.5, 2.5));
    assert_eq!(summary.models[1].figures.mean_batch, 4.0);
    assert_eq!(summary.models[0].figures.busy_fraction, 0.25);
}

#[test]
fn an_open_window_ends_at_the_finish() {
    let mut collector = Collector::new(["a"], 1, 1, ObservationWindow::from(ms(0)));
    collector.record_answer(A, ms(1), ms(5), ms(4));
    collector.record_batch(A, 1, DeviceId(0), ms(1), ms(4));
    let total = collector.finish(ms(4), info()).total;
    assert_eq!((total.offered_rps, total.busy_fraction), (250.0, 0.75));
}

#[test]
fn nothing_observed_gives_zeros_and_nulls() {
    let summary = collector().finish(ms(0), info());
    assert_eq!((summary.total.offered_rps, summary.total.bad_rate, summary.total.p50_ms), (0.0, 0.0, None));
}

#[test]
fn the_json_has_the_promised_fields() {
    let mut collector = Collector::new(["a"], 1, 2, ObservationWindow { start: ms(0), end: ms(1000) });
    collector.record_answer(A, ms(1), ms(5), ms(4));
    collector.record_batch(A, 2, DeviceId(0), ms(1), ms(4));
    expect_test::expect![[r#"
        {
          "policy": "deferred",
          "seed": 7,
          "offered_rps": 1.0,
          "goodput_rps": 1.0,
          "bad_rate": 0.0,
          "mean_ms": 3.0,
          "p50_ms": 3.0,
          "p90_ms": 3.0,
          "p99_ms": 3.0,
          "mean_batch": 2.0,
          "median_batch": 2.0,
          "busy_fraction": 0.003,
          "devices_used": 1,
          "requests": 1,
          "dropped": 0,
          "late": 0,
          "worst_bad_rate": 0.0,
          "idle_fraction": 0.997,
          "desired_devices": 1,
          "events": 12,
          "wall_s": 0.5,
          "models": [
            {
              "name": "a",
              "offered_rps": 1.0,
              "goodput_rps": 1.0,
              "bad_rate": 0.0,
              "mean_ms": 3.0,
              "p50_ms": 3.0,
              "p90_ms": 3.0,
              "p99_ms": 3.0,
              "mean_batch": 2.0,
              "median_batch": 2.0,
              "busy_fraction": 0.003,
              "devices_used": 1,
              "requests": 1,
              "dropped": 0,
              "late": 0
            }
          ]
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&collector.finish(ms(1000), info())).unwrap());
}

#[test]
fn idle_time_is_that_of_devices_that_were_there() {
    let mut collector = Collector::new(["a"], 4, 1, ObservationWindow { start: ms(0), end: ms(1000) });
    collector.record_batch(A, 1, DeviceId(0), ms(0), ms(500));
    let idle = |mean_devices| {
        let summary = collector.finish(ms(1000), RunInfo { mean_devices, ..info() });
        (summary.idle_fraction, summary.desired_devices)
    };
    assert_eq!((idle(None), idle(Some(2.0))), ((0.875, 1), (0.75, 1)));
    (0..4).for_each(|device| collector.record_batch(A, 1, DeviceId(device), ms(500), ms(1000)));
    (0..3).for_each(|_| collector.record_answer(A, ms(1), ms(5), ms(4)));
    collector.record_drop(A, ms(1));
    let summary = collector.finish(ms(1000), info());
    // A quarter is bad: four devices and 4 · 0.25/0.75 more.
    assert_eq!((summary.idle_fraction, summary.desired_devices), (0.375, 6));
}
