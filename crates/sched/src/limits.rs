//! What a scheduler is built for: its bounds, and the world at the start.

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
    /// Lanes of each device. They run side by side and share the device.
    pub lanes: usize,
    /// Tasks that a lane holds at once, the running one included.
    pub depth: usize,
    /// Rows in a batch, of any model.
    pub batch: usize,
    /// Room for the graphs of all live requests: nodes, of two inputs on average at most. The driver counts it by
    /// [`Limits::room`] and refuses a request whose graph does not fit.
    pub nodes: usize,
}

impl Limits {
    /// Live requests of a server, if nobody says otherwise.
    pub const SERVED_REQUESTS: usize = 10_000;
    /// Live requests of one model in a server, if its owner does not say otherwise.
    pub const SERVED_QUEUE: usize = 1_000;
    /// Nodes in a server whose policy runs graphs: some hundred for each request of a full queue would be more memory than all
    /// the models.
    pub const SERVED_NODES: usize = 1 << 18;
    /// Models of a server.
    pub const SERVED_MODELS: usize = 256;
    /// Rows in a batch of a server.
    pub const SERVED_BATCH: usize = 4096;
    /// The most tasks that a lane holds, whatever a policy asks for.
    pub const MOST_DEPTH: usize = 64;

    /// How much of [`Limits::nodes`] a graph takes.
    pub fn room(graph: &Graph) -> usize {
        graph.len().max(graph.edges().div_ceil(2))
    }

    /// The most tasks in flight.
    pub fn tasks(&self) -> usize {
        self.devices * self.lanes * self.depth
    }
}

/// The world at the start: models `0..models.len()` and devices `0..devices` are there.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Setup {
    /// The models; ids are their positions.
    pub models: Vec<Model>,
    /// How many devices are there from the start.
    pub devices: usize,
    /// The bounds.
    pub limits: Limits,
}
