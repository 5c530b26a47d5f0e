//! Into how many stages a model is best cut, and where: tried out on the engine that will serve.
//!
//! What borders are worth and what they cost cannot be told from a graph, so a handful of ways is tried: even in time, two,
//! four and eight stages, and cuts where the batch size that saturates the device changes. Its layers are measured once, at all
//! batch sizes; each way then runs in turn with the whole, so that whatever else the machine does slows down both alike, and
//! only the ratio of the two is used: the whole's time, times that ratio, divided among the stages as their layers' times
//! are. `worth` says which way is best by these numbers. The choice is kept beside the model's profiles and holds for the same
//! device, engine, files and largest batch; `stages = "auto"` serves by it.

mod choice;
#[cfg(test)]
mod tests;
mod worth;

use super::cache::ProfileKey;
use super::config::Granularity;
use super::plan::{Plan, Target};
use super::report::Progress;
use super::scan::{Candidate, scan};
use super::slicing_check::{Comparison, borders, compare_slices};
use super::trial::{MEASURED_LENGTH, measured};
use ripieno_base::Nanos;
use ripieno_executor::{BlockSource, Engine};
use ripieno_model::Profile;
use ripieno_onnx::{Cuts, Model, SLICER_VERSION, Slices};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Counts how a way was chosen: what an earlier rule chose is tried again.
const CHOICE_VERSION: u32 = 2;

/// Numbers of stages that are tried, even in time.
const COUNTS: [usize; 3] = [2, 4, 8];
/// Of ways that are so nearly as good as the best, the one with the fewest stages is taken: one part in so many.
const TOLERANCE: i64 = 100;
/// The batch at which layers are made even and overheads compared, beside a single row.
const BATCH: usize = 8;
/// Turns of each way and the whole.
const RUNS: usize = 5;

/// What was tried for a model, and what was chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Staging {
    /// The model.
    pub model: String,
    /// The most rows in one batch.
    pub max_batch: usize,
    /// Layers that can be parted.
    pub layers: usize,
    /// The smallest and the largest of the layers' preferred batch sizes, small layers joined with their neighbours.
    pub preferred: (usize, usize),
    /// Whether requests differ in length.
    pub input_diversity: bool,
    /// Whether parts of the model prefer batches of different sizes, by a factor of two at least.
    pub operator_diversity: bool,
    /// The ways, the whole first.
    pub trials: Vec<Trial>,
    /// Which of them was chosen.
    pub chosen: usize,
}

/// One way to cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What made its cuts: "whole", "even" or "preferred".
    pub way: String,
    /// How many layers there are up to each cut.
    pub ends: Vec<usize>,
    /// What is carried over each cut.
    pub cuts: Vec<String>,
    /// What the stages cost for one row, and for the largest batch.
    pub latency_ms: (f64, f64),
    /// Each stage.
    pub stages: Vec<Stage>,
    /// The time of all stages over that of the whole: for one row, and for eight.
    pub overhead: (f64, f64),
    /// The mean time of a full batch's members, and half of the longest stage.
    pub expected_ms: f64,
}

/// One stage of a way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// What it costs for one row, and for the largest batch.
    pub latency_ms: (f64, f64),
    /// The smallest batch with 95 % of the best rate.
    pub preferred: usize,
}

impl Staging {
    /// The way that is served.
    pub fn choice(&self) -> &Trial {
        &self.trials[self.chosen]
    }

    /// What the policy `dva` does about this model, once it is cut like that.
    pub fn policy(&self) -> &'static str {
        let differ = Profile::prefer_differently(self.choice().stages.iter().map(|stage| stage.preferred));
        match (self.input_diversity, differ) {
            (true, _) => "I (cluster by length)",
            (false, true) => "II + III (split, stretch)",
            (false, false) => "III (stretch)",
        }
    }
}

/// The models of a repository, tried.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tried {
    /// Those that have stages to try.
    pub models: Vec<Staging>,
    /// Why the others have none.
    pub errors: Vec<String>,
}

/// Tries the models at `path` that are one file, or the one named `only`, and keeps the choices.
pub fn stage(path: &Path, target: &Target, only: Option<&str>, progress: &Progress) -> Result<Tried, String> {
    if target.emulates() {
        return Err("--device emulated runs no models, so no stages can be tried; use --device cpu".to_owned());
    }
    let candidates = scan(path)?;
    let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    if let Some(name) = only.filter(|name| !names.contains(name)) {
        return Err(format!("{}: there is no model \"{name}\"; it holds {}", path.display(), names.join(", ")));
    }
    let mut tried = Tried::default();
    let is_model = |candidate: &&Candidate| !candidate.found.as_ref().is_ok_and(|found| found.is_ensemble);
    let wanted = candidates.iter().filter(|candidate| only.is_none_or(|name| candidate.name == name));
    for candidate in wanted.filter(is_model) {
        let found = candidate.found.as_ref().map_err(String::clone);
        match found.and_then(|found| search(&Plan::new(found, target)?, target, progress)) {
            Ok(staging) => tried.models.push(staging),
            Err(error) => tried.errors.push(error),
        }
    }
    Ok(tried)
}

