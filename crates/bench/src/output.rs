//! The output of `bench`.

use std::collections::BTreeMap;

use ripieno_base::Nanos;
use ripieno_report::{Table, number, percent};
use serde::Serialize;

use super::load::LoadReport;

/// One run, as printed.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    /// The offered rate; null for a trace, which has its own.
    pub rate: Option<f64>,
    /// Requests that were due, per second.
    pub offered_rps: f64,
    /// Requests answered, per second.
    pub achieved_rps: f64,
    /// Requests answered within the SLO, per second; null without an SLO.
    pub goodput_rps: Option<f64>,
    /// Fraction of requests that failed, were not sent or were late.
    pub bad_rate: f64,
    /// Median latency of the answers, from the due time.
    pub p50_ms: Option<f64>,
    /// 90th percentile.
    pub p90_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// Maximum.
    pub max_ms: Option<f64>,
    /// Mean.
    pub mean_ms: Option<f64>,
    /// 99th percentile of the generator's own delay.
    pub send_lag_p99_ms: Option<f64>,
    /// Number of requests.
    pub requests: u64,
    /// Requests answered.
    pub answered: u64,
    /// Answers after the SLO.
    pub late: u64,
    /// Requests not sent because too many were outstanding.
    pub not_sent: u64,
    /// Failed requests, by status.
    pub errors: BTreeMap<String, u64>,
}

impl BenchRow {
    /// The figures of a run at `rate`.
    pub fn new(rate: Option<f64>, report: &LoadReport, slo: Option<Nanos>) -> BenchRow {
        BenchRow {
            rate,
            offered_rps: report.per_second(report.requests),
            achieved_rps: report.per_second(report.answered),
            goodput_rps: slo.map(|_| report.per_second(report.answered - report.late)),
            bad_rate: report.bad_rate(),
            p50_ms: report.latencies.p50_ms(),
            p90_ms: report.latencies.p90_ms(),
            p99_ms: report.latencies.p99_ms(),
            max_ms: report.latencies.max_ms(),
            mean_ms: report.latencies.mean_ms(),
            send_lag_p99_ms: report.send_lag.p99_ms(),
            requests: report.requests,
            answered: report.answered,
            late: report.late,
            not_sent: report.not_sent,
            errors: report.failures.iter().map(|(class, failure)| (class.clone(), failure.count)).collect(),
        }
    }
}

/// The results of one `bench` command.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResults {
    /// The server.
    pub url: String,
    /// The model.
    pub model: String,
    /// "http" or "grpc".
    pub protocol: String,
    /// The arrival process.
    pub arrival: String,
    /// The seed of the arrival process.
    pub seed: u64,
    /// The SLO of the answers.
    pub slo_ms: Option<f64>,
    /// Length of the counted window of each run, in seconds.
    pub duration_s: f64,
    /// The figures of the last run or, for a goodput search, of the last run that passed.
    #[serde(flatten)]
    pub best: Option<BenchRow>,
    /// All runs, in order.
    pub runs: Vec<BenchRow>,
    /// The highest rate that passed, for a goodput search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_good: Option<BenchRow>,
    /// The lowest rate that failed, for a goodput search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<BenchRow>,
}

/// Formats the runs as a table, with a line on each kind of error.
pub fn table(results: &BenchResults) -> String {
    let headers = [
        "offered/s",
        "answered/s",
        "goodput/s",
        "bad %",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "max ms",
        "send lag p99 ms",
        "errors",
    ];
    let mut table = Table::new(headers);
    let cell = |value: Option<f64>| number(value.unwrap_or(f64::NAN));
    for row in &results.runs {
        table.row([
            number(row.offered_rps),
            number(row.achieved_rps),
            cell(row.goodput_rps),
            percent(row.bad_rate),
            cell(row.p50_ms),
            cell(row.p90_ms),
            cell(row.p99_ms),
            cell(row.max_ms),
            cell(row.send_lag_p99_ms),
            errors(row),
        ]);
    }
    let slo = results.slo_ms.map_or("no SLO".to_owned(), |slo| format!("SLO {} ms", number(slo)));
    let BenchResults { model, url, protocol, arrival, duration_s, .. } = results;
    let runs = number(*duration_s);
    format!(
        "{model} at {url} ({protocol}), {arrival} arrivals, {runs} s a run, {slo}\n{table}{}",
        goodput_line(results)
    )
}

/// Returns the figures of one run of several as a line.
pub(crate) fn run_line(row: &BenchRow) -> String {
    let p99 = row.p99_ms.map_or_else(String::new, |p99| format!(", p99 {} ms", number(p99)));
    format!("{} requests/s: {} % bad{p99}", number(row.offered_rps), percent(row.bad_rate))
}

/// Returns the result of a goodput search as text; empty for other runs.
fn goodput_line(results: &BenchResults) -> String {
    let offered = |row: &Option<BenchRow>| row.as_ref().map(|row| number(row.offered_rps));
    match (offered(&results.last_good), offered(&results.first_bad)) {
        (Some(good), Some(bad)) => format!("\ngoodput: {good} requests/s (at {bad}/s more than 1 % were bad)"),
        (Some(good), None) => format!("\ngoodput: at least {good} requests/s"),
        (None, Some(bad)) => format!("\ngoodput: none found; at {bad} requests/s more than 1 % were bad"),
        (None, None) => String::new(),
    }
}

fn errors(row: &BenchRow) -> String {
    let mut kinds: Vec<String> = row.errors.iter().map(|(class, count)| format!("{count} × {class}")).collect();
    if row.late > 0 {
        kinds.push(format!("{} late", row.late));
    }
    if row.not_sent > 0 {
        kinds.push(format!("{} not sent", row.not_sent));
    }
    if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") }
}
