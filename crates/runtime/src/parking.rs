//! Sleeping until an instant or until mail, to within some tens of microseconds.
//!
//! Timers of an async runtime tick in milliseconds; a batch that is to start at its latest moment would miss its
//! deadline by the tick. So one dedicated thread parks until shortly before the instant and spins for the rest. How
//! shortly is learnt: the operating system wakes a thread late by an amount that differs from machine to machine, so
//! the margin follows the lateness seen, quickly upwards and slowly downwards, and stays within fixed bounds.
//!
//! Where instants follow each other closely, as under overload, spinning before each would keep a core busy that devices may need.
//! So the thread spins a twentieth of the time at most, and otherwise is late by as much as the system wakes it late.
//!
//! Producers must not pay for a system call per message, so they wake the sleeper only if it says that it sleeps.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const MARGIN_MIN: Duration = Duration::from_micros(20);
const MARGIN_MAX: Duration = Duration::from_micros(200);

/// One part in so many of the time may be spent spinning.
const SPINS_ONE_IN: u32 = 20;
/// The most that is saved up for spinning.
const ALLOWANCE_MAX: Duration = Duration::from_millis(2);

/// The one sleeper's bed, shared with those who may wake it.
#[derive(Default)]
pub(crate) struct Parking {
    parked: AtomicBool,
    sleeper: OnceLock<Thread>,
}

/// What the sleeper knows about how late it is woken, and how long it has spun.
pub(crate) struct Sleeper {
    margin: Duration,
    /// How long it may still spin.
    allowance: Duration,
    /// When the allowance was last added to.
    added: Instant,
}

impl Parking {
    /// Wakes the sleeper if it sleeps; call it after publishing what it should see.
    ///
    /// No wake-up is lost. The producer publishes, then reads `parked`; the sleeper sets `parked`, then looks for
    /// mail. The two fences put these four steps into one order, in which at least one of the two sees the other's
    /// write: either the sleeper finds the mail and does not sleep, or the producer finds it parked and unparks it. An
    /// unpark that comes before the park is kept by the thread's token and makes the park return at once.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed)
            && self.parked.swap(false, Ordering::AcqRel)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Parks for at most `span` unless `ready` already; may return early for no reason.
    fn park(&self, span: Option<Duration>, ready: &impl Fn() -> bool) {
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            match span {
                Some(span) => thread::park_timeout(span),
                None => thread::park(),
            }
        }
        self.parked.store(false, Ordering::Relaxed);
    }
}

impl Sleeper {
    /// Makes the calling thread the one that `parking` wakes. At most one thread per parking.
    pub(crate) fn new(parking: &Parking) -> Sleeper {
        let adopted = parking.sleeper.set(thread::current()).is_ok();
        assert!(adopted, "a parking has one sleeper");
        ask_for_sharp_timers();
        Sleeper { margin: Duration::from_micros(80), allowance: ALLOWANCE_MAX, added: Instant::now() }
    }

    /// Returns at `target`, or as soon as `ready`; with no target, only when ready.
    pub(crate) fn wait(&mut self, parking: &Parking, target: Option<Instant>, ready: impl Fn() -> bool) {
        while !ready() {
            let Some(target) = target else {
                parking.park(None, &ready);
                continue;
            };
            let now = Instant::now();
            if now >= target {
                return;
            }
            match (target - now).checked_sub(self.margin) {
                Some(span) if !span.is_zero() => self.nap(parking, now, span, &ready),
                _ if self.may_spin(now) => self.spin(now, target, &ready),
                _ => parking.park(Some(target - now), &ready),
            }
        }
    }

    /// Whether the allowance, with what the time since has added, is enough for one margin.
    fn may_spin(&mut self, now: Instant) -> bool {
        self.allowance = (self.allowance + (now - self.added) / SPINS_ONE_IN).min(ALLOWANCE_MAX);
        self.added = now;
        self.allowance >= self.margin
    }

