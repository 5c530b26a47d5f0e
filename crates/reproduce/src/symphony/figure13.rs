//! Figure 13, right: goodput by the number of devices.
//!
//! Its left half, which is measured on a wall clock, is in `figure13_left.rs`.

use super::SOURCE;
use super::workload::{axis, case, deferred_window, eager_prefix, known, lines, resnets, series};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::number;
use ripieno_report::plot::Figure;

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure13-right",
    title: "Figure 13, right: goodput by number of devices",
    says: "Symphony's goodput grows linearly with the number of devices; Clockwork's program does not scale over cores.",
    run,
};

const SLO_MS: f64 = 100.0;
const MODELS: usize = 20;
/// About nine seconds at the resulting rates: the SLO is long, so the run must be long, too.
const REQUESTS_PER_DEVICE: u64 = 8_000;

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let all = [16, 32, 64, 128, 256];
    let devices = if context.is_quick() { vec![16, 64] } else { all.to_vec() };
    let contenders = known([deferred_window(), eager_prefix()]);
    let mut cases = Vec::new();
    for contender in &contenders {
        let case = |&devices: &usize| {
            let requests = context.requests(devices as u64 * REQUESTS_PER_DEVICE);
            case(contender, devices, resnets(MODELS, SLO_MS), requests)
        };
        cases.extend(devices.iter().map(case));
    }
    let found = context.goodputs(&cases, 1)?;
    let (mut rows, mut shown) = (Vec::new(), Vec::new());
    for (contender, goodputs) in contenders.iter().zip(found.chunks(devices.len())) {
        let points: Vec<_> =
            devices.iter().map(|&devices| devices as f64).zip(goodputs.iter().map(|one| one.mean)).collect();
        let each = |(devices, goodput): (f64, f64)| {
            ResultRow::new(format!("{}, {devices} devices", contender.name), "requests/s", goodput)
        };
        rows.extend(points.iter().copied().map(each));
        let (first, last) = (points[0], points[points.len() - 1]);
        let name = format!("{}: goodput per device, {} over {} devices", contender.name, last.0, first.0);
        rows.push(ResultRow::new(name, "ratio", (last.1 / last.0) / (first.1 / first.0)).note(
            "Linear growth is a ratio of 1. The paper's words are \"increases linearly\"; that more devices stagger more \
             finely lets each do a little more.",
        ));
        shown.push(series(contender, points));
    }
    let figure = Figure {
        title: "Goodput grows with the devices".to_owned(),
        subtitle: format!(
            "{MODELS} models like ResNet50, SLO {SLO_MS} ms, Poisson arrivals, {} requests a device and run, 1 seed",
            number(context.requests(256 * REQUESTS_PER_DEVICE) as f64 / 256.0)
        ),
        panels: vec![lines("", axis("devices"), axis("goodput, requests/s"), shown)],
        columns: 1,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}
