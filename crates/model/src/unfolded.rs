//! The graph of a request: a tree, or any other acyclic graph of cells.

use ripieno_base::BlockId;
use std::fmt;

/// The nodes of one request in topological order.
///
/// [`Graph::new`] and [`Graph::tree`] sort the nodes of a client's table. [`Graph::origin`] returns
/// the number of a node in this table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Graph {
    blocks: Vec<BlockId>,
    /// Start of the inputs of each node in `inputs`, and the end of the last node's inputs.
    starts: Vec<u32>,
    inputs: Vec<u32>,
    /// Number of each node in the client's table.
    origins: Vec<u32>,
    /// Element of the request's tensors that each node takes. If empty, each node takes the element
    /// with its number in the client's table.
    #[cfg_attr(feature = "serde", serde(default))]
    elements: Vec<u32>,
}

/// Reason why a client's table of nodes is not a graph. Nodes are numbered from 0 in the order of
/// the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphError {
    /// The table has no nodes.
    Empty,
    /// A node names an input that does not exist.
    Missing {
        /// Number of the node.
        node: usize,
        /// Number of the missing input.
        input: i64,
    },
    /// A node depends on itself, directly or through others.
    Cycle {
        /// Number of a node on the cycle.
        node: usize,
    },
    /// A tree has a second root, or a node has two parents.
    NotATree {
        /// Number of the node.
        node: usize,
        /// Number of the node's parents; 0 for a root.
        parents: usize,
    },
    /// A node names a cell that the model does not have.
    NoSuchCell {
        /// Number of the node.
        node: usize,
        /// Number of the cell.
        cell: i64,
    },
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            GraphError::Empty => write!(f, "there is no node; send at least one"),
            GraphError::Missing { node, input } => {
                write!(f, "node {node} names {input} as its input, which is no node; use -1 for none")
            }
            GraphError::Cycle { node } => write!(f, "node {node} depends on itself through its inputs"),
            GraphError::NotATree { node, parents: 0 } => {
                write!(f, "node {node} is a second root; a tree has exactly one node without a parent")
            }
            GraphError::NotATree { node, parents } => {
                write!(f, "node {node} has {parents} parents; in a tree each node has at most one")
            }
            GraphError::NoSuchCell { node, cell } => {
                write!(f, "node {node} names cell {cell}, which the model does not have")
            }
        }
    }
}

impl std::error::Error for GraphError {}

impl Graph {
    /// Stands for a missing input. For example, it is the first input of a node that has only a
    /// right child.
    pub const NONE: u32 = u32::MAX;

