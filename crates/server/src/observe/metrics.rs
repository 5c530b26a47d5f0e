//! `GET /metrics`: counters in the Prometheus text format.
//!
//! Everything summable is a counter, and buckets come from one fixed series, so that metrics of
//! many servers can be aggregated. The `nv_inference_*` names are those that Triton dashboards use.
//!
//! A model has fewer than 60 series, since a server may have hundreds of models. So histograms show
//! the buckets around the model's SLO only, and what few models use appears once it has counted
//! something.

mod distributions;
mod process;

use crate::backend::DeviceDelays;
use crate::config::BuildInfo;
use crate::observe::starvation::{self, Starvation};
use crate::problem::{TRITON_REASONS, triton_reason};
use crate::state::ServerState;
use ripieno_executor::PhaseTimes;
use ripieno_report::{Reading, ScalingRule};
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{
    BatchFindings, DeviceSnapshot, DeviceState, Ending, EngineProcesses, ModelSnapshot, SchedulerSnapshot,
};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// A model's labels and metrics.
struct ModelRow {
    labels: String,
    model: ModelSnapshot,
    processes: Option<EngineProcesses>,
    findings: BatchFindings,
    entry: Arc<ServedEntry>,
}

/// Renders all metrics.
pub(crate) fn render(state: &ServerState) -> String {
    let rows: Vec<ModelRow> = state
        .registry
        .ready_entries()
        .into_iter()
        .filter_map(|entry| {
            let labels = format!("model=\"{}\",version=\"{}\"", escape(&entry.name), escape(&entry.version));
            let processes = entry.id.and_then(|id| state.backend.processes(id));
            let findings = entry.id.map(|id| state.backend.batch_findings(id)).unwrap_or_default();
            state.model_metrics(&entry).map(|model| ModelRow { labels, model, processes, findings, entry })
        })
        .collect();
    let mut text = MetricsText(String::with_capacity(4096 + 8192 * rows.len()));
    build_info(&mut text, state);
    call_errors(&mut text, state);
    if state.has_clients() && !state.backend.is_primary() {
        // The scheduler counts the same requests under the other names.
        of_frontend(&mut text, &rows);
    } else {
        requests(&mut text, &rows);
        capacity(&mut text, state, &rows);
        processes(&mut text, &rows);
        distributions::summaries(&mut text, &rows);
        distributions::histograms(&mut text, &rows, &distributions::HISTOGRAMS);
        triton(&mut text, &rows);
    }
    devices(&mut text, state);
    scheduler(&mut text, state);
    signals(&mut text, state);
    processor(&mut text);
    process::write(&mut text);
    text.0
}

struct MetricsText(String);

/// Name, type and help of a metric.
struct Metric<'a> {
    name: &'a str,
    kind: &'static str,
    help: &'a str,
}

impl Metric<'_> {
    fn counter<'a>(name: &'a str, help: &'a str) -> Metric<'a> {
        Metric { name, kind: "counter", help }
    }

    fn gauge<'a>(name: &'a str, help: &'a str) -> Metric<'a> {
        Metric { name, kind: "gauge", help }
    }
}

impl MetricsText {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }

    fn plain(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn per_model<V: std::fmt::Display>(&mut self, metric: &Metric<'_>, rows: &[ModelRow], value: fn(&ModelRow) -> V) {
        self.family(metric.name, metric.kind, metric.help);
        for row in rows {
            self.sample(metric.name, &row.labels, value(row));
        }
    }

    /// Writes a counter of what few models use, for models where it is above 0.
    fn per_user(&mut self, name: &str, help: &str, rows: &[ModelRow], value: fn(&ModelRow) -> u64) {
        let users: Vec<_> = rows.iter().map(|row| (row, value(row))).filter(|(_, count)| *count > 0).collect();
        if !users.is_empty() {
            self.family(name, "counter", help);
        }
        for (row, count) in users {
            self.sample(name, &row.labels, count);
        }
    }
}

