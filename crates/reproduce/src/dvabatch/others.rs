//! Section 8.2: DVABatch against LazyBatching. Section 8.8: the memory of the buffers.

use super::SOURCE;
use super::workload::{
    DvaCase, DvaNetwork, DvaSystem, LOADS, RESNET152, VGG19, axis, lines, mean, run, seeds, series, settings,
};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::plot::{Bar, Content, Figure, Look, Panel};

pub(super) const LAZY: ExperimentItem = ExperimentItem {
    id: "dvabatch/lazy",
    title: "Section 8.2: DVABatch against LazyBatching",
    says: "Cut into operators and with stretch alone, DVABatch is LazyBatching on VGG19 and ResNet152; these many stages cost much, so \
           that DVABatch in four is ahead. It gives no numbers.",
    run: lazy,
};

pub(super) const BUFFERS: ExperimentItem = ExperimentItem {
    id: "dvabatch/buffers",
    title: "Section 8.8: memory of the buffers",
    says: "Buffer pairs take 200 MB on average over the networks.",
    run: buffers,
};

/// Networks with their operators: weighted layers.
const OPERATORS: [(&DvaNetwork, usize); 2] = [(&VGG19, 19), (&RESNET152, 152)];
const STRETCH_ONLY: DvaSystem = DvaSystem::Dva("split = false\nexecutors = 16\n");

fn lazy(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let contenders = |operators: usize| {
        [
            ("DVABatch, 4 stages", DvaSystem::DVA, 4),
            ("DVABatch, stretch alone, operators", STRETCH_ONLY, operators),
            ("LazyBatching, operators", DvaSystem::Lazy, operators),
            ("LazyBatching, 4 stages", DvaSystem::Lazy, 4),
            ("ZeroBatch, free", DvaSystem::ZERO[0], 1),
        ]
    };
    let whole: Vec<_> =
        OPERATORS.iter().map(|(network, _)| DvaCase::new(context, network, DvaSystem::ZERO[0], 1.0)).collect();
    let peaks = context.each(&whole, DvaCase::peak)?;
    let mut cases = Vec::new();
    for ((&(_, operators), case), peak) in OPERATORS.iter().zip(&whole).zip(&peaks) {
        for (_, system, stages) in contenders(operators) {
            cases.extend(LOADS.iter().map(|(_, load)| DvaCase { system, stages, rate: load * peak, ..*case }));
        }
    }
    let outcomes = run(context, &cases)?;
    let mut chunks = outcomes.chunks(LOADS.len());
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (network, operators) in OPERATORS {
        let (mut curves, mut means) = (Vec::new(), Vec::new());
        for (place, (name, system, _)) in contenders(operators).into_iter().enumerate() {
            let of_load = chunks.next().unwrap_or(&[]);
            for ((level, _), outcomes) in LOADS.iter().zip(of_load) {
                let Spread { mean, low, high } = outcomes.mean_ms();
                let row = ResultRow::new(format!("{}, {level} load: {name}", network.name), "ms", mean);
                rows.push(row.seeds(low, high, seeds(context)).note(if operators > 4 { OPERATOR } else { "" }));
            }
            let points = LOADS.iter().zip(of_load).map(|((_, load), at)| (load * 100.0, at.mean_ms().mean));
            let mut curve = series(system, points.collect());
            (curve.name, curve.look) = (name.to_owned(), Look::solid(place));
            curves.push(curve);
            means.push(of_load.iter().map(|outcomes| outcomes.mean_ms().mean).collect::<Vec<_>>());
        }
        for (load, (level, _)) in LOADS.iter().enumerate() {
            let less = (1.0 - means[0][load] / means[2][load]) * 100.0;
            let name = format!("{}, {level} load: DVABatch less than LazyBatching, operators", network.name);
            rows.push(
                ResultRow::new(name, "%", less).note("The paper claims less than LazyBatching for all networks."),
            );
        }
        panels.push(lines(network.name, axis("load, % of the peak"), axis("mean latency, ms"), curves));
    }
    let (title, subtitle) = ("DVABatch and LazyBatching".to_owned(), settings(context));
    Ok(ItemReport { rows, figure: Figure { title, subtitle, panels, columns: 2, note: SOURCE.to_owned() } })
}

const OPERATOR: &str =
    "Each stage costs 50 us to launch, by declaration, so that operators cost 0.95 and 7.6 ms a batch.";

/// A network's tensors at the borders of its stages, as numbers of values for one request: the
/// input first, the output last.
type Borders = (&'static str, &'static [u64]);

/// From the published architectures, with images of 224 x 224 and sentences of 256 tokens; cut
/// where the work is about even.
const BORDERS: [Borders; 4] = [
    // After the second pooling, after the third, amid the fourth group of convolutions.
    ("VGG19", &[224 * 224 * 3, 56 * 56 * 128, 28 * 28 * 256, 28 * 28 * 512, 1000]),
    // After the second group of blocks, and twice within the third.
    ("ResNet152", &[224 * 224 * 3, 28 * 28 * 512, 14 * 14 * 1024, 14 * 14 * 1024, 1000]),
    ("BertBase", &[256, 256 * 768, 256 * 768]),
    ("BertLarge", &[256, 256 * 1024, 256 * 1024]),
];
const PAIRS: u64 = 2;
const ROWS: u64 = 64;

/// Returns the size of all buffers in megabytes, given the bytes per value.
fn megabytes(borders: &[u64], bytes: u64) -> f64 {
    (borders.iter().sum::<u64>() * PAIRS * ROWS * bytes) as f64 / 1e6
}

fn buffers(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (bytes, precision) in [(4, "32 bit"), (2, "16 bit")] {
        for (name, borders) in BORDERS {
            let value = megabytes(borders, bytes);
            rows.push(ResultRow::new(format!("{name}, {precision}"), "MB", value));
            let look = Look::solid(usize::from(bytes == 2));
            bars.push(Bar { name: format!("{name}, {precision}"), value, spread: None, paper: None, look });
        }
        let average = mean(BORDERS.map(|(_, borders)| megabytes(borders, bytes)));
        rows.push(
            ResultRow::new(format!("mean of four networks, {precision}"), "MB", average).paper(200.0).note(COUNTED),
        );
    }
    let panel = Panel { title: String::new(), x: axis("MB"), y: axis(""), content: Content::Bars(bars) };
    let figure = Figure {
        title: "Memory of two buffer pairs".to_owned(),
        subtitle: "Counted by the published architectures: batches of 64, four stages, two for Bert".to_owned(),
        panels: vec![panel],
        columns: 1,
        note: SOURCE.replace("ripieno simulate, on declared stage profiles", "counted from published architectures"),
    };
    Ok(ItemReport { rows, figure })
}

const COUNTED: &str = "Counted, not measured: every border has a buffer for the largest batch in each pair. The paper says neither where \
                       it cuts nor in which precision it runs, and averages over Unet and LinkNet too.";
