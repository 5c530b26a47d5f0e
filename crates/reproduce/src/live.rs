//! The live form of items: the same load on a cluster of processes on this machine, whose devices
//! are emulated.
//!
//! First an eager policy on idle devices shows what messages cost here: a batch begins immediately,
//! so that all time beyond its profile is delay. The simulation beside the live run then has these
//! delays, and both plan with their 99th percentile. Requests arrive at the times that the
//! simulator draws.
//!
//! A machine pauses now and then, and a pause makes the load generator late, too. So a run that
//! fails with a late load generator is tried again.

use crate::case::{CaseNetwork, Contender, ScenarioCase};
use crate::context::ReproduceContext;
use crate::item::{ItemReport, ResultRow};
use crate::job::Question;
use crate::machine::{ClusterLoad, ClusterResult, ClusterSetup, LiveCluster};
use anyhow::Context as _;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_report::plot::{Bar, Content, Figure, Look, Panel, PlotAxis};
use ripieno_sim::{Length, Scenario, Trace, simulate};
use std::time::Duration;

/// The largest fraction of bad requests of a goodput.
const LIMIT: f64 = 0.01;
/// Fractions of the simulated goodput at which the live one is tried, by bisection.
const RATES: [f64; 16] = [0.1, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975, 1.0, 1.025, 1.05];
/// Part of the devices' time that the measurement of delays keeps busy: few enough that a request
/// always finds an idle device.
const PROBE_LOAD: f64 = 0.2;
/// Length of a run, unless its rarest model needs more; its first fifth is not counted.
const RUN: Duration = Duration::from_secs(4);
const LONGEST_RUN: Duration = Duration::from_secs(8);
/// Requests of the rarest model in a run.
const REQUESTS_OF_RAREST: f64 = 500.0;
/// Lateness of the load generator, in the 99th percentile, from which a run is disturbed.
const LATE_US: f64 = 1000.0;
/// Most runs at one rate.
const TRIES: usize = 3;
const FRONTENDS: usize = 2;
/// A live result below this fraction of the simulated one is explained.
const NEAR: f64 = 0.95;

/// The delays of this machine's cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveDelays {
    /// Delay of a batch, as planned with: the 99th percentile.
    estimate_us: f64,
    /// Median delay of a batch.
    batch_us: f64,
    /// Median of the time that a request is on its ways from and to the frontend.
    way_us: f64,
}

impl LiveDelays {
    /// Measures the delays of a cluster with these models and devices.
    pub(crate) fn measure(context: &ReproduceContext, case: &ScenarioCase) -> anyhow::Result<LiveDelays> {
        let eager = Contender::new("eager", "eager", &[("gather", "\"fifo\"")], Look::solid(0));
        let case = ScenarioCase { contender: eager, ..case.clone() };
        let scenario = case.scenario()?;
        let seconds = |model: usize| {
            let profile = scenario.setup.models[model].profile();
            scenario.loads[model].share * profile.latency(1).as_secs_f64()
        };
        let of_one: f64 = (0..scenario.setup.models.len()).map(seconds).sum();
        let load = load(context, &scenario, PROBE_LOAD * case.devices as f64 / of_one)?;
        let mut cluster = cluster(context, &case)?;
        let ClusterResult { batch_us, way_us, .. } = serve_undisturbed(&mut *cluster, &load, |_| false)?;
        // A machine that is too busy leaves half of each SLO; without an answer the delay is 0.
        let slo_us = case.loads.iter().map(|load| load.slo_ms * 1e3).fold(f64::INFINITY, f64::min);
        let bounded = |us: f64| us.max(0.0).min(slo_us / 2.0);
        Ok(LiveDelays { estimate_us: bounded(batch_us[1]), batch_us: bounded(batch_us[0]), way_us: bounded(way_us[0]) })
    }

    /// Returns the case with these delays, which its policy plans with.
    pub(crate) fn on(&self, case: &ScenarioCase) -> ScenarioCase {
        let mut case = case.clone();
        case.network = Some(CaseNetwork::MeasuredUs { control: self.batch_us, estimate: self.estimate_us });
        case.loads.iter_mut().for_each(|load| load.slo_ms -= self.way_us / 1e3);
        case
    }

