//! The view of a model: profile and batches as measured now, latencies against the SLO, queue,
//! outcomes and their causes.

use super::causes;
use super::format::{self, count, percent, rate};
use super::now;
use super::parts::{chart, figure, nothing};
use super::samples::{ModelView, is_bad};
use super::verdict::HEALTHY;
use super::watch::SPAN;
use crate::problem::in_words;
use crate::state::ServerState;
use maud::{Markup, html};
use ripieno_base::{Nanos, Time};
use ripieno_report::chart::{Chart, ChartAxis, ChartMark, Tone};
use ripieno_runtime::Ending;
use ripieno_runtime::history::History;

/// Size of a chart in pixels.
const SIZE: (u32, u32) = (560, 300);
/// Number of bars of the latency distribution.
const BARS: usize = 40;
/// Number of points of the queue's curve.
const POINTS: usize = 100;

pub(super) fn render(state: &ServerState, name: &str, version: &str) -> Markup {
    let mut models = state.ui.samples.lock().models();
    let found = models
        .iter_mut()
        .find(|model| model.entry.name == name && (version.is_empty() || model.entry.version == version));
    let Some(model) = found else {
        return html! { h1 { (name) } (nothing("No model of this name and version serves.")) };
    };
    let exact = state.ui.watch.view(state.backend.flight(), now::latencies);
    if let Some((p50, p99)) = exact.as_ref().and_then(|each| each.get(name)) {
        (model.p50_ms, model.p99_ms) = (Some(*p50), Some(*p99));
    }
    let model = &*model;
    let drawn = state.ui.watch.view(state.backend.flight(), |history| {
        html! {
            div.charts { (profile(history, model)) (sizes(model)) (latencies(history, model)) (queue(history, model)) }
            @let causes: Vec<_> = causes::totals(history).into_iter().filter(|cause| cause.model == *name).collect();
            @if !causes.is_empty() { h2 { "Why" span.aside { "the last twenty seconds" } } (causes::table(state, &causes)) }
        }
    });
    let number = |value: Option<f64>| value.map_or("–".to_owned(), format::ms);
    let findings = model.entry.id.map(|id| state.backend.batch_findings(id)).unwrap_or_default();
    let slo_ms = model.entry.slo.span.as_millis_f64();
    html! {
        h1 { (model.entry.name) span.aside { "version " (model.entry.version) ", the last ten seconds" } }
        dl.figures {
            (figure("Requests", rate(model.rate), ""))
            (figure("In time", html! { span.bad[model.share.is_some_and(|share| share < HEALTHY)] { (model.share.map_or("–".to_owned(), percent)) } }, ""))
            (figure("Median latency", number(model.p50_ms), ""))
            (figure("p99 latency", number(model.p99_ms), format!("SLO {}", format::ms(slo_ms))))
            (figure("Mean batch", model.mean_batch.map_or("–".to_owned(), |rows| format!("{rows:.1}")), format!("at most {}", model.entry.max_batch)))
            (figure("Waiting now", count(model.now.waiting as u64), format!("{} run", model.now.live.saturating_sub(model.now.waiting))))
        }
        @if let Some(why) = findings.stopped {
            p.bad { "Each request runs alone: " (why) }
        }
        @match drawn {
            Some(drawn) => (drawn),
            None => { div.charts { (sizes(model)) } },
        }
        h2 { "Outcomes" span.aside { "since the start, as in /metrics" } }
        div.scroll tabindex="0" role="region" aria-label="Outcomes" {
            table.outcomes {
                thead { tr { th scope="col" { "Outcome" } th.number scope="col" { "Requests" } th.number scope="col" { "In ten seconds" } } }
                tbody {
                    @for (ending, total) in model.now.requests.iter().filter(|(_, total)| *total > 0) {
                        @let bad = || model.bad.iter().find(|(other, _)| other == ending).map_or(0, |(_, count)| *count);
                        @let recent = match ending {
                            Ending::Ok => Some(model.good),
                            ending => is_bad(*ending).then(bad),
                        };
                        tr {
                            th scope="row" { (in_words(*ending)) }
                            td.number { (count(*total)) }
                            td.number { (recent.map_or("–".to_owned(), count)) }
                        }
                    }
                }
            }
        }
    }
}

/// The profile ℓ(b) of the first block, with the mean durations of the batches of the last seconds.
fn profile(history: &History, model: &ModelView) -> Markup {
    let Some(record) = history.model_named(&model.entry.name).map(|at| &history.models()[at].model) else {
        return html! {};
    };
    let block = &record.blocks[0];
    let most = block.max_batch().min(record.max_batch.max(1)).max(1);
    let table: Vec<(f64, f64)> =
        (1..=most).map(|rows| (rows as f64, block.profile.latency(rows).as_millis_f64())).collect();
    // A batch of another block has another profile.
    let measured: Vec<(f64, f64)> = match record.blocks.len() {
        1 => model.by_batch.iter().map(|&(rows, _, took)| (rows as f64, took)).collect(),
        _ => Vec::new(),
    };
    let top = table.iter().chain(&measured).map(|(_, y)| *y).fold(0.0, f64::max);
    let words = format!(
        "Latency by batch size: {} for one row, {} for {most}; measured now: {}",
        format::ms(table[0].1),
        format::ms(table[most - 1].1),
        measured.iter().map(|(rows, took)| format!("{rows} rows {}", format::ms(*took))).collect::<Vec<_>>().join(", ")
    );
    let marks = vec![ChartMark::Line(Tone::Main, table), ChartMark::Points(Tone::Bad, measured)];
    let (x, y) = (ChartAxis::new("rows in a batch", most as f64 * 1.05), ChartAxis::new("ms", top * 1.15));
    chart("Profile (line) and batches now (points)", &words, Chart { x, y, marks, size: SIZE }.svg())
}

