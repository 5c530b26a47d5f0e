//! Sleep until an instant or until mail arrives, precise to some tens of microseconds.
//!
//! Timers of an async runtime tick in milliseconds, so a batch that must start at its latest moment
//! would miss its deadline by a tick. Instead, one dedicated thread parks until shortly before the
//! instant and spins for the rest. The operating system wakes a parked thread late, by an amount
//! that differs between machines. So the thread learns the margin from the observed lateness. The
//! margin rises quickly and falls slowly, within fixed bounds.
//!
//! Under overload, instants follow each other closely, and spinning before each would occupy a core
//! that devices may need. So the thread spins at most a twentieth of the time. Otherwise it accepts
//! the system's wake-up delay.
//!
//! A system call per message would be too expensive for producers. So they wake the sleeper only if
//! it has declared that it sleeps.

use crate::sync::{AtomicBool, Ordering, Thread, current, fence, park, park_timeout};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const MARGIN_MIN: Duration = Duration::from_micros(20);
const MARGIN_MAX: Duration = Duration::from_micros(200);

/// Inverse of the largest share of time spent spinning.
const SPIN_RATIO: u32 = 20;
/// Upper bound on the accumulated spin allowance.
const ALLOWANCE_MAX: Duration = Duration::from_millis(2);

/// Parking place of one sleeping thread, shared with the threads that may wake it.
#[derive(Default)]
pub(crate) struct Parking {
    parked: AtomicBool,
    sleeper: OnceLock<Thread>,
}

/// The sleeping thread's learnt wake-up margin and spin budget.
pub(crate) struct Sleeper {
    margin: Duration,
    /// Remaining time that the thread may spin.
    allowance: Duration,
    /// Time at which the allowance was last increased.
    added: Instant,
}

impl Parking {
    /// Wakes the sleeper if it sleeps. Must be called after publishing the data that the sleeper
    /// should see.
    ///
    /// No wake-up is lost. The producer publishes, then reads `parked`. The sleeper sets `parked`,
    /// then looks for mail. The two fences put these four steps into one order, so at least one
    /// thread sees the other's write. Either the sleeper finds the mail and does not sleep, or the
    /// producer finds it parked and unparks it. If the unpark comes before the park, the thread's
    /// token makes the park return immediately.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed)
            && self.parked.swap(false, Ordering::AcqRel)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Parks for at most `span`, unless `ready` returns true. May return spuriously.
    fn park(&self, span: Option<Duration>, ready: &impl Fn() -> bool) {
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            match span {
                Some(span) => park_timeout(span),
                None => park(),
            }
        }
        self.parked.store(false, Ordering::Relaxed);
    }
}

impl Sleeper {
    /// Makes the calling thread the sleeper of `parking`. A parking has at most one sleeper.
    pub(crate) fn new(parking: &Parking) -> Sleeper {
        let adopted = parking.sleeper.set(current()).is_ok();
        assert!(adopted, "a parking has one sleeper");
        disable_timer_slack();
        Sleeper { margin: Duration::from_micros(80), allowance: ALLOWANCE_MAX, added: Instant::now() }
    }

    /// Returns at `target`, or as soon as `ready` returns true. Without a target, waits until
    /// `ready` returns true.
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

    /// Adds the allowance earned since the last call. Returns whether the allowance covers one
    /// margin.
    fn may_spin(&mut self, now: Instant) -> bool {
        self.allowance = (self.allowance + (now - self.added) / SPIN_RATIO).min(ALLOWANCE_MAX);
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
        // A nap that mail cut short does not show how late the timer is.
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

/// Disables the calling thread's timer slack. Linux delays timers of ordinary threads by up to 50
/// µs to save power. If the file is missing or read-only, the learnt margin absorbs the delay.
fn disable_timer_slack() {
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
    use std::thread;

    /// After a lost wake-up, both threads would wait for each other for ever.
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

    /// Uses a simulated clock. The sleeper spins before only some of many closely spaced instants.
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
        let allowed = gap * turns / SPIN_RATIO + ALLOWANCE_MAX + each;
        assert!(spun > allowed / 2 && spun <= allowed, "{spun:?} of {allowed:?}");
    }
}
