//! From a model's files to a model that can serve: read, checked, profiled and warmed up.
//!
//! Slow by nature, so it runs on loader threads. Reading is done by as many of them as like; measuring by one at a time,
//! because two measurements at once would measure each other.

use super::batching;
use super::borders::check_weights;
use super::cache::{ProfileCache, ProfileKey};
use super::config::Batching;
use super::edge::Edge;
use super::found::Found;
use super::labels::{self, Labels};
use super::plan::{Plan, Target};
use super::report::{ModelReport, ProfileReport, Progress, describe};
use super::sample::sample;
use super::scan::CONFIG_FILE;
use super::slicing;
use super::slo::{Origin, Slo, best_batch, queue_bound};
use super::text;
use super::triton::TritonConfig;
use super::warm_up::warm_up;
use parking_lot::Mutex;
use ripieno_base::Nanos;
use ripieno_executor::{BlockProfile, BlockSource, Loaded, Measured, Measurement, Step, check_padding, measure};
use ripieno_model::bounds::best_goodput;
use ripieno_model::{Block, DropRule, Lengths, Model, Profile, Walk};
use ripieno_runtime::ServedModel;
use ripieno_text::TextModel;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How a model comes by its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// From the cache, or measured if it is not there.
    IfMissing,
    /// Measured, whatever the cache holds.
    Always,
    /// From the cache or not at all.
    Never,
}

/// Engines recurse into a graph as deep as it is, when they load it. Only what is used of this is ever in memory.
const LOADING_STACK: usize = 256 << 20;

/// Loads models for one target.
pub struct Loader {
    target: Target,
    progress: Progress,
    measuring: Mutex<()>,
}

/// A model that is loaded and knows what it costs.
pub struct Prepared {
    /// What was loaded.
    pub plan: Plan,
    /// The model in memory.
    pub loaded: Arc<dyn Loaded>,
    /// What each block costs; none if it was not to be measured.
    pub profiles: Option<Vec<BlockProfile>>,
    /// "given", "cached" or "measured".
    pub origin: &'static str,
    /// Why requests do not share batches, if they do not.
    pub unbatched: Option<String>,
    /// What the classes of outputs are called, by output.
    pub labels: BTreeMap<String, Labels>,
    /// How it reads texts, if it does.
    pub text: Option<Arc<TextModel>>,
    /// What is odd about it.
    pub warnings: Vec<String>,
}

impl Loader {
    /// A loader that reports measurements to `progress`.
    pub fn new(target: Target, progress: Progress) -> Loader {
        Loader { target, progress, measuring: Mutex::new(()) }
    }

