//! Output of a plan as text and as JSON, from one description.

use super::{Capacity, PlanOutcome};
use crate::output;
use ripieno_planner::DeviceCount;
use ripieno_report::{Format, Table, number, percent};
use serde::Serialize;

/// The `--format json` output.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    policy: String,
    seed: u64,
    rate_rps: f64,
    devices: DeviceAnswers,
    models: Vec<PlanModelRow>,
    sub_clusters: Vec<SubClusterRow>,
    rate_imbalance: f64,
    memory_imbalance: f64,
    objective: f64,
    moves: Vec<Move>,
    disruption: u64,
    /// Models of the current partition that are not in the scenario: to be unloaded.
    removed: Vec<Removed>,
    impossible: Vec<Impossible>,
}

/// Number of devices by each method; null where there is none. Impossible models are left out.
#[derive(Debug, Serialize)]
struct DeviceAnswers {
    bound: Option<usize>,
    estimate: usize,
    simulated: Option<usize>,
    /// Highest bad rate in the simulated result.
    worst_bad_rate: Option<f64>,
    /// The largest simulated number of devices that was not enough.
    too_few: Option<usize>,
    runs: usize,
    /// Number of requests of the rarest loaded model in the simulated result.
    fewest_requests: Option<u64>,
}

#[derive(Debug, Serialize)]
struct PlanModelRow {
    name: String,
    rate_rps: f64,
    slo_ms: f64,
    memory_mb: Option<f64>,
    sub_cluster: usize,
    /// Devices by the bound, if the model did not share them.
    devices_alone: Option<usize>,
    /// Busy devices by the estimate, if all models share them.
    devices_busy: f64,
    impossible: bool,
}

#[derive(Debug, Serialize)]
struct SubClusterRow {
    models: Vec<String>,
    rate_rps: f64,
    rate_share: f64,
    memory_mb: f64,
    runtime_memory_mb: f64,
    devices: DeviceAnswers,
}

#[derive(Debug, Serialize)]
struct Move {
    model: String,
    /// Null for a new model.
    from: Option<usize>,
    to: usize,
    cost: u64,
}

#[derive(Debug, Serialize)]
struct Removed {
    model: String,
    from: usize,
}

#[derive(Debug, Serialize)]
struct Impossible {
    model: String,
    slo_ms: f64,
    /// ℓ(1).
    fastest_ms: f64,
}

/// Number of models beyond which tables are truncated; JSON has them all.
const MAX_ROWS: usize = 40;
/// Number of requests below which 1 % of them is a matter of chance.
const FEW_REQUESTS: u64 = 1000;

pub(super) fn print(outcome: &PlanOutcome, format: Format) -> anyhow::Result<()> {
    let report = report(outcome);
    if format == Format::Json {
        return output::print_json(&report);
    }
    output::print(devices(&report))?;
    output::print(models(&report))?;
    output::print(sub_clusters(&report))?;
    output::print(balance(&report))?;
    if outcome.current.is_some() {
        output::print(moves(&report))?;
    }
    Ok(())
}

