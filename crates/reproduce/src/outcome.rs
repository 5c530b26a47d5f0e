//! The results of simulations by request, and of several seeds; parts of plots that papers share.

use super::context::Spread;
use ripieno_report::plot::{Content, Panel, PlotAxis, Series};
use ripieno_sched::Scheduler;
use ripieno_sim::{Scenario, Trace, simulate, simulate_with};

/// The latencies of a simulation in milliseconds, sorted.
#[derive(Clone, Debug)]
pub(super) struct SimOutcome {
    pub(super) latencies_ms: Vec<f64>,
    /// Requests answered within the run, per second.
    pub(super) answered_rps: f64,
    pub(super) mean_batch: f64,
}

/// The results of several seeds.
#[derive(Clone, Debug)]
pub(super) struct SimOutcomes(pub(super) Vec<SimOutcome>);

impl SimOutcome {
    /// Runs a scenario; its first tenth is not counted.
    pub(super) fn of(scenario: &Scenario) -> anyhow::Result<SimOutcome> {
        Ok(SimOutcome::counted(traced(scenario)?))
    }

    /// Runs a scenario under another scheduler than its policy.
    pub(super) fn under(scenario: &Scenario, scheduler: Box<dyn Scheduler>, rate: f64) -> anyhow::Result<SimOutcome> {
        let mut trace = Trace::new(&scenario.setup.models);
        let summary = simulate_with(scenario, scheduler, rate, Some(&mut trace))?;
        Ok(SimOutcome::counted((arrivals_and_finishes(&trace), summary.total.mean_batch)))
    }

    fn counted((requests, mean_batch): (Vec<(f64, f64)>, f64)) -> SimOutcome {
        let counted = &requests[(requests.len() / 10).min(requests.len().saturating_sub(1))..];
        let mut latencies_ms: Vec<f64> = counted.iter().map(|(arrival, finish)| finish - arrival).collect();
        latencies_ms.sort_by(f64::total_cmp);
        let (from, to) = (counted[0].0, counted[counted.len() - 1].0);
        let answered = requests.iter().filter(|&&(_, finish)| finish >= from && finish <= to).count();
        SimOutcome { latencies_ms, answered_rps: answered as f64 * 1e3 / (to - from).max(1.0), mean_batch }
    }

    /// Returns the arrival and the end of each request of a scenario, in milliseconds, in the order
    /// of arrivals.
    pub(super) fn answers(scenario: &Scenario) -> anyhow::Result<Vec<(f64, f64)>> {
        Ok(traced(scenario)?.0)
    }

    pub(super) fn mean_ms(&self) -> f64 {
        self.latencies_ms.iter().sum::<f64>() / self.latencies_ms.len().max(1) as f64
    }

    pub(super) fn quantile_ms(&self, quantile: f64) -> f64 {
        let last = self.latencies_ms.len().saturating_sub(1);
        self.latencies_ms.get((last as f64 * quantile).round() as usize).copied().unwrap_or(0.0)
    }

    /// Returns the fraction of requests that took longer.
    pub(super) fn beyond(&self, slo_ms: f64) -> f64 {
        let within = self.latencies_ms.partition_point(|&latency| latency <= slo_ms);
        1.0 - within as f64 / self.latencies_ms.len().max(1) as f64
    }
}

impl SimOutcomes {
    /// Returns the mean over seeds, and the quartiles.
    pub(super) fn spread(&self, value: impl Fn(&SimOutcome) -> f64) -> Spread {
        let mut values: Vec<f64> = self.0.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        let quartile = |part: f64| {
            let at = part * values.len().saturating_sub(1) as f64;
            let (below, above) = (values[at.floor() as usize], values[at.ceil() as usize]);
            below + (above - below) * at.fract()
        };
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        Spread { mean, low: quartile(0.25), high: quartile(0.75) }
    }

    pub(super) fn mean_ms(&self) -> Spread {
        self.spread(SimOutcome::mean_ms)
    }

    pub(super) fn answered_rps(&self) -> Spread {
        self.spread(|outcome| outcome.answered_rps)
    }

    pub(super) fn quantile_ms(&self, quantile: f64) -> Spread {
        self.spread(|outcome| outcome.quantile_ms(quantile))
    }

    pub(super) fn beyond(&self, slo_ms: f64) -> Spread {
        self.spread(|outcome| outcome.beyond(slo_ms))
    }
}

pub(super) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Returns the arrival and the end of each request, and the mean batch size.
fn traced(scenario: &Scenario) -> anyhow::Result<(Vec<(f64, f64)>, f64)> {
    let mut trace = Trace::new(&scenario.setup.models);
    let summary = simulate(scenario, Some(&mut trace))?;
    Ok((arrivals_and_finishes(&trace), summary.total.mean_batch))
}

fn arrivals_and_finishes(trace: &Trace) -> Vec<(f64, f64)> {
    trace.requests_csv().lines().skip(1).filter_map(arrival_and_finish).collect()
}

fn arrival_and_finish(line: &str) -> Option<(f64, f64)> {
    let mut fields = line.rsplit(',').skip(1);
    let finish = fields.next()?.parse().ok()?;
    let arrival = fields.nth(1)?.parse().ok()?;
    Some((arrival, finish))
}

pub(super) fn axis(label: &str) -> PlotAxis {
    PlotAxis { label: label.to_owned(), from: Some(0.0), to: None }
}

pub(super) fn lines(title: &str, x: PlotAxis, y: PlotAxis, series: Vec<Series>) -> Panel {
    Panel { title: title.to_owned(), x, y, content: Content::Lines(series) }
}
