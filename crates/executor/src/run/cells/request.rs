//! Validation of a request and computation of its extent, before the request takes a slot.

use super::wiring::{CELL, CHILDREN, FeedSource, OUTPUT_LENGTH, RequestTensor, Wiring};
use crate::run::rows::{BatchTensor, Rows};
use crate::{RequestError, Tensor, Unfold};
use ripieno_base::BlockId;
use ripieno_model::{DataType, Extent, Graph, Steps};
use std::sync::Arc;

impl Wiring {
    /// Returns the extent of a request, and its graph if it has one.
    pub(crate) fn describe(&self, inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        let graph = match &self.unfold {
            Some(unfold) => Some(self.unfolded(&**unfold, inputs)?),
            None if self.walk.brings_graph() => Some(self.graph(inputs)?),
            None => None,
        };
        let length = self.length(inputs, graph.as_ref())?;
        let extent = Extent { length, limit: self.limit.map_or(0, |limit| limit.of(length)) };
        let rows = self.rows(inputs, extent)?;
        if let Some(graph) = graph.as_ref().filter(|_| self.unfold.is_some()) {
            self.check_elements(&rows, graph)?;
        }
        self.check_ids(&rows, extent, graph.as_ref())?;
        Ok((extent, graph))
    }

    /// Returns the number of elements of a sequence or nodes of a graph. All tensors of the request
    /// must agree on it.
    fn length(&self, inputs: &[Tensor], graph: Option<&Graph>) -> Result<u32, RequestError> {
        if let Some(graph) = graph.filter(|_| self.unfold.is_some()) {
            return Ok(graph.len() as u32);
        }
        let mut agreed = graph.map(|graph| (CHILDREN, graph.len() as i64));
        for wanted in &self.request_tensors {
            let shape = shape(find(inputs, &wanted.name)?)?;
            if !wanted.each {
                continue;
            }
            let length = shape.get(1).copied().unwrap_or(0);
            self.check_length(&wanted.name, length)?;
            match agreed {
                Some((other, agreed)) if agreed != length => {
                    return Err(RequestError(format!(
                        "input '{}' has {length} elements, but '{other}' has {agreed}; send as many of each",
                        wanted.name
                    )));
                }
                _ => agreed = Some((&wanted.name, length)),
            }
        }
        Ok(agreed.map_or(1, |(_, length)| length as u32))
    }

