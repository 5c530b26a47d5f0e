//! Parts that several views share.

use maud::{Markup, html};

/// A figure with its name.
pub(super) fn figure(name: &str, value: impl maud::Render, note: impl maud::Render) -> Markup {
    html! {
        div.figure { dt { (name) } dd { (value) } dd.note { (note) } }
    }
}

/// A chart with a title, and with its content in words for readers who cannot see it.
pub(super) fn chart(title: &str, words: &str, svg: String) -> Markup {
    html! {
        figure.chart {
            figcaption { (title) }
            div.svg role="img" aria-label=(words) { (maud::PreEscaped(svg)) }
        }
    }
}

/// A remark where there is nothing to show.
pub(super) fn nothing(text: &str) -> Markup {
    html! { p.nothing { (text) } }
}
