//! The comparison on one workload: the default policy against all other policies, by every
//! measure.
//!
//! The goodput of each is searched for first. The best of the others sets the loads of the
//! remaining measures, so that all policies get the same requests. A policy that loses more than 1
//! % of any model's requests below the peak is overloaded there, and its latencies are not
//! compared: answering six of ten requests makes those six fast.

use super::contestants::{ContestRules, SimContestant, Unable, contestants};
use super::inputs::{Skipped, Workload, without_file};
use super::pool::Pool;
use super::random::Kind;
use super::worlds::TaskWorld;
use clap::ValueEnum;
use ripieno_report::{Figures, Search, Summary, search};
use serde::Serialize;

/// A measure of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Measure {
    /// The highest rate at which at most 1 % of any model's requests are dropped or late.
    Goodput,
    /// Mean latency.
    Mean,
    /// Median latency.
    Median,
    /// 99th percentile of the latency.
    P99,
    /// Fraction of requests answered in time, of the model with the lowest.
    InTime,
}

/// The measures and loads of the comparison.
pub(super) struct ContestPlan<'a> {
    pub(super) rules: ContestRules<'a>,
    pub(super) measures: Vec<Measure>,
    /// Loads as fractions of the best goodput.
    pub(super) loads: Vec<f64>,
}

/// The result of the default policy by one measure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MeasureRow {
    pub(super) measure: Measure,
    /// The offered fraction of the best goodput; `None` for the goodput itself.
    pub(super) load: Option<f64>,
    pub(super) offered_rps: Option<f64>,
    /// Value of the default policy; `None` if it was overloaded, or does not serve the workload.
    pub(super) served: Option<f64>,
    /// Value of the best of the others; `None` if all were overloaded.
    pub(super) best: Option<f64>,
    pub(super) best_policy: Option<String>,
    /// Ratio of both, above 1 if the default policy is better; 0 if it was overloaded. None if
    /// there is nothing to compare with.
    pub(super) ratio: Option<f64>,
}

/// A finished comparison.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FinishedContest {
    pub(super) scenario: String,
    pub(super) kind: Kind,
    pub(super) world: TaskWorld,
    pub(super) served_policy: String,
    /// The reason why the default policy does not serve the workload, if so.
    pub(super) refused: Option<String>,
    pub(super) contestants: usize,
    pub(super) unable: Vec<Unable>,
    pub(super) results: Vec<MeasureRow>,
}

/// Multiple of the analytic bound beyond which a carried rate means only that the run is too short.
const MAX_BOUNDS: f64 = 64.0;
/// Largest bad rate of any model at which latencies count.
const MAX_BAD_RATE: f64 = 0.01;

/// Returns whether more requests are dropped or late than chance explains where [`MAX_BAD_RATE`] of
/// them are on average: two standard deviations.
fn is_overloaded(figures: &Figures) -> bool {
    let most = figures.requests as f64 * MAX_BAD_RATE;
    // Whole requests: one bad request of fifty is no overload.
    (figures.dropped + figures.late) as f64 > (most + 2.0 * most.sqrt()).ceil()
}

impl Measure {
    /// Returns its name in a table, with its unit.
    pub(super) fn title(self, load: Option<f64>) -> String {
        let name = match self {
            Measure::Goodput => "goodput/s",
            Measure::Mean => "mean ms",
            Measure::Median => "median ms",
            Measure::P99 => "p99 ms",
            Measure::InTime => "in time",
        };
        load.map_or(name.to_owned(), |load| format!("{name} at {:.0} %", load * 100.0))
    }

    fn is_latency(self) -> bool {
        matches!(self, Measure::Mean | Measure::Median | Measure::P99)
    }

    /// Returns true if the measure applies at this load: latencies up to the peak, losses beyond.
    fn applies(self, load: f64) -> bool {
        match self {
            Measure::Goodput => false,
            Measure::InTime => load > 1.0,
            _ => load <= 1.0,
        }
    }

