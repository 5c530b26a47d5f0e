//! Is what is simulated what was served? Live runs on an emulated device, recorded, and simulated
//! from their recordings.
//!
//! For each policy the server runs with `--record`, the load generator drives it at 0.7 of what the
//! policy can answer in time, and `ripieno simulate --recording` serves the recorded arrivals
//! again. Live figures are the scheduler's: from a request's arrival in the server to the end of
//! its last task; what the client sees stands beside them. Each policy has several rounds; what
//! counts is the median of each ratio, since single runs on a shared machine meet its pauses.

use crate::server::{Server, ask, release};
use crate::steps::{cargo, root, step};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A policy under a load that suits it.
struct Load {
    policy: &'static str,
    model: &'static str,
    /// Requests a second: 0.7 of what `ripieno goodput` says of the same model under this policy.
    rate: f64,
    /// Flags of the load generator that describe the requests.
    requests: &'static [&'static str],
}

const LOADS: [Load; 4] = [
    Load { policy: "deferred", model: "whole", rate: 260.0, requests: &[] },
    Load { policy: "timeout", model: "whole", rate: 240.0, requests: &[] },
    Load { policy: "dva", model: "chain", rate: 140.0, requests: &[] },
    Load { policy: "cellular", model: "cells", rate: 197.0, requests: &["--lengths", "24"] },
];

/// The models, each in a repository of its own, since one policy serves all models of a server.
const MODELS: [(&str, &str); 3] = [
    ("whole", "slo_ms = 120.0\nmax_batch = 32\nalpha_ms = 2.0\nbeta_ms = 10.0\n"),
    (
        "chain",
        "slo_ms = 160.0\nmax_batch = 16\nwalk = \"chain\"\n\
         [[block]]\nname = \"first\"\nalpha_ms = 1.6\nbeta_ms = 4.0\n\
         [[block]]\nname = \"second\"\nalpha_ms = 0.8\nbeta_ms = 6.0\n\
         [[block]]\nname = \"third\"\nalpha_ms = 1.2\nbeta_ms = 2.0\n",
    ),
    (
        "cells",
        "slo_ms = 600.0\nmax_length = 64\nmax_batch = 64\nwalk = \"repeat\"\n\
         [[block]]\nname = \"cell\"\nalpha_ms = 0.1\nbeta_ms = 3.0\n[block.inputs]\ntoken = \"request\"\n\
         [[input]]\nname = \"token\"\ndatatype = \"INT64\"\nshape = [-1, -1]\n\
         [[output]]\nname = \"y\"\nfrom = \"cell.y\"\ndatatype = \"FP32\"\nshape = [-1, 1]\n",
    ),
];

/// The bounds, as the share by which a simulated figure may differ from the live one.
const FIGURES: [(&str, f64); 3] = [("goodput_rps", 0.02), ("p50_ms", 0.10), ("p99_ms", 0.10)];

/// The measurement.
struct Plan {
    seconds: u32,
    rounds: usize,
    binary: PathBuf,
    policies: Vec<String>,
}

pub(crate) fn run(options: &[&str]) -> Result<()> {
    let plan = plan(options)?;
    if plan.binary == release() {
        step("build the server", &mut cargo(&["build", "--release", "--package", "ripieno-cli"]))?;
    }
    let folder = root().join("target/fidelity");
    println!(
        "{:<10}{:>8}  {:>26}  {:>26}  {:>26}  {:>17}{:>9}",
        "policy",
        "rate/s",
        "goodput/s live, sim, ratio",
        "p50 ms live, sim, ratio",
        "p99 ms live, sim, ratio",
        "client p50, p99",
        "stolen %"
    );
    let mut far = Vec::new();
    for load in LOADS.iter().filter(|load| plan.policies.is_empty() || plan.policies.iter().any(|p| p == load.policy)) {
        let repository = folder.join(load.model);
        write_model(&repository, load.model)?;
        let rounds = (0..plan.rounds).map(|round| Round::run(&plan, load, &repository, round));
        let rounds = rounds.collect::<Result<Vec<_>>>()?;
        rounds.iter().for_each(|round| println!("{:<10}{:>8}  {}", "", "", round.line()));
        let median = Round::median(&rounds);
        println!("{:<10}{:>8}  {}", load.policy, load.rate, median.line());
        for ((key, bound), [_, _, ratio]) in FIGURES.iter().zip(median.figures) {
            if ratio.is_nan() || (ratio - 1.0).abs() > *bound {
                far.push(format!("{} {key}: {ratio:.3}", load.policy));
            }
        }
    }
    if far.is_empty() { Ok(()) } else { bail!("simulated and live differ: {}", far.join(", ")) }
}