fn sizes(model: &ModelView) -> Markup {
    let bars: Vec<(f64, f64)> = model.by_batch.iter().map(|&(rows, count, _)| (rows as f64, count as f64)).collect();
    let widest = bars.iter().map(|(rows, _)| *rows).fold(1.0, f64::max);
    let top = bars.iter().map(|(_, count)| *count).fold(1.0, f64::max);
    let words = format!(
        "Batches by their number of rows, in ten seconds; most often {}",
        model.by_batch.iter().max_by_key(|(_, count, _)| *count).map_or(0, |(rows, ..)| *rows)
    );
    let x = ChartAxis { label: "rows in a batch".to_owned(), from: 0.5, to: widest + 0.5 };
    let marks = vec![ChartMark::Bars(Tone::Main, 0.8, bars)];
    chart("Batch sizes", &words, Chart { x, y: ChartAxis::new("batches", top * 1.1), marks, size: SIZE }.svg())
}

/// The latencies of the answers in the history, with the SLO.
fn latencies(history: &History, model: &ModelView) -> Markup {
    let slo = model.entry.slo.span.as_millis_f64();
    let at = history.model_named(&model.entry.name);
    let answered = history.calls().filter(|call| Some(call.model) == at).filter_map(|call| {
        let (ended, ending) = call.ended?;
        matches!(ending, Ending::Ok | Ending::Late).then(|| (ended - call.arrived).as_millis_f64())
    });
    let all: Vec<f64> = answered.collect();
    let slowest = all.iter().copied().fold(0.0, f64::max);
    // The SLO is in sight if latencies are anywhere near it.
    let to = if slo < slowest * 4.0 { slowest.max(slo * 1.1) } else { slowest }.max(1e-3) * 1.02;
    let width = to / BARS as f64;
    let mut bars = vec![0.0; BARS];
    all.iter().for_each(|latency| bars[((latency / width) as usize).min(BARS - 1)] += 1.0);
    let top = bars.iter().copied().fold(1.0, f64::max);
    let bar = |late: bool| -> Vec<(f64, f64)> {
        let each = bars.iter().enumerate().map(|(at, count)| ((at as f64 + 0.5) * width, *count));
        each.filter(|(x, _)| (*x > slo) == late).collect()
    };
    let mut marks =
        vec![ChartMark::Bars(Tone::Main, width * 0.9, bar(false)), ChartMark::Bars(Tone::Bad, width * 0.9, bar(true))];
    if slo <= to {
        marks.push(ChartMark::LimitX(slo, "SLO".to_owned()));
    }
    let words = format!(
        "Latencies of {} answers, the slowest {}; the SLO is {}",
        all.len(),
        format::ms(slowest),
        format::ms(slo)
    );
    let (x, y) = (ChartAxis::new("latency in ms", to), ChartAxis::new("answers", top * 1.1));
    chart("Latency", &words, Chart { x, y, marks, size: SIZE }.svg())
}

/// The number of waiting requests over the last seconds.
fn queue(history: &History, model: &ModelView) -> Markup {
    let at = history.model_named(&model.entry.name);
    let (from, to) = ((history.now() - SPAN).max(history.from()), history.now());
    let step = Nanos(((to - from).0 / POINTS as i64).max(1));
    let mut change = vec![0.0; POINTS + 2];
    let place = |time: Time| (((time - from).0 / step.0).max(0) as usize).min(POINTS + 1);
    let mut slack = Nanos::MAX;
    for call in history.calls().filter(|call| Some(call.model) == at) {
        let first = call.tasks.first().and_then(|&task| history.task(task)).map(|task| task.started);
        let left = first.or(call.ended.map(|(ended, _)| ended));
        change[place(call.arrived)] += 1.0;
        if let Some(left) = left {
            change[place(left)] -= 1.0;
        } else {
            slack = slack.min(call.deadline - to);
        }
    }
    let mut waiting = 0.0;
    let points: Vec<(f64, f64)> = change
        .iter()
        .take(POINTS + 1)
        .enumerate()
        .map(|(at, change)| {
            waiting += change;
            (-(to - (from + step * at as i64)).as_secs_f64(), waiting)
        })
        .collect();
    let top = points.iter().map(|(_, y)| *y).fold(1.0, f64::max);
    let urgent =
        if slack < Nanos::MAX { format!("; the most urgent has {} left", format::span(slack)) } else { String::new() };
    let words = format!("Requests that wait for their first batch: {waiting:.0} now, at most {top:.0}{urgent}");
    let x = ChartAxis { label: "seconds".to_owned(), from: points.first().map_or(-1.0, |(x, _)| *x), to: 0.0 };
    let marks = vec![ChartMark::Line(Tone::Main, points)];
    chart(
        &format!("Queue{urgent}"),
        &words,
        Chart { x, y: ChartAxis::new("waiting", top * 1.15), marks, size: SIZE }.svg(),
    )
}
