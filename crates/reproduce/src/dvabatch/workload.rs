//! Networks, loads and contenders, and the results of a run.
//!
//! The paper prints no stage times. Ours are declared: a stage takes the same time for every batch
//! up to the size that it prefers and grows in proportion beyond. Stages that run in parallel share
//! the device by the same profile. Each stage that DVABatch launches costs 50 us in addition; the
//! baselines run the whole model without that.

use crate::context::ReproduceContext;
pub(super) use crate::outcome::{SimOutcome, SimOutcomes, axis, lines, mean};
use ripieno_report::plot::{Look, Series};
use ripieno_sim::Scenario;
use ripieno_workload::{LengthDistribution, LengthError, counted_lengths};
use std::fmt::Write;

/// The largest batch, the target for the 99th percentile of the latency, and the cost of launching
/// a stage; all but the last are the paper's.
const MAX_BATCH: usize = 64;
pub(super) const QOS_MS: f64 = 200.0;
pub(super) const LAUNCH_MS: f64 = 0.05;
/// Low, medium and high load as fractions of the peak, as in the paper.
pub(super) const LOADS: [(&str, f64); 3] = [("low", 0.25), ("medium", 0.6), ("high", 0.9)];
/// Windows to try for DelayBatch.
const WINDOWS_MS: [f64; 6] = [2.0, 5.0, 10.0, 20.0, 40.0, 80.0];
const REQUESTS: u64 = 8_000;
const SEEDS: u64 = 3;

/// A declared network.
#[derive(Debug)]
pub(super) struct DvaNetwork {
    pub(super) name: &'static str,
    pub(super) parts: NetworkParts,
    /// Number of stages in DVABatch.
    pub(super) stages: usize,
}

