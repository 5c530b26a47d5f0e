//! Open-loop load: every send time is fixed before the run starts.
//!
//! A client that waits for an answer before it sends the next request slows down together with the
//! server, and so hides exactly the latencies that matter. Here the arrival process alone decides
//! when a request is due, a slow server gets no relief, and latency counts from the *due* time: the
//! generator's own delay is part of a request's latency, and is also reported separately
//! (`send_lag`), so that a reader can distinguish a slow server from a slow generator.
//!
//! One thread waits for the send times, because tokio's timers tick in milliseconds: it sleeps
//! until shortly before a due time, yields until the instant, and hands the request to a task.
//! Where gaps are short it only sleeps, and is some 60 µs late. At most `max_outstanding` requests
//! are in flight; a request that is due beyond that is not sent and counts as bad.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::ProgressBar;
use ripieno_base::{Nanos, Time};
use ripieno_report::Latencies;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

/// The outcome of one request, as far as the target can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// A complete, successful answer.
    Answered,
    /// Any other outcome.
    Failed {
        /// Class by which failures are counted: "HTTP 429", "DEADLINE_EXCEEDED", "connection"; few
        /// in number.
        class: String,
        /// The message of the server or the system.
        message: String,
    },
}

/// A server under load.
pub trait BenchTarget: Send + Sync + 'static {
    /// Sends the request `index` of the run and waits for the whole answer.
    fn send(&self, index: u64) -> impl Future<Output = RequestOutcome> + Send;

    /// Is called at the end of each request that was sent, with its latency from the due time.
    fn on_end(&self, _index: u64, _latency: Nanos, _outcome: &RequestOutcome) {}
}

/// The schedule and the limits of one run.
pub struct LoadSchedule {
    /// Times at which requests are due, in order; finite.
    pub due: Box<dyn Iterator<Item = Time> + Send>,
    /// Requests due before this are sent but not counted.
    pub warmup: Nanos,
    /// End of the counted window, after which no request is due.
    pub end: Nanos,
    /// Latency within which answers count towards goodput; with `None` every answer is in time.
    pub slo: Option<Nanos>,
    /// Time after its due time at which a request is given up.
    pub timeout: Duration,
    /// Largest number of requests that are sent at a time; others wait, which adds to their
    /// latency.
    pub max_in_flight: usize,
    /// Largest number of requests sent or waiting; one more is not sent.
    pub max_outstanding: usize,
}

/// The failures of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureCount {
    /// Number of requests.
    pub count: u64,
    /// The first message of the class.
    pub example: String,
}

/// The result of a run; counts are of the requests that were due in the window.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// The length of the window.
    pub window: Nanos,
    /// Requests that were due.
    pub requests: u64,
    /// Requests answered, in time or not.
    pub answered: u64,
    /// Answers after the SLO.
    pub late: u64,
    /// Requests not sent because too many were outstanding.
    pub not_sent: u64,
    /// Requests that failed, by class.
    pub failures: BTreeMap<String, FailureCount>,
    /// Latencies of all answers, from the due time.
    pub latencies: Latencies,
    /// Delay of the generator: from the due time until a request was handed to the connection.
    pub send_lag: Latencies,
}

impl LoadReport {
    /// Returns the fraction of requests without an answer in time.
    pub fn bad_rate(&self) -> f64 {
        let in_time = self.answered - self.late;
        if self.requests == 0 { 0.0 } else { 1.0 - in_time as f64 / self.requests as f64 }
    }

    /// Returns a count as a rate over the window.
    pub fn per_second(&self, count: u64) -> f64 {
        if self.window > Nanos::ZERO { count as f64 / self.window.as_secs_f64() } else { 0.0 }
    }
}

/// The result of a request, as its task reports it.
struct RequestRecord {
    counted: bool,
    latency: Nanos,
    /// None if the request was never sent.
    lag: Option<Nanos>,
    outcome: RequestOutcome,
}

/// The counters of the sending thread.
struct SendCounts {
    due: u64,
    not_sent: u64,
}

/// Time before a due time at which the sending thread wakes up: a sleeping thread is late by about
/// 60 µs on Linux.
const WAKE_EARLY: Duration = Duration::from_micros(100);
/// The shortest gap whose end is waited for awake. So the sending thread never keeps more than a
/// tenth of a core busy with waiting: on a small machine the server needs that core.
const LONG_GAP: Nanos = Nanos::from_millis(1);
/// Longest sleep of the sending thread before it checks whether the run has been dropped.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Time between the start of a run and time 0 of its schedule.
const START_DELAY: Duration = Duration::from_millis(10);

