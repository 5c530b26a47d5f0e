//! Table 2: one model on eight devices, against the analytic bounds.

use super::SOURCE;
use super::workload::{
    axis, case, clockwork, deferred_update, deferred_window, eager_window, inception_resnet_v2, known, nexus,
    nexus_planned, resnet50, shepherd, systems, timeout,
};
use crate::case::{CaseLoad, Contender};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::live::{LiveDelays, goodput_row, live_report};
use ripieno_base::Nanos;
use ripieno_model::Profile;
use ripieno_model::bounds::{Bound, staggered_bound};
use ripieno_report::number;
use ripieno_report::plot::{Bar, Content, Figure, Look, Panel};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/table2",
    title: "Table 2: goodput of one model on 8 devices, against the analytic bounds",
    says: "Symphony comes close to the bound of staggered execution; Nexus to the bound without coordination; Shepherd \
           lies between them, Clockwork far below.",
    run,
};

const DEVICES: usize = 8;
const REQUESTS: u64 = 200_000;
const SEEDS: u64 = 3;

/// The table's numbers for one model.
struct PaperColumn {
    load: CaseLoad,
    /// Batch size and requests/s without coordination.
    alone: (f64, f64),
    staggered: (f64, f64),
    measured: [(&'static str, f64); 4],
}

fn columns() -> [PaperColumn; 2] {
    [
        PaperColumn {
            load: resnet50(),
            alone: (7.0, 4501.0),
            staggered: (16.0, 5839.0),
            measured: [("deferred", 5264.0), ("clockwork", 1358.0), ("nexus", 4027.0), ("shepherd", 4445.0)],
        },
        PaperColumn {
            load: inception_resnet_v2(),
            alone: (3.0, 713.0),
            staggered: (8.0, 1083.0),
            measured: [("deferred", 926.0), ("clockwork", 458.0), ("nexus", 618.0), ("shepherd", 778.0)],
        },
    ]
}

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let timeouts = context.points(&[0.2, 0.3, 0.4], 3).into_iter().map(|fraction| timeout(fraction, "prefix"));
    let mut contenders = systems();
    contenders.extend(known(variants().into_iter().chain([deferred_update(), eager_window()]).chain(timeouts)));
    let requests = context.requests(REQUESTS);
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for column in columns() {
        let cases: Vec<_> =
            contenders.iter().map(|one| case(one, DEVICES, vec![column.load.clone()], requests)).collect();
        let found = context.goodputs(&cases, SEEDS)?;
        let own = contenders.iter().zip(found);
        rows.extend(bound_rows(&column)?);
        rows.extend(own.clone().map(|(contender, spread)| row(&column, contender, spread, context.seeds(SEEDS))));
        panels.push(panel(&column, own)?);
    }
    let seeds = context.seeds(SEEDS);
    let figure = Figure {
        title: "Goodput of one model on 8 devices".to_owned(),
        subtitle: format!(
            "Poisson arrivals, {} requests a run; seeds: {seeds}, the bars show mean and range; black: the paper's table",
            number(requests as f64)
        ),
        panels,
        columns: 1,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

/// Serves the table's systems by a cluster on this machine.
pub(super) fn live(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let others = if context.is_quick() { Vec::new() } else { known([nexus(), shepherd(), clockwork()]) };
    let contenders: Vec<_> = std::iter::once(deferred_window()).chain(others).collect();
    let mut rows = Vec::new();
    for column in columns().into_iter().take(if context.is_quick() { 1 } else { 2 }) {
        let case = |one: &Contender| case(one, DEVICES, vec![column.load.clone()], context.requests(REQUESTS));
        let delays = LiveDelays::measure(context, &case(&contenders[0]))?;
        for contender in &contenders {
            let name = format!("{}: {}", column.load.name, contender.name);
            let row = goodput_row(context, name, &case(contender), delays)?;
            rows.push(row.paper(paper(&column, contender)));
        }
    }
    Ok(live_report("Goodput of one model on 8 devices, live", rows))
}

/// Returns other readings of the baselines: a longer look-ahead, and other rules of gathering.
fn variants() -> [Contender; 3] {
    [
        Contender::new("clockwork, 10 ms ahead", "clockwork", &[("lookahead_ms", "10")], Look::dashed(2)),
        nexus_planned(),
        Contender::new("shepherd, window", "shepherd", &[("gather", "\"window\"")], Look::dashed(4)),
    ]
}

/// Returns the bounds. Without coordination a request may wait for a whole batch; staggered, for
/// one N-th of it.
fn bounds(load: &CaseLoad) -> anyhow::Result<[Bound; 2]> {
    let profile = Profile::linear(load.alpha_ms, load.beta_ms, 64)?;
    let slo = Nanos::from_millis_f64(load.slo_ms);
    let one = staggered_bound(&profile, slo, 1);
    let alone = Bound { goodput_rps: one.goodput_rps * DEVICES as f64, ..one };
    Ok([alone, staggered_bound(&profile, slo, DEVICES)])
}

fn bound_rows(column: &PaperColumn) -> anyhow::Result<Vec<ResultRow>> {
    let name = &column.load.name;
    let [alone, staggered] = bounds(&column.load)?;
    let rows = |what: &str, bound: Bound, paper: (f64, f64)| {
        [
            ResultRow::new(format!("{name}: {what}, batch"), "requests", bound.batch as f64).paper(paper.0),
            ResultRow::new(format!("{name}: {what}"), "requests/s", bound.goodput_rps).paper(paper.1),
        ]
    };
    let alone = rows("bound without coordination", alone, column.alone);
    Ok(alone.into_iter().chain(rows("bound staggered", staggered, column.staggered)).collect())
}

fn paper(column: &PaperColumn, contender: &Contender) -> Option<f64> {
    column.measured.iter().find(|(policy, _)| *policy == contender.policy).map(|(_, goodput)| *goodput)
}

fn row(column: &PaperColumn, contender: &Contender, spread: Spread, seeds: u64) -> ResultRow {
    let note = match contender.name.as_str() {
        "deferred, prefix" => {
            "With prefix gathering one bad burst makes batches small, and small batches keep themselves alive, so \
             that its goodput falls with the length of the run; the paper leaves the gathering rule open."
        }
        name if name.starts_with("clockwork") => {
            "The paper measured Clockwork's program, which chooses batches 10 ms ahead, plans for 5 ms before the deadline and \
             passes over heads: \"as its program\" does so too. \"clockwork\" is the rule alone, 5 ms ahead."
        }
        "eager, prefix" => "The paper gives no number; this is a central eager policy that costs nothing to decide.",
        _ => "",
    };
    let name = format!("{}: {}", column.load.name, contender.name);
    let row = ResultRow::new(name, "requests/s", spread.mean).paper(paper(column, contender)).note(note);
    row.seeds(spread.low, spread.high, seeds)
}

fn panel<'a>(column: &PaperColumn, own: impl Iterator<Item = (&'a Contender, Spread)>) -> anyhow::Result<Panel> {
    let bound = |name: &str, bound: Bound, paper: f64| Bar {
        name: name.to_owned(),
        value: bound.goodput_rps,
        spread: None,
        paper: Some(paper),
        look: Look::solid(6),
    };
    let [alone, staggered] = bounds(&column.load)?;
    let mut bars = vec![
        bound("bound, staggered", staggered, column.staggered.1),
        bound("bound, no coordination", alone, column.alone.1),
    ];
    bars.extend(own.map(|(contender, spread)| Bar {
        name: contender.name.clone(),
        value: spread.mean,
        spread: Some((spread.low, spread.high)),
        paper: paper(column, contender),
        look: contender.look,
    }));
    let CaseLoad { name, alpha_ms, beta_ms, slo_ms, .. } = &column.load;
    Ok(Panel {
        title: format!("{name}: l(b) = {alpha_ms} b + {beta_ms} ms, SLO {slo_ms} ms"),
        x: axis("goodput, requests/s"),
        y: axis(""),
        content: Content::Bars(bars),
    })
}
