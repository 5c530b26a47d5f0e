//! Compares the tasks of a block with its profile, and derives a corrected profile.
//!
//! A profile may be wrong from the start (the machine stalled during the measurement) or become so
//! (a clock is throttled, another process shares the machine). Once most of the recent tasks
//! deviate by more than a factor, the driver replaces the scheduler's profile.
//!
//! A temporarily loaded machine is no reason for a correction: it slows some batches for a while,
//! which [`Margin`] covers. Samples are therefore taken at intervals, whatever the
//! rate, and nearly all of them must agree.

use ripieno_base::{Nanos, Time};
use ripieno_model::Profile;

/// Number of recent samples of one class of batch sizes.
const WINDOW: usize = 16;
/// Number of samples that must deviate in the same direction.
const AGREE: usize = 12;
/// Minimum time between two samples of a class, so that a window outlasts a passing disturbance.
const INTERVAL: Nanos = Nanos::from_millis(100);
/// Deviation in either direction from which a profile is wrong, in hundredths.
const MAX_DEVIATION: i64 = 150;
/// Ratio 1.0, scaled by 10,000.
const AS_PROFILED: i64 = 10_000;
/// Differences below this are wake-up latency of threads.
const NOISE: Nanos = Nanos::from_micros(200);
/// Number of size classes; batch sizes of a class lie between two powers of two.
const CLASSES: usize = Profile::MAX_BATCH.ilog2() as usize + 1;
/// Minimum time between two corrections. It doubles after each, up to the longest, and is reset
/// after a rest of `REST` times the longest.
const PAUSE: Nanos = Nanos::from_millis(500);
const LONGEST_PAUSE: Nanos = Nanos::from_millis(64_000);
const REST: i64 = 4;
/// Number of consecutive rejections, without a task, after which the profile is tested.
const GIVEN_UP: u32 = 8;
/// A task that takes at least this part of the profiled time, in hundredths, confirms the profile.
const CONFIRMS: i128 = 90;
/// A profile under test predicts one part in `TESTED` of the SLO for a lone request.
const TESTED: i64 = 8;

/// A minimum time between two events, which grows each time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    /// End of the current pause.
    until: Time,
    /// Duration of the next pause.
    next: Nanos,
}

impl Pause {
    pub(crate) const fn none() -> Pause {
        Pause { until: Time::ORIGIN, next: PAUSE }
    }

    /// Returns whether the pause is over; begins the next one if so.
    pub(crate) fn pass(&mut self, now: Time) -> bool {
        let over = now >= self.until;
        if over {
            if now - self.until > LONGEST_PAUSE * REST {
                self.next = PAUSE;
            }
            self.until = now + self.next;
            self.next = Nanos(self.next.0 * 2).min(LONGEST_PAUSE);
        }
        over
    }
}

/// The last samples of a class: measured over profiled time, in hundredths; 100 if the difference
/// is within noise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeClass {
    /// Measured over profiled time of the last samples, in hundredths.
    ratios: [i64; WINDOW],
    /// Number of samples; the last [`WINDOW`] are kept.
    seen: usize,
    /// Earliest time of the next sample.
    next: Time,
}

impl SizeClass {
    pub(crate) const EMPTY: SizeClass = SizeClass { ratios: [100; WINDOW], seen: 0, next: Time::ORIGIN };

    /// Adds the sample of a task that took `took` where the profile has `profiled`. Returns false
    /// if it is too early for another sample.
    pub(crate) fn sample(&mut self, now: Time, took: Nanos, profiled: Nanos) -> bool {
        if now < self.next {
            return false;
        }
        let ratio = i128::from(took.0.max(1)) * 100 / i128::from(profiled.0.max(1));
        let difference = Nanos(took.0.saturating_sub(profiled.0).saturating_abs());
        self.ratios[self.seen % WINDOW] = if difference > NOISE { ratio.clamp(1, 100_000_000) as i64 } else { 100 };
        self.seen += 1;
        self.next = now + INTERVAL;
        true
    }

