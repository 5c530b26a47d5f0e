//! The graphs of live requests, divided into subgraphs.
//!
//! Nodes and edges of all graphs share two tables of fixed size and are linked by index, so that
//! graphs of any size are added and removed without fragmentation: a graph within the limits always
//! fits.
//!
//! A subgraph is a connected part of one cell type that can wait for all of its outside inputs
//! together. Connected parts of one type are not sufficient: in A1 → B → A2 with an edge A1 → A2,
//! the part {A1, A2} would wait for B, which waits for A1. Each node therefore has a level, the
//! number of changes of cell type on the way to it, and a part holds nodes of one level only: its
//! outside inputs all have lower levels.

use super::subgraphs::{NONE, Subgraphs};
use crate::Limits;
use ripieno_base::{BlockId, RequestSlot};
use ripieno_model::Graph;

/// All nodes and edges.
#[derive(Debug)]
pub(super) struct Graphs {
    /// Nodes of all graphs.
    nodes: Vec<Node>,
    /// Free places among the nodes.
    free_nodes: Vec<u32>,
    /// Edges of all graphs.
    edges: Vec<Edge>,
    /// Free places among the edges.
    free_edges: Vec<u32>,
    /// Per slot, the first node of its graph and the number of nodes.
    of: Vec<(u32, u32)>,
    /// Scratch memory for dividing a graph.
    scratch: Scratch,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Number of the node in the request's graph.
    pub(super) number: u32,
    /// Subgraph of the node.
    pub(super) subgraph: u32,
    /// The first of the edges to the nodes that use this one as an input.
    pub(super) users: u32,
    /// Number of inputs within the node's subgraph.
    inner: u32,
    /// Number of these inputs that are not submitted yet.
    waits: u32,
    /// The next node of the same graph.
    next: u32,
    /// The next ready node of the same subgraph.
    pub(super) next_ready: u32,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    /// The node that uses the input.
    user: u32,
    /// The next edge from the same node.
    next: u32,
}

/// Scratch memory for dividing a graph; indexed by node number.
#[derive(Debug)]
struct Scratch {
    /// Place of the node among all nodes.
    place: Vec<u32>,
    /// Number of changes of cell type on the way to the node.
    level: Vec<u32>,
    /// Link towards the node that represents its part (union-find).
    root: Vec<u32>,
}

impl Graphs {
    pub(super) fn new(limits: &Limits) -> Graphs {
        let count = limits.nodes;
        let node = Node { number: 0, subgraph: NONE, users: NONE, inner: 0, waits: 0, next: NONE, next_ready: NONE };
        Graphs {
            nodes: vec![node; count],
            free_nodes: (0..count as u32).rev().collect(),
            edges: vec![Edge { user: NONE, next: NONE }; 2 * count],
            free_edges: (0..2 * count as u32).rev().collect(),
            of: vec![(NONE, 0); limits.requests],
            scratch: Scratch { place: vec![0; count], level: vec![0; count], root: vec![0; count] },
        }
    }

    /// Returns the first node of a request's graph; nodes follow their inputs.
    pub(super) fn first(&self, slot: RequestSlot) -> Option<u32> {
        Some(self.of[slot.index()].0).filter(|&first| first != NONE)
    }

    pub(super) fn next(&self, at: u32) -> Option<u32> {
        Some(self.nodes[at as usize].next).filter(|&next| next != NONE)
    }

    /// Returns the number of nodes in the graph of a request.
    pub(super) fn len(&self, slot: RequestSlot) -> u32 {
        self.of[slot.index()].1
    }

    pub(super) fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    /// Adds a graph and creates its subgraphs. The driver ensures that it fits.
    pub(super) fn insert(&mut self, slot: RequestSlot, graph: &Graph, subgraphs: &mut Subgraphs) {
        assert!(graph.len() <= self.free_nodes.len(), "the driver refuses graphs beyond Limits::nodes");
        self.scratch.divide(graph);
        let mut next = NONE;
        for number in (0..graph.len() as u32).rev() {
            let at = self.free_nodes.pop().expect("there is room");
            self.scratch.place[number as usize] = at;
            let node = Node { number, subgraph: NONE, users: NONE, inner: 0, waits: 0, next, next_ready: NONE };
            self.nodes[at as usize] = node;
            next = at;
        }
        self.of[slot.index()] = (next, graph.len() as u32);
        (0..graph.len() as u32).for_each(|number| self.place(slot, number, graph.block(number), subgraphs));
        // Each list of users grows at its front; the reverse loop leaves it in the order of the
        // nodes.
        (0..graph.len() as u32).rev().for_each(|number| self.link(number, graph.inputs(number), subgraphs));
        self.start_over(slot, subgraphs);
    }

