//! Nested ensembles: a step that is an ensemble is replaced by its own steps when the outer
//! ensemble is loaded.
//!
//! Execution therefore sees models only, and can reserve time for everything after a step. When an
//! inner ensemble changes, the repository reloads the outer ones.

use crate::ensemble::EnsembleStep;
use crate::registry::{LookupError, ModelRegistry, ServedEntry};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the steps with each inner ensemble replaced by its steps, and the names of the inner
/// ensembles.
pub(super) fn unfold(
    own: &str,
    steps: &[EnsembleStep],
    registry: &ModelRegistry,
) -> Result<(Vec<EnsembleStep>, BTreeSet<String>), String> {
    let (mut unfolded, mut names) = (Vec::new(), BTreeSet::new());
    for (at, step) in steps.iter().enumerate() {
        let model = &step.model;
        let entry = registry.get(model, &step.version).map_err(|error| match error {
            LookupError::Loading(_) => {
                format!("step[{at}]: {error}; if it has this ensemble among its steps in turn, break the circle")
            }
            error => format!("step[{at}]: {error}"),
        })?;
        let Some(inner) = &entry.ensemble else {
            unfolded.push(step.clone());
            continue;
        };
        if model == own || inner.nested.contains(own) {
            return Err(format!("step[{at}]: {model:?} has this ensemble among its steps; break the circle"));
        }
        check(step, &entry).map_err(|cause| format!("step[{at}]: {cause}"))?;
        names.insert(model.clone());
        names.extend(inner.nested.iter().cloned());
        unfolded.extend(inner.steps.iter().map(|inner| renamed(inner, at, step)));
    }
    Ok((unfolded, names))
}

fn check(step: &EnsembleStep, entry: &ServedEntry) -> Result<(), String> {
    let (model, has) = (&step.model, |specs: &[_], name: &str| names(specs).any(|known| known == name));
    if let Some(extra) = step.inputs.keys().find(|name| !has(&entry.inputs, name)) {
        return Err(format!("model {model:?} has no input {extra:?}; correct input_map"));
    }
    if let Some(missing) = names(&entry.inputs).find(|name| !step.inputs.contains_key(*name)) {
        return Err(format!("input {missing:?} of {model:?} is not in input_map"));
    }
    if let Some(extra) = step.outputs.keys().find(|name| !has(&entry.outputs, name)) {
        return Err(format!("model {model:?} has no output {extra:?}; correct output_map"));
    }
    match step.outputs.keys().find(|name| step.inputs.contains_key(*name)) {
        Some(through) => Err(format!("{model:?} gives its input {through:?} back; take the tensor itself")),
        None => Ok(()),
    }
}

fn names(specs: &[ripieno_model::TensorSpec]) -> impl Iterator<Item = &str> {
    specs.iter().map(|spec| spec.name.as_str())
}

/// Renames the tensors of an inner step to the outer ensemble's names. Tensors that stay internal
/// get the outer step's index as a prefix.
fn renamed(inner: &EnsembleStep, at: usize, step: &EnsembleStep) -> EnsembleStep {
    let outer = |tensor: &String| {
        let known = step.inputs.get(tensor).or_else(|| step.outputs.get(tensor));
        known.cloned().unwrap_or_else(|| format!("{at}:{tensor}"))
    };
    let map = |tensors: &BTreeMap<String, String>| {
        tensors.iter().map(|(name, tensor)| (name.clone(), outer(tensor))).collect()
    };
    EnsembleStep { inputs: map(&inner.inputs), outputs: map(&inner.outputs), ..inner.clone() }
}
