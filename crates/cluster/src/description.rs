//! The part of a remote model that frontends and schedulers know: its tensors, its profile and its
//! limits.

use ripieno_base::{BlockId, Nanos};
use ripieno_executor::{LoadedModel, RequestError, Tensor, WalkShape, request_extent};
use ripieno_model::{Block, DataType, Extent, Graph, InputLengths, LengthProfiles, Model, Profile, Steps, TensorSpec};
use ripieno_runtime::ServedModel;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The largest number of models of a backend, of tensors of a model, and of blocks.
pub(crate) const MAX_COUNT: usize = 4096;
/// The longest batch latency and latency target: a day.
const MAX_LATENCY: Nanos = Nanos::from_millis(86_400_000);

/// A model, as its backend describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDescription {
    /// Name in the inference protocol.
    pub name: String,
    /// Version in the inference protocol.
    pub version: String,
    /// Hash of its files and settings: two models with the same one are interchangeable.
    pub digest: String,
    /// The platform that runs it, for display.
    pub platform: String,
    /// Inputs; the first dimension is the batch.
    pub inputs: Vec<TensorDescription>,
    /// All outputs of the engine.
    pub outputs: Vec<TensorDescription>,
    /// Names of the outputs that clients see.
    pub answers: Vec<String>,
    /// Whether requests share batches.
    pub batched: bool,
    /// Set if inputs have the length of a request: the longest, and the length's dimension of each
    /// input.
    pub lengths: Option<(u32, Vec<Option<usize>>)>,
    /// The scheduler's view of the model.
    pub model: Model,
    /// The largest number of requests in flight; `None` for as many as the devices need.
    pub max_queue: Option<usize>,
    /// The largest device time of the requests in flight.
    pub max_queued_work: Option<Nanos>,
    /// Whether late requests are still answered.
    pub answer_late: bool,
    /// The key that sets the latency target, for messages.
    pub slo_origin: String,
    /// The labels of classification outputs: by output the file, and a name for each class.
    pub labels: BTreeMap<String, (String, Vec<String>)>,
    /// Whether an answer may come step by step.
    pub streams: bool,
    /// The shape of requests' walks, if requests run cell by cell.
    pub walks: Option<WalkShape>,
}

/// Name, datatype and shape of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDescription {
    pub(crate) name: String,
    pub(crate) datatype: String,
    pub(crate) shape: Vec<i64>,
}

impl TensorDescription {
    /// Returns the description of a tensor.
    pub fn of(spec: &TensorSpec) -> TensorDescription {
        TensorDescription { name: spec.name.clone(), datatype: spec.datatype.to_string(), shape: spec.shape.clone() }
    }

    fn tensor(&self) -> Result<TensorSpec, String> {
        let datatype = DataType::from_name(&self.datatype);
        let datatype =
            datatype.ok_or_else(|| format!("tensor {:?} has the datatype {:?}", self.name, self.datatype))?;
        match self.shape.is_empty() {
            true => Err(format!("tensor {:?} has no first dimension", self.name)),
            false => Ok(TensorSpec { name: self.name.clone(), datatype, shape: self.shape.clone() }),
        }
    }
}

