//! `[[ensemble]]` tables: models as the steps of a graph, under one SLO.

use super::model::ArrivalTable;
use super::{ModelLoad, ParseResult};
use crate::ensembles::{Budget, SimulatedEnsemble};
use ripieno_base::{ModelId, Nanos};
use ripieno_model::{Model, StepGraph, Walk};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnsembleTable {
    name: String,
    slo_ms: f64,
    #[serde(default = "super::model::one_share")]
    share: f64,
    #[serde(default)]
    arrival: ArrivalTable,
    budget: Option<String>,
    #[serde(default)]
    step: Vec<StepTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    model: String,
    #[serde(default)]
    after: Vec<usize>,
}

impl EnsembleTable {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns its share of the rate, before normalisation.
    pub(super) fn share(&self) -> ParseResult<f64> {
        match self.share.is_finite() && self.share >= 0.0 {
            true => Ok(self.share),
            false => Err(format!("ensemble {:?}: share = {}; it must be at least 0", self.name, self.share)),
        }
    }

    /// Returns its load, given the sum of all shares.
    pub(super) fn load(&self, total: f64) -> ParseResult<ModelLoad> {
        Ok(ModelLoad { share: self.share()? / total, arrival: self.arrival.parse(&self.name)?, curve: None })
    }

    pub(super) fn parse(&self, models: &[Model]) -> ParseResult<SimulatedEnsemble> {
        let fail = |problem: String| format!("ensemble {:?}: {problem}", self.name);
        if !(self.slo_ms.is_finite() && self.slo_ms > 0.0 && self.slo_ms < 1e9) {
            return Err(fail(format!("slo_ms = {}; it must be above 0", self.slo_ms)));
        }
        let model = |step: &StepTable| {
            let at = models.iter().position(|model| model.name == step.model);
            let at =
                at.ok_or_else(|| fail(format!("there is no model {:?}; add a [[model]] of that name", step.model)))?;
            match models[at].walk {
                Walk::Whole | Walk::Chain => Ok(ModelId(at as u16)),
                walk => Err(fail(format!(
                    "model {:?} walks as {:?}; steps are whole models or chains",
                    step.model,
                    walk.name()
                ))),
            }
        };
        let steps = self.step.iter().map(model).collect::<ParseResult<Vec<_>>>()?;
        let needs: Vec<Vec<usize>> = self.step.iter().map(|step| step.after.clone()).collect();
        let graph = StepGraph::new(&needs).map_err(|error| fail(error.to_string()))?;
        let alone: Vec<Nanos> = steps.iter().map(|model| models[model.index()].profile().latency(1)).collect();
        let budget = match self.budget.as_deref() {
            None | Some("whole") => Budget::Whole,
            Some("stage") => Budget::Stage,
            Some(other) => return Err(fail(format!("budget = {other:?}; it must be \"whole\" or \"stage\""))),
        };
        let (name, slo, after) = (self.name.clone(), Nanos::from_millis_f64(self.slo_ms), graph.after(&alone));
        Ok(SimulatedEnsemble { name, slo, budget, steps, graph, after, alone })
    }
}
