//! Live throughput of the scheduler alone, in requests per second: the left side of Figure 13 of
//! "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling".

use super::load::{ShardLoad, ShardLoadPlan, ShardTally};
use super::matchmaker_thread;
use super::meter::{TurnMeter, TurnTime};
use super::shard_thread::ShardThread;
use crate::Clock;
use crate::mailbox::Mailbox;
use crate::shards::{MatchmakerInbox, MatchmakerLink, MatchmakerLoop};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::Model;
use ripieno_report::Latencies;
use ripieno_sched::{BuildError, Limits, Options, Setup, build_halves};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A load on the scheduler's threads.
#[derive(Clone, Debug)]
pub struct SchedulerStress {
    /// A policy that runs in shards.
    pub policy: String,
    /// Its options.
    pub options: Options,
    /// The models, requested equally often.
    pub models: Vec<Model>,
    /// Emulated devices.
    pub devices: usize,
    /// Shard threads; models are assigned to them round robin.
    pub shards: usize,
    /// Offered requests per second, evenly spaced.
    pub rate: f64,
    /// Duration of the measurement.
    pub duration: Duration,
    /// Warm-up before it.
    pub warmup: Duration,
}

/// The measured results.
#[derive(Clone, Debug)]
pub struct StressReport {
    /// Requests that were due and processed by a shard, per second.
    pub handled_rps: f64,
    /// Share of handled requests not answered in time; those still running at the end count as
    /// answered.
    pub bad_rate: f64,
    /// Requests over batches.
    pub mean_batch: f64,
    /// Batches, that is used grants, per second.
    pub batches_per_s: f64,
    /// Delay with which shards processed requests: the generator shares their thread, so a
    /// scheduler that is too slow shows here first.
    pub lag: Latencies,
    /// Time from the moment at which a batch could start to the dispatch of its `Start`; one value
    /// per batch, that of the member that waited longest.
    pub decision: Latencies,
    /// Work of the shard threads, generator included, over requests.
    pub shard_ns: f64,
    /// Work of the matchmaker's thread over requests.
    pub matchmaker_ns: f64,
    /// Share of the time in which the threads were preempted.
    pub away: f64,
}

/// Live requests in the scheduler.
const MAX_LIVE: usize = 1 << 18;

/// The loops before their threads start.
struct StressThreads {
    matchmaker: MatchmakerLoop,
    shards: Vec<ShardThread>,
}

impl SchedulerStress {
    /// Runs the load in real time.
    pub fn run(&self) -> Result<StressReport, BuildError> {
        // The clock starts after all memory is allocated.
        let mut threads = self.threads()?;
        let (clock, stop) = (Clock::start(), &AtomicBool::new(false));
        let counted_from = self.counted_from();
        let (tallies, shards, matchmaker) = thread::scope(|scope| {
            let matchmaker = scope.spawn(move || matchmaker_thread::run(threads.matchmaker, clock, stop, counted_from));
            let run = |shard: ShardThread| scope.spawn(move || shard.run(clock, stop, counted_from));
            let shards: Vec<_> = threads.shards.drain(..).map(run).collect();
            thread::sleep(self.warmup + self.duration);
            stop.store(true, Ordering::Relaxed);
            let shards = shards.into_iter().map(|shard| shard.join().expect("no shard panics"));
            let (loads, spent): (Vec<_>, Vec<_>) = shards.unzip();
            let tallies: Vec<_> = loads.into_iter().map(|load| load.tally).collect();
            (tallies, sum(&spent), matchmaker.join().expect("the matchmaker does not panic"))
        });
        Ok(self.report(&tallies, clock.now() - counted_from, shards, matchmaker))
    }

    /// Runs the load on this thread in virtual time: every shard and the matchmaker take a turn in
    /// each `turn` of it. The turns are the same on every machine; only their cost is measured by
    /// the clock.
    pub fn run_in_turns(&self, turn: Nanos) -> Result<StressReport, BuildError> {
        let mut threads = self.threads()?;
        let clock = Clock::start();
        let end = self.counted_from() + nanos(self.duration);
        threads.take_turns(Time::ORIGIN, self.counted_from(), turn, &clock);
        let (shards, matchmaker) = threads.take_turns(self.counted_from(), end, turn, &clock);
        let tallies: Vec<_> = threads.shards.into_iter().map(|shard| shard.load.tally).collect();
        Ok(self.report(&tallies, nanos(self.duration), shards, matchmaker))
    }

    fn counted_from(&self) -> Time {
        Time::ORIGIN + nanos(self.warmup)
    }

