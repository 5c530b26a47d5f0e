//! Loaded models: their stages, and a queue for each cell type.

use crate::tables::models;
use ripieno_base::{BlockId, DeviceId, List};
use ripieno_model::{Block, Model, Steps};
use std::ops::Range;

/// Number of ended requests whose steps are remembered.
const ENDS_MEMORY: u64 = 256;

/// A loaded model.
pub type CellModel = models::ModelEntry<CellModelState>;

/// State of a model.
#[derive(Debug)]
pub struct CellModelState {
    /// Stages of a request, in order.
    pub(super) stages: Vec<Stage>,
    /// Index of the first stage that begins with a block or a later one, by block. The last entry
    /// is the number of stages.
    pub(super) stage_of: Vec<usize>,
    /// Cell types by block.
    pub cells: Vec<CellType>,
    /// Number of the model's tasks that a device holds, plus the requests that only it can
    /// continue, by device.
    held: Vec<u32>,
    /// Number of devices that hold any.
    devices: usize,
    /// True if the cost of a batch depends on its padded length.
    pub(super) pads: bool,
    /// Two counts over blocks that run until their end: their steps, and the requests that have
    /// ended one.
    ends: (u64, u64),
    /// Number of requests.
    pub live: usize,
    /// Number of requests that have not begun.
    pub waiting: usize,
}

/// Blocks that a request runs at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Parallel sequences; nearly always one.
    Lines(Range<u16>),
    /// The nodes of the request's graph.
    Graph(Range<u16>),
}

impl Stage {
    pub(super) fn blocks(&self) -> &Range<u16> {
        let (Stage::Lines(blocks) | Stage::Graph(blocks)) = self;
        blocks
    }
}

/// A cell type: its ready subgraphs and running tasks.
#[derive(Debug)]
pub struct CellType {
    /// Ready subgraphs, in order.
    pub(super) queue: List,
    /// Ready rows of subgraphs that any device may take.
    pub(super) free: u32,
    /// Ready rows of pinned subgraphs, by device.
    pub(super) pinned: Vec<u32>,
    /// Whether the device is present, by device: an absent one takes pinned subgraphs alone.
    present: Vec<bool>,
    /// Number of tasks in flight.
    pub running: u32,
    /// Smallest batch, in rows.
    pub min: usize,
    /// Largest batch, in rows.
    pub max: usize,
    /// Priority: the highest runs first.
    pub priority: u32,
    /// Number of the latest choice that took this type; [`Cells`](super::Cells) counts the choices.
    pub chosen: u64,
}

impl CellModelState {
    /// Creates the state of a model whose tasks hold at most `max_batch` rows.
    pub(super) fn new(model: &Model, max_batch: usize, devices: usize) -> CellModelState {
        let cell = |block: &Block| {
            let max = block.max_batch().min(max_batch);
            let supported = block.sizes.iter().copied().filter(|&size| size <= max);
            CellType {
                queue: List::default(),
                free: 0,
                pinned: vec![0; devices],
                present: vec![false; devices],
                running: 0,
                min: supported.clone().min().unwrap_or(1),
                max: supported.max().unwrap_or(max),
                priority: block.priority,
                chosen: 0,
            }
        };
        let cells = model.blocks.iter().map(cell).collect();
        let stages = stages(model);
        let stage_of = |block: u16| stages.partition_point(|stage| stage.blocks().start < block);
        CellModelState {
            stage_of: (0..=model.blocks.len() as u16).map(stage_of).collect(),
            stages,
            cells,
            held: vec![0; devices],
            devices: 0,
            pads: model.has_lengths(),
            ends: (0, 0),
            live: 0,
            waiting: 0,
        }
    }

    /// Notes whether a device is present.
    pub(super) fn set_present(&mut self, device: DeviceId, present: bool) {
        self.cells.iter_mut().for_each(|cell| cell.present[device.index()] = present);
    }

