//! The life of one request.

use super::causes::with_client;
use super::devices::no_recorder;
use super::format;
use super::parts::nothing;
use super::timeline::{Timeline, around};
use super::view::View;
use super::watch::search;
use crate::problem::in_words;
use crate::state::ServerState;
use maud::{Markup, html};
use ripieno_base::{Nanos, Time};
use ripieno_runtime::history::causes::Explainer;
use ripieno_runtime::history::{CallRecord, History};

/// Time before and after a request that its explanation needs.
const AROUND: Nanos = Nanos::from_millis(10_000);
/// Batches of a request that are listed.
const MOST_BATCHES: usize = 50;

/// The request to show.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// The one that arrived at this time.
    At(Time),
    /// The latest with this id of its client, and its hash.
    Tagged(String, u64),
}

pub(super) fn form(id: &str) -> Markup {
    html! {
        form.search action="/ui/requests" method="get" role="search" {
            label for="id" { "Find by the client's id" }
            input #id name="id" type="search" value=(id) autocomplete="off" spellcheck="false";
            button type="submit" { "Find" }
        }
    }
}

/// Renders the life of a request.
pub(super) fn render(state: &ServerState, wanted: &Wanted) -> Markup {
    let Some(flight) = state.backend.flight() else { return no_recorder() };
    let is_it = |call: &&CallRecord| match wanted {
        Wanted::At(at) => call.arrived == *at,
        Wanted::Tagged(_, tag) => call.tag == *tag,
    };
    // An id may come again: the search looks for its last request, which takes two readings.
    let at = match wanted {
        Wanted::At(at) => Some(*at),
        Wanted::Tagged(..) => {
            let mut last = None;
            let look = |history: &History| {
                last = history.calls().rev().take(512).find(is_it).map(|call| call.arrived).or(last);
                false
            };
            let rest = search(&flight, Time::ORIGIN, Nanos::from_millis(2_000), look);
            rest.calls().rev().find(is_it).map(|call| call.arrived).or(last)
        }
    };
    let shown = at.map(|at| {
        let done = |history: &History| history.now() > at + AROUND;
        let history = search(&flight, at - AROUND, AROUND * 4, done);
        let found =
            history.calls().find(|call| call.arrived == at && is_it(call)).map(|call| life(state, &history, call));
        found.unwrap_or_else(gone)
    });
    let id = if let Wanted::Tagged(id, _) = wanted { id.as_str() } else { "" };
    html! {
        h1 { "A request" }
        (form(id))
        (shown.unwrap_or_else(gone))
    }
}

fn gone() -> Markup {
    nothing(
        "No such request is in the flight recorder. It holds the last minutes; a client's id is the field \"id\" of its request.",
    )
}

fn life(state: &ServerState, history: &History, call: &CallRecord) -> Markup {
    let model = &history.models()[call.model].model;
    let explained = Explainer::new(history).explain(call);
    let first = call.tasks.first().and_then(|&task| history.task(task));
    let mut moments = vec![(call.arrived, "received")];
    moments.extend(first.map(|task| (task.started, "ran")));
    moments.extend(call.ended.map(|(ended, _)| (ended, "ended")));
    moments.push((call.deadline, "deadline"));
    let ended = call.ended.map_or(history.now(), |(ended, _)| ended);
    // A deadline far beyond a good answer would squeeze the life into a line.
    let far = explained.is_none() && call.deadline - call.arrived > (ended - call.arrived) * 8;
    let last = if far { ended } else { ended.max(call.deadline) };
    let (from, to) = around(call.arrived, last);
    moments.retain(|(at, _)| *at <= to);
    let timeline = Timeline { history, from, to, call: Some(call.number), moments };
    html! {
        p.health.bad[explained.is_some()] {
            span.dot aria-hidden="true" {}
            strong { (call.ended.map_or("lives", |(_, ending)| in_words(ending))) }
            @if let Some(explained) = &explained {
                span { (explained.cause.name()) ": " (with_client(state, &explained.detail)) ". To change: " (explained.cause.change()) "." }
            }
        }
        p { (model.name) ", " (call.rows) @if call.rows == 1 { " row" } @else { " rows" }
            @if call.extent.length > 1 { " of length " (call.extent.length) }
            @if call.client > 0 { ", client " (state.access.client_name(call.client).unwrap_or_else(|| call.client.to_string())) }
            @if call.priority > 0 { ", priority " (call.priority) }
            ", " (format::ago(history.now(), call.arrived)) }
        (timeline.render())
        h2 { "Its life" }
        (steps(history, call))
    }
}

fn steps(history: &History, call: &CallRecord) -> Markup {
    let since = |at: Time| format::span(at - call.arrived);
    let tasks = || call.tasks.iter().filter_map(|&task| history.task(task));
    html! {
        ol.life {
            li { span.time { (since(call.arrived)) } "received whole, and admitted to the queue" }
            li { span.time { (since(call.admitted)) } "seen by the scheduler" }
            @for (at, task) in tasks().take(MOST_BATCHES).enumerate() {
                @let block = history.models()[task.model].model.blocks.get(task.block.index()).map_or("", |block| &block.name);
                li {
                    span.time { (since(task.started)) }
                    @if at == 0 { "after waiting " (format::span(task.started - call.arrived)) ", " }
                    a href=(View::Task(task.decided, task.device.0).path()) { "ran " (block) " on device " (task.device.0) }
                    " with " (task.calls.len().saturating_sub(1)) " other requests: " (format::counted(task.rows.into(), "row")) ", " (format::span(task.took()))
                    @if task.rerun { ", run again in parts" }
                }
            }
            @if call.tasks.len() > MOST_BATCHES { li { "and " (call.tasks.len() - MOST_BATCHES) " more batches" } }
            @if let Some((ended, ending)) = call.ended {
                li { span.time { (since(ended)) } "ended: " (in_words(ending)) }
            }
            li { span.time { (since(call.deadline)) } "its deadline" }
        }
    }
}