/// Returns what no number of devices can achieve, and a remedy.
pub(super) fn impossible(outcome: &PlanOutcome) -> Option<String> {
    let problem = |late: &Impossible| {
        let Impossible { model, slo_ms, fastest_ms } = late;
        format!(
            "model {model:?}: slo_ms = {slo_ms}, but one request alone takes {fastest_ms} ms, so no number of devices \
             answers it in time; raise slo_ms or use a faster device"
        )
    };
    let problems: Vec<String> = late(outcome).iter().map(problem).collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

fn late(outcome: &PlanOutcome) -> Vec<Impossible> {
    let impossible = |&(model, first): &(usize, ripieno_base::Nanos)| {
        let model = &outcome.scenario.setup.models[model];
        Impossible { model: model.name.clone(), slo_ms: model.slo.as_millis_f64(), fastest_ms: first.as_millis_f64() }
    };
    outcome.impossible.iter().map(impossible).collect()
}

pub(super) fn report(outcome: &PlanOutcome) -> Report {
    let PlanOutcome { scenario, plan, rates, .. } = outcome;
    let name = |model: usize| scenario.setup.models[model].name.clone();
    let rate_rps: f64 = rates.iter().sum();
    let sub_cluster = |(place, part): (usize, &ripieno_planner::SubCluster)| SubClusterRow {
        models: part.models.iter().map(|&model| name(model)).collect(),
        rate_rps: part.rate_rps,
        rate_share: part.rate_rps / rate_rps,
        memory_mb: part.memory_mb,
        runtime_memory_mb: part.runtime_memory_mb,
        devices: DeviceAnswers::of(outcome.parts.get(place).unwrap_or(&outcome.all)),
    };
    let was = |model: usize| outcome.current.as_ref().and_then(|current| current.places.get(&name(model)).copied());
    let change = |change: &ripieno_planner::ModelMove| Move {
        model: name(change.model),
        from: was(change.model),
        to: change.to,
        cost: change.cost,
    };
    Report {
        policy: scenario.policy.clone(),
        seed: scenario.seed,
        rate_rps,
        devices: DeviceAnswers::of(&outcome.all),
        models: (0..rates.len()).map(|model| model_report(outcome, model)).collect(),
        sub_clusters: plan.sub_clusters.iter().enumerate().map(sub_cluster).collect(),
        rate_imbalance: plan.rate_imbalance,
        memory_imbalance: plan.memory_imbalance,
        objective: plan.objective,
        moves: plan.moves.iter().map(change).collect(),
        disruption: plan.disruption,
        removed: removed(outcome),
        impossible: late(outcome),
    }
}

fn model_report(outcome: &PlanOutcome, index: usize) -> PlanModelRow {
    let model = &outcome.scenario.setup.models[index];
    let needed = outcome.all.needed.models[index];
    PlanModelRow {
        name: model.name.clone(),
        rate_rps: outcome.rates[index],
        slo_ms: model.slo.as_millis_f64(),
        memory_mb: outcome.scenario.planning.models[index].memory_mb,
        sub_cluster: outcome.plan.places[index],
        devices_alone: needed.alone.devices(),
        devices_busy: needed.busy,
        impossible: needed.alone == DeviceCount::Impossible,
    }
}

fn removed(outcome: &PlanOutcome) -> Vec<Removed> {
    let places = outcome.current.iter().flat_map(|current| &current.places);
    let gone = places.filter(|(name, _)| outcome.scenario.setup.models.iter().all(|model| model.name != **name));
    gone.map(|(model, &from)| Removed { model: model.clone(), from }).collect()
}

impl DeviceAnswers {
    fn of(capacity: &Capacity) -> DeviceAnswers {
        let simulated = capacity.simulated.as_ref();
        let good = simulated.and_then(|found| found.good.as_ref());
        let requests = |(_, summary): &(usize, ripieno_report::Summary)| {
            summary.models.iter().map(|model| model.figures.requests).filter(|&requests| requests > 0).min()
        };
        DeviceAnswers {
            bound: capacity.needed.bound.devices(),
            estimate: capacity.needed.estimate,
            simulated: good.map(|(devices, _)| *devices),
            worst_bad_rate: good.map(|(_, summary)| summary.worst_bad_rate),
            too_few: simulated.map(|found| found.bad).filter(|&bad| bad > 0),
            runs: simulated.map_or(0, |found| found.runs),
            fewest_requests: good.and_then(requests),
        }
    }

    fn simulated_cell(&self) -> String {
        match (self.simulated, self.too_few) {
            (Some(devices), _) => devices.to_string(),
            (None, Some(too_few)) => format!("> {too_few}"),
            (None, None) => "–".to_owned(),
        }
    }
}

fn devices(report: &Report) -> String {
    let DeviceAnswers { bound, estimate, simulated, worst_bad_rate, too_few, runs, fewest_requests } = &report.devices;
    let rate = number(report.rate_rps);
    let bound = bound.map_or("no number of".to_owned(), |bound| bound.to_string());
    let mut text = format!(
        "{rate} requests/s on shared devices: {bound} devices by the analytic bound, about {estimate} as requests come"
    );
    text += &match (simulated, too_few) {
        (Some(devices), _) => {
            let bad = percent(worst_bad_rate.unwrap_or(0.0));
            format!("; {devices} simulated with {} (worst bad rate {bad} %, {runs} runs)", report.policy)
        }
        (None, Some(few)) => {
            format!("; simulated with {}, {few} are not enough, and the search ended there", report.policy)
        }
        (None, None) => String::new(),
    };
    if let Some(few) = fewest_requests.filter(|&few| few < FEW_REQUESTS) {
        text += &format!(
            "\nnote: the rarest model had only {few} requests in the simulation, so its 1 % is partly luck; raise requests in the \
             scenario"
        );
    }
    for late in &report.impossible {
        text += &format!(
            "\nimpossible, and left out: {} (SLO {} ms, one request alone takes {} ms)",
            late.model,
            number(late.slo_ms),
            number(late.fastest_ms)
        );
    }
    text
}

fn models(report: &Report) -> String {
    if report.models.len() > MAX_ROWS {
        return format!("({} models; --format json lists them)", report.models.len());
    }
    let mut table =
        Table::new(["model", "requests/s", "SLO ms", "memory MB", "devices alone", "devices busy", "sub-cluster"]);
    for model in &report.models {
        let alone = match model.devices_alone {
            _ if model.impossible => "impossible".to_owned(),
            None => "too many".to_owned(),
            Some(devices) => devices.to_string(),
        };
        table.row([
            model.name.clone(),
            number(model.rate_rps),
            number(model.slo_ms),
            number(model.memory_mb.unwrap_or(f64::NAN)),
            alone,
            number(model.devices_busy),
            model.sub_cluster.to_string(),
        ]);
    }
    table.to_string()
}

fn sub_clusters(report: &Report) -> String {
    let mut table = Table::new([
        "sub-cluster",
        "models",
        "requests/s",
        "rate %",
        "memory MB",
        "runtime MB",
        "devices (bound)",
        "(estimate)",
        "(simulated)",
        "worst bad %",
    ]);
    for (place, part) in report.sub_clusters.iter().enumerate() {
        table.row([
            place.to_string(),
            part.models.len().to_string(),
            number(part.rate_rps),
            percent(part.rate_share),
            number(part.memory_mb),
            number(part.runtime_memory_mb),
            part.devices.bound.map_or("–".to_owned(), |devices| devices.to_string()),
            part.devices.estimate.to_string(),
            part.devices.simulated_cell(),
            part.devices.worst_bad_rate.map_or("–".to_owned(), percent),
        ]);
    }
    table.to_string()
}

fn balance(report: &Report) -> String {
    let factor = |imbalance: f64| format!("{:.3} %", 100.0 * imbalance);
    let (rate, memory) = (factor(report.rate_imbalance), factor(report.memory_imbalance));
    format!("imbalance (max − min) / average: rate {rate}, memory {memory}")
}

fn moves(report: &Report) -> String {
    let mut text = String::new();
    for gone in &report.removed {
        text += &format!("unload {} in sub-cluster {}: not in the scenario\n", gone.model, gone.from);
    }
    if report.moves.is_empty() {
        return text
            + "moves: none; the current partition is balanced well enough, or cannot be bettered within bounds";
    }
    let mut table = Table::new(["move", "from", "to", "cost"]);
    for change in report.moves.iter().take(MAX_ROWS) {
        let from = change.from.map_or("new".to_owned(), |from| from.to_string());
        table.row([change.model.clone(), from, change.to.to_string(), change.cost.to_string()]);
    }
    let (count, models) = (report.moves.len(), report.models.len());
    let shown = if count > MAX_ROWS { format!(", {MAX_ROWS} of them shown") } else { String::new() };
    text + &format!("{table}\nmoves: {count} of {models} models, cost {}{shown}", report.disruption)
}
