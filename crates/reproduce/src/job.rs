//! One simulation, or one search over simulations: the unit that runs on a core and is kept.

use super::peak::{Peak, peak};
use ripieno_report::{Search, Summary, WindowFigures, search};
use ripieno_sim::{Scenario, SimError, Trace, simulate, simulate_at};
use serde::{Deserialize, Serialize};

/// A question to the simulator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    /// Who decides, for errors.
    pub(super) policy: String,
    /// The text of the scenario file.
    pub(super) scenario: String,
    pub(super) question: Question,
}

/// What is asked about a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Question {
    /// How does it fare at its rate, and in each of its windows if the devices follow the load?
    Run,
    /// What is its goodput?
    Goodput,
    /// At 97 % of its goodput, how are batch sizes and queueing delays distributed?
    Knee,
    /// How many devices does its rate need?
    Devices,
    /// How does it fare, and how are the times before and after the first start distributed?
    Delays,
    /// What is the highest rate that is sustained, and what is answered when saturated, with so many doublings of the run beyond
    /// those that settle it?
    Peak { doublings: u32 },
}

/// The answer. What the question does not ask for is left at 0 or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The goodput found, or for [`Question::Run`] the rate of punctual answers.
    pub(super) goodput_rps: f64,
    /// The devices needed.
    pub(super) devices: usize,
    pub(super) worst_bad_rate: f64,
    pub(super) busy_fraction: f64,
    pub(super) devices_used: usize,
    pub(super) median_batch: f64,
    /// For each hundredth from 0 to 100 %, the batch size that a request was in.
    pub(super) batch_of_requests: Vec<f64>,
    /// For each hundredth from 0 to 100 %, the time from arrival to start.
    pub(super) delays_ms: Vec<f64>,
    /// The same from start to answer.
    pub(super) computing_ms: Vec<f64>,
    /// Latencies; infinite where nothing was answered.
    pub(super) p50_ms: f64,
    pub(super) p90_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) mean_batch: f64,
    /// Requests answered within the run, a second, of models that unfold.
    pub(super) answered_rps: f64,
    pub(super) p99_queue_ms: f64,
    /// Rows that were padding or came after the end, as a share.
    pub(super) wasted: f64,
    /// Tasks with the members of the one before, as a share.
    pub(super) without_copy: f64,
    pub(super) windows: Vec<Interval>,
    pub(super) peak: Option<Peak>,
}

/// What happened between two looks of an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Interval {
    pub(super) end_s: f64,
    pub(super) span_s: f64,
    pub(super) offered_rps: f64,
    pub(super) goodput_rps: f64,
    pub(super) bad_rate: f64,
    /// Devices that were there, and of them, kept busy.
    pub(super) devices: f64,
    pub(super) busy_devices: f64,
    /// What the autoscaler is advised to have.
    pub(super) desired_devices: usize,
}

/// At most this share of any model's requests may be bad.
const LIMIT: f64 = 0.01;
/// The load at which distributions are looked at: close to what is possible and safely below it.
const KNEE: f64 = 0.97;
const MOST_DEVICES: usize = 4096;
/// A goodput below this share of the bound counts as 0: so slow a run would last for ages of virtual time.
const HOPELESS: f64 = 1e-3;

/// Why a search ended early.
enum Stop {
    Hopeless,
    Failed(SimError),
}

impl Job {
    pub(super) fn answer(&self) -> anyhow::Result<Answer> {
        match self.question {
            Question::Run => Ok(simulate(&self.parse()?, None)?.into()),
            Question::Goodput => self.goodput(),
            Question::Knee => self.knee(),
            Question::Devices => self.devices(),
            Question::Delays => self.delays(),
            Question::Peak { doublings } => {
                Ok(Answer { peak: Some(peak(&self.parse()?, doublings)?), ..Answer::default() })
            }
        }
    }

    fn parse(&self) -> anyhow::Result<Scenario> {
        Ok(Scenario::parse(&self.scenario, "scenario of the experiment")?)
    }

    fn goodput(&self) -> anyhow::Result<Answer> {
        let scenario = self.parse()?;
        let bound = scenario.bound_rps();
        let found = search(Search::from_ceiling(bound), |rate| match rate < bound * HOPELESS {
            true => Err(Stop::Hopeless),
            false => simulate_at(&scenario, rate, None).map(|run| (run.worst_bad_rate, run)).map_err(Stop::Failed),
        });
        match found {
            Ok(found) => {
                let goodput_rps = found.goodput_rps();
                let run = found.good.map_or_else(Answer::default, |trial| trial.run.into());
                Ok(Answer { goodput_rps, ..run })
            }
            Err(Stop::Hopeless) => Ok(Answer::default()),
            Err(Stop::Failed(error)) => Err(error.into()),
        }
    }

    fn knee(&self) -> anyhow::Result<Answer> {
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
        Ok(Answer { goodput_rps: found.goodput_rps, batch_of_requests, delays_ms, ..summary.into() })
    }

    fn delays(&self) -> anyhow::Result<Answer> {
        let scenario = self.parse()?;
        let mut trace = Trace::new(&scenario.setup.models);
        let summary = simulate(&scenario, Some(&mut trace))?;
        let csv = trace.requests_csv();
        let (delays_ms, computing_ms) = (quantiles(spans(&csv, 3, 2)), quantiles(spans(&csv, 2, 1)));
        Ok(Answer { delays_ms, computing_ms, ..summary.into() })
    }

    /// Doubles the devices until they are enough, then halves the difference; 0 if no number was enough.
    fn devices(&self) -> anyhow::Result<Answer> {
        let enough = |devices| {
            let mut scenario = self.parse()?;
            (scenario.setup.devices, scenario.setup.limits.devices) = (devices, devices);
            anyhow::Ok(simulate(&scenario, None)?.worst_bad_rate <= LIMIT)
        };
        let (mut few, mut many) = (0, 1);
        while !enough(many)? {
            (few, many) = (many, many * 2);
            if many > MOST_DEVICES {
                return Ok(Answer::default());
            }
        }
        while many - few > 1 {
            let middle = few.midpoint(many);
            *(if enough(middle)? { &mut many } else { &mut few }) = middle;
        }
        Ok(Answer { devices: many, ..Answer::default() })
    }
}

impl From<Summary> for Answer {
    fn from(summary: Summary) -> Answer {
        let unfolded = summary.unfolded.clone().unwrap_or_default();
        Answer {
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
            ..Answer::default()
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

/// From a trace of tasks, each request's batch size: a batch of b counts b times.
fn batches(csv: &str) -> Vec<f64> {
    let members = csv.lines().skip(1).filter_map(|line| line.rsplit(',').next());
    let sizes = members.map(|members| members.split(' ').count());
    sizes.flat_map(|size| std::iter::repeat_n(size as f64, size)).collect()
}

/// From a trace of requests, the time from one field to another of those that ran. Fields are counted from the end, since a
/// name may hold commas: the outcome is 0, the end 1, the start 2, the arrival 3.
fn spans(csv: &str, from: usize, to: usize) -> Vec<f64> {
    let span = |line: &str| {
        let field = |at: usize| line.rsplit(',').nth(at)?.parse::<f64>().ok();
        Some(field(to)? - field(from)?)
    };
    csv.lines().skip(1).filter_map(span).collect()
}

/// The values at 0, 1, … 100 %.
fn quantiles(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => Vec::new(),
        length => (0..=100).map(|percent| values[(length - 1) * percent / 100]).collect(),
    }
}
