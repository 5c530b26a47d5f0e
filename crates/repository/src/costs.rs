//! Costs of a model: given, cached or measured, with requests of the shapes that clients send.

use super::cache::{ProfileCache, ProfileKey};
use super::largest_batch::{self, FOUND_SIZES};
use super::load::{Loader, Profiling};
use super::plan::{LoadPlan, LoadTarget};
use super::warm_up::warm_up;
use ripieno_executor::{
    BlockProfile, ExampleOrigin, LoadedModel, MeasuredProfile, Measurement, MeasurementProgress, Tensor, TrialRequest,
    example_origin, find_example, is_unsupported, measure,
};
use ripieno_model::{Profile, TensorSpec, doubling_sizes, padded_size};
use std::sync::Arc;

/// Cost per row of a model that could not be measured, in milliseconds. It is corrected while the
/// model serves.
const ASSUMED_MS: f64 = 50.0;

/// Costs of the blocks of a model, and the request that they were measured with.
pub(super) struct ModelCosts {
    /// Cost of each block; `None` if unknown and not measured.
    pub(super) profiles: Option<Vec<BlockProfile>>,
    /// Source of the profiles: "given", "cached", "measured", "assumed" or "none".
    pub(super) origin: &'static str,
    /// Request of one row, if the file leaves dimensions open.
    pub(super) example: Option<TrialRequest>,
    /// Whether the engine can be expected to run an example.
    pub(super) runs: bool,
    /// Whether the measurement has run the model as it is loaded now.
    pub(super) is_warm: bool,
    /// Warning for the user.
    pub(super) warning: Option<String>,
}

impl Loader {
    /// Returns the costs of a model. If its largest batch is to be found, it is loaded again with
    /// the one that was.
    pub(super) fn costs(
        &self,
        target: &LoadTarget,
        plan: &mut LoadPlan,
        loaded: &mut Arc<dyn LoadedModel>,
        profiling: Profiling,
    ) -> Result<ModelCosts, String> {
        let (given, shapes) = (plan.given_profiles(), plan.request_shapes());
        let is_run = !target.emulates() && (given.is_none() || plan.config.warm_up > 0);
        let trial = self.trial();
        let found = if is_run { find_example(&*target.engine, loaded, &shapes) } else { Ok(None) };
        drop(trial);
        let example = match found {
            Ok(example) => example,
            Err(cause) if is_unsupported(&cause) => {
                return Err(format!(
                    "{}: the {} engine cannot run it: {cause}",
                    plan.shown_file(),
                    target.engine.name()
                ));
            }
            Err(cause) => {
                let origin = example_origin(&**loaded, &shapes);
                let warning = Some(not_run(plan, target.engine.name(), &**loaded, origin, &cause));
                let origin = if given.is_some() { "given" } else { "assumed" };
                let assumed = || assumed(plan.source.blocks.len(), plan.source.max_batch);
                let profiles = Some(stepped(given.unwrap_or_else(assumed), &**loaded));
                return Ok(ModelCosts { profiles, origin, example: None, runs: false, is_warm: false, warning });
            }
        };
        let (profiles, origin) = match given {
            Some(given) => (Some(stepped(given, &**loaded)), "given"),
            None => self.profiles(target, plan, loaded, example.as_ref(), profiling)?,
        };
        let measured = Arc::clone(loaded);
        let profiles = profiles.map(|profiles| choose_sizes(target, plan, loaded, profiles)).transpose()?;
        let is_warm = origin == "measured" && Arc::ptr_eq(&measured, loaded);
        Ok(ModelCosts { profiles, origin, example, runs: true, is_warm, warning: None })
    }