fn build_info(text: &mut MetricsText, state: &ServerState) {
    text.family("ripieno_build_info", "gauge", "Version, commit and engine of the server; always 1.");
    let BuildInfo { commit, engine } = &state.config.build;
    let version = env!("CARGO_PKG_VERSION");
    let labels = format!("version=\"{version}\",commit=\"{}\",engine=\"{}\"", escape(commit), escape(engine));
    text.sample("ripieno_build_info", &labels, 1);
    text.family("ripieno_ready", "gauge", "Whether the server is ready.");
    let _ = writeln!(text.0, "ripieno_ready {}", u8::from(state.is_ready()));
    let help = "Whether it decides which requests run: of a cluster, the primary alone.";
    text.family("ripieno_leading", "gauge", help);
    let _ = writeln!(text.0, "ripieno_leading {}", u8::from(state.backend.is_primary()));
    if let Some(elections) = state.backend.elections() {
        text.family("ripieno_elections_total", "counter", "Times that this scheduler took the lead.");
        text.plain("ripieno_elections_total", elections);
    }
    let help = "Loads of models that failed; what served before serves on.";
    text.family("ripieno_load_failures_total", "counter", help);
    text.plain("ripieno_load_failures_total", state.registry.failures());
    text.family("ripieno_held_bytes", "gauge", "Bytes that requests and answers hold.");
    let _ = writeln!(text.0, "ripieno_held_bytes {}", state.budget.held());
    text.family("ripieno_kept_bytes", "gauge", "Bytes that engines keep between batches.");
    let _ = writeln!(text.0, "ripieno_kept_bytes {}", ripieno_executor::kept_bytes());
    text.family("ripieno_max_held_bytes", "gauge", "The most that both may hold.");
    let _ = writeln!(text.0, "ripieno_max_held_bytes {}", state.budget.bound());
}

/// Writes how the process was kept from running.
fn processor(text: &mut MetricsText) {
    let starved = starvation::of_process().map_or(Duration::ZERO, Starvation::total);
    text.family("ripieno_starved_seconds_total", "counter", "Time in which the process wanted to run and did not.");
    text.plain("ripieno_starved_seconds_total", starved.as_secs_f64());
    let Some(throttling) = starvation::throttling() else { return };
    let help = "Periods in which the CPU limit stopped the process.";
    text.family("ripieno_throttled_periods_total", "counter", help);
    text.plain("ripieno_throttled_periods_total", throttling.periods);
    text.family("ripieno_throttled_seconds_total", "counter", "Time for which the CPU limit stopped its threads.");
    text.plain("ripieno_throttled_seconds_total", throttling.time.as_secs_f64());
}

/// Writes the calls that were refused because of the client.
fn call_errors(text: &mut MetricsText, state: &ServerState) {
    let help = "Calls that were wrong or not allowed, by the HTTP status of the same meaning.";
    text.family("ripieno_call_errors_total", "counter", help);
    for (status, count) in state.call_errors.counts() {
        text.sample("ripieno_call_errors_total", &format!("code=\"{status}\""), count);
    }
    text.family("ripieno_tls_failures_total", "counter", "TLS handshakes that failed.");
    text.plain("ripieno_tls_failures_total", state.access.failed_handshakes.count());
    if let Some(ends_s) = state.access.certificate_expiry_s() {
        let help = "End of the server's certificate, in seconds since the Unix epoch.";
        text.family("ripieno_certificate_expiry_timestamp_seconds", "gauge", help);
        text.plain("ripieno_certificate_expiry_timestamp_seconds", ends_s);
    }
    if let Some(ends_s) = state.access.peer_certificate_expiry_s() {
        let help = "End of the role's certificate towards other roles, in seconds since the Unix epoch.";
        text.family("ripieno_peer_certificate_expiry_timestamp_seconds", "gauge", help);
        text.plain("ripieno_peer_certificate_expiry_timestamp_seconds", ends_s);
    }
}

/// Writes what a frontend alone knows of the requests: how its clients were answered.
fn of_frontend(text: &mut MetricsText, rows: &[ModelRow]) {
    outcomes(text, "ripieno_frontend_requests_total", rows);
    distributions::histograms(text, rows, &[distributions::FRONTEND_RESPONSE]);
    slo(text, rows);
}

fn outcomes(text: &mut MetricsText, name: &str, rows: &[ModelRow]) {
    text.family(name, "counter", "Requests by how they ended.");
    for row in rows {
        let named =
            row.model.requests.iter().map(|(ending, count)| (ending.name(), *count, ending.is_good().is_some()));
        for (outcome, count, is_always) in named.chain([("undelivered", undelivered(row), false)]) {
            if is_always || count > 0 {
                text.sample(name, &format!("{},outcome=\"{outcome}\"", row.labels), count);
            }
        }
    }
}

fn slo(text: &mut MetricsText, rows: &[ModelRow]) {
    let metric = Metric::gauge("ripieno_slo_seconds", "The latency target.");
    text.per_model(&metric, rows, |row| row.entry.slo.span.as_secs_f64());
}

