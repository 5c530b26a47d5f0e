//! The common parts of the experiments: models, policies and parts of plots.

use crate::case::{CaseLoad, Contender, ScenarioCase};
use anyhow::Context as _;
use ripieno_model::zoo::{ZooDevice, ZooModel};
use ripieno_report::plot::{Content, Look, Panel, PlotAxis, Series};

/// Returns a model with Poisson arrivals and an equal share.
pub(super) fn load(name: impl Into<String>, alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> CaseLoad {
    CaseLoad { name: name.into(), alpha_ms, beta_ms, slo_ms, share: 1.0, shape: None }
}

/// Returns the ResNet50 of Table 2, which differs from Table 3's.
pub(super) fn resnet50() -> CaseLoad {
    load("ResNet50", 1.053, 5.072, 25.0)
}

/// Returns the InceptionResNetV2 of Table 2.
pub(super) fn inception_resnet_v2() -> CaseLoad {
    load("InceptionResNetV2", 5.090, 18.368, 70.0)
}

/// Returns `count` models like Table 2's ResNet50: "variants of the model for different
/// applications".
pub(super) fn resnets(count: usize, slo_ms: f64) -> Vec<CaseLoad> {
    (1..=count).map(|index| CaseLoad { slo_ms, name: format!("resnet{index}"), ..resnet50() }).collect()
}

/// Returns the models of Table 3 (`1080ti`) or Table 4 (`a100`).
pub(super) fn zoo(device: &str) -> anyhow::Result<Vec<ZooModel>> {
    let device = ZooDevice::from_name(device).with_context(|| format!("no profiles of a device {device:?}"))?;
    Ok(device.models().collect())
}

pub(super) fn from_zoo(model: &ZooModel) -> CaseLoad {
    load(model.name, model.alpha_ms, model.beta_ms, model.slo_ms)
}

/// Returns a scenario; its rate is a placeholder where the goodput is searched for.
pub(super) fn case(contender: &Contender, devices: usize, loads: Vec<CaseLoad>, requests: u64) -> ScenarioCase {
    ScenarioCase {
        seed: 1,
        requests,
        warmup: 0.1,
        rate: 1000.0,
        devices,
        contender: contender.clone(),
        loads,
        network: None,
    }
}

pub(super) fn deferred_window() -> Contender {
    Contender::new("deferred, window", "deferred", &[("gather", "\"window\"")], Look::solid(0))
}

/// Returns the policy with heads dropped at each update, as in the authors' public code.
pub(super) fn deferred_update() -> Contender {
    let options = [("gather", "\"window\""), ("passed", "\"update\"")];
    Contender::new("deferred, window, dropped at each update", "deferred", &options, Look::dashed(5))
}

pub(super) fn deferred_prefix() -> Contender {
    Contender::new("deferred, prefix", "deferred", &[("gather", "\"prefix\"")], Look::dashed(0))
}

pub(super) fn eager_prefix() -> Contender {
    Contender::new("eager, prefix", "eager", &[("gather", "\"prefix\"")], Look::solid(1))
}

pub(super) fn eager_update() -> Contender {
    let options = [("gather", "\"window\""), ("passed", "\"update\"")];
    Contender::new("eager, window, dropped at each update", "eager", &options, Look::dashed(5))
}

pub(super) fn eager_window() -> Contender {
    Contender::new("eager, window", "eager", &[("gather", "\"window\"")], Look::dashed(1))
}

/// Returns an eager policy as in servers without deadlines: all waiting requests run, the oldest
/// first.
pub(super) fn eager_blind() -> Contender {
    Contender::new("eager, blind", "eager", &[("gather", "\"fifo\"")], Look::dashed(1))
}

pub(super) fn clockwork() -> Contender {
    Contender::new("clockwork", "clockwork", &[], Look::solid(2))
}

/// Returns Clockwork with the additions of its public code: it chooses batches 10 ms ahead, plans
/// for 5 ms before the deadline, and passes over heads.
pub(super) fn clockwork_program() -> Contender {
    let options = [("lookahead_ms", "10"), ("buffer_ms", "5"), ("gather", "\"window\"")];
    Contender::new("clockwork, as its program", "clockwork", &options, Look::dashed(2))
}

pub(super) fn nexus() -> Contender {
    Contender::new("nexus", "nexus", &[], Look::solid(3))
}

/// Returns Nexus with eight independent frontends.
pub(super) fn nexus_eight_frontends() -> Contender {
    Contender::new("nexus, 8 frontends", "nexus", &[("frontends", "8")], Look::dashed(3))
}

/// Returns Nexus by the text of the Symphony paper: no batch is larger than planned.
pub(super) fn nexus_planned() -> Contender {
    Contender::new("nexus, capped", "nexus", &[("gather", "\"window\"")], Look::dashed(3))
}

/// Returns Nexus with both changes.
pub(super) fn nexus_planned_eight_frontends() -> Contender {
    let options = [("gather", "\"window\""), ("frontends", "8")];
    Contender::new("nexus, capped, 8 frontends", "nexus", &options, Look::dashed(3))
}

pub(super) fn shepherd() -> Contender {
    Contender::new("shepherd", "shepherd", &[], Look::solid(4))
}

/// Returns a window of this fraction of the SLO, with this rule of gathering.
pub(super) fn timeout(fraction: f64, gather: &str) -> Contender {
    let (gather, fraction_text) = (format!("\"{gather}\""), format!("{fraction:?}"));
    let options = [("gather", gather.as_str()), ("timeout_slo", fraction_text.as_str())];
    Contender::new(&format!("timeout {:.0} % of SLO", fraction * 100.0), "timeout", &options, Look::solid(5))
}

/// Returns the systems that the paper compares itself with.
pub(super) fn baselines() -> Vec<Contender> {
    known([clockwork(), clockwork_program(), nexus(), shepherd()])
}

/// Returns the system, the paper's baselines, and an ideal central eager policy, which the paper
/// only simulates.
pub(super) fn systems() -> Vec<Contender> {
    let first = [deferred_window(), deferred_prefix()];
    known(first.into_iter().chain(baselines()).chain([eager_prefix()]))
}

/// Returns the contenders that the catalogue has.
pub(super) fn known(contenders: impl IntoIterator<Item = Contender>) -> Vec<Contender> {
    contenders.into_iter().filter(Contender::is_known).collect()
}

pub(super) fn axis(label: &str) -> PlotAxis {
    PlotAxis { label: label.to_owned(), ..PlotAxis::default() }
}

/// Returns a panel of curves.
pub(super) fn lines(title: &str, x: PlotAxis, y: PlotAxis, series: Vec<Series>) -> Panel {
    Panel { title: title.to_owned(), x, y, content: Content::Lines(series) }
}

/// Returns a curve with the name and look of a contender.
pub(super) fn series(contender: &Contender, points: Vec<(f64, f64)>) -> Series {
    Series { name: contender.name.clone(), points, look: contender.look, markers: true }
}
