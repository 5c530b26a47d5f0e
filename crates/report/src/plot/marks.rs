//! The contents of a panel: curves, bars, timelines.

use super::axes::{Area, INK, SOFT, Scale, TICK, frame, x_axis, y_axis};
use super::svg::{Anchor, Font, PixelPoint, Svg};
use super::{Bar, Content, Look, Moment, Panel, PlotAxis, Series, Span};
use crate::table::number;

const NAME: Font = Font::new(12.0, INK);
const VALUE: Font = Font::new(11.0, INK);
const ON_SPAN: Font = Font::new(10.0, "#ffffff");

/// Height of one bar with the space around it.
const BAR_PITCH: f64 = 24.0;
const LANE_PITCH: f64 = 30.0;
/// Room above the lanes for the moments.
const MOMENTS: f64 = 16.0;

/// Returns the height of the inside of a panel.
pub(super) fn height(panel: &Panel) -> f64 {
    match &panel.content {
        Content::Lines(_) => 230.0,
        Content::Bars(bars) => BAR_PITCH * bars.len().max(2) as f64 + 6.0,
        Content::Timeline { lanes, .. } => LANE_PITCH * lanes.len() as f64 + MOMENTS,
    }
}

/// Returns the room for names or tick labels to the left of the inside.
pub(super) fn left_margin(panel: &Panel) -> f64 {
    match &panel.content {
        Content::Lines(_) => 62.0,
        Content::Bars(bars) => widest(bars.iter().map(|bar| bar.name.as_str())) + 14.0,
        Content::Timeline { lanes, .. } => widest(lanes.iter().map(String::as_str)) + 14.0,
    }
}

fn widest<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    names.map(|name| NAME.width(name)).fold(0.0, f64::max)
}

pub(super) fn draw(svg: &mut Svg, panel: &Panel, area: Area) {
    match &panel.content {
        Content::Lines(series) => lines(svg, panel, series, area),
        Content::Bars(all) => bars(svg, panel, all, area),
        Content::Timeline { lanes, spans, moments } => timeline(svg, panel, lanes, spans, moments, area),
    }
}

fn lines(svg: &mut Svg, panel: &Panel, series: &[Series], area: Area) {
    let points = || series.iter().flat_map(|series| series.points.iter());
    let x = Scale::new(&panel.x, points().map(|point| point.0), area.left, area.right);
    let y = Scale::new(&panel.y, points().map(|point| point.1), area.bottom, area.top);
    x_axis(svg, area, &x, &panel.x.label);
    y_axis(svg, area, &y, &panel.y.label);
    frame(svg, area);
    for series in series {
        let finite = series.points.iter().filter(|point| point.0.is_finite() && point.1.is_finite());
        let path: Vec<PixelPoint> = finite.map(|&(at, value)| (x.at(at), y.at(value))).collect();
        stroke(svg, &path, series.look);
        if series.markers {
            path.iter().for_each(|&at| marker(svg, at, series.look));
        }
    }
}

