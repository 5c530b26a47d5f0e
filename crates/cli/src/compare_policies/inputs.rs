//! The workloads of the comparison: scenario files, those of a folder, or workloads drawn from
//! seeds.

use super::random::{self, Kind};
use anyhow::{Context, bail, ensure};
use ripieno_base::Nanos;
use ripieno_sim::{Length, Planning, Scenario};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A scenario with its name.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) scenario: Scenario,
}

/// A scenario that is not compared.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Skipped {
    pub(super) scenario: String,
    pub(super) why: String,
}

/// Shortest run, in SLOs: a shorter one shows its end rather than a steady state.
const LEAST_SLOS: i64 = 10;

/// Reads the workloads of these files and folders. Unsuitable scenarios are skipped, but a named
/// file must be a scenario.
pub(super) fn read(paths: &[PathBuf], requests: Option<u64>) -> anyhow::Result<(Vec<Workload>, Vec<Skipped>)> {
    let (mut workloads, mut skipped) = (Vec::new(), Vec::new());
    for path in paths {
        let is_folder = path.is_dir();
        let mut files = vec![path.clone()];
        if is_folder {
            files.clear();
            scenarios_in(path, &mut files)?;
            ensure!(!files.is_empty(), "{} holds no scenario file (*.toml)", path.display());
        }
        for file in files {
            let name = file.display().to_string();
            let why = match Scenario::read(&file) {
                Ok(scenario) => match unsuitable(&scenario) {
                    None => {
                        workloads.push(Workload { name, scenario: lasting(scenario, requests) });
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

/// Draws workloads from consecutive seeds; writes them to `keep`, if given.
pub(super) fn draw(
    kind: Kind,
    seed: u64,
    cases: u64,
    requests: u64,
    keep: Option<&Path>,
) -> anyhow::Result<Vec<Workload>> {
    if let Some(folder) = keep {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let workload = |seed: u64| {
        let (name, text) = (format!("{}-{seed}", kind.name()), random::workload(kind, seed, requests));
        if let Some(folder) = keep {
            let file = folder.join(format!("{name}.toml"));
            std::fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        let scenario = Scenario::parse(&text, &name)?;
        Ok(Workload { scenario: lasting(scenario, Some(requests)), name })
    };
    let Some(end) = seed.checked_add(cases) else { bail!("--seed and --cases go beyond the largest seed") };
    (seed..end).map(workload).collect()
}

/// Collects all scenario files in a folder and those below, ordered by name.
fn scenarios_in(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        // A link may lead to a parent folder.
        if path.is_dir() && !path.is_symlink() {
            scenarios_in(&path, files)?;
        } else if path.is_file() && path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    Ok(())
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
