//! Finds the best number of stages for a model, and the cuts, by trials on the serving engine.
//!
//! The benefit and cost of stage boundaries cannot be derived from a graph, so a few candidates are
//! tried: two, four and eight stages of equal duration, and cuts where the saturating batch size
//! changes. The layers are measured once, at all batch sizes. Each candidate then runs alternating
//! with the whole model, so that other load affects both alike, and only the ratio of their times
//! is used: the whole model's time, multiplied by that ratio, is divided among the stages in
//! proportion to their layers' times. `cost_model` selects the best candidate from these numbers.
//! The choice is stored beside the model's profiles, and is valid for the same device, engine,
//! files and maximum batch size; `stages = "auto"` uses it.

mod choice;
mod cost_model;
#[cfg(test)]
mod tests;

use super::cache::ProfileKey;
use super::config::Granularity;
use super::plan::{LoadPlan, LoadTarget};
use super::report::MeasureProgress;
use super::scan::{ModelCandidate, scan};
use super::slicing_check::{SliceComparison, boundary_cost, compare_slices};
use super::trial::{MEASURED_LENGTH, measured};
use ripieno_base::Nanos;
use ripieno_executor::{BlockSource, Executor};
use ripieno_model::Profile;
use ripieno_onnx::{Cuts, OnnxModel, SLICER_VERSION, Slices};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Version of the selection rule; choices of other versions are tried again.
const CHOICE_VERSION: u32 = 2;

/// Numbers of equal stages to try.
const STAGE_COUNTS: [usize; 3] = [2, 4, 8];
/// Among candidates within 1/`TOLERANCE` of the best, the one with the fewest stages is chosen.
const TOLERANCE: i64 = 100;
/// Batch size, besides a single row, at which layers are balanced and overheads compared.
const TRIAL_BATCH: usize = 8;
/// Number of alternating runs of each candidate and the whole.
const TRIAL_RUNS: usize = 5;

/// Trials of a model, and the choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Staging {
    /// Model name.
    pub model: String,
    /// Maximum rows in a batch.
    pub max_batch: usize,
    /// Number of layers that can be separated.
    pub layers: usize,
    /// Smallest and largest preferred batch size of the layers, after small layers are merged with
    /// their neighbours.
    pub preferred: (usize, usize),
    /// Whether requests vary in length.
    pub input_diversity: bool,
    /// Whether parts of the model prefer batch sizes that differ by a factor of at least two.
    pub operator_diversity: bool,
    /// The candidates, starting with the whole model.
    pub trials: Vec<StagingTrial>,
    /// Index of the chosen candidate.
    pub chosen: usize,
}

/// One candidate slicing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagingTrial {
    /// Kind of the cuts: "whole", "even" or "preferred".
    pub way: String,
    /// Number of layers before each cut.
    pub ends: Vec<usize>,
    /// Tensors carried across each cut.
    pub cuts: Vec<String>,
    /// Latency of all stages for one row and for the maximum batch.
    pub latency_ms: (f64, f64),
    /// The stages.
    pub stages: Vec<StageCost>,
    /// Ratio of the stages' time to the whole model's, for one row and for eight.
    pub overhead: (f64, f64),
    /// Mean latency of a full batch's members, plus half of the batch's duration as a new request's
    /// wait.
    pub expected_ms: f64,
}

/// One stage of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageCost {
    /// Latency for one row and for the maximum batch.
    pub latency_ms: (f64, f64),
    /// Smallest batch size with 95 % of the maximum row rate.
    pub preferred: usize,
}

impl Staging {
    /// Returns the chosen candidate.
    pub fn choice(&self) -> &StagingTrial {
        &self.trials[self.chosen]
    }

