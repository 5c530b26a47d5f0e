//! The judgement: one line for each kind of models and world, and the floor that it is held to.
//!
//! All ratios of a line count alike but for the ratios of tails, which stand beside: goodput, means
//! and answers in time are what a policy is chosen for, and a mean can be bought with the tail.

use super::contest::{FinishedContest, Measure};
use super::random::Kind;
use super::ratios;
use super::worlds::TaskWorld;
use ripieno_report::Table;
use serde::Serialize;

/// All ratios of one kind in one world.
#[derive(Debug, Serialize)]
pub(super) struct Judgement {
    kind: Kind,
    world: TaskWorld,
    /// Number of ratios: of goodput, means, medians and answers in time.
    points: usize,
    geometric_mean: f64,
    minimum: f64,
    /// The scenario with the minimum.
    minimum_at: String,
    /// Fraction of the ratios of at least 0.98.
    at_least_098: f64,
    /// Geometric mean of the ratios of 99th percentiles; `None` if there are none.
    p99: Option<f64>,
}

/// Returns a line for each kind and world of these comparisons, in their order.
pub(super) fn judge(contests: &[FinishedContest]) -> Vec<Judgement> {
    let mut groups: Vec<(Kind, TaskWorld)> = Vec::new();
    for contest in contests {
        let group = (contest.kind, contest.world);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let of = |&(kind, world): &(Kind, TaskWorld)| {
        let own: Vec<_> = contests.iter().filter(|it| it.kind == kind && it.world == world).collect();
        Judgement::of(kind, world, &own)
    };
    groups.iter().filter_map(of).collect()
}

/// Prints the lines as a table.
pub(super) fn table(judgements: &[Judgement]) -> Table {
    let mut table =
        Table::new(["kind", "world", "points", "geometric mean", "minimum", ">= 0.98 %", "p99", "minimum at"]);
    for line in judgements {
        table.row([
            line.kind.name().to_owned(),
            line.world.name().to_owned(),
            line.points.to_string(),
            ratios::text(Some(line.geometric_mean)),
            ratios::text(Some(line.minimum)),
            format!("{:.0}", line.at_least_098 * 100.0),
            ratios::text(line.p99),
            line.minimum_at.clone(),
        ]);
    }
    table
}

/// Returns the lines that are below the floor, in words.
pub(super) fn below(judgements: &[Judgement], floor: f64) -> Vec<String> {
    let low = judgements.iter().filter(|line| line.geometric_mean < floor);
    low.map(|line| format!("{} ({}) {:.3}", line.kind.name(), line.world.name(), line.geometric_mean)).collect()
}

impl Judgement {
    /// Returns the line; `None` if there is nothing to compare with.
    fn of(kind: Kind, world: TaskWorld, contests: &[&FinishedContest]) -> Option<Judgement> {
        let rows = || contests.iter().flat_map(|contest| contest.results.iter().map(move |row| (*contest, row)));
        let named = rows().filter(|(_, row)| row.measure != Measure::P99);
        let named = named.filter_map(|(contest, row)| Some((contest.scenario.as_str(), row.ratio?)));
        let (minimum_at, minimum) = named.clone().min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let ratios: Vec<_> = named.map(|(_, ratio)| ratio).collect();
        let tails: Vec<_> =
            rows().filter(|(_, row)| row.measure == Measure::P99).filter_map(|(_, row)| row.ratio).collect();
        Some(Judgement {
            kind,
            world,
            points: ratios.len(),
            geometric_mean: ratios::geometric_mean(&ratios),
            minimum,
            minimum_at: minimum_at.to_owned(),
            at_least_098: ratios::near(&ratios),
            p99: (!tails.is_empty()).then(|| ratios::geometric_mean(&tails)),
        })
    }
}
