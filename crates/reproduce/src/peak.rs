//! What a policy carries where nothing is ever late: the highest rate that it sustains, and what it answers when saturated.
//!
//! A short run flatters and slanders. Over a few seconds a queue that grows without end still looks short, and a policy whose
//! queues fill slowly has not begun to form its large batches. So a rate counts as sustained only if the queue does not grow over
//! the second half of the run, and the 90th percentile there stays within half a second; and a peak is believed only once runs
//! of twice and of four times the length confirm it. What no run that we can afford confirms is not known.
//!
//! When saturated, answers in a span of time say little: a policy that takes the short requests for some seconds and then the
//! long ones answers at two rates, and a span holds more of the one or of the other. So the run goes on until all that was
//! accepted is answered, and what counts is how much longer twice the arrivals take: the mix is that of the arrivals, and the last
//! batches, which nothing fills, fall out.

use ripieno_report::Summary;
use ripieno_sim::{Length, Scenario, simulate_at};
use serde::{Deserialize, Serialize};

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Peak {
    /// The highest rate with a queue that does not grow.
    pub(super) sustained: Known,
    /// The 90th percentile there.
    pub(super) p90_ms: f64,
    /// What is answered a second with far more offered, and as many requests waiting as the simulator admits.
    pub(super) saturated: Known,
}

/// A rate, and how many requests the run had that confirmed it; no rate if none did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) rps: Option<f64>,
    pub(super) requests: u64,
}

/// Beyond this a rate is not sustained.
const P90_MS: f64 = 500.0;
/// A queue grows if the second half of the run makes it longer by more than what arrives in this time, a fifth of the bound: over
/// any longer run a rate that is too high grows further, and what comes and goes stays within it.
const GROWTH_MS: f64 = 100.0;
/// How closely the highest rate is sought.
const RESOLUTION: f64 = 0.004;
/// How closely a run of twice the length has to agree. Half of what is promised, since the next doubling may differ, too.
const AGREEMENT: f64 = 0.01;
/// How often in a row that is asked for: while a rate still climbs or falls, two lengths may agree by chance.
const AGREEMENTS: u32 = 2;
/// The longest runs that we can afford. A sustained rate is sought anew at each length, which takes many runs; what is answered
/// when saturated is one run a length.
const LONGEST_SUSTAINED: u64 = 6_400_000;
const LONGEST_SATURATED: u64 = 12_800_000;
/// The shortest run.
const FIRST: u64 = 50_000;
/// A search that takes more runs has lost its way.
const MOST_RUNS: usize = 40;
/// How much is offered for saturation, over the bound.
const FLOOD: f64 = 1.5;

impl Known {
    /// Not a number where it is not known.
    pub(super) fn rps(self) -> f64 {
        self.rps.unwrap_or(f64::NAN)
    }
}

/// From runs of growing length, and so many doublings beyond the one that settles the matter.
pub(super) fn peak(scenario: &Scenario, doublings: u32) -> anyhow::Result<Peak> {
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
    Ok(Peak { sustained, p90_ms, saturated })
}

/// Doubles the length until rates agree with the ones before so often in a row.
fn settle(
    longest: u64,
    doublings: u32,
    mut find: impl FnMut(u64) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Known> {
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
            return Ok(Known { rps: now, requests });
        }
        before = now;
    }
    Ok(Known { rps: None, requests })
}

/// The highest rate that `sustains` has a 90th percentile for, and that, sought around a guess.
fn highest(
    guess: f64,
    width: f64,
    mut sustains: impl FnMut(f64) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Option<(f64, f64)>> {
    let (mut good, mut bad) = (None, None);
    let (mut rate, mut width) = (guess, width);
    for _ in 0..MOST_RUNS {
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

/// The 90th percentile of the second half, if this rate is sustained.
pub(super) fn sustains(scenario: &Scenario, rate: f64, requests: u64) -> anyhow::Result<Option<f64>> {
    let Summary { total, unfolded, .. } = run(scenario, rate, requests, 0.5)?;
    let answered_rps = unfolded.unwrap_or_default().answered_rps;
    let half_s = 0.5 * requests as f64 / rate;
    let grows = (total.offered_rps - answered_rps) * half_s > rate * GROWTH_MS / 1e3;
    Ok(total.p90_ms.filter(|&p90_ms| !grows && total.dropped == 0 && p90_ms <= P90_MS))
}

/// How many requests were accepted of a flood, and when the last one was answered.
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

    /// What is looked for, as it comes out of runs of growing length, and the lengths.
    fn settled(doublings: u32, rates: &[f64]) -> (Known, usize) {
        let mut rates_left = rates.iter().copied();
        let known = settle(LONGEST_SUSTAINED, doublings, |_| Ok(rates_left.next())).unwrap();
        (known, rates.len() - rates_left.len())
    }

    #[test]
    fn a_rate_is_known_once_two_doublings_in_a_row_agree() {
        let rates = [15.0, 15.1, 18.0, 18.1, 18.2, 18.3, 30.0];
        assert_eq!(settled(0, &rates), (Known { rps: Some(18.2), requests: 16 * FIRST }, 5));
        assert_eq!(settled(1, &rates), (Known { rps: Some(18.3), requests: 32 * FIRST }, 6));
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
