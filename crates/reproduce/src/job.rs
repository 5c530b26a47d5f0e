//! One simulation, or one search over simulations: the unit of work on a core and of caching.

use super::machine::LiveWindow;
use super::peak::{PeakRates, peak};
use ripieno_report::{Search, Summary, WindowFigures, search};
use ripieno_sim::{Scenario, SimError, Trace, simulate, simulate_at};
use serde::{Deserialize, Serialize};

/// A question to the simulator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SimJob {
    /// Name of the policy, for errors.
    pub(super) policy: String,
    /// The text of the scenario file.
    pub(super) scenario: String,
    pub(super) question: Question,
}

/// A question about a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Question {
    /// The figures at the job's rate, and the figures of each window if the devices follow the
    /// load.
    Run,
    /// The goodput.
    Goodput,
    /// The distributions of batch sizes and queueing delays at 97 % of its goodput.
    Knee,
    /// The number of devices that its rate needs.
    Devices,
    /// The figures at its rate, with the distributions of times before and after the first start.
    Delays,
    /// The highest sustained rate and the saturated rate, with runs doubled this many times beyond
    /// those that settle them.
    Peak { doublings: u32 },
}

/// The answer. Fields that the question does not need are 0 or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SimAnswer {
    /// The goodput found; for [`Question::Run`] the rate of answers in time.
    pub(super) goodput_rps: f64,
    /// The number of devices needed.
    pub(super) devices: usize,
    pub(super) worst_bad_rate: f64,
    pub(super) busy_fraction: f64,
    pub(super) devices_used: usize,
    pub(super) median_batch: f64,
    /// The batch size of requests, at each percentile from 0 to 100.
    pub(super) batch_of_requests: Vec<f64>,
    /// Time from arrival to start, at each percentile from 0 to 100.
    pub(super) delays_ms: Vec<f64>,
    /// Time from start to answer, at each percentile from 0 to 100.
    pub(super) computing_ms: Vec<f64>,
    /// Latency; infinite if nothing was answered.
    pub(super) p50_ms: f64,
    pub(super) p90_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) mean_batch: f64,
    /// Requests answered within the run, per second, for models that unfold.
    pub(super) answered_rps: f64,
    pub(super) p99_queue_ms: f64,
    /// Fraction of rows that were padding or came after the end.
    pub(super) wasted: f64,
    /// Fraction of tasks with the members of the previous one.
    pub(super) without_copy: f64,
    pub(super) windows: Vec<Interval>,
    pub(super) peak: Option<PeakRates>,
}

/// The figures between two steps of an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Interval {
    pub(super) end_s: f64,
    pub(super) span_s: f64,
    pub(super) offered_rps: f64,
    pub(super) goodput_rps: f64,
    pub(super) bad_rate: f64,
    /// Mean number of devices present, and of busy ones.
    pub(super) devices: f64,
    pub(super) busy_devices: f64,
    /// The number of devices advised.
    pub(super) desired_devices: usize,
}

/// Upper bound on the bad rate of any model.
const LIMIT: f64 = 0.01;
/// Fraction of the goodput at which distributions are taken: close to the maximum and safely below
/// it.
const KNEE: f64 = 0.97;
const MOST_DEVICES: usize = 4096;
/// Fraction of the bound below which a goodput counts as 0: so slow a run would take very long in
/// virtual time.
const HOPELESS: f64 = 1e-3;

/// The reason why a search ended early.
enum SearchStop {
    Hopeless,
    Failed(SimError),
}

impl SimJob {
    pub(super) fn answer(&self) -> anyhow::Result<SimAnswer> {
        match self.question {
            Question::Run => Ok(simulate(&self.parse()?, None)?.into()),
            Question::Goodput => self.goodput(),
            Question::Knee => self.knee(),
            Question::Devices => self.devices(),
            Question::Delays => self.delays(),
            Question::Peak { doublings } => {
                Ok(SimAnswer { peak: Some(peak(&self.parse()?, doublings)?), ..SimAnswer::default() })
            }
        }
    }

    fn parse(&self) -> anyhow::Result<Scenario> {
        Ok(Scenario::parse(&self.scenario, "scenario of the experiment")?)
    }

    fn goodput(&self) -> anyhow::Result<SimAnswer> {
        let scenario = self.parse()?;
        let bound = scenario.bound_rps();
        let found = search(Search::from_ceiling(bound), |rate| match rate < bound * HOPELESS {
            true => Err(SearchStop::Hopeless),
            false => {
                simulate_at(&scenario, rate, None).map(|run| (run.worst_bad_rate, run)).map_err(SearchStop::Failed)
            }
        });
        match found {
            Ok(found) => {
                let goodput_rps = found.goodput_rps();
                let run = found.good.map_or_else(SimAnswer::default, |trial| trial.run.into());
                Ok(SimAnswer { goodput_rps, ..run })
            }
            Err(SearchStop::Hopeless) => Ok(SimAnswer::default()),
            Err(SearchStop::Failed(error)) => Err(error.into()),
        }
    }