    /// Returns the median, once there are enough samples.
    pub(crate) fn median(&self) -> Option<i64> {
        let mut ratios = self.ratios;
        ratios.sort_unstable();
        (self.seen >= WINDOW).then_some(ratios[WINDOW / 2])
    }

    /// Returns whether nearly all samples deviate far from `expected`, a ratio scaled by 10,000,
    /// and in the same direction.
    pub(crate) fn is_off(&self, expected: i64) -> bool {
        let agree = |off: &dyn Fn(i64) -> bool| self.ratios.iter().filter(|&&ratio| off(ratio)).count() >= AGREE;
        let (above, below) =
            (|ratio| ratio * 10_000 > expected * MAX_DEVIATION, |ratio| ratio * MAX_DEVIATION < expected);
        self.seen >= WINDOW && (agree(&above) || agree(&below))
    }
}

/// The deviation of one block's tasks from its profile.
#[derive(Debug)]
pub(crate) struct Drift {
    /// Samples by class of batch size.
    classes: Box<[SizeClass]>,
    /// Pause between two corrections.
    pause: Pause,
}

impl Drift {
    pub(crate) fn new(max_batch: usize) -> Drift {
        let classes = max_batch.clamp(1, Profile::MAX_BATCH).ilog2() as usize + 1;
        Drift { classes: vec![SizeClass::EMPTY; classes.min(CLASSES)].into(), pause: Pause::none() }
    }

    /// Adds a task that had its device for itself. Returns the corrected profile if the one in
    /// force is wrong.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        rows: usize,
        took: Nanos,
        profiled: Nanos,
        in_force: &Profile,
    ) -> Option<Profile> {
        let class = self.classes.get_mut(rows.max(1).ilog2() as usize)?;
        if !class.sample(now, took, profiled) || !class.is_off(AS_PROFILED) || !self.pause.pass(now) {
            return None;
        }
        let profile = self.corrected(in_force);
        self.forget();
        profile
    }

    /// Forgets all samples, since the profile was replaced.
    pub(crate) fn forget(&mut self) {
        self.classes.fill(SizeClass::EMPTY);
    }

    /// Returns the profile with each batch size scaled by the factor of its class, or of the
    /// nearest class that has one.
    fn corrected(&self, in_force: &Profile) -> Option<Profile> {
        let known: Vec<(usize, i64)> =
            (0..).zip(&self.classes).filter_map(|(at, class)| Some((at, class.median()?))).collect();
        let factor = |rows: usize| {
            let class = rows.ilog2() as usize;
            known.iter().min_by_key(|(at, _)| at.abs_diff(class)).map_or(100, |&(_, ratio)| ratio)
        };
        let latency = |(rows, latency): (usize, &Nanos)| {
            let scaled = i128::from(latency.0) * i128::from(factor(rows)) / 100;
            Nanos(scaled.clamp(1, i128::from(i64::MAX / 4)) as i64)
        };
        let table: Vec<Nanos> = (1..).zip(in_force.table()).map(latency).collect();
        Profile::from_table(&table).ok()
    }
}

/// Detects a profile that keeps a model from ever running.
///
/// A profile that is far too long makes every request hopeless, so no task runs that could correct
/// it. After several such rejections in a row the profile is scaled down until a lone request fits
/// its SLO with slack. The first task that then runs is compared with the scaled profile. If the
/// profile was right it is restored, at the cost of that task and of a few late answers; tests
/// become rarer each time. If the profile was only slightly too long, which together with the
/// margin may still prevent all tasks, it is scaled to the task's own time.
#[derive(Debug)]
pub(crate) struct Doubt {
    /// Number of hopeless requests in a row.
    given_up: u32,
    /// Pause between two tests.
    pause: Pause,
}

impl Doubt {
    pub(crate) const fn new() -> Doubt {
        Doubt { given_up: 0, pause: Pause::none() }
    }

    /// Records that a task of the model ran.
    pub(crate) fn on_task(&mut self) {
        self.given_up = 0;
    }