/// Writes what the devices can do of each model whose requests cost the same.
fn capacity(text: &mut MetricsText, state: &ServerState, rows: &[ModelRow]) {
    let help = "Rows a second that the serving devices can answer in time, without other models.";
    text.family("ripieno_capacity_rows_per_second", "gauge", help);
    for row in rows {
        if let Some(rows_per_s) = row.entry.id.and_then(|id| state.backend.capacity(id)) {
            text.sample("ripieno_capacity_rows_per_second", &row.labels, rows_per_s);
        }
    }
}

fn requests(text: &mut MetricsText, rows: &[ModelRow]) {
    outcomes(text, "ripieno_requests_total", rows);
    let help = "Requests answered by their deadline; its rate is the goodput.";
    text.per_model(&Metric::counter("ripieno_good_requests_total", help), rows, |row| ended(row, Ending::Ok));
    text.per_model(&Metric::counter("ripieno_rows_total", "Rows answered."), rows, |row| row.model.rows);
    let help = "Rows of all batches, or steps and nodes where walks unfold: what the devices computed.";
    text.per_model(&Metric::counter("ripieno_executed_rows_total", help), rows, |row| row.model.executed_rows);
    let help = "Executed rows of requests that had ended: steps queued ahead, and requests whose client had gone.";
    text.per_user("ripieno_wasted_rows_total", help, rows, |row| row.model.wasted_rows);
    let help = "Executed rows that only fill a batch: beyond the end of a sequence, or up to a batch size.";
    text.per_user("ripieno_padding_rows_total", help, rows, |row| row.model.padding_rows);
    let help = "Of requests that differ in length: rows times length of what the batches computed of them.";
    text.per_user("ripieno_useful_elements_total", help, rows, |row| row.model.useful_elements);
    let help = "Likewise what was computed only to fill shorter requests up to the longest of their batch.";
    text.per_user("ripieno_padding_elements_total", help, rows, |row| row.model.padding_elements);
    let help = "Requests (or parts of large ones) that a condition answered before the last block.";
    text.per_user("ripieno_early_exits_total", help, rows, |row| row.model.early_exits);
    let help = "How often a condition sent a request (or part) past a block.";
    text.per_user("ripieno_skips_total", help, rows, |row| row.model.skips);
    let help = "Batches that failed and were run again in parts.";
    text.per_model(&Metric::counter("ripieno_batches_rerun_total", help), rows, |row| row.model.batches_again);
    let help = "Requests (or parts of large ones) that the engine failed on alone.";
    text.per_model(&Metric::counter("ripieno_bad_requests_total", help), rows, |row| row.model.bad_requests);
    let help = "Rows of served batches that were compared with their answers alone.";
    text.per_user("ripieno_rows_compared_total", help, rows, |row| row.findings.rows_compared);
    let help = "Whether an answer has shown that requests cannot share batches, so that each runs alone.";
    let stopped = |row: &ModelRow| u8::from(row.findings.stopped.is_some());
    text.per_model(&Metric::gauge("ripieno_batches_stopped", help), rows, stopped);
    let help = "Latency profiles that were replaced because batches took otherwise.";
    let corrected = |row: &ModelRow| row.model.profile_corrections;
    text.per_model(&Metric::counter("ripieno_profile_corrections_total", help), rows, corrected);
    let help = "Requests (or parts of large ones) that wait for their first batch.";
    text.per_model(&Metric::gauge("ripieno_queue_length", help), rows, |row| row.model.waiting);
    let help = "Requests (or parts of large ones) that wait or run.";
    text.per_model(&Metric::gauge("ripieno_live_requests", help), rows, |row| row.model.live);
    slo(text, rows);
}

/// Writes the metrics of models whose engines run in processes of their own.
fn processes(text: &mut MetricsText, rows: &[ModelRow]) {
    let known = || rows.iter().filter_map(|row| Some((row, row.processes?)));
    if known().next().is_none() {
        return;
    }
    let help = "How often a process of the model's engine was started again.";
    text.family("ripieno_engine_restarts_total", "counter", help);
    known().for_each(|(row, processes)| text.sample("ripieno_engine_restarts_total", &row.labels, processes.restarts));
    text.family("ripieno_engine_up", "gauge", "Whether a process of the model's engine is there.");
    known().for_each(|(row, processes)| text.sample("ripieno_engine_up", &row.labels, u8::from(processes.up)));
}

