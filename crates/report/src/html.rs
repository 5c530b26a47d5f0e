//! Reports as one HTML file each, with the charts of the live page; nothing is loaded from
//! elsewhere.

use crate::chart::{Chart, ChartAxis, ChartMark, Tone};
use maud::{DOCTYPE, PreEscaped, html};
use std::path::Path;

/// The style sheet of reports and of the live page.
pub const STYLE: &str = include_str!("style.css");

/// Size of a chart in pixels.
const SIZE: (u32, u32) = (560, 300);
/// Size of a timeline for each lane, in pixels.
const LANE_HEIGHT: u32 = 44;
/// Largest number of points of a curve: more are not seen.
const MOST_POINTS: usize = 400;
/// Number of colours of a timeline.
const TONES: [Tone; 3] = [Tone::Main, Tone::Other, Tone::Bad];

/// A report.
#[derive(Clone, Debug, Default)]
pub struct HtmlReport {
    /// The title.
    pub title: String,
    /// The run in a sentence.
    pub subtitle: String,
    /// Parts of the report from top to bottom.
    pub parts: Vec<ReportPart>,
}

/// A part of a report.
#[derive(Clone, Debug)]
pub enum ReportPart {
    /// A heading.
    Heading(String),
    /// Charts beside each other: title, content in words, drawing.
    Charts(Vec<(String, String, Chart)>),
    /// A table; its first column names the rows, the others hold numbers.
    Table(Vec<String>, Vec<Vec<String>>),
}

/// An activity of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSpan {
    /// The device.
    pub device: usize,
    /// Number of its model.
    pub model: usize,
    /// Start and end in milliseconds.
    pub from_ms: f64,
    /// End in milliseconds.
    pub to_ms: f64,
}

impl HtmlReport {
    /// Returns the file's text.
    pub fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    main {
                        h1 { (self.title) }
                        p.note { (self.subtitle) }
                        @for part in &self.parts {
                            @match part {
                                ReportPart::Heading(text) => h2 { (text) },
                                ReportPart::Charts(charts) => div.charts {
                                    @for (title, words, chart) in charts {
                                        figure.chart {
                                            figcaption { (title) }
                                            div.svg role="img" aria-label=(words) { (PreEscaped(chart.svg())) }
                                        }
                                    }
                                },
                                ReportPart::Table(head, rows) => div.scroll tabindex="0" role="region" aria-label="Figures" {
                                    table {
                                        thead { tr { @for (at, name) in head.iter().enumerate() {
                                            th.number[at > 0] scope="col" { (name) }
                                        } } }
                                        tbody { @for row in rows { tr {
                                            @for (at, cell) in row.iter().enumerate() {
                                                @if at == 0 { th scope="row" { (cell) } } @else { td.number { (cell) } }
                                            }
                                        } } }
                                    }
                                },
                            }
                        }
                    }
                }
            }
        };
        page.into_string()
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.html())
    }
}

/// Returns the chart of the distribution function of latencies in milliseconds, with the SLO.
pub fn latency_cdf(latencies_ms: &[f64], slo_ms: Option<f64>) -> (String, String, Chart) {
    let mut sorted = latencies_ms.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let at = |share: f64| sorted.get(((count as f64 * share) as usize).min(count.saturating_sub(1))).copied();
    let last = at(1.0).unwrap_or(1.0);
    let steps = MOST_POINTS.min(count.max(1));
    let points = (0..=steps).filter_map(|step| {
        let share = step as f64 / steps as f64;
        Some((at(share)?, share * 100.0))
    });
    let mut marks = vec![ChartMark::Line(Tone::Main, points.collect())];
    let to = slo_ms.map_or(last, |slo| last.max(slo)) * 1.05;
    if let Some(slo) = slo_ms {
        marks.push(ChartMark::LimitX(slo, "SLO".to_owned()));
    }
    let ms = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2} ms"));
    let words = format!("Latencies of {count} answers: median {}, 99th percentile {}", ms(at(0.5)), ms(at(0.99)));
    let chart =
        Chart { x: ChartAxis::new("latency in ms", to), y: ChartAxis::new("answers in %", 100.0), marks, size: SIZE };
    ("Latency".to_owned(), words, chart)
}

