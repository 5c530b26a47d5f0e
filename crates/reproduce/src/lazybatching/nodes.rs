//! Nodes of a layer instead of a word: the effect of preemption within a word.
//!
//! Blocks that run once a word are one node of all its layers in our networks, since a step of a
//! walk is a word. The paper preempts between layers. Here a word has several steps, each with its
//! share of the word's time, so that a batch can be preempted and joined within a word. Steps of a
//! block may run together whatever layer they stand for, which a real device could not do; so the
//! difference is an upper bound.

use super::sensitivity::figure;
use super::workload::{
    DEC_TIMESTEPS, LazyCase, LazySystem, NetworkLoad, SLO_MS, SentenceLengths, SimOutcome, SimOutcomes, axis, lines,
    run_as, seeds, series,
};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_base::Nanos;
use ripieno_model::{Profile, Steps};

pub(super) const NODES: ExperimentItem = ExperimentItem {
    id: "lazybatching/nodes",
    title: "Nodes of a layer and of a word",
    says: "A batch is preempted and merged at layers. The paper does not say what a node is in a recurrent network.",
    run,
};

/// Networks whose words have layers: by name, and the layers of a word in the encoder and in the
/// decoder. The encoder of Transformer processes all words together, a layer a node; its decoder
/// has six layers and the choice of a word.
const NETWORKS: [(&str, &str, u32, u32); 2] = [("gnmt", "GNMT", 5, 6), ("transformer", "Transformer", 1, 7)];
const RATES: [f64; 5] = [64.0, 256.0, 500.0, 1000.0, 2000.0];
const SYSTEM: LazySystem = LazySystem::LazyB;

/// Returns a case whose words have these numbers of steps.
fn case(network: &'static str, rate: f64, layers: (u32, u32)) -> LazyCase {
    let lengths = SentenceLengths::Layers(layers.0, layers.1);
    let loads = vec![NetworkLoad { lengths, ..NetworkLoad::new(network, SLO_MS) }];
    LazyCase { loads, dec_timesteps: DEC_TIMESTEPS * layers.1, ..LazyCase::new(SYSTEM, network, rate) }
}

/// Runs a case with each word's time divided among its steps.
fn by_layer(case: &LazyCase) -> anyhow::Result<SimOutcome> {
    let mut scenario = case.scenario()?;
    let SentenceLengths::Layers(encoder, decoder) = case.loads[0].lengths else {
        unreachable!("the cases of this item")
    };
    for block in &mut scenario.setup.models[0].blocks {
        let layers = match block.steps {
            Steps::Length => encoder,
            Steps::UntilEnd => decoder,
            Steps::Once | Steps::Nodes => 1,
        };
        let part = |batch: usize| Nanos(block.profile.latency(batch).0 / i64::from(layers));
        let table: Vec<_> = (1..=block.profile.max_batch()).map(part).collect();
        block.profile = Profile::from_table(&table)?;
    }
    SimOutcome::of(&scenario)
}

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let rates = context.points(&RATES, 2);
    let mut cases = Vec::new();
    for (network, _, encoder, decoder) in NETWORKS {
        for layers in [(1, 1), (encoder, decoder)] {
            cases.extend(rates.iter().map(|&rate| case(network, rate, layers)));
        }
    }
    let outcomes = run_as(context, &cases, by_layer)?;
    let mut chunks = outcomes.chunks(rates.len());
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (_, name, ..) in NETWORKS {
        let mut of = || chunks.next().unwrap_or(&[]);
        let (words, layers) = (of(), of());
        for ((rate, word), layer) in rates.iter().zip(words).zip(layers) {
            rows.extend(rows_of(&format!("{name}, {rate}/s, {}", SYSTEM.name()), [word, layer], context));
        }
        let points = |of: &[SimOutcomes]| rates.iter().zip(of).map(|(&rate, at)| (rate, at.mean_ms().mean)).collect();
        let mut by_layer = series(SYSTEM, points(layers));
        by_layer.name += ", a layer a node";
        by_layer.look.dashed = true;
        let curves = vec![series(SYSTEM, points(words)), by_layer];
        panels.push(lines(name, axis("requests/s"), axis("mean latency, ms"), curves));
    }
    Ok(ItemReport { rows, figure: figure("Nodes of a layer and of a word", context, panels, 2) })
}

/// Returns the rows with a node a word, with a node a layer, and the reduction.
fn rows_of(name: &str, [word, layer]: [&SimOutcomes; 2], context: &ReproduceContext) -> [ResultRow; 3] {
    let row = |node: &str, Spread { mean, low, high }: Spread| {
        ResultRow::new(format!("{name}: a {node} a node"), "ms", mean).seeds(low, high, seeds(context))
    };
    let less = (1.0 - layer.mean_ms().mean / word.mean_ms().mean) * 100.0;
    let less = ResultRow::new(format!("{name}: less by nodes of a layer"), "%", less).note(MOST);
    [row("word", word.mean_ms()), row("layer", layer.mean_ms()), less]
}

const MOST: &str = "At most: steps may run together here whatever layer they stand for.";
