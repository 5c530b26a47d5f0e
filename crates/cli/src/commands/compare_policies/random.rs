//! Workloads drawn from seeds: a policy that was tuned on known ones must hold on others, too.
//!
//! Costs, SLOs, popularity and arrivals cover more than the range of published profiles and our own
//! models: launch costs of up to a hundred rows or none, stages with different preferred batches,
//! lengths with heavy tails. An SLO is 1.5 to 6 times the latency of a batch of eight, so some are
//! too short for batching and some allow any. The text is a scenario file, so that a case can be
//! kept, read and run alone.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use ripieno_workload::{SeededRng, stream, unit};
use serde::Serialize;
use std::fmt::Write;

/// The kind of models in a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// One to eight models in one piece on 1 to 64 devices.
    Whole,
    /// One or two chains of two to six stages; some requests leave early or skip stages.
    Chain,
    /// Requests that are padded to the longest of a batch, in one piece or in stages; sometimes
    /// with a whole model as well.
    Padded,
    /// Sequences, layers, decoders or trees, in cells.
    Cells,
    /// Cells together with whole models, chains or padded models.
    Mixed,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Whole => "whole",
            Kind::Chain => "chain",
            Kind::Padded => "padded",
            Kind::Cells => "cells",
            Kind::Mixed => "mixed",
        }
    }
}

/// Kinds on a command line: one, or all.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kinds {
    One(Kind),
    All,
}

impl Kinds {
    pub(super) fn kinds(&self) -> &[Kind] {
        match self {
            Kinds::One(kind) => std::slice::from_ref(kind),
            Kinds::All => Kind::value_variants(),
        }
    }
}

impl ValueEnum for Kinds {
    fn value_variants<'a>() -> &'a [Kinds] {
        use Kind::{Cells, Chain, Mixed, Padded, Whole};
        use Kinds::{All, One};
        &[One(Whole), One(Chain), One(Padded), One(Cells), One(Mixed), All]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Kinds::One(kind) => kind.to_possible_value(),
            Kinds::All => Some(PossibleValue::new("all").help("All of these, one after the other")),
        }
    }
}

/// Returns the scenario file of a seed.
pub(super) fn workload(kind: Kind, seed: u64, requests: u64) -> String {
    let mut draw = Draw(stream(seed, 0));
    match kind {
        Kind::Whole => whole_models(&mut draw, seed, requests),
        kind => {
            let parts = draw.parts(kind);
            let devices = draw.of(&[1, 1, 2, 4]);
            let mut text = head(seed, requests, devices);
            for (index, part) in parts.iter().enumerate() {
                // About the same device time for each.
                let share = draw.between(0.3, 1.0) / part.row_ms;
                let slo_ms = part.eight_ms * draw.between(1.5, 6.0);
                let Part { keys, blocks, .. } = part;
                let arrival = draw.arrival();
                let _ = write!(
                    text,
                    "[[model]]\nname = \"m{index}\"\nslo_ms = {slo_ms:.1}\nshare = {share:.5}\narrival = {arrival}\n{keys}{blocks}"
                );
            }
            text
        }
    }
}

fn head(seed: u64, requests: u64, devices: usize) -> String {
    format!("seed = {seed}\nrate = 1\nrequests = {requests}\n[cluster]\ndevices = {devices}\n")
}

/// Returns many models on many devices.
fn whole_models(draw: &mut Draw, seed: u64, requests: u64) -> String {
    let devices = draw.of(&[1, 1, 2, 4, 8, 16, 32, 64]);
    let models = if draw.between(0.0, 1.0) < 0.4 { 1 } else { 2 + draw.between(0.0, 7.0) as usize };
    let mut text = head(seed, requests, devices);
    for model in 0..models {
        let (alpha, beta) = (draw.between(0.2, 4.0), draw.between(0.0, 25.0));
        let slo = (alpha * 8.0 + beta) * draw.between(1.5, 6.0);
        let popularity = 1.0 / (1.0 + model as f64).powf(draw.between(0.0, 1.2));
        let arrival = draw.arrival();
        let _ = write!(
            text,
            "[[model]]\nname = \"m{model}\"\nalpha_ms = {alpha:.3}\nbeta_ms = {beta:.3}\nslo_ms = {slo:.1}\nmax_batch = 32\n\
             share = {popularity:.3}\narrival = {arrival}\n"
        );
    }
    text
}

