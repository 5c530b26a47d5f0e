//! Scales, ticks, and the frame of a panel.

use super::PlotAxis;
use super::svg::{Anchor, Font, PixelPoint, Svg};

pub(super) const INK: &str = "#222222";
pub(super) const SOFT: &str = "#666666";
const GRID: &str = "#e4e4e4";
pub(super) const TICK: Font = Font::new(11.0, SOFT);
const LABEL: Font = Font::new(12.0, INK);

/// Maps the values of one axis to pixels.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    step: f64,
}

impl Scale {
    /// Returns a scale for `values` within the limits of `axis`, drawn from pixel `start` to pixel
    /// `end`. Without limits it includes zero and ends at a tick.
    pub(super) fn new(axis: &PlotAxis, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Scale {
        let finite = values.filter(|value| value.is_finite());
        let (least, most) = finite.fold((0.0_f64, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let low = axis.from.unwrap_or(least);
        let mut high = axis.to.unwrap_or(most);
        if high <= low {
            high = low + 1.0;
        }
        let step = nice_step(high - low, ((end - start).abs() / 62.0).clamp(5.0, 8.0));
        if axis.to.is_none() {
            high = (high / step - 1e-9).ceil() * step;
        }
        let low = if axis.from.is_none() { (low / step + 1e-9).floor() * step } else { low };
        Scale { low, high, start, end, step }
    }

    /// Returns the pixel of a value; values outside map to the nearest end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.start + part * (self.end - self.start)
    }

    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let first = (self.low / self.step - 1e-9).ceil() as i64;
        let last = (self.high / self.step + 1e-9).floor() as i64;
        (first..=last).map(|index| index as f64 * self.step).map(|value| (value, self.tick_text(value))).collect()
    }

    /// Formats a tick; thousands are written as K once the axis reaches ten thousand.
    fn tick_text(&self, value: f64) -> String {
        let thousands = self.high >= 10_000.0;
        let (value, step) = if thousands { (value / 1e3, self.step / 1e3) } else { (value, self.step) };
        let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
        let unit = if thousands && value != 0.0 { "K" } else { "" };
        format!("{value:.decimals$}{unit}")
    }
}

/// Returns the distance of ticks, 1, 2 or 5 times a power of ten, that gives about `wanted` of
/// them.
fn nice_step(span: f64, wanted: f64) -> f64 {
    let rough = span / wanted;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
    factor * power
}

/// The inside of a panel, in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

/// Draws the x axis below the area, with grid lines through it.
pub(super) fn x_axis(svg: &mut Svg, area: Area, scale: &Scale, label: &str) {
    for (value, text) in scale.ticks() {
        let x = scale.at(value);
        svg.line((x, area.top), (x, area.bottom), GRID, 1.0);
        svg.text((x, area.bottom + 15.0), Anchor::Middle, TICK, &text);
    }
    let middle = f64::midpoint(area.left, area.right);
    svg.text((middle, area.bottom + 33.0), Anchor::Middle, LABEL, label);
}

/// Draws the y axis to the left of the area, with grid lines through it.
pub(super) fn y_axis(svg: &mut Svg, area: Area, scale: &Scale, label: &str) {
    for (value, text) in scale.ticks() {
        let y = scale.at(value);
        svg.line((area.left, y), (area.right, y), GRID, 1.0);
        svg.text((area.left - 7.0, y + 4.0), Anchor::End, TICK, &text);
    }
    let at: PixelPoint = (area.left - 46.0, f64::midpoint(area.top, area.bottom));
    svg.upward_text(at, Anchor::Middle, LABEL, label);
}

/// Draws the two axis lines.
pub(super) fn frame(svg: &mut Svg, area: Area) {
    svg.line((area.left, area.bottom), (area.right, area.bottom), SOFT, 1.0);
    svg.line((area.left, area.top), (area.left, area.bottom), SOFT, 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(from: f64, to: f64) -> String {
        let axis = PlotAxis { from: Some(from), ..PlotAxis::default() };
        let scale = Scale::new(&axis, [to].into_iter(), 0.0, 400.0);
        scale.ticks().into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_and_cover_the_data() {
        assert_eq!(ticks(0.0, 29_000.0), "0 5K 10K 15K 20K 25K 30K");
        assert_eq!(ticks(0.0, 1.0), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(ticks(0.0, 926.0), "0 200 400 600 800 1000");
        assert_eq!(ticks(0.5, 1.1), "0.5 0.6 0.7 0.8 0.9 1.0 1.1");
    }

    #[test]
    fn a_scale_without_data_still_stands() {
        assert_eq!(ticks(0.0, 0.0), "0.0 0.2 0.4 0.6 0.8 1.0");
        let scale = Scale::new(&PlotAxis::default(), [f64::NAN].into_iter(), 0.0, 10.0);
        assert_eq!((scale.at(-5.0), scale.at(5.0)), (0.0, 10.0));
    }
}