    /// What the models are loaded for.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Loads one model. The error is one line that names file, key and fix; a panic in an engine becomes one, too.
    pub fn prepare(&self, found: &Found, profiling: Profiling) -> Result<Prepared, String> {
        let shown = found.model.display();
        let attempt = || catch_unwind(AssertUnwindSafe(|| self.try_prepare(found, profiling)));
        let attempt = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("load".to_owned()).stack_size(LOADING_STACK);
            let thread = thread.spawn_scoped(scope, attempt).map_err(|error| format!("{shown}: no thread: {error}"))?;
            Ok::<_, String>(thread.join().and_then(|attempt| attempt))
        })?;
        let outcome = attempt.unwrap_or_else(|panic| {
            Err(format!("{shown}: the {} engine failed on it: {}", self.target.engine.name(), panic_text(&*panic)))
        });
        outcome.map_err(|error| error.replace('\n', " "))
    }

    fn try_prepare(&self, found: &Found, profiling: Profiling) -> Result<Prepared, String> {
        let mut plan = Plan::new(found, &self.target)?;
        for file in plan.files() {
            check_weights(found, &file, self.target.allow_symlinks)?;
        }
        let (text, unused) = text::prepare(found, &mut plan, &self.target)?;
        if let Some(edge) = plan.triton.as_ref().map(|triton| &triton.settings.edge) {
            let cells = plan.source.walk.is_unfolded();
            check_edge(edge, text.is_some(), cells).map_err(|cause| format!("{}: {cause}", plan.config.file))?;
        }
        let labels = labels::read(found, &plan.config.labels, self.target.allow_symlinks)?;
        let (loaded, warning) = self.load(&mut plan, profiling)?;
        let (loaded, unbatched) = batching::settle(&self.target, &mut plan, loaded)?;
        plan.check_declared(&*loaded)?;
        if let Some(unknown) = labels.keys().find(|name| !loaded.outputs().iter().any(|spec| spec.name == **name)) {
            return Err(format!(
                "{}: labels are given for output '{unknown}', which the model does not have",
                plan.config.file
            ));
        }
        if !self.target.emulates() {
            check_padding(&*self.target.engine, &loaded).map_err(|cause| format!("{}: {cause}", plan.shown_file()))?;
        }
        let (text, unfit) = match text {
            Some(text) => text.fit(&plan, &*loaded)?,
            None => (None, unused),
        };
        let (profiles, origin) = self.profiles(&plan, &loaded, profiling)?;
        if profiling != Profiling::Never && origin != "measured" && !self.target.emulates() {
            warm_up(&*self.target.engine, &loaded, plan.source.max_batch, plan.config.warm_up)
                .map_err(|cause| format!("{}: {cause}", plan.shown_file()))?;
        }
        let said = plan.triton.iter().flat_map(TritonConfig::warnings);
        let warnings = said.chain(warning).chain(unfit).collect();
        let mut prepared =
            Prepared { plan, loaded, profiles, origin, unbatched, labels, text: text.map(Arc::new), warnings };
        prepared.warnings.extend(prepared.batching_warning());
        prepared.warnings.extend(prepared.slo_warning());
        Ok(prepared)
    }

    /// The model in blocks, if its owner wants that; the whole, with a warning, if it cannot be cut.
    fn load(&self, plan: &mut Plan, profiling: Profiling) -> Result<(Arc<dyn Loaded>, Option<String>), String> {
        let load = |plan: &Plan| self.target.engine.load(&plan.source).map_err(|error| error.to_string());
        let whole = plan.clone();
        let one_at_a_time = self.measuring.lock();
        let cut = slicing::apply(plan, &self.target, profiling != Profiling::Never);
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

    fn profiles(
        &self,
        plan: &Plan,
        loaded: &Arc<dyn Loaded>,
        profiling: Profiling,
    ) -> Result<(Option<Vec<BlockProfile>>, &'static str), String> {
        if let Some(given) = plan.given_profiles() {
            return Ok((Some(given), "given"));
        }
        // The way to a process and back takes its time.
        let place = if plan.source.isolation.is_some() { "/process" } else { "" };
        let device = format!("{}{place}", self.target.engine.device_key());
        let key = ProfileKey::new(&device, &plan.files(), plan.source.max_batch)?
            .with_lengths(loaded.lengths().map(|lengths| lengths.max));
        let cache = ProfileCache::beside(&plan.folder);
        if profiling != Profiling::Always
            && let Some(cached) = cache.read(&key).filter(|cached| cached.len() == plan.source.blocks.len())
        {
            return Ok((Some(cached), "cached"));
        }
        if profiling == Profiling::Never {
            return Ok((None, "none"));
        }
        let measured = self.measure(plan, loaded)?;
        if let Some(doubt) = &measured.doubt {
            tracing::warn!(
                "model {}: its profile is used but not kept: {doubt}; measure it again on an idle machine",
                plan.name
            );
        } else if let Err(cause) = cache.write(&key, &measured.blocks) {
            tracing::warn!("model {}: {cause}", plan.name);
        }
        Ok((Some(measured.blocks), "measured"))
    }

    fn measure(&self, plan: &Plan, loaded: &Arc<dyn Loaded>) -> Result<Measured, String> {
        let _one_at_a_time = self.measuring.lock();
        let max_batch = plan.source.max_batch;
        // All lengths together take as long again as the longest alone would.
        let budget = if loaded.lengths().is_some() { 2 * self.target.measure_for } else { self.target.measure_for };
        let measurement = Measurement { max_batch, budget, example: None };
        let mut step = |step: Step| (self.progress)(&plan.name, step.done, step.sizes);
        let measured = measure(&*self.target.engine, loaded, &measurement, &mut step);
        measured.map_err(|error| format!("{}: {error}", plan.shown_file()))
    }
}

/// What a front end does for a model cannot be joined with everything.
fn check_edge(edge: &Edge, reads_text: bool, in_cells: bool) -> Result<(), &'static str> {
    match edge {
        Edge { reshapes, .. } if reads_text && !reshapes.is_empty() => {
            Err("a model that reads texts has no reshape; remove it")
        }
        Edge { sequences: Some(_), .. } if reads_text || in_cells => {
            Err("a model that reads texts or is served in cells has no sequences of requests; remove sequence_batching")
        }
        _ => Ok(()),
    }
}

