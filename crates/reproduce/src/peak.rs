//! The capacity of a policy without deadlines: the highest rate that it sustains, and its rate of
//! answers when saturated.
//!
//! Short runs mislead in both directions. Over a few seconds a queue that grows without end still
//! looks short, and a policy whose queues fill slowly has not yet formed its large batches. So a
//! rate counts as sustained only if the queue does not grow over the second half of the run and the
//! 90th percentile there stays within half a second. A peak is accepted only if runs of twice and
//! four times the length confirm it. A peak that no affordable run confirms is unknown.
//!
//! When saturated, the number of answers in a span of time says little: a policy that serves short
//! requests for some seconds and then long ones has two rates, and a span holds more of one or the
//! other. So the run goes on until all accepted requests are answered, and the result is the
//! additional time for twice the arrivals: the mix is the arrivals' mix, and the last, partially
//! filled batches cancel out.

use ripieno_report::Summary;
use ripieno_sim::{Length, Scenario, simulate_at};
use serde::{Deserialize, Serialize};

/// The peak rates of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PeakRates {
    /// The highest rate at which the queue does not grow.
    pub(super) sustained: KnownRate,
    /// The 90th percentile of the latency at that rate.
    pub(super) p90_ms: f64,
    /// Answers per second at a far higher offered rate, with the admission limit of the simulator
    /// reached.
    pub(super) saturated: KnownRate,
}

/// A rate with the number of requests of the run that confirmed it; no rate if none did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KnownRate {
    pub(super) rps: Option<f64>,
    pub(super) requests: u64,
}

/// Upper bound on the 90th percentile of a sustained rate.
const P90_MS: f64 = 500.0;
/// Growth of a queue over the second half of a run, as a time of arrivals, above which it counts as
/// growing; a fifth of the bound. Over a longer run a rate that is too high grows further, and
/// fluctuations stay within it.
const GROWTH_MS: f64 = 100.0;
/// Relative resolution of the highest rate.
const RESOLUTION: f64 = 0.004;
/// Relative agreement with a run of twice the length. Half of the guaranteed one, since the next
/// doubling may differ, too.
const AGREEMENT: f64 = 0.01;
/// Number of consecutive agreements: while a rate still rises or falls, two lengths may agree by
/// chance.
const AGREEMENTS: u32 = 2;
/// Lengths of the longest affordable runs. A sustained rate is searched for at each length, which
/// takes many runs; the saturated rate takes one run a length.
const LONGEST_SUSTAINED: u64 = 6_400_000;
const LONGEST_SATURATED: u64 = 12_800_000;
/// Length of the shortest run.
const FIRST: u64 = 50_000;
/// Number of runs after which a search has failed.
const MAX_RUNS: usize = 40;
/// Offered rate for saturation, relative to the bound.
const FLOOD: f64 = 1.5;

impl KnownRate {
    /// Returns the rate, or NaN if it is unknown.
    pub(super) fn rps(self) -> f64 {
        self.rps.unwrap_or(f64::NAN)
    }
}

/// Computes the peaks from runs of growing length, with `doublings` beyond the one that settles
/// them.
pub(super) fn peak(scenario: &Scenario, doublings: u32) -> anyhow::Result<PeakRates> {
    let (mut guess, mut width, mut p90_ms) = (scenario.bound_rps(), 0.1, 0.0);
    let sustained = settle(LONGEST_SUSTAINED, doublings, |requests| {
        let Some((rate, p90)) = highest(guess, width, |rate| sustains(scenario, rate, requests))? else {
            return Ok(None);
        };
        (guess, width, p90_ms) = (rate, 2.0 * RESOLUTION, p90);
        Ok(Some(rate))
    })?;
    let mut before = worked_off(scenario, FIRST / 2)?;
    let saturated = settle(LONGEST_SATURATED, doublings, |requests| {
        let now = worked_off(scenario, requests)?;
        let rate = (now.answered - before.answered) / (now.seconds - before.seconds);
        before = now;
        Ok(Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0))
    })?;
    Ok(PeakRates { sustained, p90_ms, saturated })
}

