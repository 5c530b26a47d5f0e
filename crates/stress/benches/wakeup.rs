//! The precision with which this machine wakes the scheduler thread.

use clap::Parser;
use ripieno_base::Nanos;
use ripieno_report::{Format, Table};
use ripieno_runtime::measure_wakeups;
use ripieno_stress::{arguments, print_json};
use std::time::Duration;

/// Measure how late the scheduler thread wakes up, with the code that it parks with.
///
/// A deadline is only as good as the timer behind it: on an idle machine the median should be far
/// below 100 µs.
#[derive(Parser, Debug)]
struct WakeupBench {
    /// Number of wake-ups.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,

    /// Length of each sleep, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    spacing_us: u32,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

fn main() {
    run(&arguments());
}

fn run(args: &WakeupBench) {
    let wakeups = measure_wakeups(args.count as usize, Duration::from_micros(u64::from(args.spacing_us)));
    let micros = |quantile: f64| wakeups.quantile(quantile).0 as f64 / 1e3;
    let (p50, p90, p99, max) = (micros(0.5), micros(0.9), micros(0.99), micros(1.0));
    if args.format == Format::Json {
        print_json(&serde_json::json!({
            "count": args.count, "spacing_us": args.spacing_us,
            "late_p50_us": p50, "late_p90_us": p90, "late_p99_us": p99, "late_max_us": max,
        }));
        return;
    }
    println!(
        "late by, of {} wake-ups: p50 {p50:.1} us, p90 {p90:.1} us, p99 {p99:.1} us, most {max:.1} us",
        args.count
    );
    let bounds = [1, 10, 50, 100, 500, 1_000, 10_000];
    let mut table = Table::new(["late by at most us", "wake-ups"]);
    let counts = wakeups.histogram(&bounds.map(Nanos::from_micros));
    let names = bounds.iter().map(ToString::to_string).chain(["more".to_owned()]);
    for (name, count) in names.zip(counts) {
        table.row([name, count.to_string()]);
    }
    println!("{table}");
}
