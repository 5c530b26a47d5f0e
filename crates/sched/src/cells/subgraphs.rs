//! Subgraphs: connected nodes of one request and one cell type, which wait for all of their outside
//! inputs together.
//!
//! The steps of a sequence are a subgraph, too, without nodes: three counters hold the submitted,
//! the completed and the total number of steps. All subgraphs of live requests share one table.

use crate::Limits;
use ripieno_base::{BlockId, DeviceId, Links, RequestSlot};

/// An absent index.
pub(super) const NONE: u32 = u32::MAX;

/// Largest number of sequences that one request holds: two that run in parallel, and one that has
/// ended while queued steps still run.
const LINES: usize = 3;

/// All subgraphs.
#[derive(Debug)]
pub(super) struct Subgraphs {
    /// Subgraphs of all live requests.
    table: Vec<Subgraph>,
    /// Free places in the table.
    free: Vec<u32>,
    /// Per slot, the first of its subgraphs.
    first: Vec<u32>,
    /// Links of the queues of the cell types.
    pub(super) links: Links,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Subgraph {
    /// Request of the subgraph.
    pub(super) slot: RequestSlot,
    /// Cell type of the subgraph.
    pub(super) block: BlockId,
    /// True if the subgraph's nodes are in the table of graphs.
    pub(super) is_graph: bool,
    /// True if the subgraph is in the queue of its cell type.
    pub(super) queued: bool,
    /// True if the subgraph's part of the walk is complete, although queued steps may still run.
    pub(super) over: bool,
    /// The device of the subgraph's tasks in flight.
    pub(super) pinned: Option<DeviceId>,
    /// Number of nodes in flight.
    pub(super) in_flight: u32,
    /// Rows that could be submitted now.
    pub(super) ready: u32,
    /// Steps or nodes submitted.
    pub(super) submitted: u32,
    /// Steps or nodes to submit, with padding.
    pub(super) total: u32,
    /// Steps or nodes done.
    pub(super) done: u32,
    /// Number of steps or nodes that completes the subgraph.
    pub(super) steps: u32,
    /// Number of edges from outside.
    pub(super) outer: u32,
    /// Number of these edges that are not completed.
    pub(super) waits: u32,
    /// The first ready node; [`NONE`] if no node is ready.
    pub(super) first_ready: u32,
    /// The last ready node.
    pub(super) last_ready: u32,
    /// True if the place in the table is free.
    pub(super) closed: bool,
    /// The next subgraph of the same request.
    next: u32,
}

impl Subgraphs {
    pub(super) fn new(limits: &Limits) -> Subgraphs {
        let count = limits.nodes + LINES * limits.requests;
        Subgraphs {
            table: vec![Subgraph::new(RequestSlot(0), BlockId(0), false); count],
            free: (0..count as u32).rev().collect(),
            first: vec![NONE; limits.requests],
            links: Links::new(count),
        }
    }

    /// Opens a sequence of `steps` steps, `total` with padding, of which the first is ready.
    pub(super) fn open_line(&mut self, slot: RequestSlot, block: BlockId, steps: u32, total: u32, rows: u32) -> u32 {
        self.open(Subgraph { steps, total, ready: rows, ..Subgraph::new(slot, block, false) })
    }

    /// Opens a part of a graph, to which nodes are added.
    pub(super) fn open_graph(&mut self, slot: RequestSlot, block: BlockId) -> u32 {
        self.open(Subgraph::new(slot, block, true))
    }

    fn open(&mut self, subgraph: Subgraph) -> u32 {
        let id = self.free.pop().expect("a request has few sequences at a time, and graphs are bounded by their nodes");
        let next = std::mem::replace(&mut self.first[subgraph.slot.index()], id);
        self.table[id as usize] = Subgraph { next, ..subgraph };
        id
    }

    pub(super) fn at(&self, id: u32) -> &Subgraph {
        &self.table[id as usize]
    }

    pub(super) fn at_mut(&mut self, id: u32) -> &mut Subgraph {
        &mut self.table[id as usize]
    }

    /// Returns the links of the queues, and access to the slot of each subgraph.
    pub(super) fn split(&mut self) -> (&mut Links, impl Fn(u32) -> RequestSlot) {
        let Subgraphs { table, links, .. } = self;
        (links, |id: u32| table[id as usize].slot)
    }

    /// Returns the first subgraph of a request; [`Subgraphs::next`] returns the following ones.
    pub(super) fn first(&self, slot: RequestSlot) -> Option<u32> {
        some(self.first[slot.index()])
    }

    pub(super) fn next(&self, id: u32) -> Option<u32> {
        some(self.table[id as usize].next)
    }

    /// Removes a sequence from its request.
    pub(super) fn close(&mut self, id: u32) {
        let Subgraph { slot, next, .. } = self.table[id as usize];
        let mut before = self.first[slot.index()];
        if before == id {
            self.first[slot.index()] = next;
        } else {
            while self.table[before as usize].next != id {
                before = self.table[before as usize].next;
            }
            self.table[before as usize].next = next;
        }
        self.table[id as usize].closed = true;
        self.free.push(id);
    }

    /// Removes all subgraphs of a request.
    pub(super) fn close_all(&mut self, slot: RequestSlot) {
        let mut id = std::mem::replace(&mut self.first[slot.index()], NONE);
        while id != NONE {
            self.free.push(id);
            id = self.table[id as usize].next;
        }
    }

    /// Resets the subgraphs of a request to the state before any node ran: sequences are removed,
    /// graphs stay without ready nodes.
    pub(super) fn start_over(&mut self, slot: RequestSlot) {
        let mut id = std::mem::replace(&mut self.first[slot.index()], NONE);
        while id != NONE {
            let Subgraph { next, block, is_graph, total, outer, .. } = self.table[id as usize];
            if is_graph {
                let kept = Subgraph { total, steps: total, outer, ..Subgraph::new(slot, block, true) };
                self.table[id as usize] = Subgraph { next: self.first[slot.index()], ..kept };
                self.first[slot.index()] = id;
            } else {
                self.free.push(id);
            }
            id = next;
        }
    }
}

impl Subgraph {
    fn new(slot: RequestSlot, block: BlockId, is_graph: bool) -> Subgraph {
        Subgraph {
            slot,
            block,
            is_graph,
            queued: false,
            over: false,
            pinned: None,
            in_flight: 0,
            ready: 0,
            submitted: 0,
            total: 0,
            done: 0,
            steps: 0,
            outer: 0,
            waits: 0,
            first_ready: NONE,
            last_ready: NONE,
            closed: false,
            next: NONE,
        }
    }
}

fn some(id: u32) -> Option<u32> {
    (id != NONE).then_some(id)
}