    fn threads(&self) -> Result<StressThreads, BuildError> {
        let batch = self.models.iter().map(|model| model.max_batch).max().unwrap_or(1);
        let (models, devices) = (self.models.len(), self.devices);
        let limits = Limits { requests: MAX_LIVE, models, devices, lanes: 1, depth: 1, batch, nodes: 0 };
        let setup = Setup { models: self.models.clone(), devices, limits };
        let halves = build_halves(&self.policy, &setup, &self.options, self.shards)?;
        let inbox = Arc::new(MatchmakerInbox::new(&limits, models, halves.shards.len()));
        // Only grants arrive as mail.
        let mailbox = |_| Arc::new(Mailbox::new(&Limits { requests: 0, ..limits }, halves.shards.len()));
        let mailboxes: Vec<_> = (0..halves.shards.len()).map(mailbox).collect();
        let shard = |(number, shard)| {
            let (load, link) = (ShardLoad::new(self.plan(number), &limits), MatchmakerLink::new(Arc::clone(&inbox)));
            ShardThread::new(shard, load, &limits, link, Arc::clone(&mailboxes[number]))
        };
        let shards = halves.shards.into_iter().enumerate().map(shard).collect();
        let matchmaker =
            MatchmakerLoop::new(Clock::start(), halves.matchmaker, Arc::clone(&inbox), mailboxes, Arc::default());
        Ok(StressThreads { matchmaker, shards })
    }

    /// The load of one shard.
    fn plan(&self, shard: usize) -> ShardLoadPlan {
        ShardLoadPlan {
            models: self.models.clone(),
            own: (shard..self.models.len()).step_by(self.shards).map(|id| ModelId(id as u16)).collect(),
            gap: Nanos((1e9 * self.shards as f64 / self.rate) as i64).max(Nanos(1)),
            counted_from: self.counted_from(),
        }
    }

    fn report(&self, tallies: &[ShardTally], counted: Nanos, shards: TurnTime, matchmaker: TurnTime) -> StressReport {
        let sum = |of: fn(&ShardTally) -> u64| tallies.iter().map(of).sum::<u64>() as f64;
        let (requests, good, batches) =
            (sum(|tally| tally.requests), sum(|tally| tally.good), sum(|tally| tally.batches));
        // At the end, up to one SLO's worth of requests was still in progress.
        let slo = self.models.iter().map(|model| model.slo).max().unwrap_or(Nanos::ZERO);
        let rate = requests / counted.as_secs_f64();
        let on_the_way = (rate * slo.as_secs_f64()).min(requests - good);
        let (mut lag, mut decision) = (Latencies::new(), Latencies::new());
        for tally in tallies {
            lag.merge(&tally.lag);
            decision.merge(&tally.decision);
        }
        let total = (shards.total + matchmaker.total).0.max(1) as f64;
        StressReport {
            handled_rps: rate,
            bad_rate: 1.0 - (good + on_the_way) / requests.max(1.0),
            mean_batch: sum(|tally| tally.batched) / batches.max(1.0),
            batches_per_s: batches / counted.as_secs_f64(),
            lag,
            decision,
            shard_ns: shards.busy.0 as f64 / requests.max(1.0),
            matchmaker_ns: matchmaker.busy.0 as f64 / requests.max(1.0),
            away: (shards.preempted + matchmaker.preempted).0 as f64 / total,
        }
    }
}

impl StressThreads {
    /// Takes the turns of all from `from` to `to`, in virtual time. Returns the measured time of
    /// the shards' and of the matchmaker's turns.
    fn take_turns(&mut self, from: Time, to: Time, turn: Nanos, clock: &Clock) -> (TurnTime, TurnTime) {
        let (mut shards, mut matchmaker) = (TurnMeter::new(Time::ORIGIN), TurnMeter::new(Time::ORIGIN));
        let mut now = from;
        while now < to {
            shards.begin(clock.now());
            let mut worked = false;
            for shard in &mut self.shards {
                worked |= shard.turn(now, || now);
            }
            shards.worked(worked);
            let between = clock.now();
            shards.end(between);
            matchmaker.begin(between);
            matchmaker.worked(self.matchmaker.match_at(|| now) > 0);
            matchmaker.end(clock.now());
            now = now + turn;
        }
        (shards.spent, matchmaker.spent)
    }
}

fn sum(all: &[TurnTime]) -> TurnTime {
    all.iter().fold(TurnTime::default(), |sum, one| TurnTime {
        busy: sum.busy + one.busy,
        preempted: sum.preempted + one.preempted,
        total: sum.total + one.total,
    })
}

fn nanos(span: Duration) -> Nanos {
    Nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
