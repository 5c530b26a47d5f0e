//! The results file: a line of JSON an item, with what made it, so that a document can be held against it.
//!
//! `ripieno reproduce` writes the lines of the items that it runs and leaves the others as they are. With `all`, a line that this very
//! program made with the same effort stands for its run; so a call that was interrupted goes on with the next item.

use super::item::{Done, Item};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Items that were run, in the order in which they are listed.
#[derive(Debug)]
pub struct Results {
    file: PathBuf,
    lines: Vec<Value>,
    made_by: Value,
}

/// What makes results: those of a different program, effort or number of seeds are others.
#[derive(Clone, Debug)]
pub struct Maker {
    /// The commit of the checkout in which the program runs, with a mark if files differ from it.
    pub commit: Option<String>,
    /// The hash of the program, see [`Queue::program`](super::Queue::program).
    pub program: String,
    /// "usual" or "full"; quick runs are not kept.
    pub effort: &'static str,
    /// The seeds a point that the user asks for, if he does.
    pub seeds: Option<u64>,
}

impl Results {
    /// Reads the file if it exists; new lines say who made them.
    pub fn open(file: PathBuf, maker: &Maker) -> anyhow::Result<Results> {
        let lines = if file.exists() { read(&file)? } else { Vec::new() };
        let Maker { commit, program, effort, seeds } = maker;
        let made_by = json!({ "commit": commit, "program": program, "effort": effort, "seeds": seeds });
        Ok(Results { file, lines, made_by })
    }

    /// The line of an item, if this very program made it with the same effort.
    pub fn line(&self, item: &Item) -> Option<&Value> {
        let same = |line: &&Value| ["program", "effort", "seeds"].iter().all(|&key| line[key] == self.made_by[key]);
        self.lines.iter().filter(|line| line["item"] == item.id).find(same)
    }

    /// Where the lines stand.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Puts the line of an item into the file, which is whole at any time.
    pub fn put(&mut self, done: &Done) -> anyhow::Result<()> {
        let rows = &done.report.rows;
        let seeds = rows.iter().filter_map(|row| row.seeds).map(|(_, _, count)| count).max().unwrap_or(1);
        let mut line = json!({ "item": done.item.id, "seeds_a_point": seeds, "rows": rows });
        for (key, value) in self.made_by.as_object().into_iter().flatten() {
            line[key] = value.clone();
        }
        self.lines.retain(|line| line["item"] != done.item.id);
        self.lines.push(line);
        let place = |line: &Value| super::items().position(|item| line["item"] == item.id);
        self.lines.sort_by_key(place);
        let text: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        let unfinished = self.file.with_extension(format!("{}.part", std::process::id()));
        std::fs::write(&unfinished, text)
            .and_then(|()| std::fs::rename(&unfinished, &self.file))
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let line = |(number, line): (usize, &str)| {
        let value: Value = serde_json::from_str(line).with_context(|| {
            format!("line {} of {} is no JSON; remove it, and its item is run again", number + 1, file.display())
        })?;
        if value["item"].is_string() && value["rows"].is_array() {
            return Ok(value);
        }
        bail!("line {} of {} names no item with rows; remove it", number + 1, file.display())
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(line).collect()
}