/// The chosen way's ends, for a model whose `stages` are "auto": as kept, or tried now if that may be measured.
pub(super) fn ends(plan: &Plan, target: &Target, may_measure: bool) -> Result<Vec<usize>, String> {
    let kept = choice::read(plan, &key(plan, target)?);
    let staging = match kept {
        Some(staging) => staging,
        None if may_measure => {
            tracing::info!("model {}: trying how many stages are best", plan.name);
            let quiet: Progress = std::sync::Arc::new(|_, _, _| {});
            search(plan, target, &quiet)?
        }
        None => return Err("its stages have not been tried yet: `ripieno profile --stages auto` does it".to_owned()),
    };
    Ok(staging.choice().ends.clone())
}

fn key(plan: &Plan, target: &Target) -> Result<ProfileKey, String> {
    let device = format!("{}/slicer-{SLICER_VERSION}/choice-{CHOICE_VERSION}", target.engine.device_key());
    ProfileKey::new(&device, &plan.files(), plan.source.max_batch)
}

fn search(plan: &Plan, target: &Target, progress: &Progress) -> Result<Staging, String> {
    let [BlockSource { path: Some(file), profile: None, .. }] = &plan.source.blocks[..] else {
        return Err(format!("{}: it is not one ONNX file to be measured, so it has no stages to try", plan.name));
    };
    if plan.config.granularity == Granularity::Cells {
        return Err(format!("{}: it is served in cells, which are batched step by step", plan.name));
    }
    let text = |error: ripieno_onnx::OnnxError| error.to_string();
    let model = Model::read(file).map_err(text)?;
    let bench = Bench { plan, engine: &*target.engine, measure_for: target.measure_for, model: &model };
    let ways = COUNTS.len() + 2;
    let report = |done: usize| progress(&plan.name, done, ways + 2);
    let layers = model.layers();
    report(0);
    let by_layer = bench.profiles(&model.slice(&layers, "layer").map_err(text)?)?;
    report(1);
    let whole = Profile::sum(bench.profiles(&model.slice(&Cuts::none(), "whole").map_err(text)?)?.iter());
    report(2);
    let groups = worth::groups(&by_layer);
    let saturating = parts(&by_layer, &groups).iter().map(Profile::preferred).max().unwrap_or(1);
    let measured = Measured { layers, by_layer, whole, saturating };
    let mut trials: Vec<Trial> = Vec::with_capacity(ways);
    for (at, (way, ends)) in bench.ways(&measured, &groups)?.into_iter().enumerate() {
        if trials.iter().all(|trial| trial.ends != ends) {
            trials.push(bench.attempt(way, ends, &measured)?);
        }
        report(3 + at);
    }
    report(ways + 2);
    let staging = conclude(plan, &model, &measured.by_layer, &groups, trials);
    choice::keep(plan, &key(plan, target)?, &staging);
    Ok(staging)
}

fn conclude(plan: &Plan, model: &Model, by_layer: &[Profile], groups: &[usize], trials: Vec<Trial>) -> Staging {
    let preferred: Vec<usize> = parts(by_layer, groups).iter().map(Profile::preferred).collect();
    let best = trials.iter().map(|trial| trial.expected_ms).fold(f64::INFINITY, f64::min);
    let good = |trial: &Trial| trial.expected_ms <= best * (1.0 + 1.0 / TOLERANCE as f64);
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

/// The profiles of neighbouring layers, summed up to each end.
fn parts(by_layer: &[Profile], ends: &[usize]) -> Vec<Profile> {
    let starts = [0].into_iter().chain(ends.iter().copied());
    let ends = ends.iter().copied().chain([by_layer.len()]);
    starts.zip(ends).map(|(from, to)| Profile::sum(by_layer[from..to].iter())).collect()
}

/// What layers cost, and the whole.
struct Measured {
    layers: Cuts,
    by_layer: Vec<Profile>,
    whole: Profile,
    /// The smallest batch that saturates every group of layers.
    saturating: usize,
}

/// A model on the engine that will serve it.
struct Bench<'a> {
    plan: &'a Plan,
    engine: &'a dyn Engine,
    measure_for: Duration,
    model: &'a Model,
}

