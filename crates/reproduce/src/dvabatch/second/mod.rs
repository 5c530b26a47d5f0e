//! Stretch by the rules of the authors' public code: does any time help there?

mod lego;
#[cfg(test)]
mod tests;

use super::SOURCE;
use super::workload::{DvaCase, DvaSystem, LOADS, NETWORKS, SimOutcome, axis, lines, mean, seeds, settings};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use lego::{LegoOptions, LegoScheduler};
use ripieno_base::Nanos;
use ripieno_report::plot::{Figure, Look, Series};

pub(in crate::dvabatch) const SECOND_READING: ExperimentItem = ExperimentItem {
    id: "dvabatch/second-reading",
    title: "Stretch by the rules of the public code",
    says: "A batch that is younger than a configured time is joined. The paper and the code do not give the time.",
    run,
};

/// Ages up to which a batch is joined, in ms. The public code compares microseconds with
/// nanoseconds, so that a configured 16 ms are 16 us there.
const TIMES_MS: [f64; 7] = [0.0, 0.016, 2.0, 4.0, 8.0, 16.0, 64.0];
const BUFFERS: usize = 2;
/// Executors for all stages, and nothing else of `dva`, which does not run.
const STAGES: DvaSystem = DvaSystem::Dva("executors = 4\n");

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let networks: Vec<_> = NETWORKS.iter().copied().filter(|network| !network.has_lengths()).collect();
    let plain: Vec<_> =
        networks.iter().map(|network| DvaCase::new(context, network, DvaSystem::ZERO[0], 1.0)).collect();
    let peaks = context.each(&plain, DvaCase::peak)?;
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (case, peak) in plain.iter().zip(peaks) {
        let name = case.network.name;
        let mut curves = Vec::new();
        for (place, (level, load)) in LOADS.iter().enumerate() {
            let rate = load * peak;
            let zero = means(context, case, rate, None)?;
            let mut points = Vec::new();
            for (at, ms) in TIMES_MS.iter().enumerate() {
                let mean_ms = means(context, case, rate, Some(Nanos::from_millis_f64(*ms)))?;
                let row = format!("{name}, {level} load, {ms} ms: less than ZeroBatch, free");
                rows.push(ResultRow::new(row, "%", 100.0 - mean_ms / zero * 100.0));
                points.push((at as f64, mean_ms));
            }
            let look = Look::solid(place);
            curves.push(Series { name: format!("{level} load"), points, look, markers: true });
        }
        let x = axis("time to join: 0, 16 us, 2, 4, 8, 16, 64 ms");
        panels.push(lines(name, x, axis("mean latency, ms"), curves));
    }
    let (title, subtitle) = ("Stretch by the public code".to_owned(), settings(context));
    Ok(ItemReport { rows, figure: Figure { title, subtitle, panels, columns: 2, note: SOURCE.to_owned() } })
}

/// Returns the mean latency over seeds: of ZeroBatch, or of the public code with this time.
fn means(context: &ReproduceContext, case: &DvaCase, rate: f64, max_wait: Option<Nanos>) -> anyhow::Result<f64> {
    let seeds: Vec<_> = (1..=seeds(context)).collect();
    let outcomes = context.each(&seeds, |&seed| {
        let case = DvaCase { seed, rate, ..*case };
        let Some(max_wait) = max_wait else { return case.run() };
        let scenario = DvaCase { system: STAGES, ..case }.scenario()?;
        let options = LegoOptions { max_wait, buffers: BUFFERS };
        let scheduler = LegoScheduler::new(&scenario.effective_setup(), options);
        SimOutcome::under(&scenario, Box::new(scheduler), rate)
    })?;
    Ok(mean(outcomes.iter().map(SimOutcome::mean_ms)))
}
