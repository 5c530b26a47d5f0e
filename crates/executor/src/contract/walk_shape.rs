//! The extent and the graph of a request that runs cell by cell, from the shapes of its tensors and
//! its tables of nodes.
//!
//! They are apart from the cells' wiring, so that a process without the model's files can compute
//! them: a frontend of a cluster does, while ids and other values are checked where the model is.

use crate::{RequestError, StepLimit, Tensor};
use ripieno_base::BlockId;
use ripieno_model::{DataType, Extent, Graph, Steps, Walk};

/// Name of the request's tensor that holds the inputs of each node.
pub(crate) const CHILDREN: &str = "children";
/// Name of the request's tensor that holds the cell of each node of a graph.
pub(crate) const CELL: &str = "cell";

/// The part of a model that the extent and the graph of a request depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkShape {
    /// Walk of the model, which unfolds.
    pub walk: Walk,
    /// The longest sequence, or the largest number of nodes.
    pub max_length: u32,
    /// Limit of the block that runs until the request ends; `None` if there is no such block.
    pub limit: Option<StepLimit>,
    /// Names of the tensors of a request without its tables of nodes, and whether each has one
    /// element per step or node.
    pub tensors: Vec<(String, bool)>,
    /// Largest number of inputs of a node.
    pub arity: usize,
    /// Name of each cell, and how often a request runs it.
    pub cells: Vec<(String, Steps)>,
}

impl WalkShape {
    /// Returns the extent of a request, and its graph if it has one. Values of tensors are not
    /// checked, nor whether cells of a graph fit together.
    pub fn describe(&self, inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        let graph = if self.walk.brings_graph() { Some(self.graph(inputs)?) } else { None };
        let length = self.length(inputs, graph.as_ref())?;
        Ok((self.extent(length), graph))
    }

    /// Returns the extent of a request of this length.
    pub fn extent(&self, length: u32) -> Extent {
        Extent { length, limit: self.limit.map_or(0, |limit| limit.of(length)) }
    }

    /// Checks that the cells fit the walk; the error gives the reason.
    pub fn check(&self) -> Result<(), String> {
        let steps: Vec<Steps> = self.cells.iter().map(|&(_, steps)| steps).collect();
        check_steps(self.walk, &steps)
    }

    /// Returns the number of elements of a sequence or nodes of a graph. All tensors of the request
    /// must agree on it.
    fn length(&self, inputs: &[Tensor], graph: Option<&Graph>) -> Result<u32, RequestError> {
        let mut agreed = graph.map(|graph| (CHILDREN, graph.len() as i64));
        for (name, each) in &self.tensors {
            let shape = shape(find(inputs, name)?)?;
            if !each {
                continue;
            }
            let length = shape.get(1).copied().unwrap_or(0);
            self.check_length(name, length)?;
            match agreed {
                Some((other, agreed)) if agreed != length => {
                    return Err(RequestError(format!(
                        "input '{name}' has {length} elements, but '{other}' has {agreed}; send as many of each"
                    )));
                }
                _ => agreed = Some((name, length)),
            }
        }
        Ok(agreed.map_or(1, |(_, length)| length as u32))
    }

    pub(crate) fn check_length(&self, name: &str, length: i64) -> Result<(), RequestError> {
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
        let nodes_of = (0..).zip(&self.cells).filter(|(_, (_, steps))| *steps == Steps::Nodes);
        let blocks: Vec<BlockId> = nodes_of.map(|(at, _)| BlockId(at)).collect();
        if self.walk == Walk::Tree {
            return Graph::tree(nodes as usize, of, blocks[0], blocks[1]).map_err(refuse);
        }
        let cells = self.cells_of(inputs, nodes as usize, &blocks)?;
        Graph::new(nodes as usize, |node| cells[node], of).map_err(refuse)
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
                let names: Vec<&str> = blocks.iter().map(|block| self.cells[block.index()].0.as_str()).collect();
                RequestError(format!(
                    "input '{CELL}': node {node} names cell {cell}, which the model does not have; it has 0 to {} ({})",
                    blocks.len() - 1,
                    names.join(", ")
                ))
            })
        };
        cells.iter().enumerate().map(cell).collect()
    }
}

/// Checks that a walk has blocks of these kinds.
pub(crate) fn check_steps(walk: Walk, blocks: &[Steps]) -> Result<(), String> {
    let count = |steps: Steps| blocks.iter().filter(|&&block| block == steps).count();
    let (length, until_end, nodes) = (count(Steps::Length), count(Steps::UntilEnd), count(Steps::Nodes));
    let (fits, needs) = match walk {
        Walk::Repeat => (length == 1 && until_end == 0 && nodes == 0, "one block that repeats"),
        Walk::Stacked => (length >= 1 && until_end == 0 && nodes == 0, "a block for each layer"),
        Walk::Bidirectional => (length == 2 && until_end == 0 && nodes == 0, "a forward and a backward block"),
        Walk::EncodeDecode => (until_end == 1 && nodes == 0, "a decoder, and maybe encoders before it"),
        Walk::Tree => (nodes == 2 && length + until_end == 0, "a leaf and an internal block"),
        Walk::Graph => (nodes >= 1 && length + until_end == 0, "a block for each kind of node"),
        Walk::Whole | Walk::Chain => (false, "blocks that run once"),
    };
    match fits {
        true => Ok(()),
        false => Err(format!("walk = \"{}\" needs {needs}, and nothing else but heads with once = true", walk.name())),
    }
}

pub(crate) fn find<'a>(inputs: &'a [Tensor], name: &str) -> Result<&'a Tensor, RequestError> {
    let found = inputs.iter().find(|tensor| *tensor.name == *name);
    found.ok_or_else(|| RequestError(format!("input '{name}': the request lacks it")))
}

/// Returns the shape of a tensor of one request.
pub(crate) fn shape(tensor: &Tensor) -> Result<&[i64], RequestError> {
    match tensor.shape.first() {
        Some(1) => Ok(&tensor.shape),
        _ => Err(RequestError(format!(
            "input '{}' has the shape {:?}; its first dimension must be 1: a request is one sequence, tree or graph",
            tensor.name, tensor.shape
        ))),
    }
}

pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i64>, RequestError> {
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

pub(crate) fn numbers(datatype: DataType, data: &[u8]) -> Option<Vec<i64>> {
    match datatype {
        DataType::Int64 => Some(data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()),
        DataType::Int32 => Some(data.as_chunks().0.iter().map(|&bytes| i64::from(i32::from_le_bytes(bytes))).collect()),
        _ => None,
    }
}
