//! Items and reports for people.

use super::item::{Item, Report, Row};
use crate::output::{self, print_json};
use ripieno_report::{Format, Table, number};
use std::path::Path;

pub(super) fn list(items: &[&Item], format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        let item = |item: &&Item| serde_json::json!({ "item": item.id, "title": item.title, "paper": item.says });
        let items: Vec<_> = items.iter().map(item).collect();
        return print_json(&serde_json::json!({ "items": items }));
    }
    let widest = items.iter().map(|item| item.id.len()).max().unwrap_or(0);
    for item in items {
        output::print(format!("{:<widest$}  {}", item.id, item.title))?;
    }
    Ok(())
}

pub(super) fn report(item: &Item, report: &Report, plot: &Path) -> anyhow::Result<()> {
    output::print(format!("{}: {}", item.id, item.title))?;
    output::print(format!("The paper: {}", item.says))?;
    let notes = notes(&report.rows);
    output::print(table(&report.rows, &notes))?;
    for (index, note) in (1..).zip(&notes) {
        output::print(format!(" [{index}] {note}"))?;
    }
    output::print(format!("plot: {}\n", plot.display()))
}

/// Every note once, in the order of first use.
fn notes(rows: &[Row]) -> Vec<&str> {
    let mut notes: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        if !notes.contains(&row.note.as_str()) {
            notes.push(&row.note);
        }
    }
    notes
}

fn table(rows: &[Row], notes: &[&str]) -> Table {
    let is_measured = rows.iter().any(|row| row.measured.is_some());
    let headings = ["name", "unit", "paper", "ours", "of seeds", "measured", "ratio", "note"];
    let mut table = Table::new(headings.into_iter().filter(|&heading| is_measured || heading != "measured"));
    let optional = |value: Option<f64>| value.map_or("–".to_owned(), exact);
    for row in rows {
        let note = notes.iter().position(|&note| note == row.note).map(|index| format!("[{}]", index + 1));
        let ratio = row.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.3}"));
        let (paper, ours) = (optional(row.paper), exact(row.ours));
        let range = row.seeds.map(|(low, high, _)| format!("{} to {}", exact(low), exact(high)));
        let measured = is_measured.then(|| optional(row.measured));
        let (range, note) = (range.unwrap_or_default(), note.unwrap_or_default());
        let first = [row.name.clone(), row.unit.to_owned(), paper, ours, range];
        table.row(first.into_iter().chain(measured).chain([ratio, note]));
    }
    table
}

/// Below a hundred with up to three decimals, so that exact values look exact.
fn exact(value: f64) -> String {
    if !value.is_finite() || value.abs() >= 100.0 {
        return number(value);
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
