//! What an item may ask for: how much effort, and the answers of simulations.

use super::case::Case;
use super::job::{Answer, Job, Question};
use super::machine::Machine;
use super::measured::Measured;
use super::queue::Queue;
use anyhow::bail;
use std::path::PathBuf;
use std::time::Duration;

/// How much time the user gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effort {
    /// A quarter of the requests and fewer points.
    Quick,
    /// What the documentation reports.
    Usual,
    /// All that the paper ran.
    Full,
    /// As quick, with so few requests that the numbers mean nothing: for tests of the form.
    Tiny,
}

/// Runs what items ask for.
#[derive(Debug)]
pub struct Context {
    effort: Effort,
    seeds: Option<u64>,
    /// The engine on which items that can measure real cells, too.
    measured: Option<String>,
    machine: Box<dyn Machine>,
    queue: Queue,
    models: Option<PathBuf>,
    /// Whether an item is one of many, whose models need not all lie in one repository.
    one_of_many: bool,
    /// Doublings of the runs that settle a peak.
    doublings: u32,
}

/// A number from several seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Context {
    /// With so many seeds a point instead of the item's own number, if any.
    pub fn new(effort: Effort, seeds: Option<u64>, queue: Queue, machine: Box<dyn Machine>) -> Context {
        Context { effort, seeds, measured: None, machine, queue, models: None, one_of_many: false, doublings: 0 }
    }

    /// The same, with a repository of real models; none of its models is missed in a run of many items.
    pub fn with_models(self, models: Option<PathBuf>, one_of_many: bool) -> Context {
        Context { models, one_of_many, ..self }
    }

    /// The same, with peaks from runs so many times doubled beyond those that settle them.
    pub fn with_doublings(self, doublings: u32) -> Context {
        Context { doublings, ..self }
    }

    pub(super) fn doublings(&self) -> u32 {
        self.doublings
    }

    /// The same for an item of so many: the progress bar says which.
    pub fn head(&self, item: &str, place: usize, count: usize) {
        self.queue.head(format!("{item} ({place} of {count}) "));
    }

    /// The real models to measure, if the user wants that and all of these are in his repository.
    pub(super) fn models(&self, wanted: &[&str]) -> Option<Measured<'_>> {
        self.repository().filter(|measured| measured.lacks(wanted).is_none())
    }

    /// The same where a program writes all of these: a repository that lacks one is an error.
    pub(super) fn models_by(&self, program: &str, wanted: &[&str]) -> anyhow::Result<Option<Measured<'_>>> {
        let lacks = self.repository().and_then(|measured| measured.lacks(wanted).map(|model| (measured, model)));
        match lacks {
            Some((Measured { repository, .. }, model)) if !self.one_of_many => {
                let repository = repository.display();
                bail!("--models {repository} holds no model {model}; python {program} {repository} writes it")
            }
            _ => Ok(self.models(wanted)),
        }
    }

    fn repository(&self) -> Option<Measured<'_>> {
        let (engine, repository) = (self.measured.as_deref()?, self.models.as_deref()?);
        let (rounds, seconds) = match self.effort {
            Effort::Usual | Effort::Full => (3, 5.0),
            Effort::Quick => (1, 2.0),
            Effort::Tiny => (1, 0.2),
        };
        Some(Measured { machine: self.machine(), repository, engine, rounds, seconds })
    }

    /// The same, with measurements of real cells and models on this engine, if any.
    pub fn measuring(self, engine: Option<String>) -> Context {
        Context { measured: engine, ..self }
    }

    /// What real cells are to be measured on; none unless the user asks for it.
    pub(super) fn measured(&self) -> Option<&str> {
        self.measured.as_deref()
    }

    /// What measures on a wall clock.
    pub(super) fn machine(&self) -> &dyn Machine {
        &*self.machine
    }

    /// Whether to leave points out.
    pub(super) fn is_quick(&self) -> bool {
        !matches!(self.effort, Effort::Usual | Effort::Full)
    }

    /// Whether to take all that the paper ran.
    pub(super) fn is_full(&self) -> bool {
        self.effort == Effort::Full
    }

    /// How many requests to simulate where `usual` are usual.
    pub(super) fn requests(&self, usual: u64) -> u64 {
        match self.effort {
            Effort::Usual | Effort::Full => usual,
            Effort::Quick => (usual / 4).max(25_000),
            Effort::Tiny => 1_000,
        }
    }

    /// How long to measure on a wall clock where `usual` is usual.
    pub(super) fn span(&self, usual: Duration) -> Duration {
        match self.effort {
            Effort::Usual | Effort::Full => usual,
            Effort::Quick => usual / 4,
            Effort::Tiny => usual / 100,
        }
    }

    /// How many seeds to take where `usual` are usual.
    pub(super) fn seeds(&self, usual: u64) -> u64 {
        self.seeds.unwrap_or(if self.is_quick() { 1 } else { usual })
    }

    /// Every `few`-th of `all` if quick, always with the last one.
    pub(super) fn points<T: Copy>(&self, all: &[T], few: usize) -> Vec<T> {
        let keep = |index: usize| !self.is_quick() || (all.len() - 1 - index).is_multiple_of(few);
        all.iter().enumerate().filter(|&(index, _)| keep(index)).map(|(_, &point)| point).collect()
    }

    /// The answer to `question` for each case, in order.
    pub(super) fn answers(&self, question: Question, cases: Vec<Case>) -> anyhow::Result<Vec<Answer>> {
        let job = |case: Case| Job { scenario: case.toml(), policy: case.contender.name, question };
        self.queue.answers(&cases.into_iter().map(job).collect::<Vec<_>>())
    }

    /// The answer to `question` for each scenario, given with the name of who decides.
    pub(super) fn ask(&self, question: Question, scenarios: &[(String, String)]) -> anyhow::Result<Vec<Answer>> {
        let job = |(policy, scenario): &(String, String)| Job {
            policy: policy.clone(),
            scenario: scenario.clone(),
            question,
        };
        self.queue.answers(&scenarios.iter().map(job).collect::<Vec<_>>())
    }

    /// What `run` makes of each input, on all cores; kept nowhere.
    pub(super) fn each<I: Sync, O: Send>(
        &self,
        inputs: &[I],
        run: impl Fn(&I) -> anyhow::Result<O> + Sync,
    ) -> anyhow::Result<Vec<O>> {
        self.queue.each(inputs, run)
    }

    /// The goodput of each case, over `usual_seeds` seeds from the case's own on.
    pub(super) fn goodputs(&self, cases: &[Case], usual_seeds: u64) -> anyhow::Result<Vec<Spread>> {
        let seeds = self.seeds(usual_seeds);
        let seeded = |case: &Case| {
            let case = case.clone();
            (0..seeds).map(move |more| Case { seed: case.seed + more, ..case.clone() })
        };
        let answers = self.answers(Question::Goodput, cases.iter().flat_map(seeded).collect())?;
        let spread = |answers: &[Answer]| Spread::of(answers.iter().map(|answer| answer.goodput_rps));
        Ok(answers.chunks(seeds as usize).map(spread).collect())
    }
}

impl Spread {
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone) -> Spread {
        let (sum, count) = values.clone().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        if count > 0.0 { Spread { mean: sum / count, low, high } } else { Spread::default() }
    }
}