impl Prepared {
    /// When its answers are due; none if that follows from a profile that it does not have.
    pub fn slo(&self) -> Option<Slo> {
        let Plan { slo, config, source, .. } = &self.plan;
        slo.settle(config, source.max_batch, self.profiles.as_deref())
    }

    /// The model as the scheduler sees it; none if it has no profile.
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
            // Who is to be answered late must not be dropped for being late.
            drop: config.drop.or(slo.answer_late.then_some(DropRule::Never)),
            weight: self.plan.config.weight,
            dec_timesteps: self.plan.dec_timesteps,
        })
    }

    /// The most rows in one batch of a block: of a cell what its owner says, else the best size by measurement.
    fn largest_batch(&self, block: usize, profile: &Profile) -> usize {
        let cells = self.plan.config.cells.as_ref().and_then(|cells| cells.cells.get(block));
        let Some(cell) = cells else { return profile.max_batch() };
        let given = cell.max_batch.or(cell.sizes.last().copied());
        given.unwrap_or_else(|| if self.origin == "given" { profile.max_batch() } else { best_batch(profile) })
    }

    /// The model as the runtime wants it; none if it has no profile.
    pub fn served(&self) -> Option<ServedModel> {
        let (model, slo, config) = (self.model()?, self.slo()?, &self.plan.config);
        let bound = || queue_bound(config, slo, &model.profile(), ServedModel::MAX_QUEUE);
        let (max_queue, answer_late) = (config.max_queue.unwrap_or_else(bound), slo.answer_late);
        Some(ServedModel { model, loaded: self.loaded.clone(), max_queue, answer_late })
    }

    /// What the command line shows of it.
    pub fn report(&self, devices: usize) -> ModelReport {
        let plan = &self.plan;
        // In cells a request costs as much as it is long, so there is no such sum.
        let total = self.model().filter(|model| !model.walk.is_unfolded()).map(|model| model.profile());
        let slo = self.slo();
        let within = |profile: &Profile| Some(best_goodput(profile, slo?.span, devices.min(plan.config.instances)));
        let goodput = total.as_ref().and_then(within);
        let blocks = plan.source.blocks.iter().zip(self.profiles.iter().flatten());
        let blocks = blocks.enumerate().map(|(at, (source, cost))| {
            let largest = plan.config.cells.is_some().then(|| self.largest_batch(at, &cost.profile));
            let lengths = cost.lengths.as_ref().map_or(&[][..], Lengths::table);
            let report = ProfileReport::new(&source.name, self.origin, &cost.profile).with_lengths(lengths);
            ProfileReport { batch: largest, ..report }
        });
        ModelReport {
            name: plan.name.clone(),
            version: plan.version.clone(),
            state: "READY".to_owned(),
            inputs: self.loaded.inputs().iter().map(|spec| describe(spec, self.loaded.batched())).collect(),
            outputs: self.loaded.outputs().iter().map(|spec| describe(spec, self.loaded.batched())).collect(),
            slo_ms: slo.map(|slo| slo.span.as_millis_f64()),
            slo_is_derived: slo.map(|slo| slo.origin == Origin::Profile),
            late: slo.map(|slo| if slo.answer_late { "answer" } else { "refuse" }),
            max_batch: Some(plan.source.max_batch),
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
            sample: sample(&*self.loaded),
            warnings: self.warnings.clone(),
            error: None,
        }
    }

    /// What all blocks cost together, by length; nothing where requests do not differ in length.
    fn total_by_length(&self) -> Vec<(u32, Profile)> {
        let blocks = self.profiles.iter().flatten().map(|cost| cost.lengths.as_ref().map(Lengths::table));
        let Some(blocks) = blocks.collect::<Option<Vec<_>>>() else { return Vec::new() };
        let Some(first) = blocks.first() else { return Vec::new() };
        let lengths = first.iter().enumerate();
        // All blocks are measured together, at the same lengths.
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

    /// For whoever did not name a latency target.
    pub(super) fn slo_note(&self) -> Option<String> {
        let slo = self.slo().filter(|slo| slo.origin == Origin::Profile)?;
        let becomes =
            if slo.answer_late { "late requests are answered, and counted" } else { "late requests are refused" };
        Some(format!(
            "it names no slo_ms: {} ms is derived from its profile; {becomes}; write slo_ms in {} to have a target kept",
            millis(slo.span),
            self.plan.folder.join(CONFIG_FILE).display()
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

/// Milliseconds with as many digits as matter.
fn millis(span: Nanos) -> String {
    let text = format!("{:.3}", span.as_millis_f64());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}
