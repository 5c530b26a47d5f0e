//! Items and reports as text.

use super::item::{ExperimentItem, FinishedItem, ResultRow};
use super::{items, live_form};
use ripieno_report::{Table, number};
use std::fmt;

/// Returns ids and titles of all items, one per line, with a mark if they have a live form.
pub fn list_as_text() -> String {
    let widest = items().map(|item| item.id.len()).max().unwrap_or(0);
    let mark = |item: &ExperimentItem| if live_form(item).is_some() { " (--live)" } else { "" };
    let lines: Vec<_> = items().map(|item| format!("{:<widest$}  {}{}", item.id, item.title, mark(item))).collect();
    lines.join("\n")
}

/// Returns ids and titles of all items, with the papers' statements.
pub fn list_as_json() -> serde_json::Value {
    let item = |item: &ExperimentItem| {
        let live = live_form(item).is_some();
        serde_json::json!({ "item": item.id, "title": item.title, "paper": item.says, "live": live })
    };
    serde_json::json!({ "items": items().map(item).collect::<Vec<_>>() })
}

impl fmt::Display for FinishedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FinishedItem { item, report, plot, live } = self;
        writeln!(f, "{}: {}", item.id, item.title)?;
        writeln!(f, "The paper: {}", item.says)?;
        let notes = notes(&report.rows);
        writeln!(f, "{}", table(&report.rows, &notes, *live))?;
        for (index, note) in (1..).zip(&notes) {
            writeln!(f, " [{index}] {note}")?;
        }
        writeln!(f, "plot: {}", plot.display())
    }
}

/// Returns every note once, in the order of first use.
fn notes(rows: &[ResultRow]) -> Vec<&str> {
    let mut notes: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        if !notes.contains(&row.note.as_str()) {
            notes.push(&row.note);
        }
    }
    notes
}

/// Returns the table of the rows; in a live one the ratio is the measured number over ours.
fn table(rows: &[ResultRow], notes: &[&str], live: bool) -> Table {
    let is_measured = rows.iter().any(|row| row.measured.is_some());
    let headings = match live {
        true => ["name", "unit", "paper", "simulated", "of seeds", "live", "live/simulated", "note"],
        false => ["name", "unit", "paper", "ours", "of seeds", "measured", "ratio", "note"],
    };
    let mut table = Table::new(headings.into_iter().filter(|&heading| is_measured || heading != "measured"));
    let optional = |value: Option<f64>| value.map_or("–".to_owned(), exact);
    for row in rows {
        let note = notes.iter().position(|&note| note == row.note).map(|index| format!("[{}]", index + 1));
        let ratio = if live { row.measured_ratio() } else { row.ratio() };
        let ratio = ratio.filter(|ratio| ratio.is_finite()).map_or("–".to_owned(), |ratio| format!("{ratio:.3}"));
        let (paper, ours) = (optional(row.paper), exact(row.ours));
        let range = row.seeds.map(|(low, high, _)| format!("{} to {}", exact(low), exact(high)));
        let measured = (is_measured || live).then(|| optional(row.measured));
        let (range, mark) = (range.unwrap_or_default(), row.fitted.then(|| "fitted".to_owned()));
        let note: Vec<_> = mark.into_iter().chain(note).collect();
        let first = [row.name.clone(), row.unit.to_owned(), paper, ours, range];
        table.row(first.into_iter().chain(measured).chain([ratio, note.join(" ")]));
    }
    table
}

/// Formats a number; below a hundred with up to three decimals, so that exact values look exact.
fn exact(value: f64) -> String {
    if !value.is_finite() || value.abs() >= 100.0 {
        return number(value);
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
