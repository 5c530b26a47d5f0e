//! The cause of each late, refused or failed call.
//!
//! A call has one cause. The rules are tried from the most certain to the most general: what the
//! call itself shows (a failure, a refusal, a deadline below a lone run), then what its time in the
//! server shows: batches that ran again, batches slower than the profile, more work than devices,
//! devices that idled, and otherwise what the devices were busy with: another model, other requests
//! of its own, or its own batches. The time of a call is its span until the end, or, where it was
//! refused on arrival, the span of its deadline before: that is what filled the queue. Sums over
//! spans come from prefix sums over the tasks by their start; only what the devices were busy with
//! is summed task by task.

pub use super::cause::Cause;
use super::offered::{OfferedLoad, lone_run, work};
use super::{CallReason, CallRecord, History, TaskRecord};
use crate::{Ending, RefusedWhy};
use ripieno_base::{DeviceId, Nanos, Time};
use ripieno_sched::Outcome;
use std::collections::BTreeMap;

/// Part of the devices' busy time beyond the profile, from which on they count as slow.
const SLOW_SHARE: f64 = 0.2;
/// Part of a wait in which devices idled, from which on the scheduler held the call back.
const IDLE_SHARE: f64 = 0.5;
/// Part of the devices' idle time in which batches held them, from which on those are the cause.
const HELD_SHARE: f64 = 0.5;
/// Number of batches after a load that count as a cold model's, if they are slow and the following
/// ones, as many again, are not.
const COLD_BATCHES: usize = 8;
/// Smallest number of batches by which the state of the server is judged.
const FEW_BATCHES: usize = 4;
/// Number of tasks that are looked at before a span, for those that still ran in it.
const MOST_RUNNING: usize = 256;
/// Time by which the scheduler wakes after the latest start of a call at most, if it has a core.
const STALL: Nanos = Nanos::from_millis(1);
/// Share of the arriving work from which on one of several clients is the cause of a burst.
const GREEDY_SHARE: f64 = 0.6;
/// Largest number of arrivals that are looked at for a greedy client, or for a model's load.
const MOST_ARRIVALS: usize = 4_096;
/// Spans below this are not told in figures.
const SHORT: Nanos = Nanos(50_000);
/// Part of the allowed time from which on a wait counts.
const WAIT_SHARE: f64 = 0.1;
/// Span over which the offered load of a model is counted.
const RATE_SPAN: Nanos = Nanos::from_millis(1_000);
/// Shortest span that tells a rate.
const RATE_LEAST: Nanos = Nanos::from_millis(50);

/// A bad call with its cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Number of the call; `None` if it was refused before the scheduler.
    pub call: Option<u64>,
    /// Index of its model.
    pub model: usize,
    /// Time of its arrival.
    pub arrived: Time,
    /// Time of its end.
    pub ended: Time,
    /// The outcome.
    pub ending: Ending,
    /// The cause.
    pub cause: Cause,
    /// The evidence in a sentence.
    pub detail: String,
}

/// Sums over the tasks that started before an instant.
#[derive(Clone, Copy, Default)]
struct Sums {
    took: f64,
    excess: f64,
    cold: f64,
    rerun: f64,
}

/// Explains the bad calls of a history.
pub struct Explainer<'a> {
    history: &'a History,
    /// The explainer of each sub-cluster.
    sub_clusters: Vec<SubClusterExplainer<'a>>,
}

/// Explains the bad calls of a sub-cluster by what ran on its devices.
struct SubClusterExplainer<'a> {
    history: &'a History,
    sub_cluster: usize,
    /// Starts of the tasks that have ended, ascending, with the sums before each.
    starts: Vec<Time>,
    sums: Vec<Sums>,
    /// The same tasks, by their start.
    tasks: Vec<&'a TaskRecord>,
    /// Admissions of calls, ascending, with the work of all calls before each, in nanoseconds.
    arrivals: Vec<Time>,
    work: Vec<f64>,
    /// The clients of these calls.
    clients: Vec<u16>,
    devices: f64,
    /// The load of each model.
    loads: Vec<OfferedLoad>,
}

