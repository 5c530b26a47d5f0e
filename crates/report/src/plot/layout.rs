//! The layout of title, legend, panels and note.

use super::axes::{Area, INK, SOFT};
use super::marks::{draw as draw_content, height, left_margin, legend_entry, legend_text, legend_width, paper_mark};
use super::svg::{Anchor, Font, Svg, wrap};
use super::{Content, Figure, Panel, Series};
use crate::plot::marks::NOTE;

const TITLE: Font = Font::bold(17.0, INK);
const SUBTITLE: Font = Font::new(12.0, SOFT);
const PANEL_TITLE: Font = Font::bold(13.0, INK);

const MARGIN: f64 = 24.0;
const PANEL_WIDTH: f64 = 460.0;
/// Width of a panel that has a row for itself.
const WIDE: f64 = 760.0;
const BELOW_PANEL: f64 = 58.0;
const ABOVE_PANEL: f64 = 26.0;
const BETWEEN: f64 = 30.0;
const LEGEND_PITCH: f64 = 22.0;

pub(super) fn draw(figure: &Figure) -> String {
    let columns = figure.columns.clamp(1, figure.panels.len().max(1));
    let panel_width = if columns == 1 { WIDE } else { PANEL_WIDTH };
    let width = 2.0 * MARGIN + panel_width * columns as f64 + BETWEEN * (columns - 1) as f64;
    let mut svg = Svg::default();
    let mut y = head(&mut svg, figure, width);
    y = legend(&mut svg, figure, width, y);
    for row in figure.panels.chunks(columns) {
        let tallest = row.iter().map(height).fold(0.0, f64::max);
        // Panels of one column share their left edge, panels of one row their lower edge.
        for (column, panel) in row.iter().enumerate() {
            let x = MARGIN + (panel_width + BETWEEN) * column as f64;
            let edge = figure.panels.iter().skip(column).step_by(columns).map(left_margin).fold(0.0, f64::max);
            let top = y + ABOVE_PANEL;
            let right = x + panel_width - 12.0;
            draw_panel(&mut svg, panel, Area { left: x + edge, top, right, bottom: top + tallest }, x);
        }
        y += ABOVE_PANEL + tallest + BELOW_PANEL;
    }
    y = foot(&mut svg, figure, width, y);
    svg.finish(width, y)
}

fn head(svg: &mut Svg, figure: &Figure, width: f64) -> f64 {
    let mut y = MARGIN + 6.0;
    for line in wrap(&figure.title, TITLE, width - 2.0 * MARGIN) {
        y += 12.0;
        svg.text((MARGIN, y), Anchor::Start, TITLE, &line);
        y += 9.0;
    }
    for line in wrap(&figure.subtitle, SUBTITLE, width - 2.0 * MARGIN) {
        y += 12.0;
        svg.text((MARGIN, y), Anchor::Start, SUBTITLE, &line);
        y += 4.0;
    }
    y + 8.0
}

/// Draws the legend: every name once, in the order of first use, and the paper's mark if there is
/// one.
fn legend(svg: &mut Svg, figure: &Figure, width: f64, top: f64) -> f64 {
    let mut named: Vec<&Series> = Vec::new();
    for series in figure.panels.iter().flat_map(all_series) {
        if !named.iter().any(|known| known.name == series.name) {
            named.push(series);
        }
    }
    let paper = figure.panels.iter().any(has_paper);
    if named.is_empty() && !paper {
        return top;
    }
    let (mut x, mut y) = (MARGIN, top + LEGEND_PITCH / 2.0);
    for series in named {
        if x + legend_width(&series.name) > width - MARGIN && x > MARGIN {
            (x, y) = (MARGIN, y + LEGEND_PITCH);
        }
        legend_entry(svg, (x, y), series);
        legend_text(svg, (x + 34.0, y), &series.name);
        x += legend_width(&series.name);
    }
    if paper {
        paper_mark(svg, (x + 13.0, y));
        legend_text(svg, (x + 34.0, y), "what the paper says");
    }
    y + LEGEND_PITCH
}

fn all_series(panel: &Panel) -> &[Series] {
    match &panel.content {
        Content::Lines(series) => series,
        Content::Bars(_) | Content::Timeline { .. } => &[],
    }
}

fn has_paper(panel: &Panel) -> bool {
    matches!(&panel.content, Content::Bars(bars) if bars.iter().any(|bar| bar.paper.is_some()))
}

fn draw_panel(svg: &mut Svg, panel: &Panel, area: Area, left: f64) {
    svg.text((left, area.top - 12.0), Anchor::Start, PANEL_TITLE, &panel.title);
    draw_content(svg, panel, area);
}

fn foot(svg: &mut Svg, figure: &Figure, width: f64, mut y: f64) -> f64 {
    for line in wrap(&figure.note, NOTE, width - 2.0 * MARGIN) {
        svg.text((MARGIN, y), Anchor::Start, NOTE, &line);
        y += 15.0;
    }
    y + 6.0
}
