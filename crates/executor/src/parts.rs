//! A batch that fails is run again in parts, until it is known whose fault it was.
//!
//! An engine that fails on a batch does not say which of its rows it failed on. So the batch is halved, and each half that fails
//! is halved again: one culprit among n costs at most 2·log2(n) further runs, and whoever shared the batch with it gets the
//! answer that it would have had. What a request is told is what the engine says of that request alone, so no message can
//! show another one's values.
//!
//! Halves are run breadth first: if the bound on further runs is hit, what is left undecided are small parts around the
//! culprits rather than half of the batch.

use crate::{Again, ExecError};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The most further runs of one task. A batch of up to 33 requests is told apart whatever there is in it.
pub(crate) const MOST_RUNS: u32 = 64;

/// Under what conditions parts of a batch are run again.
pub(crate) struct Terms<'a> {
    /// From when on the task could have run.
    pub(crate) ready: Instant,
    /// By member: until when somebody waits for it; no limit if none.
    pub(crate) until: &'a dyn Fn(usize) -> Option<Instant>,
    /// Whether the task is to stop.
    pub(crate) stopped: &'a dyn Fn() -> bool,
}

/// Runs members, by their places in the task, from an instant on.
pub(crate) type RunPart<'a> = &'a mut dyn FnMut(&[usize], Instant) -> Result<(), ExecError>;

/// Runs each of `batches`; one that fails is run again in parts. What befell a member that fails alone, or is left undecided,
/// goes to its place in `failures`. Returns what was run again, or why the task was stopped.
pub(crate) fn run_in_parts(
    batches: Vec<Vec<usize>>,
    failures: &mut [Option<ExecError>],
    terms: &Terms<'_>,
    run: RunPart<'_>,
) -> Result<Option<Again>, ExecError> {
    let mut first_runs = batches.len();
    let mut queue = VecDeque::from(batches);
    let (mut ready, mut runs, mut first_cause) = (terms.ready, 0, None);
    while let Some(mut part) = queue.pop_front() {
        match first_runs.checked_sub(1) {
            Some(left) => first_runs = left,
            None => {
                drop_overdue(&mut part, failures, terms);
                if runs == MOST_RUNS {
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
                members => {
                    let second = part.split_off(members / 2);
                    queue.extend([part, second]);
                    first_cause.get_or_insert(cause);
                }
            }
        }
        ready = Instant::now();
    }
    Ok(first_cause.map(|cause| Again { runs, cause }))
}

/// Leaves out whom nobody waits for any more.
fn drop_overdue(part: &mut Vec<usize>, failures: &mut [Option<ExecError>], terms: &Terms<'_>) {
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

/// Does something that may panic; then that is the error.
pub(crate) fn caught<T>(act: impl FnOnce() -> Result<T, ExecError>) -> Result<T, ExecError> {
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

    /// Runs `count` members of which some fail whatever they are run with. Returns who failed, each with its own words, who ran
    /// well, and how many further runs there were.
    fn tell_apart(count: usize, bad: &[usize]) -> (Vec<usize>, Vec<usize>, u32) {
        let mut failures = vec![None; count];
        let mut well = Vec::new();
        let terms = Terms { ready: Instant::now(), until: &|_| None, stopped: &|| false };
        let run: RunPart<'_> = &mut |part, _| match part.iter().find(|at| bad.contains(at)) {
            Some(at) => Err(ExecError(format!("member {at}"))),
            None => {
                well.extend_from_slice(part);
                Ok(())
            }
        };
        let again = run_in_parts(vec![(0..count).collect()], &mut failures, &terms, run).unwrap();
        let again = again.map_or(0, |again| again.runs);
        let failed = failures.iter().enumerate().filter_map(|(at, cause)| Some((at, cause.as_ref()?)));
        let failed = failed.inspect(|(at, cause)| assert!(cause.0 == format!("member {at}"), "{at}: {cause}"));
        let failed = failed.map(|(at, _)| at).collect();
        well.sort_unstable();
        (failed, well, again)
    }

    #[test]
    fn culprits_are_found_in_twice_the_logarithm_of_runs_each() {
        for count in 1..=33_usize {
            let bound = 2 * count.next_power_of_two().ilog2();
            for culprit in 0..count {
                let (failed, well, again) = tell_apart(count, &[culprit]);
                assert_eq!(failed, [culprit]);
                assert_eq!(well, (0..count).filter(|&at| at != culprit).collect::<Vec<_>>());
                assert!(again <= bound, "{again} further runs for one of {count}");
                let other = (culprit + count / 2) % count;
                let (failed, _, again) = tell_apart(count, &[culprit, other]);
                assert_eq!(failed.len(), 1 + usize::from(other != culprit));
                assert!(again <= 2 * bound);
            }
            let all: Vec<usize> = (0..count).collect();
            assert_eq!(tell_apart(count, &all), (all, Vec::new(), 2 * count as u32 - 2));
        }
    }

    #[test]
    fn further_runs_are_bounded_and_the_rest_is_told_so() {
        let mut failures = vec![None; 128];
        let mut runs = 0;
        let terms = Terms { ready: Instant::now(), until: &|_| None, stopped: &|| false };
        let run: RunPart<'_> = &mut |_, _| {
            runs += 1;
            Err(ExecError("secret".to_owned()))
        };
        let again = run_in_parts(vec![(0..128).collect()], &mut failures, &terms, run).unwrap().unwrap();
        assert_eq!((again.runs, &*again.cause.0), (MOST_RUNS, "secret"));
        assert_eq!(runs, 1 + MOST_RUNS);
        assert!(failures.iter().flatten().filter(|cause| cause.0.contains("send the request again")).count() == 128);
    }

    #[test]
    fn nobody_is_run_again_after_its_deadline() {
        let mut failures = vec![None; 4];
        let now = Instant::now();
        let past = |at: usize| (at > 1).then_some(now);
        let terms = Terms { ready: now, until: &past, stopped: &|| false };
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
        let terms = Terms { ready: Instant::now(), until: &|_| None, stopped: &|| true };
        let run: RunPart<'_> = &mut |_, _| Err(ExecError("stopped".to_owned()));
        assert_eq!(run_in_parts(vec![vec![0, 1]], &mut failures, &terms, run).unwrap_err().0, "stopped");
    }

    #[test]
    fn later_runs_are_ready_when_the_one_before_has_ended() {
        let ready = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let terms = Terms { ready, until: &|_| None, stopped: &|| false };
        let mut from = Vec::new();
        let run: RunPart<'_> = &mut |_, ready| {
            from.push(ready);
            Ok(())
        };
        run_in_parts(vec![vec![0], vec![1]], &mut [None, None], &terms, run).unwrap();
        assert!(from[0] == ready && from[1] > ready);
    }
}
