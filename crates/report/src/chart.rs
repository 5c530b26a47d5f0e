//! Charts of a live page and of reports, drawn by plotters as SVG.
//!
//! Colours are names: the page's style sheet replaces them by the colours of a light or dark
//! scheme, so that one chart serves both. Figures of papers, which must be equal to the byte and
//! distinct without colour, are drawn by [`plot`](crate::plot).

use plotters::coord::Shift;
use plotters::prelude::*;

/// The colour of text and axes.
const INK: RGBColor = RGBColor(0x11, 0x11, 0x11);
/// The colour of grid lines.
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// A colour by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// The quantity itself.
    Main,
    /// Values that are wrong.
    Bad,
    /// Values to compare with.
    Other,
    /// Limits and notes.
    Muted,
}

impl Tone {
    fn colour(self) -> RGBColor {
        match self {
            Tone::Main => RGBColor(0x00, 0x72, 0xb2),
            Tone::Bad => RGBColor(0xd5, 0x5e, 0x00),
            Tone::Other => RGBColor(0x00, 0x9e, 0x73),
            Tone::Muted => RGBColor(0x77, 0x77, 0x77),
        }
    }
}

/// One pair of axes with marks.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// The horizontal axis.
    pub x: ChartAxis,
    /// The vertical axis.
    pub y: ChartAxis,
    /// The marks, the last on top.
    pub marks: Vec<ChartMark>,
    /// Width and height in pixels.
    pub size: (u32, u32),
}

/// An axis from `from` to `to`; an empty range becomes one unit wide.
#[derive(Clone, Debug, Default)]
pub struct ChartAxis {
    /// The quantity with its unit.
    pub label: String,
    /// The lower end.
    pub from: f64,
    /// The upper end.
    pub to: f64,
}

/// Something drawn in a chart.
#[derive(Clone, Debug)]
pub enum ChartMark {
    /// A curve.
    Line(Tone, Vec<(f64, f64)>),
    /// Separate points.
    Points(Tone, Vec<(f64, f64)>),
    /// A bar at each x, of this width, from 0 up.
    Bars(Tone, f64, Vec<(f64, f64)>),
    /// Boxes, each from its lower left to its upper right corner.
    Boxes(Tone, Vec<[(f64, f64); 2]>),
    /// A limit at this x, with its name.
    LimitX(f64, String),
}

impl ChartAxis {
    /// Creates an axis from 0.
    pub fn new(label: &str, to: f64) -> ChartAxis {
        ChartAxis { label: label.to_owned(), from: 0.0, to }
    }

    fn range(&self) -> std::ops::Range<f64> {
        let to = if self.to > self.from && self.to.is_finite() { self.to } else { self.from + 1.0 };
        self.from..to
    }
}

impl Chart {
    /// Returns the chart as an SVG element.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, self.size).into_drawing_area();
            self.draw(&area).expect("drawing into memory cannot fail");
            area.present().expect("drawing into memory cannot fail");
        }
        svg
    }

    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'_> as DrawingBackend>::ErrorType>> {
        let text = ("sans-serif", 13).into_font().color(&INK);
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(16)
            .x_label_area_size(40)
            .y_label_area_size(54)
            .build_cartesian_2d(self.x.range(), self.y.range())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(text.clone())
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .x_labels(6)
            .y_labels(5)
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&|value| short(*value))
            .draw()?;
        let top = self.y.range().end;
        for mark in &self.marks {
            match mark {
                ChartMark::Line(tone, points) => {
                    let style = tone.colour().stroke_width(2);
                    chart.draw_series([PathElement::new(points.clone(), style)])?;
                }
                ChartMark::Points(tone, points) => {
                    let style = tone.colour().filled();
                    chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, style)))?;
                }
                ChartMark::Bars(tone, width, bars) => {
                    let (style, half) = (tone.colour().filled(), width / 2.0);
                    let bar = |&(x, y): &(f64, f64)| Rectangle::new([(x - half, 0.0), (x + half, y)], style);
                    chart.draw_series(bars.iter().map(bar))?;
                }
                ChartMark::Boxes(tone, boxes) => {
                    let style = tone.colour().filled();
                    chart.draw_series(boxes.iter().map(|&corners| Rectangle::new(corners, style)))?;
                }
                ChartMark::LimitX(at, name) => {
                    let style = Tone::Muted.colour().stroke_width(2);
                    chart.draw_series([PathElement::new(vec![(*at, 0.0), (*at, top)], style)])?;
                    chart.draw_series([Text::new(name.clone(), (*at, top * 0.98), text.clone())])?;
                }
            }
        }
        Ok(())
    }
}

/// Returns a small chart without axes: `bad` on top of `all`, both of one value each second.
pub fn sparkline(all: &[f64], bad: &[f64], size: (u32, u32)) -> String {
    let top = all.iter().copied().fold(1.0, f64::max);
    let (width, height) = (f64::from(size.0), f64::from(size.1));
    let step = width / all.len().max(2) as f64;
    let area = |values: &[f64]| {
        let mut points: Vec<(i32, i32)> = vec![(0, size.1 as i32)];
        for (at, value) in values.iter().enumerate() {
            points.push(((at as f64 * step) as i32, (height - value / top * (height - 2.0)) as i32));
        }
        points.push(((values.len() as f64 * step) as i32, size.1 as i32));
        points
    };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let drawn = [(Tone::Main, all), (Tone::Bad, bad)];
        for (tone, values) in drawn.into_iter().filter(|(_, values)| values.iter().any(|value| *value > 0.0)) {
            let drawn = root.draw(&Polygon::new(area(values), tone.colour().filled()));
            drawn.expect("drawing into memory cannot fail");
        }
        root.present().expect("drawing into memory cannot fail");
    }
    svg
}

/// Returns a number with as many digits as an axis needs.
fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size >= 10_000.0 => format!("{:.0}k", value / 1e3),
        _ if size >= 10.0 || size == 0.0 => format!("{value:.0}"),
        _ if size >= 1.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_marks_labels_and_limit() {
        let marks = vec![
            ChartMark::Bars(Tone::Main, 1.0, vec![(1.0, 3.0), (2.0, 5.0)]),
            ChartMark::Line(Tone::Other, vec![(0.0, 0.0), (3.0, 6.0)]),
            ChartMark::Points(Tone::Bad, vec![(1.0, 1.0)]),
            ChartMark::LimitX(2.5, "SLO".to_owned()),
        ];
        let (x, y) = (ChartAxis::new("rows", 3.0), ChartAxis::new("ms", 6.0));
        let svg = Chart { x, y, marks, size: (400, 240) }.svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for part in ["rows", "SLO", "#0072B2", "#009E73", "#D55E00", "<circle"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
    }

    #[test]
    fn empty_axes_and_no_values_are_drawn_too() {
        assert!(Chart { size: (200, 100), ..Chart::default() }.svg().contains("</svg>"));
        assert!(sparkline(&[], &[], (100, 20)).contains("</svg>"));
        assert_eq!(sparkline(&[1.0, 2.0], &[0.0, 0.0], (100, 20)).matches("<polygon").count(), 1);
    }
}
