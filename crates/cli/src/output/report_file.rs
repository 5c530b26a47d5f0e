//! `--report FILE.html`: the results of a command as one file with charts.

use anyhow::Context;
use clap::Args;
use ripieno_bench::{BenchResults, BenchRow};
use ripieno_report::html::{DeviceSpan, HtmlReport, ReportPart, bars, batch_sizes, device_timeline, latency_cdf};
use ripieno_report::{Summary, number, percent};
use ripieno_sim::{Scenario, Trace};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Span of a timeline, in milliseconds.
const TIMELINE_MS: f64 = 500.0;
/// Largest number of models with charts of their own.
const MOST_MODELS: usize = 12;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ReportArgs {
    /// Write the results with charts into this HTML file, which needs nothing else.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

impl ReportArgs {
    /// Writes the report, if one is wanted.
    pub(crate) fn write(&self, report: impl FnOnce() -> HtmlReport) -> anyhow::Result<()> {
        write(self.report.as_ref(), report)
    }
}

/// Writes a report into the file, if there is one.
pub(crate) fn write(file: Option<&PathBuf>, report: impl FnOnce() -> HtmlReport) -> anyhow::Result<()> {
    match file {
        Some(file) => report().write(file).with_context(|| format!("cannot write the report {}", file.display())),
        None => Ok(()),
    }
}

fn texts<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}

fn ms(value: Option<f64>) -> String {
    number(value.unwrap_or(f64::NAN))
}

/// Returns the report of runs side by side.
pub(crate) fn of_runs<'a>(title: &str, subtitle: &str, runs: impl IntoIterator<Item = &'a Summary>) -> HtmlReport {
    let runs: Vec<&Summary> = runs.into_iter().collect();
    let value = |of: fn(&Summary) -> f64| runs.iter().map(|run| of(run)).collect::<Vec<_>>();
    let charts = vec![
        bars("Goodput", "requests/s", &value(|run| run.total.goodput_rps)),
        bars("Late or dropped", "%", &value(|run| run.total.bad_rate * 100.0)),
        bars("p99 latency", "ms", &value(|run| run.total.p99_ms.unwrap_or(0.0))),
        bars("Devices busy", "%", &value(|run| run.total.busy_fraction * 100.0)),
    ];
    let parts = vec![ReportPart::Charts(charts), figures(&runs)];
    HtmlReport { title: title.to_owned(), subtitle: subtitle.to_owned(), parts }
}

fn figures(runs: &[&Summary]) -> ReportPart {
    let head = texts([
        "run",
        "offered/s",
        "goodput/s",
        "bad %",
        "p50 ms",
        "p99 ms",
        "mean batch",
        "busy %",
        "late",
        "dropped",
    ]);
    let row = |run: &&Summary| {
        let total = &run.total;
        vec![
            run.policy.clone(),
            number(total.offered_rps),
            number(total.goodput_rps),
            percent(total.bad_rate),
            ms(total.p50_ms),
            ms(total.p99_ms),
            number(total.mean_batch),
            percent(total.busy_fraction),
            total.late.to_string(),
            total.dropped.to_string(),
        ]
    };
    ReportPart::Table(head, runs.iter().map(row).collect())
}