impl Bench<'_> {
    fn profiles(&self, slices: &Slices<'_>) -> Result<Vec<Profile>, String> {
        let source = &self.plan.source;
        let longest = if source.lengths.inputs.is_empty() { MEASURED_LENGTH } else { i64::from(source.max_length) };
        measured(slices, self.engine, source.max_batch, self.measure_for, MEASURED_LENGTH.min(longest))
    }

    fn ways(&self, measured: &Measured, groups: &[usize]) -> Result<Vec<(&'static str, Vec<usize>)>, String> {
        let Measured { layers, by_layer, .. } = measured;
        let batch = BATCH.min(self.plan.source.max_batch);
        let nanos: Vec<u64> = by_layer.iter().map(|layer| layer.latency(batch).0.unsigned_abs()).collect();
        let slices = self.model.slice(layers, "layer").map_err(|error| error.to_string())?;
        let borders = borders(self.model, &slices, (nanos.iter().sum(), batch), self.engine)?;
        let mut ways = vec![("whole", Vec::new())];
        for count in COUNTS.into_iter().filter(|&count| count <= by_layer.len()) {
            let cuts = self.model.stages(layers, &nanos, Some(borders), count).map_err(|error| error.to_string())?;
            ways.push(("even", cuts.ends_among(layers)));
        }
        ways.push(("preferred", groups.to_vec()));
        Ok(ways)
    }

    fn attempt(&self, way: &str, ends: Vec<usize>, measured: &Measured) -> Result<Trial, String> {
        let &Measured { ref layers, ref by_layer, ref whole, saturating } = measured;
        let slices = self.model.slice(&layers.grouped(&ends), "stage").map_err(|error| error.to_string())?;
        let overhead = if ends.is_empty() { (1.0, 1.0) } else { self.overhead(&slices)? };
        let shares = parts(by_layer, &ends);
        let all = Profile::sum(by_layer.iter());
        // What borders add was measured for one row and for several.
        let several = BATCH.min(whole.max_batch());
        let share = (saturating.min(several) - 1) as f64 / (several - 1).max(1) as f64;
        let typical = overhead.0 + (overhead.1 - overhead.0) * share;
        let [single, usual, stages] = [overhead.0, typical, overhead.1]
            .map(|more| shares.iter().map(|share| scaled(share, &all, whole, more)).collect::<Vec<Profile>>());
        let largest = whole.max_batch();
        let splits = !has_length(self.model) && Profile::prefer_differently(shares.iter().map(Profile::preferred));
        let one = |(at, share): (usize, &Profile)| Stage {
            latency_ms: (millis(&single[at..=at], 1), millis(&stages[at..=at], largest)),
            preferred: share.preferred(),
        };
        let carried = |block: &ripieno_onnx::Block| {
            block.carried.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        Ok(Trial {
            way: way.to_owned(),
            cuts: slices.blocks.iter().map(carried).take(ends.len()).collect(),
            ends,
            latency_ms: (millis(&single, 1), millis(&stages, largest)),
            expected_ms: worth::expected(&usual, saturating, splits).as_millis_f64(),
            stages: shares.iter().enumerate().map(one).collect(),
            overhead,
        })
    }

    /// How much longer the chain takes than the whole: for one row, and for eight.
    fn overhead(&self, slices: &Slices<'_>) -> Result<(f64, f64), String> {
        let whole = self.model.slice(&Cuts::none(), "whole").map_err(|error| error.to_string())?;
        let largest = BATCH.min(self.plan.source.max_batch);
        let lines = compare_slices(self.engine, (&whole, slices), &[1, largest], RUNS)?;
        let ratio = |line: Option<&Comparison>| line.map_or(1.0, |line| line.ratio);
        Ok((ratio(lines.first()), ratio(lines.last())))
    }
}

fn has_length(model: &Model) -> bool {
    model.inputs().iter().any(|spec| spec.shape.iter().skip(1).any(|&size| size < 0))
}

fn millis(stages: &[Profile], rows: usize) -> f64 {
    stages.iter().map(|stage| stage.latency(rows)).sum::<Nanos>().as_millis_f64()
}

/// A stage's share of the whole's time, with what its way costs more.
fn scaled(share: &Profile, all: &Profile, whole: &Profile, more: f64) -> Profile {
    let at = |rows: usize| {
        let part = share.latency(rows).as_millis_f64() / all.latency(rows).as_millis_f64().max(1e-9);
        Nanos::from_millis_f64(whole.latency(rows).as_millis_f64() * part * more).max(Nanos(1))
    };
    let table: Vec<Nanos> = (1..=whole.max_batch().min(share.max_batch())).map(at).collect();
    Profile::from_table(&table).unwrap_or_else(|_| share.clone())
}
