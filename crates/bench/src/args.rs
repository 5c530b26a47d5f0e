//! The command line of `bench`, parsed into types.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ripieno_report::Format;
use ripieno_workload::ArrivalProcess;

use super::inputs::ShapeArg;
use super::target::tls::ClientTlsArgs;
use super::target::{Address, Protocol};
use super::unfolded::WalkArgs;

/// Loads a server with requests and measures the answers.
///
/// The load is open loop: send times are drawn from an arrival process beforehand, a slow server
/// gets no relief, and latency counts from the time at which a request was due. Works with any
/// server of the Open Inference Protocol (KServe V2).
///
/// Examples:
///
///   ripieno bench localhost:8000 --model digits --rate 500
///   ripieno bench localhost:8000 --model digits --sweep 200:2000:200 --arrival gamma:0.3
///   ripieno bench localhost:8000 --model sentiment --rate 200 --lengths europarl
///
///   ripieno bench grpc://localhost:8001 --model digits --find-goodput --slo-ms 20 --format json
///   ripieno bench grpcs://example.com:8001 --ca ca.pem --token-file token --model digits --rate 9
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct BenchArgs {
    /// The server: HOST:PORT, http://HOST:PORT or grpc://HOST:PORT; https:// and grpcs:// for TLS.
    #[arg(value_parser = url)]
    pub url: String,

    /// TLS and tokens.
    #[command(flatten)]
    pub tls: ClientTlsArgs,

    /// The model to send requests to.
    #[arg(long, short)]
    pub model: String,

    /// Offered load in requests per second. With --find-goodput: the rate to try first.
    #[arg(long, value_name = "R", value_parser = positive, allow_negative_numbers = true)]
    pub rate: Option<f64>,

    /// Several rates, one run each: R1,R2,… or FROM:TO:STEP.
    #[arg(long, value_name = "RATES", conflicts_with_all = ["rate", "find_goodput"])]
    pub sweep: Option<RateSweep>,

    /// Search for the highest rate at which at most 1 % of the requests are bad (failed, refused or
    /// later than the SLO).
    #[arg(long)]
    pub find_goodput: bool,

    /// Relative distance of the good and the bad rate at which --find-goodput ends. Smaller steps
    /// need longer runs to be meaningful.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.02, value_parser = positive)]
    pub goodput_step: f64,

    /// The arrival process: poisson (independent users), gamma:SHAPE (CV² = 1/SHAPE; below 1 is
    /// bursty), uniform, or trace:FILE. The file has arrival times in ms, one per line, or is CSV
    /// with the columns arrival_ms and, if there are several models, model.
    #[arg(long, default_value = "poisson")]
    pub arrival: ArrivalArg,

    /// Seconds to measure, for each rate.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = positive, allow_negative_numbers = true)]
    pub duration: f64,

    /// Seconds of load before the measurement, not counted.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = not_negative)]
    pub warmup: f64,

    /// Seed of arrivals and random inputs: the same seed sends the same load.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Latency target (SLO) of the answers. Default: slo_ms of the server's model configuration.
    #[arg(long, value_name = "X", value_parser = positive)]
    pub slo_ms: Option<f64>,

    /// Protocol, if the URL has no scheme [default: http].
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,

    /// Rows (batch size) of each request.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,

    /// Sizes of an input's open dimensions, without the rows: NAME:D1,D2,… (others are 1). May be
    /// repeated.
    #[arg(long, value_name = "NAME:DIMS")]
    pub shape: Vec<ShapeArg>,

    /// Send real rows from a samples file (such as models/samples/digits.json) instead of random
    /// ones.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// Lengths and shapes of requests, where they vary.
    #[command(flatten)]
    pub walks: WalkArgs,

    /// Send tensors as JSON instead of binary (HTTP only), for servers without the binary tensor
    /// extension.
    #[arg(long)]
    pub json_tensors: bool,

    /// Time after its due time at which a request is given up.
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout_ms: u64,

    /// Number of connections. Over HTTP each carries one request at a time, and further requests
    /// wait, which adds to their latency [default: 512; gRPC: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: Option<u32>,

    /// Largest number of requests sent or waiting; a request that is due beyond that is not sent
    /// and counts as bad.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_outstanding: u32,

    /// Write the results with charts into this HTML file, which needs nothing else.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<std::path::PathBuf>,

    /// Output format: table or json (one object on stdout).
    #[arg(long, default_value_t = Format::Table)]
    pub format: Format,
}

