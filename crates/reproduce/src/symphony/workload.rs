//! What the experiments share: models, policies and small pieces of plots.

use crate::case::{Case, Contender, Load};
use anyhow::Context as _;
use ripieno_report::plot::{Axis, Content, Look, Panel, Series};
use ripieno_workload::zoo::{ZooDevice, ZooModel};

/// A model whose requests arrive at random moments, with an equal share.
pub(super) fn load(name: impl Into<String>, alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> Load {
    Load { name: name.into(), alpha_ms, beta_ms, slo_ms, share: 1.0, shape: None }
}

/// The ResNet50 of Table 2, which is not that of Table 3.
pub(super) fn resnet50() -> Load {
    load("ResNet50", 1.053, 5.072, 25.0)
}

/// The InceptionResNetV2 of Table 2.
pub(super) fn inception_resnet_v2() -> Load {
    load("InceptionResNetV2", 5.090, 18.368, 70.0)
}

/// So many models like Table 2's ResNet50: "variants of the model for different applications".
pub(super) fn resnets(count: usize, slo_ms: f64) -> Vec<Load> {
    (1..=count).map(|index| Load { slo_ms, name: format!("resnet{index}"), ..resnet50() }).collect()
}

/// The models of Table 3 (`1080ti`) or Table 4 (`a100`).
pub(super) fn zoo(device: &str) -> anyhow::Result<Vec<ZooModel>> {
    let device = ZooDevice::from_name(device).with_context(|| format!("no profiles of a device {device:?}"))?;
    Ok(device.models().collect())
}

pub(super) fn from_zoo(model: &ZooModel) -> Load {
    load(model.name, model.alpha_ms, model.beta_ms, model.slo_ms)
}

/// A scenario; its rate is a placeholder where the goodput is searched.
pub(super) fn case(contender: &Contender, devices: usize, loads: Vec<Load>, requests: u64) -> Case {
    Case { seed: 1, requests, warmup: 0.1, rate: 1000.0, devices, contender: contender.clone(), loads, network: None }
}

pub(super) fn deferred_window() -> Contender {
    Contender::new("deferred, window", "deferred", &[("gather", "\"window\"")], Look::solid(0))
}

pub(super) fn deferred_prefix() -> Contender {
    Contender::new("deferred, prefix", "deferred", &[("gather", "\"prefix\"")], Look::dashed(0))
}

pub(super) fn eager_prefix() -> Contender {
    Contender::new("eager, prefix", "eager", &[("gather", "\"prefix\"")], Look::solid(1))
}

pub(super) fn eager_window() -> Contender {
    Contender::new("eager, window", "eager", &[("gather", "\"window\"")], Look::dashed(1))
}

/// Eager as servers do it that know no deadlines: all that waits runs, whoever has waited longest first.
pub(super) fn eager_blind() -> Contender {
    Contender::new("eager, blind", "eager", &[("gather", "\"fifo\"")], Look::dashed(1))
}

pub(super) fn clockwork() -> Contender {
    Contender::new("clockwork", "clockwork", &[], Look::solid(2))
}

/// With what the public code of Clockwork does beyond its rule: it chooses batches 10 ms ahead, plans for 5 ms before the
/// deadline, and passes over heads.
pub(super) fn clockwork_program() -> Contender {
    let options = [("lookahead_ms", "10"), ("buffer_ms", "5"), ("gather", "\"window\"")];
    Contender::new("clockwork, as its program", "clockwork", &options, Look::dashed(2))
}

pub(super) fn nexus() -> Contender {
    Contender::new("nexus", "nexus", &[], Look::solid(3))
}

/// Nexus with frontends that do not know of each other.
pub(super) fn nexus_eight_frontends() -> Contender {
    Contender::new("nexus, 8 frontends", "nexus", &[("frontends", "8")], Look::dashed(3))
}

/// Nexus by the words of the Symphony paper: no batch is larger than planned.
pub(super) fn nexus_planned() -> Contender {
    Contender::new("nexus, capped", "nexus", &[("gather", "\"window\"")], Look::dashed(3))
}

/// Both.
pub(super) fn nexus_planned_eight_frontends() -> Contender {
    let options = [("gather", "\"window\""), ("frontends", "8")];
    Contender::new("nexus, capped, 8 frontends", "nexus", &options, Look::dashed(3))
}

pub(super) fn shepherd() -> Contender {
    Contender::new("shepherd", "shepherd", &[], Look::solid(4))
}

/// A window of this fraction of the SLO, with this rule of gathering.
pub(super) fn timeout(fraction: f64, gather: &str) -> Contender {
    let (gather, fraction_text) = (format!("\"{gather}\""), format!("{fraction:?}"));
    let options = [("gather", gather.as_str()), ("timeout_slo", fraction_text.as_str())];
    Contender::new(&format!("timeout {:.0} % of SLO", fraction * 100.0), "timeout", &options, Look::solid(5))
}

/// The systems that the paper compares itself with.
pub(super) fn baselines() -> Vec<Contender> {
    known([clockwork(), clockwork_program(), nexus(), shepherd()])
}

/// The system, the paper's baselines, and an ideal central eager policy, which the paper only simulates.
pub(super) fn systems() -> Vec<Contender> {
    let first = [deferred_window(), deferred_prefix()];
    known(first.into_iter().chain(baselines()).chain([eager_prefix()]))
}

/// Those that the catalogue knows.
pub(super) fn known(contenders: impl IntoIterator<Item = Contender>) -> Vec<Contender> {
    contenders.into_iter().filter(Contender::is_known).collect()
}

pub(super) fn axis(label: &str) -> Axis {
    Axis { label: label.to_owned(), ..Axis::default() }
}

/// A panel of curves.
pub(super) fn lines(title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Panel {
    Panel { title: title.to_owned(), x, y, content: Content::Lines(series) }
}

/// A curve with the name and look of a contender.
pub(super) fn series(contender: &Contender, points: Vec<(f64, f64)>) -> Series {
    Series { name: contender.name.clone(), points, look: contender.look, markers: true }
}
