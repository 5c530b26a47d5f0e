//! The steps of an ensemble: models that a request runs one after the other or concurrently, as a
//! graph defines.
//!
//! The drivers share the order of steps, and the shortest time that later steps take. The progress
//! of a request is two bit sets, so it can be stored cheaply.

use ripieno_base::Nanos;
use std::fmt;

/// Dependencies between steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepGraph {
    /// Dependencies of each step, as bit sets.
    needs: Vec<u64>,
}

/// Reason why steps do not form a valid graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepsError {
    /// There is no step.
    None,
    /// There are more than [`StepGraph::MAX_STEPS`].
    TooMany,
    /// The step depends on a step that does not exist.
    Unknown(usize),
    /// The step depends on itself, directly or through others.
    Circle(usize),
}

impl fmt::Display for StepsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepsError::None => write!(out, "there is no step; add one"),
            StepsError::TooMany => write!(out, "there are more than {} steps; join some", StepGraph::MAX_STEPS),
            StepsError::Unknown(step) => write!(out, "step {step} needs a step that is not there"),
            StepsError::Circle(step) => write!(out, "step {step} waits for itself; break the circle"),
        }
    }
}

impl StepGraph {
    /// Largest number of steps.
    pub const MAX_STEPS: usize = u64::BITS as usize;

    /// Creates the graph from the dependencies of each step.
    pub fn new(needs: &[Vec<usize>]) -> Result<StepGraph, StepsError> {
        match needs.len() {
            0 => return Err(StepsError::None),
            count if count > StepGraph::MAX_STEPS => return Err(StepsError::TooMany),
            _ => {}
        }
        let bits = |(step, needed): (usize, &Vec<usize>)| match needed.iter().all(|&other| other < needs.len()) {
            true => Ok(needed.iter().fold(0, |bits, other| bits | 1 << other)),
            false => Err(StepsError::Unknown(step)),
        };
        let graph = StepGraph { needs: needs.iter().enumerate().map(bits).collect::<Result<_, _>>()? };
        let reached = graph.order().fold(0_u64, |done, step| done | 1 << step);
        let stuck = (0..needs.len()).find(|step| reached & 1 << step == 0);
        stuck.map_or(Ok(graph), |step| Err(StepsError::Circle(step)))
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.needs.len()
    }

    /// Returns for each step the longest time of the steps after it. `alone` is the time of each
    /// step.
    pub fn after(&self, alone: &[Nanos]) -> Vec<Nanos> {
        let mut after = vec![Nanos::ZERO; self.steps()];
        let order: Vec<usize> = self.order().collect();
        for &step in order.iter().rev() {
            let whole = after[step] + alone[step];
            for other in (0..self.steps()).filter(|other| self.needs[step] & 1 << other != 0) {
                after[other] = after[other].max(whole);
            }
        }
        after
    }

    /// Returns the length of the critical path. `alone` is the time of each step.
    pub fn critical_path(&self, alone: &[Nanos]) -> Nanos {
        let after = self.after(alone);
        after.iter().zip(alone).map(|(&after, &alone)| after + alone).max().unwrap_or(Nanos::ZERO)
    }

    /// Returns the steps in topological order.
    fn order(&self) -> impl Iterator<Item = usize> {
        let mut progress = StepProgress::default();
        std::iter::from_fn(move || {
            let step = progress.begin_next(self)?;
            progress.end(step);
            Some(step)
        })
    }
}

/// Returns the part of the remaining time `left` to reserve for the steps after a step. `after` is
/// the time that these steps take alone, and `own` is the time of the step itself. The step gets
/// the rest of `left`.
///
/// Later steps wait for batches too, so their time alone is not enough. They get three times
/// `after`, because a default latency target is three times a batch. If less time is left, they get
/// at most their proportion of it. So a step that could still be in time on idle devices is not
/// dropped.
pub fn reserve(left: Nanos, own: Nanos, after: Nanos) -> Nanos {
    let (own, after) = (own.0.max(1).unsigned_abs(), after.0.max(0).unsigned_abs());
    let share = left.max(Nanos::ZERO).scale(after, own + after);
    share.min(Nanos(after.saturating_mul(3).cast_signed()))
}

/// Progress of a request through the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepProgress {
    begun: u64,
    done: u64,
}

impl StepProgress {
    /// Begins and returns a step whose dependencies are done; `None` if there is none.
    pub fn begin_next(&mut self, graph: &StepGraph) -> Option<usize> {
        let may = |step: &usize| self.begun & 1 << step == 0 && graph.needs[*step] & !self.done == 0;
        let next = (0..graph.steps()).find(may)?;
        self.begun |= 1 << next;
        Some(next)
    }

    /// Marks a step as done.
    pub fn end(&mut self, step: usize) {
        self.done |= 1 << step;
    }

    /// Whether all steps are done.
    pub fn is_over(&self, graph: &StepGraph) -> bool {
        self.done.count_ones() as usize == graph.steps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: i64) -> Nanos {
        Nanos::from_millis(millis)
    }

    /// Steps 1 and 2 depend on 0, and step 3 on both.
    fn diamond() -> StepGraph {
        StepGraph::new(&[vec![], vec![0], vec![0], vec![1, 2]]).unwrap()
    }

    #[test]
    fn steps_begin_when_all_that_they_need_are_done() {
        let (graph, mut progress) = (diamond(), StepProgress::default());
        assert_eq!((progress.begin_next(&graph), progress.begin_next(&graph)), (Some(0), None));
        progress.end(0);
        assert_eq!([1, 2].map(|_| progress.begin_next(&graph)), [Some(1), Some(2)]);
        progress.end(2);
        assert_eq!(progress.begin_next(&graph), None);
        progress.end(1);
        assert_eq!(progress.begin_next(&graph), Some(3));
        assert!(!progress.is_over(&graph));
        progress.end(3);
        assert!(progress.is_over(&graph));
    }

    #[test]
    fn what_comes_after_a_step_is_the_longest_way() {
        let alone = [ms(1), ms(10), ms(20), ms(5)];
        assert_eq!(diamond().after(&alone), [ms(25), ms(5), ms(5), Nanos::ZERO]);
        assert_eq!(diamond().critical_path(&alone), ms(26));
        let backwards = StepGraph::new(&[vec![1], vec![]]).unwrap();
        assert_eq!(backwards.after(&alone[..2]), [Nanos::ZERO, ms(1)]);
    }

    #[test]
    fn later_steps_are_reserved_their_time_and_the_rest_is_the_steps_own() {
        assert_eq!(reserve(ms(1000), ms(10), ms(20)), ms(60));
        assert_eq!(reserve(ms(60), ms(10), ms(20)), ms(40), "their share");
        assert_eq!(reserve(ms(30), ms(10), ms(20)), ms(20), "just in time on idle devices: 10 ms are the step's own");
        assert_eq!(reserve(ms(-5), ms(10), ms(20)), Nanos::ZERO);
        assert_eq!(reserve(ms(50), ms(10), Nanos::ZERO), Nanos::ZERO, "the last step has all that is left");
    }

    #[test]
    fn what_cannot_be_walked_is_refused() {
        assert_eq!(StepGraph::new(&[]), Err(StepsError::None));
        assert_eq!(StepGraph::new(&vec![vec![]; 65]), Err(StepsError::TooMany));
        assert_eq!(StepGraph::new(&[vec![], vec![7]]), Err(StepsError::Unknown(1)));
        assert_eq!(StepGraph::new(&[vec![], vec![2], vec![1]]), Err(StepsError::Circle(1)));
        assert!(StepGraph::new(&vec![vec![]; 64]).is_ok());
    }
}
