//! Checks whether this engine can serve a model.

use crate::ServedModel;
use ripieno_model::{Model, Profile};
use ripieno_policies::{Policy, build};
use ripieno_sched::{BuildError, Limits, Options, Setup};

/// Checks a model. The error is the reason, for the user who loads the model.
pub(crate) fn check(served: &ServedModel, policy: Option<&'static Policy>, limits: &Limits) -> Result<(), String> {
    let model = &served.model;
    if model.max_batch == 0 || model.max_batch > limits.batch {
        return Err(format!(
            "model {:?}: max_batch is {}; it must be between 1 and {}",
            model.name, model.max_batch, limits.batch
        ));
    }
    if model.blocks.is_empty() || model.blocks.len() != served.loaded.blocks() {
        return Err(format!(
            "model {:?} is described with {} blocks and loaded with {}; they must be equal and at least 1",
            model.name,
            model.blocks.len(),
            served.loaded.blocks()
        ));
    }
    policy.map_or(Ok(()), |policy| check_policy(policy, model, limits))?;
    if !model.walk.is_unfolded() {
        return model.blocks.iter().try_for_each(|block| check_profile(&model.name, &block.profile, model.max_batch));
    }
    // Each cell has its own largest batch.
    match model.blocks.iter().find(|block| block.max_batch() > limits.batch) {
        Some(block) => Err(format!(
            "model {:?}: block {:?} takes batches of up to {}; at most {} are possible",
            model.name,
            block.name,
            block.max_batch(),
            limits.batch
        )),
        None => Ok(()),
    }
}

/// Checks whether a profile covers batches of up to `max_batch` rows.
pub(crate) fn check_profile(model: &str, profile: &Profile, max_batch: usize) -> Result<(), String> {
    if profile.max_batch() >= max_batch {
        return Ok(());
    }
    Err(format!(
        "model {model:?}: its profile ends at batch size {}, before max_batch {max_batch}",
        profile.max_batch()
    ))
}

/// Checks whether the policy can run the model, by building a scheduler for this model alone.
fn check_policy(policy: &'static Policy, model: &Model, limits: &Limits) -> Result<(), String> {
    let limits = Limits { lanes: limits.lanes, batch: limits.batch, nodes: 1, ..Limits::ONE };
    let setup = Setup { models: vec![model.clone()], devices: 1, limits };
    match build(policy.name, &setup, &Options::new()) {
        Ok(_) => Ok(()),
        Err(error @ (BuildError::Walk { .. } | BuildError::Lengths { .. } | BuildError::Skips { .. })) => {
            Err(format!("{error}; give --policy of `ripieno serve` or `ripieno scheduler` one of these"))
        }
        Err(error) => Err(error.to_string()),
    }
}
