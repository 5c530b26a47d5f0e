//! Builds an [`Ensemble`] from a `config.pbtxt` with the platform "ensemble".
//!
//! An ensemble needs no loading or profiling of its own. This module checks that its graph can be
//! executed and that each step's outputs match the inputs that they feed.

mod nested;

use crate::ensemble::{Ensemble, EnsembleStep};
use crate::model_files::ModelFiles;
use crate::plan::LoadTarget;
use crate::registry::{ModelRegistry, ServedEntry};
use crate::report::{ModelReport, describe};
use crate::slo::{Slo, SloOrigin};
use crate::triton::TritonConfig;
use ripieno_base::Nanos;
use ripieno_model::{StepGraph, TensorSpec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads the configuration of an ensemble. The error names the file, the step and the fix.
pub(super) fn read(found: &ModelFiles, target: &LoadTarget) -> Result<TritonConfig, String> {
    let file = found.triton.as_ref().ok_or_else(|| format!("{}: has no config.pbtxt", found.folder.display()))?;
    if let Some(toml) = &found.config {
        return Err(format!(
            "{}: an ensemble is configured by its config.pbtxt alone; remove the file",
            toml.display()
        ));
    }
    target.check_contained(found, file)?;
    let read = TritonConfig::read(file, &found.name, &found.versions)?;
    read.check()?;
    Ok(read)
}

/// Builds the registry entry of an ensemble whose member models are all ready.
pub(super) fn prepare(
    found: &ModelFiles,
    target: &LoadTarget,
    registry: &ModelRegistry,
) -> Result<(ServedEntry, ModelReport), String> {
    let mut read = read(found, target)?;
    let file = read.file.clone();
    let fail = |cause: String| format!("{file}: ensemble_scheduling: {cause}");
    let nested;
    (read.steps, nested) = nested::unfold(&found.name, &read.steps, registry).map_err(fail)?;
    let members = members(&read.steps, registry).map_err(fail)?;
    let graph = connect(&read, &members).map_err(fail)?;
    let report = report(found, &read, target);
    let slo = slo(&read, target, &graph, &members);
    let rows: Option<Vec<Nanos>> = members.iter().map(|member| member.one_row).collect();
    let batched = !read.settings.unbatched;
    let max_batch = read.settings.max_batch.unwrap_or(1);
    // A request to an unbatched ensemble is one row.
    let whole = |specs: &[TensorSpec]| {
        let spec = |spec: &TensorSpec| match batched {
            true => spec.clone(),
            false => TensorSpec { shape: [1].iter().chain(&spec.shape).copied().collect(), ..spec.clone() },
        };
        specs.iter().map(spec).collect()
    };
    let entry = ServedEntry {
        name: found.name.clone(),
        version: found.version.clone(),
        id: None,
        platform: "ensemble".to_owned(),
        inputs: whole(&read.settings.inputs),
        optional: Vec::new(),
        outputs: whole(&read.settings.outputs),
        batched,
        unbatched: None,
        max_batch,
        streams: false,
        lengths: None,
        labels: BTreeMap::new(),
        text: None,
        no_text: None,
        slo,
        one_row: rows.map(|rows| graph.critical_path(&rows)),
        ensemble: Some(Arc::new(Ensemble::new(read.steps, nested, graph))),
        edge: Default::default(),
        stats: Default::default(),
    };
    let report = ModelReport {
        slo_ms: Some(slo.span.as_millis_f64()),
        slo_is_derived: Some(slo.origin == SloOrigin::Profile),
        late: Some(if slo.answer_late { "answer" } else { "refuse" }),
        ..report
    };
    Ok((entry, report))
}

/// Returns the report for the command line; the member models need not be loaded.
pub(super) fn report(found: &ModelFiles, read: &TritonConfig, target: &LoadTarget) -> ModelReport {
    let settings = &read.settings;
    let shown = |specs: &[TensorSpec]| specs.iter().map(|spec| describe(spec, true)).collect();
    let slo = target.slo.or(settings.slo);
    ModelReport {
        state: "READY".to_owned(),
        inputs: shown(&settings.inputs),
        outputs: shown(&settings.outputs),
        slo_ms: slo.map(Nanos::as_millis_f64),
        slo_is_derived: slo.map(|_| false),
        max_batch: Some(settings.max_batch.unwrap_or(1)),
        warnings: read.warnings(),
        error: None,
        ..ModelReport::failed(&found.name, &found.version, String::new())
    }
}

/// Returns the models of the steps, which must be ready.
fn members(steps: &[EnsembleStep], registry: &ModelRegistry) -> Result<Vec<Arc<ServedEntry>>, String> {
    let member = |(at, step): (usize, &EnsembleStep)| {
        let EnsembleStep { model, version, .. } = step;
        let entry = registry.get(model, version).map_err(|error| format!("step[{at}]: {error}"))?;
        match (entry.streams, &entry.edge.sequences) {
            // The model became an ensemble after the steps were unfolded.
            _ if entry.ensemble.is_some() => Err(format!("step[{at}]: {model:?} is being replaced; load this again")),
            (true, _) => Err(format!("step[{at}]: {model:?} answers step by step; an ensemble needs one answer")),
            (_, Some(_)) => Err(format!("step[{at}]: {model:?} keeps sequences; have clients ask it themselves")),
            (false, None) => Ok(entry),
        }
    };
    steps.iter().enumerate().map(member).collect()
}

/// Tensors of the ensemble by name: specification, and index of the step that produces each; `None`
/// for an input of the ensemble.
type EnsembleTensors = BTreeMap<String, (TensorSpec, Option<usize>)>;

fn connect(read: &TritonConfig, members: &[Arc<ServedEntry>]) -> Result<StepGraph, String> {
    let mut tensors = EnsembleTensors::new();
    for spec in &read.settings.inputs {
        tensors.insert(spec.name.clone(), (spec.clone(), None));
    }
    for (at, (step, member)) in read.steps.iter().zip(members).enumerate() {
        for (output, tensor) in &step.outputs {
            let spec = find(&member.outputs, output).ok_or_else(|| {
                format!("step[{at}]: model {:?} has no output {output:?}; correct output_map", step.model)
            })?;
            let spec = TensorSpec { shape: member.shape(spec).to_vec(), ..spec.clone() };
            if tensors.insert(tensor.clone(), (spec, Some(at))).is_some() {
                return Err(format!("step[{at}]: tensor {tensor:?} comes from two places; rename one of them"));
            }
        }
    }
    let needs = read.steps.iter().zip(members).enumerate();
    let needs =
        needs.map(|(at, (step, member))| needs_of(at, step, member, &tensors)).collect::<Result<Vec<_>, _>>()?;
    for name in &read.settings.answers {
        let declared = find(&read.settings.outputs, name);
        let declared = declared.ok_or_else(|| format!("output {name:?} needs data_type and dims"))?;
        let (spec, _) = tensors.get(name).ok_or_else(|| format!("output {name:?} is given by no step"))?;
        agree(spec, declared, &declared.shape).map_err(|cause| format!("output {name:?} {cause}"))?;
    }
    StepGraph::new(&needs).map_err(|error| error.to_string())
}

/// Returns the steps that produce the inputs of one step.
fn needs_of(
    at: usize,
    step: &EnsembleStep,
    member: &ServedEntry,
    tensors: &EnsembleTensors,
) -> Result<Vec<usize>, String> {
    let model = &step.model;
    if let Some(extra) = step.inputs.keys().find(|name| find(&member.inputs, name).is_none()) {
        return Err(format!("step[{at}]: model {model:?} has no input {extra:?}; correct input_map"));
    }
    let mut needs = Vec::new();
    for spec in &member.inputs {
        let tensor = step.inputs.get(&spec.name);
        let tensor =
            tensor.ok_or_else(|| format!("step[{at}]: input {:?} of {model:?} is not in input_map", spec.name))?;
        let (given, from) = tensors.get(tensor).ok_or_else(|| {
            format!("step[{at}]: tensor {tensor:?} is no input with data_type and dims, and no step gives it")
        })?;
        agree(given, spec, member.shape(spec)).map_err(|cause| {
            format!("step[{at}]: tensor {tensor:?}, which is input {:?} of {model:?}, {cause}", spec.name)
        })?;
        needs.extend(from);
    }
    Ok(needs)
}

fn find<'a>(specs: &'a [TensorSpec], name: &str) -> Option<&'a TensorSpec> {
    specs.iter().find(|spec| spec.name == name)
}

