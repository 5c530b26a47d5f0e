//! Load that changes over the run, as given in a scenario file.
//!
//! Three keys, which may be combined: `[[phase]]` tables set the total rate step by step; a model's
//! `rates` set its own; a model's `drift` makes its rate vary randomly. They are reduced to a mean
//! rate, each model's share of it, and a curve per model around 1. So `--rate` and the goodput
//! search still scale the whole load.

use ripieno_base::{Nanos, Time};
use ripieno_workload::{ArrivalProcess as Process, Rates};
use serde::Deserialize;

/// The load on one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLoad {
    /// Fraction of the total rate, 0 to 1.
    pub share: f64,
    /// The arrival process.
    pub arrival: Process,
    /// The rate relative to its mean over the run, if it changes.
    pub curve: Option<Rates>,
}

/// A phase with a constant total rate.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PhaseTable {
    duration_s: f64,
    rate: f64,
}

/// A rate that drifts: every `period_s` it has another random value within `amplitude` of its mean.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DriftTable {
    amplitude: f64,
    period_s: f64,
}

/// The load of a scenario, as given.
pub(crate) struct GivenLoad<'a> {
    pub(crate) seed: u64,
    pub(crate) rate: Option<f64>,
    pub(crate) requests: Option<u64>,
    pub(crate) duration_s: Option<f64>,
    pub(crate) phases: &'a [PhaseTable],
    pub(crate) models: Vec<GivenModel<'a>>,
}

/// The load of a model, as given.
pub(crate) struct GivenModel<'a> {
    pub(crate) name: &'a str,
    pub(crate) share: f64,
    pub(crate) rates: Option<&'a [(f64, f64)]>,
    pub(crate) drift: Option<&'a DriftTable>,
    pub(crate) arrival: Process,
}

/// A load that changes.
pub(crate) struct Changing {
    /// Mean rate of all models together over the run, in requests per second.
    pub(crate) mean_rps: f64,
    pub(crate) until: Time,
    pub(crate) loads: Vec<ModelLoad>,
}

/// Upper bound on the points of a drift; more are a mistake in a unit.
const MOST_DRIFTS: f64 = 10_000.0;

