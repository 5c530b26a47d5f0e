//! Figures 18 to 21: split alone, buffer pairs, stages, and the total overhead.

use super::SOURCE;
use super::workload::{
    BERT_BASE, DvaCase, DvaNetwork, DvaSystem, LINKNET, LOADS, NETWORKS, RESNET152, SimOutcome, UNET, axis, lines,
    mean, run, seeds, series, settings, tuned,
};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::Extent;
use ripieno_report::plot::{Figure, Look, Series};
use ripieno_sim::Arrival;
use ripieno_workload::{LengthDistribution, stream};

pub(super) const FIGURE_18: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure18",
    title: "Figure 18: split alone",
    says: "With split only, the average latency at high load is 15.0 % below DelayBatch's; at low and medium load there is rarely \
           anything to split.",
    run: figure_18,
};

pub(super) const FIGURE_19: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure19",
    title: "Figure 19: buffer pairs",
    says: "At peak load the average latency is lowest with two buffer pairs for all networks; more cost more to manage.",
    run: figure_19,
};

pub(super) const FIGURE_20: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure20",
    title: "Figure 20: numbers of stages",
    says: "Two stages are best for BertBase, four for LinkNet and ResNet152; 20 cost much.",
    run: figure_20,
};

pub(super) const FIGURE_21: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure21",
    title: "Figure 21: latency of one request at a time",
    says: "On average over the networks, DVABatch adds 0.29 ms to ZeroBatch in a closed loop.",
    run: figure_21,
};

/// DVABatch-split of the paper.
const SPLIT_ONLY: DvaSystem = DvaSystem::Dva("stretch = false\n");