/// A model: its keys, its blocks, the cost of a row in large batches, and the latency of a batch of
/// eight.
struct Part {
    keys: String,
    blocks: String,
    row_ms: f64,
    eight_ms: f64,
}

/// The random numbers of one stream.
struct Draw(SeededRng);

impl Draw {
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + unit(&mut self.0) * (high - low)
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.between(0.0, values.len() as f64) as usize]
    }

    fn chance(&mut self, share: f64) -> bool {
        self.between(0.0, 1.0) < share
    }

    fn arrival(&mut self) -> String {
        match self.between(0.0, 4.0) as usize {
            0 | 1 => "{ kind = \"poisson\" }".to_owned(),
            2 => "{ kind = \"uniform\" }".to_owned(),
            _ => format!("{{ kind = \"gamma\", shape = {:.2} }}", self.between(0.1, 0.6)),
        }
    }

    fn parts(&mut self, kind: Kind) -> Vec<Part> {
        match kind {
            Kind::Whole => vec![self.whole()],
            Kind::Chain if self.chance(0.6) => vec![self.chain(true)],
            Kind::Chain => vec![self.chain(true), self.chain(true)],
            Kind::Padded if self.chance(0.7) => vec![self.padded()],
            Kind::Padded => vec![self.padded(), self.whole()],
            Kind::Cells if self.chance(0.7) => vec![self.cells()],
            Kind::Cells => vec![self.cells(), self.cells()],
            Kind::Mixed => {
                let mut parts = vec![self.cells()];
                for _ in 0..self.of(&[1, 1, 2]) {
                    // In a mixed workload no request skips stages: one policy serves both.
                    let beside = match self.between(0.0, 3.0) as usize {
                        0 => self.whole(),
                        1 => self.chain(false),
                        _ => self.padded(),
                    };
                    parts.push(beside);
                }
                parts
            }
        }
    }

    fn whole(&mut self) -> Part {
        let (alpha, beta) = (self.between(0.2, 4.0), self.between(0.0, 25.0));
        Part {
            keys: format!("alpha_ms = {alpha:.3}\nbeta_ms = {beta:.3}\nmax_batch = 32\n"),
            blocks: String::new(),
            row_ms: alpha + beta / 32.0,
            eight_ms: 8.0 * alpha + beta,
        }
    }

    fn chain(&mut self, skips: bool) -> Part {
        let count = 2 + self.between(0.0, 5.0) as usize;
        let (leaves, skips) = (self.chance(0.3), self.chance(0.2) && skips && count > 2);
        let mut part =
            Part { keys: "walk = \"chain\"\n".to_owned(), blocks: String::new(), row_ms: 0.0, eight_ms: 0.0 };
        for stage in 0..count {
            let (alone, preferred) = (self.between(0.3, 6.0), self.of(&[1, 2, 4, 8, 16, 32]));
            let launch = self.of(&[0.0, 0.05, 0.3]);
            let at = |rows: f64| alone * f64::max(1.0, rows / f64::from(preferred)) + launch;
            part.row_ms += at(32.0) / 32.0;
            part.eight_ms += at(8.0);
            let _ = write!(
                part.blocks,
                "[[model.block]]\nname = \"s{stage}\"\nalone_ms = {alone:.3}\npreferred_batch = {preferred}\nlaunch_ms = {launch}\n\
                 max_batch = 32\n"
            );
            if leaves && stage == 0 {
                let _ = writeln!(part.blocks, "exit_share = {:.2}", self.between(0.1, 0.5));
            }
            if skips && stage == 0 {
                let _ =
                    writeln!(part.blocks, "skip_share = {:.2}\nskip_to = \"s{}\"", self.between(0.1, 0.5), count - 1);
            }
        }
        part
    }

    fn padded(&mut self) -> Part {
        let longest = self.of(&[64, 256]);
        let (mu, sigma) = (self.between(2.3, 3.6), self.between(0.3, 0.9));
        let mean = f64::exp(mu + sigma * sigma / 2.0).min(f64::from(longest));
        let lengths = format!(
            "lengths = {{ kind = \"lognormal\", mu = {mu:.2}, sigma = {sigma:.2}, min = 2, max = {longest} }}\n"
        );
        if self.chance(0.35) {
            return self.padded_stages(&lengths, mean, f64::from(longest));
        }
        let (alpha, beta) = (self.between(0.2, 2.0), self.between(0.2, 6.0));
        let point = |length: i32| {
            let alpha = alpha * f64::from(length) / f64::from(longest);
            format!("{{ length = {length}, alpha_ms = {alpha:.4}, beta_ms = {beta:.3} }}")
        };
        let by_length = [8, longest / 2, longest].map(point).join(", ");
        Part {
            keys: format!("{lengths}by_length = [{by_length}]\nmax_batch = 32\n"),
            blocks: String::new(),
            row_ms: alpha * mean / f64::from(longest) + beta / 32.0,
            eight_ms: 8.0 * alpha + beta,
        }
    }

    fn padded_stages(&mut self, lengths: &str, mean: f64, longest: f64) -> Part {
        let keys = format!("walk = \"chain\"\n{lengths}");
        let mut part = Part { keys, blocks: String::new(), row_ms: 0.0, eight_ms: 0.0 };
        for stage in 0..self.of(&[2, 3]) {
            let (alone, preferred) = (self.between(1.0, 5.0), self.of(&[128, 512, 1024]));
            let at = |elements: f64| alone * f64::max(1.0, elements / f64::from(preferred)) + 0.05;
            part.row_ms += at(32.0 * mean) / 32.0;
            part.eight_ms += at(8.0 * longest);
            let _ = write!(
                part.blocks,
                "[[model.block]]\nname = \"s{stage}\"\nalone_ms = {alone:.3}\npreferred_tokens = {preferred}\nlaunch_ms = 0.05\n\
                 max_batch = 32\n"
            );
        }
        part
    }

    fn cells(&mut self) -> Part {
        let steps = self.between(5.0, 40.0);
        let lengths =
            format!("lengths = {{ kind = \"lognormal\", mu = {:.2}, sigma = 0.5, min = 1, max = 200 }}\n", steps.ln());
        let (walk, keys, names): (_, _, &[&str]) = match self.between(0.0, 5.0) as usize {
            0 => ("repeat", lengths, &["cell"]),
            1 => ("stacked", lengths, &["lower", "middle", "upper"]),
            2 => ("bidirectional", lengths, &["forward", "backward"]),
            3 => {
                // The end is unknown beforehand.
                let hidden = if self.chance(0.5) { "extra_steps = 20\n" } else { "" };
                let keys = format!("{lengths}output_lengths = {{ kind = \"ratio\", sigma = 0.2 }}\n{hidden}");
                ("encode-decode", keys, &["encoder", "decoder"])
            }
            _ => {
                let trees = "trees = { kind = \"shapes\", dataset = \"sst-test\" }\n".to_owned();
                ("tree", trees, &["leaf", "internal"])
            }
        };
        let mut part =
            Part { keys: format!("walk = \"{walk}\"\n{keys}"), blocks: String::new(), row_ms: 0.0, eight_ms: 0.0 };
        for name in names {
            let (alpha, beta) = (self.between(0.005, 0.05), self.between(0.1, 1.5));
            part.row_ms += steps * (alpha + beta / 64.0);
            // Few sequences are more than twice as long as most.
            part.eight_ms += 2.0 * steps * (8.0 * alpha + beta);
            let _ = write!(
                part.blocks,
                "[[model.block]]\nname = \"{name}\"\nalpha_ms = {alpha:.4}\nbeta_ms = {beta:.3}\nmax_batch = 64\n"
            );
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_sim::Scenario;

    #[test]
    fn every_seed_gives_a_scenario_and_always_the_same() {
        for kind in Kind::value_variants() {
            for seed in 0..40 {
                let text = workload(*kind, seed, 100);
                let scenario = Scenario::parse(&text, kind.name()).unwrap_or_else(|error| panic!("{error}\n{text}"));
                assert!(scenario.impossible_models().is_empty(), "{text}");
                assert_eq!(text, workload(*kind, seed, 100));
            }
            assert_ne!(workload(*kind, 1, 100), workload(*kind, 2, 100));
        }
    }
}
