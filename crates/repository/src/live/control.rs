//! Who decides which models serve.

use super::outer::models;
use super::{LiveRepository, is_ensemble};
use crate::report::ModelReport;
use crate::scan::Candidate;
use std::collections::BTreeSet;

/// As Triton's model control modes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// All models serve, and calls may load and unload them.
    #[default]
    Open,
    /// All models serve; calls are refused. Triton's modes "none" and "poll".
    Closed,
    /// These serve from the start, `*` for all, with the models of ensembles among them; others are loaded by calls.
    Explicit(BTreeSet<String>),
}

impl LiveRepository {
    /// The same, under this control.
    pub fn with_control(mut self, control: Control) -> LiveRepository {
        self.control = control;
        self
    }

    /// Those to load at the start, and what is named without being there.
    pub(super) fn at_the_start(&self, candidates: Vec<Candidate>) -> (Vec<Candidate>, Vec<ModelReport>) {
        let Control::Explicit(named) = &self.control else { return (candidates, Vec::new()) };
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

    /// These and, of ensembles, the models of their steps.
    fn with_members(&self, candidates: &[Candidate], named: BTreeSet<String>) -> BTreeSet<String> {
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

    /// Whether it is loaded when it has changed or is new.
    pub(super) fn follows(&self, candidate: &Candidate) -> bool {
        !matches!(self.control, Control::Explicit(_)) || self.is_served(&candidate.name)
    }

    /// Refuses calls that load and unload, if that is not theirs to decide.
    pub(super) fn check_calls(&self) -> Result<(), String> {
        match self.control {
            Control::Closed => {
                Err("explicit model load / unload is not allowed by --model-control-mode; start the server with \
                                    --model-control-mode explicit, or without it"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }
}
