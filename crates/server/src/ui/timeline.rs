//! The timeline of the devices: a bar for each batch.
//!
//! It is written as SVG here: plotters draws shapes, but no links, and each bar leads to its batch.
//! Consecutive bars of a lane that would be thinner than a pixel are merged.

use super::format;
use super::view::View;
use maud::{Markup, html};
use ripieno_base::{DeviceId, LaneId, Nanos, Time};
use ripieno_runtime::history::{History, TaskOutcome, TaskRecord};

/// Width of the drawing.
const WIDTH: f64 = 1160.0;
/// Room for the names of the lanes.
const LEFT: f64 = 76.0;
const LANE: f64 = 34.0;
const AXIS: f64 = 26.0;
/// Number of colours; models beyond share them.
const COLOURS: usize = 8;
/// Width from which on a bar has a label.
const LABELLED: f64 = 54.0;

/// A span of the history to draw.
pub(super) struct Timeline<'a> {
    pub(super) history: &'a History,
    pub(super) from: Time,
    pub(super) to: Time,
    /// Number of a call whose batches stand out, if any.
    pub(super) call: Option<u64>,
    /// Instants to mark, with their names.
    pub(super) moments: Vec<(Time, &'static str)>,
}

/// Consecutive batches of one model that are drawn as one bar.
struct TimelineBar<'a> {
    first: &'a TaskRecord,
    x: f64,
    width: f64,
    count: u32,
    rows: u32,
}

