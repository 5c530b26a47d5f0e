//! Plots as SVG: lines, horizontal bars and timelines in panels, with one legend.
//!
//! A plotting crate would bring fonts and a raster back end for the little that a figure of a paper needs, so this is a
//! writer of our own. It promises three things: equal input gives equal bytes; series differ in colour *and* in marker or
//! dash, from a palette that people with any colour vision can tell apart; and text keeps out of the way of the data.

mod axes;
mod layout;
mod marks;
mod svg;

/// A figure: panels under one title, with one legend.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// What it shows, in a few words.
    pub title: String,
    /// How it was made: devices, load, requests.
    pub subtitle: String,
    /// Its panels, drawn in rows of `columns`.
    pub panels: Vec<Panel>,
    /// Panels beside each other; 0 counts as 1.
    pub columns: usize,
    /// Where the figures come from; stands small at the bottom.
    pub note: String,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What this panel shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis; bars and timelines use its label only.
    pub y: Axis,
    /// What is drawn.
    pub content: Content,
}

/// An axis. Without limits it spans the data and zero.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// What it measures, with its unit.
    pub label: String,
    /// The lower limit.
    pub from: Option<f64>,
    /// The upper limit.
    pub to: Option<f64>,
}

/// What a panel holds.
#[derive(Clone, Debug)]
pub enum Content {
    /// Curves over x.
    Lines(Vec<Series>),
    /// Horizontal bars, from the top down.
    Bars(Vec<Bar>),
    /// What each lane did when, lanes from the top down.
    Timeline {
        /// The names of the lanes.
        lanes: Vec<String>,
        /// What ran on them.
        spans: Vec<Span>,
        /// Moments marked above the lanes.
        moments: Vec<Moment>,
    },
}

/// How a series looks: a place in the palette, 0 and on, and whether its line is dashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Which colour and marker; they repeat after [`Look::COLOURS`].
    pub colour: usize,
    /// A dashed line, for the second of two series of one colour.
    pub dashed: bool,
}

/// A curve.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend; series of one name in several panels share their entry.
    pub name: String,
    /// Its points, by x.
    pub points: Vec<(f64, f64)>,
    /// How it looks.
    pub look: Look,
    /// Whether each point is marked.
    pub markers: bool,
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its name, to the left.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// The lowest and highest of several runs.
    pub spread: Option<(f64, f64)>,
    /// What the paper says, marked across the bar.
    pub paper: Option<f64>,
    /// How it looks.
    pub look: Look,
}

/// Something that a lane did.
#[derive(Clone, Debug)]
pub struct Span {
    /// Which lane, from 0.
    pub lane: usize,
    /// When it began.
    pub from: f64,
    /// When it ended.
    pub to: f64,
    /// What it was; left out where there is no room.
    pub label: String,
    /// How it looks.
    pub look: Look,
}

/// A moment above a timeline: the arrival of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// When.
    pub at: f64,
    /// Whether it stands for a loss.
    pub lost: bool,
}

impl Figure {
    /// The figure as the text of an SVG file.
    pub fn svg(&self) -> String {
        layout::draw(self)
    }
}

impl Look {
    /// How many colours differ.
    pub const COLOURS: usize = PALETTE.len();

    /// The place `colour` of the palette, solid.
    pub fn solid(colour: usize) -> Look {
        Look { colour, dashed: false }
    }

    /// The place `colour` of the palette, dashed.
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
