//! Figure 2 and section 5.4: behaviour below and above the peak.

use super::SOURCE;
use super::workload::{axis, case, lines, resnets, series, systems};
use crate::case::{Contender, ScenarioCase};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::job::{Question, SimAnswer};
use ripieno_report::number;
use ripieno_report::plot::{Figure, PlotAxis};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure2",
    title: "Figure 2: goodput and utilisation from 3,000 to 30,000 offered requests/s",
    says: "Symphony and Nexus keep their goodput beyond the peak, Shepherd fluctuates, Clockwork falls; at 3,000 requests/s \
           the others use all devices and Symphony 20 % of them.",
    run,
};

const DEVICES: usize = 24;
const SLO_MS: f64 = 100.0;
const REQUESTS: u64 = 300_000;

type LoadCurve = (Contender, Vec<(f64, SimAnswer)>, f64);

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let all: Vec<_> = (1..=10).map(|step| f64::from(step) * 3000.0).collect();
    // The first point is the one in the paper's text.
    let rates: Vec<_> =
        all.iter().copied().filter(|rate| !context.is_quick() || (rate / 3000.0) as u32 % 3 == 1).collect();
    let curves = curves(context, &rates)?;
    let mut rows: Vec<_> = curves.iter().map(busy_row).collect();
    rows.extend(
        curves
            .iter()
            .map(|(contender, _, peak)| ResultRow::new(format!("{}: goodput", contender.name), "requests/s", *peak)),
    );
    rows.extend(curves.iter().map(used_row));
    rows.extend(curves.iter().map(flat_row));
    rows.extend(curves.iter().filter(|curve| curve.0.policy == "deferred").map(idle_row));
    let curve = |value: fn(&SimAnswer) -> f64| {
        let points = |points: &[(f64, SimAnswer)]| points.iter().map(|(rate, answer)| (*rate, value(answer))).collect();
        curves.iter().map(|(contender, answers, _)| series(contender, points(answers))).collect()
    };
    let x = || axis("offered requests/s");
    let figure = Figure {
        title: "Below and above the peak: only deferred scheduling uses devices in proportion to the load".to_owned(),
        subtitle: format!(
            "10 models like ResNet50, SLO {SLO_MS} ms, {DEVICES} devices, Poisson arrivals, {} requests a point, 1 seed",
            number(context.requests(REQUESTS) as f64)
        ),
        panels: vec![
            lines("Punctual answers", x(), axis("requests/s"), curve(|answer| answer.goodput_rps)),
            lines(
                "Utilisation",
                x(),
                PlotAxis { to: Some(100.0), ..axis("time that devices are busy, %") },
                curve(|answer| answer.busy_fraction * 100.0),
            ),
        ],
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// Returns the answers of each system at each rate, and its goodput.
fn curves(context: &ReproduceContext, rates: &[f64]) -> anyhow::Result<Vec<LoadCurve>> {
    let requests = context.requests(REQUESTS);
    let cases: Vec<_> = systems().iter().map(|one| case(one, DEVICES, resnets(10, SLO_MS), requests)).collect();
    let peaks = context.goodputs(&cases, 1)?;
    let at_rates = |case: &ScenarioCase| {
        let case = case.clone();
        rates.iter().map(move |&rate| ScenarioCase { rate, ..case.clone() }).collect::<Vec<_>>()
    };
    let answers = context.answers(Question::Run, cases.iter().flat_map(at_rates).collect())?;
    let curve = |((case, answers), peak): ((&ScenarioCase, &[SimAnswer]), Spread)| {
        (case.contender.clone(), rates.iter().copied().zip(answers.iter().cloned()).collect(), peak.mean)
    };
    Ok(cases.iter().zip(answers.chunks(rates.len())).zip(peaks).map(curve).collect())
}

fn busy_row((contender, answers, _): &LoadCurve) -> ResultRow {
    let paper = match contender.policy {
        "deferred" => Some(0.2),
        "clockwork" | "nexus" | "shepherd" => Some(1.0),
        _ => None,
    };
    let busy = answers.first().map_or(f64::NAN, |(_, answer)| answer.busy_fraction);
    let row = ResultRow::new(format!("{}: busy at 3,000/s", contender.name), "of time", busy).paper(paper);
    match paper {
        Some(1.0) => row.note(
            "The paper says that the others fully utilise all devices at 3,000 requests/s. Ours use all of them too, and nearly all \
             of the time from 6,000 requests/s on.",
        ),
        _ => row,
    }
}

/// Returns the number of devices that ran anything at the lowest rate.
fn used_row((contender, answers, _): &LoadCurve) -> ResultRow {
    let used = answers.first().map_or(0, |(_, answer)| answer.devices_used);
    let all = matches!(contender.policy, "clockwork" | "nexus" | "shepherd").then_some(DEVICES as f64);
    ResultRow::new(format!("{}: devices used at 3,000/s", contender.name), "devices", used as f64).paper(all)
}

fn flat_row((contender, answers, _): &LoadCurve) -> ResultRow {
    let rates = || answers.iter().map(|(_, answer)| answer.goodput_rps);
    let kept = rates().next_back().unwrap_or(0.0) / rates().fold(f64::MIN_POSITIVE, f64::max);
    let row = ResultRow::new(format!("{}: kept of its best rate at 30,000/s", contender.name), "share", kept);
    match contender.name.as_str() {
        "deferred, prefix" => row.note(
            "The flat top needs early drops: with prefix gathering the queue's heads are always the oldest requests, which \
             only fit into small batches, and the rate collapses beyond the peak.",
        ),
        _ => row,
    }
}

/// Returns the row of the idle fraction: between 20 and 90 % of the peak p, it should be (p − o)/p.
fn idle_row((contender, answers, peak): &LoadCurve) -> ResultRow {
    let inside = answers.iter().filter(|(rate, _)| (0.2..=0.9).contains(&(rate / peak)));
    let gap = |(rate, answer): &(f64, SimAnswer)| ((1.0 - answer.busy_fraction) - (peak - rate) / peak).abs();
    let widest = inside.map(gap).fold(0.0, f64::max);
    ResultRow::new(format!("{}: idle share against (p - o)/p, widest gap", contender.name), "points", widest * 100.0)
        .note("At 20 to 90 % of the peak; the paper asks for a comparable fraction and gives no number.")
}