/// Returns the number of engine answers that reached no client.
fn undelivered(row: &ModelRow) -> u64 {
    let (in_time, late) = row.entry.stats.undelivered.counts();
    in_time + late
}

fn ended(row: &ModelRow, wanted: Ending) -> u64 {
    row.model.requests.iter().filter(|(ending, _)| *ending == wanted).map(|(_, count)| count).sum()
}

/// The delays between a scheduler and its backends.
fn device_delays(text: &mut MetricsText, state: &ServerState) {
    let all = state.backend.delays();
    let names = [
        (
            DeviceDelays::CONTROL,
            "Delay of a message between scheduler and backend, by percentile; older ones count less.",
        ),
        (DeviceDelays::DATA, "Time in which a backend has the inputs of a batch from the frontends, by percentile."),
        (DeviceDelays::DATA_PER_ROW, "The same for each row of the batch."),
    ];
    for (name, help) in names.iter().filter(|_| !all.is_empty()) {
        text.family(name, "gauge", help);
        for DeviceDelays { device, delays } in &all {
            let own = delays.iter().filter(|(own, _)| own == name);
            for (quantile, delay) in own.flat_map(|(_, percentiles)| percentiles) {
                let labels = format!("device=\"{device}\",quantile=\"{quantile}\"");
                text.sample(name, &labels, delay.as_secs_f64());
            }
        }
    }
}

/// Reads a counter of a device.
type DeviceCounter = fn(&DeviceSnapshot) -> u64;

const DEVICE_COUNTERS: [(&str, &str, DeviceCounter); 5] = [
    ("ripieno_device_batches_total", "Batches executed.", |of| of.batches),
    ("ripieno_rows_gathered_total", "Rows copied to make batches contiguous, once for each tensor.", |of| {
        of.rows_gathered
    }),
    ("ripieno_tasks_without_copy_total", "Batches that took the state of their requests from where it lay.", |of| {
        of.tasks_without_copy
    }),
    (
        "ripieno_tasks_gathered_ahead_total",
        "Batches that were gathered while another one computed on their lane.",
        |of| of.tasks_gathered_ahead,
    ),
    (
        "ripieno_tasks_answered_beside_total",
        "Batches that were answered while another one computed on their lane.",
        |of| of.tasks_answered_beside,
    ),
];

fn devices(text: &mut MetricsText, state: &ServerState) {
    let devices = state.backend.devices();
    let help = "Devices that take batches, as far as this process knows; 0 without any.";
    text.family("ripieno_serving_devices", "gauge", help);
    text.plain("ripieno_serving_devices", state.backend.serving_devices());
    let help = "Whether the device takes batches; 0 while it leaves, or if it was lost.";
    text.family("ripieno_device_serving", "gauge", help);
    // Devices of a cluster are counted once, where their tasks are decided.
    for numbers in devices.iter().filter(|_| state.backend.is_primary()) {
        let serving = u8::from(numbers.state == DeviceState::Serving);
        text.sample("ripieno_device_serving", &format!("device=\"{}\"", numbers.id), serving);
    }
    device_delays(text, state);
    text.family("ripieno_device_busy_seconds_total", "counter", "Time spent executing; its rate is the busy fraction.");
    for numbers in &devices {
        let device = numbers.id;
        let busy = numbers.busy_ns as f64 / 1e9;
        text.sample("ripieno_device_busy_seconds_total", &format!("device=\"{device}\""), busy);
    }
    for (name, help, of) in DEVICE_COUNTERS {
        text.family(name, "counter", help);
        devices.iter().for_each(|numbers| text.sample(name, &format!("device=\"{}\"", numbers.id), of(numbers)));
    }
    let help = "Time of a device by what it did for its batches: gather, compute, scatter.";
    text.family("ripieno_device_seconds_total", "counter", help);
    for numbers in &devices {
        let device = numbers.id;
        let PhaseTimes { gather_ns, compute_ns, scatter_ns } = numbers.spent;
        for (part, ns) in [("gather", gather_ns), ("compute", compute_ns), ("scatter", scatter_ns)] {
            let labels = format!("device=\"{device}\",part=\"{part}\"");
            text.sample("ripieno_device_seconds_total", &labels, ns as f64 / 1e9);
        }
    }
}

