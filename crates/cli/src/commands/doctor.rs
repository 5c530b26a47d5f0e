//! `ripieno doctor`: the smallest single change that removes the late requests of a recording.

use crate::args::overrides::Overrides;
use crate::commands::recording::{ReadRecording, RecordingArgs};
use crate::commands::what_if::{self, Change, WhatIfRun, bad};
use crate::output::{self, print_json};
use clap::Args;
use ripieno_base::Nanos;
use ripieno_report::{Format, Summary, Table, number};
use serde::Serialize;
use std::path::PathBuf;

/// Share of the late requests that a change must remove.
const ENOUGH: f64 = 0.95;
/// Difference of the simulated late requests from the measured ones, as a share, from which on the
/// simulation is no forecast.
const FAR: f64 = 0.25;
/// Factors by which an SLO is raised, ascending.
const SLO_FACTORS: [f64; 4] = [1.25, 1.5, 2.0, 4.0];
/// Largest number of models whose settings are tried, those with the most late requests.
const MOST_MODELS: usize = 4;

/// Try single changes on a recording in virtual time, and name the smallest one that removes at
/// least 95 % of the late, refused and dropped requests.
///
/// Tried are: half and double the largest batch of a model; another policy; a longer SLO, by a
/// quarter, a half, twice or four times; one device more, and twice the devices. What costs nothing
/// comes before what costs latency, and that before what costs devices.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The recording.
    #[arg(value_name = "FILE")]
    recording: PathBuf,

    #[command(flatten)]
    overrides: Overrides,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

/// A change that was tried.
#[derive(Serialize)]
struct Tried {
    change: Change,
    /// Number of requests that were late or dropped; `None` if it cannot be simulated.
    bad: Option<u64>,
    /// Share of the late requests that it removes.
    removed: Option<f64>,
    p99_ms: Option<f64>,
    /// The reason for which it cannot be simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let read = ReadRecording::open(&args.recording)?;
    let (measured, usual) = (WhatIfRun::measured(&read), RecordingArgs::default());
    let simulate = |changes: &[Change]| what_if::run(&read, &usual, &args.overrides, changes);
    // Where an SLO is below a lone run, what happened cannot be simulated: its measurement stands.
    let base = simulate(&[]).unwrap_or_else(|_| measured.clone());
    let late = bad(&base.summary.total);
    let mut tried: Vec<Tried> = Vec::new();
    if late > 0 {
        for change in candidates(&read, &base.summary) {
            let outcome = simulate(std::slice::from_ref(&change));
            let bad = outcome.as_ref().ok().map(|run| bad(&run.summary.total));
            tried.push(Tried {
                change,
                bad,
                removed: bad.map(|bad| 1.0 - bad as f64 / late as f64),
                p99_ms: outcome.as_ref().ok().and_then(|run| run.summary.total.p99_ms),
                error: outcome.err().map(|error| format!("{error:#}")),
            });
        }
    }
    let cure = tried.iter().find(|each| each.removed.is_some_and(|removed| removed >= ENOUGH));
    let measured_bad = bad(&measured.summary.total);
    let says = verdict(late, base.summary.total.requests, &tried, cure);
    let says = says + &distrust(measured_bad, late);
    if args.format == Format::Json {
        return print_json(&serde_json::json!({
            "measured_bad": measured_bad, "bad": late, "requests": base.summary.total.requests,
            "change": cure.map(|cure| &cure.change), "says": says, "tried": tried,
        }));
    }
    output::print(what_if::table(&[measured, base]))?;
    if !tried.is_empty() {
        let mut table = Table::new(["change", "late or dropped", "removed %", "p99 ms"]);
        for each in by_help(&tried) {
            let worse = each.removed.is_some_and(|removed| removed < 0.0);
            table.row([
                format!("{}{}", each.change, if worse { " (worse)" } else { "" }),
                each.bad.map_or("–".to_owned(), |bad| bad.to_string()),
                each.removed.map_or("–".to_owned(), |removed| format!("{:.1}", removed * 100.0)),
                number(each.p99_ms.unwrap_or(f64::NAN)),
            ]);
        }
        output::print(format!("\n{table}"))?;
    }
    output::print(format!("\n{says}"))
}

