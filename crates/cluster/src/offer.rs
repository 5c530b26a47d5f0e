//! Descriptions of models on the wire: protobuf messages, so that roles of neighbouring versions
//! understand each other.
//!
//! A reader ignores fields that it does not know. A field whose meaning must be known to serve the
//! model is also named in `needs`. A reader that does not know that name refuses the model and says
//! which role to upgrade. Numbers of fields are never used again.

mod blocks;
mod walks;

use crate::description::{MAX_COUNT, ModelDescription, TensorDescription};
use blocks::BlockMessage;
use prost::Message;
use ripieno_base::{ModelId, Nanos};
use ripieno_model::{DropRule, Model, Walk};
use ripieno_runtime::ServedModel;
use std::collections::BTreeMap;
use std::sync::Arc;
use walks::WalksMessage;

/// The need of models whose requests run cell by cell: a scheduler keeps each on its device.
const CELLS: &str = "cells";

/// Needs of models that this version knows, beyond the fields of the first version.
const KNOWN_NEEDS: [&str; 1] = [CELLS];

/// A model that a backend offers.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedModel {
    /// The backend's number of the model.
    pub number: u32,
    /// Whether a newer one takes its place as soon as that is served.
    pub superseded: bool,
    /// The model.
    pub description: ModelDescription,
}

/// The models that a backend offers; backends with equal offers share one list.
pub(crate) type OfferList = Arc<[OfferedModel]>;

/// The models of a backend, and its part in the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BackendOffer {
    /// The models that are loaded.
    pub(crate) models: Vec<OfferedModel>,
    /// True if the backend loads and unloads models as a plan says.
    pub(crate) follows: bool,
    /// The sub-cluster that it was last told to belong to.
    pub(crate) place: Option<usize>,
    /// The reason for which a planned model is not loaded; empty if all are.
    pub(crate) fault: String,
    /// The models of its repository, with their sizes in bytes; empty if it follows no plan.
    pub(crate) available: BTreeMap<String, u64>,
}