    fn knee(&self) -> anyhow::Result<SimAnswer> {
        let found = self.goodput()?;
        if found.goodput_rps == 0.0 {
            return Ok(found);
        }
        let mut scenario = self.parse()?;
        scenario.rate = Some(found.goodput_rps * KNEE);
        let mut trace = Trace::new(&scenario.setup.models);
        let summary = simulate(&scenario, Some(&mut trace))?;
        let batch_of_requests = quantiles(batches(&trace.tasks_csv()));
        let delays_ms = quantiles(spans(&trace.requests_csv(), 3, 2));
        Ok(SimAnswer { goodput_rps: found.goodput_rps, batch_of_requests, delays_ms, ..summary.into() })
    }

    fn delays(&self) -> anyhow::Result<SimAnswer> {
        let scenario = self.parse()?;
        let mut trace = Trace::new(&scenario.setup.models);
        let summary = simulate(&scenario, Some(&mut trace))?;
        let csv = trace.requests_csv();
        let (delays_ms, computing_ms) = (quantiles(spans(&csv, 3, 2)), quantiles(spans(&csv, 2, 1)));
        Ok(SimAnswer { delays_ms, computing_ms, ..summary.into() })
    }

    /// Doubles the devices until they are enough, then bisects; 0 if no number was enough.
    fn devices(&self) -> anyhow::Result<SimAnswer> {
        let enough = |devices| {
            let mut scenario = self.parse()?;
            (scenario.setup.devices, scenario.setup.limits.devices) = (devices, devices);
            anyhow::Ok(simulate(&scenario, None)?.worst_bad_rate <= LIMIT)
        };
        let (mut few, mut many) = (0, 1);
        while !enough(many)? {
            (few, many) = (many, many * 2);
            if many > MOST_DEVICES {
                return Ok(SimAnswer::default());
            }
        }
        while many - few > 1 {
            let middle = few.midpoint(many);
            *(if enough(middle)? { &mut many } else { &mut few }) = middle;
        }
        Ok(SimAnswer { devices: many, ..SimAnswer::default() })
    }
}

impl From<Summary> for SimAnswer {
    fn from(summary: Summary) -> SimAnswer {
        let unfolded = summary.unfolded.clone().unwrap_or_default();
        SimAnswer {
            goodput_rps: summary.total.goodput_rps,
            worst_bad_rate: summary.worst_bad_rate,
            busy_fraction: summary.total.busy_fraction,
            devices_used: summary.total.devices_used,
            median_batch: summary.total.median_batch,
            windows: summary.windows.iter().map(Interval::from).collect(),
            p50_ms: summary.total.p50_ms.unwrap_or(f64::MAX),
            p90_ms: summary.total.p90_ms.unwrap_or(f64::MAX),
            p99_ms: summary.total.p99_ms.unwrap_or(f64::MAX),
            mean_batch: summary.total.mean_batch,
            answered_rps: unfolded.answered_rps,
            p99_queue_ms: unfolded.p99_queue_ms.unwrap_or(f64::MAX),
            wasted: unfolded.wasted_rows as f64 / unfolded.rows.max(1) as f64,
            without_copy: unfolded.tasks_without_copy as f64 / unfolded.tasks.max(1) as f64,
            ..SimAnswer::default()
        }
    }
}

impl From<&WindowFigures> for Interval {
    fn from(window: &WindowFigures) -> Interval {
        let &WindowFigures { end_s, span_s, offered_rps, goodput_rps, bad_rate, devices, busy_devices, .. } = window;
        let desired_devices = window.desired_devices;
        Interval { end_s, span_s, offered_rps, goodput_rps, bad_rate, devices, busy_devices, desired_devices }
    }
}

impl From<&LiveWindow> for Interval {
    fn from(window: &LiveWindow) -> Interval {
        let &LiveWindow { end_s, span_s, offered_rps, goodput_rps, devices, busy_devices, desired_devices } = window;
        let bad_rate = if offered_rps > 0.0 { 1.0 - goodput_rps / offered_rps } else { 0.0 };
        Interval { end_s, span_s, offered_rps, goodput_rps, bad_rate, devices, busy_devices, desired_devices }
    }
}

/// Returns each request's batch size from a trace of tasks: a batch of b counts b times.
fn batches(csv: &str) -> Vec<f64> {
    let members = csv.lines().skip(1).filter_map(|line| line.rsplit(',').next());
    let sizes = members.map(|members| members.split(' ').count());
    sizes.flat_map(|size| std::iter::repeat_n(size as f64, size)).collect()
}

/// Returns the time between two fields of a trace of requests, for those that ran. Fields are
/// counted from the end, since a name may hold commas: the outcome is 0, the end 1, the start 2,
/// the arrival 3.
fn spans(csv: &str, from: usize, to: usize) -> Vec<f64> {
    let span = |line: &str| {
        let field = |at: usize| line.rsplit(',').nth(at)?.parse::<f64>().ok();
        Some(field(to)? - field(from)?)
    };
    csv.lines().skip(1).filter_map(span).collect()
}

/// Returns the values at 0, 1, … 100 %.
fn quantiles(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => Vec::new(),
        length => (0..=100).map(|percent| values[(length - 1) * percent / 100]).collect(),
    }
}