fn verdict(late: u64, requests: u64, tried: &[Tried], cure: Option<&Tried>) -> String {
    if late == 0 {
        return "nothing was late: there is nothing to change".to_owned();
    }
    if let Some(cure) = cure {
        let removed = cure.removed.unwrap_or(0.0) * 100.0;
        return format!("{}: it removes {removed:.0} % of the {late} late of {requests} requests", cure.change);
    }
    let best = tried.iter().filter_map(|each| Some((each, each.removed?))).max_by(|a, b| a.1.total_cmp(&b.1));
    match best {
        Some((best, removed)) if removed > 0.0 => format!(
            "no single change removes 95 % of the {late} late requests; the best, {}, removes {:.0} %",
            best.change,
            removed * 100.0
        ),
        _ => format!("no single change removes any of the {late} late requests"),
    }
}

/// Returns the changes by what they remove, the most first; those that make it worse come last.
fn by_help(tried: &[Tried]) -> Vec<&Tried> {
    let helps = |each: &Tried| each.removed.unwrap_or(f64::NEG_INFINITY);
    let mut sorted: Vec<&Tried> = tried.iter().collect();
    sorted.sort_by(|a, b| helps(b).total_cmp(&helps(a)));
    sorted
}

/// Returns a warning if the simulation of what happened is far from it, and otherwise nothing.
fn distrust(measured: u64, simulated: u64) -> String {
    if measured.abs_diff(simulated) as f64 <= FAR * measured.max(simulated) as f64 {
        return String::new();
    }
    format!(
        "\nmeasured were {measured} late, and simulated {simulated} of the same load: something mattered that is not in \
         the recording, such as other load on the machine. Trust the order of the changes more than their figures"
    )
}

/// Returns the changes to try, the smallest first.
fn candidates(read: &ReadRecording, base: &Summary) -> Vec<Change> {
    let mut late: Vec<_> = base.models.iter().map(|model| (bad(&model.figures), model.name.clone())).collect();
    late.sort_by_key(|(bad, _)| std::cmp::Reverse(*bad));
    let late: Vec<String> =
        late.into_iter().filter(|(bad, _)| *bad > 0).map(|(_, name)| name).take(MOST_MODELS).collect();
    let models: Vec<_> = read.recorded.models().collect();
    let mut changes = Vec::new();
    for model in models.iter().take(MOST_MODELS) {
        let most = model.blocks.iter().map(ripieno_model::Block::max_batch).min().unwrap_or(1);
        let sizes = [model.max_batch / 2, model.max_batch * 2].into_iter().map(|rows| rows.min(most));
        let sizes = sizes.filter(|rows| *rows > 0 && *rows != model.max_batch);
        changes.extend(sizes.map(|rows| Change::MaxBatch(model.name.clone(), rows)));
    }
    let policies = ["unified", "deferred", "cellular", "lazy"].into_iter().filter(|policy| *policy != read.policy());
    changes.extend(policies.map(|policy| Change::Policy(policy.to_owned())));
    for factor in SLO_FACTORS {
        for name in &late {
            let Some(model) = models.iter().find(|model| model.name == *name) else { continue };
            let slo = Nanos((model.slo.0 as f64 * factor) as i64);
            changes.push(Change::Slo(Some(name.clone()), slo));
        }
    }
    let devices = read.devices();
    changes.push(Change::Devices(devices + 1));
    if devices > 1 {
        changes.push(Change::Devices(devices.saturating_mul(2)));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_makes_it_worse_comes_last_and_is_not_proposed() {
        let tried = |devices: u16, removed: f64| Tried {
            change: Change::Devices(devices),
            bad: Some(0),
            removed: Some(removed),
            p99_ms: None,
            error: None,
        };
        let all = [tried(2, -0.5), tried(3, 0.2), tried(4, 0.6)];
        let shown: Vec<String> = by_help(&all).iter().map(|each| each.change.to_string()).collect();
        assert_eq!(shown, ["devices=4", "devices=3", "devices=2"]);
        assert!(verdict(10, 20, &all, None).contains("the best, devices=4, removes 60 %"));
        assert_eq!(verdict(10, 20, &all[..1], None), "no single change removes any of the 10 late requests");
        assert!(distrust(2_652, 1_248).contains("2652") && distrust(100, 90).is_empty());
    }
}
