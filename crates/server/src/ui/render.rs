//! From a view to its changing part.

use super::request::Wanted;
use super::view::View;
use super::{devices, model, now, request, request_groups, verdict};
use crate::call::infer::tag_of;
use crate::state::ServerState;
use maud::{Markup, html};

/// Renders the changing part of a view.
pub(super) fn live(view: &View, state: &ServerState) -> Markup {
    let told = || verdict::troubles(&verdict::explained(state));
    match view {
        View::Now => now::render(state),
        View::Devices(span) => html! { (told()) (devices::render(state, *span)) },
        View::Task(at, device) => devices::render_task(state, *at, *device),
        View::Model(name, version) => html! { (told()) (model::render(state, name, version)) },
        View::Requests(filter) => html! { (told()) (request_groups::render(state, filter)) },
        View::Request(at) => request::render(state, &Wanted::At(*at)),
        View::Search(id) => request::render(state, &Wanted::Tagged(id.clone(), tag_of(id))),
    }
}
