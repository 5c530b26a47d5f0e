//! What frontends and schedulers know of a model that is somewhere else: its specification, its profile, its limits.

use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{InputLengths, Loaded, RequestError, Tensor};
use ripieno_model::{Block, DataType, Extent, Graph, Lengths, Model, Profile, Steps, TensorSpec};
use ripieno_runtime::ServedModel;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most models of a backend, tensors of each, and blocks.
const MOST: usize = 4096;
/// The longest batch, and latency target: a day.
const LONGEST: Nanos = Nanos::from_millis(86_400_000);

/// A model, as its backend tells of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Its name in the protocol.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What runs it, for people.
    pub platform: String,
    /// Its inputs; the first dimension is the batch.
    pub inputs: Vec<Spec>,
    /// All its outputs, as the engine gives them.
    pub outputs: Vec<Spec>,
    /// Those that clients are told of.
    pub answers: Vec<String>,
    /// Whether requests share batches.
    pub batched: bool,
    /// Where inputs have the length of a request: the longest, and a dimension for each input.
    pub lengths: Option<(u32, Vec<Option<usize>>)>,
    /// As the scheduler sees it.
    pub model: Model,
    /// The most live requests.
    pub max_queue: usize,
    /// Whether late requests are answered.
    pub answer_late: bool,
    /// The key that its latency target comes from, for messages.
    pub slo_origin: String,
    /// What the classes of outputs are called: the file, and a name for each.
    pub labels: BTreeMap<String, (String, Vec<String>)>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    name: String,
    datatype: String,
    shape: Vec<i64>,
}