impl Timeline<'_> {
    pub(super) fn render(&self) -> Markup {
        let lanes = self.lanes();
        let height = AXIS + LANE * lanes.len().max(1) as f64 + 8.0;
        let summary = format!("Batches on {} lanes within {}", lanes.len(), format::span(self.to - self.from));
        html! {
            div.scroll.timeline tabindex="0" role="region" aria-label=(summary) {
                svg viewBox=(format!("0 0 {WIDTH} {height}")) width=(WIDTH) height=(height) {
                    (self.axis(height))
                    @for (at, (device, lane)) in lanes.iter().enumerate() {
                        @let y = AXIS + LANE * at as f64;
                        text.lane x="0" y=(y + LANE / 2.0 + 5.0) {
                            "device " (device.0) @if lane.0 > 0 { "." (lane.0) }
                        }
                        rect.track x=(LEFT) y=(y + 3.0) width=(WIDTH - LEFT) height=(LANE - 6.0) rx="3" {}
                        @for bar in self.bars(*device, *lane) { (self.bar(&bar, y)) }
                    }
                    // Names stand in two rows, so that names of near instants do not overlap.
                    @for (number, (at, name)) in self.moments.iter().enumerate() {
                        @let x = round(self.x(*at));
                        @let up = if number % 2 == 0 { 12.0 } else { 0.0 };
                        line.moment x1=(x) x2=(x) y1=(AXIS - 4.0 - up) y2=(height) {}
                        @if x > WIDTH - 80.0 {
                            text.moment x=(x - 3.0) y=(AXIS - 3.0 - up) text-anchor="end" { (name) }
                        } @else {
                            text.moment x=(x + 3.0) y=(AXIS - 3.0 - up) { (name) }
                        }
                    }
                }
            }
            (self.legend())
        }
    }

    fn lanes(&self) -> Vec<(DeviceId, LaneId)> {
        let mut lanes: Vec<_> = self.history.devices().into_iter().map(|(device, _)| (device, LaneId(0))).collect();
        lanes.extend(self.tasks().map(|task| (task.device, task.lane)));
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    }

    fn tasks(&self) -> impl Iterator<Item = &TaskRecord> {
        let inside = |task: &&TaskRecord| task.started < self.to && task.finished.is_none_or(|end| end > self.from);
        self.history.tasks().filter(inside)
    }

    fn x(&self, at: Time) -> f64 {
        let share = (at - self.from).0 as f64 / ((self.to - self.from).0 as f64).max(1.0);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT)
    }

    fn bars(&self, device: DeviceId, lane: LaneId) -> Vec<TimelineBar<'_>> {
        let mut bars: Vec<TimelineBar<'_>> = Vec::new();
        let mut tasks: Vec<_> = self.tasks().filter(|task| task.device == device && task.lane == lane).collect();
        tasks.sort_by_key(|task| task.started);
        for task in tasks {
            let (x, end) = (self.x(task.started), self.x(task.finished.unwrap_or(self.to)));
            let stands_out = |task: &TaskRecord| self.call.is_some_and(|call| task.calls.contains(&call));
            if let Some(last) = bars.last_mut()
                && last.first.model == task.model
                && end - last.x < 2.5
                && !stands_out(task)
                && !stands_out(last.first)
            {
                (last.width, last.count, last.rows) = (end - last.x, last.count + 1, last.rows + task.rows);
                continue;
            }
            bars.push(TimelineBar { first: task, x, width: end - x, count: 1, rows: task.rows });
        }
        bars
    }

    fn bar(&self, bar: &TimelineBar<'_>, y: f64) -> Markup {
        let task = bar.first;
        let model = &self.history.models()[task.model].model;
        let block =
            (model.blocks.len() > 1).then(|| model.blocks.get(task.block.index()).map(|b| b.name.as_str())).flatten();
        let most =
            model.blocks.get(task.block.index()).map_or(1, |block| block.max_batch().min(model.max_batch).max(1));
        let name = match block {
            Some(block) => format!("{} {block}", model.name),
            None => model.name.clone(),
        };
        let fill = f64::from(task.rows) / most as f64;
        let words = match bar.count {
            1 => format!("{name} {} of {most} rows, {}", task.rows, format::span(task.took())),
            count => format!("{name}: {count} batches of {} rows in all", bar.rows),
        };
        let failed = task.outcome.is_some_and(|outcome| outcome != TaskOutcome::Ok);
        let other = self.call.is_some_and(|call| !task.calls.contains(&call));
        let (height, width) = (LANE - 6.0, bar.width.max(1.5));
        html! {
            a href=(View::Task(task.decided, task.device.0).path()) data-detail="" aria-label=(words) {
                title { (words) }
                rect.bar.{ "c" (task.model % COLOURS) }.failed[failed].other[other] x=(round(bar.x)) y=(y + 3.0) width=(round(width)) height=(height) rx="2" {}
                // The part of the batch's room that its rows fill.
                rect.fill x=(round(bar.x)) y=(round(y + 3.0 + height * (1.0 - fill.min(1.0)))) width=(round(width)) height=(round(height * fill.min(1.0))) rx="2" {}
                @if bar.width > LABELLED && bar.count == 1 {
                    text.label x=(round(bar.x + 5.0)) y=(y + LANE / 2.0 + 5.0) { (fitting(&name, bar.width - 40.0)) " " (task.rows) }
                }
            }
        }
    }

    fn axis(&self, height: f64) -> Markup {
        let span = (self.to - self.from).as_millis_f64().max(1e-3);
        let step = tick(span / 8.0);
        let ticks = (0..=64).map(|at| f64::from(at) * step).take_while(|at| *at <= span);
        html! {
            @for back in ticks {
                @let x = WIDTH - back / span * (WIDTH - LEFT);
                line.grid x1=(round(x)) x2=(round(x)) y1=(AXIS - 4.0) y2=(height) {}
                @if self.moments.is_empty() {
                    text.tick x=(round(x - 4.0)) y=(AXIS - 10.0) text-anchor="end" {
                        @if back == 0.0 { "now" } @else { "−" (format::length(back)) }
                    }
                }
            }
        }
    }

    fn legend(&self) -> Markup {
        let mut models: Vec<usize> = self.tasks().map(|task| task.model).collect();
        models.sort_unstable();
        models.dedup();
        html! {
            ul.legend aria-label="Colours of the models" {
                @for model in models {
                    li { span.swatch.{ "c" (model % COLOURS) } aria-hidden="true" {} (self.history.models()[model].model.name) }
                }
                li.note { "the shaded part of a bar is how full the batch was" }
            }
        }
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Returns a step of 1, 2 or 5 times a power of ten, at least `wanted`.
fn tick(wanted: f64) -> f64 {
    let power = 10f64.powf(wanted.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= wanted).unwrap_or(wanted)
}

/// Returns the name if it fits into a width in pixels, or nothing: text that is seen must be part
/// of the name that is read aloud.
fn fitting(name: &str, width: f64) -> &str {
    if name.chars().count() as f64 * 7.5 <= width { name } else { "" }
}

/// The span that a timeline shows around a call's life.
pub(super) fn around(from: Time, to: Time) -> (Time, Time) {
    let pad = Nanos(((to - from).0 / 8).max(200_000));
    (from - pad, to + pad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_names_fit() {
        assert_eq!((tick(0.3), tick(125.0), tick(2.0)), (0.5, 200.0, 2.0));
        assert_eq!((fitting("resnet", 100.0), fitting("resnet", 30.0)), ("resnet", ""));
    }
}
