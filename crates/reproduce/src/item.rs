//! The items that can be reproduced, and their results.

use super::context::ReproduceContext;
use anyhow::Context as _;
use ripieno_report::number;
use ripieno_report::plot::Figure;
use serde::{Serialize, Serializer};
use std::fs;
use std::path::{Path, PathBuf};

/// A figure or table of a paper.
#[derive(Debug)]
pub struct ExperimentItem {
    /// `paper/item`, as on the command line.
    pub id: &'static str,
    /// Title.
    pub title: &'static str,
    /// The paper's statement, in our words.
    pub says: &'static str,
    /// Runs the item.
    pub run: fn(&ReproduceContext) -> anyhow::Result<ItemReport>,
}

/// Runs an item.
pub(super) type RunItem = fn(&ReproduceContext) -> anyhow::Result<ItemReport>;

/// The result of an item.
#[derive(Clone, Debug)]
pub struct ItemReport {
    /// The rows, in the order of the plot.
    pub rows: Vec<ResultRow>,
    /// The plot.
    pub figure: Figure,
}

/// A number of the paper, or one that it only shows in a picture, with ours.
#[derive(Clone, Debug)]
pub struct ResultRow {
    /// Name, unique in a report.
    pub name: String,
    /// Unit of all its numbers.
    pub unit: &'static str,
    /// The paper's number; `None` if its text gives none. Nothing is read off its pictures.
    pub paper: Option<f64>,
    /// Our number; the mean, if there are several seeds.
    pub ours: f64,
    /// The number measured on this machine on a wall clock, if the user requests it and the item
    /// supports it.
    pub measured: Option<f64>,
    /// The lowest and highest of several seeds, and their number.
    pub seeds: Option<(f64, f64, u64)>,
    /// True if it depends on a constant that was fitted to a result of the paper: then it is no
    /// evidence.
    pub fitted: bool,
    /// The reason for a difference, or a remark on the number; may be empty.
    pub note: String,
}

/// An item that was run, with its plot on disk; displays as text for people.
#[derive(Clone, Debug)]
pub struct FinishedItem {
    pub(super) item: &'static ExperimentItem,
    pub(super) report: ItemReport,
    pub(super) plot: PathBuf,
    /// True for the live form: the rows have the simulation's number and the measured one.
    pub(super) live: bool,
}

impl ExperimentItem {
    /// Runs a form of the item, and writes its plot.
    pub(super) fn finish(
        &'static self,
        run: impl Fn(&ReproduceContext) -> anyhow::Result<ItemReport>,
        live: bool,
        context: &ReproduceContext,
        out: &Path,
    ) -> anyhow::Result<FinishedItem> {
        let report = run(context).with_context(|| format!("{} cannot be reproduced", self.id))?;
        let plot = out.join(format!("{}{}.svg", self.id, if live { "-live" } else { "" }));
        let folder = plot.parent().unwrap_or(out);
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        fs::write(&plot, report.figure.svg()).with_context(|| format!("cannot write {}", plot.display()))?;
        Ok(FinishedItem { item: self, report, plot, live })
    }
}

impl FinishedItem {
    /// Returns the results as JSON.
    pub fn json(&self) -> serde_json::Value {
        let plot = self.plot.display().to_string();
        let mut json = serde_json::json!({ "item": self.item.id, "rows": self.report.rows, "plot": plot });
        if self.live {
            json["live"] = true.into();
        }
        json
    }
}

impl ResultRow {
    pub(super) fn new(name: impl Into<String>, unit: &'static str, ours: f64) -> ResultRow {
        let (name, note) = (name.into(), String::new());
        ResultRow { name, unit, paper: None, ours, measured: None, seeds: None, fitted: false, note }
    }

    /// Adds the paper's number, if there is one.
    pub(super) fn paper(self, paper: impl Into<Option<f64>>) -> ResultRow {
        ResultRow { paper: paper.into(), ..self }
    }

    /// Adds the number measured on real cells.
    pub(super) fn measured(self, measured: impl Into<Option<f64>>) -> ResultRow {
        ResultRow { measured: measured.into(), ..self }
    }

    /// Adds the range over several seeds.
    pub(super) fn seeds(self, low: f64, high: f64, count: u64) -> ResultRow {
        ResultRow { seeds: (count > 1).then_some((low, high, count)), ..self }
    }

    /// Marks a row that depends on a fitted constant.
    pub(super) fn fitted(self, fitted: bool) -> ResultRow {
        ResultRow { fitted, ..self }
    }

    /// Adds a sentence to the note.
    pub(super) fn note(mut self, note: impl AsRef<str>) -> ResultRow {
        if !self.note.is_empty() && !note.as_ref().is_empty() {
            self.note.push(' ');
        }
        self.note.push_str(note.as_ref());
        self
    }

    /// Returns the measured number divided by ours.
    pub(super) fn measured_ratio(&self) -> Option<f64> {
        self.measured.filter(|_| self.ours != 0.0).map(|measured| measured / self.ours)
    }

    /// Returns our number divided by the paper's.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.paper.filter(|&paper| paper != 0.0).map(|paper| self.ours / paper)
    }
}

impl Serialize for ResultRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            name: &'a str,
            unit: &'a str,
            paper: Option<f64>,
            ours: f64,
            #[serde(skip_serializing_if = "Option::is_none")]
            measured: Option<f64>,
            ratio: Option<f64>,
            fitted: bool,
            note: &'a str,
        }
        let ResultRow { name, unit, paper, ours, measured, seeds, fitted, note } = self;
        let range = seeds.map(|(low, high, count)| format!("{count} seeds: {} to {}.", number(low), number(high)));
        let note = &[range.as_deref().unwrap_or(""), note].join(" ");
        let note = note.trim();
        let ratio = self.ratio();
        let (&paper, &ours, &measured, &fitted) = (paper, ours, measured, fitted);
        Fields { name, unit, paper, ours, measured, ratio, fitted, note }.serialize(serializer)
    }
}
