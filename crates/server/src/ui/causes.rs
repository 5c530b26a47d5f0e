//! Causes for requests that were late, refused or failed, as `ripieno why` finds them.

use super::format::count;
use super::view::View;
use crate::state::ServerState;
use maud::{Markup, html};
use ripieno_base::Time;
use ripieno_runtime::history::History;
use ripieno_runtime::history::causes::{Cause, Explained, Explainer};
use std::collections::BTreeMap;

/// Number of requests with one cause.
#[derive(Clone, Debug)]
pub(super) struct CauseCount {
    pub(super) cause: Cause,
    /// Name of the model.
    pub(super) model: String,
    pub(super) count: u64,
    /// The latest of them, if it reached the scheduler, and its evidence.
    pub(super) example: Option<Time>,
    pub(super) detail: String,
}

/// Counts the causes in a history, the most frequent first.
pub(super) fn totals(history: &History) -> Vec<CauseCount> {
    let mut each: BTreeMap<(Cause, usize), (u64, Option<Explained>)> = BTreeMap::new();
    for explained in Explainer::new(history).all() {
        let (count, latest) = each.entry((explained.cause, explained.model)).or_default();
        *count += 1;
        *latest = Some(explained);
    }
    let total = |((cause, model), (count, latest)): ((Cause, usize), (u64, Option<Explained>))| CauseCount {
        cause,
        model: history.models()[model].model.name.clone(),
        count,
        example: latest.as_ref().filter(|latest| latest.call.is_some()).map(|latest| latest.arrived),
        detail: latest.map_or(String::new(), |latest| latest.detail),
    };
    let mut totals: Vec<_> = each.into_iter().map(total).collect();
    totals.sort_by_key(|total| std::cmp::Reverse(total.count));
    totals
}

/// Returns evidence with the name of the client that it begins with, as far as it is known.
pub(super) fn with_client(state: &ServerState, detail: &str) -> String {
    let named = || {
        let (number, rest) = detail.strip_prefix("client ")?.split_once(' ')?;
        let name = state.access.client_name(number.parse().ok()?)?;
        Some(format!("client {name} {rest}"))
    };
    named().unwrap_or_else(|| detail.to_owned())
}

pub(super) fn table(state: &ServerState, causes: &[CauseCount]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Causes" {
            table.causes {
                thead { tr {
                    th scope="col" { "Cause" }
                    th scope="col" { "Model" }
                    th.number scope="col" { "Requests" }
                    th scope="col" { "The latest" }
                    th scope="col" { "Change" }
                } }
                tbody {
                    @for each in causes {
                        tr {
                            th scope="row" { (each.cause.name()) }
                            td { (each.model) }
                            td.number data-label="requests" { (count(each.count)) }
                            td.wide {
                                @match each.example {
                                    Some(at) => a href=(View::Request(at).path()) { (with_client(state, &each.detail)) },
                                    None => (with_client(state, &each.detail)),
                                }
                            }
                            td.wide { (each.cause.change()) }
                        }
                    }
                }
            }
        }
    }
}
