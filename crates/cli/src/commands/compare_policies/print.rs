//! The results of all comparisons: a row for each scenario and measure, and their totals.

use super::contest::{ContestPlan, FinishedContest, Measure, MeasureRow};
use super::inputs::Skipped;
use super::judge::{self, Judgement};
use super::ratios;
use crate::output::report_file::ComparedRow;
use crate::output::{self, print_json};
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
    /// The first seed of random workloads; `None` if there are none.
    pub(super) seed: Option<u64>,
    summary: Vec<Total>,
    judgement: Vec<Judgement>,
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

impl ContestResults {
    pub(super) fn new(objective: Objective, plan: &ContestPlan<'_>, skipped: Vec<Skipped>) -> ContestResults {
        ContestResults {
            objective: objective.name(),
            loads: plan.loads.clone(),
            all_as_served: plan.rules.all_as_served,
            lanes: plan.rules.lanes,
            contests: Vec::new(),
            skipped,
            seed: None,
            summary: Vec::new(),
            judgement: Vec::new(),
        }
    }

    pub(super) fn print(&mut self, format: Format) -> anyhow::Result<()> {
        self.summary = totals(&self.contests);
        self.judgement = judge::judge(&self.contests);
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
                output::print(format!("{}: refused by the default policy: {why}", contest.scenario))?;
            }
        }
        output::print(self.totals())?;
        output::print(judge::table(&self.judgement))
    }

    /// Returns the kinds whose ratios are below the floor, in words.
    pub(super) fn below(&self, floor: f64) -> Vec<String> {
        judge::below(&self.judgement, floor)
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
                    ratios::text(row.ratio),
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
                ratios::text(Some(total.geometric_mean)),
                ratios::text(Some(total.minimum)),
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
        let _ = write!(line, "; {} {}", row.measure.title(row.load), ratios::text(row.ratio));
    }
    line
}

fn totals(contests: &[FinishedContest]) -> Vec<Total> {
    let mut all = Vec::new();
    for row in contests.iter().flat_map(|contest| &contest.results) {
        if !all.contains(&(row.measure, row.load)) {
            all.push((row.measure, row.load));
        }
    }
    all.into_iter().filter_map(|(measure, load)| Total::of(contests, measure, load)).collect()
}

impl Total {
    /// Returns the total; `None` if there was nothing to compare with in any scenario.
    fn of(contests: &[FinishedContest], measure: Measure, load: Option<f64>) -> Option<Total> {
        let is = |row: &&MeasureRow| row.measure == measure && row.load == load;
        let named = contests.iter().filter_map(|contest| {
            let row = contest.results.iter().find(is)?;
            Some((contest.scenario.as_str(), row.ratio?))
        });
        let (minimum_at, minimum) = named.clone().min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let ratios: Vec<_> = named.map(|(_, ratio)| ratio).collect();
        Some(Total {
            measure,
            load,
            scenarios: ratios.len(),
            geometric_mean: ratios::geometric_mean(&ratios),
            minimum,
            minimum_at: minimum_at.to_owned(),
            at_least_098: ratios::near(&ratios),
            at_least_100: ratios::at_least(&ratios, 1.0),
        })
    }
}

fn shown(measure: Measure, value: f64) -> String {
    match measure {
        Measure::InTime => format!("{value:.3}"),
        _ => number(value),
    }
}
