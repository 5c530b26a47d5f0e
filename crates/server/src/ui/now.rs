//! The view *Now*: is it healthy, and if not, what is wrong and what to change.

use super::causes::{self, CauseCount};
use super::format::{self, count, percent, rate};
use super::parts::nothing;
use super::samples::{DeviceView, ModelView, TRACE_S, WINDOW_S};
use super::verdict;
use super::view::View;
use crate::problem::in_words;
use crate::state::ServerState;
use maud::{Markup, PreEscaped, html};
use ripieno_base::Nanos;
use ripieno_report::chart::sparkline;
use ripieno_repository::registry::{ModelRegistry, UNLOADED};
use ripieno_runtime::history::History;
use ripieno_runtime::{DeviceState, Ending};
use std::collections::BTreeMap;

/// Number of outcomes that a row names.
const MOST_ENDS: usize = 2;

pub(super) fn render(state: &ServerState) -> Markup {
    let (mut models, devices) = {
        let samples = state.ui.samples.lock();
        (samples.models(), samples.devices())
    };
    let seen = state.ui.watch.view(state.backend.flight(), |history| (causes::totals(history), latencies(history)));
    let (causes, latencies) = seen.unwrap_or_default();
    for model in &mut models {
        // The flight recorder has each latency, where /metrics has buckets only.
        if let Some((p50, p99)) = latencies.get(&model.entry.name) {
            (model.p50_ms, model.p99_ms) = (Some(*p50), Some(*p99));
        }
    }
    // Models that need an operator come first, idle models last.
    models.sort_by(|a, b| {
        let place = |model: &ModelView| (model.share.is_none(), model.share.unwrap_or(1.0));
        place(a).partial_cmp(&place(b)).unwrap_or(std::cmp::Ordering::Equal)
    });
    html! {
        (verdict::banner(&models, &verdict::problems(state, &models, &causes)))
        h1 { "Now" span.aside { "the last ten seconds" } }
        @if !state.backend.is_primary() {
            (nothing("This process decides nothing: models and devices are on the page of the primary scheduler."))
        } @else if models.is_empty() {
            (nothing("No model serves yet."))
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Models" {
                table.models {
                    thead { tr {
                        th scope="col" { "Model" }
                        th.number scope="col" { "Requests" }
                        th.number scope="col" { "In time" }
                        th.number scope="col" { "p50" }
                        th.number scope="col" { "p99" }
                        th.number scope="col" { "SLO" }
                        th.number scope="col" { "Mean batch" }
                        th scope="col" { "Ten minutes" }
                        th scope="col" { "Not in time" }
                    } }
                    tbody { @for model in &models { (row(model, verdict::load(state, model))) } }
                }
            }
        }
        (failed_loads(&state.registry))
        (why(state, &causes))
        @if state.backend.is_primary() { (devices_list(&devices)) }
    }
}

/// The models that do not serve what their files hold, and why.
fn failed_loads(registry: &ModelRegistry) -> Markup {
    let rows = registry.index();
    let failed: Vec<_> = rows.iter().filter(|row| !row.reason.is_empty() && row.reason != UNLOADED).collect();
    html! {
        @if !failed.is_empty() {
            h2 { "Loads that failed" span.aside { (registry.failures()) " since the start" } }
            ul.failures {
                @for row in failed {
                    li {
                        strong { (row.name) @if !row.version.is_empty() { " " (row.version) } }
                        " " span.bad { (row.reason) }
                    }
                }
            }
        }
    }
}

fn devices_list(devices: &[DeviceView]) -> Markup {
    html! {
        h2 { "Devices" }
        @if devices.is_empty() {
            (nothing("No device is there."))
        } @else {
            ul.devices {
                @for view in devices {
                    @let busy = (view.busy * 100.0).round();
                    li {
                        span.name { "Device " (view.device.id) }
                        span.state.bad[view.device.state != DeviceState::Serving] { (view.device.state.name()) }
                        meter min="0" max="100" value=(busy) aria-label={ "Busy share of device " (view.device.id) } { (busy) " %" }
                        span.value { (percent(view.busy)) " busy" }
                        span.note { (rate(view.batches)) " batches" }
                        @if view.device.percent != 100 && view.device.percent != 0 {
                            span.note.bad { (view.device.percent) " % of the profiled latency" }
                        }
                    }
                }
            }
        }
    }
}