    /// Records a request that was rejected before it ran; `alone` is its profiled latency alone.
    /// Returns whether to test the profile.
    pub(crate) fn on_hopeless(&mut self, now: Time, alone: Nanos, slo: Nanos) -> bool {
        self.given_up = self.given_up.saturating_add(1);
        let doubtful = self.given_up >= GIVEN_UP && alone.0 > slo.0 / 4;
        let test = doubtful && self.pause.pass(now);
        if test {
            self.given_up = 0;
        }
        test
    }
}

/// Returns the profile that follows `before` after a task that took `took`, where the profile under
/// test has `profiled`.
pub(crate) fn verdict(before: &Profile, tested: &Profile, profiled: Nanos, took: Nanos) -> Option<Profile> {
    let (first, instead) = (i128::from(before.latency(1).0), i128::from(tested.latency(1).0.max(1)));
    let expected = (i128::from(profiled.0) * first / instead).max(1);
    let took = i128::from(took.0.max(1));
    if took * 100 >= expected * CONFIRMS { Some(before.clone()) } else { scaled(before, took, expected) }
}

fn scaled(profile: &Profile, by: i128, of: i128) -> Option<Profile> {
    let scaled = |latency: &Nanos| Nanos((i128::from(latency.0) * by / of).clamp(1, i128::from(latency.0)) as i64);
    Profile::from_table(&profile.table().iter().map(scaled).collect::<Vec<_>>()).ok()
}

