//! The flight recorder: flags of `serve`.

use anyhow::bail;
use clap::Args;
use ripieno_runtime::{FlightConfig, RingBounds};
use ripieno_sched::Options;
use ripieno_server::{AutoDump, TelemetryConfig};
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub(crate) struct FlightArgs {
    /// Memory for the last ten minutes of scheduling, in MiB, which POST /v2/recording/dump
    /// returns and the page shows. 0: keep none.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    flight_mib: u32,

    /// The page at /ui on the port of --metrics: on or off.
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = ["on", "off"])]
    ui: String,

    /// Send spans of sampled calls and of their batches to this OpenTelemetry collector, by OTLP
    /// over gRPC: http://HOST:4317. A call whose client traces it is sampled as the client says.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// Share of the other calls that are sampled.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, requires = "otlp", value_parser = share)]
    otlp_share: f64,

    /// Write the last minutes as a recording into this folder when too few requests are answered
    /// in time: at most every ten minutes, and the last eight are kept.
    #[arg(long, value_name = "DIR")]
    dump_into: Option<PathBuf>,

    /// Share of the requests of ten seconds that must be in time; below it such a recording is
    /// written.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, requires = "dump_into", value_parser = share)]
    dump_below: f64,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("it must be a share from 0 to 1".to_owned()),
    }
}

/// Returns the configuration of a flight recorder of this size; `None` for 0.
pub(crate) fn recorder(mib: u32, policy: &str, options: &Options) -> anyhow::Result<Option<FlightConfig>> {
    if mib == 0 {
        return Ok(None);
    }
    let bounds = RingBounds { bytes: (mib as usize) << 20, ..RingBounds::default() };
    Ok(Some(FlightConfig { policy: policy.to_owned(), options: serde_json::to_value(options)?, bounds }))
}

impl FlightArgs {
    /// Returns the configuration of the flight recorder under this policy; `None` if none is kept.
    pub(crate) fn config(&self, policy: &str, options: &Options) -> anyhow::Result<Option<FlightConfig>> {
        recorder(self.flight_mib, policy, options)
    }

    /// Returns where spans are sent, if anywhere.
    pub(crate) fn telemetry(&self, service: &str) -> anyhow::Result<Option<TelemetryConfig>> {
        if self.otlp.is_some() && self.flight_mib == 0 {
            bail!("--otlp reads the flight recorder, which --flight-mib 0 switches off; give it some memory");
        }
        let (ratio, service) = (self.otlp_share, service.to_owned());
        Ok(self.otlp.clone().map(|endpoint| TelemetryConfig { endpoint, ratio, service }))
    }

    /// Returns true if the page is served.
    pub(crate) fn has_page(&self) -> bool {
        self.ui == "on"
    }

    /// Returns the recordings that the server writes by itself, if any.
    pub(crate) fn auto_dump(&self) -> Option<AutoDump> {
        let below = self.dump_below;
        self.dump_into.clone().map(|folder| AutoDump { folder, below })
    }
}
