//! Plots as SVG: lines, horizontal bars and timelines in panels, with one legend.
//!
//! A plotting crate would bring fonts and a raster back end for the little that a figure of a paper
//! needs, so this is a small writer of our own. It guarantees three things: equal input gives equal
//! bytes; series differ in colour *and* in marker or dash; and text does not cover the data. People
//! with any colour vision can distinguish the colours of the palette.

mod axes;
mod layout;
mod marks;
mod svg;

/// A figure: panels under one title, with one legend.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// Title, in a few words.
    pub title: String,
    /// The setup: devices, load, requests.
    pub subtitle: String,
    /// Panels of the figure, drawn in rows of `columns`.
    pub panels: Vec<Panel>,
    /// Number of panels beside each other; 0 counts as 1.
    pub columns: usize,
    /// Source of the figures; printed small at the bottom.
    pub note: String,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Title of the panel.
    pub title: String,
    /// The horizontal axis.
    pub x: PlotAxis,
    /// The vertical axis; bars and timelines use its label only.
    pub y: PlotAxis,
    /// The contents.
    pub content: Content,
}

/// An axis. Without limits it spans the data and zero.
#[derive(Clone, Debug, Default)]
pub struct PlotAxis {
    /// The measured quantity, with its unit.
    pub label: String,
    /// The lower limit.
    pub from: Option<f64>,
    /// The upper limit.
    pub to: Option<f64>,
}

/// The contents of a panel.
#[derive(Clone, Debug)]
pub enum Content {
    /// Curves over x.
    Lines(Vec<Series>),
    /// Horizontal bars, from the top down.
    Bars(Vec<Bar>),
    /// The activity of each lane over time, lanes from the top down.
    Timeline {
        /// The names of the lanes.
        lanes: Vec<String>,
        /// The activities.
        spans: Vec<Span>,
        /// Moments marked above the lanes.
        moments: Vec<Moment>,
    },
}

/// The look of a series: a place in the palette, from 0, and whether its line is dashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Number of the colour and marker; they repeat after [`Look::COLOURS`].
    pub colour: usize,
    /// A dashed line, for the second of two series of one colour.
    pub dashed: bool,
}

/// A curve.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name of the series in the legend; series of one name in several panels share their entry.
    pub name: String,
    /// Points of the series, by x.
    pub points: Vec<(f64, f64)>,
    /// Colour and dash.
    pub look: Look,
    /// Whether each point is marked.
    pub markers: bool,
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Name of the bar, to the left.
    pub name: String,
    /// Length of the bar.
    pub value: f64,
    /// The lowest and highest of several runs.
    pub spread: Option<(f64, f64)>,
    /// The paper's value, marked across the bar.
    pub paper: Option<f64>,
    /// Colour and dash.
    pub look: Look,
}

/// An activity of a lane.
#[derive(Clone, Debug)]
pub struct Span {
    /// Number of the lane, from 0.
    pub lane: usize,
    /// Start, in units of the x axis.
    pub from: f64,
    /// End, in units of the x axis.
    pub to: f64,
    /// Label; omitted where there is no room.
    pub label: String,
    /// Colour and dash.
    pub look: Look,
}

/// A moment above a timeline: the arrival of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Time, in units of the x axis.
    pub at: f64,
    /// Whether the request was lost.
    pub lost: bool,
}

impl Figure {
    /// Returns the figure as the text of an SVG file.
    pub fn svg(&self) -> String {
        layout::draw(self)
    }
}

impl Look {
    /// Number of distinct colours.
    pub const COLOURS: usize = PALETTE.len();

    /// Returns the place `colour` of the palette, solid.
    pub fn solid(colour: usize) -> Look {
        Look { colour, dashed: false }
    }

    /// Returns the place `colour` of the palette, dashed.
    pub fn dashed(colour: usize) -> Look {
        Look { colour, dashed: true }
    }

    fn hex(self) -> &'static str {
        PALETTE[self.colour % PALETTE.len()]
    }
}

/// The colours of Okabe and Ito, without their yellow, which is hard to see as a line on white.
const PALETTE: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"];

#[cfg(test)]
mod tests;
