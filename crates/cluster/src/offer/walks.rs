//! The shape of walks on the wire.

use super::size;
use crate::description::MAX_COUNT;
use prost::Message;
use ripieno_executor::{StepLimit, WalkShape};
use ripieno_model::Model;

#[derive(Clone, PartialEq, Message)]
pub(super) struct WalksMessage {
    #[prost(uint32, tag = "1")]
    max_length: u32,
    /// Most steps of the block that runs until the request ends, if there is one: this number, or
    /// this number beyond the length.
    #[prost(uint32, optional, tag = "2")]
    fixed_limit: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    extra_limit: Option<u32>,
    #[prost(string, repeated, tag = "4")]
    tensors: Vec<String>,
    /// Whether each tensor has an element for each step or node.
    #[prost(bool, repeated, tag = "5")]
    elements: Vec<bool>,
    #[prost(uint64, tag = "6")]
    arity: u64,
}

impl WalksMessage {
    pub(super) fn of(shape: &WalkShape) -> WalksMessage {
        let (fixed_limit, extra_limit) = match shape.limit {
            Some(StepLimit::Fixed(most)) => (Some(most), None),
            Some(StepLimit::Extra(extra)) => (None, Some(extra)),
            None => (None, None),
        };
        let (tensors, elements) = shape.tensors.iter().cloned().unzip();
        let arity = shape.arity as u64;
        WalksMessage { max_length: shape.max_length, fixed_limit, extra_limit, tensors, elements, arity }
    }

    pub(super) fn shape(self, model: &Model) -> Result<WalkShape, String> {
        if self.tensors.len() != self.elements.len() || self.tensors.len() > MAX_COUNT {
            return Err("its walks are not those of its tensors".to_owned());
        }
        let limit = self.fixed_limit.map(StepLimit::Fixed).or(self.extra_limit.map(StepLimit::Extra));
        Ok(WalkShape {
            walk: model.walk,
            max_length: self.max_length,
            limit,
            tensors: self.tensors.into_iter().zip(self.elements).collect(),
            arity: size(self.arity),
            cells: model.blocks.iter().map(|block| (block.name.clone(), block.steps)).collect(),
        })
    }
}
