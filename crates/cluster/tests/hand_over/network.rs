//! The network: it loses, repeats, delays and reorders messages, and can be cut for a while, in one
//! direction or both.

use ripieno_base::{Nanos, Time};
use ripieno_workload::{SeededRng, below, stream};
use std::collections::{BTreeMap, BTreeSet};

/// A machine's number; processes come and go on it.
pub(crate) type Place = usize;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Lost messages, in thousandths.
    pub(crate) lost: u64,
    /// Duplicated messages, in thousandths.
    pub(crate) twice: u64,
    /// Slow messages, in thousandths.
    pub(crate) slow: u64,
    /// Longest delay of a slow message.
    pub(crate) slowest: Nanos,
    /// Whether messages between two places may overtake each other.
    pub(crate) overtaking: bool,
}

impl Weather {
    /// A network like a TCP connection.
    pub(crate) const CALM: Weather = Weather { lost: 0, twice: 0, slow: 0, slowest: Nanos::ZERO, overtaking: false };
}

#[derive(Debug)]
pub(crate) struct Network {
    random: SeededRng,
    pub(crate) weather: Weather,
    cut: BTreeSet<(Place, Place)>,
    last: BTreeMap<(Place, Place), Time>,
}

impl Network {
    pub(crate) fn new(seed: u64, weather: Weather) -> Network {
        Network { random: stream(seed, 1), weather, cut: BTreeSet::new(), last: BTreeMap::new() }
    }

    pub(crate) fn cut(&mut self, from: Place, to: Place) {
        self.cut.insert((from, to));
    }

    pub(crate) fn is_cut(&self, from: Place, to: Place) -> bool {
        self.cut.contains(&(from, to))
    }

    pub(crate) fn mend(&mut self, from: Place, to: Place) {
        self.cut.remove(&(from, to));
    }

    pub(crate) fn mend_all(&mut self) {
        self.cut.clear();
    }

    /// Returns the times at which a message sent now arrives: none, one or two.
    pub(crate) fn arrivals(&mut self, now: Time, from: Place, to: Place) -> Vec<Time> {
        if self.is_cut(from, to) || self.one_of_a_thousand(self.weather.lost) {
            return Vec::new();
        }
        let copies = 1 + usize::from(self.one_of_a_thousand(self.weather.twice));
        (0..copies).map(|_| self.arrival(now, from, to)).collect()
    }

    fn arrival(&mut self, now: Time, from: Place, to: Place) -> Time {
        let way = self.way();
        let last = self.last.entry((from, to)).or_default();
        let at = if self.weather.overtaking { now + way } else { (now + way).max(last.next()) };
        *last = at.max(*last);
        at
    }

    fn way(&mut self) -> Nanos {
        let usual = Nanos::from_micros(30 + below(&mut self.random, 170) as i64);
        if !self.one_of_a_thousand(self.weather.slow) {
            return usual;
        }
        usual + Nanos(below(&mut self.random, self.weather.slowest.0 as u64) as i64)
    }

    fn one_of_a_thousand(&mut self, share: u64) -> bool {
        share > 0 && below(&mut self.random, 1_000) < share
    }
}
