//! Validation of a request and computation of its extent, before the request takes a slot.

use super::wiring::{FeedSource, OUTPUT_LENGTH, RequestTensor, Wiring};
use crate::contract::walk_shape::{find, integers, numbers, shape};
use crate::run::rows::{BatchTensor, Rows};
use crate::{RequestError, Tensor, Unfold};
use ripieno_model::{Extent, Graph, Steps, Walk};
use std::sync::Arc;

impl Wiring {
    /// Returns the extent of a request, and its graph if it has one.
    pub(crate) fn describe(&self, inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        let (extent, graph) = match &self.unfold {
            Some(unfold) => {
                let graph = self.unfolded(&**unfold, inputs)?;
                (self.shape.extent(graph.len() as u32), Some(graph))
            }
            None => self.shape.describe(inputs)?,
        };
        if let Some(graph) = graph.as_ref().filter(|_| self.shape.walk == Walk::Graph) {
            self.check_edges(graph)?;
        }
        let rows = self.rows(inputs, extent)?;
        if let Some(graph) = graph.as_ref().filter(|_| self.unfold.is_some()) {
            self.check_elements(&rows, graph)?;
        }
        self.check_ids(&rows, extent, graph.as_ref())?;
        Ok((extent, graph))
    }

    /// Returns the request's tensors. A tensor with elements has one row per element.
    pub(crate) fn rows(&self, inputs: &[Tensor], extent: Extent) -> Result<Vec<Rows>, RequestError> {
        let row = |wanted: &RequestTensor| {
            let tensor = find(inputs, &wanted.name)?;
            let length = match (&self.unfold, shape(tensor)?.get(1)) {
                // If user code creates the graph, the number of nodes does not determine the length
                // of a tensor.
                (Some(_), Some(&own)) if wanted.each => {
                    self.shape.check_length(&wanted.name, own)?;
                    own
                }
                _ => i64::from(extent.length),
            };
            rows_of(wanted, tensor, length)
        };
        self.request_tensors.iter().map(row).collect()
    }

    /// Creates the graph of a request by the embedder's code.
    fn unfolded(&self, unfold: &dyn Unfold, inputs: &[Tensor]) -> Result<Graph, RequestError> {
        let graph = unfold.unfold(inputs)?;
        let (nodes, most) = (graph.len(), self.shape.max_length);
        if nodes > most as usize {
            return Err(RequestError(format!(
                "the request unfolds into {nodes} nodes, but the model takes at most {most}; send less, or raise max_length"
            )));
        }
        for node in 0..nodes as u32 {
            let (block, number) = (graph.block(node), graph.origin(node));
            if !self.cells.get(block.index()).is_some_and(|cell| cell.steps == Steps::Nodes) {
                return Err(RequestError(format!(
                    "node {number} runs block {}, which is no cell of the graph's nodes",
                    block.0
                )));
            }
            let given = graph.inputs(node).iter().rposition(|&input| input != Graph::NONE).map_or(0, |at| at + 1);
            if given > self.shape.arity {
                return Err(RequestError(format!(
                    "node {number} has {given} inputs, but the cells take at most {}",
                    self.shape.arity
                )));
            }
        }
        Ok(graph)
    }

    /// Checks that the element of each node exists.
    fn check_elements(&self, rows: &[Rows], graph: &Graph) -> Result<(), RequestError> {
        for node in 0..graph.len() as u32 {
            let element = graph.element(node);
            for feed in &self.cells[graph.block(node).index()].feeds {
                let FeedSource::Element(tensor) = feed.from else { continue };
                let count = rows[tensor].count();
                if element >= count {
                    let (number, name) = (graph.origin(node), &self.request_tensors[tensor].name);
                    return Err(RequestError(format!(
                        "node {number} takes element {element} of input '{name}', which has {count}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Checks that the cells of each node's inputs have the outputs that the node takes.
    fn check_edges(&self, graph: &Graph) -> Result<(), RequestError> {
        for node in 0..graph.len() as u32 {
            let cell = &self.cells[graph.block(node).index()];
            for feed in &cell.feeds {
                let FeedSource::Child(child, outputs) = &feed.from else { continue };
                let Some(&child) = graph.inputs(node).get(*child).filter(|&&child| child != Graph::NONE) else {
                    continue;
                };
                let given = graph.block(child).index();
                if outputs[given].is_none() {
                    return Err(RequestError(format!(
                        "node {} runs '{}', which takes '{}' of node {}, but that runs '{}', which does not give it",
                        graph.origin(node),
                        cell.name,
                        feed.name,
                        graph.origin(child),
                        self.cells[given].name
                    )));
                }
            }
        }
        Ok(())
    }

    /// Checks ids against the embedding tables. An invalid id would fail the whole batch.
    fn check_ids(&self, rows: &[Rows], extent: Extent, graph: Option<&Graph>) -> Result<(), RequestError> {
        for (block, cell) in self.cells.iter().enumerate() {
            for feed in &cell.feeds {
                let (Some(size), FeedSource::Element(tensor)) = (feed.vocabulary, &feed.from) else { continue };
                let elements: Box<dyn Iterator<Item = usize>> = match graph {
                    Some(graph) => Box::new(
                        (0..graph.len() as u32)
                            .filter(move |&node| graph.block(node).index() == block)
                            .map(|node| graph.element(node)),
                    ),
                    None => Box::new(0..extent.length as usize),
                };
                for element in elements {
                    let ids = numbers(feed.datatype, rows[*tensor].at(element).bytes());
                    if let Some(id) = ids.into_iter().flatten().find(|id| !(0..size).contains(id)) {
                        return Err(RequestError(format!(
                            "input '{}' holds {id} at element {element}, but the cell '{}' knows 0 to {}",
                            self.request_tensors[*tensor].name,
                            cell.name,
                            size - 1
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the output length of an emulated decoder. It is the value of the request's tensor
    /// `output_length`. Without this tensor, it is a hash of the request, so equal requests have
    /// equal lengths.
    pub(crate) fn emulated_steps(&self, inputs: &[Tensor], extent: Extent) -> u32 {
        if extent.limit == 0 {
            return 0;
        }
        let told = inputs.iter().find(|tensor| &*tensor.name == OUTPUT_LENGTH).and_then(|tensor| integers(tensor).ok());
        if let Some(&told) = told.as_ref().and_then(|told| told.first()) {
            return told.clamp(1, i64::from(extent.limit)) as u32;
        }
        let bytes = inputs.iter().flat_map(|tensor| tensor.data.iter());
        // FNV-1a. Any hash with an even distribution suffices.
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        1 + ((hash >> 16) % u64::from(extent.limit)) as u32
    }
}

fn rows_of(wanted: &RequestTensor, tensor: &Tensor, length: i64) -> Result<Rows, RequestError> {
    let RequestTensor { name, datatype, row_shape, each } = wanted;
    let refuse = |cause: String| RequestError(format!("input '{name}': {cause}"));
    let leading = if *each { vec![1, length] } else { vec![1] };
    let expected = [&leading[..], row_shape].concat();
    if tensor.datatype != *datatype || tensor.shape != expected {
        return Err(refuse(format!(
            "it is {} {:?}, but must be {datatype} {expected:?}",
            tensor.datatype, tensor.shape
        )));
    }
    let rows = if *each { &expected[1..] } else { &expected };
    let batch = BatchTensor::new(*datatype, rows.to_vec(), tensor.data.clone()).map_err(refuse)?;
    let count = batch.rows();
    Ok(Rows::of_batch(&Arc::new(batch), 0..count))
}
