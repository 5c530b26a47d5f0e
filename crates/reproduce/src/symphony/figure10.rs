//! Figure 10: the number of devices for 15,000 requests/s.

use super::SOURCE;
use super::workload::{
    axis, case, deferred_window, from_zoo, known, load, nexus_eight_frontends, nexus_planned, systems, zoo,
};
use crate::case::{CaseLoad, Contender, ScenarioCase};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::job::{Question, SimAnswer};
use crate::live::{LiveDelays, devices_row, live_report};
use anyhow::Context as _;
use ripieno_report::number;
use ripieno_report::plot::{Bar, Content, Figure, Panel};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure10",
    title: "Figure 10: fewest devices for 15,000 requests/s",
    says: "with one ResNet50 Symphony saves 2 to 6 devices against Shepherd and Nexus, and Clockwork needs more than twice as \
           many as the others; with 37 models Nexus needs 166 % and Shepherd 90 % more, and Clockwork cannot do it.",
    run,
};

const RATE: f64 = 15_000.0;
/// Rate of all models on the live cluster. Two cores cannot carry more batches.
const LIVE_RATE: f64 = 3000.0;
const REQUESTS: u64 = 200_000;

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let mut contenders = systems();
    contenders.extend(known([nexus_planned(), nexus_eight_frontends()]));
    let (single, all) = setups()?;
    let setups = [
        ("ResNet50, SLO 25 ms", single, [None, None, None]),
        ("37 models of Table 4", all, [Some(2.66), Some(1.90), None]),
    ];
    let requests = context.requests(REQUESTS);
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (name, loads, papers) in setups {
        let found = devices(context, &contenders, &loads, requests)?;
        rows.extend(rows_of(name, &contenders, &found, papers));
        if loads.len() == 1 {
            rows.extend(saved(name, &contenders, &found));
        }
        panels.push(panel(name, &contenders, &found));
    }
    let figure = Figure {
        title: "Devices that 15,000 requests/s need".to_owned(),
        subtitle: format!(
            "A100 profiles, equal rates, Poisson arrivals, {} requests a run, 1 seed",
            number(requests as f64)
        ),
        panels,
        columns: 1,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// Serves the rate by clusters on this machine, with more and more devices until they are enough.
pub(super) fn live(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (single, all) = setups()?;
    let mut rows = Vec::new();
    let live = [("ResNet50, SLO 25 ms", single, RATE), ("37 models of Table 4", all, LIVE_RATE)];
    for (name, loads, rate) in live {
        let first = case(&deferred_window(), 8, loads, context.requests(REQUESTS));
        let case = ScenarioCase { rate, ..first };
        let delays = LiveDelays::measure(context, &case)?;
        rows.push(devices_row(context, format!("{name}, {rate:.0}/s: deferred, window"), &case, delays)?);
    }
    Ok(live_report("Devices that a rate needs, live", rows))
}

/// Returns ResNet50 alone, and all models.
fn setups() -> anyhow::Result<(Vec<CaseLoad>, Vec<CaseLoad>)> {
    let models = zoo("a100")?;
    let resnet = models.iter().find(|model| model.name == "ResNet50").context("Table 4 has a ResNet50")?;
    let single = vec![load("ResNet50", resnet.alpha_ms, resnet.beta_ms, 25.0)];
    Ok((single, models.iter().map(from_zoo).collect()))
}

fn devices(
    context: &ReproduceContext,
    contenders: &[Contender],
    loads: &[CaseLoad],
    requests: u64,
) -> anyhow::Result<Vec<f64>> {
    let case = |one: &Contender| ScenarioCase { rate: RATE, ..case(one, 1, loads.to_vec(), requests) };
    let answers = context.answers(Question::Devices, contenders.iter().map(case).collect())?;
    let devices = |answer: &SimAnswer| if answer.devices > 0 { answer.devices as f64 } else { f64::NAN };
    Ok(answers.iter().map(devices).collect())
}

/// `papers`: the paper's factors of devices for nexus, shepherd and clockwork.
fn rows_of(setup: &str, contenders: &[Contender], found: &[f64], papers: [Option<f64>; 3]) -> Vec<ResultRow> {
    let own = contenders.iter().zip(found);
    let mut rows: Vec<_> = own
        .clone()
        .map(|(one, &devices)| ResultRow::new(format!("{setup}: {}", one.name), "devices", devices))
        .collect();
    let deferred = found.first().copied().unwrap_or(f64::NAN);
    for (policy, paper) in ["nexus", "shepherd", "clockwork"].into_iter().zip(papers) {
        for (one, devices) in own.clone().filter(|(one, _)| one.policy == policy) {
            let name = format!("{setup}: {} over deferred", one.name);
            rows.push(ResultRow::new(name, "times", devices / deferred).paper(paper).note(match policy {
                "clockwork" => {
                    "The paper says that Clockwork cannot deliver this because of the running time of its algorithm, which a simulation \
                               does not have."
                }
                _ => "",
            }));
        }
    }
    rows
}

/// Returns the devices that deferring saves against each reading of Shepherd and Nexus.
fn saved(setup: &str, contenders: &[Contender], found: &[f64]) -> Vec<ResultRow> {
    let deferred = found.first().copied().unwrap_or(f64::NAN);
    let others = contenders.iter().zip(found).filter(|(one, _)| ["shepherd", "nexus"].contains(&one.policy));
    let row = |(one, devices): (&Contender, &f64)| {
        let name = format!("{setup}: saved against {}", one.name);
        ResultRow::new(name, "devices", devices - deferred).note(SAVED)
    };
    others.map(row).collect()
}

const SAVED: &str = "The paper says 2 to 6 against Shepherd and Nexus, of systems with overheads; these are rules that decide at no cost.";

fn panel(setup: &str, contenders: &[Contender], found: &[f64]) -> Panel {
    let bar = |(one, &devices): (&Contender, &f64)| Bar {
        name: one.name.clone(),
        value: devices,
        spread: None,
        paper: None,
        look: one.look,
    };
    Panel {
        title: setup.to_owned(),
        x: axis("devices"),
        y: axis(""),
        content: Content::Bars(contenders.iter().zip(found).map(bar).collect()),
    }
}