/// Doubles the length until the rates agree with the previous ones [`AGREEMENTS`] times in a row.
fn settle(
    longest: u64,
    doublings: u32,
    mut find: impl FnMut(u64) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<KnownRate> {
    let (mut requests, mut before, mut in_a_row) = (FIRST, find(FIRST)?, 0);
    while requests < longest {
        requests *= 2;
        let mut now = find(requests)?;
        let agrees = |(now, before): (f64, f64)| (now / before - 1.0).abs() <= AGREEMENT;
        in_a_row = if now.zip(before).is_some_and(agrees) { in_a_row + 1 } else { 0 };
        if in_a_row == AGREEMENTS {
            for _ in 0..doublings {
                requests *= 2;
                now = find(requests)?;
            }
            return Ok(KnownRate { rps: now, requests });
        }
        before = now;
    }
    Ok(KnownRate { rps: None, requests })
}

/// Returns the highest rate for which `sustains` returns a 90th percentile, and that percentile,
/// searched around a guess.
fn highest(
    guess: f64,
    width: f64,
    mut sustains: impl FnMut(f64) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Option<(f64, f64)>> {
    let (mut good, mut bad) = (None, None);
    let (mut rate, mut width) = (guess, width);
    for _ in 0..MAX_RUNS {
        match sustains(rate)? {
            Some(p90_ms) => good = Some((rate, p90_ms)),
            None => bad = Some(rate),
        }
        rate = match (good, bad) {
            (Some((good, _)), Some(bad)) if bad - good <= RESOLUTION * bad => break,
            (Some((good, _)), Some(bad)) => f64::midpoint(good, bad),
            (Some((good, _)), None) => good * (1.0 + width),
            (None, _) => rate * (1.0 - width).max(0.5),
        };
        width *= 2.0;
    }
    Ok(good)
}

/// Returns the 90th percentile of the second half, if this rate is sustained.
pub(super) fn sustains(scenario: &Scenario, rate: f64, requests: u64) -> anyhow::Result<Option<f64>> {
    let Summary { total, unfolded, .. } = run(scenario, rate, requests, 0.5)?;
    let answered_rps = unfolded.unwrap_or_default().answered_rps;
    let half_s = 0.5 * requests as f64 / rate;
    let grows = (total.offered_rps - answered_rps) * half_s > rate * GROWTH_MS / 1e3;
    Ok(total.p90_ms.filter(|&p90_ms| !grows && total.dropped == 0 && p90_ms <= P90_MS))
}

/// The number of requests accepted from an overload, and the time of the last answer.
struct WorkedOff {
    answered: f64,
    seconds: f64,
}

fn worked_off(scenario: &Scenario, requests: u64) -> anyhow::Result<WorkedOff> {
    let Summary { total, unfolded, .. } = run(scenario, FLOOD * scenario.bound_rps(), requests, 0.0)?;
    let seconds = unfolded.unwrap_or_default().last_answer_s;
    Ok(WorkedOff { answered: (total.requests - total.dropped) as f64, seconds })
}

fn run(scenario: &Scenario, rate: f64, requests: u64, warmup_fraction: f64) -> anyhow::Result<Summary> {
    let scenario = Scenario { length: Length::Requests(requests), warmup_fraction, ..scenario.clone() };
    Ok(simulate_at(&scenario, rate, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the settled rate from the rates of runs of growing length, and the number of
    /// lengths.
    fn settled(doublings: u32, rates: &[f64]) -> (KnownRate, usize) {
        let mut rates_left = rates.iter().copied();
        let known = settle(LONGEST_SUSTAINED, doublings, |_| Ok(rates_left.next())).unwrap();
        (known, rates.len() - rates_left.len())
    }

    #[test]
    fn a_rate_is_known_once_two_doublings_in_a_row_agree() {
        let rates = [15.0, 15.1, 18.0, 18.1, 18.2, 18.3, 30.0];
        assert_eq!(settled(0, &rates), (KnownRate { rps: Some(18.2), requests: 16 * FIRST }, 5));
        assert_eq!(settled(1, &rates), (KnownRate { rps: Some(18.3), requests: 32 * FIRST }, 6));
    }

    #[test]
    fn a_rate_that_never_settles_is_not_known() {
        let rates: Vec<f64> = (0..20).map(|doubling| 1.05_f64.powi(doubling)).collect();
        let (known, runs) = settled(0, &rates);
        assert!(known.rps.is_none() && known.rps().is_nan() && runs < rates.len());
        assert!(settled(0, &[]).0.rps.is_none());
    }

    #[test]
    fn the_highest_rate_is_found_from_any_guess() {
        for capacity in [1.0, 70.0, 1e4] {
            for guess in [1.0, 69.9, 3e4] {
                let sustains = |rate: f64| Ok((rate <= capacity).then_some(rate / 2.0));
                let (rate, p90) = highest(guess, 0.1, sustains).unwrap().unwrap();
                assert!(rate <= capacity && rate > capacity * 0.995, "{rate} {capacity} {guess}");
                assert_eq!(p90, rate / 2.0);
            }
        }
        assert_eq!(highest(1.0, 0.1, |_| Ok(None)).unwrap(), None);
    }
}