/// Sends the requests of a schedule to `target` and waits until each is answered, failed or given
/// up.
///
/// Dropping the future stops the run.
pub async fn open_loop<T: BenchTarget>(
    target: Arc<T>,
    plan: LoadSchedule,
    progress: &ProgressBar,
) -> anyhow::Result<LoadReport> {
    let (warmup, window, slo) = (plan.warmup, plan.end - plan.warmup, plan.slo);
    let (records, mut inbox) = mpsc::channel(1024);
    let run = LoadRun {
        target,
        origin: Instant::now() + START_DELAY,
        warmup,
        timeout: plan.timeout,
        in_flight: Arc::new(Semaphore::new(plan.max_in_flight.max(1))),
        outstanding: Arc::new(Semaphore::new(plan.max_outstanding.max(1))),
        records,
    };
    let (handle, due) = (Handle::current(), plan.due);
    let sender = std::thread::Builder::new()
        .name("bench-sender".into())
        .spawn(move || run.send_all(due, &handle))
        .context("cannot start the thread that sends requests")?;
    let mut report = LoadReport::empty(window);
    let mut handled = 0u64;
    while let Some(record) = inbox.recv().await {
        report.add(record, slo);
        handled += 1;
        if handled.is_multiple_of(64) {
            progress.set_message(format!("{} answered", report.answered));
            progress.tick();
        }
    }
    let sent = sender.join().map_err(|_| anyhow::anyhow!("the thread that sends requests failed"))?;
    (report.requests, report.not_sent) = (sent.due, sent.not_sent);
    Ok(report)
}

impl LoadReport {
    fn empty(window: Nanos) -> LoadReport {
        LoadReport {
            window,
            requests: 0,
            answered: 0,
            late: 0,
            not_sent: 0,
            failures: BTreeMap::new(),
            latencies: Latencies::new(),
            send_lag: Latencies::new(),
        }
    }

    fn add(&mut self, record: RequestRecord, slo: Option<Nanos>) {
        if !record.counted {
            return;
        }
        if let Some(lag) = record.lag {
            self.send_lag.record(lag);
        }
        match record.outcome {
            RequestOutcome::Answered => {
                self.answered += 1;
                self.late += u64::from(slo.is_some_and(|slo| record.latency > slo));
                self.latencies.record(record.latency);
            }
            RequestOutcome::Failed { class, message } => {
                self.failures.entry(class).or_insert(FailureCount { count: 0, example: message }).count += 1;
            }
        }
    }
}

/// State shared by the sending thread and the tasks.
struct LoadRun<T> {
    target: Arc<T>,
    /// The instant of time 0.
    origin: Instant,
    warmup: Nanos,
    timeout: Duration,
    in_flight: Arc<Semaphore>,
    outstanding: Arc<Semaphore>,
    records: mpsc::Sender<RequestRecord>,
}

impl<T: BenchTarget> LoadRun<T> {
    /// Hands over each request at its due time, on the sending thread. Dropping `self` at the end
    /// lets the run end once the last task has reported.
    fn send_all(self, due: impl Iterator<Item = Time>, handle: &Handle) -> SendCounts {
        let mut sent = SendCounts { due: 0, not_sent: 0 };
        let mut last = Nanos::ZERO;
        for (index, due) in due.enumerate() {
            let due = due - Time::ORIGIN;
            let awake = if due - last >= LONG_GAP { WAKE_EARLY } else { Duration::ZERO };
            last = due;
            if !self.wait_until(due, awake) {
                break;
            }
            let counted = due >= self.warmup;
            sent.due += u64::from(counted);
            match self.outstanding.clone().try_acquire_owned() {
                Ok(permit) => {
                    let (target, turns) = (self.target.clone(), self.in_flight.clone());
                    let (origin, timeout, records) = (self.origin, self.timeout, self.records.clone());
                    handle.spawn(async move {
                        let record = RequestRecord {
                            counted,
                            ..request(&*target, index as u64, origin, due, timeout, &turns).await
                        };
                        target.on_end(index as u64, record.latency, &record.outcome);
                        drop(permit);
                        // If the run has been dropped, there is no receiver.
                        let _ = records.send(record).await;
                    });
                }
                Err(_) => sent.not_sent += u64::from(counted),
            }
        }
        sent
    }

    /// Waits until `due`, the last `awake` of it without sleeping; returns false if the run has
    /// been dropped.
    fn wait_until(&self, due: Nanos, awake: Duration) -> bool {
        let due = self.origin + Duration::from_nanos(due.0.max(0) as u64);
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if self.records.is_closed() {
                return false;
            }
            match left {
                Duration::ZERO => return true,
                left if left > awake => std::thread::sleep((left - awake).min(MAX_SLEEP)),
                _ => std::thread::yield_now(),
            }
        }
    }
}

/// Runs one request, from its due time to its end. The caller sets `counted`.
async fn request<T: BenchTarget>(
    target: &T,
    index: u64,
    origin: Instant,
    due: Nanos,
    timeout: Duration,
    turns: &Semaphore,
) -> RequestRecord {
    let due = origin + Duration::from_nanos(due.0.max(0) as u64);
    let since_due = || Nanos(due.elapsed().as_nanos() as i64);
    let mut lag = None;
    let attempt = async {
        // The semaphore is never closed, so a permit is always granted in the end.
        let _turn = turns.acquire().await;
        lag = Some(since_due());
        target.send(index).await
    };
    let outcome = match tokio::time::timeout_at((due + timeout).into(), attempt).await {
        Ok(outcome) => outcome,
        Err(_) => RequestOutcome::Failed {
            class: "client timeout".into(),
            message: format!("no answer within {} ms (--timeout-ms)", timeout.as_millis()),
        },
    };
    RequestRecord { counted: true, latency: since_due(), lag, outcome }
}