impl ModelDescription {
    /// Returns the description of version 1 of a model with these tensors. Its requests share
    /// batches, its queue has no bound of its own, and late requests are answered.
    pub fn whole(model: Model, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> ModelDescription {
        ModelDescription {
            name: model.name.clone(),
            version: "1".to_owned(),
            digest: String::new(),
            platform: "none".to_owned(),
            inputs: inputs.iter().map(TensorDescription::of).collect(),
            outputs: outputs.iter().map(TensorDescription::of).collect(),
            answers: outputs.iter().map(|spec| spec.name.clone()).collect(),
            batched: true,
            lengths: None,
            model,
            max_queue: None,
            max_queued_work: None,
            answer_late: true,
            slo_origin: String::new(),
            labels: BTreeMap::new(),
            streams: false,
            walks: None,
        }
    }

    /// Checks that the model can be served across processes; the error gives the reason.
    pub fn check(&self) -> Result<(), String> {
        let ModelDescription { name, model, lengths, .. } = self;
        let fault = |cause: String| Err(format!("model {name:?}: {cause}"));
        if model.walk.is_unfolded() != self.walks.is_some() {
            return fault(format!("walk = \"{}\" does not fit what it tells of its requests", model.walk.name()));
        }
        if let Some(cause) = self.walks.as_ref().and_then(|walks| walks.check().err()) {
            return fault(cause);
        }
        if model.blocks.is_empty() || model.blocks.len() > MAX_COUNT || model.max_batch == 0 {
            return fault(format!("it has {} blocks and batches of {} rows", model.blocks.len(), model.max_batch));
        }
        // Each cell has its own largest batch.
        let most = if model.walk.is_unfolded() { 1 } else { model.max_batch };
        if let Some(block) = model.blocks.iter().find(|block| !is_valid(block, most)) {
            return fault(format!("block {:?} has no profile of batches up to {most}", block.name));
        }
        let once = |block: &Block| block.steps == Steps::Once && !block.beside;
        if !model.walk.is_unfolded() && !model.blocks.iter().all(once) {
            return fault("a block runs more often than its walk allows".to_owned());
        }
        if !(Nanos(1)..=MAX_LATENCY).contains(&model.slo) || model.weight == 0 || model.instances == 0 {
            return fault("its slo, weight or instances are out of bounds".to_owned());
        }
        if self.inputs.len() > MAX_COUNT || self.outputs.len() > MAX_COUNT {
            return fault(format!("it has {} inputs and {} outputs", self.inputs.len(), self.outputs.len()));
        }
        if lengths.as_ref().is_some_and(|(max, dims)| *max == 0 || dims.len() != self.inputs.len()) {
            return fault("its lengths are not those of its inputs".to_owned());
        }
        self.specs().map(drop).or_else(fault)
    }

    /// Returns its inputs and outputs.
    pub fn specs(&self) -> Result<(Vec<TensorSpec>, Vec<TensorSpec>), String> {
        let all =
            |specs: &[TensorDescription]| specs.iter().map(TensorDescription::tensor).collect::<Result<Vec<_>, _>>();
        Ok((all(&self.inputs)?, all(&self.outputs)?))
    }

    /// Returns the latency of a batch of one row, by its profile; `None` if requests differ in how
    /// often they run a block.
    pub fn single_row_latency(&self) -> Option<Nanos> {
        self.walks.is_none().then(|| self.model.profile().latency(1))
    }

    /// Returns the model as a scheduler serves it.
    pub(crate) fn served(&self) -> Result<ServedModel, String> {
        let loaded = Arc::new(RemoteModel::new(self)?);
        let ModelDescription { max_queue, max_queued_work, answer_late, .. } = *self;
        Ok(ServedModel { model: self.model.clone(), loaded, max_queue, max_queued_work, answer_late })
    }

    /// Returns true if the other one has the same name and version.
    pub(crate) fn has_name_of(&self, other: &ModelDescription) -> bool {
        (&self.name, &self.version) == (&other.name, &other.version)
    }

    /// Returns true if another backend's model is the same except for its speed.
    pub(crate) fn is_same(&self, other: &ModelDescription) -> bool {
        let blocks = |of: &ModelDescription| of.model.blocks.len();
        self.digest == other.digest
            && (
                &self.name,
                &self.version,
                &self.inputs,
                &self.outputs,
                self.batched,
                &self.lengths,
                self.model.max_batch,
            ) == (
                &other.name,
                &other.version,
                &other.inputs,
                &other.outputs,
                other.batched,
                &other.lengths,
                other.model.max_batch,
            )
            && (self.model.walk, blocks(self)) == (other.model.walk, blocks(other))
    }
}

/// Returns true if the scheduler can use a block's costs. They come over the network, so any values
/// are possible.
fn is_valid(block: &Block, max_batch: usize) -> bool {
    let is_profile = |profile: &Profile| {
        let table: Vec<Nanos> = (1..=profile.max_batch()).map(|rows| profile.latency(rows)).collect();
        table.last().is_some_and(|last| *last <= MAX_LATENCY) && Profile::from_table(&table).as_ref() == Ok(profile)
    };
    let are_lengths = |lengths: &LengthProfiles| {
        let table = lengths.table();
        table.iter().all(|(_, profile)| is_profile(profile))
            && LengthProfiles::new(table.to_vec()).as_ref() == Ok(lengths)
    };
    let sizes = block.sizes.is_sorted() && !block.sizes.contains(&0);
    sizes
        && block.profile.max_batch() >= max_batch
        && is_profile(&block.profile)
        && block.lengths.as_ref().is_none_or(are_lengths)
}

/// A model that is loaded in another process.
pub(crate) struct RemoteModel {
    pub(crate) description: ModelDescription,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    lengths: Option<InputLengths>,
}

impl RemoteModel {
    pub(crate) fn new(description: &ModelDescription) -> Result<RemoteModel, String> {
        let (inputs, outputs) = description.specs()?;
        let lengths = description.lengths.clone().map(|(max, dims)| InputLengths { max, dims });
        Ok(RemoteModel { description: description.clone(), inputs, outputs, lengths })
    }
}

impl LoadedModel for RemoteModel {
    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn batched(&self) -> bool {
        self.description.batched
    }