    fn spin(&mut self, begun: Instant, target: Instant, ready: &impl Fn() -> bool) {
        while !ready() && Instant::now() < target {
            std::hint::spin_loop();
        }
        self.allowance = self.allowance.saturating_sub(begun.elapsed());
    }

    fn nap(&mut self, parking: &Parking, now: Instant, span: Duration, ready: &impl Fn() -> bool) {
        parking.park(Some(span), ready);
        // A nap cut short by mail says nothing about the timer.
        if let Some(late) = now.elapsed().checked_sub(span) {
            self.learn(late);
        }
    }

    fn learn(&mut self, late: Duration) {
        let margin = match late.checked_sub(self.margin) {
            Some(more) => self.margin + more / 2,
            None => self.margin - (self.margin - late) / 32,
        };
        self.margin = margin.clamp(MARGIN_MIN, MARGIN_MAX);
    }
}

/// Linux delays timers of ordinary threads by up to 50 µs to save power; this asks for none of that. Where the file
/// does not exist or may not be written, the margin learns to live with it.
fn ask_for_sharp_timers() {
    let thread = std::fs::read_link("/proc/thread-self").ok();
    if let Some(id) = thread.as_deref().and_then(|path| path.file_name()) {
        let file = std::path::Path::new("/proc").join(id).join("timerslack_ns");
        if let Err(error) = std::fs::write(file, "1") {
            tracing::debug!(%error, "timers keep their default slack");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// A lost wake-up would leave both sides waiting for each other for ever.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: usize = 20_000;
        let parking = Arc::new(Parking::default());
        let (asked, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let consumer = {
            let (parking, asked, answered) = (Arc::clone(&parking), Arc::clone(&asked), Arc::clone(&answered));
            thread::spawn(move || {
                let mut sleeper = Sleeper::new(&parking);
                for round in 1..=ROUNDS {
                    sleeper.wait(&parking, None, || asked.load(Ordering::Acquire) >= round);
                    answered.store(round, Ordering::Release);
                }
            })
        };
        for round in 1..=ROUNDS {
            asked.store(round, Ordering::Release);
            parking.wake();
            while answered.load(Ordering::Acquire) < round {
                thread::yield_now();
            }
        }
        consumer.join().unwrap();
    }

    #[test]
    fn never_returns_before_the_target() {
        let parking = Parking::default();
        let mut sleeper = Sleeper::new(&parking);
        for micros in [0, 10, 100, 1_000, 3_000] {
            let target = Instant::now() + Duration::from_micros(micros);
            sleeper.wait(&parking, Some(target), || false);
            assert!(Instant::now() >= target);
        }
    }

    #[test]
    fn the_margin_follows_the_lateness_within_bounds() {
        let mut sleeper = Sleeper::new(&Parking::default());
        (0..50).for_each(|_| sleeper.learn(Duration::from_millis(9)));
        assert_eq!(sleeper.margin, MARGIN_MAX);
        (0..500).for_each(|_| sleeper.learn(Duration::ZERO));
        assert_eq!(sleeper.margin, MARGIN_MIN);
    }

    /// By a clock of the test: instants that follow each other closely are not all waited for awake.
    #[test]
    fn spins_a_twentieth_of_the_time() {
        let mut sleeper = Sleeper::new(&Parking::default());
        let (mut now, mut spun) = (sleeper.added, Duration::ZERO);
        let (turns, gap, each) = (10_000, Duration::from_micros(300), sleeper.margin);
        for _ in 0..turns {
            now += gap;
            if sleeper.may_spin(now) {
                sleeper.allowance = sleeper.allowance.saturating_sub(each);
                spun += each;
            }
        }
        let allowed = gap * turns / SPINS_ONE_IN + ALLOWANCE_MAX + each;
        assert!(spun > allowed / 2 && spun <= allowed, "{spun:?} of {allowed:?}");
    }
}