impl Spec {
    /// Of this tensor.
    pub fn of(spec: &TensorSpec) -> Spec {
        Spec { name: spec.name.clone(), datatype: spec.datatype.to_string(), shape: spec.shape.clone() }
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

impl Description {
    /// Whether a model can be served across processes; if not, why.
    pub fn check(&self) -> Result<(), String> {
        let Description { name, model, lengths, .. } = self;
        let fault = |cause: String| Err(format!("model {name:?}: {cause}"));
        if model.walk.is_unfolded() {
            return fault(format!(
                "walk = \"{}\" unfolds, and its state cannot be shared by machines yet; serve it with `ripieno serve`",
                model.walk.name()
            ));
        }
        if model.blocks.is_empty() || model.blocks.len() > MOST || model.max_batch == 0 {
            return fault(format!("it has {} blocks and batches of {} rows", model.blocks.len(), model.max_batch));
        }
        if let Some(block) = model.blocks.iter().find(|block| !is_sound(block, model.max_batch)) {
            return fault(format!("block {:?} has no profile of batches up to {}", block.name, model.max_batch));
        }
        if !(Nanos(1)..=LONGEST).contains(&model.slo) || model.weight == 0 || model.instances == 0 {
            return fault("its slo, weight or instances are out of bounds".to_owned());
        }
        if self.inputs.len() > MOST || self.outputs.len() > MOST {
            return fault(format!("it has {} inputs and {} outputs", self.inputs.len(), self.outputs.len()));
        }
        if lengths.as_ref().is_some_and(|(max, dims)| *max == 0 || dims.len() != self.inputs.len()) {
            return fault("its lengths are not those of its inputs".to_owned());
        }
        self.specs().map(drop).or_else(fault)
    }

    /// Its inputs and outputs.
    pub fn specs(&self) -> Result<(Vec<TensorSpec>, Vec<TensorSpec>), String> {
        let all = |specs: &[Spec]| specs.iter().map(Spec::tensor).collect::<Result<Vec<_>, _>>();
        Ok((all(&self.inputs)?, all(&self.outputs)?))
    }

    /// The latency of one row alone, by its profile.
    pub fn one_row(&self) -> Nanos {
        self.model.profile().latency(1)
    }

    /// What a scheduler serves of it: the model of this position of its backends.
    pub(crate) fn served(&self, at: u32) -> Result<ServedModel, String> {
        let loaded = Arc::new(RemoteModel::new(self, at)?);
        let (model, max_queue, answer_late) = (self.model.clone(), self.max_queue, self.answer_late);
        Ok(ServedModel { model, loaded, max_queue, answer_late })
    }

    /// Whether another backend's model is the same, but for how fast it is.
    pub(crate) fn is_like(&self, other: &Description) -> bool {
        let blocks = |of: &Description| of.model.blocks.len();
        (&self.name, &self.version, &self.inputs, &self.outputs, self.batched, &self.lengths, self.model.max_batch)
            == (
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

/// Whether a block's costs are such as the scheduler reckons with: they come as numbers, and anybody may have made them
/// up.
fn is_sound(block: &Block, max_batch: usize) -> bool {
    let is_profile = |profile: &Profile| {
        let table: Vec<Nanos> = (1..=profile.max_batch()).map(|rows| profile.latency(rows)).collect();
        table.last().is_some_and(|last| *last <= LONGEST) && Profile::from_table(&table).as_ref() == Ok(profile)
    };
    let are_lengths = |lengths: &Lengths| {
        let table = lengths.table();
        table.iter().all(|(_, profile)| is_profile(profile)) && Lengths::new(table.to_vec()).as_ref() == Ok(lengths)
    };
    let sizes = block.sizes.is_sorted() && !block.sizes.contains(&0);
    block.steps == Steps::Once
        && sizes
        && !block.beside
        && block.profile.max_batch() >= max_batch
        && is_profile(&block.profile)
        && block.lengths.as_ref().is_none_or(are_lengths)
}

/// The models of a backend, in words that say what is wrong with them.
pub(crate) fn read(text: &str) -> Result<Vec<Description>, String> {
    let models: Vec<Description> = serde_json::from_str(text).map_err(|error| format!("its models: {error}"))?;
    if models.len() > MOST {
        return Err(format!("{} models; {MOST} are taken", models.len()));
    }
    models.iter().try_for_each(Description::check)?;
    Ok(models)
}

/// The models of a scheduler, by its ids.
pub(crate) fn read_served(text: &str) -> Result<Vec<(ModelId, Description)>, String> {
    let models: Vec<(u16, Description)> = serde_json::from_str(text).map_err(|error| format!("its models: {error}"))?;
    models.iter().try_for_each(|(_, description)| description.check())?;
    Ok(models.into_iter().map(|(id, description)| (ModelId(id), description)).collect())
}

/// A model that is loaded elsewhere.
pub(crate) struct RemoteModel {
    /// Among those of each backend.
    pub(crate) at: u32,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    batched: bool,
    blocks: usize,
    lengths: Option<InputLengths>,
}

impl RemoteModel {
    pub(crate) fn new(description: &Description, at: u32) -> Result<RemoteModel, String> {
        let (inputs, outputs) = description.specs()?;
        let lengths = description.lengths.clone().map(|(max, dims)| InputLengths { max, dims });
        let (batched, blocks) = (description.batched, description.model.blocks.len());
        Ok(RemoteModel { at, inputs, outputs, batched, blocks, lengths })
    }
}

impl Loaded for RemoteModel {
    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn batched(&self) -> bool {
        self.batched
    }

    fn blocks(&self) -> usize {
        self.blocks
    }

    /// What values say is checked where the weights are.
    fn describe(&self, inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        let extent = self.lengths.as_ref().map_or(Ok(Extent::ONE), |lengths| lengths.extent(&self.inputs, inputs))?;
        Ok((extent, None))
    }

    fn lengths(&self) -> Option<&InputLengths> {
        self.lengths.as_ref()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Walk;

    fn described() -> Description {
        let spec = Spec { name: "x".to_owned(), datatype: "FP32".to_owned(), shape: vec![-1, 1] };
        let profile = Profile::linear(1.0, 2.0, 4).unwrap();
        Description {
            name: "m".to_owned(),
            version: "1".to_owned(),
            platform: "emulated".to_owned(),
            inputs: vec![spec.clone()],
            outputs: vec![spec],
            answers: vec!["x".to_owned()],
            batched: true,
            lengths: None,
            model: Model::whole("m", profile, Nanos::from_millis(50)),
            max_queue: 8,
            answer_late: false,
            slo_origin: "its slo_ms".to_owned(),
            labels: BTreeMap::new(),
        }
    }

    #[test]
    fn a_model_survives_as_text() {
        let models = [described()];
        assert_eq!(read(&serde_json::to_string(&models).unwrap()).unwrap(), models);
        assert!(read("[{}]").unwrap_err().contains("missing field"));
    }

    #[test]
    fn what_a_scheduler_could_not_reckon_with_is_refused() {
        let refused = |change: fn(&mut Description)| {
            let mut described = described();
            change(&mut described);
            described.check().unwrap_err()
        };
        let unfolds = refused(|described| described.model.walk = Walk::Repeat);
        assert!(unfolds.contains("\"m\"") && unfolds.contains("walk = \"repeat\""), "{unfolds}");
        assert!(refused(|described| described.model.blocks.clear()).contains("0 blocks"));
        assert!(refused(|described| described.model.max_batch = 5).contains("up to 5"));
        assert!(refused(|described| described.model.slo = Nanos(0)).contains("slo"));
        assert!(refused(|described| described.lengths = Some((4, vec![]))).contains("lengths"));
        assert!(refused(|described| described.inputs[0].datatype = "FP7".to_owned()).contains("FP7"));
        assert!(refused(|described| described.inputs[0].shape.clear()).contains("dimension"));
        // Not such as a profile is made, but such as one may be written.
        for table in ["[]", "[2,1,3,4]", "[0,1,1,1]", "[1,1,1,9223372036854775807]"] {
            let profile: Profile = serde_json::from_str(&format!("{{\"table\":{table}}}")).unwrap();
            let mut described = described();
            described.model.blocks[0].profile = profile;
            assert!(described.check().unwrap_err().contains("profile"), "{table}");
        }
    }
}
