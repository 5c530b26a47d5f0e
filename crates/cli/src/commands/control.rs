//! The repository's part in a server's life: flags of `serve` and `backend`.

use anyhow::bail;
use clap::{Args, ValueEnum};
use ripieno_repository::ModelControl;

#[derive(Args, Clone, Debug)]
pub(crate) struct ControlArgs {
    /// Poll the repository at this interval in seconds, load new or changed models and unload
    /// removed ones, once two polls agree.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    poll_s: Option<u32>,

    /// Triton's model control mode. none: all models serve, and calls to load and unload are
    /// refused. poll: likewise, and the repository is polled (--poll-s, 15 by default). explicit:
    /// the models of --load-model serve, others once a call loads them. Without it all serve, and
    /// calls are accepted.
    #[arg(long, value_enum)]
    model_control_mode: Option<ControlMode>,

    /// A model to serve from the start with --model-control-mode explicit; * for all. May be
    /// repeated, or several with commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    load_model: Vec<String>,
}

/// Triton's model control modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ControlMode {
    None,
    Poll,
    Explicit,
}

/// Triton's default, for mode poll.
const DEFAULT_POLL_S: u32 = 15;

impl ControlArgs {
    pub(crate) fn control(&self) -> anyhow::Result<ModelControl> {
        let mode = self.model_control_mode;
        if mode != Some(ControlMode::Explicit) && !self.load_model.is_empty() {
            bail!(
                "--load-model is for --model-control-mode explicit; add that, or leave it out: all models are loaded"
            );
        }
        if matches!(mode, Some(ControlMode::None | ControlMode::Explicit)) && self.poll_s.is_some() {
            bail!("--poll-s is for --model-control-mode poll; write that, or leave one of the two out");
        }
        Ok(match mode {
            None => ModelControl::Open,
            Some(ControlMode::None | ControlMode::Poll) => ModelControl::Closed,
            Some(ControlMode::Explicit) => ModelControl::Explicit(self.load_model.iter().cloned().collect()),
        })
    }

    /// Returns the poll interval in seconds, if the repository is polled.
    pub(crate) fn poll_s(&self) -> Option<u32> {
        let default = (self.model_control_mode == Some(ControlMode::Poll)).then_some(DEFAULT_POLL_S);
        self.poll_s.or(default)
    }

    /// Returns true if models are loaded by calls alone.
    pub(crate) fn is_explicit(&self) -> bool {
        self.model_control_mode == Some(ControlMode::Explicit)
    }

    /// Returns true if no model serves from the start.
    pub(crate) fn begins_empty(&self) -> bool {
        self.is_explicit() && self.load_model.is_empty()
    }
}