/// Returns the chart of the number of batches by their number of rows.
pub fn batch_sizes(rows: &[usize]) -> (String, String, Chart) {
    let most = rows.iter().copied().max().unwrap_or(1);
    let mut counts = vec![0.0; most + 1];
    rows.iter().for_each(|&rows| counts[rows] += 1.0);
    let top = counts.iter().copied().fold(1.0, f64::max);
    let bars = counts.iter().enumerate().map(|(rows, count)| (rows as f64, *count)).collect();
    let mean = rows.iter().sum::<usize>() as f64 / rows.len().max(1) as f64;
    let words = format!("{} batches of {mean:.1} rows in the mean, at most {most}", rows.len());
    let x = ChartAxis { label: "rows in a batch".to_owned(), from: 0.5, to: most as f64 + 0.5 };
    let marks = vec![ChartMark::Bars(Tone::Main, 0.8, bars)];
    ("Batch sizes".to_owned(), words, Chart { x, y: ChartAxis::new("batches", top * 1.1), marks, size: SIZE })
}

/// Returns the chart of what devices do, in colours by model.
pub fn device_timeline(spans: &[DeviceSpan], from_ms: f64, to_ms: f64) -> (String, String, Chart) {
    let devices = spans.iter().map(|span| span.device + 1).max().unwrap_or(1);
    let inside = || spans.iter().filter(|span| span.to_ms > from_ms && span.from_ms < to_ms);
    let mark = |(at, tone): (usize, Tone)| {
        let of = inside().filter(|span| span.model % TONES.len() == at);
        let corners = of.map(|span| {
            let y = (devices - 1 - span.device) as f64;
            [(span.from_ms.max(from_ms), y + 0.15), (span.to_ms.min(to_ms), y + 0.85)]
        });
        ChartMark::Boxes(tone, corners.collect())
    };
    let marks = TONES.into_iter().enumerate().map(mark).collect();
    let x = ChartAxis { label: "ms".to_owned(), from: from_ms, to: to_ms };
    let y = ChartAxis::new("device, the first on top", devices as f64);
    let size = (1160, 90 + LANE_HEIGHT * devices.min(20) as u32);
    let words = format!("{} batches on {devices} devices from {from_ms:.1} to {to_ms:.1} ms", inside().count());
    ("Devices".to_owned(), words, Chart { x, y, marks, size })
}

/// Returns a chart of one value for each name, as bars numbered from 1.
pub fn bars(title: &str, unit: &str, values: &[f64]) -> (String, String, Chart) {
    let top = values.iter().copied().fold(1e-9, f64::max);
    let points = values.iter().enumerate().map(|(at, value)| (at as f64 + 1.0, *value)).collect();
    let x = ChartAxis { label: "row of the table".to_owned(), from: 0.5, to: values.len() as f64 + 0.5 };
    let chart = Chart {
        x,
        y: ChartAxis::new(unit, top * 1.1),
        marks: vec![ChartMark::Bars(Tone::Main, 0.7, points)],
        size: SIZE,
    };
    let each: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
    (title.to_owned(), format!("{title} in {unit}: {}", each.join(", ")), chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_file_that_loads_nothing() {
        let spans = [DeviceSpan { device: 1, model: 0, from_ms: 0.0, to_ms: 3.0 }];
        let charts = vec![
            latency_cdf(&[3.0, 1.0, 2.0], Some(2.5)),
            batch_sizes(&[1, 4, 4]),
            device_timeline(&spans, 0.0, 10.0),
            bars("Goodput", "requests/s", &[10.0, 20.0]),
        ];
        let table = ReportPart::Table(vec!["a".into(), "b".into()], vec![vec!["<x>".into(), "1".into()]]);
        let parts = vec![ReportPart::Heading("All".into()), ReportPart::Charts(charts), table];
        let html = HtmlReport { title: "T".into(), subtitle: "S".into(), parts }.html();
        assert!(html.contains("&lt;x&gt;") && html.contains("median 2.00 ms"), "{html}");
        assert_eq!(html.matches("<svg").count(), 4);
        let addresses = html.matches("http").count() - html.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(addresses, 0, "only the name of SVG is an address");
    }

    #[test]
    fn empty_runs_have_reports_too() {
        let charts =
            vec![latency_cdf(&[], None), batch_sizes(&[]), device_timeline(&[], 0.0, 0.0), bars("x", "y", &[])];
        assert!(
            HtmlReport { parts: vec![ReportPart::Charts(charts)], ..HtmlReport::default() }.html().contains("</html>")
        );
    }
}
