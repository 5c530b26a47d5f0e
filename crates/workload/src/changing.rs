//! Load that changes: a rate over time, and arrivals that follow it exactly.
//!
//! A stream of arrivals at rate 1 is stretched: its arrival at x comes at the time t up to which
//! the rate integrates to x. So one process works for every curve, keeps its burstiness at every
//! rate, and the same seed gives the same draws for any load. Thinning, the usual alternative,
//! would discard draws and be exact for Poisson only. The rate is piecewise constant, so that
//! integral and inverse are exact; smooth curves are approximated in small steps.

use crate::random::{stream, unit};
use crate::{ArrivalError, ArrivalProcess, Arrivals};
use ripieno_base::{Nanos, Time};

/// A piecewise constant rate: start times with their rates; the last one continues for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    pieces: Vec<(Time, f64)>,
}

/// Number of steps in which a smooth curve goes from one of its random points to the next.
const STEPS: u64 = 16;
/// Offset of the random streams for drift, which differ from the arrivals' streams.
const DRIFT_STREAM: u64 = 1 << 32;

impl Rates {
    /// Returns a constant rate.
    pub fn constant(rate: f64) -> Rates {
        Rates { pieces: vec![(Time::ORIGIN, rate)] }
    }

    /// Returns the rate with these pieces; `None` if they do not begin at the origin, are not in
    /// order, or have an invalid rate.
    pub fn from_pieces(pieces: Vec<(Time, f64)>) -> Option<Rates> {
        let begins = pieces.first().is_some_and(|&(at, _)| at == Time::ORIGIN);
        let ordered = pieces.is_sorted_by(|(a, _), (b, _)| a < b);
        let rates = pieces.iter().all(|(_, rate)| rate.is_finite() && *rate >= 0.0);
        (begins && ordered && rates).then_some(Rates { pieces })
    }

    /// Returns a smooth random curve around 1, from 1 − `amplitude` to 1 + `amplitude`, until
    /// `until`: it interpolates between random points at every `period`, drawn from the stream
    /// `index` of `seed`.
    pub fn drift(amplitude: f64, period: Nanos, until: Time, seed: u64, index: u64) -> Rates {
        let mut random = stream(seed, DRIFT_STREAM + index);
        let mut point = || amplitude * (2.0 * unit(&mut random) - 1.0);
        let (mut from, mut to) = (point(), point());
        let mut pieces = Vec::new();
        let mut start = Time::ORIGIN;
        while start < until || pieces.is_empty() {
            for step in 0..STEPS {
                let x = (step as f64 + 0.5) / STEPS as f64;
                pieces.push((start + period.scale(step, STEPS), 1.0 + from + (to - from) * x * x * (3.0 - 2.0 * x)));
            }
            start = start + period.max(Nanos(STEPS as i64));
            (from, to) = (to, point());
        }
        Rates { pieces }
    }

    /// Returns the product of two rates at every time.
    pub fn times(&self, other: &Rates) -> Rates {
        let mut starts: Vec<Time> = self.pieces.iter().chain(&other.pieces).map(|&(at, _)| at).collect();
        starts.sort_unstable();
        starts.dedup();
        Rates { pieces: starts.into_iter().map(|at| (at, self.at(at) * other.at(at))).collect() }
    }

    /// Returns the rate multiplied by a factor.
    pub fn scaled(&self, factor: f64) -> Rates {
        Rates { pieces: self.pieces.iter().map(|&(at, rate)| (at, rate * factor)).collect() }
    }

    /// Returns the rate at a time.
    pub fn at(&self, time: Time) -> f64 {
        let next = self.pieces.partition_point(|&(at, _)| at <= time);
        self.pieces[next.saturating_sub(1)].1
    }

    /// Returns the mean rate from the origin until `until`.
    pub fn mean(&self, until: Time) -> f64 {
        let ends = self.pieces.iter().skip(1).map(|&(at, _)| at).chain([Time::NEVER]);
        let expected = self.pieces.iter().zip(ends).filter(|&(&(at, _), _)| at < until);
        let sum: f64 = expected.map(|(&(at, rate), end)| rate * (end.min(until) - at).as_secs_f64()).sum();
        sum / (until - Time::ORIGIN).as_secs_f64()
    }
}

/// Arrivals whose rate follows a curve; they end where the curve stays at 0.
#[derive(Clone, Debug)]
pub struct ChangingArrivals {
    /// Arrivals at `base_rps`, the stream that is stretched.
    arrivals: Arrivals,
    base_rps: f64,
    rates: Rates,
    /// The piece of the curve of the last arrival, and the length of the stream before it.
    piece: usize,
    before_ns: f64,
}

impl ChangingArrivals {
    /// Returns arrivals at `rates` requests per second, drawn from the stream `index` of `seed`.
    pub fn new(arrival: ArrivalProcess, rates: Rates, seed: u64, index: u64) -> Result<ChangingArrivals, ArrivalError> {
        // The stream runs at the highest rate, so that it is never stretched below its own
        // nanoseconds.
        let base_rps = rates.pieces.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
        let arrivals = Arrivals::new(arrival, base_rps, seed, index)?;
        Ok(ChangingArrivals { arrivals, base_rps, rates, piece: 0, before_ns: 0.0 })
    }
}

impl Iterator for ChangingArrivals {
    type Item = Time;

