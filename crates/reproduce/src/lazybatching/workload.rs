//! Networks, loads and contenders, and the results of a run.

use crate::context::ReproduceContext;
pub(super) use crate::outcome::{SimOutcome, SimOutcomes, axis, lines, mean};
use ripieno_report::plot::{Look, Series};
use ripieno_sim::Scenario;
use std::borrow::Cow;
use std::fmt::Write;

/// The three networks of the main evaluation, by their names on the NPU and in the paper.
pub(super) const MAIN: [(&str, &str); 3] = [("resnet50", "ResNet"), ("gnmt", "GNMT"), ("transformer", "Transformer")];
/// The other four.
pub(super) const OTHERS: [(&str, &str); 4] =
    [("vgg16", "VGGNet"), ("mobilenet", "MobileNet"), ("las", "Listen-Attend-and-Spell"), ("bert", "BERT")];
/// Loads from low to high, in requests per second; the paper names 16 and 1,000 and the borders 256
/// and 500.
pub(super) const LOADS: [f64; 6] = [16.0, 64.0, 256.0, 500.0, 1000.0, 2000.0];
pub(super) const WINDOWS_MS: [u32; 5] = [5, 25, 45, 65, 95];
pub(super) const SLO_MS: f64 = 100.0;
/// The length of 90 % of sentences, by the paper's own characterisation.
pub(super) const DEC_TIMESTEPS: u32 = 32;
pub(super) const MAX_BATCH: usize = 64;
/// Numbers of seeds: the paper's, and the ones of `--quick`.
const SEEDS: u64 = 20;
const QUICK_SEEDS: u64 = 3;

/// A batching system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LazySystem {
    Serial,
    /// Graph batching with this window in milliseconds.
    GraphB(u32),
    /// LazyBatching whose slack has the wait until first issue.
    LazyB,
    /// LazyBatching whose slack has the wait since arrival.
    LazyBSinceArrival,
    Oracle,
}

/// A model under load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NetworkLoad {
    /// Name of the network on the NPU.
    pub(super) network: &'static str,
    pub(super) lengths: SentenceLengths,
    pub(super) slo_ms: f64,
    pub(super) share: f64,
    pub(super) device: DeviceModel,
}

/// The device models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceModel {
    Npu,
    TitanXp,
}

/// Distributions of the lengths of sentences and their translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentenceLengths {
    /// Log-normal, so that 70 % have fewer than 20 words and 90 % at most 30: the paper's numbers
    /// for English to German.
    Paper,
    /// English of the European Parliament up to 80 words: longer, with a heavier tail; 90 % have at
    /// most 53.
    Parliament,
    /// English news, and French translations whose lengths relate to the English as they do in the
    /// texts of the European Parliament.
    NewsToFrench,
    /// French of the European Parliament up to 80 words, and English translations shorter by the
    /// same factors.
    ParliamentToEnglish,
    /// Log-normal with the median of 50 steps: about 4 s of speech, and as many letters.
    Speech,
    /// The paper's, in steps of a layer: numbers of steps per word in the encoder and in the
    /// decoder.
    Layers(u32, u32),
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LazyCase {
    pub(super) system: LazySystem,
    pub(super) loads: Vec<NetworkLoad>,
    pub(super) rate: f64,
    pub(super) max_batch: usize,
    pub(super) dec_timesteps: u32,
    pub(super) requests: u64,
    pub(super) seed: u64,
}

impl LazySystem {
    pub(super) fn all() -> Vec<LazySystem> {
        let mut all = vec![LazySystem::Serial];
        all.extend(LazySystem::graph_batching());
        all.extend([LazySystem::LazyB, LazySystem::LazyBSinceArrival, LazySystem::Oracle]);
        all
    }

    pub(super) fn graph_batching() -> impl Iterator<Item = LazySystem> {
        WINDOWS_MS.into_iter().map(LazySystem::GraphB)
    }

    pub(super) fn name(self) -> String {
        match self {
            LazySystem::Serial => "Serial".to_owned(),
            LazySystem::GraphB(window) => format!("GraphB({window})"),
            LazySystem::LazyB => "LazyB".to_owned(),
            LazySystem::LazyBSinceArrival => "LazyB, since arrival".to_owned(),
            LazySystem::Oracle => "Oracle".to_owned(),
        }
    }