impl BenchArgs {
    /// Checks what clap cannot: rates and traces exclude each other, and one of them is needed.
    pub fn check(&self) -> Result<(), String> {
        let rated = self.rate.is_some() || self.sweep.is_some() || self.find_goodput;
        match self.arrival {
            ArrivalArg::Trace(_) if rated => {
                Err("--arrival trace:FILE has its own rate; leave --rate, --sweep and --find-goodput out".into())
            }
            ArrivalArg::Process(_) if !rated => {
                Err("say how much load: --rate R, --sweep R1,R2,…, --find-goodput or --arrival trace:FILE".into())
            }
            _ => self.check_count(),
        }
    }

    /// Refuses runs of more requests than a generator can send or plan.
    fn check_count(&self) -> Result<(), String> {
        let rates = self.rate.iter().chain(self.sweep.iter().flat_map(|sweep| &sweep.0));
        let seconds = self.duration;
        match rates.copied().find(|rate| rate * seconds > MAX_REQUESTS) {
            Some(rate) => Err(format!(
                "{rate} requests per second for {seconds} s are {:.0} requests, and a run has at most {MAX_REQUESTS:.0}; \
                 lower the rate or --duration",
                rate * seconds
            )),
            None => Ok(()),
        }
    }
}

/// Largest number of requests of one run: what one generator could send in ten minutes.
const MAX_REQUESTS: f64 = 5e7;

/// `--arrival`.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrivalArg {
    /// Random or uniform arrivals at a rate.
    Process(ArrivalProcess),
    /// Arrivals from a file.
    Trace(PathBuf),
}

impl FromStr for ArrivalArg {
    type Err = ripieno_workload::ArrivalError;

    fn from_str(text: &str) -> Result<ArrivalArg, Self::Err> {
        match text.strip_prefix("trace:") {
            Some(file) => Ok(ArrivalArg::Trace(file.into())),
            None => text.parse().map(ArrivalArg::Process),
        }
    }
}

impl fmt::Display for ArrivalArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrivalArg::Process(arrival) => arrival.fmt(f),
            ArrivalArg::Trace(file) => write!(f, "trace:{}", file.display()),
        }
    }
}

/// `--sweep`.
#[derive(Clone, Debug, PartialEq)]
pub struct RateSweep(pub Vec<f64>);

/// The largest number of rates in one sweep.
const MAX_RATES: usize = 1000;

impl FromStr for RateSweep {
    type Err = String;

    fn from_str(text: &str) -> Result<RateSweep, String> {
        let rates = match text.split(':').collect::<Vec<_>>()[..] {
            [from, to, step] => {
                let (from, to, step) = (positive(from)?, positive(to)?, positive(step)?);
                // Counted, not accumulated, and with some tolerance, so that 0.1:0.5:0.1 ends with
                // 0.5.
                let steps = ((to - from) / step + 1e-9).floor();
                (0..=(steps.clamp(-1.0, MAX_RATES as f64) as i64)).map(|at| from + at as f64 * step).collect()
            }
            [list] => list.split(',').map(positive).collect::<Result<Vec<f64>, _>>()?,
            _ => return Err("write R1,R2,… or FROM:TO:STEP".into()),
        };
        match rates.len() {
            0 => Err("the sweep is empty: FROM is above TO".into()),
            1..=MAX_RATES => Ok(RateSweep(rates)),
            _ => Err(format!("a sweep has at most {MAX_RATES} rates; choose a larger STEP")),
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|&value: &f64| value > 0.0 && value.is_finite())
        .ok_or_else(|| format!("{text:?} is no number above 0"))
}

/// Returns the URL as written, if it names a server.
fn url(text: &str) -> Result<String, String> {
    text.parse::<Address>().map(|_| text.to_owned())
}

fn not_negative(text: &str) -> Result<f64, String> {
    if text.trim() == "0" { Ok(0.0) } else { positive(text) }
}
