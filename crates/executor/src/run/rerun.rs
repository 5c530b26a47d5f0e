//! Re-run of a failed batch in parts, until the failing requests are found.
//!
//! An engine that fails on a batch does not report the failing row. So the batch is halved, and
//! each half that fails is halved again. One bad request among n costs at most 2·log2(n) further
//! runs, and the other requests get their regular answers. The error of a request is the engine's
//! error for this request alone, so it contains no other request's values.
//!
//! Halves are run breadth first. If the bound on further runs is reached, the undecided parts are
//! small, and not half of the batch.

use crate::{ExecError, MemberProgress, Rerun};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Largest number of further runs of one task. It is enough for any batch of up to 33 requests.
pub(crate) const MAX_RERUNS: u32 = 64;

/// Conditions under which parts of a batch are run again.
pub(crate) struct RerunTerms<'a> {
    /// Earliest possible start of the task.
    pub(crate) ready: Instant,
    /// Time until which each member's client waits; `None` for no limit.
    pub(crate) until: &'a dyn Fn(usize) -> Option<Instant>,
    /// Whether the task was stopped.
    pub(crate) stopped: &'a dyn Fn() -> bool,
    /// Whether each member runs alone from now on.
    pub(crate) alone: &'a dyn Fn() -> bool,
}

/// Result of a task.
pub(crate) struct CompletedTask {
    pub(crate) progress: Vec<MemberProgress>,
    pub(crate) rerun: Option<Rerun>,
}

impl CompletedTask {
    /// Creates the result. If the only member of a batch failed and is not lost, the whole batch
    /// has failed.
    pub(crate) fn of(mut progress: Vec<MemberProgress>, rerun: Option<Rerun>) -> Result<CompletedTask, ExecError> {
        match &mut progress[..] {
            [MemberProgress { failed: Some(cause), lost: None, .. }] => Err(cause.clone()),
            _ => Ok(CompletedTask { progress, rerun }),
        }
    }
}

/// Runs the members with these indices in the task. The instant is the earliest possible start.
pub(crate) type RunPart<'a> = &'a mut dyn FnMut(&[usize], Instant) -> Result<(), ExecError>;

/// Runs each of `batches`, and runs failed ones again in parts. Stores in `failures` the error of
/// each member that fails alone or stays undecided. Returns a record of the re-runs, or the error
/// if the task was stopped.
pub(crate) fn run_in_parts(
    batches: Vec<Vec<usize>>,
    failures: &mut [Option<ExecError>],
    terms: &RerunTerms<'_>,
    run: RunPart<'_>,
) -> Result<Option<Rerun>, ExecError> {
    let mut first_runs = batches.len();
    let mut queue = VecDeque::from(batches);
    let (mut ready, mut runs, mut first_cause) = (terms.ready, 0, None);
    while let Some(mut part) = queue.pop_front() {
        match first_runs.checked_sub(1) {
            Some(left) => first_runs = left,
            None => {
                drop_overdue(&mut part, failures, terms);
                if runs >= MAX_RERUNS && !(terms.alone)() {
                    part.drain(..).for_each(|at| failures[at] = Some(undecided()));
                }
                if part.is_empty() {
                    continue;
                }
                runs += 1;
            }
        }
        if let Err(cause) = run(&part, ready) {
            if (terms.stopped)() {
                return Err(cause);
            }
            match part.len() {
                0 => return Err(cause),
                1 => failures[part[0]] = Some(cause),
                _ if (terms.alone)() => {
                    queue.extend(part.into_iter().map(|at| vec![at]));
                    first_cause.get_or_insert(cause);
                }
                members => {
                    let second = part.split_off(members / 2);
                    queue.extend([part, second]);
                    first_cause.get_or_insert(cause);
                }
            }
        }
        ready = Instant::now();
    }
    Ok(first_cause.map(|cause| Rerun { runs, cause }))
}

/// Removes members whose clients no longer wait.
fn drop_overdue(part: &mut Vec<usize>, failures: &mut [Option<ExecError>], terms: &RerunTerms<'_>) {
    let now = Instant::now();
    part.retain(|&at| {
        let overdue = (terms.until)(at).is_some_and(|until| until <= now);
        if overdue {
            failures[at] = Some(undecided());
        }
        !overdue
    });
}

fn undecided() -> ExecError {
    ExecError(
        "the batch failed on some request in it, and there was no time to find out on which; send the request again"
            .to_owned(),
    )
}

