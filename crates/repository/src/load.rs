//! Loads a model from its files: reads, checks, profiles and warms it up.
//!
//! Loading is slow and runs on loader threads. Models are read concurrently but measured one at a
//! time, because concurrent measurements would distort each other.

use super::batch_first;
use super::batching::{self, BatchingDecision};
use super::containment::check_weights;
use super::edge::EdgeConfig;
use super::equality;
use super::labels::{self, Labels};
use super::masked;
use super::model_files::ModelFiles;
use super::plan::{LoadPlan, LoadTarget};
use super::prepared::PreparedModel;
use super::python;
use super::report::MeasureProgress;
use super::slicing;
use super::text;
use super::triton::TritonConfig;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use ripieno_executor::{LoadedModel, check_padding, find_output_lengths};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Source of a model's profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// The cache; measured if absent.
    IfMissing,
    /// Always measured.
    Always,
    /// The cache only.
    Never,
}

/// Stack size of loader threads, because engines recurse as deep as the graph. Only touched pages
/// take memory.
const LOADING_STACK: usize = 256 << 20;

/// Longest wait of trials for a measurement, and of a measurement for trials.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Loads models for one target.
pub struct Loader {
    target: LoadTarget,
    /// The target with each engine that may load a model, in order of preference.
    targets: Vec<LoadTarget>,
    pub(super) progress: MeasureProgress,
    /// Held by measurements, of which one runs at a time.
    pub(super) measuring: Mutex<()>,
    /// Written by measurements and read by trials of other models, which do not run beside them.
    trials: RwLock<()>,
}

impl Loader {
    /// Creates a loader that reports measurements to `progress`.
    pub fn new(target: LoadTarget, progress: MeasureProgress) -> Loader {
        let mut engines = target.engine.alternatives();
        if engines.is_empty() {
            engines.push(target.engine.clone());
        }
        let targets = engines.into_iter().map(|engine| LoadTarget { engine, ..target.clone() }).collect();
        Loader { target, targets, progress, measuring: Mutex::new(()), trials: RwLock::new(()) }
    }

    /// Waits until no measurement runs. A measurement that hangs stops no other model.
    pub(super) fn trial(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.trials.try_read_for(LONGEST_WAIT)
    }

    /// Waits until no trial of another model runs. A trial that hangs stops no measurement.
    pub(super) fn without_trials(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.trials.try_write_for(LONGEST_WAIT)
    }

    /// Returns the target that models are loaded for.
    pub fn target(&self) -> &LoadTarget {
        &self.target
    }

    /// Loads one model by the first engine that can run it. The error is one line that names file,
    /// key and fix; an engine's panic becomes an error too.
    pub fn prepare(&self, found: &ModelFiles, profiling: Profiling) -> Result<PreparedModel, String> {
        let mut causes: Vec<String> = Vec::new();
        let python = python::target(found, &self.target);
        for target in python.as_ref().map_or(&self.targets[..], std::slice::from_ref) {
            match self.prepare_for(target, found, profiling) {
                Ok(None) => {}
                Ok(Some(mut prepared)) => {
                    prepared.warnings.extend(
                        causes.first().map(|cause| format!("it runs on the {} engine: {cause}", target.engine.name())),
                    );
                    return Ok(prepared);
                }
                Err(cause) if causes.contains(&cause) => {}
                Err(cause) => causes.push(cause),
            }
        }
        Err(causes.join("; nor can the built-in engine run it: "))
    }