/// The models that a scheduler tells frontends of.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServedModels {
    /// The models that are served, by its ids.
    pub(crate) models: Vec<(ModelId, ModelDescription)>,
    /// Names of planned models that backends are loading.
    pub(crate) loading: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ModelList {
    #[prost(message, repeated, tag = "1")]
    models: Vec<ModelMessage>,
    #[prost(bool, tag = "2")]
    follows: bool,
    #[prost(uint32, optional, tag = "3")]
    place: Option<u32>,
    #[prost(string, tag = "4")]
    fault: String,
    #[prost(btree_map = "string, uint64", tag = "5")]
    available: BTreeMap<String, u64>,
    #[prost(string, repeated, tag = "6")]
    loading: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct NameList {
    #[prost(string, repeated, tag = "1")]
    names: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ModelMessage {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(bool, tag = "2")]
    superseded: bool,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    digest: String,
    #[prost(string, tag = "6")]
    platform: String,
    #[prost(message, repeated, tag = "7")]
    inputs: Vec<TensorMessage>,
    #[prost(message, repeated, tag = "8")]
    outputs: Vec<TensorMessage>,
    #[prost(string, repeated, tag = "9")]
    answers: Vec<String>,
    #[prost(bool, tag = "10")]
    batched: bool,
    #[prost(message, optional, tag = "11")]
    lengths: Option<LengthsMessage>,
    #[prost(string, tag = "12")]
    walk: String,
    #[prost(message, repeated, tag = "13")]
    blocks: Vec<BlockMessage>,
    #[prost(int64, tag = "14")]
    slo_ns: i64,
    #[prost(uint64, tag = "15")]
    max_batch: u64,
    #[prost(uint64, tag = "16")]
    instances: u64,
    /// Empty for the policy's own rule.
    #[prost(string, tag = "17")]
    drop: String,
    #[prost(uint32, tag = "18")]
    weight: u32,
    #[prost(uint64, tag = "19")]
    max_queue: u64,
    #[prost(int64, optional, tag = "20")]
    max_queued_work_ns: Option<i64>,
    #[prost(bool, tag = "21")]
    answer_late: bool,
    #[prost(string, tag = "22")]
    slo_origin: String,
    #[prost(message, repeated, tag = "23")]
    labels: Vec<LabelsMessage>,
    #[prost(string, tag = "24")]
    scheduled_name: String,
    #[prost(string, repeated, tag = "25")]
    needs: Vec<String>,
    #[prost(bool, tag = "26")]
    in_arrival_order: bool,
    /// Whether `max_queue` is only what a scheduler takes that does not count its devices.
    #[prost(bool, tag = "27")]
    queue_by_devices: bool,
    /// Whether an answer may come step by step.
    #[prost(bool, tag = "40")]
    streams: bool,
    /// The shape of requests' walks, if requests run cell by cell.
    #[prost(message, optional, tag = "41")]
    walks: Option<WalksMessage>,
    #[prost(uint32, optional, tag = "42")]
    dec_timesteps: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    datatype: String,
    #[prost(sint64, repeated, tag = "3")]
    shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct LengthsMessage {
    #[prost(uint32, tag = "1")]
    max: u32,
    /// The length's dimension of each input; -1 for none.
    #[prost(sint64, repeated, tag = "2")]
    dims: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelsMessage {
    #[prost(string, tag = "1")]
    output: String,
    #[prost(string, tag = "2")]
    file: String,
    #[prost(string, repeated, tag = "3")]
    names: Vec<String>,
}

/// Encodes the models of a backend that follows no plan.
pub fn encode_offers(offers: &[OfferedModel]) -> Vec<u8> {
    BackendOffer { models: offers.to_vec(), ..BackendOffer::default() }.encode()
}

impl BackendOffer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let message = |offer: &OfferedModel| ModelMessage {
            superseded: offer.superseded,
            ..ModelMessage::of(offer.number, &offer.description)
        };
        let models = self.models.iter().map(message).collect();
        let place = self.place.and_then(|place| u32::try_from(place).ok());
        let (fault, available) = (self.fault.clone(), self.available.clone());
        ModelList { models, follows: self.follows, place, fault, available, loading: Vec::new() }.encode_to_vec()
    }
}

/// Decodes the offer of a backend; the error describes the fault.
pub(crate) fn decode_offer(bytes: &[u8]) -> Result<BackendOffer, String> {
    let offer = |message: ModelMessage| {
        let (number, superseded) = (message.number, message.superseded);
        Ok(OfferedModel { number, superseded, description: message.description()? })
    };
    let ModelList { models, follows, place, fault, available, .. } = decode(bytes)?;
    if available.len() > MAX_COUNT {
        return Err(format!("a repository of {} models; {MAX_COUNT} are taken", available.len()));
    }
    let models = models.into_iter().map(offer).collect::<Result<_, String>>()?;
    Ok(BackendOffer { models, follows, place: place.and_then(|place| usize::try_from(place).ok()), fault, available })
}

/// Encodes names of models.
pub(crate) fn encode_names<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<u8> {
    NameList { names: names.into_iter().cloned().collect() }.encode_to_vec()
}

/// Decodes names of models.
pub(crate) fn decode_names(bytes: &[u8]) -> Result<Vec<String>, String> {
    let list = NameList::decode(bytes).map_err(|error| format!("names of models: {error}"))?;
    match list.names.len() {
        0..=MAX_COUNT => Ok(list.names),
        many => Err(format!("{many} names; {MAX_COUNT} are taken")),
    }
}

impl ServedModels {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let message = |(id, model): &(ModelId, ModelDescription)| ModelMessage::of(u32::from(id.0), model);
        let models = self.models.iter().map(message).collect();
        ModelList { models, loading: self.loading.clone(), ..ModelList::default() }.encode_to_vec()
    }

    /// Decodes the models of a scheduler; the error describes the fault.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ServedModels, String> {
        let served = |message: ModelMessage| {
            let id = u16::try_from(message.number).map_err(|_| format!("a model of id {}", message.number))?;
            Ok((ModelId(id), message.description()?))
        };
        let ModelList { models, loading, .. } = decode(bytes)?;
        if loading.len() > MAX_COUNT {
            return Err(format!("{} models are being loaded; {MAX_COUNT} are taken", loading.len()));
        }
        Ok(ServedModels { models: models.into_iter().map(served).collect::<Result<_, String>>()?, loading })
    }
}

fn decode(bytes: &[u8]) -> Result<ModelList, String> {
    let list = ModelList::decode(bytes).map_err(|error| format!("its models: {error}"))?;
    match list.models.len() {
        0..=MAX_COUNT => Ok(list),
        many => Err(format!("{many} models; {MAX_COUNT} are taken")),
    }
}