/// Returns the test profile of a block of a model with a suspect profile.
pub(crate) fn suspect(profile: &Profile, alone: Nanos, slo: Nanos) -> Option<Profile> {
    scaled(profile, i128::from((slo.0 / TESTED).max(1)), i128::from(alone.0.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    fn at(ms: i64) -> Time {
        Time::ORIGIN + MS(ms)
    }

    /// Observes `tasks` tasks, 100 ms apart; returns the numbers of those that led to corrections.
    fn run(
        drift: &mut Drift,
        profile: &mut Profile,
        from: i64,
        tasks: i64,
        mut task: impl FnMut(i64) -> (usize, Nanos),
    ) -> Vec<i64> {
        let mut corrected = Vec::new();
        for number in 0..tasks {
            let (rows, took) = task(number);
            let profiled = profile.latency(rows);
            if let Some(better) = drift.observe(at(from + 100 * number), rows, took, profiled, profile) {
                *profile = better;
                corrected.push(number);
            }
        }
        corrected
    }

    #[test]
    fn a_profile_that_is_right_or_nearly_so_stays() {
        let mut profile = Profile::linear(1.0, 2.0, 32).unwrap();
        let mut drift = Drift::new(32);
        // Within ±40 %, with a stall each seventh task.
        let task = |number: i64| {
            let rows = (number % 32 + 1) as usize;
            let factor = if number % 7 == 0 { 10_000 } else { 70 + number * 37 % 70 };
            (rows, Nanos((rows as i64 + 2) * 10_000 * factor))
        };
        assert!(run(&mut drift, &mut profile, 0, 10_000, task).is_empty());
        assert_eq!(profile, Profile::linear(1.0, 2.0, 32).unwrap());
    }

    #[test]
    fn wakeup_latency_is_no_error_of_the_profile() {
        let mut profile = Profile::linear(0.001, 0.02, 8).unwrap();
        let task = |_| (1, Nanos::from_micros(150));
        assert!(run(&mut Drift::new(8), &mut profile, 0, 1_000, task).is_empty());
    }

    #[test]
    fn a_stalled_measurement_is_corrected_after_sixteen_samples() {
        // ℓ(1) measured as 309 ms, the rest in proportion; the true profile is b + 1 ms.
        let truth = Profile::linear(1.0, 1.0, 8).unwrap();
        let mut profile = Profile::linear(309.0, 0.1, 8).unwrap();
        let mut drift = Drift::new(8);
        assert_eq!(run(&mut drift, &mut profile, 0, 16, |_| (1, truth.latency(1))), [15]);
        assert!(profile.latency(1) > MS(1) && profile.latency(1) < MS(4), "{profile:?}");
        // The profile of full batches is far too long: they correct it once the pause is over.
        run(&mut drift, &mut profile, 2_000, 200, |_| (8, truth.latency(8)));
        let full = profile.latency(8).as_millis_f64();
        assert!((full - 9.0).abs() < 1.0, "{full}");
        assert!(profile.latency(1) < MS(4), "{profile:?}");
    }

    #[test]
    fn a_profile_that_is_too_short_is_corrected_too() {
        let mut profile = Profile::linear(1.0, 1.0, 4).unwrap();
        assert_eq!(run(&mut Drift::new(4), &mut profile, 0, 100, |_| (2, MS(30))), [15]);
        assert_eq!(profile.latency(2), MS(30));
    }

    #[test]
    fn a_machine_that_is_busy_for_a_second_is_no_reason() {
        let mut profile = Profile::linear(1.0, 1.0, 4).unwrap();
        let mut drift = Drift::new(4);
        // A task each 2 ms; tasks take ten times as long during one of every 3 s.
        for number in 0..60_000 {
            let now = at(2 * number);
            let took = if number / 500 % 3 == 0 { MS(20) } else { MS(2) };
            assert_eq!(drift.observe(now, 1, took, profile.latency(1), &profile), None, "at {now:?}");
        }
        // A lasting slowdown leads to a correction, and so does its end.
        let mut slow = |from: i64, took| {
            let mut observe = |number: i64| drift.observe(at(from + 2 * number), 1, took, profile.latency(1), &profile);
            let (tasks, better) = (0..60_000).find_map(|number| Some((number, observe(number)?))).unwrap();
            profile = better;
            2 * tasks
        };
        let (until_slow, until_fast) = (slow(120_000, MS(20)), slow(240_000, MS(2)));
        assert!(until_slow < 3_000 && until_fast < 3_000, "{until_slow} and {until_fast} ms");
        assert!(profile.latency(1) < MS(3), "{profile:?}");
    }

    #[test]
    fn corrections_become_rare_on_a_device_that_changes_all_the_time() {
        let mut profile = Profile::linear(1.0, 1.0, 4).unwrap();
        let changing = |number: i64| (1, if number / 32 % 2 == 0 { MS(2) } else { MS(40) });
        // 2,000 s of it.
        let corrected = run(&mut Drift::new(4), &mut profile, 0, 20_000, changing);
        assert!((8..=38).contains(&corrected.len()), "{corrected:?}");
        let gaps: Vec<i64> = corrected.windows(2).map(|pair| 100 * (pair[1] - pair[0])).collect();
        assert!(gaps.iter().zip(0..).all(|(&gap, doubled)| gap >= 500 << doubled.min(7)), "{gaps:?}");
    }

    #[test]
    fn no_task_breaks_it() {
        let mut drift = Drift::new(4);
        let profile = Profile::from_table(&[Nanos(1), Nanos(2), Nanos(3), Nanos::MAX]).unwrap();
        for number in 0..100_000_i64 {
            let rows = (number % 9) as usize;
            let took = Nanos(if number % 2 == 0 { i64::MAX } else { -number });
            drift.observe(at(number), rows, took, profile.latency(rows.max(1)), &profile);
        }
    }

    #[test]
    fn a_profile_that_lets_nothing_run_is_put_to_the_test() {
        let (mut doubt, slo) = (Doubt::new(), MS(100));
        let tests = |doubt: &mut Doubt, from: i64, alone: i64| -> Vec<i64> {
            (from..from + 4_000).filter(|&ms| doubt.on_hopeless(at(ms), MS(alone), slo)).collect()
        };
        assert!(tests(&mut doubt, 0, 20).is_empty(), "the device is overloaded: nothing is wrong with the profile");
        assert_eq!(tests(&mut Doubt::new(), 0, 309), [7, 507, 1_507, 3_507]);
        let mut running = Doubt::new();
        let mut task_between = |ms: i64| {
            running.on_task();
            (0..7).any(|_| running.on_hopeless(at(ms), MS(309), slo))
        };
        assert!(!(0..100).any(&mut task_between), "what runs speaks for itself");
        let profile = suspect(&Profile::linear(309.0, 0.1, 4).unwrap(), MS(309), slo).unwrap();
        assert!(profile.latency(1) < MS(13) && profile.latency(4) > MS(45), "{profile:?}");
    }
}