impl GivenLoad<'_> {
    pub(crate) fn parse(&self) -> Result<Changing, String> {
        let until = self.until()?;
        let total = self.total(until)?;
        let shares: f64 = self.models.iter().filter(|model| model.rates.is_none()).map(|model| model.share).sum();
        let curves = self.models.iter().zip(0..).map(|(model, index)| {
            let own = match (model.rates, &total) {
                (Some(rates), _) => pieces(rates).map_err(|problem| format!("model {:?}: {problem}", model.name))?,
                (None, Some(total)) if shares > 0.0 => total.scaled(model.share / shares),
                (None, _) => Rates::constant(0.0),
            };
            match model.drift {
                Some(drift) => Ok(own.times(&drift.curve(model.name, until, self.seed, index)?)),
                None => Ok(own),
            }
        });
        let curves = curves.collect::<Result<Vec<_>, String>>()?;
        let means: Vec<f64> = curves.iter().map(|curve| curve.mean(until)).collect();
        let mean_rps: f64 = means.iter().sum();
        if mean_rps <= 0.0 {
            return Err("no request ever arrives; give a [[phase]] or the rates of a model a rate above 0".to_owned());
        }
        let load = |((model, curve), mean): ((&GivenModel<'_>, Rates), f64)| ModelLoad {
            share: mean / mean_rps,
            arrival: model.arrival,
            curve: (mean > 0.0).then(|| curve.scaled(1.0 / mean)),
        };
        let loads = self.models.iter().zip(curves).zip(means).map(load).collect();
        Ok(Changing { mean_rps, until, loads })
    }

    fn until(&self) -> Result<Time, String> {
        if self.requests.is_some() {
            return Err(
                "requests is given, but a load that changes needs to know how long it is; replace it by duration_s \
                        or by the phases alone"
                    .to_owned(),
            );
        }
        let seconds = match (self.duration_s, self.phases) {
            (None, []) => {
                return Err("duration_s is missing; a load that changes needs to know how long it is".to_owned());
            }
            (Some(seconds), []) => seconds,
            (Some(_), _) => return Err("the [[phase]] tables say how long the run is; remove duration_s".to_owned()),
            (None, phases) => phases.iter().map(|phase| phase.duration_s).sum(),
        };
        let usable = |seconds: f64| seconds > 0.0 && seconds <= 1e9;
        if let Some((at, phase)) = self.phases.iter().enumerate().find(|(_, phase)| !usable(phase.duration_s)) {
            return Err(format!("phase {}: duration_s = {}; it must be above 0", at + 1, phase.duration_s));
        }
        match usable(seconds) {
            true => Ok(Time::ORIGIN + Nanos::from_secs_f64(seconds)),
            false => Err(format!("duration_s = {seconds}; it must be above 0 and at most 1e9")),
        }
    }

    /// Returns the total rate of the models that have no rates of their own; `None` if all have.
    fn total(&self, until: Time) -> Result<Option<Rates>, String> {
        let all_own = self.models.iter().all(|model| model.rates.is_some());
        match (self.rate, self.phases) {
            (None, []) if all_own => Ok(None),
            (None, []) => Err("rate is missing; give it, or [[phase]] tables, or rates to every model".to_owned()),
            (Some(_), [_, ..]) => Err("both rate and [[phase]] tables are given; remove one".to_owned()),
            (Some(_), _) | (_, [_, ..]) if all_own => {
                Err("every model has its own rates; remove rate and the [[phase]] tables".to_owned())
            }
            (Some(rate), []) if rate.is_finite() && rate > 0.0 => Ok(Some(Rates::constant(rate))),
            (Some(rate), []) => Err(format!("rate = {rate}; it must be a number of requests per second above 0")),
            (None, phases) => steps(phases, until).map(Some),
        }
    }
}

/// Returns the total rate, phase by phase.
fn steps(phases: &[PhaseTable], until: Time) -> Result<Rates, String> {
    let mut start = 0.0;
    let mut pieces = Vec::with_capacity(phases.len());
    for (at, phase) in phases.iter().enumerate() {
        if !(phase.rate.is_finite() && phase.rate >= 0.0) {
            return Err(format!("phase {}: rate = {}; it must be at least 0 requests per second", at + 1, phase.rate));
        }
        pieces.push((Time::ORIGIN + Nanos::from_secs_f64(start), phase.rate));
        start += phase.duration_s;
    }
    Rates::from_pieces(pieces)
        .ok_or(format!("the phases, until {} ms, are too short to tell apart", until.as_millis_f64()))
}

fn pieces(rates: &[(f64, f64)]) -> Result<Rates, String> {
    let pieces = rates.iter().map(|&(at_s, rate)| (Time::ORIGIN + Nanos::from_secs_f64(at_s), rate)).collect();
    Rates::from_pieces(pieces).ok_or(format!(
        "rates = {rates:?}; they must be [[second, requests per second], …] with ascending seconds from 0 and rates of at \
         least 0"
    ))
}

impl DriftTable {
    fn curve(&self, model: &str, until: Time, seed: u64, index: u64) -> Result<Rates, String> {
        let DriftTable { amplitude, period_s } = *self;
        if !(0.0..=1.0).contains(&amplitude) {
            return Err(format!("model {model:?}: drift.amplitude = {amplitude}; it must be from 0 to 1"));
        }
        let shortest = (until - Time::ORIGIN).as_secs_f64() / MOST_DRIFTS;
        if !(period_s.is_finite() && period_s >= shortest) {
            return Err(format!("model {model:?}: drift.period_s = {period_s}; it must be at least {shortest}"));
        }
        Ok(Rates::drift(amplitude, Nanos::from_secs_f64(period_s), until, seed, index))
    }
}