fn scheduler(text: &mut MetricsText, state: &ServerState) {
    let SchedulerSnapshot { turns, busy_ns } = state.backend.scheduler();
    text.family(
        "ripieno_scheduler_turns_total",
        "counter",
        "Turns of the scheduler in which there was something to do.",
    );
    let _ = writeln!(text.0, "ripieno_scheduler_turns_total {turns}");
    text.family("ripieno_scheduler_busy_seconds_total", "counter", "Time of these turns.");
    let _ = writeln!(text.0, "ripieno_scheduler_busy_seconds_total {}", busy_ns as f64 / 1e9);
}

/// Writes the share of bad requests, and once they are known the signals for autoscalers. Only the
/// process that decides knows the latter: a placeholder would scale the devices down.
fn signals(text: &mut MetricsText, state: &ServerState) {
    let reading = state.reading();
    let help = "Requests not answered by their deadline, over all that ended in the last seconds.";
    text.family("ripieno_bad_ratio", "gauge", help);
    text.plain("ripieno_bad_ratio", reading.map_or(0.0, |reading| reading.not_in_time()));
    if let Some(reading) = reading.filter(|_| state.backend.is_primary()) {
        advice(text, reading, &state.config.scaling);
    }
}

fn advice(text: &mut MetricsText, reading: Reading, rule: &ScalingRule) {
    let mut gauge = |name: &str, help: &str, value: &dyn std::fmt::Display| {
        text.family(name, "gauge", help);
        let _ = writeln!(text.0, "{name} {value}");
    };
    gauge("ripieno_devices", "Mean number of devices in the last seconds.", &reading.devices);
    gauge("ripieno_idle_ratio", "The part of the devices' last seconds without a task.", &reading.idle_fraction);
    let help = "Devices that the answered requests of the last seconds would keep busy in the best batches.";
    gauge("ripieno_needed_devices", help, &reading.best_busy);
    let help = "Devices that the load of the last seconds needs under the objective; what to scale to.";
    gauge("ripieno_desired_devices", help, &rule.desired(&reading));
}

/// A counter's name, help and source.
type Counter = (&'static str, &'static str, fn(&ModelSnapshot) -> u64);

fn triton(text: &mut MetricsText, rows: &[ModelRow]) {
    const COUNTERS: [Counter; 6] = [
        ("nv_inference_request_success", "Requests answered.", |model| model.success.count),
        ("nv_inference_count", "Rows answered.", |model| model.rows),
        ("nv_inference_exec_count", "Batches executed.", |model| model.batches),
        ("nv_inference_request_duration_us", "Time in the server, in sum.", |model| model.success.ns / 1000),
        ("nv_inference_queue_duration_us", "Time in the queue, in sum.", |model| model.queue.ns / 1000),
        ("nv_inference_compute_infer_duration_us", "Time executing, in sum.", |model| model.compute.ns / 1000),
    ];
    for (name, help, value) in COUNTERS {
        text.family(name, "counter", help);
        for row in rows {
            text.sample(name, &row.labels, value(&row.model));
        }
    }
    let (input, output) = ("nv_inference_compute_input_duration_us", "nv_inference_compute_output_duration_us");
    let help = "Time decoding and checking requests, in sum.";
    text.per_model(&Metric::counter(input, help), rows, |row| row.entry.stats.decoding.ns() / 1000);
    text.per_model(&Metric::counter(output, "Time encoding answers, in sum."), rows, |row| {
        row.entry.stats.encoding.ns() / 1000
    });
    text.family("nv_inference_request_failure", "counter", "Requests that failed, by reason.");
    for row in rows {
        for reason in TRITON_REASONS {
            let of_reason = row.model.requests.iter().filter(|(ending, _)| triton_reason(*ending) == Some(reason));
            let of_server = if reason == "OTHER" { undelivered(row) } else { 0 };
            let count: u64 = of_reason.map(|(_, count)| count).sum::<u64>() + of_server;
            text.sample("nv_inference_request_failure", &format!("{},reason=\"{reason}\"", row.labels), count);
        }
    }
    text.per_model(
        &Metric::gauge("nv_inference_pending_request_count", "Requests that wait for their first batch."),
        rows,
        |row| row.model.waiting,
    );
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_gauges() {
        let mut text = MetricsText(String::new());
        advice(&mut text, Reading::new(4.0, 0.5, 0.0), &ScalingRule::PAPER);
        let samples: Vec<_> = text.0.lines().filter(|line| !line.starts_with('#')).collect();
        let expected =
            ["ripieno_devices 4", "ripieno_idle_ratio 0", "ripieno_needed_devices 4", "ripieno_desired_devices 8"];
        assert_eq!(samples, expected);
    }
}
