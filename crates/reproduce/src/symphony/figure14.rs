//! Figure 14: the cost of the network between scheduler and devices.

use super::SOURCE;
use super::workload::{axis, case, deferred_window, lines, resnets};
use crate::case::{CaseNetwork, ScenarioCase};
use crate::context::{ReproduceContext, Spread};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_report::number;
use ripieno_report::plot::{Figure, Look, Panel, Series};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure14",
    title: "Figure 14: goodput by network latency",
    says: "delays in the range of RDMA (24 to 33 us) cost little; those of TCP (median 3,034 us, tail 12 times that) cost up \
           to 70 %, the more the tighter the SLO.",
    run,
};

const DEVICES: usize = 32;
const MODELS: usize = 20;
const REQUESTS: u64 = 200_000;
const SLOS_MS: [f64; 4] = [20.0, 25.0, 50.0, 100.0];
const RDMA_US: [f64; 5] = [0.0, 12.0, 24.0, 33.0, 100.0];
const TCP_US: [f64; 6] = [0.0, 1_000.0, 3_034.0, 5_000.0, 10_000.0, 20_000.0];

fn run(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (rdma, tcp) = (context.points(&RDMA_US, 2), context.points(&TCP_US, 2));
    let with_zero = |mut delays: Vec<f64>| {
        delays.retain(|&delay| delay > 0.0);
        delays.insert(0, 0.0);
        delays
    };
    let (rdma, tcp) = (with_zero(rdma), with_zero(tcp));
    let fixed = rdma.iter().chain(&tcp).map(|&delay| Some(CaseNetwork::FixedUs(delay)));
    let drawn = ["rdma", "tcp"].map(|name| Some(CaseNetwork::Transport(name)));
    let networks: Vec<_> = fixed.chain(drawn).collect();
    let requests = context.requests(REQUESTS);
    let of = |slo_ms: f64| {
        let case = case(&deferred_window(), DEVICES, resnets(MODELS, slo_ms), requests);
        networks.iter().map(move |&network| ScenarioCase { network, ..case.clone() }).collect::<Vec<_>>()
    };
    let found = context.goodputs(&SLOS_MS.into_iter().flat_map(of).collect::<Vec<_>>(), 1)?;
    let curves: Vec<_> = SLOS_MS.into_iter().zip(found.chunks(networks.len())).collect();
    let rows = curves.iter().flat_map(|(slo_ms, found)| rows(*slo_ms, &rdma, &tcp, found)).collect();
    let figure = Figure {
        title: "A slow or unpredictable network costs the tight SLOs most".to_owned(),
        subtitle: format!(
            "{MODELS} models like ResNet50, {DEVICES} devices, deferred scheduling, Poisson arrivals, {} requests a run, 1 seed",
            number(requests as f64)
        ),
        panels: vec![
            panel("In the range of RDMA", "delay, us", &rdma, 1.0, 0, &curves),
            panel("In the range of TCP", "delay, ms", &tcp, 1e-3, rdma.len(), &curves),
        ],
        columns: 2,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

fn rows(slo_ms: f64, rdma: &[f64], tcp: &[f64], found: &[Spread]) -> Vec<ResultRow> {
    let (near, rest) = found.split_at(rdma.len());
    let (far, drawn) = rest.split_at(tcp.len());
    let fixed = rdma.iter().zip(near).chain(tcp[1..].iter().zip(&far[1..]));
    let at = |(delay, spread): (&f64, &Spread)| {
        ResultRow::new(format!("SLO {slo_ms} ms, {} us", number(*delay)), "requests/s", spread.mean)
    };
    let mut rows: Vec<_> = fixed.map(at).collect();
    let without = near[0].mean;
    let lost = far.last().map_or(0.0, |spread| 1.0 - spread.mean / without);
    let longest = number(tcp[tcp.len() - 1]);
    rows.push(
        ResultRow::new(format!("SLO {slo_ms} ms: lost at {longest} us"), "share", lost)
            .note("The paper's \"up to 70 %\" is for the longest delay of its figure, which its text does not name."),
    );
    for (transport, spread) in ["RDMA", "TCP"].into_iter().zip(drawn) {
        let name = format!("SLO {slo_ms} ms: lost with {transport}, delays drawn");
        rows.push(ResultRow::new(name, "share", 1.0 - spread.mean / without).note(
            "Each message's delay is drawn; the scheduler plans with the 99.99th percentile, as the paper's does. That of TCP \
             is 36 ms, more than the two tightest SLOs.",
        ));
    }
    rows
}

/// Returns the curves of one range of delays, which begins at `offset` of each SLO's values.
fn panel(title: &str, x: &str, delays: &[f64], scale: f64, offset: usize, curves: &[(f64, &[Spread])]) -> Panel {
    let curve = |(colour, (slo_ms, found)): (usize, &(f64, &[Spread]))| Series {
        name: format!("SLO {slo_ms} ms"),
        points: delays.iter().zip(&found[offset..]).map(|(delay, spread)| (delay * scale, spread.mean)).collect(),
        look: Look::solid(colour),
        markers: true,
    };
    lines(title, axis(x), axis("goodput, requests/s"), curves.iter().enumerate().map(curve).collect())
}