impl ModelMessage {
    fn of(number: u32, described: &ModelDescription) -> ModelMessage {
        let tensors = |specs: &[TensorDescription]| specs.iter().map(TensorMessage::of).collect();
        let model = &described.model;
        ModelMessage {
            number,
            superseded: false,
            name: described.name.clone(),
            version: described.version.clone(),
            digest: described.digest.clone(),
            platform: described.platform.clone(),
            inputs: tensors(&described.inputs),
            outputs: tensors(&described.outputs),
            answers: described.answers.clone(),
            batched: described.batched,
            lengths: described.lengths.as_ref().map(|(max, dims)| LengthsMessage::of(*max, dims)),
            walk: model.walk.name().to_owned(),
            blocks: model.blocks.iter().map(BlockMessage::of).collect(),
            slo_ns: model.slo.0,
            max_batch: model.max_batch as u64,
            instances: model.instances as u64,
            drop: model.drop.map_or("", drop_name).to_owned(),
            weight: model.weight,
            max_queue: described.max_queue.unwrap_or(ServedModel::MIN_QUEUE) as u64,
            queue_by_devices: described.max_queue.is_none(),
            max_queued_work_ns: described.max_queued_work.map(|work| work.0),
            answer_late: described.answer_late,
            slo_origin: described.slo_origin.clone(),
            labels: described.labels.iter().map(LabelsMessage::of).collect(),
            scheduled_name: model.name.clone(),
            needs: described.walks.iter().map(|_| CELLS.to_owned()).collect(),
            in_arrival_order: model.in_arrival_order,
            streams: described.streams,
            walks: described.walks.as_ref().map(WalksMessage::of),
            dec_timesteps: model.dec_timesteps,
        }
    }

    /// Returns the description, checked.
    fn description(self) -> Result<ModelDescription, String> {
        if let Some(need) = self.needs.iter().find(|need| !KNOWN_NEEDS.contains(&need.as_str())) {
            return Err(format!(
                "model {:?} needs {need:?}, which this version does not know; upgrade this role",
                self.name
            ));
        }
        let name = self.name.clone();
        let fault = |cause: String| format!("model {name:?}: {cause}");
        let walk = Walk::named(&self.walk).ok_or_else(|| fault(format!("it has the walk {:?}", self.walk)))?;
        let drop = drop_named(&self.drop).map_err(fault)?;
        let blocks = self.blocks.into_iter().map(BlockMessage::block).collect::<Result<_, _>>().map_err(fault)?;
        let model = Model {
            name: self.scheduled_name,
            blocks,
            walk,
            slo: Nanos(self.slo_ns),
            max_batch: size(self.max_batch),
            instances: size(self.instances),
            drop,
            weight: self.weight,
            dec_timesteps: self.dec_timesteps,
            in_arrival_order: self.in_arrival_order,
            pinned: walk.is_unfolded(),
        };
        let walks = self.walks.map(|walks| walks.shape(&model)).transpose().map_err(fault)?;
        let labels = self.labels.into_iter().map(|of| (of.output, (of.file, of.names)));
        let described = ModelDescription {
            name: self.name,
            version: self.version,
            digest: self.digest,
            platform: self.platform,
            inputs: self.inputs.into_iter().map(TensorMessage::description).collect(),
            outputs: self.outputs.into_iter().map(TensorMessage::description).collect(),
            answers: self.answers,
            batched: self.batched,
            lengths: self.lengths.map(LengthsMessage::lengths),
            model,
            max_queue: (!self.queue_by_devices).then(|| size(self.max_queue)),
            max_queued_work: self.max_queued_work_ns.map(Nanos),
            answer_late: self.answer_late,
            slo_origin: self.slo_origin,
            labels: labels.collect::<BTreeMap<_, _>>(),
            streams: self.streams,
            walks,
        };
        described.check()?;
        Ok(described)
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn drop_name(rule: DropRule) -> &'static str {
    match rule {
        DropRule::Hopeless => "hopeless",
        DropRule::Expired => "expired",
        DropRule::Never => "never",
    }
}

fn drop_named(text: &str) -> Result<Option<DropRule>, String> {
    let mut rules = [DropRule::Hopeless, DropRule::Expired, DropRule::Never].into_iter();
    let known = rules.find(|&rule| drop_name(rule) == text);
    if known.is_some() || text.is_empty() { Ok(known) } else { Err(format!("it has the drop rule {text:?}")) }
}

impl TensorMessage {
    fn of(tensor: &TensorDescription) -> TensorMessage {
        let TensorDescription { name, datatype, shape } = tensor.clone();
        TensorMessage { name, datatype, shape }
    }