    pub(super) fn look(self) -> Look {
        match self {
            LazySystem::Serial => Look::solid(6),
            LazySystem::GraphB(window) => {
                let place = WINDOWS_MS.iter().position(|&other| other == window).unwrap_or(0);
                if place < 2 { Look::solid(1 + place) } else { Look::dashed(1 + place) }
            }
            LazySystem::LazyB => Look::solid(0),
            LazySystem::LazyBSinceArrival => Look::dashed(6),
            LazySystem::Oracle => Look::dashed(0),
        }
    }

    /// Returns its policy and options. Sequences need a baseline that pads them, with the same rule
    /// otherwise.
    fn policy(self, case: &LazyCase) -> String {
        let LazyCase { max_batch, dec_timesteps, .. } = case;
        let padded = case.loads.iter().any(NetworkLoad::is_sequence);
        let one_bucket = "width = 1048576\npad = \"longest\"\n";
        match (self, padded) {
            (LazySystem::Serial, false) => "policy = \"serial\"\n[policy_options]\n".to_owned(),
            (LazySystem::Serial, true) => {
                format!("policy = \"bucketed\"\n[policy_options]\n{one_bucket}max_batch = 1\n")
            }
            (LazySystem::GraphB(window), false) => format!(
                "policy = \"timeout\"\n[policy_options]\ngather = \"fifo\"\ndrop = \"never\"\ntimeout_ms = {window}\n\
                 max_batch = {max_batch}\n"
            ),
            (LazySystem::GraphB(window), true) => format!(
                "policy = \"bucketed\"\n[policy_options]\n{one_bucket}window_ms = {window}\nmax_batch = {max_batch}\n"
            ),
            (LazySystem::LazyB | LazySystem::LazyBSinceArrival | LazySystem::Oracle, _) => {
                let name = if self == LazySystem::Oracle { "lazy-oracle" } else { "lazy" };
                let wait = if self == LazySystem::LazyBSinceArrival { "wait = \"arrival\"\n" } else { "" };
                format!(
                    "policy = \"{name}\"\n[policy_options]\nmax_batch = {max_batch}\ndec_timesteps = {dec_timesteps}\n{wait}"
                )
            }
        }
    }
}

impl NetworkLoad {
    pub(super) fn new(network: &'static str, slo_ms: f64) -> NetworkLoad {
        let lengths = if network == "las" { SentenceLengths::Speech } else { SentenceLengths::Paper };
        NetworkLoad { network, lengths, slo_ms, share: 1.0, device: DeviceModel::Npu }
    }

    fn is_sequence(&self) -> bool {
        matches!(self.network, "gnmt" | "transformer" | "las")
    }

    fn toml(&self) -> String {
        let NetworkLoad { network, lengths, slo_ms, share, device } = self;
        let key = if *device == DeviceModel::Npu { "npu" } else { "gpu" };
        let mut text =
            format!("[[model]]\nname = \"{network}\"\n{key} = \"{network}\"\nslo_ms = {slo_ms:?}\nshare = {share:?}\n");
        if self.is_sequence() {
            text.push_str(&lengths.toml());
        }
        text
    }
}

impl SentenceLengths {
    fn toml(self) -> Cow<'static, str> {
        let fixed = match self {
            SentenceLengths::Layers(encoder, decoder) => {
                let mu = 2.74 + f64::from(encoder).ln();
                let ratio = (f64::from(decoder) / f64::from(encoder)).ln();
                let (longest, steps) = (80 * encoder, 80 * decoder);
                return Cow::Owned(format!(
                    "lengths = {{ kind = \"lognormal\", mu = {mu:?}, sigma = 0.5, min = {encoder}, max = {longest} }}\n\
                     output_lengths = {{ kind = \"ratio\", mu = {ratio:?}, sigma = 0.15 }}\nmax_steps = {steps}\n"
                ));
            }
            SentenceLengths::Paper => {
                "lengths = { kind = \"lognormal\", mu = 2.74, sigma = 0.5, min = 1, max = 80 }\n\
                 output_lengths = { kind = \"ratio\", sigma = 0.15 }\nmax_steps = 80\n"
            }
            SentenceLengths::Parliament => {
                "lengths = { kind = \"histogram\", dataset = \"europarl-en\", max = 80 }\n\
                 output_lengths = { kind = \"ratio\", sigma = 0.15 }\nmax_steps = 100\n"
            }
            SentenceLengths::NewsToFrench => {
                "lengths = { kind = \"histogram\", dataset = \"newstest2013-en\", max = 80 }\n\
                 output_lengths = { kind = \"ratio\", mu = 0.119, sigma = 0.202 }\nmax_steps = 120\n"
            }
            SentenceLengths::ParliamentToEnglish => {
                "lengths = { kind = \"histogram\", dataset = \"europarl-fr\", max = 80 }\n\
                 output_lengths = { kind = \"ratio\", mu = -0.119, sigma = 0.202 }\nmax_steps = 120\n"
            }
            SentenceLengths::Speech => {
                "lengths = { kind = \"lognormal\", mu = 3.912, sigma = 0.4, min = 1, max = 200 }\n\
                 output_lengths = { kind = \"ratio\", sigma = 0.15 }\nmax_steps = 240\n"
            }
        };
        Cow::Borrowed(fixed)
    }
}