    /// Returns the optimisations that the policy `dva` applies to the model with this slicing.
    pub fn policy(&self) -> &'static str {
        let differ = Profile::prefer_differently(self.choice().stages.iter().map(|stage| stage.preferred));
        match (self.input_diversity, differ) {
            (true, _) => "I (cluster by length)",
            (false, true) => "II + III (split, stretch)",
            (false, false) => "III (stretch)",
        }
    }
}

/// Trials of a repository's models.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StagingReport {
    /// Models that have stages to try.
    pub models: Vec<Staging>,
    /// Reasons for which the others have none.
    pub errors: Vec<String>,
}

/// Tries the models at `path` that are one file, or the one named `only`, and stores the choices.
pub fn stage(
    path: &Path,
    target: &LoadTarget,
    only: Option<&str>,
    progress: &MeasureProgress,
) -> Result<StagingReport, String> {
    if target.emulates() {
        return Err("--device emulated runs no models, so no stages can be tried; use --device cpu".to_owned());
    }
    let candidates = scan(path)?;
    let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    if let Some(name) = only.filter(|name| !names.contains(name)) {
        return Err(format!("{}: there is no model \"{name}\"; it holds {}", path.display(), names.join(", ")));
    }
    let mut report = StagingReport::default();
    let is_model = |candidate: &&ModelCandidate| !candidate.found.as_ref().is_ok_and(|found| found.is_ensemble);
    let wanted = candidates.iter().filter(|candidate| only.is_none_or(|name| candidate.name == name));
    for candidate in wanted.filter(is_model) {
        let found = candidate.found.as_ref().map_err(String::clone);
        match found.and_then(|found| search(&LoadPlan::new(found, target)?, target, progress)) {
            Ok(staging) => report.models.push(staging),
            Err(error) => report.errors.push(error),
        }
    }
    Ok(report)
}

/// Returns the chosen cuts for `stages = "auto"`: stored, or tried now if measuring is allowed.
pub(super) fn ends(plan: &LoadPlan, target: &LoadTarget, may_measure: bool) -> Result<Vec<usize>, String> {
    let kept = choice::read(plan, &key(plan, target)?);
    let staging = match kept {
        Some(staging) => staging,
        None if may_measure => {
            tracing::info!("model {}: trying how many stages are best", plan.name);
            let quiet: MeasureProgress = std::sync::Arc::new(|_, _, _| {});
            search(plan, target, &quiet)?
        }
        None => return Err("its stages have not been tried yet: `ripieno profile --stages auto` does it".to_owned()),
    };
    Ok(staging.choice().ends.clone())
}

fn key(plan: &LoadPlan, target: &LoadTarget) -> Result<ProfileKey, String> {
    let device = format!("{}/slicer-{SLICER_VERSION}/choice-{CHOICE_VERSION}", target.engine.device_key());
    ProfileKey::new(&device, &plan.files(), plan.source.max_batch)
}

fn search(plan: &LoadPlan, target: &LoadTarget, progress: &MeasureProgress) -> Result<Staging, String> {
    let [BlockSource { path: Some(file), profile: None, .. }] = &plan.source.blocks[..] else {
        return Err(format!("{}: it is not one ONNX file to be measured, so it has no stages to try", plan.name));
    };
    if plan.config.granularity == Granularity::Cells {
        return Err(format!("{}: it is served in cells, which are batched step by step", plan.name));
    }
    let text = |error: ripieno_onnx::OnnxError| error.to_string();
    let model = OnnxModel::read(file).map_err(text)?;
    let bench = TrialRunner { plan, engine: &*target.engine, measure_for: target.measure_for, model: &model };
    let ways = STAGE_COUNTS.len() + 2;
    let report = |done: usize| progress(&plan.name, done, ways + 2);
    let layers = model.layers();
    report(0);
    let by_layer = bench.profiles(&model.slice(&layers, "layer").map_err(text)?)?;
    report(1);
    let whole = Profile::sum(bench.profiles(&model.slice(&Cuts::none(), "whole").map_err(text)?)?.iter());
    report(2);
    let groups = cost_model::groups(&by_layer);
    let saturating = parts(&by_layer, &groups).iter().map(Profile::preferred).max().unwrap_or(1);
    let measured = MeasuredLayers { layers, by_layer, whole, saturating };
    let mut trials: Vec<StagingTrial> = Vec::with_capacity(ways);
    for (at, (way, ends)) in bench.ways(&measured, &groups)?.into_iter().enumerate() {
        if trials.iter().all(|trial| trial.ends != ends) {
            trials.push(bench.run_trial(way, ends, &measured)?);
        }
        report(3 + at);
    }
    report(ways + 2);
    let staging = conclude(plan, &model, &measured.by_layer, &groups, trials);
    choice::save(plan, &key(plan, target)?, &staging);
    Ok(staging)
}