fn agree(given: &TensorSpec, taken: &TensorSpec, shape: &[i64]) -> Result<(), String> {
    let fits = |(&a, &b): (&i64, &i64)| a == b || a == -1 || b == -1;
    if given.datatype != taken.datatype {
        return Err(format!("is {} on the one side and {} on the other", given.datatype, taken.datatype));
    }
    match given.shape.len() == shape.len() && given.shape.iter().zip(shape).all(fits) {
        true => Ok(()),
        false => Err(format!(
            "has shape {:?} on the one side and {shape:?} on the other; correct dims and max_batch_size",
            given.shape
        )),
    }
}

/// Returns the SLO: the configured one, or else the sum of the members' targets along the longest
/// path, with late answers allowed.
fn slo(read: &TritonConfig, target: &LoadTarget, graph: &StepGraph, members: &[Arc<ServedEntry>]) -> Slo {
    let given = target.slo.map(|span| (span, SloOrigin::Given));
    match given.or(read.settings.slo.map(|span| (span, SloOrigin::Owner))) {
        Some((span, origin)) => Slo { span, origin, answer_late: false },
        None => {
            let spans: Vec<Nanos> = members.iter().map(|member| member.slo.span).collect();
            Slo { span: graph.critical_path(&spans), origin: SloOrigin::Profile, answer_late: true }
        }
    }
}