impl LazyCase {
    /// Returns a case of one model with the paper's settings.
    pub(super) fn new(system: LazySystem, network: &'static str, rate: f64) -> LazyCase {
        LazyCase {
            system,
            loads: vec![NetworkLoad::new(network, SLO_MS)],
            rate,
            max_batch: MAX_BATCH,
            dec_timesteps: if network == "las" { 84 } else { DEC_TIMESTEPS },
            requests: requests(rate),
            seed: 1,
        }
    }

    /// Returns the case with another device for all its models.
    pub(super) fn on(mut self, device: DeviceModel) -> LazyCase {
        self.loads.iter_mut().for_each(|load| load.device = device);
        self
    }

    /// Returns the case with another SLO for all its models.
    pub(super) fn slo_ms(mut self, slo_ms: f64) -> LazyCase {
        self.loads.iter_mut().for_each(|load| load.slo_ms = slo_ms);
        self
    }

    pub(super) fn toml(&self) -> String {
        let LazyCase { rate, requests, seed, .. } = self;
        let mut text = format!("seed = {seed}\nrequests = {requests}\nrate = {rate:?}\n{}", self.system.policy(self));
        for load in &self.loads {
            let _ = write!(text, "{}", load.toml());
        }
        text
    }

    pub(super) fn scenario(&self) -> anyhow::Result<Scenario> {
        Ok(Scenario::parse(&self.toml(), "scenario of the experiment")?)
    }

    fn run(&self) -> anyhow::Result<SimOutcome> {
        SimOutcome::of(&self.scenario()?)
    }
}

/// Returns the number of requests: some seconds of load, and enough requests for tails.
fn requests(rate: f64) -> u64 {
    ((rate * 4.0) as u64).clamp(400, 6000)
}

/// Returns the number of seeds per point.
pub(super) fn seeds(context: &ReproduceContext) -> u64 {
    if context.is_quick() { context.seeds(SEEDS).max(QUICK_SEEDS) } else { context.seeds(SEEDS) }
}

/// Runs each case with several seeds, on all cores.
pub(super) fn run(context: &ReproduceContext, cases: &[LazyCase]) -> anyhow::Result<Vec<SimOutcomes>> {
    run_as(context, cases, LazyCase::run)
}

/// Runs each case with several seeds by `run`, on all cores.
pub(super) fn run_as(
    context: &ReproduceContext,
    cases: &[LazyCase],
    run: impl Fn(&LazyCase) -> anyhow::Result<SimOutcome> + Sync,
) -> anyhow::Result<Vec<SimOutcomes>> {
    let seeds = seeds(context);
    let fewer = |requests: u64| if context.is_quick() { requests.div_ceil(2) } else { requests };
    let seeded: Vec<_> = cases
        .iter()
        .flat_map(|case| (1..=seeds).map(|seed| LazyCase { seed, requests: fewer(case.requests), ..case.clone() }))
        .collect();
    let outcomes = context.each(&seeded, run)?;
    Ok(outcomes.chunks(seeds as usize).map(|outcomes| SimOutcomes(outcomes.to_vec())).collect())
}

pub(super) fn series(system: LazySystem, points: Vec<(f64, f64)>) -> Series {
    Series { name: system.name(), points, look: system.look(), markers: true }
}

/// Returns the settings of the runs, for subtitles.
pub(super) fn settings(context: &ReproduceContext) -> String {
    let requests = if context.is_quick() { "200 to 3,000" } else { "400 to 6,000" };
    format!("Poisson arrivals, SLO 100 ms, batches up to 64, {} seeds of {requests} requests", seeds(context))
}