fn stroke(svg: &mut Svg, path: &[PixelPoint], look: Look) {
    let dash = if look.dashed { r#" stroke-dasharray="6 4""# } else { "" };
    svg.polyline(path, look.hex(), dash);
}

/// Draws a marker. Colour alone does not distinguish series in print, so each place of the palette
/// has a shape too.
fn marker(svg: &mut Svg, (x, y): PixelPoint, look: Look) {
    let fill = look.hex();
    match look.colour % Look::COLOURS {
        0 => svg.circle((x, y), 3.8, fill, ""),
        1 => svg.rect((x - 3.4, y - 3.4), 6.8, 6.8, fill, ""),
        2 => svg.polygon(&[(x, y - 4.6), (x + 4.4, y + 3.4), (x - 4.4, y + 3.4)], fill),
        3 => svg.polygon(&[(x, y - 4.8), (x + 4.8, y), (x, y + 4.8), (x - 4.8, y)], fill),
        4 => svg.polygon(&[(x, y + 4.6), (x + 4.4, y - 3.4), (x - 4.4, y - 3.4)], fill),
        5 => svg.circle((x, y), 3.2, "#ffffff", &format!(r#" stroke="{fill}" stroke-width="2""#)),
        _ => svg.rect((x - 3.0, y - 3.0), 6.0, 6.0, "#ffffff", &format!(r#" stroke="{fill}" stroke-width="2""#)),
    }
}

/// Draws the entry of a series in the legend, to the right of `at`.
pub(super) fn legend_entry(svg: &mut Svg, at: PixelPoint, series: &Series) {
    stroke(svg, &[at, (at.0 + 26.0, at.1)], series.look);
    if series.markers {
        marker(svg, (at.0 + 13.0, at.1), series.look);
    }
}

/// Draws the mark of the paper's value, also in the legend.
pub(super) fn paper_mark(svg: &mut Svg, (x, y): PixelPoint) {
    svg.line((x, y - 10.0), (x, y + 10.0), "#ffffff", 5.0);
    svg.line((x, y - 10.0), (x, y + 10.0), "#000000", 2.5);
}

fn bars(svg: &mut Svg, panel: &Panel, bars: &[Bar], area: Area) {
    let ends = bars.iter().flat_map(|bar| [Some(bar.value), bar.paper, bar.spread.map(|spread| spread.1)]);
    // A seventh beyond the longest bar is room for its value.
    let longest = ends.flatten().filter(|end| end.is_finite()).fold(0.0, f64::max);
    let limits = PlotAxis { to: panel.x.to.or(Some(longest * 1.14)), ..panel.x.clone() };
    let x = Scale::new(&limits, std::iter::empty(), area.left, area.right);
    x_axis(svg, area, &x, &panel.x.label);
    frame(svg, area);
    for (index, bar) in bars.iter().enumerate() {
        let y = area.top + 3.0 + BAR_PITCH * (index as f64 + 0.5);
        svg.text((area.left - 8.0, y + 4.0), Anchor::End, NAME, &bar.name);
        let faint = if bar.look.dashed { r#" fill-opacity="0.55""# } else { "" };
        // The grid must not show through a faint bar.
        svg.rect((area.left, y - 8.0), x.at(bar.value) - area.left, 16.0, "#ffffff", "");
        svg.rect((area.left, y - 8.0), x.at(bar.value) - area.left, 16.0, bar.look.hex(), faint);
        let mut end = x.at(bar.value);
        if let Some((low, high)) = bar.spread.filter(|spread| spread.0 < spread.1) {
            whisker(svg, x.at(low), x.at(high), y);
            end = end.max(x.at(high));
        }
        if let Some(paper) = bar.paper {
            paper_mark(svg, (x.at(paper), y));
            let near = (-8.0..52.0).contains(&(x.at(paper) - end));
            end = if near { end.max(x.at(paper)) } else { end };
        }
        svg.text((end + 6.0, y + 4.0), Anchor::Start, VALUE, &number(bar.value));
    }
}

fn whisker(svg: &mut Svg, low: f64, high: f64, y: f64) {
    svg.line((low, y), (high, y), INK, 1.2);
    for x in [low, high] {
        svg.line((x, y - 4.0), (x, y + 4.0), INK, 1.2);
    }
}

fn timeline(svg: &mut Svg, panel: &Panel, lanes: &[String], spans: &[Span], moments: &[Moment], area: Area) {
    let ends = spans.iter().map(|span| span.to).chain(moments.iter().map(|moment| moment.at));
    let x = Scale::new(&panel.x, ends, area.left, area.right);
    x_axis(svg, area, &x, &panel.x.label);
    frame(svg, area);
    for moment in moments.iter().filter(|moment| x.at(moment.at) < area.right) {
        let at = (x.at(moment.at), area.top + 7.0);
        if moment.lost {
            svg.line((at.0 - 3.5, at.1 - 3.5), (at.0 + 3.5, at.1 + 3.5), LOST, 2.0);
            svg.line((at.0 - 3.5, at.1 + 3.5), (at.0 + 3.5, at.1 - 3.5), LOST, 2.0);
        } else {
            svg.circle(at, 2.6, "#ffffff", &format!(r#" stroke="{SOFT}" stroke-width="1.2""#));
        }
    }
    for (index, name) in lanes.iter().enumerate() {
        let y = area.top + MOMENTS + LANE_PITCH * (index as f64 + 0.5);
        svg.text((area.left - 8.0, y + 4.0), Anchor::End, NAME, name);
    }
    for span in spans.iter().filter(|span| x.at(span.from) < area.right) {
        let y = area.top + MOMENTS + LANE_PITCH * (span.lane as f64 + 0.5);
        let (from, to) = (x.at(span.from), x.at(span.to));
        let border = r##" stroke="#ffffff" stroke-width="1.5" rx="2""##;
        svg.rect((from, y - 11.0), to - from, 22.0, span.look.hex(), border);
        if ON_SPAN.width(&span.label) + 6.0 <= to - from {
            svg.text((f64::midpoint(from, to), y + 3.5), Anchor::Middle, ON_SPAN, &span.label);
        }
    }
}

/// The colour of a lost request.
const LOST: &str = "#b00020";

/// Draws a text beside a mark in the legend.
pub(super) fn legend_text(svg: &mut Svg, at: PixelPoint, text: &str) {
    svg.text((at.0, at.1 + 4.0), Anchor::Start, NAME, text);
}

/// Returns the width of a legend entry with its mark.
pub(super) fn legend_width(text: &str) -> f64 {
    34.0 + NAME.width(text) + 16.0
}

/// The font of the note.
pub(super) const NOTE: Font = TICK;
