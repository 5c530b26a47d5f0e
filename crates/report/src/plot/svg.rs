//! The few elements of SVG that a plot needs, written as text.

use std::fmt::Write;

/// A drawing in progress.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
}

/// A point, in pixels from the upper left corner.
pub(super) type PixelPoint = (f64, f64);

/// The part of a text that is placed at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Size, weight and colour of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Font {
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) colour: &'static str,
}

impl Font {
    pub(super) const fn new(size: f64, colour: &'static str) -> Font {
        Font { size, bold: false, colour }
    }

    pub(super) const fn bold(size: f64, colour: &'static str) -> Font {
        Font { size, bold: true, colour }
    }

    /// Returns the width of a text, estimated: a file cannot measure the reader's font.
    pub(super) fn width(self, text: &str) -> f64 {
        let factor = if self.bold { 0.60 } else { 0.55 };
        text.chars().count() as f64 * self.size * factor
    }
}

impl Svg {
    pub(super) fn line(&mut self, from: PixelPoint, to: PixelPoint, stroke: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = ((px(from.0), px(from.1)), (px(to.0), px(to.1)));
        self.push(&format!(
            r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" stroke-width="{}"/>"#,
            px(width)
        ));
    }

    pub(super) fn rect(&mut self, at: PixelPoint, width: f64, height: f64, fill: &str, rest: &str) {
        let (x, y, width, height) = (px(at.0), px(at.1), px(width.max(0.0)), px(height.max(0.0)));
        self.push(&format!(r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"{rest}/>"#));
    }

    pub(super) fn polyline(&mut self, points: &[PixelPoint], stroke: &str, rest: &str) {
        let path: Vec<_> = points.iter().map(|&(x, y)| format!("{},{}", px(x), px(y))).collect();
        let path = path.join(" ");
        self.push(&format!(
            r#"<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="2" stroke-linejoin="round"{rest}/>"#
        ));
    }

    pub(super) fn circle(&mut self, at: PixelPoint, radius: f64, fill: &str, rest: &str) {
        let (x, y, radius) = (px(at.0), px(at.1), px(radius));
        self.push(&format!(r#"<circle cx="{x}" cy="{y}" r="{radius}" fill="{fill}"{rest}/>"#));
    }

    pub(super) fn polygon(&mut self, points: &[PixelPoint], fill: &str) {
        let path: Vec<_> = points.iter().map(|&(x, y)| format!("{},{}", px(x), px(y))).collect();
        self.push(&format!(r#"<polygon points="{}" fill="{fill}"/>"#, path.join(" ")));
    }

    pub(super) fn text(&mut self, at: PixelPoint, anchor: Anchor, font: Font, text: &str) {
        self.rotated_text(at, anchor, font, text, "");
    }

    /// Draws a text that reads from the bottom up.
    pub(super) fn upward_text(&mut self, at: PixelPoint, anchor: Anchor, font: Font, text: &str) {
        let turn = format!(r#" transform="rotate(-90 {} {})""#, px(at.0), px(at.1));
        self.rotated_text(at, anchor, font, text, &turn);
    }

    fn rotated_text(&mut self, at: PixelPoint, anchor: Anchor, font: Font, text: &str, turn: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if font.bold { r#" font-weight="bold""# } else { "" };
        let (x, y, size, fill) = (px(at.0), px(at.1), px(font.size), font.colour);
        let text = escape(text);
        self.push(&format!(
            r#"<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}{turn}>{text}</text>"#
        ));
    }

    /// Returns the whole file, on a white background.
    pub(super) fn finish(self, width: f64, height: f64) -> String {
        let (width, height) = (px(width), px(height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }

    fn push(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

/// Formats a length with at most one decimal: a tenth of a pixel is not visible.
fn px(value: f64) -> String {
    let mut text = String::new();
    let _ = write!(text, "{value:.1}");
    if let Some(whole) = text.strip_suffix(".0") { whole.to_owned() } else { text }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Breaks a text into lines of at most `width` pixels, at spaces.
pub(super) fn wrap(text: &str, font: Font, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if font.width(line) + font.width(" ") + font.width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