/// Median and 99th percentile of the latencies in milliseconds of the window's answers, by model.
pub(super) fn latencies(history: &History) -> BTreeMap<String, (f64, f64)> {
    let since = history.now() - Nanos::from_millis(1_000) * WINDOW_S as i64;
    let mut each: BTreeMap<usize, Vec<Nanos>> = BTreeMap::new();
    for call in history.calls() {
        if let Some((ended, Ending::Ok | Ending::Late)) = call.ended
            && ended >= since
        {
            each.entry(call.model).or_default().push(ended - call.arrived);
        }
    }
    let quantiles = |(model, mut all): (usize, Vec<Nanos>)| {
        all.sort_unstable();
        let at = |share: f64| all[((all.len() as f64 * share) as usize).min(all.len() - 1)].as_millis_f64();
        (history.models()[model].model.name.clone(), (at(0.5), at(0.99)))
    };
    each.into_iter().map(quantiles).collect()
}

fn row(model: &ModelView, load: Option<(f64, f64)>) -> Markup {
    let entry = &model.entry;
    let healthy = model.share.is_none_or(|share| share >= verdict::HEALTHY);
    let slo_ms = entry.slo.span.as_millis_f64();
    let over = model.p99_ms.is_some_and(|p99| p99 > slo_ms);
    let number = |value: Option<f64>| value.map_or("–".to_owned(), format::ms);
    let mut ends: Vec<&(Ending, u64)> = model.bad.iter().collect();
    ends.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let (worst, others) = ends.split_at(ends.len().min(MOST_ENDS));
    let rest: u64 = others.iter().map(|(_, number)| number).sum();
    let (all, bad): (Vec<f64>, Vec<f64>) = model.trace.iter().copied().unzip();
    let (total, worse): (f64, f64) = (all.iter().sum(), bad.iter().sum());
    html! {
        tr {
            th scope="row" {
                a href=(View::Model(entry.name.clone(), entry.version.clone()).path()) { (entry.name) }
                span.note { " v" (entry.version) }
            }
            td.number {
                (rate(model.rate))
                @if let Some((offered, can)) = load {
                    span.note.bad[offered > can] { " can do " (rate(can)) }
                }
            }
            td.number.bad[!healthy] data-label="in time" { (model.share.map_or("–".to_owned(), percent)) }
            td.number data-label="p50" { (number(model.p50_ms)) }
            td.number.bad[over] data-label="p99" { (number(model.p99_ms)) }
            td.number data-label="SLO" { (format::ms(slo_ms)) }
            td.number data-label="batch" { (model.mean_batch.map_or("–".to_owned(), |rows| format!("{rows:.1}"))) }
            td.spark {
                span.svg role="img" aria-label=(format!(
                    "{} requests in {} seconds, {} of them not in time", count(total as u64), model.trace.len().min(TRACE_S), count(worse as u64)
                )) { (PreEscaped(sparkline(&pad(all), &pad(bad), (160, 28)))) }
            }
            td.ends {
                @for (ending, number) in worst { span.tag.bad { (in_words(*ending)) " " (count(*number)) } " " }
                @if worst.is_empty() { span.note { "none" } }
                @if rest > 0 { span.note { "and " (count(rest)) " more" } }
            }
        }
    }
}

/// Puts zeros before a trace, so that time runs equally in all of them.
fn pad(trace: Vec<f64>) -> Vec<f64> {
    let mut padded = vec![0.0; TRACE_S.saturating_sub(trace.len())];
    padded.extend(trace);
    // A point for every four seconds is as much as its width shows.
    padded.chunks(4).map(|four| four.iter().copied().fold(0.0, f64::max)).collect()
}

/// The causes of what was not in time.
fn why(state: &ServerState, causes: &[CauseCount]) -> Markup {
    html! {
        @if !causes.is_empty() {
            h2 { "Why" span.aside { "the last twenty seconds" } }
            (causes::table(state, causes))
        }
    }
}
