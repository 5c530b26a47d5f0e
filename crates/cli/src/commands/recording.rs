//! Simulates the arrivals of a recorded live run.

use crate::args::overrides::Overrides;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_base::Nanos;
use ripieno_policies::{Policy, find};
use ripieno_report::Summary;
use ripieno_runtime::{Header, RecordedEvents};
use ripieno_sched::{Limits, Options};
use ripieno_sim::{Recorded, Scenario};
use std::path::{Path, PathBuf};

/// Number of lines between updates of the progress bar.
const LINES: usize = 4096;

/// A recording instead of a scenario.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RecordingArgs {
    /// Simulate the arrivals of a recording of `ripieno serve --record FILE` instead of a scenario,
    /// under the recorded policy or --policy, with the margins and the admission control of a
    /// server.
    ///
    /// Models, requests, their rows, lengths, graphs and time limits are as recorded, and so are
    /// the pauses of the machine: a request reaches the scheduler as late as it did, the end of a
    /// task as late as one that ended at about the same time. The first line of the result is the
    /// measurement. Approximations: models count in their latest form and from the start. No client
    /// disconnects, no device fails. A request without an answer walks as far as an answered one of
    /// its model, in turn. Requests that were refused before the scheduler saw them (full queues,
    /// bad inputs) are not in a recording.
    #[arg(long, value_name = "FILE")]
    pub(crate) recording: Option<PathBuf>,

    /// The SLO of every model, instead of the recorded ones; shorter time limits of clients stay.
    #[arg(long, value_name = "MS", requires = "recording", value_parser = slo)]
    slo_ms: Option<Nanos>,

    /// Number of devices, instead of the recorded one.
    #[arg(long, value_name = "N", requires = "recording", value_parser = clap::value_parser!(u16).range(1..))]
    devices: Option<u16>,

    /// Without the machine's own delays: tasks take exactly as long as profiled, and nothing is
    /// late.
    #[arg(long, requires = "recording")]
    exact: bool,
}

/// A recording, read.
pub(crate) struct ReadRecording {
    file: PathBuf,
    header: Header,
    pub(crate) recorded: Recorded,
}

/// A recording as a scenario.
pub(crate) struct Replayed {
    pub(crate) scenario: Scenario,
    /// The measurement of the recorded run.
    pub(crate) measured: Summary,
}

fn slo(text: &str) -> Result<Nanos, String> {
    match text.parse() {
        Ok(ms) if (0.001..1e9).contains(&ms) => Ok(Nanos::from_millis_f64(ms)),
        _ => Err("it must be a number of milliseconds of at least 0.001".to_owned()),
    }
}

impl RecordingArgs {
    /// Refuses flags that change a recording if a scenario is given. The parser does not, since a
    /// scenario excludes the recording that they require.
    pub(crate) fn check_absent(&self) -> anyhow::Result<()> {
        let given =
            [("--slo-ms", self.slo_ms.is_some()), ("--devices", self.devices.is_some()), ("--exact", self.exact)];
        match given.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => bail!("{option} changes a recording; write it into the scenario file instead"),
            None => Ok(()),
        }
    }

    /// Reads the recording as a scenario, with the changes.
    pub(crate) fn read(&self, file: &Path, overrides: &Overrides) -> anyhow::Result<Replayed> {
        if overrides.rate.is_some() {
            bail!("--rate has no effect: the recording says what arrives");
        }
        let read = ReadRecording::open(file)?;
        let measured = read.measured();
        Ok(Replayed { scenario: self.scenario(&read, overrides)?, measured })
    }

    /// Returns a recording as a scenario, with the changes.
    pub(crate) fn scenario(&self, read: &ReadRecording, overrides: &Overrides) -> anyhow::Result<Scenario> {
        let ReadRecording { file, header, recorded } = read;
        let mut recorded = recorded.clone();
        if let Some(slo) = self.slo_ms {
            recorded.set_slo(slo);
        }
        if self.exact {
            recorded.set_exact();
        }
        let first_line = || format!("{}:1", file.display());
        let options = serde_json::from_value(header.options.clone()).with_context(first_line)?;
        let (policy, options) = policy(header, options, overrides)?;
        let row = find(&policy).with_context(|| format!("{}: give another with --policy", first_line()))?;
        let limits = self.limits(header, row, &options);
        let scenario = recorded.scenario(&policy, options, limits);
        let mut scenario = scenario.map_err(|problem| anyhow!("{}: {problem}", file.display()))?;
        scenario.seed = overrides.seed.unwrap_or(scenario.seed);
        scenario.check = overrides.checks();
        Ok(scenario)
    }

    /// Returns these changes with another number of devices.
    pub(crate) fn with_devices(&self, devices: u16) -> RecordingArgs {
        RecordingArgs { devices: Some(devices), ..self.clone() }
    }

    /// Returns the recorded limits, as long as their inputs are unchanged.
    fn limits(&self, header: &Header, policy: &'static Policy, options: &Options) -> Limits {
        let recorded = header.setup.limits;
        let devices = self.devices.map_or(header.setup.devices, usize::from);
        let same = policy.name == header.policy && serde_json::to_value(options).is_ok_and(|all| all == header.options);
        match same {
            true => Limits { devices, ..recorded },
            false => policy.needs(options).served(devices, recorded.requests),
        }
    }
}

