//! Loads a model from its files: reads, checks, profiles and warms it up.
//!
//! Loading is slow and runs on loader threads. Models are read concurrently but measured one at a
//! time, because concurrent measurements would distort each other.

use super::batch_first;
use super::batching::{self, BatchingDecision};
use super::config::Batching;
use super::containment::check_weights;
use super::edge::EdgeConfig;
use super::equality;
use super::labels::{self, Labels};
use super::masked;
use super::model_files::ModelFiles;
use super::plan::{LoadPlan, LoadTarget};
use super::python;
use super::report::{MeasureProgress, ModelReport, ProfileReport, describe};
use super::sample::{sample, text_sample};
use super::slicing;
use super::slo::{Slo, SloOrigin, best_batch, queued_work_bound};
use super::text;
use super::triton::TritonConfig;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use ripieno_base::Nanos;
use ripieno_executor::{BlockProfile, BlockSource, LoadedModel, check_padding, find_output_lengths};
use ripieno_model::bounds::best_goodput;
use ripieno_model::{Block, DropRule, LengthProfiles, Model, Profile, TensorSpec, Walk};
use ripieno_runtime::ServedModel;
use ripieno_text::TextModel;
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

/// A loaded model with its cost.
pub struct PreparedModel {
    /// Plan by which it was loaded.
    pub plan: LoadPlan,
    /// Name of the engine that loaded it.
    pub engine: &'static str,
    /// The model in memory.
    pub loaded: Arc<dyn LoadedModel>,
    /// Cost of each block; `None` if unknown and not measured.
    pub profiles: Option<Vec<BlockProfile>>,
    /// Shapes of the request that was measured, if the file leaves some open; and whether they are
    /// guessed.
    pub measured_at: Option<(String, bool)>,
    /// The inputs of that request.
    pub(super) example_shapes: Vec<TensorSpec>,
    /// Source of the profiles: "given", "cached", "measured", or "assumed" where no request could
    /// be made up.
    pub origin: &'static str,
    /// Reason for which requests do not share batches.
    pub unbatched: Option<String>,
    /// Class labels by output.
    pub labels: BTreeMap<String, Labels>,
    /// Text support, if the model accepts text.
    pub text: Option<Arc<TextModel>>,
    /// Reason for which a tokenizer beside the model is not used, if there is one.
    pub no_text: Option<String>,
    /// Warnings about the model.
    pub warnings: Vec<String>,
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

impl PreparedModel {
    /// Returns the SLO; `None` if it depends on an unknown profile.
    pub fn slo(&self) -> Option<Slo> {
        let LoadPlan { slo, config, source, .. } = &self.plan;
        slo.resolve(config, source.max_batch, self.profiles.as_deref())
    }

    /// Returns the scheduler's view of the model; `None` without a profile.
    pub fn model(&self) -> Option<Model> {
        let (config, source, slo) = (&self.plan.config, &self.plan.source, self.slo()?);
        let block = |(at, (source, cost)): (usize, (&BlockSource, &BlockProfile))| Block {
            lengths: cost.lengths.clone(),
            steps: source.steps,
            beside: source.beside,
            priority: source.priority,
            sizes: source.sizes.clone(),
            skips: source.skip.is_some(),
            ..Block::new(&source.name, cost.profile.truncated(self.largest_batch(at, &cost.profile)))
        };
        Some(Model {
            name: self.plan.name.clone(),
            blocks: source.blocks.iter().zip(self.profiles.as_ref()?).enumerate().map(block).collect(),
            walk: if source.walk == Walk::Whole && source.blocks.len() > 1 { Walk::Chain } else { source.walk },
            slo: slo.span,
            max_batch: source.max_batch,
            instances: config.instances,
            // A request that is to be answered late must not be dropped for being late.
            drop: config.drop.or(slo.answer_late.then_some(DropRule::Never)),
            weight: self.plan.config.weight,
            dec_timesteps: self.plan.dec_timesteps,
            in_arrival_order: slo.origin == SloOrigin::Profile && slo.answer_late && config.drop.is_none(),
        })
    }

    /// Returns the maximum rows in a batch of a block; for a cell, the configured or best measured
    /// size.
    fn largest_batch(&self, block: usize, profile: &Profile) -> usize {
        let cells = self.plan.config.cells.as_ref().and_then(|cells| cells.cells.get(block));
        let Some(cell) = cells else { return profile.max_batch() };
        let given = cell.max_batch.or(cell.sizes.last().copied());
        given.unwrap_or_else(|| if self.origin == "given" { profile.max_batch() } else { best_batch(profile) })
    }

    /// Returns the runtime's view of the model; `None` without a profile.
    pub fn served(&self) -> Option<ServedModel> {
        let (model, slo, config) = (self.model()?, self.slo()?, &self.plan.config);
        let max_queued_work = queued_work_bound(config, slo, &model.profile());
        let (max_queue, answer_late) = (config.max_queue, slo.answer_late);
        Some(ServedModel { model, loaded: self.loaded.clone(), max_queue, max_queued_work, answer_late })
    }