    /// Returns its value in a run; `None` if the run was overloaded.
    fn of(self, run: &Summary) -> Option<f64> {
        let figure: fn(&Figures) -> Option<f64> = match self {
            Measure::Goodput => return None,
            Measure::InTime => return Some(1.0 - run.worst_bad_rate),
            Measure::Mean => |figures| figures.mean_ms,
            Measure::Median => |figures| figures.p50_ms,
            Measure::P99 => |figures| figures.p99_ms,
        };
        let asked = run.models.iter().map(|model| &model.figures).filter(|figures| figures.requests > 0);
        let (mut sum, mut models) = (0.0, 0);
        for figures in asked {
            if is_overloaded(figures) {
                return None;
            }
            sum += figure(figures)?.ln();
            models += 1;
        }
        (models > 0).then(|| (sum / f64::from(models)).exp())
    }

    /// Returns the row of runs at this load and rate, the first of the default policy.
    fn row(self, at: Option<(f64, f64)>, all: &[Option<&SimContestant>], runs: &[Option<Summary>]) -> MeasureRow {
        let values: Vec<_> = runs.iter().map(|run| self.of(run.as_ref()?)).collect();
        let best_of_others = self.best(&all[1..], &values[1..]);
        MeasureRow::new(self, at, values[0], best_of_others)
    }

    /// Returns the best of these, the first among equals; overloaded ones have no value.
    fn best<'a>(self, all: &[Option<&'a SimContestant>], values: &[Option<f64>]) -> Option<(&'a str, f64)> {
        let known = all.iter().zip(values).filter_map(|(it, value)| Some((it.as_ref()?.name.as_str(), (*value)?)));
        known.reduce(|best, next| {
            let better = if self.is_latency() { next.1 < best.1 } else { next.1 > best.1 };
            if better { next } else { best }
        })
    }

    /// Returns the ratio to the best, 1 if equal.
    fn ratio(self, served: Option<f64>, best: Option<f64>) -> Option<f64> {
        let (best, served) = (best.filter(|&best| best > 0.0)?, served.unwrap_or(0.0));
        Some(match self.is_latency() {
            true if served > 0.0 => best / served,
            true => 0.0,
            false => served / best,
        })
    }
}

/// The highest rate that a policy carries, and that policy.
#[derive(Clone, Copy)]
struct Peak<'a> {
    policy: &'a str,
    rate: f64,
}