fn conclude(
    plan: &LoadPlan,
    model: &OnnxModel,
    by_layer: &[Profile],
    groups: &[usize],
    trials: Vec<StagingTrial>,
) -> Staging {
    let preferred: Vec<usize> = parts(by_layer, groups).iter().map(Profile::preferred).collect();
    let best = trials.iter().map(|trial| trial.expected_ms).fold(f64::INFINITY, f64::min);
    let good = |trial: &StagingTrial| trial.expected_ms <= best * (1.0 + 1.0 / TOLERANCE as f64);
    let chosen = trials.iter().enumerate().filter(|(_, trial)| good(trial)).min_by_key(|(_, trial)| trial.ends.len());
    Staging {
        model: plan.name.clone(),
        max_batch: plan.source.max_batch,
        layers: by_layer.len(),
        preferred: (preferred.iter().copied().min().unwrap_or(1), preferred.iter().copied().max().unwrap_or(1)),
        input_diversity: has_length(model),
        operator_diversity: !groups.is_empty(),
        chosen: chosen.map_or(0, |(at, _)| at),
        trials,
    }
}

/// Returns the summed profiles of the layers in each group.
fn parts(by_layer: &[Profile], ends: &[usize]) -> Vec<Profile> {
    let starts = [0].into_iter().chain(ends.iter().copied());
    let ends = ends.iter().copied().chain([by_layer.len()]);
    starts.zip(ends).map(|(from, to)| Profile::sum(by_layer[from..to].iter())).collect()
}

/// Profiles of the layers and of the whole model.
struct MeasuredLayers {
    layers: Cuts,
    by_layer: Vec<Profile>,
    whole: Profile,
    /// Smallest batch size that saturates every group of layers.
    saturating: usize,
}

/// Runs trials of a model on the serving engine.
struct TrialRunner<'a> {
    plan: &'a LoadPlan,
    engine: &'a dyn Executor,
    measure_for: Duration,
    model: &'a OnnxModel,
}

