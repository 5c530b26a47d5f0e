//! Whether this process gets the processor that it needs.
//!
//! A thread sleeps for a short while, again and again, and measures its lateness. A container that
//! is throttled, a machine that is too full, or a stopped process is seen as a gap. The server's
//! own clock cannot see it otherwise: requests wait in the kernel until the process runs, and count
//! from the time at which they are read.
//!
//! The thread has the priority of the devices' threads. So it is not late where the server's
//! threads, which are nicer, only yield to the devices.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which the thread sleeps.
const TICK: Duration = Duration::from_millis(10);
/// Shortest lateness that counts. A busy machine shows a few milliseconds.
const LEAST: Duration = Duration::from_millis(20);
/// Number of gaps that are kept for readers.
const MOST_GAPS: usize = 1_024;
/// Share of the time from which on a process counts as starved.
const STARVED: f64 = 0.02;

/// The watch of this process, once it was started.
static WATCH: OnceLock<Starvation> = OnceLock::new();

/// The gaps in which a process did not run.
#[derive(Default)]
pub(crate) struct Starvation {
    total_ns: AtomicU64,
    gaps: Mutex<VecDeque<Gap>>,
}

/// A span in which the process wanted to run and did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

/// Throttling by the CPU limit of the process's control group, since the group began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throttling {
    /// Number of periods in which the group was stopped.
    pub(crate) periods: u64,
    /// Time for which its threads were stopped.
    pub(crate) time: Duration,
}

/// Starts the watch of this process, once. Call it on a thread of normal priority.
pub fn watch_processor() -> std::io::Result<()> {
    if WATCH.set(Starvation::default()).is_err() {
        return Ok(());
    }
    let watch = WATCH.get().expect("it was set");
    let run = move || {
        loop {
            let slept = Instant::now();
            thread::sleep(TICK);
            watch.observe(slept + TICK, Instant::now());
        }
    };
    thread::Builder::new().name("processor".to_owned()).spawn(run).map(drop)
}

/// Returns the watch of this process; `None` if it was not started.
pub(crate) fn of_process() -> Option<&'static Starvation> {
    WATCH.get()
}

impl Starvation {
    /// Notes that the thread ran at `ran` and was due at `due`.
    fn observe(&self, due: Instant, ran: Instant) {
        let late = ran.saturating_duration_since(due);
        if late < LEAST {
            return;
        }
        self.total_ns.fetch_add(late.as_nanos() as u64, Relaxed);
        let mut gaps = self.gaps.lock();
        if gaps.len() == MOST_GAPS {
            gaps.pop_front();
        }
        gaps.push_back(Gap { from: due, to: ran });
    }

    /// Returns the time in gaps since the start.
    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns.load(Relaxed))
    }

    /// Returns the gaps that ended after an instant.
    pub(crate) fn since(&self, instant: Instant) -> Vec<Gap> {
        self.gaps.lock().iter().filter(|gap| gap.to > instant).copied().collect()
    }

    /// Returns the share of the last span in gaps, if the process counts as starved.
    pub(crate) fn starved(&self, now: Instant, span: Duration) -> Option<f64> {
        let since = now.checked_sub(span)?;
        let lost: Duration =
            self.since(since).iter().map(|gap| gap.to.saturating_duration_since(gap.from.max(since))).sum();
        let share = lost.as_secs_f64() / span.as_secs_f64();
        (share >= STARVED).then_some(share)
    }
}

/// Returns the throttling of this process; `None` where no control group limits it.
pub(crate) fn throttling() -> Option<Throttling> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().filter_map(statistics_of).map(|group| format!("/sys/fs/cgroup/{group}/cpu.stat"));
    // In a container its own group is the root.
    let roots = ["/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"].map(str::to_owned);
    own.chain(roots).find_map(|file| parse(&fs::read_to_string(file).ok()?))
}

/// Returns the folder below /sys/fs/cgroup of a line of /proc/self/cgroup, if the group limits
/// processors: `0::/PATH` of version 2, or `NUMBER:cpu:/PATH` and the like of version 1.
fn statistics_of(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let path = path.trim_matches('/');
    match controllers.is_empty() {
        true => Some(path.to_owned()),
        false => controllers.split(',').any(|name| name == "cpu").then(|| format!("{controllers}/{path}")),
    }
}

/// Reads a `cpu.stat` of version 2 (microseconds) or 1 (nanoseconds).
fn parse(text: &str) -> Option<Throttling> {
    let value = |name: &str| {
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok();
        text.lines().find_map(of)
    };
    let time = value("throttled_usec").map(Duration::from_micros);
    let time = time.or_else(|| value("throttled_time").map(Duration::from_nanos));
    Some(Throttling { periods: value("nr_throttled")?, time: time? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stands_still_for_a_third_of_the_time_is_starved() {
        let (watch, begun) = (Starvation::default(), Instant::now());
        let at = |millis: u64| begun + Duration::from_millis(millis);
        for second in 0..10 {
            (0..60).for_each(|tick| watch.observe(at(1_000 * second + 10 * tick), at(1_000 * second + 10 * tick + 5)));
            watch.observe(at(1_000 * second + 610), at(1_000 * second + 910));
        }
        assert_eq!(watch.total(), Duration::from_secs(3));
        assert_eq!(watch.since(at(8_000)).len(), 2);
        let share = watch.starved(at(10_000), Duration::from_secs(10)).unwrap();
        assert!((share - 0.3).abs() < 1e-9, "{share}");
        assert_eq!(watch.starved(at(30_000), Duration::from_secs(10)), None, "it is over");
    }

    #[test]
    fn the_own_control_group_is_found_in_both_versions() {
        let of = |line: &str| statistics_of(line).unwrap_or_default();
        assert_eq!(of("0::/kubepods/pod7"), "kubepods/pod7");
        assert_eq!((of("4:cpu:/drill").as_str(), of("3:cpu,cpuacct:/a/b").as_str()), ("cpu/drill", "cpu,cpuacct/a/b"));
        assert_eq!((statistics_of("9:memory:/a"), statistics_of("nonsense")), (None, None));
    }

    #[test]
    fn both_versions_of_control_groups_are_read() {
        let second = "usage_usec 9\nnr_periods 40\nnr_throttled 12\nthrottled_usec 345000\n";
        let first = "nr_periods 40\nnr_throttled 12\nthrottled_time 345000000\n";
        let expected = Some(Throttling { periods: 12, time: Duration::from_millis(345) });
        assert_eq!((parse(second), parse(first)), (expected, expected));
        assert_eq!(parse("usage_usec 9\n"), None, "no limit");
    }
}
