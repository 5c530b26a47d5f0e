//! Bounds that a scheduler is built for, and the initial models and devices.

use ripieno_model::{Graph, Model};

/// The bounds that a scheduler is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Limits {
    /// Live requests; also the bound of every queue.
    pub requests: usize,
    /// Models.
    pub models: usize,
    /// Devices.
    pub devices: usize,
    /// Lanes of each device. They run concurrently and share the device.
    pub lanes: usize,
    /// Tasks that a lane holds, including the running one.
    pub depth: usize,
    /// Rows in a batch, of any model.
    pub batch: usize,
    /// Capacity for the graphs of all live requests, in nodes of at most two inputs on average. The
    /// driver counts it by [`Limits::room`] and refuses a request whose graph does not fit.
    pub nodes: usize,
}

impl Limits {
    /// One of each, and no graphs: a scheduler for one request. Bounds of a small scheduler are
    /// written as differences from it.
    pub const ONE: Limits = Limits { requests: 1, models: 1, devices: 1, lanes: 1, depth: 1, batch: 1, nodes: 0 };
    /// Default number of live requests of a server.
    pub const SERVED_REQUESTS: usize = 10_000;
    /// Default number of live requests of one model in a server with few devices.
    pub const SERVED_QUEUE: usize = 1_000;
    /// Full batches of each device in the default number of live requests of one model. With four,
    /// an encoder-decoder on eight devices lost 3 % of its requests to this bound.
    const SERVED_QUEUE_BATCHES: usize = 16;
    /// Default number of graph nodes of a server. About a hundred for each request of a full queue
    /// would need more memory than all models.
    pub const SERVED_NODES: usize = 1 << 18;
    /// Models of a server.
    pub const SERVED_MODELS: usize = 256;
    /// Largest batch of a server, in rows.
    pub const SERVED_BATCH: usize = 4096;
    /// Upper bound on the tasks of a lane, whatever a policy requests.
    pub const MOST_DEPTH: usize = 64;

    /// Returns the part of [`Limits::nodes`] that a graph uses.
    pub fn room(graph: &Graph) -> usize {
        graph.len().max(graph.edges().div_ceil(2))
    }

    /// Returns the default number of live requests of one model in a server: 16 full batches for
    /// each device, at least a thousand requests.
    pub fn served_queue(max_batch: usize, devices: usize) -> usize {
        (Limits::SERVED_QUEUE_BATCHES * devices).saturating_mul(max_batch).max(Limits::SERVED_QUEUE)
    }

    /// Returns the largest number of tasks in flight.
    pub fn tasks(&self) -> usize {
        self.devices * self.lanes * self.depth
    }
}

/// The initial state: models `0..models.len()` and devices `0..devices` are available.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Setup {
    /// The models; ids are their positions.
    pub models: Vec<Model>,
    /// Number of initial devices.
    pub devices: usize,
    /// The bounds.
    pub limits: Limits,
}
