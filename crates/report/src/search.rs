//! Goodput: the highest offered rate whose bad rate stays within a limit.
//!
//! A binary search, which assumes that the bad rate grows with the load. That holds in the mean but
//! not for single runs: near the knee one run can shift the result, so the runs on both sides of it
//! are returned.

/// Options of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// The rate to try first, best a little above the expected answer; doubled until it fails.
    pub ceiling: f64,
    /// A run passes if its worst bad rate is at most this.
    pub limit: f64,
    /// Relative distance between the highest passing and the lowest failing rate at which the
    /// search ends.
    pub step: f64,
}

impl Search {
    /// The usual search: at most 1 % bad, to within 0.4 %.
    pub fn from_ceiling(ceiling: f64) -> Search {
        Search { ceiling, limit: 0.01, step: 0.004 }
    }
}

/// One run at one rate.
#[derive(Clone, Debug, PartialEq)]
pub struct RateTrial<R> {
    /// The offered rate.
    pub rate: f64,
    /// The highest bad rate of any model, which decides whether the run passes.
    pub worst_bad_rate: f64,
    /// Output of the run.
    pub run: R,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchResult<R> {
    /// The run at the highest rate that passed; `None` if even the lowest rate tried failed.
    pub good: Option<RateTrial<R>>,
    /// The run at the lowest rate that failed; `None` if even the highest rate tried passed.
    pub bad: Option<RateTrial<R>>,
    /// Number of runs.
    pub runs: usize,
}

impl<R> SearchResult<R> {
    /// Returns the highest rate that passed, or 0.
    pub fn goodput_rps(&self) -> f64 {
        self.good.as_ref().map_or(0.0, |trial| trial.rate)
    }
}

/// Number of doublings of the first rate after which the search gives up.
const MAX_DOUBLINGS: i32 = 30;
/// Number of halvings of the first rate if nothing passes: below a thousandth of the guess the
/// goodput is reported as 0, since runs at tiny rates span years of virtual time.
const MAX_HALVINGS: i32 = 10;

/// Searches for the highest rate at which the worst bad rate stays within the limit. `run` returns
/// the worst bad rate and an output to keep. Stops at the first error of a run.
pub fn search<R, E>(options: Search, mut run: impl FnMut(f64) -> Result<(f64, R), E>) -> Result<SearchResult<R>, E> {
    assert!(options.ceiling > 0.0 && options.ceiling.is_finite(), "the first rate must be above 0");
    let mut found = SearchResult { good: None, bad: None, runs: 0 };
    while let Some(rate) = next_rate(&options, found.goodput_rps(), found.bad.as_ref().map(|trial| trial.rate)) {
        let (worst_bad_rate, run) = run(rate)?;
        found.runs += 1;
        let side = if worst_bad_rate <= options.limit { &mut found.good } else { &mut found.bad };
        *side = Some(RateTrial { rate, worst_bad_rate, run });
    }
    Ok(found)
}

/// Returns the next rate between the highest passing one (0 if none) and the lowest failing one.
fn next_rate(options: &Search, good: f64, bad: Option<f64>) -> Option<f64> {
    match bad {
        None if good == 0.0 => Some(options.ceiling),
        None => (good < options.ceiling * 2f64.powi(MAX_DOUBLINGS)).then_some(good * 2.0),
        Some(bad) if good == 0.0 => (bad > options.ceiling / 2f64.powi(MAX_HALVINGS)).then_some(bad / 2.0),
        Some(bad) => (bad - good > options.step * bad).then_some((good + bad) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A server with a sharp knee at `capacity`.
    fn knee(capacity: f64, ceiling: f64) -> SearchResult<()> {
        let run = |rate: f64| Ok::<_, Infallible>((if rate <= capacity { 0.0 } else { 0.5 }, ()));
        search(Search::from_ceiling(ceiling), run).unwrap()
    }

    #[test]
    fn the_knee_is_found_from_above_and_below() {
        for ceiling in [1.0, 900.0, 5839.0, 20_000.0] {
            let found = knee(5839.0, ceiling);
            let (good, bad) = (found.goodput_rps(), found.bad.unwrap().rate);
            assert!(good <= 5839.0 && 5839.0 < bad && bad - good <= 0.004 * bad, "{good} {bad}");
            assert!(found.runs < 40);
        }
    }

    #[test]
    fn a_limit_that_is_just_met_passes() {
        let found = search(Search::from_ceiling(8.0), |rate| Ok::<_, Infallible>((rate / 1000.0, rate))).unwrap();
        assert!((found.goodput_rps() - 10.0).abs() < 0.05);
        assert_eq!(found.good.unwrap().run, found.bad.map_or(0.0, |bad| bad.run).min(10.0));
    }

    #[test]
    fn the_search_ends_where_everything_passes_or_fails() {
        let (all, none) = (knee(f64::INFINITY, 1.0), knee(0.0, 1.0));
        assert!(all.bad.is_none() && all.goodput_rps() > 1e9);
        assert!(none.good.is_none() && none.goodput_rps() == 0.0);
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(search(Search::from_ceiling(1.0), |_| Err::<(f64, ()), _>("gone")).unwrap_err(), "gone");
    }
}
