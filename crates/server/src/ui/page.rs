//! The frame around every view.

use super::render::live;
use super::trial::{self, Trial};
use super::view::{RequestFilter, View};
use crate::state::ServerState;
use maud::{DOCTYPE, Markup, html};

/// Renders a whole page, and of a model the form to try it.
pub(super) fn whole(state: &ServerState, view: &View, trial: Option<&Trial>) -> Markup {
    let places = [
        ("Now", View::Now, matches!(view, View::Now | View::Model(..))),
        (
            "Devices",
            View::parse("/devices", "").unwrap_or(View::Now),
            matches!(view, View::Devices(_) | View::Task(..)),
        ),
        (
            "Requests",
            View::Requests(RequestFilter::default()),
            matches!(view, View::Requests(_) | View::Request(_) | View::Search(_)),
        ),
    ];
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(view))
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    span.brand { "ripieno" }
                    nav aria-label="Views" {
                        @for (name, place, here) in &places {
                            a href=(place.path()) aria-current=[here.then_some("page")] { (name) }
                        }
                    }
                    @if view.live_path().is_some() {
                        button #pause type="button" hidden aria-pressed="false" title="Key: p" { "Pause" }
                    }
                }
                main #main tabindex="-1" {
                    div #live data-live=[view.live_path()] { (live(view, state)) }
                    @if let View::Model(name, version) = view { (trial::form(state, name, version, trial)) }
                    section #detail aria-live="polite" {}
                }
                footer {
                    "Ripieno " (env!("CARGO_PKG_VERSION"))
                    @for part in [&state.config.build.commit, &state.config.build.engine, &state.config.server_name] {
                        @if !part.is_empty() { " · " (part) }
                    }
                    " · the counters of /metrics, and the last minutes of the flight recorder"
                }
            }
        }
    }
}

fn head(view: &View) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (view.title()) " · Ripieno" }
            link rel="icon" href="data:,";
            link rel="stylesheet" href="/ui/style.css";
            script src="/ui/script.js" defer {}
        }
    }
}