    /// Learns from a step of a block that runs until its end, whether it was the last one.
    pub(super) fn note_step(&mut self, last: bool) {
        self.ends = (self.ends.0 + 1, self.ends.1 + u64::from(last));
        if self.ends.1 >= ENDS_MEMORY {
            self.ends = (self.ends.0 / 2, self.ends.1 / 2);
        }
    }

    /// Returns the expected number of steps of a block that runs until its end: the mean of earlier
    /// requests, at first half the limit.
    pub(super) fn expected_steps(&self, limit: u32) -> u32 {
        let (steps, requests) = (self.ends.0 + u64::from(limit.div_ceil(2)), self.ends.1 + 1);
        (steps / requests).clamp(1, u64::from(limit.max(1))) as u32
    }
}

impl CellModel {
    /// Returns whether this device may hold tasks of the model.
    pub fn may_run_on(&self, device: DeviceId) -> bool {
        self.held[device.index()] > 0 || self.devices < self.model.instances.max(1)
    }

    /// Returns whether a request that has begun stays on its device although it runs cell by cell.
    pub(super) fn is_pinned(&self) -> bool {
        self.model.pinned && self.model.walk.is_unfolded()
    }

    /// Counts one more task or pinned request on a device.
    pub(super) fn hold(&mut self, device: DeviceId) {
        self.devices += usize::from(self.held[device.index()] == 0);
        self.held[device.index()] += 1;
    }

    /// Counts one task or pinned request less on a device.
    pub(super) fn release(&mut self, device: DeviceId) {
        self.held[device.index()] -= 1;
        self.devices -= usize::from(self.held[device.index()] == 0);
    }

    /// Returns the kind of steps of a block.
    pub fn steps(&self, block: BlockId) -> Steps {
        self.model.blocks[block.index()].steps
    }
}

impl CellType {
    /// Returns the rows that this device could take now.
    pub fn ready(&self, device: DeviceId) -> usize {
        let free = if self.present[device.index()] { self.free } else { 0 };
        (free + self.pinned[device.index()]) as usize
    }

    /// Returns whether this device may take a subgraph that is pinned like this.
    pub(super) fn may_take(&self, pinned: Option<DeviceId>, device: DeviceId) -> bool {
        pinned.map_or(self.present[device.index()], |only| only == device)
    }

    /// Returns the rows of the cell type's next batch on this device; one if nothing is ready.
    pub fn next_rows(&self, device: DeviceId) -> usize {
        self.ready(device).clamp(1, self.max)
    }

    pub(super) fn count(&mut self, pinned: Option<DeviceId>) -> &mut u32 {
        match pinned {
            None => &mut self.free,
            Some(device) => &mut self.pinned[device.index()],
        }
    }
}

/// The largest number of parallel sequences.
pub(super) const BESIDE: usize = 2;

fn stages(model: &Model) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for (block, at) in model.blocks.iter().zip(0..) {
        match (stages.last_mut(), block.steps) {
            (Some(Stage::Graph(range)), Steps::Nodes) => range.end = at + 1,
            (_, Steps::Nodes) => stages.push(Stage::Graph(at..at + 1)),
            (Some(Stage::Lines(range)), _) if block.beside => range.end = at + 1,
            _ => stages.push(Stage::Lines(at..at + 1)),
        }
    }
    stages
}

/// Returns the reason for which the common parts do not support this model, if there is one.
pub(super) fn fault(model: &Model) -> Option<String> {
    let wide = |stage: &Stage| matches!(stage, Stage::Lines(range) if range.len() > BESIDE);
    if stages(model).iter().any(wide) {
        return Some(format!("model {:?} has more than {BESIDE} blocks beside each other", model.name));
    }
    let open = model.blocks.iter().filter(|block| block.steps == Steps::UntilEnd).count();
    (open > 1).then(|| format!("model {:?} has {open} blocks that run until their end; one is the most", model.name))
}