    fn described_inputs(&self) -> Vec<String> {
        let own = self.loaded.inputs().iter().map(|spec| describe(spec, self.loaded.batched()));
        let optional = self.loaded.optional_inputs().iter().map(|spec| describe(spec, false) + " (optional)");
        own.chain(optional).collect()
    }

    /// Returns the report for the command line.
    pub fn report(&self, devices: usize) -> ModelReport {
        let plan = &self.plan;
        // In cells the cost depends on the request's length, so there is no total profile.
        let total = self.model().filter(|model| !model.walk.is_unfolded()).map(|model| model.profile());
        let slo = self.slo();
        let within = |profile: &Profile| Some(best_goodput(profile, slo?.span, devices.min(plan.config.instances)));
        let goodput = total.as_ref().and_then(within);
        let blocks = plan.source.blocks.iter().zip(self.profiles.iter().flatten());
        let blocks = blocks.enumerate().map(|(at, (source, cost))| {
            let largest = plan.config.cells.is_some().then(|| self.largest_batch(at, &cost.profile));
            let lengths = cost.lengths.as_ref().map_or(&[][..], LengthProfiles::table);
            let report = ProfileReport::new(&source.name, self.origin, &cost.profile).with_lengths(lengths);
            ProfileReport { batch: largest, ..report }
        });
        ModelReport {
            name: plan.name.clone(),
            version: plan.version.clone(),
            state: "READY".to_owned(),
            engine: Some(self.engine),
            measured_at: self.measured_at.clone().map(|(shapes, _)| shapes),
            inputs: self.described_inputs(),
            outputs: self.loaded.outputs().iter().map(|spec| describe(spec, self.loaded.batched())).collect(),
            slo_ms: slo.map(|slo| slo.span.as_millis_f64()),
            slo_is_derived: slo.map(|slo| slo.origin == SloOrigin::Profile),
            late: slo.map(|slo| if slo.answer_late { "answer" } else { "refuse" }),
            max_batch: Some(plan.source.max_batch),
            batch_sizes: self.loaded.batch_sizes().to_vec(),
            unbatched: self.unbatched.clone(),
            profile: total.as_ref().map(|profile| {
                ProfileReport::new(&plan.name, self.origin, profile).with_lengths(&self.total_by_length())
            }),
            blocks: if plan.source.blocks.len() > 1 || plan.config.cells.is_some() {
                blocks.collect()
            } else {
                Vec::new()
            },
            best_goodput_rps: goodput,
            sample: match &self.text {
                Some(text) => Some(text_sample(&plan.name, text)),
                None => sample(&*self.loaded, &self.example_shapes),
            },
            warnings: self.warnings.clone(),
            error: None,
        }
    }

    /// Returns the total profile of all blocks by length; empty if requests do not vary in length.
    fn total_by_length(&self) -> Vec<(u32, Profile)> {
        let blocks = self.profiles.iter().flatten().map(|cost| cost.lengths.as_ref().map(LengthProfiles::table));
        let Some(blocks) = blocks.collect::<Option<Vec<_>>>() else { return Vec::new() };
        let Some(first) = blocks.first() else { return Vec::new() };
        let lengths = first.iter().enumerate();
        // All blocks are measured at the same lengths.
        let total = |(at, (length, _)): (usize, &(u32, Profile))| {
            let of_length = blocks.iter().filter_map(|table| table.get(at).map(|(_, profile)| profile));
            (*length, Profile::sum(of_length))
        };
        lengths.map(total).collect()
    }

    fn batching_warning(&self) -> Option<String> {
        let why = self.unbatched.as_ref().filter(|_| self.plan.config.batching != Batching::Off)?;
        Some(format!("{}: one request at a time, without batches: {why}", self.plan.shown_file()))
    }

    /// Returns a log note on the shapes that were measured, if the file leaves some open.
    pub(super) fn shape_note(&self) -> Option<String> {
        let (shapes, guessed) = self.measured_at.as_ref()?;
        let advice = format!(
            ", a guess: where clients send others, write their shape as [[input]] into {}",
            self.plan.settings.display()
        );
        Some(format!("measured at {shapes}{}", if *guessed { advice } else { String::new() }))
    }

    /// Returns a log note for a model without a configured latency target.
    pub(super) fn slo_note(&self) -> Option<String> {
        let slo = self.slo().filter(|slo| slo.origin == SloOrigin::Profile)?;
        let becomes =
            if slo.answer_late { "late requests are answered, and counted" } else { "late requests are refused" };
        Some(format!(
            "it names no slo_ms: {} ms is derived from its profile; {becomes}; write slo_ms in {} to have a target kept",
            millis(slo.span),
            self.plan.settings.display()
        ))
    }

    fn slo_warning(&self) -> Option<String> {
        let (slo, one_row) = (self.slo()?, self.model()?.profile().latency(1));
        (slo.span < one_row).then(|| {
            format!(
                "{}: slo_ms = {} is below the latency of one row, {} ms: every request would miss it; raise slo_ms",
                self.plan.config.file,
                millis(slo.span),
                millis(one_row)
            )
        })
    }
}

/// Formats milliseconds without trailing zeros.
fn millis(span: Nanos) -> String {
    let text = format!("{:.3}", span.as_millis_f64());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}