    /// Puts a node into its subgraph; the first node of a subgraph opens it.
    fn place(&mut self, slot: RequestSlot, number: u32, block: BlockId, subgraphs: &mut Subgraphs) {
        let root = self.scratch.root(number);
        let [at, first] = [number, root].map(|number| self.scratch.place[number as usize] as usize);
        if root == number {
            self.nodes[at].subgraph = subgraphs.open_graph(slot, block);
        }
        let subgraph = self.nodes[first].subgraph;
        self.nodes[at].subgraph = subgraph;
        let subgraph = subgraphs.at_mut(subgraph);
        (subgraph.total, subgraph.steps) = (subgraph.total + 1, subgraph.steps + 1);
    }

    fn link(&mut self, number: u32, inputs: &[u32], subgraphs: &mut Subgraphs) {
        let user = self.scratch.place[number as usize];
        let subgraph = self.nodes[user as usize].subgraph;
        for &input in inputs.iter().filter(|&&input| input != Graph::NONE) {
            let from = self.scratch.place[input as usize] as usize;
            let edge = self.free_edges.pop().expect("the driver refuses graphs beyond Limits::nodes");
            self.edges[edge as usize] = Edge { user, next: std::mem::replace(&mut self.nodes[from].users, edge) };
            match self.nodes[from].subgraph == subgraph {
                true => self.nodes[user as usize].inner += 1,
                false => subgraphs.at_mut(subgraph).outer += 1,
            }
        }
    }

    /// Resets a graph to the state before any node ran.
    pub(super) fn start_over(&mut self, slot: RequestSlot, subgraphs: &mut Subgraphs) {
        let mut at = self.of[slot.index()].0;
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            node.waits = node.inner;
            let (subgraph, next, ready) = (node.subgraph, node.next, node.inner == 0);
            if ready {
                self.push_ready(at, subgraphs);
            }
            let subgraph = subgraphs.at_mut(subgraph);
            subgraph.waits = subgraph.outer;
            at = next;
        }
    }

    fn push_ready(&mut self, at: u32, subgraphs: &mut Subgraphs) {
        self.nodes[at as usize].next_ready = NONE;
        let subgraph = subgraphs.at_mut(self.nodes[at as usize].subgraph);
        subgraph.ready += 1;
        match std::mem::replace(&mut subgraph.last_ready, at) {
            NONE => subgraph.first_ready = at,
            last => self.nodes[last as usize].next_ready = at,
        }
    }

    /// Records a submitted node: its users within the subgraph may become ready, since a device
    /// keeps the order. Returns the number of nodes that became ready.
    pub(super) fn submitted(&mut self, at: u32, subgraphs: &mut Subgraphs) -> u32 {
        let Node { subgraph, mut users, .. } = self.nodes[at as usize];
        let mut ready = 0;
        while users != NONE {
            let Edge { user, next } = self.edges[users as usize];
            let node = &mut self.nodes[user as usize];
            if node.subgraph == subgraph {
                node.waits -= 1;
                if node.waits == 0 {
                    self.push_ready(user, subgraphs);
                    ready += 1;
                }
            }
            users = next;
        }
        ready
    }

    /// Returns the subgraph at the end of an edge and the next edge of the same node.
    pub(super) fn user(&self, edge: u32) -> Option<(u32, u32)> {
        (edge != NONE).then(|| {
            let Edge { user, next } = self.edges[edge as usize];
            (self.nodes[user as usize].subgraph, next)
        })
    }

    /// Frees the nodes and edges of a graph.
    pub(super) fn remove(&mut self, slot: RequestSlot) {
        let (mut at, _) = std::mem::replace(&mut self.of[slot.index()], (NONE, 0));
        while at != NONE {
            let Node { mut users, next, .. } = self.nodes[at as usize];
            while users != NONE {
                self.free_edges.push(users);
                users = self.edges[users as usize].next;
            }
            self.free_nodes.push(at);
            at = next;
        }
    }
}

impl Scratch {
    /// Finds the parts of a graph. Inputs come before their users, so one pass gives all levels.
    fn divide(&mut self, graph: &Graph) {
        for number in 0..graph.len() as u32 {
            let block = graph.block(number);
            let inputs = || graph.inputs(number).iter().copied().filter(|&input| input != Graph::NONE);
            let above = |input: u32| self.level[input as usize] + u32::from(graph.block(input) != block);
            let level = inputs().map(above).max().unwrap_or(0);
            self.level[number as usize] = level;
            self.root[number as usize] = number;
            for input in inputs() {
                if graph.block(input) == block && self.level[input as usize] == level {
                    self.join(input, number);
                }
            }
        }
    }

    /// Joins two parts; the earlier node represents both, so that it is placed before its part is
    /// looked up.
    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.root[a.max(b) as usize] = a.min(b);
    }

    fn root(&mut self, mut number: u32) -> u32 {
        while self.root[number as usize] != number {
            let above = self.root[number as usize];
            self.root[number as usize] = self.root[above as usize];
            number = above;
        }
        number
    }
}
