//! Model control modes, which decide the models that serve.

use super::ensembles::models;
use super::{LiveRepository, is_ensemble};
use crate::report::ModelReport;
use crate::scan::ModelCandidate;
use std::collections::BTreeSet;

/// Model control mode, as in Triton.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelControl {
    /// All models serve; calls may load and unload them.
    #[default]
    Open,
    /// All models serve; load and unload calls are refused. Covers Triton's modes "none" and
    /// "poll".
    Closed,
    /// The named models (`*` for all) and the members of named ensembles serve from the start;
    /// calls load others.
    Explicit(BTreeSet<String>),
}

impl LiveRepository {
    /// Sets the control mode.
    pub fn with_control(mut self, control: ModelControl) -> LiveRepository {
        self.control = control;
        self
    }

    /// Returns the models to load at the start, and a report for each named model that does not
    /// exist.
    pub(super) fn initial_models(&self, candidates: Vec<ModelCandidate>) -> (Vec<ModelCandidate>, Vec<ModelReport>) {
        let ModelControl::Explicit(named) = &self.control else { return (candidates, Vec::new()) };
        let is_there = |name: &&String| candidates.iter().any(|candidate| candidate.name == **name);
        let missing = named.iter().filter(|name| *name != "*" && !is_there(name)).map(|name| {
            let error =
                format!("Request for unknown model: '{name}' is not found; correct --load-model, or add its folder");
            tracing::error!("model {name} is not served: {error}");
            let slot = self.slots.lock().entry(name.clone()).or_default().clone();
            self.record_failure(&mut slot.lock(), name, "", &error);
            ModelReport::failed(name, "", error)
        });
        let missing = missing.collect();
        if named.contains("*") {
            return (candidates, missing);
        }
        let wanted = self.with_members(&candidates, named.clone());
        (candidates.into_iter().filter(|candidate| wanted.contains(&candidate.name)).collect(), missing)
    }

    /// Adds the models of the steps of ensembles, recursively.
    fn with_members(&self, candidates: &[ModelCandidate], named: BTreeSet<String>) -> BTreeSet<String> {
        let (mut wanted, mut new) = (named.clone(), named);
        while !new.is_empty() {
            let ensembles =
                candidates.iter().filter(|candidate| new.contains(&candidate.name) && is_ensemble(candidate));
            let members: BTreeSet<String> =
                ensembles.flat_map(|ensemble| models(ensemble, self.loader.target())).collect();
            new = members.difference(&wanted).cloned().collect();
            wanted.extend(new.iter().cloned());
        }
        wanted
    }

    /// Returns true if the model is loaded when it is new or has changed.
    pub(super) fn is_followed(&self, candidate: &ModelCandidate) -> bool {
        !matches!(self.control, ModelControl::Explicit(_)) || self.is_served(&candidate.name)
    }

    /// Refuses load and unload calls if the control mode forbids them.
    pub(super) fn check_calls_allowed(&self) -> Result<(), String> {
        match self.control {
            ModelControl::Closed => {
                Err("explicit model load / unload is not allowed by --model-control-mode; start the server with \
                                    --model-control-mode explicit, or without it"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }
}