    fn description(self) -> TensorDescription {
        TensorDescription { name: self.name, datatype: self.datatype, shape: self.shape }
    }
}

impl LabelsMessage {
    fn of((output, (file, names)): (&String, &(String, Vec<String>))) -> LabelsMessage {
        LabelsMessage { output: output.clone(), file: file.clone(), names: names.clone() }
    }
}

impl LengthsMessage {
    fn of(max: u32, dims: &[Option<usize>]) -> LengthsMessage {
        let dim = |dim: &Option<usize>| dim.and_then(|dim| i64::try_from(dim).ok()).unwrap_or(-1);
        LengthsMessage { max, dims: dims.iter().map(dim).collect() }
    }

    fn lengths(self) -> (u32, Vec<Option<usize>>) {
        (self.max, self.dims.into_iter().map(|dim| usize::try_from(dim).ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::described;
    use ripieno_model::{LengthProfiles, Profile};

    fn offer() -> OfferedModel {
        OfferedModel { number: 7, superseded: true, description: described() }
    }

    #[test]
    fn models_survive_and_a_cut_message_is_refused() {
        let mut padded = described();
        padded.name = "padded".to_owned();
        padded.lengths = Some((4, vec![Some(1)]));
        let lengths = vec![(2, Profile::linear(0.5, 1.0, 4).unwrap()), (4, Profile::linear(1.0, 2.0, 4).unwrap())];
        padded.model.blocks[0].lengths = Some(LengthProfiles::new(lengths).unwrap());
        padded.model.blocks[0].sizes = vec![1, 4];
        padded.model.drop = Some(DropRule::Never);
        padded.labels.insert("x".to_owned(), ("labels.txt".to_owned(), vec!["a".to_owned()]));
        (padded.max_queued_work, padded.max_queue) = (None, None);
        let offers = [offer(), OfferedModel { number: 0, superseded: false, description: padded.clone() }];
        let bytes = encode_offers(&offers);
        assert_eq!(decode_offer(&bytes).unwrap().models, offers);
        assert!(decode_offer(&bytes[..bytes.len() - 1]).unwrap_err().contains("its models"));
        let available = [("a".to_owned(), 5)].into();
        let fault = "no".to_owned();
        let follows = BackendOffer { models: Vec::new(), follows: true, place: Some(3), fault, available };
        assert_eq!(decode_offer(&follows.encode()).unwrap(), follows);
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(decode_names(&encode_names(&names)).unwrap(), names);
        let served = ServedModels { models: vec![(ModelId(3), padded)], loading: names.to_vec() };
        assert_eq!(ServedModels::decode(&served.encode()).unwrap(), served);
    }

    #[test]
    fn a_neighbour_with_more_fields_is_understood_and_one_with_more_needs_is_refused() {
        let mut message = ModelMessage::of(7, &described());
        let mut bytes = message.encode_to_vec();
        // A field that this version does not know: number 100, a text.
        bytes.extend([0xa2, 0x06, 3, b'n', b'e', b'w']);
        assert_eq!(ModelMessage::decode(&bytes[..]).unwrap(), message);
        message.needs = vec!["time travel".to_owned()];
        let refused = message.description().unwrap_err();
        assert!(refused.contains("\"time travel\"") && refused.contains("upgrade"), "{refused}");
    }

    #[test]
    fn numbers_that_no_scheduler_could_use_are_refused() {
        let refused = |change: fn(&mut ModelMessage)| {
            let mut message = ModelMessage::of(1, &described());
            change(&mut message);
            message.description().unwrap_err()
        };
        for table in [&[][..], &[2, 1, 3, 4], &[0, 1, 1, 1], &[1, 1, 1, i64::MAX], &[-1, 1, 1, 1]] {
            let mut message = ModelMessage::of(1, &described());
            message.blocks[0].latency_ns = table.to_vec();
            assert!(message.description().is_err(), "{table:?}");
        }
        assert!(refused(|message| message.walk = "dance".to_owned()).contains("dance"));
        assert!(refused(|message| message.drop = "all".to_owned()).contains("all"));
        assert!(refused(|message| message.blocks.clear()).contains("0 blocks"));
    }
}