    fn blocks(&self) -> usize {
        self.description.model.blocks.len()
    }

    fn steps(&self, block: BlockId) -> Steps {
        self.description.model.blocks[block.index()].steps
    }

    /// Reads only the extent and the graph: values are checked by the backend.
    fn describe(&self, inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        if let Some(walks) = &self.description.walks {
            return walks.describe(inputs);
        }
        let extent =
            self.lengths.as_ref().map_or(Ok(Extent::ONE), |lengths| request_extent(lengths, &self.inputs, inputs))?;
        Ok((extent, None))
    }

    fn lengths(&self) -> Option<&InputLengths> {
        self.lengths.as_ref()
    }

    fn walk_shape(&self) -> Option<&WalkShape> {
        self.description.walks.as_ref()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns a model for tests.
#[cfg(test)]
pub(crate) fn described() -> ModelDescription {
    let specs = [TensorSpec { name: "x".to_owned(), datatype: DataType::Fp32, shape: vec![-1, 1] }];
    let model = Model::whole("m", Profile::linear(1.0, 2.0, 4).unwrap(), Nanos::from_millis(50));
    ModelDescription {
        digest: "d".to_owned(),
        platform: "emulated".to_owned(),
        max_queue: Some(8),
        max_queued_work: Some(Nanos::from_millis(30_000)),
        answer_late: false,
        slo_origin: "its slo_ms".to_owned(),
        ..ModelDescription::whole(model, &specs, &specs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Walk;

    fn walks(walk: Walk, described: &ModelDescription) -> WalkShape {
        let cells = described.model.blocks.iter().map(|block| (block.name.clone(), block.steps)).collect();
        WalkShape { walk, max_length: 8, limit: None, tensors: vec![("x".to_owned(), true)], arity: 2, cells }
    }

    #[test]
    fn what_a_scheduler_could_not_plan_with_is_refused() {
        let refused = |change: fn(&mut ModelDescription)| {
            let mut described = described();
            change(&mut described);
            described.check().unwrap_err()
        };
        let unfolds = refused(|described| described.model.walk = Walk::Repeat);
        assert!(unfolds.contains("\"m\"") && unfolds.contains("walk = \"repeat\""), "{unfolds}");
        assert!(refused(|described| described.model.blocks[0].steps = Steps::Length).contains("more often"));
        let unlike = refused(|described| {
            described.model.walk = Walk::Tree;
            described.walks = Some(walks(Walk::Tree, described));
        });
        assert!(unlike.contains("needs a leaf and an internal block"), "{unlike}");
        assert!(refused(|described| described.model.blocks.clear()).contains("0 blocks"));
        assert!(refused(|described| described.model.max_batch = 5).contains("up to 5"));
        assert!(refused(|described| described.model.slo = Nanos(0)).contains("slo"));
        assert!(refused(|described| described.lengths = Some((4, vec![]))).contains("lengths"));
        assert!(refused(|described| described.inputs[0].datatype = "FP7".to_owned()).contains("FP7"));
        assert!(refused(|described| described.inputs[0].shape.clear()).contains("dimension"));
    }
}
