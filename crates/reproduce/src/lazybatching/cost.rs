//! Figures 3 and 11: the costs of the device, and the lengths of sentences.

use super::SOURCE;
use super::workload::{axis, lines};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_model::Steps;
use ripieno_report::plot::{Figure, Look, PlotAxis, Series};
use ripieno_sim::npu;
use ripieno_workload::{LengthDistribution, counted_lengths, stream};

pub(super) const FIGURE_3: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure3",
    title: "Figure 3 and Table II: throughput and latency of a batch",
    says: "ResNet's throughput rises with the batch and is saturated at 16; one input takes 1.1, 7.2 and 2.4 ms with ResNet, GNMT \
           and Transformer.",
    run: figure_3,
};

pub(super) const FIGURE_11: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure11",
    title: "Figure 11: lengths of sentences",
    says: "About 70 % of sentences have fewer than 20 words, 90 % of translations at most 30; 10 words cover 16 %, 32 words 90 %.",
    run: figure_11,
};

/// Words of the sentences in Table II's latencies.
const WORDS: i64 = 18;
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Returns ℓ(b) of a whole request in milliseconds, of 18 words where it has words.
fn latency_ms(network: &npu::NpuNetwork, batch: usize) -> f64 {
    let steps = |steps: Steps| if steps == Steps::Once { 1 } else { WORDS };
    let time = |block: &ripieno_model::Block| block.profile.latency(batch) * steps(block.steps);
    network.blocks().iter().map(time).sum::<ripieno_base::Nanos>().as_millis_f64()
}

fn figure_3(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let mut rows = Vec::new();
    let (mut throughput, mut latency) = (Vec::new(), Vec::new());
    for (place, network) in npu::NETWORKS.iter().enumerate() {
        let name = network.name;
        let published = network.single_published().map(|single| single.as_millis_f64());
        let note = if published.is_some() { CALIBRATED } else { "The paper prints no number for this network." };
        rows.push(
            ResultRow::new(format!("{name}: one input"), "ms", latency_ms(network, 1))
                .fitted(published.is_some())
                .paper(published)
                .note(note),
        );
        let unscaled = network.single_unscaled().as_millis_f64();
        rows.push(ResultRow::new(format!("{name}: one input before calibration"), "ms", unscaled).paper(published));
        let rate = |batch: usize| batch as f64 / latency_ms(network, batch) * 1e3;
        for batch in [16, 64] {
            rows.push(ResultRow::new(format!("{name}: throughput at {batch} over 1"), "x", rate(batch) / rate(1)));
        }
        let points = |value: &dyn Fn(usize) -> f64| BATCHES.iter().map(|&batch| (batch as f64, value(batch))).collect();
        let look = Look::solid(place);
        let curve = |points| Series { name: name.to_owned(), points, look, markers: true };
        throughput.push(curve(points(&|batch| rate(batch) / rate(1))));
        latency.push(curve(points(&|batch| latency_ms(network, batch) / batch as f64 / latency_ms(network, 1))));
    }
    let resnet =
        npu::named("resnet50").map(|network| (latency_ms(network, 16) / 16.0) / (latency_ms(network, 64) / 64.0));
    let row = ResultRow::new("resnet50: throughput at 64 over 16", "x", resnet.unwrap_or(0.0)).paper(1.0);
    rows.push(row.note("The paper says saturated."));
    let figure = Figure {
        title: "What batching brings on the NPU".to_owned(),
        subtitle: "Analytic model of a 128 x 128 systolic array at 700 MHz with 360 GB/s; sequences of 18 words"
            .to_owned(),
        panels: vec![
            lines("Throughput", axis("batch"), axis("over batch 1"), throughput),
            lines("Latency a request", axis("batch"), axis("over batch 1"), latency),
        ],
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

const CALIBRATED: &str = "Calibrated: all layers of this network are scaled by one factor to this very number.";

fn figure_11(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let paper = LengthDistribution::log_normal(2.74, 0.5, 1, 80)?;
    let parliament = LengthDistribution::Histogram(counted_lengths("europarl-en")?.up_to(80)?);
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    for (place, (name, lengths)) in
        [("log-normal, as simulated", &paper), ("Europarl, English", &parliament)].iter().enumerate()
    {
        let mut random = stream(11, place as u64);
        let drawn: Vec<u32> = (0..30_000).map(|_| lengths.draw(&mut random)).collect();
        let share = |most: u32| drawn.iter().filter(|&&length| length <= most).count() as f64 / drawn.len() as f64;
        let given = place == 0;
        for (most, published) in [(10, 0.16), (19, 0.70), (30, 0.90), (32, 0.90)] {
            let row = ResultRow::new(format!("{name}: sentences of at most {most} words"), "share", share(most));
            let row = if given { row.fitted(true).paper(published) } else { row };
            rows.push(row.note(match (given, most) {
                (true, 19 | 30) => "Fitted: two parameters, two numbers.",
                (true, _) => "Not fitted; the paper gives 16 % and 90 % for translations.",
                (false, _) => "Longer sentences than those of WMT 2019.",
            }));
        }
        let points = (1..=80).map(|most| (f64::from(most), share(most) * 100.0)).collect();
        curves.push(Series { name: (*name).to_owned(), points, look: Look::solid(place), markers: false });
    }
    let figure = Figure {
        title: "Words in a sentence".to_owned(),
        subtitle: "30,000 drawn".to_owned(),
        panels: vec![lines("", axis("words"), PlotAxis { to: Some(100.0), ..axis("sentences, %") }, curves)],
        columns: 1,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Profile;

    #[test]
    fn a_request_costs_the_sum_of_its_steps() {
        let network = npu::named("resnet50").unwrap();
        let blocks = network.blocks();
        let whole = Profile::sum(blocks.iter().map(|block| &block.profile)).latency(4).as_millis_f64();
        assert!((latency_ms(network, 4) - whole).abs() < 1e-9);
    }
}