    /// Creates a graph from a table and sorts its nodes. `block` returns the block of a node.
    /// `inputs` returns the numbers of its input nodes in order, negative for a missing input.
    pub fn new<'a>(
        nodes: usize,
        block: impl Fn(usize) -> BlockId,
        inputs: impl Fn(usize) -> &'a [i64],
    ) -> Result<Graph, GraphError> {
        if nodes == 0 {
            return Err(GraphError::Empty);
        }
        let named = |node: usize| inputs(node).iter().copied().filter(|&input| input >= 0);
        let missing = |node: usize| named(node).find(|&input| input >= nodes as i64).map(|input| (node, input));
        if let Some((node, input)) = (0..nodes).find_map(missing) {
            return Err(GraphError::Missing { node, input });
        }
        let order = sorted(nodes, named)?;
        let mut position = vec![0; nodes];
        order.iter().zip(0..).for_each(|(&node, at)| position[node as usize] = at);
        let (blocks, starts, inputs_of, origins, elements) = (Vec::new(), vec![0], Vec::new(), Vec::new(), Vec::new());
        let mut graph = Graph { blocks, starts, inputs: inputs_of, origins, elements };
        for &node in &order {
            graph.blocks.push(block(node as usize));
            let at = |&input: &i64| usize::try_from(input).map_or(Graph::NONE, |input| position[input]);
            graph.inputs.extend(inputs(node as usize).iter().map(at));
            graph.starts.push(graph.inputs.len() as u32);
        }
        graph.origins = order;
        Ok(graph)
    }

    /// Creates a tree from the children of each node. Nodes without children run `leaf`, and the
    /// others run `internal`.
    pub fn tree<'a>(
        nodes: usize,
        children: impl Fn(usize) -> &'a [i64],
        leaf: BlockId,
        internal: BlockId,
    ) -> Result<Graph, GraphError> {
        let is_leaf = |node: usize| children(node).iter().all(|&child| child < 0);
        let graph = Graph::new(nodes, |node| if is_leaf(node) { leaf } else { internal }, &children)?;
        let mut parents = vec![0; nodes];
        (0..nodes).flat_map(&children).filter(|child| **child >= 0).for_each(|&child| parents[child as usize] += 1);
        let shared = (0..nodes).find(|&node| parents[node] > 1);
        let mut roots = (0..nodes).filter(|&node| parents[node] == 0);
        // Without a cycle there is at least one root, so a second root is an error.
        match shared.or_else(|| roots.nth(1)) {
            Some(node) => Err(GraphError::NotATree { node, parents: parents[node] }),
            None => Ok(graph),
        }
    }

    /// Creates a graph from nodes that are sorted already: the block of each node, and its inputs.
    /// `None` if there is no node, or one names an input that does not precede it. Nodes keep their
    /// numbers.
    pub fn from_sorted<'a>(nodes: impl Iterator<Item = (BlockId, &'a [u32])>) -> Option<Graph> {
        let (blocks, starts, inputs, origins, elements) = (Vec::new(), vec![0], Vec::new(), Vec::new(), Vec::new());
        let mut graph = Graph { blocks, starts, inputs, origins, elements };
        for (block, inputs) in nodes {
            let node = graph.blocks.len() as u32;
            if !inputs.iter().all(|&input| input == Graph::NONE || input < node) {
                return None;
            }
            graph.blocks.push(block);
            graph.inputs.extend_from_slice(inputs);
            graph.starts.push(graph.inputs.len() as u32);
            graph.origins.push(node);
        }
        (!graph.is_empty()).then_some(graph)
    }

    /// Sets the element of the request's tensors that each node takes. `element` gets the node's
    /// number in the table. By default, each node takes the element with its own number, and the
    /// tensors have as many elements as there are nodes.
    pub fn reading(mut self, element: impl Fn(usize) -> u32) -> Graph {
        self.elements = self.origins.iter().map(|&origin| element(origin as usize)).collect();
        self
    }

    /// Whether the graph satisfies the invariants of the constructors, for `blocks` blocks. A
    /// deserialised graph may not.
    pub fn is_sound(&self, blocks: usize) -> bool {
        let Graph { starts, inputs, origins, elements, .. } = self;
        let nodes = self.blocks.len();
        let framed = starts.len() == nodes + 1 && starts.is_sorted() && starts[0] == 0;
        let named = origins.len() == nodes && (elements.is_empty() || elements.len() == nodes);
        let sound = nodes > 0 && framed && named && starts[nodes] as usize == inputs.len();
        let before = |node: u32| self.inputs(node).iter().all(|&input| input == Graph::NONE || input < node);
        sound && self.blocks.iter().all(|block| block.index() < blocks) && (0..nodes as u32).all(before)
    }

    /// Returns the number of nodes; at least one.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns false: no constructor returns a graph without nodes.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the block that a node runs.
    pub fn block(&self, node: u32) -> BlockId {
        self.blocks[node as usize]
    }

    /// Returns the input nodes of a node, or [`Graph::NONE`] for a missing input. All of them
    /// precede the node.
    pub fn inputs(&self, node: u32) -> &[u32] {
        let [start, end] = [node, node + 1].map(|at| self.starts[at as usize] as usize);
        &self.inputs[start..end]
    }

    /// Returns the total number of inputs of all nodes, missing ones included.
    pub fn edges(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of a node in the client's table.
    pub fn origin(&self, node: u32) -> usize {
        self.origins[node as usize] as usize
    }

    /// Returns the element of the request's tensors that a node takes.
    pub fn element(&self, node: u32) -> usize {
        self.elements.get(node as usize).map_or_else(|| self.origin(node), |&element| element as usize)
    }
}

