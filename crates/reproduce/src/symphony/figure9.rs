//! Figure 9: many models together, on 64 devices of two kinds.

use super::SOURCE;
use super::workload::{
    axis, case, deferred_window, from_zoo, known, nexus_eight_frontends, nexus_planned, nexus_planned_eight_frontends,
    systems, zoo,
};
use crate::case::{CaseLoad, Contender};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::live::{LiveDelays, goodput_row, live_report};
use ripieno_report::number;
use ripieno_report::plot::{Bar, Content, Figure, Panel};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure9",
    title: "Figure 9: goodput of mixed models on 64 devices",
    says: "Symphony has 2.0 to 2.4 times the goodput of the baselines with all models, 3.5 times (1080Ti) and 5.7 times \
           (A100) with strong batching effects, 23 % and 10 % more with weak ones; eight Nexus frontends lose 11 to 45 % \
           against one.",
    run,
};

const DEVICES: usize = 64;
/// Devices of the live cluster. Two cores cannot carry the batches of more.
const LIVE_DEVICES: usize = 16;
const REQUESTS: u64 = 200_000;
/// β/α above which the paper calls a batching effect strong.
const STRONG: f64 = 2.0;

/// A selection of models on a kind of device.
struct ModelSet {
    name: String,
    loads: Vec<CaseLoad>,
    /// Symphony's goodput divided by the baselines'.
    gain: f64,
}

fn sets() -> anyhow::Result<Vec<ModelSet>> {
    let mut sets = Vec::new();
    for (device, label, gains) in [("1080ti", "1080Ti", [2.0, 3.5, 1.23]), ("a100", "A100", [2.0, 5.7, 1.10])] {
        let models = zoo(device)?;
        for (selection, gain) in ["mixed", "strong", "weak"].into_iter().zip(gains) {
            let chosen = models.iter().filter(|model| match selection {
                "strong" => model.beta_ms / model.alpha_ms > STRONG,
                "weak" => model.beta_ms / model.alpha_ms < STRONG,
                _ => true,
            });
            let loads: Vec<_> = chosen.map(from_zoo).collect();
            sets.push(ModelSet { name: format!("{label}, {selection} ({} models)", loads.len()), loads, gain });
        }
    }
    Ok(sets)
}

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let mut contenders = systems();
    contenders.extend(known([nexus_eight_frontends(), nexus_planned(), nexus_planned_eight_frontends()]));
    let (sets, requests) = (sets()?, context.requests(REQUESTS));
    let of = |set: &ModelSet| {
        contenders.iter().map(|one| case(one, DEVICES, set.loads.clone(), requests)).collect::<Vec<_>>()
    };
    let found = context.goodputs(&sets.iter().flat_map(of).collect::<Vec<_>>(), 1)?;
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (set, goodputs) in sets.iter().zip(found.chunks(contenders.len())) {
        let own: Vec<_> = contenders.iter().zip(goodputs.iter().copied()).collect();
        rows.extend(set_rows(set, &own));
        panels.push(panel(set, &own));
    }
    // Panels of one kind of device are in one column.
    let (left, right) = panels.split_at(3);
    let figure = Figure {
        title: "Goodput of mixed models on 64 devices".to_owned(),
        subtitle: format!("equal rates, Poisson arrivals, {} requests a run, 1 seed", number(requests as f64)),
        panels: left.iter().zip(right).flat_map(|(left, right)| [left.clone(), right.clone()]).collect(),
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// Serves all models of each kind of device by a cluster on this machine, under deferred batching.
pub(super) fn live(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let mut rows = Vec::new();
    for set in sets()?.into_iter().filter(|set| set.name.contains("mixed")) {
        let case = case(&deferred_window(), LIVE_DEVICES, set.loads, context.requests(REQUESTS));
        let delays = LiveDelays::measure(context, &case)?;
        rows.push(goodput_row(
            context,
            format!("{}, {LIVE_DEVICES} devices: deferred, window", set.name),
            &case,
            delays,
        )?);
    }
    Ok(live_report(&format!("Goodput of mixed models on {LIVE_DEVICES} devices, live"), rows))
}

fn set_rows(set: &ModelSet, own: &[(&Contender, Spread)]) -> Vec<ResultRow> {
    let goodput = |name: &str| own.iter().find(|(contender, _)| contender.name == name).map(|(_, spread)| spread.mean);
    let deferred = goodput("deferred, window").unwrap_or(f64::NAN);
    let mut rows: Vec<_> = own
        .iter()
        .map(|(contender, spread)| {
            ResultRow::new(format!("{}: {}", set.name, contender.name), "requests/s", spread.mean)
        })
        .collect();
    for name in ["shepherd", "nexus", "nexus, capped", "clockwork", "clockwork, as its program"] {
        if let Some(baseline) = goodput(name) {
            let note = "The paper states one gain over all its baselines. Ours come close to it over Clockwork as its program \
                        and over Nexus; a rule that decides at no cost and knows all queues does better.";
            let name = format!("{}: deferred over {name}", set.name);
            rows.push(ResultRow::new(name, "times", deferred / baseline).paper(set.gain).note(note));
        }
    }
    if let Some(eager) = goodput("eager, prefix") {
        rows.push(ResultRow::new(format!("{}: deferred over eager", set.name), "times", deferred / eager).note(
            "An ideal central eager policy does as well as deferring when many models compete: while one model's batch \
             runs, the others' queues grow by themselves.",
        ));
    }
    for name in ["nexus", "nexus, capped"] {
        if let (Some(one), Some(eight)) = (goodput(name), goodput(&format!("{name}, 8 frontends"))) {
            let row =
                ResultRow::new(format!("{}: lost by 8 frontends of {name}", set.name), "share", 1.0 - eight / one);
            rows.push(row.note(
                "The paper says 0.11 to 0.45 over its settings. Frontends that do not know of each other send bursts to one \
                 device; a batch that may not exceed its plan of one or two rows cannot take them in.",
            ));
        }
    }
    rows
}

fn panel(set: &ModelSet, own: &[(&Contender, Spread)]) -> Panel {
    let bar = |(contender, spread): &(&Contender, Spread)| Bar {
        name: contender.name.clone(),
        value: spread.mean,
        spread: Some((spread.low, spread.high)),
        paper: None,
        look: contender.look,
    };
    Panel {
        title: set.name.clone(),
        x: axis("goodput, requests/s"),
        y: axis(""),
        content: Content::Bars(own.iter().map(bar).collect()),
    }
}