/// Calls a function and converts a panic to an error.
pub(crate) fn catch_panic<T>(act: impl FnOnce() -> Result<T, ExecError>) -> Result<T, ExecError> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn Any + Send)) -> ExecError {
    let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    ExecError(format!("the engine panicked: {}", words.unwrap_or("without a word")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Runs `count` members, of which those in `bad` make every batch fail. Returns the failed
    /// members, each with its own message, the members that succeeded, and the number of further
    /// runs.
    fn tell_apart(count: usize, bad: &[usize]) -> (Vec<usize>, Vec<usize>, u32) {
        let mut failures = vec![None; count];
        let mut well = Vec::new();
        let terms = RerunTerms { ready: Instant::now(), until: &|_| None, stopped: &|| false, alone: &|| false };
        let run: RunPart<'_> = &mut |part, _| match part.iter().find(|at| bad.contains(at)) {
            Some(at) => Err(ExecError(format!("member {at}"))),
            None => {
                well.extend_from_slice(part);
                Ok(())
            }
        };
        let rerun = run_in_parts(vec![(0..count).collect()], &mut failures, &terms, run).unwrap();
        let rerun = rerun.map_or(0, |rerun| rerun.runs);
        let failed = failures.iter().enumerate().filter_map(|(at, cause)| Some((at, cause.as_ref()?)));
        let failed = failed.inspect(|(at, cause)| assert!(cause.0 == format!("member {at}"), "{at}: {cause}"));
        let failed = failed.map(|(at, _)| at).collect();
        well.sort_unstable();
        (failed, well, rerun)
    }

    #[test]
    fn bad_requests_are_found_in_twice_the_logarithm_of_runs_each() {
        for count in 1..=33_usize {
            let bound = 2 * count.next_power_of_two().ilog2();
            for bad_one in 0..count {
                let (failed, well, rerun) = tell_apart(count, &[bad_one]);
                assert_eq!(failed, [bad_one]);
                assert_eq!(well, (0..count).filter(|&at| at != bad_one).collect::<Vec<_>>());
                assert!(rerun <= bound, "{rerun} further runs for one of {count}");
                let other = (bad_one + count / 2) % count;
                let (failed, _, rerun) = tell_apart(count, &[bad_one, other]);
                assert_eq!(failed.len(), 1 + usize::from(other != bad_one));
                assert!(rerun <= 2 * bound);
            }
            let all: Vec<usize> = (0..count).collect();
            assert_eq!(tell_apart(count, &all), (all, Vec::new(), 2 * count as u32 - 2));
        }
    }

    #[test]
    fn further_runs_are_bounded_and_the_rest_may_retry() {
        let mut failures = vec![None; 128];
        let mut runs = 0;
        let terms = RerunTerms { ready: Instant::now(), until: &|_| None, stopped: &|| false, alone: &|| false };
        let run: RunPart<'_> = &mut |_, _| {
            runs += 1;
            Err(ExecError("secret".to_owned()))
        };
        let rerun = run_in_parts(vec![(0..128).collect()], &mut failures, &terms, run).unwrap().unwrap();
        assert_eq!((rerun.runs, &*rerun.cause.0), (MAX_RERUNS, "secret"));
        assert_eq!(runs, 1 + MAX_RERUNS);
        assert!(failures.iter().flatten().filter(|cause| cause.0.contains("send the request again")).count() == 128);
    }

    #[test]
    fn no_member_is_run_again_after_its_deadline() {
        let mut failures = vec![None; 4];
        let now = Instant::now();
        let past = |at: usize| (at > 1).then_some(now);
        let terms = RerunTerms { ready: now, until: &past, stopped: &|| false, alone: &|| false };
        let mut parts = Vec::new();
        let run: RunPart<'_> = &mut |part, _| {
            parts.push(part.to_vec());
            if part.contains(&0) { Err(ExecError("member 0".to_owned())) } else { Ok(()) }
        };
        run_in_parts(vec![vec![0, 1, 2, 3]], &mut failures, &terms, run).unwrap();
        assert_eq!(parts, [vec![0, 1, 2, 3], vec![0, 1], vec![0], vec![1]]);
        assert_eq!(failures.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true]);
        assert!(failures[2].as_ref().unwrap().0.contains("no time"));
    }

    #[test]
    fn a_task_that_was_stopped_is_not_run_again() {
        let mut failures = vec![None; 4];
        let terms = RerunTerms { ready: Instant::now(), until: &|_| None, stopped: &|| true, alone: &|| false };
        let run: RunPart<'_> = &mut |_, _| Err(ExecError("stopped".to_owned()));
        assert_eq!(run_in_parts(vec![vec![0, 1]], &mut failures, &terms, run).unwrap_err().0, "stopped");
    }

    #[test]
    fn later_runs_are_ready_when_the_one_before_has_ended() {
        let ready = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let terms = RerunTerms { ready, until: &|_| None, stopped: &|| false, alone: &|| false };
        let mut from = Vec::new();
        let run: RunPart<'_> = &mut |_, ready| {
            from.push(ready);
            Ok(())
        };
        run_in_parts(vec![vec![0], vec![1]], &mut [None, None], &terms, run).unwrap();
        assert!(from[0] == ready && from[1] > ready);
    }

    #[test]
    fn members_that_must_run_alone_do_so_however_many_they_are() {
        let mut failures = vec![None; 100];
        let terms = RerunTerms { ready: Instant::now(), until: &|_| None, stopped: &|| false, alone: &|| true };
        let mut ran = Vec::new();
        let run: RunPart<'_> = &mut |part, _| match part {
            [at] => {
                ran.push(*at);
                Ok(())
            }
            _ => Err(ExecError("a batch".to_owned())),
        };
        let rerun = run_in_parts(vec![(0..100).collect()], &mut failures, &terms, run).unwrap();
        assert_eq!((rerun.map(|rerun| rerun.runs), ran), (Some(100), (0..100).collect()));
        assert!(failures.iter().all(Option::is_none));
    }
}