impl ReadRecording {
    /// Reads a recording.
    pub(crate) fn open(file: &Path) -> anyhow::Result<ReadRecording> {
        let (header, recorded) = events(file)?;
        Ok(ReadRecording { file: file.to_owned(), header, recorded })
    }

    /// Returns this recording with changed models.
    pub(crate) fn with(&self, recorded: Recorded) -> ReadRecording {
        ReadRecording { file: self.file.clone(), header: self.header.clone(), recorded }
    }

    /// Returns the name of the file.
    pub(crate) fn name(&self) -> String {
        self.file.display().to_string()
    }

    /// Returns the measurement of the recorded run.
    pub(crate) fn measured(&self) -> Summary {
        self.recorded.measured(&format!("{} (measured)", self.header.policy))
    }

    /// Returns the number of devices of the recorded run.
    pub(crate) fn devices(&self) -> u16 {
        self.header.setup.devices.min(usize::from(u16::MAX)) as u16
    }

    /// Returns the recorded policy.
    pub(crate) fn policy(&self) -> &str {
        &self.header.policy
    }
}

/// Returns the policy and its options: the recorded ones, or a server's with the given policy or
/// the default.
fn policy(header: &Header, options: Options, overrides: &Overrides) -> anyhow::Result<(String, Options)> {
    if overrides.as_served || overrides.policy.policy.is_some() {
        return overrides.policy.served(None);
    }
    Ok((header.policy.clone(), overrides.policy.over(options)))
}

/// Reads all events of a recording, up to a truncated line.
fn events(file: &Path) -> anyhow::Result<(Header, Recorded)> {
    let mut events = RecordedEvents::open(file)?;
    let place = |line: usize| format!("{}:{line}", file.display());
    let damaged = |line, problem| {
        anyhow!("{}: {problem}; the file was changed or damaged: record the run anew, or cut it off here", place(line))
    };
    let header = events.header().clone();
    let mut recorded = Recorded::new(&header.setup).map_err(|problem| damaged(1, problem))?;
    if header.sub_clusters > 1 {
        let (file, number) = (file.display(), header.sub_clusters);
        bail!("{file}:1: {number} sub-clusters recorded beside each other; only `ripieno why` reads that");
    }
    if header.shards > 1 {
        let (file, shards) = (file.display(), header.shards);
        bail!("{file}:1: {shards} shards recorded beside each other; `ripieno replay` reads that, `simulate` only one");
    }
    let bar = ProgressBar::new(std::fs::metadata(file).map_or(0, |file| file.len()));
    bar.set_style(ProgressStyle::with_template("reading [{bar:30}] {bytes}/{total_bytes} {msg}")?);
    while let Some((_, now, event)) = events.next()? {
        recorded.event(now, &event).map_err(|problem| damaged(events.line(), problem))?;
        if events.line().is_multiple_of(LINES) {
            bar.set_position(events.bytes());
            bar.set_message(format!("{} requests", recorded.requests()));
        }
    }
    bar.finish_and_clear();
    if events.is_truncated() {
        let (requests, place) = (recorded.requests(), place(events.line()));
        tracing::warn!("{place}: the recording ends here without its last line; its {requests} requests are simulated");
    }
    Ok((header, recorded))
}
