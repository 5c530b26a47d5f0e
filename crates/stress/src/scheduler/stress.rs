//! Live throughput of the scheduler alone, in requests per second. It corresponds to the left side
//! of Figure 13 of "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling".

use super::load::{ShardLoad, ShardLoadPlan, ShardTally};
use super::matchmaker_thread;
use super::meter::{TurnMeter, TurnTime};
use super::shard_thread::ShardThread;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::Model;
use ripieno_policies::build_halves;
use ripieno_report::Latencies;
use ripieno_runtime::Clock;
use ripieno_runtime::shards::{MatchmakerLoop, connect};
use ripieno_sched::{BuildError, Limits, Options, Setup};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A load on the scheduler's threads.
#[derive(Clone, Debug)]
pub struct SchedulerStress {
    /// Name of a policy that supports shards.
    pub policy: String,
    /// Options of the policy.
    pub options: Options,
    /// The models, requested equally often.
    pub models: Vec<Model>,
    /// Number of simulated devices.
    pub devices: usize,
    /// Number of shard threads. Models are assigned to them round robin.
    pub shards: usize,
    /// Offered load in requests per second, evenly spaced.
    pub rate: f64,
    /// Duration of the measurement.
    pub duration: Duration,
    /// Duration of the warm-up before the measurement.
    pub warmup: Duration,
}

/// The measured results.
#[derive(Clone, Debug)]
pub struct StressReport {
    /// Requests that shards processed, per second.
    pub handled_rps: f64,
    /// Share of processed requests that were not answered in time. Requests that still run at the
    /// end count as answered.
    pub bad_rate: f64,
    /// Mean number of requests per batch.
    pub mean_batch: f64,
    /// Batches started per second. Each batch uses one grant.
    pub batches_per_s: f64,
    /// Delay from a request's due time to its processing by the shard. A shard also generates its
    /// requests, so a scheduler that is too slow increases this delay first.
    pub lag: Latencies,
    /// Time from the moment at which a batch could start to the dispatch of its `Start`. One value
    /// per batch: the time of the member that waited longest.
    pub decision: Latencies,
    /// Work of the shard threads per request in nanoseconds, including the generation of the load.
    pub shard_ns: f64,
    /// Work of the matchmaker's thread per request in nanoseconds.
    pub matchmaker_ns: f64,
    /// Share of time in which the threads were preempted.
    pub away: f64,
}

/// Largest number of live requests.
const MAX_LIVE: usize = 1 << 18;

/// The loops of all threads.
struct StressThreads {
    matchmaker: MatchmakerLoop,
    shards: Vec<ShardThread>,
}

impl SchedulerStress {
    /// Runs the load in real time.
    pub fn run(&self) -> Result<StressReport, BuildError> {
        // Allocates all memory before the clock starts.
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

    /// Runs the load on the calling thread in virtual time. In each step of length `turn`, every
    /// shard and the matchmaker take one turn. The turns are the same on every machine, and the
    /// clock only measures their cost.
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
        let limits = Limits { requests: MAX_LIVE, models, devices, batch, ..Limits::ONE };
        let setup = Setup { models: self.models.clone(), devices, limits };
        let halves = build_halves(&self.policy, &setup, &self.options, self.shards)?;
        let (matchmaker, connections) = connect(halves.matchmaker, &limits, halves.shards.len());
        let shard = |(number, (shard, connection))| {
            ShardThread::new(shard, ShardLoad::new(self.plan(number), &limits), &limits, connection)
        };
        let shards = halves.shards.into_iter().zip(connections).enumerate().map(shard).collect();
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
        // Estimates the requests still in progress at the end: at most the arrivals of one SLO.
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
    /// Takes all turns from `from` to `to` in virtual time. Returns the measured time of the
    /// shards' turns and of the matchmaker's turns.
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