fn figure_18(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    const SYSTEMS: usize = 4;
    let networks: [&'static DvaNetwork; 2] = [&LINKNET, &UNET];
    let plain = networks.map(|network| DvaCase::new(context, network, DvaSystem::DVA, 1.0));
    let tuned = tuned(context, &plain)?;
    let systems = |at: usize| -> [DvaSystem; SYSTEMS] {
        let [free, start] = tuned[at].map(|tuned| tuned.system);
        [free, start, SPLIT_ONLY, DvaSystem::DVA]
    };
    let mut cases = Vec::new();
    for (at, case) in plain.iter().enumerate() {
        for system in systems(at) {
            cases.extend(LOADS.iter().map(|(_, load)| DvaCase { system, rate: load * tuned[at][0].peak, ..*case }));
        }
    }
    let outcomes = run(context, &cases)?;
    let value =
        |network: usize, system: usize, load: usize| outcomes[(network * SYSTEMS + system) * 3 + load].mean_ms();
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (at, network) in networks.iter().enumerate() {
        let mut curves = Vec::new();
        for (system, who) in systems(at).into_iter().enumerate() {
            for (load, (level, _)) in LOADS.iter().enumerate() {
                let Spread { mean, low, high } = value(at, system, load);
                let name = format!("{}, {level} load: {}", network.name, who.name());
                rows.push(ResultRow::new(name, "ms", mean).seeds(low, high, seeds(context)));
            }
            let points =
                LOADS.iter().enumerate().map(|(load, &(_, part))| (part * 100.0, value(at, system, load).mean));
            curves.push(series(who, points.collect()));
        }
        panels.push(lines(network.name, axis("load, % of the peak"), axis("mean latency, ms"), curves));
    }
    for (rule, system) in [("free", 0), ("start", 1)] {
        for (load, (level, _)) in LOADS.iter().enumerate() {
            let less = |at: usize| 1.0 - value(at, 2, load).mean / value(at, system, load).mean;
            let name = format!("split alone: less than DelayBatch, {rule}, {level} load, mean of both");
            let row = ResultRow::new(name, "%", mean((0..2).map(less)) * 100.0);
            rows.push(row.paper((*level == "high").then_some(15.0)));
        }
    }
    Ok(ItemReport { rows, figure: figure("Split alone", context, panels, 2) })
}

fn figure(title: &str, context: &ReproduceContext, panels: Vec<ripieno_report::plot::Panel>, columns: usize) -> Figure {
    Figure { title: title.to_owned(), subtitle: settings(context), panels, columns, note: SOURCE.to_owned() }
}

fn figure_19(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    const BUFFERS: usize = 4;
    const SYSTEMS: [[DvaSystem; BUFFERS]; 2] = [
        [
            DvaSystem::Dva("buffers = 1\n"),
            DvaSystem::Dva("buffers = 2\n"),
            DvaSystem::Dva("buffers = 3\n"),
            DvaSystem::Dva("buffers = 4\n"),
        ],
        [
            DvaSystem::Dva("window_ms = 0\nstretch = false\nbuffers = 1\n"),
            DvaSystem::Dva("window_ms = 0\nstretch = false\nbuffers = 2\n"),
            DvaSystem::Dva("window_ms = 0\nstretch = false\nbuffers = 3\n"),
            DvaSystem::Dva("window_ms = 0\nstretch = false\nbuffers = 4\n"),
        ],
    ];
    let plain: Vec<_> = NETWORKS.iter().map(|network| DvaCase::new(context, network, DvaSystem::BARE, 1.0)).collect();
    // Both readings at the same load, so that their latencies can be compared. Without a window
    // every network has a peak.
    let peaks = context.each(&plain, DvaCase::peak)?;
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for ((reading, _), systems) in DvaSystem::READINGS.into_iter().zip(SYSTEMS) {
        let with =
            |(case, &peak): (&DvaCase, &f64)| systems.map(|system| DvaCase { system, rate: 0.95 * peak, ..*case });
        let outcomes = run(context, &plain.iter().zip(&peaks).flat_map(with).collect::<Vec<_>>())?;
        let mut curves = Vec::new();
        for (at, network) in NETWORKS.iter().enumerate() {
            let latency = |place: usize| outcomes[at * BUFFERS + place].mean_ms();
            for place in 0..BUFFERS {
                let Spread { mean, low, high } = latency(place);
                let row = ResultRow::new(format!("{}: {reading}{} buffer pairs", network.name, place + 1), "ms", mean);
                rows.push(row.seeds(low, high, seeds(context)));
            }
            let least = (0..BUFFERS).min_by(|&a, &b| latency(a).mean.total_cmp(&latency(b).mean)).unwrap_or(0) + 1;
            let row = ResultRow::new(
                format!("{}: {reading}best number of buffer pairs", network.name),
                "pairs",
                least as f64,
            );
            rows.push(row.paper(2.0).note(BUFFERS_COST));
            let points = (0..BUFFERS).map(|place| (place as f64 + 1.0, latency(place).mean)).collect();
            curves.push(Series { name: network.name.to_owned(), points, look: Look::solid(at), markers: true });
        }
        let title = if reading.is_empty() { "As published" } else { "No window, no stretch" };
        panels.push(lines(title, axis("buffer pairs"), axis("mean latency, ms"), curves));
    }
    Ok(ItemReport { rows, figure: figure("Buffer pairs at 95 % of the peak without a window", context, panels, 2) })
}

const BUFFERS_COST: &str = "The fewest of those that are best. Here managing a buffer costs nothing: what the paper measures of more than two is not \
     modelled. A third pair changes next to nothing: two let all stages work.";

fn figure_20(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    const STAGES: [usize; 5] = [1, 2, 4, 8, 20];
    let networks: [(&'static DvaNetwork, f64); 3] = [(&BERT_BASE, 2.0), (&LINKNET, 4.0), (&RESNET152, 4.0)];
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    // An executor for each stage, as far as a device has lanes.
    let systems = ["executors = 16\n", "executors = 16\nwindow_ms = 0\nstretch = false\n"].map(DvaSystem::Dva);
    for ((reading, _), system) in DvaSystem::READINGS.into_iter().zip(systems) {
        let plain = networks.map(|(network, _)| DvaCase::new(context, network, system, 1.0));
        let sliced: Vec<_> = plain.iter().flat_map(|case| STAGES.map(|stages| DvaCase { stages, ..*case })).collect();
        let peaks = context.each(&sliced, DvaCase::peak)?;
        let most = |at: usize| peaks[at..at + STAGES.len()].iter().copied().fold(0.0, f64::max);
        let rate = |at: usize| 0.9 * most(at / STAGES.len() * STAGES.len());
        let loaded: Vec<_> = sliced.iter().enumerate().map(|(at, case)| DvaCase { rate: rate(at), ..*case }).collect();
        let outcomes = run(context, &loaded)?;
        let (mut latency, mut carried) = (Vec::new(), Vec::new());
        for (at, (network, paper)) in networks.iter().enumerate() {
            let ms = |place: usize| outcomes[at * STAGES.len() + place].mean_ms();
            for (place, stages) in STAGES.iter().enumerate() {
                let Spread { mean, low, high } = ms(place);
                let name = format!("{}, {reading}{stages} stages", network.name);
                rows.push(ResultRow::new(format!("{name}: mean latency"), "ms", mean).seeds(low, high, seeds(context)));
                rows.push(ResultRow::new(format!("{name}: peak"), "queries/s", peaks[at * STAGES.len() + place]));
            }
            let best = (0..STAGES.len()).min_by(|&a, &b| ms(a).mean.total_cmp(&ms(b).mean)).unwrap_or(0);
            let name = format!("{}: {reading}stages with the lowest latency", network.name);
            rows.push(ResultRow::new(name, "stages", STAGES[best] as f64).paper(*paper).note(LAUNCH));
            let curve = |points| Series { name: network.name.to_owned(), points, look: Look::solid(at), markers: true };
            let x = |place: usize| STAGES[place] as f64;
            latency.push(curve((0..STAGES.len()).map(|place| (x(place), ms(place).mean)).collect()));
            let peak = |place: usize| (x(place), peaks[at * STAGES.len() + place]);
            carried.push(curve((0..STAGES.len()).map(peak).collect()));
        }
        let title =
            |what: &str| if reading.is_empty() { what.to_owned() } else { format!("No window, no stretch: {what}") };
        let latency_title = title("latency at 90 % of the best peak");
        panels.push(lines(&latency_title, axis("stages"), axis("mean latency, ms"), latency));
        panels.push(lines(&title("peak"), axis("stages"), axis("queries/s"), carried));
    }
    Ok(ItemReport { rows, figure: figure("Numbers of stages", context, panels, 2) })
}

const LAUNCH: &str = "Each stage costs 50 us to launch, by declaration. Batches that run side by side share the device by what their stage uses \
                      on average: a stage of unlike operators looks better than it is.";

/// Runs one request at a time, a second apart.
fn closed_loop(case: &DvaCase) -> anyhow::Result<f64> {
    let mut scenario = case.scenario()?;
    let lengths = if case.network.has_lengths() { case.sentences.lengths()? } else { LengthDistribution::Fixed(1) };
    let mut random = stream(21, 0);
    let request = |second: i64| {
        let at = Time::ORIGIN + Nanos::from_millis(1000 * second);
        let extent = Extent { length: lengths.draw(&mut random), limit: 0 };
        Arrival { extent, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis(200)) }
    };
    scenario.requests = Some((0..200).map(request).collect());
    Ok(mean(SimOutcome::answers(&scenario)?.iter().map(|(arrival, finish)| finish - arrival)))
}

fn figure_21(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let case = |network: &&'static DvaNetwork| DvaCase::new(context, network, DvaSystem::ZERO[0], 1.0);
    let zero: Vec<_> = NETWORKS.iter().map(case).collect();
    // As in the paper, without a window.
    let system = DvaSystem::Dva("window_ms = 0\n");
    let dva: Vec<_> = zero.iter().map(|case| DvaCase { system, ..*case }).collect();
    let (zero, dva) = (context.each(&zero, closed_loop)?, context.each(&dva, closed_loop)?);
    let mut rows = Vec::new();
    for ((network, zero), dva) in NETWORKS.iter().zip(&zero).zip(&dva) {
        rows.push(ResultRow::new(format!("{}: ZeroBatch", network.name), "ms", *zero));
        rows.push(ResultRow::new(format!("{}: DVABatch", network.name), "ms", *dva));
    }
    let more = mean(dva.iter().zip(&zero).map(|(dva, zero)| dva - zero));
    rows.push(ResultRow::new("DVABatch over ZeroBatch, mean of networks", "ms", more).paper(0.29).note(DECLARED));
    let curve = |system: DvaSystem, values: &[f64]| {
        series(system, values.iter().enumerate().map(|(at, &ms)| (at as f64 + 1.0, ms)).collect())
    };
    let curves = vec![curve(DvaSystem::ZERO[0], &zero), curve(DvaSystem::DVA, &dva)];
    let panels = vec![lines("", axis("network, in the order of the rows"), axis("latency, ms"), curves)];
    Ok(ItemReport { rows, figure: figure("One request at a time", context, panels, 1) })
}

const DECLARED: &str =
    "By declaration: 50 us for each of two or four stages, so no evidence; in virtual time nothing else costs.";