impl TrialRunner<'_> {
    fn profiles(&self, slices: &Slices<'_>) -> Result<Vec<Profile>, String> {
        let source = &self.plan.source;
        let longest = if source.lengths.inputs.is_empty() { MEASURED_LENGTH } else { i64::from(source.max_length) };
        measured(slices, self.engine, source.max_batch, self.measure_for, MEASURED_LENGTH.min(longest))
    }

    fn ways(&self, measured: &MeasuredLayers, groups: &[usize]) -> Result<Vec<(&'static str, Vec<usize>)>, String> {
        let MeasuredLayers { layers, by_layer, .. } = measured;
        let batch = TRIAL_BATCH.min(self.plan.source.max_batch);
        let nanos: Vec<u64> = by_layer.iter().map(|layer| layer.latency(batch).0.unsigned_abs()).collect();
        let slices = self.model.slice(layers, "layer").map_err(|error| error.to_string())?;
        let boundaries = boundary_cost(self.model, &slices, nanos.iter().sum(), batch, self.engine)?;
        let mut ways = vec![("whole", Vec::new())];
        for count in STAGE_COUNTS.into_iter().filter(|&count| count <= by_layer.len()) {
            let cuts = self.model.stages(layers, &nanos, Some(boundaries), count).map_err(|error| error.to_string())?;
            ways.push(("even", cuts.ends_among(layers)));
        }
        ways.push(("preferred", groups.to_vec()));
        Ok(ways)
    }

    fn run_trial(&self, way: &str, ends: Vec<usize>, measured: &MeasuredLayers) -> Result<StagingTrial, String> {
        let &MeasuredLayers { ref layers, ref by_layer, ref whole, saturating } = measured;
        let slices = self.model.slice(&layers.grouped(&ends), "stage").map_err(|error| error.to_string())?;
        let overhead = if ends.is_empty() { (1.0, 1.0) } else { self.overhead(&slices)? };
        let shares = parts(by_layer, &ends);
        let all = Profile::sum(by_layer.iter());
        // The overhead at the saturating size is interpolated between one row and several.
        let several = TRIAL_BATCH.min(whole.max_batch());
        let share = (saturating.min(several) - 1) as f64 / (several - 1).max(1) as f64;
        let typical = overhead.0 + (overhead.1 - overhead.0) * share;
        let [single, usual, stages] = [overhead.0, typical, overhead.1]
            .map(|more| shares.iter().map(|share| scaled(share, &all, whole, more)).collect::<Vec<Profile>>());
        let largest = whole.max_batch();
        let splits = !has_length(self.model) && Profile::prefer_differently(shares.iter().map(Profile::preferred));
        let one = |(at, share): (usize, &Profile)| StageCost {
            latency_ms: (millis(&single[at..=at], 1), millis(&stages[at..=at], largest)),
            preferred: share.preferred(),
        };
        let carried = |block: &ripieno_onnx::SlicedBlock| {
            block.carried.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        Ok(StagingTrial {
            way: way.to_owned(),
            cuts: slices.blocks.iter().map(carried).take(ends.len()).collect(),
            ends,
            latency_ms: (millis(&single, 1), millis(&stages, largest)),
            expected_ms: cost_model::expected_latency(&usual, saturating, splits).as_millis_f64(),
            stages: shares.iter().enumerate().map(one).collect(),
            overhead,
        })
    }

    /// Returns the ratio of the chain's time to the whole model's, for one row and for eight.
    fn overhead(&self, slices: &Slices<'_>) -> Result<(f64, f64), String> {
        let whole = self.model.slice(&Cuts::none(), "whole").map_err(|error| error.to_string())?;
        let largest = TRIAL_BATCH.min(self.plan.source.max_batch);
        let lines = compare_slices(self.engine, &whole, slices, &[1, largest], TRIAL_RUNS)?;
        let ratio = |line: Option<&SliceComparison>| line.map_or(1.0, |line| line.ratio);
        Ok((ratio(lines.first()), ratio(lines.last())))
    }
}

fn has_length(model: &OnnxModel) -> bool {
    model.inputs().iter().any(|spec| spec.shape.iter().skip(1).any(|&size| size < 0))
}

fn millis(stages: &[Profile], rows: usize) -> f64 {
    stages.iter().map(|stage| stage.latency(rows)).sum::<Nanos>().as_millis_f64()
}

/// Returns a stage's share of the whole model's time, scaled by the candidate's overhead.
fn scaled(share: &Profile, all: &Profile, whole: &Profile, more: f64) -> Profile {
    let at = |rows: usize| {
        let part = share.latency(rows).as_millis_f64() / all.latency(rows).as_millis_f64().max(1e-9);
        Nanos::from_millis_f64(whole.latency(rows).as_millis_f64() * part * more).max(Nanos(1))
    };
    let table: Vec<Nanos> = (1..=whole.max_batch().min(share.max_batch())).map(at).collect();
    Profile::from_table(&table).unwrap_or_else(|_| share.clone())
}
