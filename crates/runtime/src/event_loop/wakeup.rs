//! Measures the wake-up delay of the scheduler thread, with the thread's own parking code.

use crate::clock::saturating_nanos;
use crate::event_loop::parking::{Parking, Sleeper};
use ripieno_base::Nanos;
use std::thread;
use std::time::{Duration, Instant};

/// The delays of measured wake-ups.
#[derive(Clone, Debug)]
pub struct WakeupLateness {
    /// Actual minus target time of each wake-up, ascending; never negative.
    sorted: Vec<Nanos>,
}

impl WakeupLateness {
    /// Returns the `quantile` (0 to 1) of the delays; zero if nothing was measured.
    pub fn quantile(&self, quantile: f64) -> Nanos {
        let last = self.sorted.len().saturating_sub(1);
        let at = (quantile.clamp(0.0, 1.0) * last as f64).round() as usize;
        self.sorted.get(at).copied().unwrap_or_default()
    }

    /// Returns the number of delays in each bucket. `bounds` are the ascending upper bounds of the
    /// buckets; one more bucket counts longer delays.
    pub fn histogram(&self, bounds: &[Nanos]) -> Vec<usize> {
        let within = bounds.iter().map(|bound| self.sorted.partition_point(|late| late <= bound));
        let edges: Vec<usize> = std::iter::once(0).chain(within).chain([self.sorted.len()]).collect();
        edges.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// All delays, ascending.
    pub fn sorted(&self) -> &[Nanos] {
        &self.sorted
    }
}

/// Measures `count` wake-ups on a new thread, `spacing` apart.
pub fn measure_wakeups(count: usize, spacing: Duration) -> WakeupLateness {
    let measure = move || {
        let parking = Parking::default();
        let mut sleeper = Sleeper::new(&parking);
        let mut late = Vec::with_capacity(count);
        for _ in 0..count {
            let target = Instant::now() + spacing;
            sleeper.wait(&parking, Some(target), || false);
            late.push(saturating_nanos(target.elapsed()));
        }
        late
    };
    let mut sorted = thread::spawn(measure).join().expect("measuring does not panic");
    sorted.sort_unstable();
    WakeupLateness { sorted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_every_wake_up() {
        let wakeups = measure_wakeups(20, Duration::from_micros(300));
        assert_eq!(wakeups.sorted().len(), 20);
        assert!(wakeups.quantile(0.0) >= Nanos::ZERO && wakeups.quantile(0.5) <= wakeups.quantile(1.0));
        let bounds = [Nanos::from_micros(100), Nanos::from_millis(1)];
        assert_eq!(wakeups.histogram(&bounds).iter().sum::<usize>(), 20);
    }

    #[test]
    fn buckets_hold_what_lies_between_their_bounds() {
        let wakeups = WakeupLateness { sorted: vec![Nanos(1), Nanos(10), Nanos(11), Nanos(500)] };
        assert_eq!(wakeups.histogram(&[Nanos(10), Nanos(100)]), [2, 1, 1]);
        assert_eq!((wakeups.quantile(0.5), wakeups.quantile(1.0)), (Nanos(11), Nanos(500)));
    }
}