    fn profiles(
        &self,
        target: &LoadTarget,
        plan: &mut LoadPlan,
        loaded: &mut Arc<dyn LoadedModel>,
        example: Option<&TrialRequest>,
        profiling: Profiling,
    ) -> Result<(Option<Vec<BlockProfile>>, &'static str), String> {
        // Profiles of isolated engines have their own cache key, because they include the transfer
        // to and from the process.
        let place = if plan.source.isolation.is_some() { "/process" } else { "" };
        let device = format!("{}{place}", target.engine.device_key());
        let shapes = example.iter().flat_map(|example| example.inputs.iter().map(|input| input.shape.clone()));
        let key = ProfileKey::new(&device, &plan.profiled_files(), plan.source.max_batch)?
            .with_lengths(loaded.lengths().map(|lengths| lengths.max))
            .with_shapes(shapes.collect())
            .with_batch_sizes(loaded.batch_sizes());
        let cache = ProfileCache::beside(&plan.folder);
        let is_open = largest_batch::is_open(plan, &**loaded);
        let found = FOUND_SIZES.iter().copied().filter(|&size| is_open && size > plan.source.max_batch);
        for size in found.chain([plan.source.max_batch]).filter(|_| profiling != Profiling::Always) {
            let sizes = if size == plan.source.max_batch { key.batch_sizes() } else { &plan.batch_sizes(size, target) };
            let cached = cache.read(&key.with_max_batch(size, sizes));
            if let Some(cached) = cached.filter(|cached| cached.len() == plan.source.blocks.len()) {
                resize(target, plan, loaded, size)?;
                return Ok((Some(cached), "cached"));
            }
        }
        if profiling == Profiling::Never {
            return Ok((None, "none"));
        }
        let mut measured = self.measure(target, plan, loaded, example)?;
        let larger = || self.larger_batch(target, plan, example, &measured.blocks);
        if let Some(size) = is_open.then(larger).flatten() {
            resize(target, plan, loaded, size)?;
            measured = self.measure(target, plan, loaded, example)?;
        }
        let key = key.with_max_batch(plan.source.max_batch, loaded.batch_sizes());
        if let Some(doubt) = &measured.unreliable {
            tracing::warn!(
                "model {}: its profile is used but not kept: {doubt}; measure it again on an idle machine",
                plan.name
            );
        } else if let Err(cause) = cache.write(&key, &measured.blocks) {
            tracing::warn!("model {}: {cause}", plan.name);
        }
        Ok((Some(measured.blocks), "measured"))
    }

    fn measure(
        &self,
        target: &LoadTarget,
        plan: &LoadPlan,
        loaded: &Arc<dyn LoadedModel>,
        example: Option<&TrialRequest>,
    ) -> Result<MeasuredProfile, String> {
        let _one_at_a_time = self.measuring.lock();
        let _nothing_beside = self.without_trials();
        let max_batch = plan.source.max_batch;
        let inputs = example.map(|example| &example.inputs);
        // Where the first run of a size is slow, the first runs would use up the budget.
        if !loaded.batch_sizes().is_empty() {
            warm_up(&*target.engine, loaded, inputs, max_batch, plan.config.warm_up)
                .map_err(|cause| format!("{}: {cause}", plan.shown_file()))?;
        }
        // Measuring all lengths takes about twice as long as measuring the longest.
        let budget = if loaded.lengths().is_some() { 2 * target.measure_for } else { target.measure_for };
        let measurement = Measurement { max_batch, budget, example: inputs.cloned() };
        let mut step = |step: MeasurementProgress| (self.progress)(&plan.name, step.done, step.sizes);
        let measured = measure(&*target.engine, loaded, &measurement, &mut step);
        measured.map_err(|error| format!("{}: {error}", plan.shown_file()))
    }
}