    fn note(&self) -> String {
        let LiveDelays { estimate_us, batch_us, way_us } = self;
        format!(
            "Delays measured first, which the simulation has, too: a batch {batch_us:.0} µs, planned with {estimate_us:.0} \
             (the 99th percentile); a request's ways {way_us:.0} µs, taken off its SLO."
        )
    }
}

/// Returns the row of a goodput, simulated with the measured delays and live.
pub(crate) fn goodput_row(
    context: &ReproduceContext,
    name: String,
    case: &ScenarioCase,
    delays: LiveDelays,
) -> anyhow::Result<ResultRow> {
    let simulated = delays.on(case);
    let expected = context.goodputs(std::slice::from_ref(&simulated), 1)?[0].mean;
    if expected == 0.0 {
        let name = format!("{name}, beyond these delays");
        return Ok(ResultRow::new(name, "requests/s", 0.0).measured(0.0).note(delays.note()));
    }
    let mut cluster = cluster(context, &simulated)?;
    let scenario = case.scenario()?;
    let rates = context.points(&RATES, 5);
    let (mut good, mut bad, mut failed) = (0, rates.len() + 1, None);
    // The rung below the first is 0, and always passes.
    while bad - good > 1 {
        let rung = good.midpoint(bad);
        let rate = rates[rung - 1] * expected;
        let load = load(context, &scenario, rate)?;
        let result = serve_undisturbed(&mut *cluster, &load, |result| result.worst_bad_rate <= LIMIT)?;
        if result.worst_bad_rate <= LIMIT {
            good = rung;
        } else {
            bad = rung;
            failed = Some((rate, result));
        }
    }
    let live = if good == 0 { 0.0 } else { rates[good - 1] * expected };
    let row = ResultRow::new(name, "requests/s", expected).measured(live).note(delays.note());
    Ok(match failed {
        Some((rate, result)) if live < NEAR * expected => row.note(cause(rate, &result, delays)),
        _ => row,
    })
}

/// Returns the row of the fewest devices for the rate of a case.
pub(crate) fn devices_row(
    context: &ReproduceContext,
    name: String,
    case: &ScenarioCase,
    delays: LiveDelays,
) -> anyhow::Result<ResultRow> {
    let simulated = delays.on(case);
    let answers = context.answers(Question::Devices, vec![simulated.clone()])?;
    let expected = answers[0].devices;
    anyhow::ensure!(expected > 0, "no number of devices serves {} requests/s", case.rate);
    let load = load(context, &case.scenario()?, case.rate)?;
    // Steps of a twentieth, upwards until it is enough.
    let (step, most) = (expected.div_ceil(20), expected + 4 * expected.div_ceil(20));
    let (mut devices, mut failed) = (expected, None);
    let live = loop {
        let mut cluster = cluster(context, &ScenarioCase { devices, ..simulated.clone() })?;
        let result = serve_undisturbed(&mut *cluster, &load, |result| result.worst_bad_rate <= LIMIT)?;
        if result.worst_bad_rate <= LIMIT {
            break devices as f64;
        }
        failed = Some(result);
        devices += if context.is_quick() { most } else { step };
        if devices > most {
            break f64::NAN;
        }
    };
    let row = ResultRow::new(name, "devices", expected as f64).measured(live).note(delays.note());
    let is_near = NEAR * live <= expected as f64;
    Ok(match failed {
        Some(result) if !is_near => row.note(cause(case.rate, &result, delays)),
        _ => row,
    })
}

/// Starts the cluster of a case.
pub(crate) fn cluster(context: &ReproduceContext, case: &ScenarioCase) -> anyhow::Result<Box<dyn LiveCluster>> {
    let Contender { policy, options, .. } = &case.contender;
    let mut options: Vec<String> =
        options.iter().map(|(key, value)| format!("{key}={}", value.trim_matches('"'))).collect();
    let plans = ripieno_policies::find(policy)?.has("control_us");
    if let Some(CaseNetwork::MeasuredUs { estimate, .. }) = case.network.filter(|_| plans) {
        options.push(format!("control_us={estimate:.1}"));
    }
    let setup = ClusterSetup {
        models: case.scenario()?.setup.models,
        devices: case.devices,
        most_devices: case.devices,
        frontends: FRONTENDS,
        policy,
        options,
    };
    context.machine().cluster(&setup).context("the cluster on this machine")
}