/// Sorts the nodes topologically by Kahn's algorithm. Nodes that are free at the same time are in
/// the order of the table.
fn sorted<I: Iterator<Item = i64>>(nodes: usize, named: impl Fn(usize) -> I) -> Result<Vec<u32>, GraphError> {
    let mut waits: Vec<u32> = (0..nodes).map(|node| named(node).count() as u32).collect();
    let mut starts = vec![0_usize; nodes + 1];
    (0..nodes).flat_map(&named).for_each(|input| starts[input as usize + 1] += 1);
    (0..nodes).for_each(|node| starts[node + 1] += starts[node]);
    let mut next = starts.clone();
    let mut users = vec![0_u32; starts[nodes]];
    for node in 0..nodes {
        for input in named(node) {
            users[next[input as usize]] = node as u32;
            next[input as usize] += 1;
        }
    }
    let mut order: Vec<u32> = (0..nodes as u32).filter(|&node| waits[node as usize] == 0).collect();
    let mut at = 0;
    while let Some(&node) = order.get(at) {
        at += 1;
        for &user in &users[starts[node as usize]..starts[node as usize + 1]] {
            waits[user as usize] -= 1;
            if waits[user as usize] == 0 {
                order.push(user);
            }
        }
    }
    match waits.iter().position(|&waits| waits > 0) {
        Some(node) => Err(GraphError::Cycle { node }),
        None => Ok(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: BlockId = BlockId(0);
    const INNER: BlockId = BlockId(1);

    fn tree(children: &[[i64; 2]]) -> Result<Graph, GraphError> {
        Graph::tree(children.len(), |node| &children[node], LEAF, INNER)
    }

    #[test]
    fn children_come_before_their_parents_in_any_numbering() {
        // The root comes first in the client's table.
        let graph = tree(&[[1, 2], [-1, -1], [3, 4], [-1, -1], [-1, -1]]).unwrap();
        assert_eq!((0..5).map(|node| graph.origin(node)).collect::<Vec<_>>(), [1, 3, 4, 2, 0]);
        assert_eq!((0..5).map(|node| graph.block(node)).collect::<Vec<_>>(), [LEAF, LEAF, LEAF, INNER, INNER]);
        assert_eq!(
            (graph.inputs(1), graph.inputs(3), graph.inputs(4)),
            (&[Graph::NONE; 2][..], &[1, 2][..], &[0, 3][..])
        );
    }

    #[test]
    fn a_single_child_may_stand_on_either_side() {
        let graph = tree(&[[-1, 1], [-1, -1]]).unwrap();
        assert_eq!(graph.inputs(1), [Graph::NONE, 0]);
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        assert_eq!(tree(&[]), Err(GraphError::Empty));
        assert_eq!(tree(&[[1, 7], [-1, -1]]), Err(GraphError::Missing { node: 0, input: 7 }));
        assert_eq!(tree(&[[1, -1], [0, -1]]), Err(GraphError::Cycle { node: 0 }));
        assert_eq!(tree(&[[0, -1]]), Err(GraphError::Cycle { node: 0 }));
        assert_eq!(tree(&[[-1, -1], [-1, -1]]), Err(GraphError::NotATree { node: 1, parents: 0 }));
        let shared = [[1, 2], [3, -1], [3, -1], [-1, -1]];
        assert_eq!(tree(&shared), Err(GraphError::NotATree { node: 3, parents: 2 }));
        // Nodes of a graph may share inputs.
        assert!(Graph::new(4, |_| LEAF, |node| &shared[node]).is_ok());
    }

    #[test]
    fn nodes_may_take_other_elements_than_their_own() {
        let table = [[1, 2], [-1, -1], [-1, -1]];
        let graph = tree(&table).unwrap();
        assert_eq!((0..3).map(|node| graph.element(node)).collect::<Vec<_>>(), [1, 2, 0]);
        let graph = graph.reading(|node| [0, 5, 7][node]);
        assert_eq!((0..3).map(|node| graph.element(node)).collect::<Vec<_>>(), [5, 7, 0]);
    }

    #[test]
    fn sorted_nodes_keep_their_numbers() {
        // Kahn's order of this table would put the second leaf before the inner node.
        let nodes: [(BlockId, &[u32]); 4] = [(LEAF, &[]), (INNER, &[0, Graph::NONE]), (LEAF, &[]), (INNER, &[1, 2])];
        let graph = Graph::from_sorted(nodes.into_iter()).unwrap();
        assert!(graph.is_sound(2));
        assert_eq!((0..4).map(|node| graph.block(node)).collect::<Vec<_>>(), [LEAF, INNER, LEAF, INNER]);
        assert_eq!((graph.inputs(1), graph.inputs(3), graph.origin(3)), (&[0, Graph::NONE][..], &[1, 2][..], 3));
        assert!(Graph::from_sorted(std::iter::empty()).is_none());
        assert!(Graph::from_sorted([(LEAF, &[0][..])].into_iter()).is_none(), "a node is its own input");
    }

    #[test]
    fn what_no_constructor_makes_is_not_sound() {
        let graph = tree(&[[1, 2], [-1, -1], [-1, -1]]).unwrap();
        assert!(graph.is_sound(2) && !graph.is_sound(1));
        let broken = |change: fn(&mut Graph)| {
            let mut graph = graph.clone();
            change(&mut graph);
            !graph.is_sound(2)
        };
        assert!(broken(|graph| graph.inputs[5] = 2), "a node is its own input");
        assert!(broken(|graph| graph.starts[1] = 9) && broken(|graph| graph.starts.truncate(1)));
        assert!(broken(|graph| graph.inputs.truncate(1)) && broken(|graph| graph.elements.push(0)));
        assert!(broken(|graph| graph.origins.clear()) && broken(|graph| graph.blocks.clear()));
    }

    #[test]
    fn a_deep_chain_needs_no_stack() {
        let chain: Vec<[i64; 1]> = (0..100_000).map(|node| [node - 1]).collect();
        let graph = Graph::new(chain.len(), |_| INNER, |node| &chain[node]).unwrap();
        assert_eq!((graph.len(), graph.edges()), (100_000, 100_000));
    }
}