/// Loads a model again with another largest batch.
fn resize(
    target: &LoadTarget,
    plan: &mut LoadPlan,
    loaded: &mut Arc<dyn LoadedModel>,
    max_batch: usize,
) -> Result<(), String> {
    if plan.source.max_batch != max_batch {
        plan.set_max_batch(max_batch, target);
        *loaded = target.engine.load(&plan.source).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Gain of a size midway between two doublings from which it is worth its memory and its warm-up,
/// in percent of the next size's batch. If costs grow with the rows it is about 25, and 0 if they
/// are the next size's; so half or twice as much decides alike.
const MIDWAY_PERCENT: i64 = 10;

/// Takes those sizes midway between two doublings out whose batches cost about as much as the next
/// size's. Returns the costs with the sizes that are left.
fn choose_sizes(
    target: &LoadTarget,
    plan: &mut LoadPlan,
    loaded: &mut Arc<dyn LoadedModel>,
    blocks: Vec<BlockProfile>,
) -> Result<Vec<BlockProfile>, String> {
    if plan.config.batch_sizes.is_some() {
        return Ok(blocks);
    }
    let profile = Profile::sum(blocks.iter().map(|block| &block.profile));
    let doubling = doubling_sizes(plan.source.max_batch);
    let gains = |size: usize| {
        let next = profile.latency(padded_size(&doubling, size));
        i128::from(profile.latency(size).0) * 100 <= i128::from(next.0) * i128::from(100 - MIDWAY_PERCENT)
    };
    let kept = loaded.batch_sizes().iter().copied().filter(|size| doubling.contains(size) || gains(*size));
    let kept: Vec<usize> = kept.collect();
    if kept.len() == loaded.batch_sizes().len() {
        return Ok(blocks);
    }
    plan.source.batch_sizes = kept;
    *loaded = target.engine.load(&plan.source).map_err(|error| error.to_string())?;
    Ok(stepped(blocks, &**loaded))
}

impl ModelCosts {
    /// Runs a model before it is announced, unless its measurement has just done so.
    pub(super) fn warm(
        &self,
        target: &LoadTarget,
        plan: &LoadPlan,
        loaded: &Arc<dyn LoadedModel>,
        profiling: Profiling,
    ) -> Result<(), String> {
        if profiling == Profiling::Never || self.is_warm || !self.runs || target.emulates() {
            return Ok(());
        }
        let example = self.example.as_ref().map(|example| &example.inputs);
        warm_up(&*target.engine, loaded, example, plan.source.max_batch, plan.config.warm_up)
            .map_err(|cause| format!("{}: {cause}", plan.shown_file()))
    }

    /// Returns the inputs of the example.
    pub(super) fn example_shapes(&self) -> Vec<TensorSpec> {
        let inputs = self.example.iter().flat_map(|example| example.inputs.iter());
        let spec = |input: &Tensor| TensorSpec {
            name: input.name.to_string(),
            datatype: input.datatype,
            shape: input.shape.clone(),
        };
        inputs.map(spec).collect()
    }

    /// Returns the shapes of the measured request, if the file leaves some open, such as "images
    /// [1, 3, 224, 224]", and whether they are guessed. Shapes of an unbatched model have no batch
    /// dimension.
    pub(super) fn measured_at(&self, batched: bool) -> Option<(String, bool)> {
        let TrialRequest { inputs, origin } = self.example.as_ref()?;
        let shape = |input: &Tensor| format!("{} {:?}", input.name, &input.shape[usize::from(!batched)..]);
        let shapes: Vec<String> = inputs.iter().map(shape).collect();
        Some((shapes.join(", "), *origin == ExampleOrigin::Guessed))
    }
}

fn assumed(blocks: usize, max_batch: usize) -> Vec<BlockProfile> {
    let profile = Profile::linear(ASSUMED_MS / blocks.max(1) as f64, 0.0, max_batch).expect("a line is a profile");
    vec![BlockProfile { profile, lengths: None }; blocks]
}

/// Returns the costs of batches that are padded as the model's are.
fn stepped(blocks: Vec<BlockProfile>, loaded: &dyn LoadedModel) -> Vec<BlockProfile> {
    blocks.iter().map(|block| block.stepped(loaded.batch_sizes())).collect()
}

/// Returns the warning for a model that accepts no request that was made up.
fn not_run(plan: &LoadPlan, engine: &str, loaded: &dyn LoadedModel, origin: ExampleOrigin, cause: &str) -> String {
    let shape = |spec: &TensorSpec| {
        let shape = if loaded.batched() { &spec.shape[..] } else { &spec.shape[1..] };
        format!("[[input]] name = \"{}\", datatype = \"{}\", shape = {shape:?}", spec.name, spec.datatype)
    };
    let open: Vec<String> = loaded.inputs().iter().map(shape).collect();
    let costs = match plan.given_profiles() {
        Some(_) => String::new(),
        None => format!(": its latency is assumed to be {ASSUMED_MS} ms and learnt from requests"),
    };
    let values = "min and max of inputs whose values matter ([[input]] min, max)";
    let advice = match origin {
        ExampleOrigin::Fixed => format!("write into {} {values}", plan.config.file),
        ExampleOrigin::Declared => {
            format!("correct the shapes that {} gives its inputs, or write there {values}", plan.config.file)
        }
        ExampleOrigin::Guessed => format!(
            "write into {} the shapes that clients send, with a number instead of each -1 but that of the batch ({}), or {values}; \
             a sample in config.pbtxt (model_warmup) gives shapes, too",
            plan.config.file,
            open.join("; ")
        ),
    };
    let other = match engine {
        "cpu" => "; if requests fail as well, the built-in engine cannot run it: serve it with --engine onnxruntime",
        _ => "",
    };
    format!(
        "{}: it is served without having been run{costs}, and larger batches are not measured, since no request could be made up \
         for it ({}); {advice}{other}",
        plan.shown_file(),
        cause.trim_end()
    )
}
