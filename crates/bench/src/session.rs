//! One server, one model, several runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_base::{Nanos, Time};
use ripieno_workload::{Arrivals, trace};

use super::args::{ArrivalArg, BenchArgs};
use super::inputs::{self, Filling, InputSamples};
use super::load::{LoadSchedule, open_loop};
use super::output::{BenchRow, run_line};
use super::target::tls::ClientAuth;
use super::target::{Address, Client, Protocol};

/// A client of the model under load, with the runs so far.
pub(crate) struct BenchSession<'a> {
    args: &'a BenchArgs,
    client: Arc<Client>,
    max_in_flight: usize,
    trace: Vec<Time>,
    /// The protocol in use.
    pub(crate) protocol: Protocol,
    /// The given SLO, or else the server's.
    pub(crate) slo_ms: Option<f64>,
    /// Length of the measured window of each run, in seconds.
    pub(crate) window_s: f64,
    /// All runs, in order.
    pub(crate) runs: Vec<BenchRow>,
}

impl<'a> BenchSession<'a> {
    /// Reads the files, fetches the model's metadata and generates the requests.
    pub(crate) async fn open(args: &'a BenchArgs) -> anyhow::Result<BenchSession<'a>> {
        let samples = args.input.as_deref().map(InputSamples::read).transpose()?;
        let trace = match &args.arrival {
            ArrivalArg::Trace(file) => trace::read(file, Some(&args.model))?,
            ArrivalArg::Process(_) => Vec::new(),
        };
        let address: Address = args.url.parse().map_err(|message: String| anyhow!(message))?;
        let protocol = protocol(args, &address)?;
        let connections = args.connections.unwrap_or(if protocol == Protocol::Http { 512 } else { 8 }) as usize;
        let max_in_flight = if protocol == Protocol::Http { connections } else { args.max_outstanding as usize };
        let auth = ClientAuth::open(&args.tls, &address)?;
        let mut client = Client::new(&address.authority, protocol, &args.model, connections, &auth)?;
        let description = client.describe().await?;
        let filling = Filling { rows: args.rows as usize, shapes: args.shape.clone(), samples, seed: args.seed };
        let requests = match args.walks.is_needed(&description.inputs) {
            true => args.walks.requests(&description.inputs, args.seed)?,
            false => inputs::requests(&description.inputs, &filling)?,
        };
        client.prepare(&requests, args.json_tensors)?;
        Ok(BenchSession {
            args,
            client: Arc::new(client),
            max_in_flight,
            window_s: window_s(args, &trace)?,
            trace,
            protocol,
            slo_ms: args.slo_ms.or(description.slo_ms),
            runs: Vec::new(),
        })
    }

    /// Makes one run at `rate`, or of the trace if there is none, and adds it to `runs`.
    pub(crate) async fn run(&mut self, rate: Option<f64>) -> anyhow::Result<BenchRow> {
        let plan = self.plan(rate)?;
        let slo = plan.slo;
        let progress = progress(rate);
        let report = open_loop(self.client.clone(), plan, &progress).await?;
        progress.finish_and_clear();
        let row = BenchRow::new(rate, &report, slo);
        for (class, failure) in &report.failures {
            eprintln!("{} × {class}, the first: {}", failure.count, failure.example);
        }
        if let Some(lag_ms) = row.send_lag_p99_ms.filter(|&lag_ms| lag_ms > 1.0) {
            eprintln!(
                "warning: the generator itself was up to {lag_ms:.1} ms late (p99), which the latencies include; \
                 use fewer requests per second, more --connections or another machine"
            );
        }
        if self.args.find_goodput || self.args.sweep.is_some() {
            eprintln!("{}", run_line(&row));
        }
        self.runs.push(row.clone());
        Ok(row)
    }

    fn plan(&self, rate: Option<f64>) -> anyhow::Result<LoadSchedule> {
        let args = self.args;
        let warmup = Nanos::from_secs_f64(args.warmup);
        let end = warmup + Nanos::from_secs_f64(self.window_s);
        let due: Box<dyn Iterator<Item = Time> + Send> = match (&args.arrival, rate) {
            (ArrivalArg::Process(arrival), Some(rate)) => {
                let arrivals = Arrivals::new(*arrival, rate, args.seed, 0)?;
                Box::new(arrivals.take_while(move |&due| due < Time::ORIGIN + end))
            }
            _ => Box::new(self.trace.clone().into_iter()),
        };
        Ok(LoadSchedule {
            due,
            warmup,
            end,
            slo: self.slo_ms.map(Nanos::from_millis_f64),
            timeout: Duration::from_millis(args.timeout_ms),
            max_in_flight: self.max_in_flight,
            max_outstanding: args.max_outstanding as usize,
        })
    }
}

/// Returns the protocol by URL and arguments, which must agree.
fn protocol(args: &BenchArgs, address: &Address) -> anyhow::Result<Protocol> {
    if let (Some(scheme), Some(asked)) = (address.protocol, args.protocol) {
        ensure!(scheme == asked, "{} and --protocol contradict each other; leave --protocol out", args.url);
    }
    let protocol = address.protocol.or(args.protocol).unwrap_or(Protocol::Http);
    ensure!(!args.json_tensors || protocol == Protocol::Http, "--json-tensors is for HTTP; gRPC sends raw tensors");
    Ok(protocol)
}

/// Returns the length of each run's window: as given, or until the trace's last arrival.
fn window_s(args: &BenchArgs, trace: &[Time]) -> anyhow::Result<f64> {
    let Some(&last) = trace.last() else { return Ok(args.duration) };
    let window_s = (last - Time::ORIGIN).as_secs_f64() - args.warmup;
    (window_s > 0.0).then_some(window_s).with_context(|| {
        format!("the trace ends within the --warmup of {} s; choose a shorter one, for example --warmup 0", args.warmup)
    })
}

/// Returns a spinner, which only shows on a terminal.
fn progress(rate: Option<f64>) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {msg}");
    let bar = ProgressBar::new_spinner().with_style(style.expect("the template is a constant that indicatif accepts"));
    bar.with_prefix(rate.map_or("trace".to_owned(), |rate| format!("{} requests/s", ripieno_report::number(rate))))
}
