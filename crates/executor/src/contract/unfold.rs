//! Custom walks, for programs that embed the library.
//!
//! In a server, `model.toml` declares the walk, and a request with its own graph contains a table
//! of nodes. A program that embeds the library can create the graph by code instead. For example,
//! it can parse a text, follow a protocol, or unroll a loop whose length only the program knows.
//! The graph is checked like a client's table before the request takes a slot. Then every policy
//! that supports graphs can run it.

use crate::{RequestError, Tensor};
use ripieno_model::Graph;
use std::fmt;

/// Creates the graph of cells that a request runs; set in
/// [`ModelSource::unfold`](crate::ModelSource::unfold).
///
/// In this example a request is a list of ids; a leaf looks up each of them, and neighbours are
/// joined in pairs until one is left:
///
/// ```
/// use ripieno_base::BlockId;
/// use ripieno_executor::{RequestError, Tensor, Unfold};
/// use ripieno_model::Graph;
///
/// /// The cells, by their place in the model.
/// const LEAF: BlockId = BlockId(0);
/// const INTERNAL: BlockId = BlockId(1);
///
/// #[derive(Debug)]
/// struct Pairs;
///
/// impl Unfold for Pairs {
///     fn unfold(&self, inputs: &[Tensor]) -> Result<Graph, RequestError> {
///         let ids = inputs.iter().find(|input| &*input.name == "token");
///         let length = ids.and_then(|ids| ids.shape.get(1).copied()).unwrap_or(0);
///         let leaves = length.max(0) as usize;
///         // The inputs of each node; the leaves come first and have none.
///         let mut table: Vec<Vec<i64>> = vec![Vec::new(); leaves];
///         let mut level: Vec<i64> = (0..leaves as i64).collect();
///         while level.len() > 1 {
///             let join = |pair: &[i64]| match *pair {
///                 [single] => single,
///                 _ => {
///                     table.push(pair.to_vec());
///                     table.len() as i64 - 1
///                 }
///             };
///             level = level.chunks(2).map(join).collect();
///         }
///         let cell = |node: usize| if node < leaves { LEAF } else { INTERNAL };
///         let graph = Graph::new(table.len(), cell, |node| &table[node]);
///         // Without `reading`, the request would need as many elements as there are nodes.
///         Ok(graph.map_err(|cause| RequestError(cause.to_string()))?.reading(|node| node as u32))
///     }
/// }
///
/// let ids = Tensor {
///     name: "token".into(),
///     datatype: ripieno_model::DataType::Int64,
///     shape: vec![1, 5],
///     data: [3_i64, 1, 4, 1, 5].map(i64::to_le_bytes).concat().into(),
/// };
/// let graph = Pairs.unfold(&[ids]).unwrap();
/// assert_eq!((graph.len(), graph.inputs(8).len()), (9, 2));
/// ```
pub trait Unfold: fmt::Debug + Send + Sync {
    /// Creates the graph of a request with these inputs: the cell of each node, the node's input
    /// nodes, and the element of the request's tensors that it takes ([`Graph::reading`]). The
    /// answer is the output of the table's last node.
    ///
    /// It is called at submission on the caller's thread, and at load for the request that tests
    /// the model.
    fn unfold(&self, inputs: &[Tensor]) -> Result<Graph, RequestError>;
}
