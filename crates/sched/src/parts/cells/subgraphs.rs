//! Subgraphs: connected nodes of one request and one cell type, with nothing left to wait for outside of them.
//!
//! The steps of a sequence are one too, and need no nodes of their own: three counters say what was submitted, what is
//! done and how many there are. All subgraphs of live requests share one table.

use crate::Limits;
use ripieno_base::{BlockId, DeviceId, Links, RequestSlot};

/// Stands where there is no index.
pub(super) const NONE: u32 = u32::MAX;

/// The most subgraphs of sequences that one request holds at once: two that run beside each other, and one that has ended
/// while steps queued ahead still run.
const LINES: usize = 3;

/// All subgraphs.
#[derive(Debug)]
pub(super) struct Subgraphs {
    table: Vec<Subgraph>,
    free: Vec<u32>,
    /// By slot, the first of its subgraphs.
    first: Vec<u32>,
    /// For the queues of the cell types.
    pub(super) links: Links,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Subgraph {
    pub(super) slot: RequestSlot,
    pub(super) block: BlockId,
    /// Whether its nodes are in the arena of graphs.
    pub(super) is_graph: bool,
    /// Whether it stands in the queue of its cell type.
    pub(super) queued: bool,
    /// Whether its part of the walk is over, although steps queued ahead may still run.
    pub(super) over: bool,
    /// The device that its tasks in flight are on.
    pub(super) pinned: Option<DeviceId>,
    /// Nodes in flight.
    pub(super) in_flight: u32,
    /// Rows that could be submitted now.
    pub(super) ready: u32,
    /// Steps or nodes submitted, and how many there are with padding.
    pub(super) submitted: u32,
    pub(super) total: u32,
    /// Steps or nodes done, and how many complete it.
    pub(super) done: u32,
    pub(super) steps: u32,
    /// Edges from outside, and how many of them have not been completed.
    pub(super) outer: u32,
    pub(super) waits: u32,
    pub(super) first_ready: u32,
    pub(super) last_ready: u32,
    /// Whether its place in the table is free.
    pub(super) closed: bool,
    /// The next one of the same request.
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

    /// A sequence of `steps` steps, and of `total` with padding, of which the first is ready.
    pub(super) fn open_line(&mut self, slot: RequestSlot, block: BlockId, steps: u32, total: u32, rows: u32) -> u32 {
        self.open(Subgraph { steps, total, ready: rows, ..Subgraph::new(slot, block, false) })
    }

    /// A part of a graph, to which nodes will be added.
    pub(super) fn open_graph(&mut self, slot: RequestSlot, block: BlockId) -> u32 {
        self.open(Subgraph::new(slot, block, true))
    }

    fn open(&mut self, subgraph: Subgraph) -> u32 {
        let id = self.free.pop().expect("a request has few sequences at once, and graphs are bounded by their nodes");
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

    /// The links of the queues, and whose each subgraph is.
    pub(super) fn split(&mut self) -> (&mut Links, impl Fn(u32) -> RequestSlot) {
        let Subgraphs { table, links, .. } = self;
        (links, |id: u32| table[id as usize].slot)
    }

    /// The first subgraph of a request, then the one after each.
    pub(super) fn first(&self, slot: RequestSlot) -> Option<u32> {
        some(self.first[slot.index()])
    }

    pub(super) fn next(&self, id: u32) -> Option<u32> {
        some(self.table[id as usize].next)
    }

    /// Takes a sequence out of its request.
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

    /// Takes all subgraphs of a request away.
    pub(super) fn close_all(&mut self, slot: RequestSlot) {
        let mut id = std::mem::replace(&mut self.first[slot.index()], NONE);
        while id != NONE {
            self.free.push(id);
            id = self.table[id as usize].next;
        }
    }

    /// Sets the subgraphs of a request to where nothing has run: sequences go, graphs stay without ready nodes.
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
