//! The networks of LazyBatching, as lists of layers with their sources.
//!
//! The lists are CSV files in `data/npu`, each with its source in its first lines.

use super::{Layer, span};
use ripieno_base::Nanos;
use ripieno_model::{Block, Profile, Steps, Walk};

/// A network as the NPU runs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NpuNetwork {
    /// Name of the network in scenario files.
    pub name: &'static str,
    /// The walk of its requests.
    pub walk: Walk,
    csv: &'static str,
    /// Cycles to fill and drain the array, per tile.
    fill: u64,
    /// Latency of one input by Table II of the paper, to which all layers are scaled.
    single: Option<Nanos>,
}

/// Words of input and output at which the latencies of Table II are taken: about the means.
const WORDS: u64 = 18;
/// The largest batch that the tables cover.
const MAX_BATCH: usize = 64;
const CONVOLUTIONS_FILL: u64 = 256;

/// Every network that the paper evaluates.
pub const NETWORKS: [NpuNetwork; 7] = [
    NpuNetwork {
        single: Some(Nanos(1_100_000)),
        ..convolutional("resnet50", include_str!("../../data/npu/resnet50.csv"))
    },
    NpuNetwork { single: Some(Nanos(7_200_000)), ..translation("gnmt", include_str!("../../data/npu/gnmt.csv")) },
    NpuNetwork {
        single: Some(Nanos(2_400_000)),
        ..translation("transformer", include_str!("../../data/npu/transformer.csv"))
    },
    convolutional("vgg16", include_str!("../../data/npu/vgg16.csv")),
    convolutional("mobilenet", include_str!("../../data/npu/mobilenet.csv")),
    translation("las", include_str!("../../data/npu/las.csv")),
    NpuNetwork { walk: Walk::Chain, ..translation("bert", include_str!("../../data/npu/bert.csv")) },
];

/// Returns the network of this name.
pub fn named(name: &str) -> Option<&'static NpuNetwork> {
    NETWORKS.iter().find(|network| network.name == name)
}

const fn convolutional(name: &'static str, csv: &'static str) -> NpuNetwork {
    NpuNetwork { name, walk: Walk::Chain, csv, fill: CONVOLUTIONS_FILL, single: None }
}

const fn translation(name: &'static str, csv: &'static str) -> NpuNetwork {
    NpuNetwork { name, walk: Walk::EncodeDecode, csv, fill: 0, single: None }
}

/// Layers that run as one block.
struct NpuBlock {
    name: &'static str,
    steps: Steps,
    layers: Vec<Layer>,
}

impl NpuNetwork {
    /// Returns its blocks, for batches of up to 64.
    pub fn blocks(&self) -> Vec<Block> {
        let parts = self.parts();
        let raw = self.raw(&parts);
        let target = self.single.unwrap_or(raw);
        let block = |(at, part): (usize, &NpuBlock)| {
            let table: Vec<_> = (1..=MAX_BATCH as u64)
                .map(|batch| {
                    Nanos((i128::from(part.span(batch, self.fill).0) * i128::from(target.0) / i128::from(raw.0)) as i64)
                })
                .collect();
            let profile = Profile::from_table(&table).expect("every layer takes time");
            Block { steps: part.steps, priority: at as u32, ..Block::new(part.name, profile) }
        };
        parts.iter().enumerate().map(block).collect()
    }

    /// Returns its blocks on the GPU that the paper also tries, for batches of up to 64; not
    /// scaled.
    pub fn blocks_on_titan_xp(&self) -> Vec<Block> {
        let block = |(at, part): (usize, &NpuBlock)| {
            let of_batch = |batch| part.layers.iter().map(|layer| layer.on_titan_xp(batch)).sum();
            let table: Vec<Nanos> = (1..=MAX_BATCH as u64).map(of_batch).collect();
            let profile = Profile::from_table(&table).expect("every layer takes time");
            Block { steps: part.steps, priority: at as u32, ..Block::new(part.name, profile) }
        };
        self.parts().iter().enumerate().map(block).collect()
    }

    /// Returns the latency of one input, of 18 words where it has words, before it is scaled to the
    /// paper's.
    pub fn single_unscaled(&self) -> Nanos {
        self.raw(&self.parts())
    }

    /// Returns the latency of one input that it is scaled to, if the paper states one.
    pub fn single_published(&self) -> Option<Nanos> {
        self.single
    }

    /// Returns the number of layers in its list.
    pub fn layers(&self) -> usize {
        self.parts().iter().map(|part| part.layers.len()).sum()
    }

    fn raw(&self, parts: &[NpuBlock]) -> Nanos {
        let steps = |part: &NpuBlock| if part.steps == Steps::Once { 1 } else { WORDS as i64 };
        parts.iter().map(|part| part.span(1, self.fill) * steps(part)).sum()
    }

    /// Returns one block per layer that runs once, and one for all layers that run once per word.
    fn parts(&self) -> Vec<NpuBlock> {
        let mut parts: Vec<NpuBlock> = Vec::new();
        for line in self.csv.lines().filter(|line| !line.starts_with('#')).skip(1) {
            let (name, steps, layer) = parse(line).expect("the lists are part of the source and tested");
            match parts.last_mut().filter(|part| part.steps == steps && steps != Steps::Once) {
                Some(part) => part.layers.push(layer),
                None => parts.push(NpuBlock { name: part_name(name, steps), steps, layers: vec![layer] }),
            }
        }
        parts
    }
}

impl NpuBlock {
    fn span(&self, batch: u64, fill: u64) -> Nanos {
        span(self.layers.iter().map(|layer| layer.cycles(batch, fill)).sum())
    }
}

fn part_name(first: &'static str, steps: Steps) -> &'static str {
    match steps {
        Steps::Length => "encoder",
        Steps::UntilEnd => "decoder",
        Steps::Once | Steps::Nodes => first,
    }
}

/// Parses `layer,side,kernel,channels,filters,stride,depthwise` or
/// `layer,steps,rows,depth,columns`.
fn parse(line: &'static str) -> Option<(&'static str, Steps, Layer)> {
    let fields: Vec<_> = line.split(',').collect();
    let number = |at: usize| fields[at].parse::<u64>().ok();
    if fields.len() == 7 {
        let (side, kernel, channels, filters) = (number(1)?, number(2)?, number(3)?, number(4)?);
        let (rows, inputs) = (side.div_ceil(number(5)?).pow(2), side * side * channels);
        let layer = match number(6)? {
            0 => Layer::dense(rows, kernel * kernel * channels, filters, inputs),
            _ => Layer::depthwise(rows, kernel * kernel, filters, inputs),
        };
        return Some((fields[0], Steps::Once, layer));
    }
    let steps = match *fields.get(1)? {
        "once" => Steps::Once,
        "length" => Steps::Length,
        "until-end" => Steps::UntilEnd,
        _ => return None,
    };
    let (rows, depth) = (number(2)?, number(3)?);
    Some((fields[0], steps, Layer::dense(rows, depth, number(4)?, rows * depth)))
}