/// Returns the report of a simulated run: devices, latencies, batches and outcomes.
pub(crate) fn of_simulation(scenario: &Scenario, trace: &Trace, runs: &[&Summary]) -> HtmlReport {
    let models = &scenario.setup.models;
    let place: BTreeMap<&str, usize> = models.iter().enumerate().map(|(at, model)| (model.name.as_str(), at)).collect();
    let mut spans = Vec::new();
    let mut sizes: Vec<Vec<usize>> = vec![Vec::new(); models.len()];
    for task in trace.spans() {
        let at = task.model.index();
        let device = task.device.index();
        spans.push(DeviceSpan {
            device,
            model: at,
            from_ms: task.start.as_millis_f64(),
            to_ms: task.end.as_millis_f64(),
        });
        sizes[at].push(task.members);
    }
    let mut latencies: Vec<Vec<f64>> = vec![Vec::new(); models.len()];
    let mut outcomes: Vec<[u64; 3]> = vec![[0; 3]; models.len()];
    for request in trace.outcomes() {
        let Some(&at) = place.get(request.model) else { continue };
        let kind = match request.outcome {
            "ok" => 0,
            "late" => 1,
            _ => 2,
        };
        outcomes[at][kind] += 1;
        if kind < 2 {
            latencies[at].push((request.finish - request.arrival).as_millis_f64());
        }
    }
    let middle = spans.get(spans.len() / 2).map_or(0.0, |span| span.from_ms);
    let mut parts = vec![figures(runs)];
    parts.push(ReportPart::Charts(vec![device_timeline(&spans, middle, middle + TIMELINE_MS)]));
    for (at, model) in models.iter().enumerate().take(MOST_MODELS) {
        parts.push(ReportPart::Heading(model.name.clone()));
        let slo = model.slo.as_millis_f64();
        parts.push(ReportPart::Charts(vec![latency_cdf(&latencies[at], Some(slo)), batch_sizes(&sizes[at])]));
        let [in_time, late, dropped] = outcomes[at].map(|count| count.to_string());
        let head = texts(["outcome", "in time", "late", "dropped"]);
        parts.push(ReportPart::Table(head, vec![vec!["requests".to_owned(), in_time, late, dropped]]));
    }
    let title = runs.last().map_or_else(String::new, |run| format!("Simulation under {}", run.policy));
    let subtitle = format!(
        "{} models on {} devices; batches of {TIMELINE_MS:.0} ms in the middle of the run",
        models.len(),
        scenario.setup.devices
    );
    HtmlReport { title, subtitle, parts }
}

/// Returns the report of a load on a server.
pub(crate) fn of_bench(results: &BenchResults) -> HtmlReport {
    let value =
        |of: fn(&BenchRow) -> Option<f64>| results.runs.iter().map(|run| of(run).unwrap_or(0.0)).collect::<Vec<_>>();
    let charts = vec![
        bars("Answered", "requests/s", &value(|run| Some(run.achieved_rps))),
        bars("Late, failed or not sent", "%", &value(|run| Some(run.bad_rate * 100.0))),
        bars("Median latency", "ms", &value(|run| run.p50_ms)),
        bars("p99 latency", "ms", &value(|run| run.p99_ms)),
    ];
    let head = texts([
        "offered/s",
        "answered/s",
        "goodput/s",
        "bad %",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "max ms",
        "late",
        "not sent",
        "errors",
    ]);
    let row = |run: &BenchRow| {
        let errors: Vec<String> = run.errors.iter().map(|(class, count)| format!("{class}: {count}")).collect();
        vec![
            number(run.offered_rps),
            number(run.achieved_rps),
            ms(run.goodput_rps),
            percent(run.bad_rate),
            ms(run.p50_ms),
            ms(run.p90_ms),
            ms(run.p99_ms),
            ms(run.max_ms),
            run.late.to_string(),
            run.not_sent.to_string(),
            errors.join(", "),
        ]
    };
    let parts = vec![ReportPart::Charts(charts), ReportPart::Table(head, results.runs.iter().map(row).collect())];
    let slo = results.slo_ms.map_or("no SLO".to_owned(), |slo| format!("SLO {slo} ms"));
    let title = format!("Load on {}", results.model);
    let subtitle = format!(
        "{} by {}, {} arrivals, {} s a run, {slo}",
        results.url, results.protocol, results.arrival, results.duration_s
    );
    HtmlReport { title, subtitle, parts }
}

/// A row of a comparison: scenario, measure, value of the default policy, best value and policy,
/// ratio.
#[cfg(feature = "reproduce")]
pub(crate) struct ComparedRow {
    pub(crate) cells: [String; 6],
    pub(crate) ratio: f64,
}

/// Returns the report of a comparison of policies.
#[cfg(feature = "reproduce")]
pub(crate) fn of_comparison(rows: &[ComparedRow]) -> HtmlReport {
    let head = texts(["scenario", "measure", "served", "best", "best policy", "ratio"]);
    let ratios: Vec<f64> = rows.iter().map(|row| row.ratio).collect();
    let table = ReportPart::Table(head, rows.iter().map(|row| row.cells.to_vec()).collect());
    let parts =
        vec![ReportPart::Charts(vec![bars("Ratio to the best policy", "1 is as good as the best", &ratios)]), table];
    HtmlReport {
        title: "The default policy and the best one".to_owned(),
        subtitle: format!("{} measures", rows.len()),
        parts,
    }
}
