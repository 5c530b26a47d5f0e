//! The view *Devices*: what runs where, and a batch with its members.

use super::format;
use super::parts::nothing;
use super::timeline::{Timeline, around};
use super::view::{SPANS, View};
use super::watch::search;
use crate::problem::in_words;
use crate::state::ServerState;
use maud::{Markup, html};
use ripieno_base::{Nanos, Time};
use ripieno_runtime::history::{CallRecord, History, TaskRecord};

/// Number of the latest batches that the table shows.
const LISTED: usize = 12;
/// Largest number of members that are listed.
const MOST_MEMBERS: usize = 100;

pub(super) fn render(state: &ServerState, span: usize) -> Markup {
    let drawn = state.ui.watch.view(state.backend.flight(), |history| {
        // Batches are reported at their end: the newest instant is the last entry's.
        let to = history.now();
        let timeline = Timeline { history, from: to - SPANS[span].1, to, call: None, moments: Vec::new() };
        html! {
            (timeline.render())
            (latest(history))
        }
    });
    html! {
        @let (name, unit) = (SPANS[span].0, if SPANS[span].0 == "1" { "second" } else { "seconds" });
        h1 { "Devices" span.aside { "the last " (name) " " (unit) } }
        nav.spans aria-label="Span of the timeline" {
            span { "Zoom" }
            @for (at, (name, _)) in SPANS.iter().enumerate() {
                a href=(View::Devices(at).path()) aria-current=[(at == span).then_some("true")] { (name) " s" }
            }
        }
        @match drawn {
            Some(drawn) => (drawn),
            None => (no_recorder()),
        }
    }
}

/// The remark of a server without a flight recorder.
pub(super) fn no_recorder() -> Markup {
    nothing(
        "This server keeps no flight recorder, so there is no history to show: start `ripieno serve` with --flight-mib above 0.",
    )
}

fn latest(history: &History) -> Markup {
    let ended = || history.tasks().rev().filter(|task| task.outcome.is_some());
    html! {
        details {
            summary { "The latest batches as a table" }
            div.scroll tabindex="0" role="region" aria-label="The latest batches" {
                table {
                    thead { tr {
                        th scope="col" { "Model" } th.number scope="col" { "Device" } th.number scope="col" { "Rows" }
                        th.number scope="col" { "Took" } th.number scope="col" { "Profile" } th scope="col" { "Outcome" }
                    } }
                    tbody { @for task in ended().take(LISTED) {
                        tr {
                            th scope="row" { a href=(View::Task(task.decided, task.device.0).path()) data-detail="" { (name(history, task)) } }
                            td.number data-label="device" { (task.device.0) }
                            td.number data-label="rows" { (task.rows) }
                            td.number data-label="took" { (format::span(task.took())) }
                            td.number data-label="profile" { (format::span(task.profiled)) }
                            td { (outcome(task)) }
                        }
                    } }
                }
            }
        }
    }
}

fn name(history: &History, task: &TaskRecord) -> String {
    let model = &history.models()[task.model].model;
    match model.blocks.get(task.block.index()).filter(|_| model.blocks.len() > 1) {
        Some(block) => format!("{} · {}", model.name, block.name),
        None => model.name.clone(),
    }
}

fn outcome(task: &TaskRecord) -> String {
    let again = if task.rerun { ", run again in parts" } else { "" };
    task.outcome.map_or("runs".to_owned(), |outcome| format!("{outcome:?}{again}").to_lowercase())
}

/// Renders a batch: what it was, and its members with their deadlines.
pub(super) fn render_task(state: &ServerState, decided: Time, device: u16) -> Markup {
    let is_it = |task: &&TaskRecord| task.decided == decided && task.device.0 == device;
    let show = |history: &History| {
        history.tasks().find(is_it).filter(|t| t.outcome.is_some()).map(|task| batch(history, task))
    };
    if let Some(Some(shown)) = state.ui.watch.view(state.backend.flight(), show) {
        return shown;
    }
    let Some(flight) = state.backend.flight() else { return no_recorder() };
    let done = |history: &History| history.now() > decided + Nanos::from_millis(5_000);
    let history = search(&flight, decided - Nanos::from_millis(5_000), Nanos::from_millis(20_000), done);
    match history.tasks().find(is_it) {
        Some(task) => batch(&history, task),
        None => nothing("This batch is not in the flight recorder any more."),
    }
}

fn batch(history: &History, task: &TaskRecord) -> Markup {
    let calls: Vec<&CallRecord> = task.calls.iter().filter_map(|&call| history.call(call)).collect();
    let (from, to) = around(task.decided.min(task.started), task.finished.unwrap_or(history.now()));
    let timeline =
        Timeline { history, from, to, call: task.calls.first().copied(), moments: vec![(task.decided, "decided")] };
    html! {
        h2 { "Batch of " (name(history, task)) }
        p { (format::counted(task.rows.into(), "row")) " of " (format::counted(calls.len() as u64, "request")) " on device " (task.device.0) ": decided, then begun after "
            (format::span(task.started - task.decided)) ", ran " (format::span(task.took()))
            " (profile: " (format::span(task.profiled)) "), " (outcome(task)) "." }
        (timeline.render())
        div.scroll tabindex="0" role="region" aria-label="Members of the batch" {
            table {
                thead { tr {
                    th scope="col" { "Arrived" } th scope="col" { "Joined" } th.number scope="col" { "Rows" }
                    th.number scope="col" { "Waited" } th.number scope="col" { "Slack" } th scope="col" { "End" }
                } }
                tbody { @for call in calls.iter().take(MOST_MEMBERS) { (member(task, call)) } }
            }
        }
        @if calls.len() > MOST_MEMBERS { p.note { "and " (calls.len() - MOST_MEMBERS) " more" } }
    }
}

fn member(task: &TaskRecord, call: &CallRecord) -> Markup {
    let at = call.tasks.iter().position(|&number| number == task.number).unwrap_or(0);
    let last = call.tasks.last() == Some(&task.number);
    let joined = match (at, last) {
        (0, true) => "for this batch alone".to_owned(),
        (0, false) => format!("here, and stayed for {} more", call.tasks.len() - 1),
        (_, true) => format!("earlier, and left here after {} batches", call.tasks.len()),
        (at, false) => format!("earlier: its batch {} of {}", at + 1, call.tasks.len()),
    };
    html! {
        tr {
            th scope="row" { a href=(View::Request(call.arrived).path()) { (format::span(task.decided - call.arrived)) " before" } }
            td { (joined) }
            td.number data-label="rows" { (call.rows) }
            td.number data-label="waited" { (format::span(task.started - call.arrived)) }
            td.number data-label="slack" { (format::span(call.deadline - task.started)) }
            td { (call.ended.map_or("lives", |(_, ending)| in_words(ending))) }
        }
    }
}
