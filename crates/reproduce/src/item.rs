//! What can be reproduced, and what comes out.

use super::context::Context;
use anyhow::Context as _;
use ripieno_report::number;
use ripieno_report::plot::Figure;
use serde::{Serialize, Serializer};
use std::fs;
use std::path::{Path, PathBuf};

/// A figure or table of a paper.
#[derive(Debug)]
pub struct Item {
    /// `paper/item`, as on the command line.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What the paper says about it, in our words.
    pub says: &'static str,
    /// Runs it.
    pub run: fn(&Context) -> anyhow::Result<Report>,
}

/// The result of an item.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the plot.
    pub rows: Vec<Row>,
    /// The plot.
    pub figure: Figure,
}

/// One number of the paper, or one that it only shows as a picture, beside ours.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is, unique in a report.
    pub name: String,
    /// The unit of all its numbers.
    pub unit: &'static str,
    /// None where the paper's text gives no number; nothing is read off its pictures.
    pub paper: Option<f64>,
    /// The mean, if there are several seeds.
    pub ours: f64,
    /// The same on this machine, on a wall clock, where the user asks for it and the item can.
    pub measured: Option<f64>,
    /// The lowest and highest of several seeds, and how many.
    pub seeds: Option<(f64, f64, u64)>,
    /// Whether it hangs on a constant that was chosen so that a result of the paper comes out: then it is no evidence.
    pub fitted: bool,
    /// Why they differ, or what to know about the number; may be empty.
    pub note: String,
}

/// An item that was run, with its plot on disk; printed, it is the text for people.
#[derive(Clone, Debug)]
pub struct Done {
    pub(super) item: &'static Item,
    pub(super) report: Report,
    pub(super) plot: PathBuf,
}

impl Item {
    /// Runs it and writes its plot into the folder `out`.
    pub fn reproduce(&'static self, context: &Context, out: &Path) -> anyhow::Result<Done> {
        let report = (self.run)(context).with_context(|| format!("{} cannot be reproduced", self.id))?;
        let plot = out.join(format!("{}.svg", self.id));
        let folder = plot.parent().unwrap_or(out);
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        fs::write(&plot, report.figure.svg()).with_context(|| format!("cannot write {}", plot.display()))?;
        Ok(Done { item: self, report, plot })
    }
}

impl Done {
    /// The same for programs.
    pub fn json(&self) -> serde_json::Value {
        let plot = self.plot.display().to_string();
        serde_json::json!({ "item": self.item.id, "rows": self.report.rows, "plot": plot })
    }
}

impl Row {
    pub(super) fn new(name: impl Into<String>, unit: &'static str, ours: f64) -> Row {
        let (name, note) = (name.into(), String::new());
        Row { name, unit, paper: None, ours, measured: None, seeds: None, fitted: false, note }
    }

    /// With what the paper says, if it does.
    pub(super) fn paper(self, paper: impl Into<Option<f64>>) -> Row {
        Row { paper: paper.into(), ..self }
    }

    /// With what real cells gave.
    pub(super) fn measured(self, measured: impl Into<Option<f64>>) -> Row {
        Row { measured: measured.into(), ..self }
    }

    /// With the range over several seeds.
    pub(super) fn seeds(self, low: f64, high: f64, count: u64) -> Row {
        Row { seeds: (count > 1).then_some((low, high, count)), ..self }
    }

    /// With the mark of what hangs on a fitted constant, if it does.
    pub(super) fn fitted(self, fitted: bool) -> Row {
        Row { fitted, ..self }
    }

    /// With a sentence about it; several are joined.
    pub(super) fn note(mut self, note: impl AsRef<str>) -> Row {
        if !self.note.is_empty() && !note.as_ref().is_empty() {
            self.note.push(' ');
        }
        self.note.push_str(note.as_ref());
        self
    }

    /// Ours over the paper's.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.paper.filter(|&paper| paper != 0.0).map(|paper| self.ours / paper)
    }
}

impl Serialize for Row {
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
        let Row { name, unit, paper, ours, measured, seeds, fitted, note } = self;
        let range = seeds.map(|(low, high, count)| format!("{count} seeds: {} to {}.", number(low), number(high)));
        let note = &[range.as_deref().unwrap_or(""), note].join(" ");
        let note = note.trim();
        let ratio = self.ratio();
        let (&paper, &ours, &measured, &fitted) = (paper, ours, measured, fitted);
        Fields { name, unit, paper, ours, measured, ratio, fitted, note }.serialize(serializer)
    }
}
