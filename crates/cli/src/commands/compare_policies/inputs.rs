//! The workloads of the comparison: scenario files and recordings, all files of a folder, or
//! workloads drawn from seeds.

use super::random::{self, Kind};
use super::worlds::{TaskWorld, kind_of};
use crate::args::overrides::Overrides;
use crate::args::policy::PolicyArgs;
use crate::commands::recording::{ReadRecording, RecordingArgs};
use anyhow::{Context, bail, ensure};
use ripieno_base::Nanos;
use ripieno_sim::{Length, Planning, Scenario};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A scenario with its name, in a world.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) world: TaskWorld,
    pub(super) scenario: Scenario,
}

/// The random workloads to draw.
#[derive(Clone, Copy)]
pub(super) struct RandomWorkloads<'a> {
    pub(super) kinds: &'a [Kind],
    pub(super) worlds: &'a [TaskWorld],
    /// The first seed of each kind, and the number of seeds.
    pub(super) seed: u64,
    pub(super) cases: u64,
    pub(super) requests: u64,
    /// The folder to write them into as scenario files.
    pub(super) keep: Option<&'a Path>,
}

/// A scenario that is not compared.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Skipped {
    pub(super) scenario: String,
    pub(super) why: String,
}

/// Shortest run, in SLOs: a shorter one shows its end rather than a steady state.
const LEAST_SLOS: i64 = 10;

/// Reads the workloads of these files and folders, scenarios in each of the worlds. Unsuitable
/// scenarios are skipped, but a named file must be a scenario or a recording.
pub(super) fn read(
    paths: &[PathBuf],
    worlds: &[TaskWorld],
    requests: Option<u64>,
) -> anyhow::Result<(Vec<Workload>, Vec<Skipped>)> {
    let (mut workloads, mut skipped) = (Vec::new(), Vec::new());
    for path in paths {
        let is_folder = path.is_dir();
        let mut files = vec![path.clone()];
        if is_folder {
            files.clear();
            inputs_in(path, &mut files)?;
            ensure!(!files.is_empty(), "{} holds no scenario (*.toml) and no recording (*.jsonl)", path.display());
        }
        for file in files {
            let name = file.display().to_string();
            if is_recording(&file) {
                workloads.push(recorded(&file)?);
                continue;
            }
            let why = match Scenario::read(&file) {
                Ok(scenario) => match unsuitable(&scenario) {
                    None => {
                        let scenario = lasting(scenario, requests);
                        workloads.extend(worlds.iter().map(|&world| Workload::of(&name, &scenario, world)));
                        continue;
                    }
                    Some(why) => why,
                },
                Err(error) if is_folder => without_file(&name, &error.to_string()).to_owned(),
                Err(error) => return Err(error.into()),
            };
            skipped.push(Skipped { scenario: name, why });
        }
    }
    Ok((workloads, skipped))
}

impl Workload {
    fn of(name: &str, scenario: &Scenario, world: TaskWorld) -> Workload {
        let mut scenario = scenario.clone();
        world.apply(&mut scenario);
        Workload { name: world.of(name), kind: kind_of(&scenario), world, scenario }
    }
}

/// Reads a recording as a workload.
fn recorded(file: &Path) -> anyhow::Result<Workload> {
    let overrides = Overrides { policy: PolicyArgs::default(), as_served: true, seed: None, rate: None, check: false };
    let name = file.display().to_string();
    let read = ReadRecording::open(file)?;
    let scenario = RecordingArgs::default().scenario(&read, &overrides)?;
    scenario.check_run(&name)?;
    Ok(Workload { name, kind: kind_of(&scenario), world: TaskWorld::Replayed, scenario })
}

/// Draws workloads from consecutive seeds, of each kind, in each world.
pub(super) fn draw(drawn: RandomWorkloads<'_>) -> anyhow::Result<Vec<Workload>> {
    let RandomWorkloads { kinds, worlds, seed, cases, requests, keep } = drawn;
    if let Some(folder) = keep {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let Some(end) = seed.checked_add(cases) else { bail!("--seed and --cases go beyond the largest seed") };
    let mut workloads = Vec::new();
    for &kind in kinds {
        for &world in worlds {
            for seed in seed..end {
                let name = world.of(&format!("{}-{seed}", kind.name()));
                let text = random::workload(kind, seed, requests) + &world.keys();
                if let Some(folder) = keep {
                    let file = folder.join(format!("{name}.toml"));
                    std::fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
                }
                let scenario = lasting(Scenario::parse(&text, &name)?, Some(requests));
                workloads.push(Workload { name, kind, world, scenario });
            }
        }
    }
    Ok(workloads)
}

/// Collects all scenario files and recordings in a folder and those below, ordered by name.
fn inputs_in(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        // A link may lead to a parent folder.
        if path.is_dir() && !path.is_symlink() {
            inputs_in(&path, files)?;
        } else if path.is_file() && (path.extension().is_some_and(|is| is == "toml") || is_recording(&path)) {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns true if a file is a recording, by its name.
fn is_recording(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [".jsonl", ".jsonl.gz"].iter().any(|end| name.ends_with(end))
}

/// Returns the reason why the load of a scenario cannot be varied.
fn unsuitable(scenario: &Scenario) -> Option<String> {
    let Planning { sub_clusters, memory_mb_per_device, max_rate, .. } = scenario.planning;
    let planned = sub_clusters.is_some() || memory_mb_per_device.is_some() || max_rate.is_some();
    let why = if scenario.requests.is_some() {
        "requests_file says what arrives, so the rate cannot be varied; give rate instead"
    } else if scenario.autoscale.is_some() {
        "its devices follow the load; remove [autoscale] and give a steady rate"
    } else if scenario.loads.iter().any(|load| load.curve.is_some()) {
        "its load changes over the run; give a steady rate instead of [[phase]], rates and drift"
    } else if planned {
        "it asks how many devices are needed; use ripieno plan, or remove [plan] and give [cluster] devices"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Returns the scenario with runs of `requests` requests, and no shorter than statistics need.
fn lasting(mut scenario: Scenario, requests: Option<u64>) -> Scenario {
    scenario.window = None;
    if let Some(requests) = requests {
        let slo = scenario.setup.models.iter().map(|model| model.slo).max().unwrap_or(Nanos::ZERO);
        let least = Nanos(slo.0 * LEAST_SLOS).as_secs_f64() * scenario.bound_rps();
        scenario.length = Length::Requests(requests.max(least as u64));
    }
    scenario
}

/// Returns an error without the file name in front, which is printed beside it.
pub(super) fn without_file<'e>(name: &str, error: &'e str) -> &'e str {
    error.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(error).trim_end()
}