    fn check_length(&self, name: &str, length: i64) -> Result<(), RequestError> {
        match length {
            ..=0 => {
                Err(RequestError(format!("input '{name}' has no elements; send at least one, as [1, length, ...]")))
            }
            _ if length > i64::from(self.max_length) => Err(RequestError(format!(
                "input '{name}' has {length} elements, but the model takes at most {}; send less, or raise max_length in \
                 its model.toml",
                self.max_length
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the request's tensors. A tensor with elements has one row per element.
    pub(crate) fn rows(&self, inputs: &[Tensor], extent: Extent) -> Result<Vec<Rows>, RequestError> {
        let row = |wanted: &RequestTensor| {
            let tensor = find(inputs, &wanted.name)?;
            let length = match (&self.unfold, shape(tensor)?.get(1)) {
                // If user code creates the graph, the number of nodes does not determine the length
                // of a tensor.
                (Some(_), Some(&own)) if wanted.each => {
                    self.check_length(&wanted.name, own)?;
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
        let (nodes, most) = (graph.len(), self.max_length);
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
            if given > self.arity {
                return Err(RequestError(format!(
                    "node {number} has {given} inputs, but the cells take at most {}",
                    self.arity
                )));
            }
        }
        self.check_edges(&graph)?;
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

    fn graph(&self, inputs: &[Tensor]) -> Result<Graph, RequestError> {
        let tensor = find(inputs, CHILDREN)?;
        let &[_, nodes, arity] = shape(tensor)? else {
            return Err(RequestError(format!(
                "input '{CHILDREN}' has the shape {:?}; it must be [1, nodes, arity]",
                tensor.shape
            )));
        };
        self.check_length(CHILDREN, nodes)?;
        let children = integers(tensor)?;
        let arity = usize::try_from(arity).unwrap_or(0);
        if children.len() != nodes as usize * arity {
            return Err(RequestError(format!(
                "input '{CHILDREN}' holds {} numbers, which is not {:?}",
                children.len(),
                tensor.shape
            )));
        }
        let of = |node: usize| &children[node * arity..(node + 1) * arity];
        self.check_children(&children, arity)?;
        let refuse = |cause: ripieno_model::GraphError| RequestError(format!("input '{CHILDREN}': {cause}"));
        let runs = |steps: Steps| (0..).zip(&self.cells).filter(move |(_, cell)| cell.steps == steps);
        let blocks: Vec<BlockId> = runs(Steps::Nodes).map(|(at, _)| BlockId(at)).collect();
        if self.walk == ripieno_model::Walk::Tree {
            return Graph::tree(nodes as usize, of, blocks[0], blocks[1]).map_err(refuse);
        }
        let cells = self.cells_of(inputs, nodes as usize, &blocks)?;
        let graph = Graph::new(nodes as usize, |node| cells[node], of).map_err(refuse)?;
        self.check_edges(&graph)?;
        Ok(graph)
    }

    fn check_children(&self, children: &[i64], arity: usize) -> Result<(), RequestError> {
        for (at, &child) in children.iter().enumerate() {
            let (node, place) = (at / arity, at % arity);
            if child < -1 {
                return Err(RequestError(format!(
                    "input '{CHILDREN}': node {node} names {child} as its input; use -1 for none"
                )));
            }
            if child >= 0 && place >= self.arity {
                return Err(RequestError(format!(
                    "input '{CHILDREN}': node {node} has a child number {}, but the cells take at most {}; use another model \
                     or fewer children",
                    place + 1,
                    self.arity
                )));
            }
        }
        Ok(())
    }

    /// Returns the cell that each node of a graph runs.
    fn cells_of(&self, inputs: &[Tensor], nodes: usize, blocks: &[BlockId]) -> Result<Vec<BlockId>, RequestError> {
        let tensor = find(inputs, CELL)?;
        let cells = integers(tensor)?;
        if shape(tensor)?.len() != 2 || cells.len() != nodes {
            return Err(RequestError(format!(
                "input '{CELL}' has the shape {:?}; it must be [1, {nodes}]",
                tensor.shape
            )));
        }
        let cell = |(node, &cell): (usize, &i64)| {
            let block = u16::try_from(cell).ok().map(BlockId).filter(|block| blocks.contains(block));
            block.ok_or_else(|| {
                let names: Vec<&str> = blocks.iter().map(|block| self.cells[block.index()].name.as_str()).collect();
                RequestError(format!(
                    "input '{CELL}': node {node} names cell {cell}, which the model does not have; it has 0 to {} ({})",
                    blocks.len() - 1,
                    names.join(", ")
                ))
            })
        };
        cells.iter().enumerate().map(cell).collect()
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

fn find<'a>(inputs: &'a [Tensor], name: &str) -> Result<&'a Tensor, RequestError> {
    let found = inputs.iter().find(|tensor| *tensor.name == *name);
    found.ok_or_else(|| RequestError(format!("input '{name}': the request lacks it")))
}

/// Returns the shape of a tensor of one request.
fn shape(tensor: &Tensor) -> Result<&[i64], RequestError> {
    match tensor.shape.first() {
        Some(1) => Ok(&tensor.shape),
        _ => Err(RequestError(format!(
            "input '{}' has the shape {:?}; its first dimension must be 1: a request is one sequence, tree or graph",
            tensor.name, tensor.shape
        ))),
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

fn integers(tensor: &Tensor) -> Result<Vec<i64>, RequestError> {
    let elements = tensor.shape.iter().try_fold(1_i64, |all, &dim| all.checked_mul(dim));
    let numbers = numbers(tensor.datatype, &tensor.data);
    let numbers = numbers.ok_or_else(|| {
        RequestError(format!("input '{}' is {}, but must be INT64 or INT32", tensor.name, tensor.datatype))
    })?;
    match elements == Some(numbers.len() as i64) {
        true => Ok(numbers),
        false => Err(RequestError(format!(
            "input '{}' holds {} numbers, which is not {:?}",
            tensor.name,
            numbers.len(),
            tensor.shape
        ))),
    }
}

fn numbers(datatype: DataType, data: &[u8]) -> Option<Vec<i64>> {
    match datatype {
        DataType::Int64 => Some(data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()),
        DataType::Int32 => Some(data.as_chunks().0.iter().map(|&bytes| i64::from(i32::from_le_bytes(bytes))).collect()),
        _ => None,
    }
}
