//! Failures, readiness and calls as a server of clients reports them: flags of `serve` and
//! `frontend`.

use clap::{ArgAction, Args, ValueEnum};
use ripieno_server::{AccessLogConfig, ErrorProfile, ServerConfig};
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug)]
pub(crate) struct ReplyArgs {
    /// Not ready while a model of the repository cannot be served. A model that was unloaded does
    /// not count, nor does one that still serves an earlier version. While no model serves, the
    /// server is not ready in any case.
    #[arg(long, value_name = "true|false", default_value_t = true, action = ArgAction::Set)]
    strict_readiness: bool,

    /// Statuses of failures. triton: 503 / UNAVAILABLE for late requests and overload, 400 for
    /// requests that are too large, and success for unloading a model that is not loaded. Clients
    /// and retries made for Triton expect these.
    #[arg(long, value_enum, default_value = "ripieno")]
    error_profile: ErrorProfileArg,

    /// Append a JSON object for each call to this file, - for stderr. A file that is moved away is
    /// begun anew; lines that cannot be written in time are dropped and counted [default: none].
    #[arg(long, value_name = "FILE|-")]
    access_log: Option<PathBuf>,

    /// Log one call in this many.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), requires = "access_log")]
    access_log_one_in: u32,
}

/// Statuses of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ErrorProfileArg {
    Ripieno,
    Triton,
}

impl ReplyArgs {
    pub(crate) fn over(&self, config: ServerConfig) -> ServerConfig {
        let file = |path: &PathBuf| (path != Path::new("-")).then(|| path.clone());
        let one_in = self.access_log_one_in;
        ServerConfig {
            strict_readiness: self.strict_readiness,
            error_profile: match self.error_profile {
                ErrorProfileArg::Ripieno => ErrorProfile::Ripieno,
                ErrorProfileArg::Triton => ErrorProfile::Triton,
            },
            access_log: self.access_log.as_ref().map(|path| AccessLogConfig { file: file(path), one_in }),
            ..config
        }
    }
}
