//! The faults of a run and their times, drawn from its seed.

use crate::network::{Place, Weather};
use crate::world::{BACKENDS, FAULTS_END, FIRST_FAULT, FRONTENDS, PLACES, SCHEDULERS, STORE};
use ripieno_base::{Nanos, Time};
use ripieno_workload::{SeededRng, below, stream};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The process ends, and another is started in its place after a while. Its peers may see it
    /// immediately.
    Crash { place: Place, seen: bool, back: Nanos },
    /// The process hangs for a while, and then resumes in its old state.
    Hang { place: Place, back: Nanos },
    /// The primary crashes.
    CrashPrimary { seen: bool, back: Nanos },
    /// The primary hangs.
    HangPrimary { back: Nanos },
    /// Nothing passes between the primary and any backend, nor any other place, for as long again.
    IsolatePrimary { back: Nanos },
    /// Nothing passes between the primary and any backend, or any frontend.
    CutOffPrimary { frontends: bool, back: Nanos },
    /// A connection breaks, and both ends see it.
    Break { one: Place, other: Place },
    /// Nothing passes from one place to the other.
    Cut { from: Place, to: Place, back: Nanos },
    /// Nothing passes between this place and any other.
    Isolate { place: Place, back: Nanos },
    /// The store does not answer.
    StoreDown { back: Nanos },
    /// The next batch of this backend takes very long.
    Stick { place: Place },
}

/// The kinds of faults in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Every fault, at any time.
    All,
    /// Primaries crash or hang, one after the other; everything else works.
    Primaries,
    /// Backends crash or hang, one after the other.
    Backends,
    /// One process of any role stands still once, for 1 to 10 times the tolerated silence.
    Pauses,
    /// The network loses messages; everything else works.
    Losses,
    /// A primary that is cut off misses its successor, and then first hears from backends that have
    /// restarted.
    Restarts,
    /// A primary that its spares hear is cut off from backends or frontends.
    CutOff,
}

pub(crate) fn weather(kind: Kind, seed: u64) -> Weather {
    let random = &mut stream(seed, 3);
    match kind {
        Kind::All => {}
        Kind::Losses => return Weather { lost: 20, ..Weather::CALM },
        Kind::Primaries | Kind::Backends | Kind::Pauses | Kind::Restarts | Kind::CutOff => return Weather::CALM,
    }
    // A third of all runs has a good network, so that other faults are seen alone.
    if below(random, 3) == 0 {
        return Weather::CALM;
    }
    Weather {
        lost: below(random, 30),
        twice: below(random, 30),
        slow: below(random, 50),
        slowest: Nanos::from_millis(1 + below(random, 40) as i64),
        overtaking: true,
    }
}

/// Returns the faults of a run, in order.
pub(crate) fn plan(kind: Kind, seed: u64) -> Vec<(Time, Fault)> {
    let random = &mut stream(seed, 4);
    match kind {
        Kind::All => {}
        Kind::Losses => return Vec::new(),
        Kind::Restarts => return restarts(random),
        Kind::CutOff => {
            let back = FAULTS_END - FIRST_FAULT;
            return vec![(FIRST_FAULT, Fault::CutOffPrimary { frontends: below(random, 2) == 0, back })];
        }
        Kind::Pauses => {
            let back = Nanos::from_micros(10_000 + below(random, 90_000) as i64);
            let primary = below(random, 3) == 0;
            let place = below(random, PLACES as u64) as Place;
            return vec![(
                FIRST_FAULT,
                if primary { Fault::HangPrimary { back } } else { Fault::Hang { place, back } },
            )];
        }
        Kind::Primaries | Kind::Backends => {
            return (0..3).map(|nth| (FIRST_FAULT + APART * nth, draw_one(kind, random))).collect();
        }
    }
    let count = 2 + below(random, 12);
    let span = (FAULTS_END - FIRST_FAULT).0 as u64;
    let mut plan: Vec<_> =
        (0..count).map(|_| (FIRST_FAULT + Nanos(below(random, span) as i64), draw(random))).collect();
    plan.sort_by_key(|&(at, _)| at);
    plan
}

/// Distance between successive faults: the effects of one have healed before the next.
const APART: Nanos = Nanos::from_millis(300);

fn restarts(random: &mut SeededRng) -> Vec<(Time, Fault)> {
    let (away, until_crash) = (Nanos::from_millis(100), Nanos::from_millis(80));
    let mut plan = vec![(FIRST_FAULT, Fault::IsolatePrimary { back: away })];
    for place in SCHEDULERS..SCHEDULERS + BACKENDS {
        // It is back at about the time at which it can be heard.
        let back = away - until_crash + Nanos::from_micros(below(random, 6_000) as i64 - 3_000);
        plan.push((FIRST_FAULT + until_crash, Fault::Crash { place, seen: true, back }));
    }
    plan
}

fn draw_one(kind: Kind, random: &mut SeededRng) -> Fault {
    let back = Nanos::from_micros(500 + below(random, 150_000) as i64);
    let seen = below(random, 2) == 0;
    let backend = SCHEDULERS + below(random, BACKENDS as u64) as Place;
    match (kind, below(random, 3)) {
        (Kind::Backends, 0) => Fault::Crash { place: backend, seen, back },
        (Kind::Backends, 1) => Fault::Hang { place: backend, back },
        (Kind::Backends, _) => Fault::Stick { place: backend },
        (_, 0) => Fault::HangPrimary { back },
        (_, _) => Fault::CrashPrimary { seen, back },
    }
}

fn draw(random: &mut SeededRng) -> Fault {
    let back = Nanos::from_micros(500 + below(random, 150_000) as i64);
    let seen = below(random, 2) == 0;
    let place = below(random, PLACES as u64) as Place;
    // Any place but itself; the store is a place, too.
    let other = (place + 1 + below(random, PLACES as u64) as Place) % (PLACES + 1);
    let scheduler = below(random, SCHEDULERS as u64) as Place;
    match below(random, 12) {
        0 => Fault::Crash { place, seen, back },
        1 => Fault::Hang { place, back },
        2 => Fault::CrashPrimary { seen, back },
        3 => Fault::HangPrimary { back },
        4 => Fault::Break { one: place, other: scheduler },
        5 => Fault::Cut { from: place, to: other, back },
        6 => Fault::Cut { from: scheduler, to: other, back },
        7 => Fault::Cut { from: other, to: scheduler, back },
        8 => Fault::Cut { from: scheduler, to: STORE, back },
        9 => Fault::Isolate { place: scheduler, back },
        10 => Fault::StoreDown { back },
        _ => Fault::Stick { place: SCHEDULERS + below(random, BACKENDS as u64) as Place },
    }
}

/// Returns true for the place of a frontend.
pub(crate) fn is_frontend(place: Place) -> bool {
    (SCHEDULERS + BACKENDS..SCHEDULERS + BACKENDS + FRONTENDS).contains(&place)
}
