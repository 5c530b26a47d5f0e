//! The context of an item: the effort, and the results of simulations.

use super::case::ScenarioCase;
use super::job::{Question, SimAnswer, SimJob};
use super::machine::LiveMachine;
use super::measured::MeasuredModels;
use super::queue::JobQueue;
use anyhow::bail;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The amount of time to spend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effort {
    /// A quarter of the requests and fewer points.
    Quick,
    /// The effort of the documented results.
    Usual,
    /// All runs of the paper.
    Full,
    /// Like `Quick`, with so few requests that the numbers mean nothing: for tests of the form.
    Tiny,
}

/// Runs the simulations and measurements of items.
#[derive(Clone, Debug)]
pub struct ReproduceContext {
    effort: Effort,
    seeds: Option<u64>,
    /// Number that is added to the seed of each scenario.
    further: u64,
    /// The engine for items that can measure real cells.
    measured: Option<String>,
    machine: Arc<dyn LiveMachine>,
    queue: Arc<JobQueue>,
    models: Option<PathBuf>,
    /// True if several items run, whose models need not all be in one repository.
    one_of_many: bool,
    /// Number of doublings of the runs that settle a peak.
    doublings: u32,
}

/// A number from several seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl ReproduceContext {
    /// Returns a context; `seeds` is the number of seeds per point, instead of the item's own
    /// number.
    pub fn new(effort: Effort, seeds: Option<u64>, queue: JobQueue, machine: Box<dyn LiveMachine>) -> ReproduceContext {
        ReproduceContext {
            effort,
            seeds,
            further: 0,
            measured: None,
            machine: Arc::from(machine),
            queue: Arc::new(queue),
            models: None,
            one_of_many: false,
            doublings: 0,
        }
    }

    /// Returns the contexts of runs with one seed a point: as many as the user sets, the first with
    /// the usual seeds.
    pub(super) fn of_seeds(&self) -> impl Iterator<Item = ReproduceContext> + use<'_> {
        (0..self.seeds.unwrap_or(1)).map(|further| ReproduceContext { further, seeds: Some(1), ..self.clone() })
    }

    /// Returns the seed of a run, given the usual one.
    pub(super) fn seed(&self, usual: u64) -> u64 {
        usual + self.further
    }

    /// Returns a scenario file with this run's seed.
    fn seeded(&self, scenario: &str) -> String {
        let line = |line: &str| match line.strip_prefix("seed = ").and_then(|seed| seed.trim().parse().ok()) {
            Some(seed) => format!("seed = {}\n", self.seed(seed)),
            None => line.to_owned(),
        };
        scenario.split_inclusive('\n').map(line).collect()
    }

    /// Adds a repository of real models. If `one_of_many`, an item whose models are missing is not
    /// measured.
    pub fn with_models(self, models: Option<PathBuf>, one_of_many: bool) -> ReproduceContext {
        ReproduceContext { models, one_of_many, ..self }
    }

    /// Doubles the runs that settle peaks this many more times.
    pub fn with_doublings(self, doublings: u32) -> ReproduceContext {
        ReproduceContext { doublings, ..self }
    }

    pub(super) fn doublings(&self) -> u32 {
        self.doublings
    }

    /// Sets the progress bar's text to this item, with its position among `count`.
    pub fn head(&self, item: &str, place: usize, count: usize) {
        self.queue.head(format!("{item} ({place} of {count}) "));
    }

    /// Returns the real models to measure, if the user's repository has all of these.
    pub(super) fn models(&self, wanted: &[&str]) -> Option<MeasuredModels<'_>> {
        self.repository().filter(|measured| measured.lacks(wanted).is_none())
    }

    /// Returns the real models to measure, if a repository is given; it is an error if one of
    /// these, which a program writes, is missing.
    pub(super) fn models_by(&self, program: &str, wanted: &[&str]) -> anyhow::Result<Option<MeasuredModels<'_>>> {
        let lacks = self.repository().and_then(|measured| measured.lacks(wanted).map(|model| (measured, model)));
        match lacks {
            Some((MeasuredModels { repository, .. }, model)) if !self.one_of_many => {
                let repository = repository.display();
                bail!("--models {repository} holds no model {model}; python {program} {repository} writes it")
            }
            _ => Ok(self.models(wanted)),
        }
    }

    fn repository(&self) -> Option<MeasuredModels<'_>> {
        let (engine, repository) = (self.measured.as_deref()?, self.models.as_deref()?);
        let (rounds, seconds) = match self.effort {
            Effort::Usual | Effort::Full => (3, 5.0),
            Effort::Quick => (1, 2.0),
            Effort::Tiny => (1, 0.2),
        };
        Some(MeasuredModels { machine: self.machine(), repository, engine, rounds, seconds })
    }

    /// Adds measurements of real cells and models on this engine, if any.
    pub fn measuring(self, engine: Option<String>) -> ReproduceContext {
        ReproduceContext { measured: engine, ..self }
    }

    /// Returns the engine for measurements of real cells; `None` unless the user requests it.
    pub(super) fn measured(&self) -> Option<&str> {
        self.measured.as_deref()
    }

    /// Returns the driver for measurements on a wall clock.
    pub(super) fn machine(&self) -> &dyn LiveMachine {
        &*self.machine
    }

    /// Returns true if points are left out.
    pub(super) fn is_quick(&self) -> bool {
        !matches!(self.effort, Effort::Usual | Effort::Full)
    }

    /// Returns true if all runs of the paper are made.
    pub(super) fn is_full(&self) -> bool {
        self.effort == Effort::Full
    }

    /// Returns the number of requests to simulate, given the usual number.
    pub(super) fn requests(&self, usual: u64) -> u64 {
        match self.effort {
            Effort::Usual | Effort::Full => usual,
            Effort::Quick => (usual / 4).max(25_000),
            Effort::Tiny => 1_000,
        }
    }

    /// Returns the time to measure on a wall clock, given the usual time.
    pub(super) fn span(&self, usual: Duration) -> Duration {
        match self.effort {
            Effort::Usual | Effort::Full => usual,
            Effort::Quick => usual / 4,
            Effort::Tiny => usual / 100,
        }
    }

    /// Returns the number of seeds, given the usual number.
    pub(super) fn seeds(&self, usual: u64) -> u64 {
        self.seeds.unwrap_or(if self.is_quick() { 1 } else { usual })
    }

    /// Returns every `few`-th point if quick, always with the last one.
    pub(super) fn points<T: Copy>(&self, all: &[T], few: usize) -> Vec<T> {
        let keep = |index: usize| !self.is_quick() || (all.len() - 1 - index).is_multiple_of(few);
        all.iter().enumerate().filter(|&(index, _)| keep(index)).map(|(_, &point)| point).collect()
    }

    /// Returns the answer to `question` for each case, in order.
    pub(super) fn answers(&self, question: Question, cases: Vec<ScenarioCase>) -> anyhow::Result<Vec<SimAnswer>> {
        let job =
            |case: ScenarioCase| SimJob { scenario: self.seeded(&case.toml()), policy: case.contender.name, question };
        self.queue.answers(&cases.into_iter().map(job).collect::<Vec<_>>())
    }

    /// Returns the answer to `question` for each scenario, given with the name of its policy.
    pub(super) fn ask(&self, question: Question, scenarios: &[(String, String)]) -> anyhow::Result<Vec<SimAnswer>> {
        let job = |(policy, scenario): &(String, String)| SimJob {
            policy: policy.clone(),
            scenario: self.seeded(scenario),
            question,
        };
        self.queue.answers(&scenarios.iter().map(job).collect::<Vec<_>>())
    }

    /// Returns the output of `run` for each input, computed on all cores and not cached.
    pub(super) fn each<I: Sync, O: Send>(
        &self,
        inputs: &[I],
        run: impl Fn(&I) -> anyhow::Result<O> + Sync,
    ) -> anyhow::Result<Vec<O>> {
        self.queue.each(inputs, run)
    }

    /// Returns the goodput of each case, over `usual_seeds` seeds from the case's own on.
    pub(super) fn goodputs(&self, cases: &[ScenarioCase], usual_seeds: u64) -> anyhow::Result<Vec<Spread>> {
        let seeds = self.seeds(usual_seeds);
        let seeded = |case: &ScenarioCase| {
            let case = case.clone();
            (0..seeds).map(move |more| ScenarioCase { seed: case.seed + more, ..case.clone() })
        };
        let answers = self.answers(Question::Goodput, cases.iter().flat_map(seeded).collect())?;
        let spread = |answers: &[SimAnswer]| Spread::of(answers.iter().map(|answer| answer.goodput_rps));
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