/// The costs of a network's operators.
#[derive(Debug)]
pub(super) enum NetworkParts {
    /// Groups of operators: the time alone in ms, and the preferred batch.
    Groups(&'static [(f64, f64)]),
    /// Identical layers: the time alone in ms, and the preferred number of elements, padding
    /// included.
    Layers(f64, u32),
}

pub(super) const UNET: DvaNetwork =
    DvaNetwork { name: "Unet", parts: NetworkParts::Groups(&[(20.0, 32.0), (6.0, 8.0)]), stages: 4 };
pub(super) const LINKNET: DvaNetwork =
    DvaNetwork { name: "LinkNet", parts: NetworkParts::Groups(&[(8.0, 32.0), (3.0, 8.0)]), stages: 4 };
pub(super) const BERT_BASE: DvaNetwork =
    DvaNetwork { name: "BertBase", parts: NetworkParts::Layers(8.8, 512), stages: 2 };
pub(super) const BERT_LARGE: DvaNetwork =
    DvaNetwork { name: "BertLarge", parts: NetworkParts::Layers(28.0, 512), stages: 2 };
pub(super) const VGG19: DvaNetwork =
    DvaNetwork { name: "VGG19", parts: NetworkParts::Groups(&[(6.0, 8.0)]), stages: 4 };
pub(super) const RESNET152: DvaNetwork =
    DvaNetwork { name: "ResNet152", parts: NetworkParts::Groups(&[(12.0, 8.0)]), stages: 4 };

/// The networks of the evaluation.
pub(super) const NETWORKS: [&DvaNetwork; 6] = [&UNET, &LINKNET, &BERT_BASE, &BERT_LARGE, &VGG19, &RESNET152];

/// Distributions of sentence lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sentences {
    /// The counts of a data set.
    Of(&'static str),
    /// Log-normal with the mean 64 and this spread of the logarithm, 8 to 256.
    LogNormal(f64),
}

/// A batching system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum DvaSystem {
    /// A window in milliseconds, 0 for ZeroBatch; and whether the next batch is formed when the
    /// previous one starts.
    Delay(f64, bool),
    /// DVABatch with these options.
    Dva(&'static str),
    /// LazyBatching by its paper's rule, on the stages of the case.
    Lazy,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub(super) struct DvaCase {
    pub(super) network: &'static DvaNetwork,
    pub(super) sentences: Sentences,
    pub(super) system: DvaSystem,
    /// Number of stages in DVABatch.
    pub(super) stages: usize,
    pub(super) launch_ms: f64,
    pub(super) rate: f64,
    pub(super) requests: u64,
    pub(super) seed: u64,
}

impl DvaNetwork {
    pub(super) fn has_lengths(&self) -> bool {
        matches!(self.parts, NetworkParts::Layers(..))
    }

    /// Returns the tables of its blocks.
    fn blocks(&self, stages: usize, launch_ms: f64) -> String {
        let mut text = String::new();
        for stage in 0..stages {
            let _ = write!(text, "[[model.block]]\nname = \"s{stage}\"\nlaunch_ms = {launch_ms:?}\n");
            let _ = match self.parts {
                NetworkParts::Layers(alone_ms, tokens) => {
                    writeln!(text, "alone_ms = {:?}\npreferred_tokens = {tokens}", alone_ms / stages as f64)
                }
                NetworkParts::Groups(groups) => {
                    writeln!(text, "latency_ms = {:?}", stage_latencies_ms(groups, stage, stages))
                }
            };
        }
        text
    }
}

/// Returns ℓ(1), ℓ(2), … of one of `stages` slices: cut where the preferred batch changes, and
/// evenly in between.
fn stage_latencies_ms(groups: &[(f64, f64)], stage: usize, stages: usize) -> Vec<f64> {
    let each = (stages / groups.len()).max(1);
    let own = if stages < groups.len() { groups } else { &groups[stage / each..][..1] };
    let latency = |batch: usize| {
        let part = |(alone_ms, preferred): &(f64, f64)| alone_ms / each as f64 * (batch as f64 / preferred).max(1.0);
        (own.iter().map(part).sum::<f64>() * 1e6).round() / 1e6
    };
    (1..=MAX_BATCH).map(latency).collect()
}

impl Sentences {
    pub(super) fn name(self) -> String {
        match self {
            Sentences::Of(name) => name.to_owned(),
            Sentences::LogNormal(sigma) => format!("log-normal, sigma {sigma}"),
        }
    }

    pub(super) fn lengths(self) -> Result<LengthDistribution, LengthError> {
        match self {
            Sentences::Of(name) => Ok(LengthDistribution::Histogram(counted_lengths(name)?)),
            Sentences::LogNormal(sigma) => LengthDistribution::log_normal(Sentences::mu(sigma), sigma, 8, 256),
        }
    }

    /// Returns the distribution as for `--lengths`, within a model of 256 tokens: for data sets the
    /// distribution fitted to them.
    pub(super) fn law(self) -> Option<String> {
        match self {
            Sentences::Of("glue-rte") => Some("3.986,0.557,8,256".to_owned()),
            Sentences::Of("sst2-sentences") => Some("2.76,0.6,2,64".to_owned()),
            Sentences::Of(_) => None,
            Sentences::LogNormal(sigma) => Some(format!("{:.3},{sigma},8,256", Sentences::mu(sigma))),
        }
    }

    fn mu(sigma: f64) -> f64 {
        64f64.ln() - sigma * sigma / 2.0
    }

    fn toml(self) -> String {
        match self {
            Sentences::Of(name) => format!("lengths = {{ kind = \"histogram\", dataset = \"{name}\" }}\n"),
            Sentences::LogNormal(sigma) => {
                let mu = Sentences::mu(sigma);
                format!("lengths = {{ kind = \"lognormal\", mu = {mu:?}, sigma = {sigma:?}, min = 8, max = 256 }}\n")
            }
        }
    }
}

impl DvaSystem {
    pub(super) const ZERO: [DvaSystem; 2] = [DvaSystem::Delay(0.0, false), DvaSystem::Delay(0.0, true)];
    pub(super) const DVA: DvaSystem = DvaSystem::Dva("");
    /// Without the window of policy I and the stretches of policy III, whose times the paper leaves
    /// open.
    pub(super) const BARE: DvaSystem = DvaSystem::Dva("window_ms = 0\nstretch = false\n");
    /// The readings of DVABatch, with what rows of the second one begin with.
    pub(super) const READINGS: [(&str, DvaSystem); 2] =
        [("", DvaSystem::DVA), ("no window, no stretch: ", DvaSystem::BARE)];

    pub(super) fn name(self) -> String {
        let rule = |ahead: bool| if ahead { "start" } else { "free" };
        match self {
            DvaSystem::Delay(0.0, ahead) => format!("ZeroBatch, {}", rule(ahead)),
            DvaSystem::Delay(_, ahead) => format!("DelayBatch, {}", rule(ahead)),
            DvaSystem::Lazy => "LazyBatching".to_owned(),
            DvaSystem::Dva("") => "DVABatch".to_owned(),
            DvaSystem::BARE => "DVABatch, no window, no stretch".to_owned(),
            DvaSystem::Dva(options) => format!("DVABatch, {}", options.trim().replace('"', "").replace('\n', ", ")),
        }
    }

    pub(super) fn look(self) -> Look {
        match self {
            DvaSystem::Delay(window, ahead) => Look { colour: if window == 0.0 { 1 } else { 2 }, dashed: ahead },
            DvaSystem::Lazy => Look::solid(4),
            DvaSystem::Dva("") => Look::solid(0),
            DvaSystem::BARE => Look::solid(3),
            DvaSystem::Dva(_) => Look::dashed(0),
        }
    }

    fn toml(self) -> String {
        match self {
            DvaSystem::Delay(window, ahead) => {
                let rule = if ahead { "start" } else { "free" };
                format!(
                    "policy = \"delay-batch\"\n[policy_options]\nwindow_ms = {window:?}\ndispatch = \"{rule}\"\n\
                     drop = \"never\"\n"
                )
            }
            DvaSystem::Lazy => "policy = \"lazy\"\n".to_owned(),
            DvaSystem::Dva(options) => format!("policy = \"dva\"\n[policy_options]\ndrop = \"never\"\n{options}"),
        }
    }
}

impl DvaCase {
    pub(super) fn new(
        context: &ReproduceContext,
        network: &'static DvaNetwork,
        system: DvaSystem,
        rate: f64,
    ) -> DvaCase {
        let requests = context.requests(REQUESTS).min(REQUESTS);
        let (stages, sentences) = (network.stages, Sentences::Of("glue-rte"));
        DvaCase { network, sentences, system, stages, launch_ms: LAUNCH_MS, rate, requests, seed: 1 }
    }

    fn toml(&self) -> String {
        let DvaCase { network, rate, requests, seed, .. } = self;
        let staged = matches!(self.system, DvaSystem::Dva(_) | DvaSystem::Lazy);
        let mut text = format!("seed = {seed}\nrequests = {requests}\nrate = {rate:?}\n{}", self.system.toml());
        let _ = write!(
            text,
            "[[model]]\nname = \"m\"\nslo_ms = {QOS_MS:?}\nmax_batch = {MAX_BATCH}\ndrop = \"never\"\nwalk = \"chain\"\n"
        );
        if network.has_lengths() {
            text.push_str(&self.sentences.toml());
        }
        let (stages, launch_ms) = if staged { (self.stages, self.launch_ms) } else { (1, 0.0) };
        text.push_str(&network.blocks(stages, launch_ms));
        text
    }

    pub(super) fn scenario(&self) -> anyhow::Result<Scenario> {
        Ok(Scenario::parse(&self.toml(), "scenario of the experiment")?)
    }

    pub(super) fn run(&self) -> anyhow::Result<SimOutcome> {
        SimOutcome::of(&self.scenario()?)
    }

    /// Returns the highest rate with a 99th percentile within the target, to 1 %.
    pub(super) fn peak(&self) -> anyhow::Result<f64> {
        let carried = |rate: f64| {
            let outcome = DvaCase { rate, ..*self }.run()?;
            anyhow::Ok(outcome.quantile_ms(0.99) <= QOS_MS && outcome.answered_rps >= 0.95 * rate)
        };
        let most = self.scenario()?.bound_rps() * 1.2;
        let (mut low, mut high) = (0.0, most);
        // A thousandth of the bound counts as nothing: such runs take very long in virtual time.
        while high - low > 0.01 * high && high > most / 1e3 {
            let rate = f64::midpoint(low, high);
            *(if carried(rate)? { &mut low } else { &mut high }) = rate;
        }
        Ok(low)
    }
}

/// DelayBatch with its best window, for one dispatch rule: the system and its peak.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuned {
    pub(super) system: DvaSystem,
    pub(super) peak: f64,
}

/// Tunes both rules for each case. Of windows whose peaks agree within 1 %, the shortest is taken.
pub(super) fn tuned(context: &ReproduceContext, cases: &[DvaCase]) -> anyhow::Result<Vec<[Tuned; 2]>> {
    let windows = context.points(&WINDOWS_MS, 3);
    let mut tried = Vec::new();
    for case in cases {
        for ahead in [false, true] {
            tried.extend(windows.iter().map(|&window| DvaCase { system: DvaSystem::Delay(window, ahead), ..*case }));
        }
    }
    let peaks = context.each(&tried, DvaCase::peak)?;
    let best = |(tried, peaks): (&[DvaCase], &[f64])| {
        let most = peaks.iter().copied().fold(0.0, f64::max);
        let at = peaks.iter().position(|&peak| peak >= 0.99 * most).unwrap_or(0);
        Tuned { system: tried[at].system, peak: peaks[at] }
    };
    let best: Vec<_> = tried.chunks(windows.len()).zip(peaks.chunks(windows.len())).map(best).collect();
    Ok(best.chunks(2).map(|both| [both[0], both[1]]).collect())
}

pub(super) fn seeds(context: &ReproduceContext) -> u64 {
    context.seeds(SEEDS)
}

/// Runs each case with several seeds, on all cores.
pub(super) fn run(context: &ReproduceContext, cases: &[DvaCase]) -> anyhow::Result<Vec<SimOutcomes>> {
    let seeds = seeds(context);
    let seeded: Vec<_> = cases.iter().flat_map(|case| (1..=seeds).map(|seed| DvaCase { seed, ..*case })).collect();
    let outcomes = context.each(&seeded, DvaCase::run)?;
    Ok(outcomes.chunks(seeds as usize).map(|outcomes| SimOutcomes(outcomes.to_vec())).collect())
}

pub(super) fn series(system: DvaSystem, points: Vec<(f64, f64)>) -> Series {
    Series { name: system.name(), points, look: system.look(), markers: true }
}

/// Returns the settings of the runs, for subtitles.
pub(super) fn settings(context: &ReproduceContext) -> String {
    let requests = context.requests(REQUESTS).min(REQUESTS);
    format!(
        "Declared stage profiles; Poisson arrivals, batches up to {MAX_BATCH}, {} seeds of {requests} requests",
        seeds(context)
    )
}
