//! The blocks of a model on the wire.

use super::size;
use prost::Message;
use ripieno_base::Nanos;
use ripieno_model::{Block, LengthProfiles, Profile, Steps};

#[derive(Clone, PartialEq, Message)]
pub(super) struct BlockMessage {
    #[prost(string, tag = "1")]
    name: String,
    /// ℓ(1), ℓ(2), …
    #[prost(int64, repeated, tag = "2")]
    pub(super) latency_ns: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    lengths: Vec<LengthMessage>,
    #[prost(uint32, tag = "4")]
    priority: u32,
    #[prost(uint64, repeated, tag = "5")]
    sizes: Vec<u64>,
    #[prost(bool, tag = "6")]
    skips: bool,
    /// Kind of its steps; empty if a request runs it once.
    #[prost(string, tag = "7")]
    steps: String,
    #[prost(bool, tag = "8")]
    beside: bool,
}

#[derive(Clone, PartialEq, Message)]
struct LengthMessage {
    #[prost(uint32, tag = "1")]
    length: u32,
    #[prost(int64, repeated, tag = "2")]
    latency_ns: Vec<i64>,
}

/// Names of the kinds of steps, apart from a block that runs once.
const STEPS: [(&str, Steps); 3] = [("length", Steps::Length), ("until-end", Steps::UntilEnd), ("nodes", Steps::Nodes)];

fn steps_named(name: &str) -> Result<Steps, String> {
    let known = STEPS.iter().find(|(known, _)| *known == name).map(|&(_, steps)| steps);
    known.or(name.is_empty().then_some(Steps::Once)).ok_or_else(|| format!("it runs {name:?}"))
}

impl BlockMessage {
    pub(super) fn of(block: &Block) -> BlockMessage {
        let lengths = block.lengths.as_ref().map(LengthProfiles::table).unwrap_or_default();
        let length = |(length, profile): &(u32, Profile)| LengthMessage { length: *length, latency_ns: table(profile) };
        BlockMessage {
            name: block.name.clone(),
            latency_ns: table(&block.profile),
            lengths: lengths.iter().map(length).collect(),
            priority: block.priority,
            sizes: block.sizes.iter().map(|&size| size as u64).collect(),
            skips: block.skips,
            steps: STEPS.iter().find(|(_, steps)| *steps == block.steps).map_or("", |(name, _)| name).to_owned(),
            beside: block.beside,
        }
    }

    pub(super) fn block(self) -> Result<Block, String> {
        let fault = |cause: String| format!("block {:?}: {cause}", self.name);
        let lengths = self.lengths.into_iter().map(|of| Ok((of.length, profile(&of.latency_ns)?)));
        let lengths = lengths.collect::<Result<Vec<_>, String>>().map_err(fault)?;
        let lengths = if lengths.is_empty() {
            None
        } else {
            Some(LengthProfiles::new(lengths).map_err(|error| fault(error.to_string()))?)
        };
        let profile = profile(&self.latency_ns).map_err(fault)?;
        let steps = steps_named(&self.steps).map_err(fault)?;
        let sizes = self.sizes.iter().map(|&number| size(number)).collect();
        Ok(Block {
            lengths,
            priority: self.priority,
            sizes,
            skips: self.skips,
            steps,
            beside: self.beside,
            ..Block::new(self.name.clone(), profile)
        })
    }
}

fn table(profile: &Profile) -> Vec<i64> {
    (1..=profile.max_batch()).map(|rows| profile.latency(rows).0).collect()
}

fn profile(latency_ns: &[i64]) -> Result<Profile, String> {
    let table: Vec<Nanos> = latency_ns.iter().map(|&latency| Nanos(latency)).collect();
    let profile = Profile::from_table(&table).map_err(|error| format!("its profile: {error}"))?;
    let same = (1..).zip(&table).all(|(rows, &latency)| profile.latency(rows) == latency);
    if same { Ok(profile) } else { Err("its profile falls as batches grow".to_owned()) }
}