impl ContestPlan<'_> {
    /// Compares on one workload, or returns the reason for skipping it.
    pub(super) fn hold(&self, workload: &Workload, pool: &Pool) -> anyhow::Result<Result<FinishedContest, Skipped>> {
        let name = &workload.name;
        pool.at(name);
        let skip = |why: &str| Ok(Err(Skipped { scenario: name.clone(), why: why.to_owned() }));
        let (rivals, unable) = contestants(&workload.scenario, &self.rules)?;
        let Some(first) = rivals.first() else {
            let whys: Vec<_> = unable.iter().map(|unable| unable.why.as_str()).collect();
            return skip(&format!("no policy that may take part serves it: {}", whys.join("; ")));
        };
        let served = SimContestant::served(&workload.scenario, &self.rules);
        let refused = served.fits().err().map(|why| why.to_string());
        let all: Vec<_> =
            std::iter::once(refused.is_none().then_some(&served)).chain(rivals.iter().map(Some)).collect();
        let results = if workload.world == TaskWorld::Replayed {
            self.replayed(&all, pool)?
        } else {
            if let Err(error) = first.check(name) {
                return skip(without_file(name, &error.to_string()));
            }
            let Some(best) = goodput(rivals.iter().collect(), pool)? else {
                return skip("no rate is too much: so few requests are all answered within one SLO; raise --requests");
            };
            if best.rate == 0.0 {
                return skip("under no policy are 99 % of every model's requests in time, at any rate");
            }
            self.rows(&all, best, pool)?
        };
        let Workload { kind, world, .. } = *workload;
        let (scenario, served_policy, contestants) = (name.clone(), served.name.clone(), rivals.len());
        Ok(Ok(FinishedContest { scenario, kind, world, served_policy, refused, contestants, unable, results }))
    }

    /// Measures the answers in time to the arrivals of a recording, under every policy.
    fn replayed(&self, all: &[Option<&SimContestant>], pool: &Pool) -> anyhow::Result<Vec<MeasureRow>> {
        let runs = pool.each(all, |contestant| contestant.map(SimContestant::replay).transpose())?;
        let measured = self.measures.iter().copied().filter(|&measure| measure == Measure::InTime);
        Ok(measured.map(|measure| measure.row(None, all, &runs)).collect())
    }

    /// Measures every policy: the default policy first, none if it does not serve the workload.
    fn rows(&self, all: &[Option<&SimContestant>], best: Peak<'_>, pool: &Pool) -> anyhow::Result<Vec<MeasureRow>> {
        let mut rows = Vec::new();
        if self.measures.contains(&Measure::Goodput) {
            let served = all[0].map(|served| goodput(vec![served], pool)).transpose()?.flatten();
            let (served, best) = (served.map(|served| served.rate), (best.policy, best.rate));
            rows.push(MeasureRow::new(Measure::Goodput, None, served, Some(best)));
        }
        let asked = |load: &f64| self.measures.iter().any(|measure| measure.applies(*load));
        let loads: Vec<_> = self.loads.iter().copied().filter(asked).collect();
        let jobs: Vec<_> =
            loads.iter().flat_map(|load| all.iter().map(move |contestant| (load * best.rate, *contestant))).collect();
        let runs = pool.each(&jobs, |&(rate, contestant)| contestant.map(|it| it.run(rate)).transpose())?;
        for (&load, runs) in loads.iter().zip(runs.chunks(all.len())) {
            for &measure in self.measures.iter().filter(|measure| measure.applies(load)) {
                rows.push(measure.row(Some((load, load * best.rate)), all, runs));
            }
        }
        rows.sort_by_key(|row| self.measures.iter().position(|measure| *measure == row.measure));
        Ok(rows)
    }
}

impl MeasureRow {
    fn new(measure: Measure, at: Option<(f64, f64)>, served: Option<f64>, best: Option<(&str, f64)>) -> MeasureRow {
        MeasureRow {
            measure,
            load: at.map(|(load, _)| load),
            offered_rps: at.map(|(_, rate)| rate),
            served,
            best: best.map(|(_, value)| value),
            best_policy: best.map(|(name, _)| name.to_owned()),
            ratio: measure.ratio(served, best.map(|(_, value)| value)),
        }
    }
}

/// The reason why a search ended early.
enum Stop {
    Unbounded,
    Failed(anyhow::Error),
}

/// Returns the best goodput of all of these, the first one's among equals; `None` if no rate seems
/// too high.
///
/// One search for all: a rate is good if any policy carries it, and higher ones are tried only with
/// those that did. That takes a third of the runs of separate searches.
fn goodput<'a>(mut left: Vec<&'a SimContestant>, pool: &Pool) -> anyhow::Result<Option<Peak<'a>>> {
    let bound = left.iter().map(|contestant| contestant.bound_rps()).fold(0.0, f64::max);
    let options = Search::from_ceiling(bound);
    let found = search(options, |rate| {
        if rate > bound * MAX_BOUNDS {
            return Err(Stop::Unbounded);
        }
        let bad = |contestant: &&SimContestant| Ok(contestant.run(rate)?.worst_bad_rate);
        let bad = pool.each(&left, bad).map_err(Stop::Failed)?;
        let carry = left.iter().zip(&bad).filter(|(_, bad)| **bad <= options.limit);
        let carry: Vec<_> = carry.map(|(contestant, _)| *contestant).collect();
        if !carry.is_empty() {
            left = carry;
        }
        Ok((bad.into_iter().fold(1.0, f64::min), ()))
    });
    match found {
        Ok(found) => Ok(left.first().map(|first| Peak { policy: &first.name, rate: found.goodput_rps() })),
        Err(Stop::Unbounded) => Ok(None),
        Err(Stop::Failed(error)) => Err(error),
    }
}
