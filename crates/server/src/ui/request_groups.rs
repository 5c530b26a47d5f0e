//! The view *Requests*: late, refused and failed requests grouped by cause, model and end, and the
//! latest of a group.
//!
//! Under overload hundreds of requests a second share one cause. So groups stand first, and a link
//! of each word narrows them; a filter lists the requests that pass it.

use super::causes::with_client;
use super::devices::no_recorder;
use super::format::{self, count};
use super::parts::nothing;
use super::request::form;
use super::view::{RequestFilter, View};
use crate::problem::in_words;
use crate::state::ServerState;
use maud::{Markup, html};
use ripieno_runtime::Ending;
use ripieno_runtime::history::History;
use ripieno_runtime::history::causes::{Cause, Explained, Explainer};
use std::collections::BTreeMap;

/// Number of listed requests.
const LISTED: usize = 30;

/// Requests with one cause, model and end.
struct RequestGroup<'a> {
    cause: Cause,
    model: &'a str,
    ending: Ending,
    count: u64,
    latest: &'a Explained,
}

pub(super) fn render(state: &ServerState, filter: &RequestFilter) -> Markup {
    let listed = state.ui.watch.view(state.backend.flight(), |history| {
        let mut late: Vec<Explained> = Explainer::new(history).all();
        late.retain(|each| passes(history, each, filter));
        html! {
            @if late.is_empty() {
                (nothing("No such request in the last twenty seconds: each was answered in time."))
            } @else {
                (table(state, history, &groups(history, &late), filter))
                @if !filter.is_open() { (list(state, history, &late)) }
            }
        }
    });
    html! {
        h1 { "Requests" span.aside { "late, refused or failed in the last twenty seconds" } }
        (form(""))
        (chosen(filter))
        (listed.unwrap_or_else(no_recorder))
    }
}

/// Returns the name of a cause in addresses and JSON.
fn key(cause: Cause) -> String {
    serde_json::to_value(cause).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

fn passes(history: &History, each: &Explained, filter: &RequestFilter) -> bool {
    let is = |wanted: &Option<String>, own: &str| wanted.as_deref().is_none_or(|wanted| wanted == own);
    is(&filter.cause, &key(each.cause))
        && is(&filter.model, &history.models()[each.model].model.name)
        && is(&filter.end, each.ending.name())
}

/// Returns the groups, the largest first.
fn groups<'a>(history: &'a History, late: &'a [Explained]) -> Vec<RequestGroup<'a>> {
    let mut each: BTreeMap<(Cause, usize, &str), RequestGroup<'a>> = BTreeMap::new();
    for one in late {
        let model = &history.models()[one.model].model.name;
        let (cause, ending) = (one.cause, one.ending);
        let group = each.entry((cause, one.model, ending.name())).or_insert(RequestGroup {
            cause,
            model,
            ending,
            count: 0,
            latest: one,
        });
        group.count += 1;
        if one.arrived >= group.latest.arrived {
            group.latest = one;
        }
    }
    let mut groups: Vec<_> = each.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}

/// Shows the filter, with a link that takes each part away.
fn chosen(filter: &RequestFilter) -> Markup {
    let without = |change: fn(&mut RequestFilter)| {
        let mut wider = filter.clone();
        change(&mut wider);
        View::Requests(wider).path()
    };
    let parts = [
        (&filter.cause, without(|filter| filter.cause = None)),
        (&filter.model, without(|filter| filter.model = None)),
        (&filter.end, without(|filter| filter.end = None)),
    ];
    html! {
        @if !filter.is_open() {
            p.spans {
                "Only "
                @for (part, wider) in &parts {
                    @if let Some(part) = part { a href=(wider) aria-label={ "Without " (part) } { (part) " ×" } }
                }
            }
        }
    }
}

fn table(state: &ServerState, history: &History, groups: &[RequestGroup<'_>], filter: &RequestFilter) -> Markup {
    let narrowed = |change: &dyn Fn(&mut RequestFilter)| {
        let mut narrow = filter.clone();
        change(&mut narrow);
        View::Requests(narrow).path()
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Groups of requests" {
            table.causes {
                thead { tr {
                    th.number scope="col" { "Requests" } th scope="col" { "Cause" } th scope="col" { "Model" }
                    th scope="col" { "End" } th scope="col" { "The latest" } th scope="col" { "Evidence" }
                } }
                tbody { @for group in groups {
                    tr {
                        td.number data-label="requests" { (count(group.count)) }
                        th scope="row" {
                            a href=(narrowed(&|filter| filter.cause = Some(key(group.cause)))) { (group.cause.name()) }
                        }
                        td { a href=(narrowed(&|filter| filter.model = Some(group.model.to_owned()))) { (group.model) } }
                        td {
                            a href=(narrowed(&|filter| filter.end = Some(group.ending.name().to_owned()))) {
                                span.tag.bad { (in_words(group.ending)) }
                            }
                        }
                        td.time { (time(history, group.latest)) }
                        td.wide { (with_client(state, &group.latest.detail)) }
                    }
                } }
            }
        }
    }
}

/// Lists the latest requests.
fn list(state: &ServerState, history: &History, late: &[Explained]) -> Markup {
    html! {
        h2 { "The latest" span.aside { (count(late.len() as u64)) " in all" } }
        div.scroll tabindex="0" role="region" aria-label="Late requests" {
            table.causes {
                thead { tr {
                    th scope="col" { "Arrived" } th scope="col" { "Model" } th scope="col" { "End" }
                    th.number scope="col" { "After" } th scope="col" { "Cause" } th scope="col" { "Evidence" }
                } }
                tbody { @for each in late.iter().rev().take(LISTED) {
                    tr {
                        th.time scope="row" { (time(history, each)) }
                        td { (history.models()[each.model].model.name) }
                        td { span.tag.bad { (in_words(each.ending)) } }
                        td.number data-label="after" { (format::span(each.ended - each.arrived)) }
                        td { (each.cause.name()) }
                        td.wide { (with_client(state, &each.detail)) }
                    }
                } }
            }
        }
    }
}

/// The time of an arrival by the clock, as a link to the request.
fn time(history: &History, each: &Explained) -> Markup {
    let clock = format::clock(history.now() - each.arrived);
    html! {
        @if each.call.is_some() { a href=(View::Request(each.arrived).path()) { (clock) } } @else { (clock) }
    }
}
