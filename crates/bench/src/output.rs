//! What `bench` prints.

use std::collections::BTreeMap;

use ripieno_base::Nanos;
use ripieno_report::{Table, number, percent};
use serde::Serialize;

use super::load::LoadReport;

/// One run, as printed.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The rate that was asked for; null for a trace, which has its own.
    pub rate: Option<f64>,
    /// Requests that were due, a second.
    pub offered_rps: f64,
    /// Requests answered, a second.
    pub achieved_rps: f64,
    /// Requests answered within the SLO, a second; null without an SLO.
    pub goodput_rps: Option<f64>,
    /// Requests failed, not sent or late, over all.
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
    /// 99th percentile of how late the generator itself was.
    pub send_lag_p99_ms: Option<f64>,
    /// Requests counted.
    pub requests: u64,
    /// Of these, answered.
    pub answered: u64,
    /// Of the answers, those after the SLO.
    pub late: u64,
    /// Of the requests, those not sent because too many were outstanding.
    pub not_sent: u64,
    /// Of the requests, those that failed, by status.
    pub errors: BTreeMap<String, u64>,
}

impl Row {
    /// The figures of a run at `rate`.
    pub fn new(rate: Option<f64>, report: &LoadReport, slo: Option<Nanos>) -> Row {
        Row {
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

/// What a whole call of `bench` gave.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// The server.
    pub url: String,
    /// The model.
    pub model: String,
    /// "http" or "grpc".
    pub protocol: String,
    /// The arrival process.
    pub arrival: String,
    /// Its seed.
    pub seed: u64,
    /// The SLO that answers were judged by.
    pub slo_ms: Option<f64>,
    /// The counted part of each run.
    pub duration_s: f64,
    /// The figures of the last run or, where goodput was searched, of the last good one.
    #[serde(flatten)]
    pub best: Option<Row>,
    /// All runs, in order.
    pub runs: Vec<Row>,
    /// The last rate that passed, where goodput was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_good: Option<Row>,
    /// The first rate that failed, where goodput was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<Row>,
}

/// The runs as a table, with a line on each kind of error.
pub fn table(results: &Results) -> String {
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
    let Results { model, url, protocol, arrival, duration_s, .. } = results;
    let runs = number(*duration_s);
    format!("{model} at {url} ({protocol}), {arrival} arrivals, {runs} s a run, {slo}\n{table}{}", found(results))
}

/// The answer of a goodput search; nothing for other runs.
fn found(results: &Results) -> String {
    let offered = |row: &Option<Row>| row.as_ref().map(|row| number(row.offered_rps));
    match (offered(&results.last_good), offered(&results.first_bad)) {
        (Some(good), Some(bad)) => format!("\ngoodput: {good} requests/s (at {bad}/s more than 1 % were bad)"),
        (Some(good), None) => format!("\ngoodput: at least {good} requests/s"),
        (None, Some(bad)) => format!("\ngoodput: none found; at {bad} requests/s more than 1 % were bad"),
        (None, None) => String::new(),
    }
}

fn errors(row: &Row) -> String {
    let mut kinds: Vec<String> = row.errors.iter().map(|(class, count)| format!("{count} × {class}")).collect();
    if row.late > 0 {
        kinds.push(format!("{} late", row.late));
    }
    if row.not_sent > 0 {
        kinds.push(format!("{} not sent", row.not_sent));
    }
    if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") }
}
