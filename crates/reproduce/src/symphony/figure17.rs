//! Figure 17: tails of concurrent reads, of RDMA and TCP.
//!
//! One backend reads eight objects of 150 KB from each of eight frontends at the same time. The
//! paper's two networks are the simulator's delays; the live form reads through the cluster's own
//! data plane, on loopback.

use super::SOURCE;
use super::workload::{axis, lines};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::live::LIVE_SOURCE;
use crate::machine::Incast;
use ripieno_report::plot::{Figure, Look, Series};
use ripieno_sim::Delay;

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/figure17",
    title: "Figure 17: latency of concurrent reads by RDMA and TCP",
    says: "reads by RDMA take at least 24 µs and at most 33 µs in 99.99 % of cases; TCP has a median of 3,034 µs, and its \
           99.99th percentile is 12 times the median.",
    run,
};

const DRAWS: usize = 400_000;
const INCAST: Incast = Incast { frontends: 8, objects: 8, bytes: 150_000, rounds: 300 };
const HIGH: f64 = 0.9999;

fn run(_: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (rdma, tcp) = (drawn(Delay::Rdma), drawn(Delay::Tcp));
    let rows = vec![
        ResultRow::new("RDMA: lowest", "µs", rdma[0]).paper(24.0),
        ResultRow::new("RDMA: 99.99th percentile", "µs", at(&rdma, HIGH)).paper(33.0),
        ResultRow::new("TCP: median", "µs", at(&tcp, 0.5)).paper(3034.0),
        ResultRow::new("TCP: 99.99th percentile over the median", "times", at(&tcp, HIGH) / at(&tcp, 0.5)).paper(12.0),
    ];
    Ok(ItemReport { rows, figure: figure(&[("RDMA", &rdma), ("TCP", &tcp)], SOURCE) })
}

/// Reads through the data plane of frontends on this machine.
pub(super) fn live(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let rounds = if context.is_quick() { 3 } else { INCAST.rounds };
    let mut read = context.machine().incast(Incast { rounds, ..INCAST })?;
    read.sort_by(f64::total_cmp);
    let tcp = drawn(Delay::Tcp);
    let row = |name: &str, unit, simulated: f64, live: f64| ResultRow::new(name, unit, simulated).measured(live);
    let rows = vec![
        row("TCP: lowest", "µs", tcp[0], read[0]),
        row("TCP: median", "µs", at(&tcp, 0.5), at(&read, 0.5)).paper(3034.0).note(LOOPBACK),
        row("TCP: 99.99th percentile", "µs", at(&tcp, HIGH), at(&read, HIGH)),
        row(
            "TCP: 99.99th percentile over the median",
            "times",
            at(&tcp, HIGH) / at(&tcp, 0.5),
            at(&read, HIGH) / at(&read, 0.5),
        )
        .paper(12.0),
    ];
    Ok(ItemReport { rows, figure: figure(&[("TCP of the paper", &tcp), ("loopback", &read)], LIVE_SOURCE) })
}

const LOOPBACK: &str =
    "Frontends and the reader share the machine: there is no wire, and its cores copy the 9.6 MB of a round.";

/// Returns delays of the simulator in µs, sorted.
fn drawn(delay: Delay) -> Vec<f64> {
    let mut drawn: Vec<f64> = delay.drawn(1, DRAWS).map(|delay| delay.as_millis_f64() * 1e3).collect();
    drawn.sort_by(f64::total_cmp);
    drawn
}

fn at(sorted: &[f64], share: f64) -> f64 {
    sorted.get(((sorted.len().max(1) - 1) as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

fn figure(sets: &[(&str, &[f64])], note: &str) -> Figure {
    let curve = |(colour, (name, sorted)): (usize, &(&str, &[f64]))| Series {
        name: (*name).to_owned(),
        points: (0..=1000).map(|permille| (at(sorted, permille as f64 / 1e3), permille as f64 / 10.0)).collect(),
        look: Look::solid(colour),
        markers: false,
    };
    let panels =
        vec![lines("Latency", axis("latency, µs"), axis("reads, %"), sets.iter().enumerate().map(curve).collect())];
    Figure {
        title: "Latency of concurrent reads".to_owned(),
        subtitle: "eight objects of 150 KB from each of eight machines at the same time".to_owned(),
        panels,
        columns: 1,
        note: note.to_owned(),
    }
}