impl<'a> Explainer<'a> {
    /// Prepares the sums over a history.
    pub fn new(history: &'a History) -> Explainer<'a> {
        let sub_clusters = (0..history.sub_clusters()).map(|at| SubClusterExplainer::new(history, at)).collect();
        Explainer { history, sub_clusters }
    }

    /// Returns all bad calls with their causes, in the order of their arrival; refusals before the
    /// scheduler come last.
    pub fn all(&self) -> Vec<Explained> {
        let calls = self.history.calls().filter_map(|call| self.explain(call));
        calls.chain(self.refusals()).collect()
    }

    fn refusals(&self) -> impl Iterator<Item = Explained> {
        self.history.refusals().map(|refusal| {
            let (cause, ending, detail) = match refusal.why {
                RefusedWhy::QueueFull => (Cause::Overload, Ending::Refused, "the queue was full on arrival"),
                RefusedWhy::Outage => (Cause::Lost, Ending::Outage, "no process of its engine ran"),
                RefusedWhy::SlowClient => {
                    (Cause::SlowClient, Ending::Cancelled, "its body had not arrived within --body-timeout-s")
                }
            };
            let (arrived, ended) = (refusal.at, refusal.at);
            let (model, detail) = (refusal.model, detail.to_owned());
            Explained { call: None, model, arrived, ended, ending, cause, detail }
        })
    }

    /// Returns the cause of a call's bad end; `None` if it lives, was answered in time, or ended by
    /// the will of its client or operator.
    pub fn explain(&self, call: &CallRecord) -> Option<Explained> {
        self.sub_clusters[call.sub_cluster].explain(call)
    }
}

impl<'a> SubClusterExplainer<'a> {
    /// Prepares the sums over the calls and tasks of a sub-cluster.
    fn new(history: &'a History, sub_cluster: usize) -> SubClusterExplainer<'a> {
        let calls = || history.calls().filter(|call| call.sub_cluster == sub_cluster);
        let ended = |task: &&TaskRecord| task.finished.is_some() && task.sub_cluster == sub_cluster;
        let mut tasks: Vec<&TaskRecord> = history.tasks().filter(ended).collect();
        tasks.sort_by_key(|task| task.started);
        let cold = cold_tasks(history, &tasks);
        let mut sums = vec![Sums::default()];
        for (at, task) in tasks.iter().enumerate() {
            let before = sums[sums.len() - 1];
            let (took, profiled) = (task.took().0 as f64, task.profiled.0 as f64);
            let excess = (took - profiled).max(0.0);
            sums.push(Sums {
                took: before.took + took,
                excess: before.excess + excess,
                cold: before.cold + if cold[at] { excess } else { 0.0 },
                rerun: before.rerun + if task.rerun { excess } else { 0.0 },
            });
        }
        let seen = tasks.iter().map(|task| task.device).collect::<std::collections::BTreeSet<DeviceId>>().len();
        let devices = history.devices_of(sub_cluster).len().max(seen).max(1);
        let mut loads: Vec<OfferedLoad> =
            history.models().iter().map(|record| OfferedLoad::new(&record.model, devices)).collect();
        calls().for_each(|call| loads[call.model].add(call));
        let each = |call: &CallRecord| {
            let model = &history.models()[call.model].model;
            (call.arrived, work(model, call, loads[call.model].batch(model)), call.client)
        };
        let mut arrivals: Vec<(Time, f64, u16)> = calls().map(each).collect();
        arrivals.sort_by_key(|(at, ..)| *at);
        let mut total = 0.0;
        let mut work = vec![0.0];
        work.extend(arrivals.iter().map(|(_, each, _)| {
            total += each;
            total
        }));
        let starts = tasks.iter().map(|task| task.started).collect();
        let clients = arrivals.iter().map(|(.., client)| *client).collect();
        let arrivals = arrivals.into_iter().map(|(at, ..)| at).collect();
        let devices = devices as f64;
        SubClusterExplainer { history, sub_cluster, starts, sums, tasks, arrivals, work, clients, devices, loads }
    }

    /// Returns the cause of a call's bad end, as [`Explainer::explain`] does.
    fn explain(&self, call: &CallRecord) -> Option<Explained> {
        let (ended, ending) = call.ended?;
        if matches!(ending, Ending::Ok | Ending::Cancelled | Ending::Unloaded | Ending::ShuttingDown) {
            return None;
        }
        let by_the_server = || {
            let (cause, detail) = self.by_stall(call, ended).unwrap_or_else(|| self.by_the_server(call, ended));
            (cause, detail + &self.decisions(call, ended))
        };
        let (cause, detail) = self.by_itself(call, ending).unwrap_or_else(by_the_server);
        let (model, arrived) = (call.model, call.arrived);
        Some(Explained { call: Some(call.number), model, arrived, ended, ending, cause, detail })
    }

    /// Returns the cause that the call itself shows.
    fn by_itself(&self, call: &CallRecord, ending: Ending) -> Option<(Cause, String)> {
        let tasks = || call.tasks.iter().filter_map(|&task| self.history.task(task));
        let lost = tasks().any(|task| task.outcome == Some(Outcome::DeviceLost));
        match ending {
            Ending::Share => return Some(self.beyond_share(call)),
            // A request that was never given to a device lost none: there was none to run it.
            Ending::Outage if call.tasks.is_empty() => {
                return Some((Cause::NoDevice, "no device was there to run it".to_owned()));
            }
            Ending::Outage => return Some((Cause::Lost, "its device or engine process was lost".to_owned())),
            Ending::Refused => {
                return Some((Cause::Overload, "more requests waited than the devices answer in time".to_owned()));
            }
            Ending::Failed => {
                let shared = tasks().next_back().filter(|task| task.calls.len() > 1 && !task.rerun);
                return Some(match shared {
                    Some(task) if lost => (Cause::Lost, format!("device {} was lost", task.device.0)),
                    Some(task) => (Cause::Neighbour, format!("its batch of {} calls failed whole", task.calls.len())),
                    None => (Cause::OwnFailure, "the engine failed on it alone".to_owned()),
                });
            }
            _ => {}
        }
        let model = &self.history.models()[call.model].model;
        let (allowed, lone) = (call.deadline - call.arrived, lone_run(model, call));
        if allowed < lone {
            // A client's own limit cannot be told from time that passed before a hand-over.
            let of =
                if allowed < model.slo { format!(" left of {} when it came", ms(model.slo)) } else { String::new() };
            let text = format!("it had {}{of}, and alone it needs {}", ms(allowed.max(Nanos(0))), ms(lone));
            return Some((Cause::ShortDeadline, text));
        }
        if lost {
            return Some((Cause::Lost, "its first run was lost with a device".to_owned()));
        }
        let rerun = tasks().find(|task| task.rerun)?;
        let text =
            format!("its batch of {} calls failed and ran again in parts: {}", rerun.calls.len(), ms(rerun.took()));
        Some((Cause::Neighbour, text))
    }

    /// Returns why a call was refused for the sake of other models or clients. A client that asks
    /// for more than its share is named. A model whose own load is more than the devices can do is
    /// overload, whatever its share.
    fn beyond_share(&self, call: &CallRecord) -> (Cause, String) {
        if call.client != 0 {
            return (Cause::Share, format!("client {} asked for more than its share while others waited", call.client));
        }
        match self.own_overload(call) {
            Some(text) => (Cause::Overload, text),
            None => (Cause::Share, "its model asked for more than its share while others waited".to_owned()),
        }
    }

    /// Returns the offered load of a call's model and its capacity in words, if the load is larger.
    fn own_overload(&self, call: &CallRecord) -> Option<String> {
        let load = &self.loads[call.model];
        let can = load.capacity?.goodput_rps;
        let span = ((call.deadline - call.arrived) * 2).max(RATE_SPAN).min(call.admitted - self.history.from());
        if span < RATE_LEAST {
            return None;
        }
        let offered = load.rows_between(call.admitted - span, call.admitted) as f64 / span.as_secs_f64();
        (offered > can).then(|| format!("offered {}, the devices can do {}", per_s(offered), per_s(can)))
    }

    /// Returns the cause of a call during which the process did not run for a notable time.
    fn by_stall(&self, call: &CallRecord, ended: Time) -> Option<(Cause, String)> {
        let stalled = self.history.stalled(call.arrived, ended);
        let notable = (call.deadline - call.arrived).0 as f64 * SLOW_SHARE;
        let text = || format!("the process did not run for {} of {}", ms(stalled), ms(ended - call.arrived));
        (stalled.0 as f64 > notable).then(|| (Cause::Stalled, text()))
    }

    /// Returns the cause that the state of the server shows.
    fn by_the_server(&self, call: &CallRecord, ended: Time) -> (Cause, String) {
        let allowed = call.deadline - call.arrived;
        let from = call.arrived.min(ended - allowed);
        // Where all were refused, few batches ran: the last ones show the devices' state.
        let last = self.place(ended);
        let judged = match last - self.place(from) < FEW_BATCHES {
            true => self.starts.get(last.saturating_sub(2 * FEW_BATCHES)).map_or(from, |start| from.min(*start)),
            false => from,
        };
        let sums = self.between(judged, ended);
        let span = ((ended - from).0 as f64).max(1.0);
        let beyond = sums.took.max(1.0);
        if sums.rerun / beyond > SLOW_SHARE && sums.rerun > sums.excess / 2.0 {
            return (
                Cause::Neighbour,
                format!("batches before it failed and ran again: {}", ms(Nanos(sums.rerun as i64))),
            );
        }
        // The work that fills the queue of a call may have arrived shortly before the call.
        let before = from - allowed;
        let earlier = ((ended - before).0 as f64).max(1.0);
        let offered = self.offered(from, ended) / span;
        let offered = offered.max(self.offered(before, ended) / earlier) / self.devices;
        // Slow batches and too much work both fill a queue: the one further off is the cause.
        let ratio = sums.took / (sums.took - sums.excess).max(1.0);
        if sums.excess / beyond > SLOW_SHARE && ratio >= offered {
            if sums.cold > sums.excess / 2.0 {
                return (
                    Cause::Cold,
                    format!("batches took {ratio:.1} times their profile, the first ones after a load"),
                );
            }
            let device = self.slowest(from, ended).map_or(0, |device| device.0);
            let text = format!("batches took {ratio:.1} times their profile, most on device {device}");
            return (Cause::SlowDevice, text);
        }
        if offered > 1.0
            && let Some((client, share)) = self.greedy(before, ended)
        {
            return (Cause::Share, format!("client {client} sent {:.0} % of a load beyond the devices", share * 100.0));
        }
        if offered > 1.0 {
            let text = self.own_overload(call).unwrap_or_else(|| {
                format!("{:.0} % of what the devices can do arrived within {}", offered * 100.0, ms(ended - from))
            });
            return (Cause::Overload, text);
        }
        self.by_the_wait(call, from, ended)
    }

    /// Returns what the scheduler decided about a call, and about its model while it waited, as the
    /// end of a sentence.
    fn decisions(&self, call: &CallRecord, ended: Time) -> String {
        let mut counts: BTreeMap<CallReason, usize> = BTreeMap::new();
        for reason in self.history.reasons_between(call.admitted, ended) {
            match reason.why {
                CallReason::Refused(late) if reason.call == call.number && late < SHORT => {
                    return "; forecast: too late to be sent by its deadline".to_owned();
                }
                CallReason::Refused(late) if reason.call == call.number => {
                    return format!("; forecast: answered {} after its deadline", ms(late));
                }
                CallReason::Refused(_) => {}
                why if reason.model == call.model => *counts.entry(why).or_default() += 1,
                _ => {}
            }
        }
        let text = |(why, count): (CallReason, usize)| format!("; {} ({count})", self.history.reason_text(why));
        counts.into_iter().map(text).collect()
    }

    /// Returns the cause that the wait for a device shows.
    fn by_the_wait(&self, call: &CallRecord, from: Time, ended: Time) -> (Cause, String) {
        let started = call.tasks.first().and_then(|&task| self.history.task(task)).map_or(ended, |task| task.started);
        let waited = (started - call.arrived).0 as f64;
        let busy = self.busy(call.arrived, started) / (waited.max(1.0) * self.devices);
        let allowed = (call.deadline - call.arrived).0 as f64;
        if waited > WAIT_SHARE * allowed && busy < 1.0 - IDLE_SHARE {
            let held = self.held(call.arrived, started) / (waited.max(1.0) * self.devices);
            if held > HELD_SHARE * (1.0 - busy) {
                let (waited, held) = (ms(started - call.arrived), held * 100.0);
                let text = format!("it waited {waited} while batches held devices before they ran for {held:.0} %");
                return (Cause::SlowInputs, text);
            }
            // The scheduler wakes itself at the latest start: if it was silent around then while a
            // device idled, it did not get to run.
            let latest = call.deadline - lone_run(&self.history.models()[call.model].model, call);
            if let Some((from, to)) =
                self.history.pause_at(self.sub_cluster, latest).filter(|(_, to)| *to - latest >= STALL)
            {
                let text = format!("its scheduler was silent for {} when its batch had to begin", ms(to - from));
                return (Cause::Stalled, text);
            }
            let text =
                format!("it waited {} while devices were busy for {:.0} %", ms(started - call.arrived), busy * 100.0);
            return (Cause::BatchWait, text);
        }
        let (own, others) = self.time_by_model(call, from, ended);
        let of_others: Nanos = others.values().copied().sum();
        let busiest = others.into_iter().max_by_key(|(_, time)| *time).filter(|_| of_others > own);
        match busiest {
            Some((model, time)) => {
                let cause = if model == call.model { Cause::OwnQueue } else { Cause::QueueBehind };
                let name = &self.history.models()[model].model.name;
                let which = if model == call.model { "other requests of " } else { "" };
                // The mean of the devices, which together ran longer than the span.
                let time = Nanos((time.0 as f64 / self.devices) as i64);
                (cause, format!("the devices ran {which}{name} for {} of {}", ms(time), ms(ended - from)))
            }
            None if own > Nanos::ZERO => (
                Cause::OwnBatch,
                format!("its own batches ran for {} of {}", ms(own.min(ended - from)), ms(ended - from)),
            ),
            None => (Cause::Unknown, "no recorded batch ran before it".to_owned()),
        }
    }

    /// Sums over the tasks that started in a span.
    fn between(&self, from: Time, to: Time) -> Sums {
        let (first, last) = (self.place(from), self.place(to));
        let (before, after) = (self.sums[first], self.sums[last]);
        Sums {
            took: after.took - before.took,
            excess: after.excess - before.excess,
            cold: after.cold - before.cold,
            rerun: after.rerun - before.rerun,
        }
    }

    fn place(&self, at: Time) -> usize {
        self.starts.partition_point(|start| *start < at)
    }

    /// Returns the device time used between `from` and `to`, in nanoseconds.
    fn busy(&self, from: Time, to: Time) -> f64 {
        self.running(from, to).iter().map(|task| overlap(task, from, to).0 as f64).sum()
    }

    /// Returns the device time between `from` and `to`, in nanoseconds, in which a device ran no
    /// batch although it had one.
    fn held(&self, from: Time, to: Time) -> f64 {
        let first = self.place(from).saturating_sub(MOST_RUNNING);
        // A batch that held its device may have started after the span.
        let last = (self.place(to).max(first) + MOST_RUNNING).min(self.tasks.len());
        let mut free: BTreeMap<DeviceId, Time> = BTreeMap::new();
        let mut held = Nanos::ZERO;
        for task in &self.tasks[first..last] {
            let free = free.entry(task.device).or_insert(task.decided);
            held += (task.started.min(to) - task.decided.max(*free).max(from)).max(Nanos::ZERO);
            *free = task.finished.map_or(*free, |finished| finished.max(*free));
        }
        held.0 as f64
    }

    /// The tasks that ran in a span, and some that ended before it.
    fn running(&self, from: Time, to: Time) -> &[&'a TaskRecord] {
        // A task that began long before has most likely ended.
        let first = self.place(from).saturating_sub(MOST_RUNNING);
        &self.tasks[first..self.place(to).max(first)]
    }

    /// Device time in nanoseconds, in full batches, of the calls that arrived in a span.
    fn offered(&self, from: Time, to: Time) -> f64 {
        let place = |at: Time| self.arrivals.partition_point(|arrived| *arrived < at);
        self.work[place(to.next())] - self.work[place(from)]
    }

    /// The one of several clients that sent most of the work in a span, and its share; `None` if
    /// the load is spread.
    fn greedy(&self, from: Time, to: Time) -> Option<(u16, f64)> {
        let place = |at: Time| self.arrivals.partition_point(|arrived| *arrived < at);
        let last = place(to.next());
        let first = place(from).max(last.saturating_sub(MOST_ARRIVALS));
        let mut each: BTreeMap<u16, f64> = BTreeMap::new();
        for at in first..last {
            *each.entry(self.clients[at]).or_default() += self.work[at + 1] - self.work[at];
        }
        let all: f64 = each.values().sum();
        let (client, most) = each.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        (each.len() > 1 && *client > 0 && *most > GREEDY_SHARE * all).then(|| (*client, most / all))
    }

    /// The device whose tasks were longest beyond their profile in a span.
    fn slowest(&self, from: Time, to: Time) -> Option<DeviceId> {
        let mut each: BTreeMap<DeviceId, i64> = BTreeMap::new();
        for task in &self.tasks[self.place(from)..self.place(to)] {
            *each.entry(task.device).or_default() += (task.took() - task.profiled).0;
        }
        each.into_iter().max_by_key(|(_, excess)| *excess).map(|(device, _)| device)
    }

    /// Device time within a span of a call's own tasks, and of the other tasks of each model.
    fn time_by_model(&self, call: &CallRecord, from: Time, to: Time) -> (Nanos, BTreeMap<usize, Nanos>) {
        let (mut own, mut each) = (Nanos::ZERO, BTreeMap::<usize, Nanos>::new());
        for task in self.running(from, to) {
            let time = overlap(task, from, to);
            if task.calls.contains(&call.number) {
                own += time;
            } else if time > Nanos::ZERO {
                *each.entry(task.model).or_default() += time;
            }
        }
        (own, each)
    }
}

/// Returns the part of a task's time within a span.
fn overlap(task: &TaskRecord, from: Time, to: Time) -> Nanos {
    let end = task.finished.unwrap_or(to).min(to);
    (end - task.started.max(from)).max(Nanos::ZERO)
}

/// Returns for each task, ordered by start, whether it is a slow one of a cold model.
fn cold_tasks(history: &History, tasks: &[&TaskRecord]) -> Vec<bool> {
    let mut cold = vec![false; tasks.len()];
    for (model, record) in history.models().iter().enumerate() {
        let Some(loaded) = record.loaded else { continue };
        let after = tasks.iter().enumerate().filter(|(_, task)| task.model == model && task.started >= loaded);
        let first: Vec<(usize, &&TaskRecord)> = after.take(2 * COLD_BATCHES).collect();
        let (early, later) = first.split_at(first.len().min(COLD_BATCHES));
        let sum = |of: fn(&TaskRecord) -> Nanos| later.iter().map(|(_, task)| of(task).0).sum::<i64>() as f64;
        let excess = sum(TaskRecord::took) - sum(|task| task.profiled);
        if excess <= SLOW_SHARE * sum(TaskRecord::took) {
            early.iter().for_each(|(at, _)| cold[*at] = true);
        }
    }
    cold
}

/// Returns milliseconds with two or three digits; what is above 0 is not written as 0.
fn ms(span: Nanos) -> String {
    let ms = span.as_millis_f64();
    let digits = match ms.abs() {
        size if size >= 100.0 => 0,
        size if size >= 1.0 => 1,
        size if size >= 0.1 => 2,
        size if size >= 0.01 => 3,
        _ => 4,
    };
    format!("{ms:.digits$} ms")
}

/// Returns a rate in words: 2 digits below 10 a second.
fn per_s(rate: f64) -> String {
    let digits = usize::from(rate < 10.0);
    format!("{rate:.digits$}/s")
}