/// Serves a load until a run is good or was not disturbed, a few times at most. Returns the run
/// whose load generator was least late.
fn serve_undisturbed(
    cluster: &mut dyn LiveCluster,
    load: &ClusterLoad,
    is_good: impl Fn(&ClusterResult) -> bool,
) -> anyhow::Result<ClusterResult> {
    let mut result = cluster.serve(load)?;
    for _ in 1..TRIES {
        if is_good(&result) || result.send_lag_us < LATE_US {
            break;
        }
        let again = cluster.serve(load)?;
        if is_good(&again) || again.send_lag_us < result.send_lag_us {
            result = again;
        }
    }
    Ok(result)
}

/// Returns the requests of a scenario at a rate, as the simulator draws them.
fn load(context: &ReproduceContext, scenario: &Scenario, rate: f64) -> anyhow::Result<ClusterLoad> {
    let shares = scenario.loads.iter().map(|load| load.share);
    let rarest = shares.clone().fold(f64::INFINITY, f64::min) / shares.sum::<f64>();
    let needed = Duration::try_from_secs_f64(REQUESTS_OF_RAREST / (rate * rarest)).unwrap_or(LONGEST_RUN);
    let span = context.span(RUN.max(needed.min(LONGEST_RUN))).max(Duration::from_secs(1));
    let mut scenario = scenario.clone();
    let until = Time::ORIGIN + Nanos::from_secs_f64(span.as_secs_f64());
    (scenario.rate, scenario.length) = (Some(rate), Length::Until(until));
    arrivals(&scenario, until)
}

/// Returns the requests of a scenario until a time.
pub(crate) fn arrivals(scenario: &Scenario, until: Time) -> anyhow::Result<ClusterLoad> {
    let models = &scenario.setup.models;
    let mut trace = Trace::new(models);
    simulate(scenario, Some(&mut trace))?;
    let end = until - Time::ORIGIN;
    let id = |name: &str| models.iter().zip(0..).find(|(model, _)| model.name == name).map(|(_, id)| ModelId(id));
    let arrivals = trace.outcomes().filter_map(|request| Some((request.arrival, id(request.model)?))).collect();
    Ok(ClusterLoad { arrivals, warmup: Nanos(end.0 / 5), end })
}

/// Returns the reason why a live run is behind the simulation, from what was measured in it.
fn cause(rate: f64, result: &ClusterResult, delays: LiveDelays) -> String {
    let ClusterResult { worst_bad_rate, way_us, send_lag_us, busy_cores, .. } = result;
    let cores = busy_cores.map_or_else(String::new, |cores| format!(", and {cores:.2} cores were busy"));
    format!(
        "Live is more than 5 % behind: at {rate:.0}/s {:.1} % were bad; a request's ways took {:.0} µs (median; {:.0} at \
         light load) and {:.0} (99th percentile), the load generator was {send_lag_us:.0} µs late{cores}.",
        100.0 * worst_bad_rate,
        way_us[0],
        delays.way_us,
        way_us[1],
    )
}

/// The note below every live plot.
pub(crate) const LIVE_SOURCE: &str = "Experiment: \"Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling\". Values: ripieno reproduce \
                                      --live, frontends, a scheduler and emulated backends on one machine.";

/// Returns the report of live rows, with bars for both numbers of each.
pub(crate) fn live_report(title: &str, rows: Vec<ResultRow>) -> ItemReport {
    let bars = rows.iter().flat_map(|row| {
        let bar = |what: &str, value: f64, paper: Option<f64>, look: Look| Bar {
            name: format!("{}, {what}", row.name),
            value,
            spread: None,
            paper,
            look,
        };
        let live = bar("live", row.measured.unwrap_or(f64::NAN), row.paper, Look::solid(0));
        [live, bar("simulated", row.ours, None, Look::dashed(0))]
    });
    let unit = rows.first().map_or("", |row| row.unit);
    let panel = Panel {
        title: title.to_owned(),
        x: PlotAxis { label: unit.to_owned(), ..PlotAxis::default() },
        y: PlotAxis::default(),
        content: Content::Bars(bars.collect()),
    };
    let subtitle = format!("runs of {} s on one machine, the same arrivals; black: the paper's", RUN.as_secs());
    let figure =
        Figure { title: title.to_owned(), subtitle, panels: vec![panel], columns: 1, note: LIVE_SOURCE.to_owned() };
    ItemReport { rows, figure }
}
