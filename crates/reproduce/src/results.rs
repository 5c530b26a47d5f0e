//! The results file: a line of JSON per item, with its origin, so that documents can be checked
//! against it.
//!
//! `ripieno reproduce` writes the lines of the items that it runs and leaves the others unchanged.
//! With `all`, a line that this very program made with the same effort replaces its run; so an
//! interrupted command continues with the next item.

use super::item::{ExperimentItem, FinishedItem};
use super::sources;
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The items that were run, in the order of the list.
#[derive(Debug)]
pub struct ResultsFile {
    file: PathBuf,
    lines: Vec<ResultLine>,
    made_by: Value,
}

/// A line of the file. Its text is copied as it is: numbers that are parsed and written again drift
/// in their last digit.
#[derive(Debug)]
struct ResultLine {
    text: String,
    value: Value,
}

/// The origin of results: another program, effort or number of seeds gives other results.
#[derive(Clone, Debug)]
pub struct Maker {
    /// The commit of the checkout in which the program runs, with a mark if files differ from it.
    pub commit: Option<String>,
    /// Hash of the program, see [`JobQueue::program`](super::JobQueue::program).
    pub program: String,
    /// "usual" or "full"; quick runs are not kept.
    pub effort: &'static str,
    /// Number of seeds per point, if the user sets it.
    pub seeds: Option<u64>,
}

impl ResultsFile {
    /// Reads the file if it exists; new lines get this origin.
    pub fn open(file: PathBuf, maker: &Maker) -> anyhow::Result<ResultsFile> {
        let lines = if file.exists() { read(&file)? } else { Vec::new() };
        let Maker { commit, program, effort, seeds } = maker;
        let made_by = json!({ "commit": commit, "program": program, "effort": effort, "seeds": seeds });
        Ok(ResultsFile { file, lines, made_by })
    }

    /// Returns the line of an item, if this very program made it with the same effort.
    pub fn line(&self, item: &ExperimentItem) -> Option<&Value> {
        let same = |line: &&Value| ["program", "effort", "seeds"].iter().all(|&key| line[key] == self.made_by[key]);
        self.lines.iter().map(|line| &line.value).filter(|line| line["item"] == item.id).find(same)
    }

    /// Returns the path of the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Writes the line of an item to the file, atomically.
    pub fn put(&mut self, done: &FinishedItem) -> anyhow::Result<()> {
        let rows = &done.report.rows;
        let seeds = rows.iter().filter_map(|row| row.seeds).map(|(_, _, count)| count).max().unwrap_or(1);
        let mut line = json!({ "item": done.item.id, "seeds_a_point": seeds, "rows": rows });
        for (key, value) in self.made_by.as_object().into_iter().flatten() {
            line[key] = value.clone();
        }
        line["sources"] = Value::from(sources::hash(done.item.id));
        self.lines.retain(|line| line.value["item"] != done.item.id);
        self.lines.push(ResultLine { text: line.to_string(), value: line });
        let place = |line: &ResultLine| super::items().position(|item| line.value["item"] == item.id);
        self.lines.sort_by_key(place);
        let text: String = self.lines.iter().map(|line| format!("{}\n", line.text)).collect();
        let unfinished = self.file.with_extension(format!("{}.part", std::process::id()));
        std::fs::write(&unfinished, text)
            .and_then(|()| std::fs::rename(&unfinished, &self.file))
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<ResultLine>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let line = |(number, line): (usize, &str)| {
        let value: Value = serde_json::from_str(line).with_context(|| {
            format!("line {} of {} is no JSON; remove it, and its item is run again", number + 1, file.display())
        })?;
        if value["item"].is_string() && value["rows"].is_array() {
            return Ok(ResultLine { text: line.to_owned(), value });
        }
        bail!("line {} of {} names no item with rows; remove it", number + 1, file.display())
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(line).collect()
}
