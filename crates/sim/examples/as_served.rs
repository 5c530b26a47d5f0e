//! Goodput, mean latency and answers in time of scenario files, served as `ripieno serve` would:
//! `cargo run --release -p ripieno-sim --example as_served -- FOLDER [BASELINE]`.
//!
//! It prints a line of CSV for each file: the goodput; the mean latency at 60 %, and the fraction
//! in time of the model that fares worst at 110 % of the goodput. That goodput is the baseline's
//! for the file, where the baseline is an output of an earlier run, or a search finds it. Each
//! figure is a mean over runs with other arrivals, since a single run near the peak may be 1 % off.
//! `scripts/constants` compares variants of the scheduler with it.

use ripieno_report::{Search, Summary, search};
use ripieno_sched::Objective;
use ripieno_sim::{Scenario, SimError, simulate_at};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of runs at each rate, with other seeds.
const RUNS: u64 = 3;
/// Rates at which the goodput is looked for, relative to the known one.
const RATES: [f64; 10] = [0.3, 0.5, 0.65, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2];
/// Largest part of any model's requests that is dropped or late at the goodput.
const MOST_BAD: f64 = 0.01;

/// Figures of one scenario.
struct Figures {
    goodput: f64,
    mean_ms: f64,
    in_time: f64,
}

/// Returns the geometric mean over the models of their mean latencies.
fn mean_ms(run: &Summary) -> f64 {
    let means = run.models.iter().filter_map(|model| model.figures.mean_ms);
    let (sum, count) = means.fold((0.0, 0), |(sum, count), mean| (sum + mean.ln(), count + 1));
    (sum / f64::from(count.max(1))).exp()
}

/// Returns the mean of a figure over runs at this rate.
fn mean(scenario: &Scenario, rate: f64, figure: fn(&Summary) -> f64) -> Result<f64, SimError> {
    let mut sum = 0.0;
    for run in 0..RUNS {
        let scenario = Scenario { seed: scenario.seed + (run << 32), ..scenario.clone() };
        sum += figure(&simulate_at(&scenario, rate, None)?);
    }
    Ok(sum / RUNS as f64)
}

/// Returns the rate at which [`MOST_BAD`] is reached, between two of [`RATES`].
fn goodput(scenario: &Scenario, known: f64) -> Result<f64, SimError> {
    let bad = |part: f64| mean(scenario, known * part, |run| run.worst_bad_rate);
    // The highest rate that is carried, from the known one on.
    let mut at = RATES.iter().position(|&part| part == 1.0).expect("the known rate is one of them");
    let mut own = bad(RATES[at])?;
    while own > MOST_BAD && at > 0 {
        let above = own;
        at -= 1;
        own = bad(RATES[at])?;
        if own <= MOST_BAD {
            return Ok(known * between(at, own, above));
        }
    }
    while own <= MOST_BAD && at + 1 < RATES.len() {
        let above = bad(RATES[at + 1])?;
        if above > MOST_BAD {
            return Ok(known * between(at, own, above));
        }
        (at, own) = (at + 1, above);
    }
    Ok(known * RATES[at])
}

/// Returns where the line between two rates crosses [`MOST_BAD`].
fn between(at: usize, own: f64, above: f64) -> f64 {
    RATES[at] + (RATES[at + 1] - RATES[at]) * (MOST_BAD - own) / (above - own)
}

/// Returns the figures of a file; `None` if no rate is carried.
fn measure(file: &Path, baseline: Option<f64>) -> Result<Option<Figures>, String> {
    let mut scenario = Scenario::read(file).map_err(|error| error.to_string())?;
    scenario.serve(Objective::default());
    figures(&scenario, baseline).map_err(|error| error.to_string())
}

fn figures(scenario: &Scenario, baseline: Option<f64>) -> Result<Option<Figures>, SimError> {
    let Some(known) = baseline else {
        let bad = |rate| Ok::<_, SimError>((simulate_at(scenario, rate, None)?.worst_bad_rate, ()));
        let found = search(Search::from_ceiling(scenario.bound_rps()), bad)?;
        return figures(scenario, Some(found.goodput_rps()));
    };
    if known == 0.0 {
        return Ok(None);
    }
    let in_time = |run: &Summary| 1.0 - run.worst_bad_rate;
    Ok(Some(Figures {
        goodput: goodput(scenario, known)?,
        mean_ms: mean(scenario, known * 0.6, mean_ms)?,
        in_time: mean(scenario, known * 1.1, in_time)?,
    }))
}

/// Reads the goodput of each file from the output of an earlier run.
fn goodputs(baseline: &Path) -> Result<HashMap<String, f64>, String> {
    let text = std::fs::read_to_string(baseline).map_err(|error| format!("{}: {error}", baseline.display()))?;
    let line = |line: &str| {
        let mut cells = line.split(',');
        let (name, goodput) = (cells.next()?.to_owned(), cells.next()?.parse().ok()?);
        Some((name, goodput))
    };
    Ok(text.lines().skip(1).filter_map(line).collect())
}

fn scenarios(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = paths.filter(|path| path.extension().is_some_and(|is| is == "toml")).collect();
    files.sort();
    Ok(files)
}

fn run() -> Result<(), String> {
    let arguments: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let Some(folder) = arguments.first() else {
        return Err("give a folder of scenario files, and the output of an earlier run to compare with".to_owned());
    };
    let baseline = arguments.get(1).map_or(Ok(HashMap::new()), |file| goodputs(file))?;
    let files = scenarios(folder)?;
    let name = |file: &Path| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let known = baseline.get(&name(file)).copied();
            if !baseline.is_empty() && known.is_none() {
                continue;
            }
            done.push((name(file), measure(file, known).map_err(|error| format!("{}: {error}", file.display()))?));
        }
        Ok::<_, String>(done)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rows = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| "a simulation panicked".to_owned())??);
        }
        Ok::<_, String>(all)
    })?;
    rows.sort_by(|(one, _), (other, _)| one.cmp(other));
    println!("scenario,goodput_rps,mean_ms,in_time");
    for (name, figures) in rows {
        match figures {
            Some(Figures { goodput, mean_ms, in_time }) => println!("{name},{goodput:.3},{mean_ms:.4},{in_time:.5}"),
            None => eprintln!("{name}: left out: at any rate more than 1 % are late or dropped"),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("as_served: {error}");
            ExitCode::FAILURE
        }
    }
}