fn plan(options: &[&str]) -> Result<Plan> {
    let mut plan = Plan { seconds: 60, rounds: 5, binary: release(), policies: Vec::new() };
    let mut words = options.iter();
    while let Some(&word) = words.next() {
        let mut value = || words.next().copied().with_context(|| format!("{word} needs a value"));
        match word {
            "--seconds" => plan.seconds = value()?.parse().context("--seconds")?,
            "--rounds" => plan.rounds = value()?.parse().context("--rounds")?,
            "--binary" => plan.binary = PathBuf::from(value()?),
            policy if LOADS.iter().any(|load| load.policy == policy) => plan.policies.push(policy.to_owned()),
            _ => bail!("{word:?} is neither an option nor one of {}", LOADS.map(|load| load.policy).join(", ")),
        }
    }
    if plan.rounds == 0 { bail!("--rounds must be at least 1") } else { Ok(plan) }
}

fn write_model(repository: &Path, model: &str) -> Result<()> {
    let (_, text) = MODELS.iter().find(|(name, _)| *name == model).context("an unknown model")?;
    std::fs::create_dir_all(repository.join(model).join("1"))?;
    Ok(std::fs::write(repository.join(model).join("model.toml"), text)?)
}

/// The result of a run: each figure live, simulated, and their ratio.
#[derive(Clone, Copy)]
struct Round {
    figures: [[f64; 3]; FIGURES.len()],
    /// p50 and p99 as the client measured them.
    client: [f64; 2],
    /// Share of the processor time that other virtual machines took (steal).
    stolen: f64,
}

impl Round {
    fn run(plan: &Plan, load: &Load, repository: &Path, round: usize) -> Result<Round> {
        let record = repository.with_extension(format!("{}.jsonl", load.policy));
        let record = record.to_str().context("the path of the recording is not UTF-8")?;
        let before = processor_times()?;
        let options = ["--device", "emulated", "--policy", load.policy, "--record", record];
        let server = Server::start(&plan.binary, repository, &options)?;
        let (rate, seconds, seed) = (load.rate.to_string(), plan.seconds.to_string(), (round + 1).to_string());
        let mut bench = vec!["bench", &server.http, "--model", load.model, "--rate", &rate, "--duration", &seconds];
        bench.extend(["--warmup", "0", "--seed", &seed]);
        bench.extend(load.requests);
        let client = ask(&plan.binary, &bench)?;
        server.stop()?;
        let after = processor_times()?;
        let simulated = ask(&plan.binary, &["simulate", "--recording", record])?;
        let mut figures = [[0.0; 3]; FIGURES.len()];
        for ((key, _), figure) in FIGURES.iter().zip(&mut figures) {
            let (live, simulated) = (number(&simulated["measured"], key)?, number(&simulated, key)?);
            *figure = [live, simulated, simulated / live];
        }
        Ok(Round {
            figures,
            client: [number(&client, "p50_ms")?, number(&client, "p99_ms")?],
            stolen: (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64,
        })
    }

    /// Each figure's own median.
    fn median(rounds: &[Round]) -> Round {
        let of = |value: &dyn Fn(&Round) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let mut median = rounds[0];
        for figure in 0..FIGURES.len() {
            median.figures[figure] = [0, 1, 2].map(|at| of(&|round| round.figures[figure][at]));
        }
        median.client = [0, 1].map(|at| of(&|round| round.client[at]));
        median.stolen = of(&|round| round.stolen);
        median
    }

    fn line(&self) -> String {
        let figures = self.figures.map(|[live, sim, ratio]| format!("{live:>9.2} {sim:>9.2} {ratio:>6.3}"));
        let [p50, p99] = self.client;
        format!("{}  {p50:>8.2} {p99:>8.2}{:>9.1}", figures.join("  "), 100.0 * self.stolen)
    }
}

fn number(value: &Value, key: &str) -> Result<f64> {
    value[key].as_f64().with_context(|| format!("there is no {key} in {value}"))
}

/// Ticks of all processors so far, and the part of them that other machines had.
fn processor_times() -> Result<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").context("Linux only")?;
    let line = stat.lines().next().context("an empty /proc/stat")?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // The last two stand in the first two as well.
    Ok((ticks.iter().take(8).sum(), ticks.get(7).copied().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_own_median() {
        let round = |live: f64, ratio: f64| Round {
            figures: [[live, live * ratio, ratio]; 3],
            client: [live, 2.0 * live],
            stolen: 0.0,
        };
        let median = Round::median(&[round(1.0, 1.3), round(9.0, 0.9), round(4.0, 1.0)]);
        assert_eq!((median.figures[1][0], median.figures[1][2], median.client[1]), (4.0, 1.0, 8.0));
    }

    #[test]
    fn every_load_has_its_model_and_options_are_read() {
        assert!(LOADS.iter().all(|load| MODELS.iter().any(|(name, _)| *name == load.model)));
        let plan = plan(&["dva", "--rounds", "3", "--seconds", "5"]).unwrap();
        assert_eq!((plan.seconds, plan.rounds, &plan.policies[..]), (5, 3, &["dva".to_owned()][..]));
        assert!(super::plan(&["--rounds", "0"]).is_err() && super::plan(&["fast"]).is_err());
    }
}