    fn prepare_for(
        &self,
        target: &LoadTarget,
        found: &ModelFiles,
        profiling: Profiling,
    ) -> Result<Option<PreparedModel>, String> {
        let shown = found.model.display();
        let attempt = || catch_unwind(AssertUnwindSafe(|| self.try_prepare(target, found, profiling)));
        let attempt = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("load".to_owned()).stack_size(LOADING_STACK);
            let thread = thread.spawn_scoped(scope, attempt).map_err(|error| format!("{shown}: no thread: {error}"))?;
            Ok::<_, String>(thread.join().and_then(|attempt| attempt))
        })?;
        let outcome = attempt.unwrap_or_else(|panic| {
            Err(format!("{shown}: the {} engine failed on it: {}", target.engine.name(), panic_text(&*panic)))
        });
        outcome.map_err(|error| error.replace('\n', " "))
    }

    /// Loads one model; `None` if the engine is not for models of its walk.
    fn try_prepare(
        &self,
        target: &LoadTarget,
        found: &ModelFiles,
        profiling: Profiling,
    ) -> Result<Option<PreparedModel>, String> {
        let mut plan = LoadPlan::new(found, target)?;
        if !target.engine.serves(plan.source.walk) {
            return Ok(None);
        }
        for file in plan.files().into_iter().filter(|_| !plan.is_python) {
            check_weights(found, &file, target.allow_symlinks)?;
        }
        if !target.emulates() {
            batch_first::apply(&mut plan)?;
        }
        let (text, unused) = text::prepare(found, &mut plan, target)?;
        let labels = labels::read(found, &plan.config.labels, target.allow_symlinks)?;
        let (loaded, warning) = self.load(target, &mut plan, profiling)?;
        python::adopt(&mut plan, &*loaded);
        if let Some(edge) = plan.triton.as_ref().map(|triton| &triton.settings.edge) {
            let cells = plan.source.walk.is_unfolded();
            check_edge(edge, text.is_some(), cells).map_err(|cause| format!("{}: {cause}", plan.config.file))?;
        }
        let trials = self.trial();
        let BatchingDecision { mut loaded, unbatched, warning: rewritten, watch } =
            batching::decide(target, &mut plan, loaded)?;
        let mut masked = None;
        if unbatched.is_none()
            && let Some((padded, said)) = masked::apply(target, &mut plan, &loaded)
        {
            (loaded, masked) = (padded, Some(said));
        }
        plan.check_declared(&*loaded)?;
        check_labels(&plan, &labels, &*loaded)?;
        let uncompared = check_answers(target, &mut plan, &mut loaded)?;
        drop(trials);
        let (text, unfit) = match text {
            Some(text) => text.fit(&plan, &*loaded)?,
            None => (None, unused),
        };
        let costs = self.costs(target, &mut plan, &mut loaded, profiling)?;
        let trials = self.trial();
        costs.warm(target, &plan, &loaded, profiling)?;
        drop(trials);
        if let Some(doubt) = watch {
            loaded.watch_rows(&doubt);
        }
        let said = plan.triton.iter().flat_map(TritonConfig::warnings);
        let notes = [warning, rewritten, masked, uncompared, text::warning(unfit.as_ref()), costs.warning.clone()];
        let warnings = said.chain(notes.into_iter().flatten()).collect();
        let batched = loaded.batched();
        let mut prepared = PreparedModel {
            plan,
            engine: target.engine.name(),
            loaded,
            measured_at: costs.measured_at(batched),
            example_shapes: costs.example_shapes(),
            profiles: costs.profiles,
            origin: costs.origin,
            unbatched,
            labels,
            text: text.map(Arc::new),
            no_text: unfit.clone(),
            warnings,
        };
        prepared.warnings.extend(prepared.batching_warning());
        prepared.warnings.extend(prepared.slo_warning());
        Ok(Some(prepared))
    }

    /// Loads the model sliced into blocks if configured; if it cannot be sliced, loads it whole
    /// with a warning.
    fn load(
        &self,
        target: &LoadTarget,
        plan: &mut LoadPlan,
        profiling: Profiling,
    ) -> Result<(Arc<dyn LoadedModel>, Option<String>), String> {
        let load = |plan: &LoadPlan| target.engine.load(&plan.source).map_err(|error| error.to_string());
        let whole = plan.clone();
        let one_at_a_time = self.measuring.lock();
        let cut = slicing::apply(plan, target, profiling != Profiling::Never);
        drop(one_at_a_time);
        let cause = match cut {
            Ok(false) => return Ok((load(plan)?, None)),
            Ok(true) => match load(plan) {
                Ok(loaded) => return Ok((loaded, None)),
                Err(cause) => cause,
            },
            Err(cause) => cause,
        };
        *plan = whole;
        let warning =
            format!("{}: granularity: the model cannot be cut and is served whole: {cause}", plan.config.file);
        tracing::warn!("{warning}");
        Ok((load(plan)?, Some(warning)))
    }
}

/// Finds outputs whose length follows from the request's, and checks that padding, and the engine's
/// device, change no answers. Returns a warning if the device could not be checked.
fn check_answers(
    target: &LoadTarget,
    plan: &mut LoadPlan,
    loaded: &mut Arc<dyn LoadedModel>,
) -> Result<Option<String>, String> {
    if target.emulates() {
        return Ok(None);
    }
    let found = find_output_lengths(&*target.engine, loaded, &plan.source.lengths.outputs);
    if !found.is_empty() {
        plan.source.lengths.outputs.extend(found);
        *loaded = target.engine.load(&plan.source).map_err(|error| error.to_string())?;
    }
    check_padding(&*target.engine, loaded).map_err(|cause| format!("{}: {cause}", plan.shown_file()))?;
    equality::check(target, plan, loaded)
}

/// Refuses labels of outputs that the model does not have.
fn check_labels(plan: &LoadPlan, labels: &BTreeMap<String, Labels>, loaded: &dyn LoadedModel) -> Result<(), String> {
    match labels.keys().find(|name| !loaded.outputs().iter().any(|spec| spec.name == **name)) {
        None => Ok(()),
        Some(unknown) => {
            Err(format!("{}: labels are given for output '{unknown}', which the model does not have", plan.config.file))
        }
    }
}

/// Refuses combinations of server-side processing with other features that do not work.
fn check_edge(edge: &EdgeConfig, reads_text: bool, in_cells: bool) -> Result<(), &'static str> {
    match edge {
        EdgeConfig { reshapes, .. } if reads_text && !reshapes.is_empty() => {
            Err("a model that reads texts has no reshape; remove it")
        }
        EdgeConfig { sequences: Some(_), .. } if reads_text || in_cells => {
            Err("a model that reads texts or is served in cells has no sequences of requests; remove sequence_batching")
        }
        _ => Ok(()),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}
