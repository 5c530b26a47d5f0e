//! A scenario of an experiment, as the text of a scenario file.
//!
//! The text identifies a finished run, and can be taken from the cache and given to `ripieno
//! simulate`.

use ripieno_policies::find;
use ripieno_report::plot::Look;
use ripieno_sim::Scenario;
use std::fmt::Write;

/// A policy with options, and its look in all plots.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contender {
    /// Name in rows and legends.
    pub(super) name: String,
    pub(super) policy: &'static str,
    /// Options with their values as in TOML.
    pub(super) options: Vec<(&'static str, String)>,
    pub(super) look: Look,
}

/// A model and its load.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CaseLoad {
    pub(super) name: String,
    pub(super) alpha_ms: f64,
    pub(super) beta_ms: f64,
    pub(super) slo_ms: f64,
    pub(super) share: f64,
    /// Shape of Gamma arrivals; `None` is Poisson.
    pub(super) shape: Option<f64>,
}

/// A scenario.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScenarioCase {
    pub(super) seed: u64,
    pub(super) requests: u64,
    /// Fraction of the run that is not counted.
    pub(super) warmup: f64,
    pub(super) rate: f64,
    pub(super) devices: usize,
    pub(super) contender: Contender,
    pub(super) loads: Vec<CaseLoad>,
    pub(super) network: Option<CaseNetwork>,
}

/// The network between the scheduler and the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CaseNetwork {
    /// A constant delay per message, in µs.
    FixedUs(f64),
    /// Delays as measured for this transport: "rdma" or "tcp".
    Transport(&'static str),
    /// A delay per message and the policy's estimate of it, in µs.
    MeasuredUs { control: f64, estimate: f64 },
}

impl Contender {
    pub(super) fn new(name: &str, policy: &'static str, options: &[(&'static str, &str)], look: Look) -> Contender {
        let options = options.iter().map(|&(key, value)| (key, value.to_owned())).collect();
        Contender { name: name.to_owned(), policy, options, look }
    }

    /// Returns true if the catalogue has the policy and all the options.
    pub(super) fn is_known(&self) -> bool {
        let knobs = |knob| find(self.policy).is_ok_and(|policy| policy.has(knob));
        find(self.policy).is_ok() && self.options.iter().all(|(option, _)| knobs(*option))
    }
}

impl CaseLoad {
    /// Returns the load with another share of the rate.
    pub(super) fn share(self, share: f64) -> CaseLoad {
        CaseLoad { share, ..self }
    }

    /// Returns the load with Gamma arrivals.
    pub(super) fn shape(self, shape: Option<f64>) -> CaseLoad {
        CaseLoad { shape, ..self }
    }
}

impl ScenarioCase {
    /// Returns the scenario file.
    pub(super) fn toml(&self) -> String {
        let ScenarioCase { seed, requests, warmup, rate, devices, contender, loads, network } = self;
        let mut text = format!("seed = {seed}\nrequests = {requests}\nwarmup_fraction = {warmup:?}\nrate = {rate:?}\n");
        let _ = write!(text, "policy = \"{}\"\n[policy_options]\n", contender.policy);
        for (key, value) in &contender.options {
            let _ = writeln!(text, "{key} = {value}");
        }
        let _ = write!(text, "[cluster]\ndevices = {devices}\n");
        let _ = match network {
            None => Ok(()),
            Some(CaseNetwork::FixedUs(delay)) => write!(text, "[network]\ncontrol_us = {delay:?}\n"),
            Some(CaseNetwork::MeasuredUs { control, estimate }) => {
                write!(text, "[network]\ncontrol_us = {control:?}\nestimate_us = {estimate:?}\n")
            }
            Some(CaseNetwork::Transport(name)) => write!(text, "[network]\ntransport = \"{name}\"\n"),
        };
        for load in loads {
            let CaseLoad { name, alpha_ms, beta_ms, slo_ms, share, .. } = load;
            let _ = write!(
                text,
                "[[model]]\nname = \"{name}\"\nalpha_ms = {alpha_ms:?}\nbeta_ms = {beta_ms:?}\nslo_ms = {slo_ms:?}\n\
                 share = {share:?}\n"
            );
            let _ = match load.shape {
                None => writeln!(text, "arrival = {{ kind = \"poisson\" }}"),
                Some(shape) => writeln!(text, "arrival = {{ kind = \"gamma\", shape = {shape:?} }}"),
            };
        }
        text
    }

    pub(super) fn scenario(&self) -> anyhow::Result<Scenario> {
        Ok(Scenario::parse(&self.toml(), "scenario of the experiment")?)
    }
}