    fn next(&mut self) -> Option<Time> {
        let place_ns = self.arrivals.next()?.0 as f64;
        loop {
            let (start, rate) = self.rates.pieces[self.piece];
            let speed = rate / self.base_rps;
            let within_ns = place_ns - self.before_ns;
            let Some(&(end, _)) = self.rates.pieces.get(self.piece + 1) else {
                return (speed > 0.0).then(|| Time(start.0.saturating_add((within_ns / speed).round() as i64)));
            };
            let holds_ns = (end - start).0 as f64 * speed;
            if within_ns < holds_ns {
                return Some(Time(start.0 + (within_ns / speed).round() as i64).min(end));
            }
            self.before_ns += holds_ns;
            self.piece += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: f64) -> Time {
        Time::ORIGIN + Nanos::from_secs_f64(seconds)
    }

    fn pieces(pieces: &[(f64, f64)]) -> Rates {
        Rates::from_pieces(pieces.iter().map(|&(at, rate)| (s(at), rate)).collect()).unwrap()
    }

    fn arrivals(arrival: ArrivalProcess, rates: &Rates) -> ChangingArrivals {
        ChangingArrivals::new(arrival, rates.clone(), 1, 0).unwrap()
    }

    #[test]
    fn evenly_spaced_arrivals_follow_the_curve_exactly() {
        let rates = pieces(&[(0.0, 2.0), (1.0, 0.0), (5.0, 4.0), (6.0, 1.0)]);
        let times: Vec<f64> = arrivals(ArrivalProcess::Uniform, &rates).take(9).map(|at| at.0 as f64 / 1e9).collect();
        assert_eq!(times, [0.0, 0.5, 5.0, 5.25, 5.5, 5.75, 6.0, 7.0, 8.0]);
    }

    #[test]
    fn a_constant_curve_changes_nothing() {
        for arrival in [ArrivalProcess::Uniform, ArrivalProcess::Poisson, ArrivalProcess::Gamma { shape: 0.3 }] {
            let plain = Arrivals::new(arrival, 500.0, 1, 0).unwrap();
            assert!(arrivals(arrival, &Rates::constant(500.0)).take(10_000).eq(plain.take(10_000)));
        }
    }

    #[test]
    fn each_piece_has_its_rate_and_time_never_goes_back() {
        let rates = pieces(&[(0.0, 1000.0), (20.0, 5000.0), (40.0, 200.0)]);
        let times: Vec<Time> = arrivals(ArrivalProcess::Poisson, &rates).take_while(|&at| at < s(140.0)).collect();
        assert!(times.is_sorted());
        let count = |from, to| times.iter().filter(|&&at| s(from) <= at && at < s(to)).count() as f64;
        for (from, to, expected) in [(0.0, 20.0, 20e3), (20.0, 40.0, 100e3), (40.0, 140.0, 20e3)] {
            assert!((count(from, to) / expected - 1.0).abs() < 0.03, "{from} {}", count(from, to));
        }
    }

    #[test]
    fn a_curve_that_stays_at_zero_ends() {
        assert_eq!(arrivals(ArrivalProcess::Uniform, &pieces(&[(0.0, 10.0), (1.0, 0.0)])).count(), 10);
        let nothing = ChangingArrivals::new(ArrivalProcess::Poisson, Rates::constant(0.0), 1, 0);
        assert_eq!(nothing.unwrap_err(), ArrivalError::Rate(0.0));
    }

    #[test]
    fn drift_is_smooth_bounded_and_its_own_stream() {
        let drift = |seed, index| Rates::drift(0.4, Nanos::from_secs_f64(60.0), s(3600.0), seed, index);
        let curve = drift(1, 0);
        assert_eq!(curve.pieces.len(), 60 * 16);
        assert!(curve.pieces.iter().all(|(_, rate)| (0.6..=1.4).contains(rate)));
        assert!(curve.pieces.is_sorted_by(|(a, _), (b, _)| a < b));
        let steepest = curve.pieces.windows(2).map(|pair| (pair[1].1 - pair[0].1).abs()).fold(0.0, f64::max);
        assert!(steepest <= 0.8 * 1.5 / 16.0 + 1e-9, "{steepest}");
        assert!((curve.mean(s(3600.0)) - 1.0).abs() < 0.1);
        assert!(curve == drift(1, 0) && curve != drift(1, 1) && curve != drift(2, 0));
    }

    #[test]
    fn curves_multiply_and_have_means() {
        let product = pieces(&[(0.0, 2.0), (2.0, 4.0)]).times(&pieces(&[(0.0, 1.0), (1.0, 10.0), (3.0, 0.5)]));
        assert_eq!(product, pieces(&[(0.0, 2.0), (1.0, 20.0), (2.0, 40.0), (3.0, 2.0)]));
        assert_eq!((product.mean(s(4.0)), product.mean(s(1.0)), product.at(s(2.5))), (16.0, 2.0, 40.0));
        assert_eq!(product.scaled(0.5).mean(s(4.0)), 8.0);
    }

    #[test]
    fn pieces_that_are_no_curve_are_refused() {
        let bad = [vec![], vec![(1.0, 5.0)], vec![(0.0, 1.0), (0.0, 2.0)], vec![(0.0, -1.0)], vec![(0.0, f64::NAN)]];
        for pieces in bad {
            let pieces: Vec<_> = pieces.into_iter().map(|(at, rate)| (s(at), rate)).collect();
            assert_eq!(Rates::from_pieces(pieces.clone()), None, "{pieces:?}");
        }
    }
}
