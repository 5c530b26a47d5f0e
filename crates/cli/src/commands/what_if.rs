//! A change to a recorded run, and what it would have done: `simulate --what-if`, `doctor`.

use crate::args::overrides::Overrides;
use crate::commands::recording::{ReadRecording, RecordingArgs};
use anyhow::bail;
use ripieno_base::Nanos;
use ripieno_policies::find;
use ripieno_report::{Figures, Summary, Table, number};
use ripieno_sim::simulate;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A single change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Policy(String),
    Devices(u16),
    /// The SLO of a model, or of all.
    Slo(Option<String>, Nanos),
    MaxBatch(String, usize),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Change, String> {
        let form = || "give policy=NAME, devices=N, slo.MODEL=MS, slo=MS or max_batch.MODEL=ROWS".to_owned();
        let (key, value) = text.split_once('=').ok_or_else(form)?;
        let (key, model) = key.split_once('.').map_or((key, None), |(key, model)| (key, Some(model.to_owned())));
        let bad = |what: &str| format!("{text}: {value:?} is no {what}");
        match (key, model) {
            ("policy", None) => Ok(Change::Policy(value.to_owned())),
            ("devices", None) => {
                value.parse().ok().filter(|n| *n > 0).map(Change::Devices).ok_or_else(|| bad("number of devices"))
            }
            ("slo", model) => {
                let ms = value.parse().ok().filter(|ms| (0.001..1e9).contains(ms));
                ms.map(|ms| Change::Slo(model, Nanos::from_millis_f64(ms))).ok_or_else(|| bad("number of milliseconds"))
            }
            ("max_batch", Some(model)) => {
                let rows = value.parse().ok().filter(|rows| *rows > 0);
                rows.map(|rows| Change::MaxBatch(model, rows)).ok_or_else(|| bad("number of rows"))
            }
            _ => Err(form()),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Policy(policy) => write!(f, "policy={policy}"),
            Change::Devices(devices) => write!(f, "devices={devices}"),
            Change::Slo(Some(model), slo) => write!(f, "slo.{model}={}", slo.as_millis_f64()),
            Change::Slo(None, slo) => write!(f, "slo={}", slo.as_millis_f64()),
            Change::MaxBatch(model, rows) => write!(f, "max_batch.{model}={rows}"),
        }
    }
}

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A run with its number of devices.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WhatIfRun {
    #[serde(flatten)]
    pub(crate) summary: Summary,
    pub(crate) devices: usize,
}

impl WhatIfRun {
    /// Returns the measurement of a recorded run.
    pub(crate) fn measured(read: &ReadRecording) -> WhatIfRun {
        WhatIfRun { summary: read.measured(), devices: usize::from(read.devices()) }
    }

    /// Mean number of devices that work.
    fn busy(&self) -> f64 {
        self.summary.total.busy_fraction * self.devices as f64
    }
}

/// Simulates a recording with these changes.
pub(crate) fn run(
    read: &ReadRecording,
    args: &RecordingArgs,
    overrides: &Overrides,
    changes: &[Change],
) -> anyhow::Result<WhatIfRun> {
    let (mut args, mut overrides, mut recorded) = (args.clone(), overrides.clone(), read.recorded.clone());
    for change in changes {
        let known = match change {
            Change::Policy(policy) => {
                find(policy)?;
                overrides.policy.policy = Some(policy.clone());
                true
            }
            Change::Devices(devices) => {
                args = args.with_devices(*devices);
                true
            }
            Change::Slo(None, slo) => {
                recorded.set_slo(*slo);
                true
            }
            Change::Slo(Some(model), slo) => recorded.set_slo_of(model, *slo),
            Change::MaxBatch(model, rows) => recorded.set_max_batch(model, *rows),
        };
        if !known {
            let known: Vec<_> = recorded.models().map(|model| model.name.as_str()).collect();
            bail!("--what-if {change}: the recording has no such model, only: {}", known.join(", "));
        }
    }
    let scenario = args.scenario(&read.with(recorded), &overrides)?;
    scenario.check_run(&read.name())?;
    let mut summary = simulate(&scenario, None)?;
    summary.policy = match changes {
        [] => format!("{} (simulated)", summary.policy),
        changes => changes.iter().map(Change::to_string).collect::<Vec<_>>().join(" "),
    };
    Ok(WhatIfRun { summary, devices: scenario.setup.devices })
}

/// Number of requests that were late or dropped.
pub(crate) fn bad(figures: &Figures) -> u64 {
    figures.late + figures.dropped
}

/// Returns a table of runs on one load, each beside the second one, which is the simulation of what
/// happened.
pub(crate) fn table(runs: &[WhatIfRun]) -> Table {
    let mut table = Table::new([
        "run",
        "requests",
        "late or dropped",
        "change",
        "p50 ms",
        "p99 ms",
        "mean batch",
        "busy devices",
        "change",
    ]);
    let base = runs.get(1).or(runs.first());
    for (at, run) in runs.iter().enumerate() {
        let base = base.unwrap_or(run);
        let (now, before, figures) = (run.busy(), base.busy(), &run.summary.total);
        let signed = |value: f64| if at < 2 { String::new() } else { format!("{value:+.0}") };
        let share =
            if at < 2 || before == 0.0 { String::new() } else { format!("{:+.1} %", (now / before - 1.0) * 100.0) };
        let ms = |value: Option<f64>| number(value.unwrap_or(f64::NAN));
        table.row([
            run.summary.policy.clone(),
            figures.requests.to_string(),
            bad(figures).to_string(),
            signed(bad(figures) as f64 - bad(&base.summary.total) as f64),
            ms(figures.p50_ms),
            ms(figures.p99_ms),
            number(figures.mean_batch),
            number(now),
            share,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_are_written() {
        for text in ["policy=unified", "devices=3", "slo.m=12.5", "slo=20", "max_batch.a.b=8"] {
            assert_eq!(text.parse::<Change>().unwrap().to_string(), text);
        }
        assert_eq!("max_batch.a.b=8".parse(), Ok(Change::MaxBatch("a.b".to_owned(), 8)));
        for text in ["devices=0", "slo.m=x", "max_batch=3", "policy", "colour=red", "max_batch.m=0"] {
            assert!(text.parse::<Change>().is_err(), "{text}");
        }
    }
}
