//! The results of all comparisons: a row for each scenario and measure, and their totals.

use super::contest::{ContestPlan, FinishedContest, Measure, MeasureRow};
use super::inputs::Skipped;
use crate::output::{self, print_json};
use crate::report_file::ComparedRow;
use ripieno_report::{Format, Table, number};
use ripieno_sched::Objective;
use serde::Serialize;
use std::fmt::Write;

/// The results of all comparisons.
#[derive(Serialize)]
pub(super) struct ContestResults {
    objective: &'static str,
    loads: Vec<f64>,
    all_as_served: bool,
    lanes: bool,
    pub(super) contests: Vec<FinishedContest>,
    pub(super) skipped: Vec<Skipped>,
    summary: Vec<Total>,
}

/// All ratios of one measure at one load.
#[derive(Serialize)]
struct Total {
    measure: Measure,
    load: Option<f64>,
    scenarios: usize,
    geometric_mean: f64,
    minimum: f64,
    /// The scenario with the minimum.
    minimum_at: String,
    /// Fraction of the scenarios with a ratio of at least 0.98.
    at_least_098: f64,
    at_least_100: f64,
}

/// Lower bound on a ratio in the geometric mean, so that one failure does not hide everything else.
const LEAST: f64 = 0.05;
/// Ratio above which a difference is chance.
const NEAR: f64 = 0.98;

impl ContestResults {
    pub(super) fn new(objective: Objective, plan: &ContestPlan<'_>, skipped: Vec<Skipped>) -> ContestResults {
        ContestResults {
            objective: objective.name(),
            loads: plan.loads.clone(),
            all_as_served: plan.rules.all_as_served,
            lanes: plan.rules.lanes,
            contests: Vec::new(),
            skipped,
            summary: Vec::new(),
        }
    }

    pub(super) fn print(&mut self, format: Format) -> anyhow::Result<()> {
        self.summary = totals(&self.contests);
        if format == Format::Json {
            return print_json(self);
        }
        output::print(self.rows())?;
        for contest in self.contests.iter().filter(|contest| !contest.unable.is_empty()) {
            let names: Vec<_> = contest.unable.iter().map(|unable| unable.policy.as_str()).collect();
            output::print(format!("{}: not served by {}", contest.scenario, names.join(", ")))?;
        }
        for contest in &self.contests {
            if let Some(why) = &contest.refused {
                output::print(format!("{}: refused by the server's choice: {why}", contest.scenario))?;
            }
        }
        output::print(self.totals())
    }

    /// Returns the rows of a report.
    pub(super) fn rows_of_report(&self) -> Vec<ComparedRow> {
        let row = |contest: &FinishedContest, row: &MeasureRow| {
            let value = |value: Option<f64>| value.map_or("overloaded".to_owned(), |value| shown(row.measure, value));
            let ratio = row.ratio.unwrap_or(0.0);
            let policy = row.best_policy.clone().unwrap_or_default();
            let title = row.measure.title(row.load);
            let cells =
                [contest.scenario.clone(), title, value(row.served), value(row.best), policy, format!("{ratio:.3}")];
            ComparedRow { cells, ratio }
        };
        self.contests.iter().flat_map(|contest| contest.results.iter().map(move |each| row(contest, each))).collect()
    }

    fn rows(&self) -> Table {
        let mut table = Table::new(["scenario", "measure", "served policy", "served", "best", "best policy", "ratio"]);
        for contest in &self.contests {
            for row in &contest.results {
                let value =
                    |value: Option<f64>| value.map_or("overloaded".to_owned(), |value| shown(row.measure, value));
                table.row([
                    contest.scenario.clone(),
                    row.measure.title(row.load),
                    contest.served_policy.clone(),
                    value(row.served),
                    value(row.best),
                    row.best_policy.clone().unwrap_or("–".to_owned()),
                    ratio(row.ratio),
                ]);
            }
        }
        table
    }

    fn totals(&self) -> Table {
        let mut table =
            Table::new(["measure", "scenarios", "geometric mean", "minimum", ">= 0.98 %", ">= 1 %", "minimum at"]);
        for total in &self.summary {
            let percent = |part: f64| format!("{:.0}", part * 100.0);
            table.row([
                total.measure.title(total.load),
                total.scenarios.to_string(),
                ratio(Some(total.geometric_mean)),
                ratio(Some(total.minimum)),
                percent(total.at_least_098),
                percent(total.at_least_100),
                total.minimum_at.clone(),
            ]);
        }
        table
    }
}

/// Returns a comparison in one line, for progress.
pub(super) fn line(contest: &FinishedContest) -> String {
    let mut line = contest.scenario.clone();
    for row in &contest.results {
        let _ = write!(line, "; {} {}", row.measure.title(row.load), ratio(row.ratio));
    }
    line
}

fn totals(contests: &[FinishedContest]) -> Vec<Total> {
    let rows =
        |contest: &'_ FinishedContest| contest.results.iter().map(|row| (row.measure, row.load)).collect::<Vec<_>>();
    // All comparisons have the same rows.
    let all = contests.first().map(rows).unwrap_or_default();
    all.into_iter().filter_map(|(measure, load)| Total::of(contests, measure, load)).collect()
}

impl Total {
    /// Returns the total; none if there was nothing to compare with in any scenario.
    fn of(contests: &[FinishedContest], measure: Measure, load: Option<f64>) -> Option<Total> {
        let is = |row: &&MeasureRow| row.measure == measure && row.load == load;
        let ratios = contests.iter().filter_map(|contest| {
            let row = contest.results.iter().find(is)?;
            Some((contest.scenario.as_str(), row.ratio?))
        });
        let ratios: Vec<_> = ratios.collect();
        let &(minimum_at, minimum) = ratios.iter().min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let part = |least: f64| ratios.iter().filter(|(_, ratio)| *ratio >= least).count() as f64 / ratios.len() as f64;
        let logarithms: f64 = ratios.iter().map(|(_, ratio)| ratio.max(LEAST).ln()).sum();
        Some(Total {
            measure,
            load,
            scenarios: ratios.len(),
            geometric_mean: (logarithms / ratios.len() as f64).exp(),
            minimum,
            minimum_at: minimum_at.to_owned(),
            at_least_098: part(NEAR),
            at_least_100: part(1.0),
        })
    }
}

fn shown(measure: Measure, value: f64) -> String {
    match measure {
        Measure::InTime => format!("{value:.3}"),
        _ => number(value),
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}"))
}
