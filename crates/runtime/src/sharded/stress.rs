//! How many requests a second the scheduler alone carries, live: as the left side of Figure 13 of "Symphony: Optimized DNN
//! Model Serving using Deferred Batch Scheduling".

use super::board::Board;
use super::matchmaker_thread::MatchmakerThread;
use super::shard_thread::{ShardThread, Tally};
use crate::Clock;
use crossbeam_queue::ArrayQueue;
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
pub struct Stress {
    /// A policy that runs in shards.
    pub policy: String,
    /// Its options.
    pub options: Options,
    /// The models, asked for equally often.
    pub models: Vec<Model>,
    /// Emulated devices.
    pub devices: usize,
    /// Shard threads; models go to them in turn.
    pub shards: usize,
    /// Offered requests a second, evenly spaced.
    pub rate: f64,
    /// How long to count.
    pub duration: Duration,
    /// How long to run before.
    pub warmup: Duration,
}

/// What became of the load.
#[derive(Clone, Debug)]
pub struct StressReport {
    /// Requests that were due, and that a shard got round to, per second.
    pub handled_rps: f64,
    /// Requests answered in time, over those handled; the tail that was still running at the end counts as answered.
    pub bad_rate: f64,
    /// Requests over batches.
    pub mean_batch: f64,
    /// How late shards got round to requests: the generator shares their thread, so a scheduler that is too slow shows
    /// here first.
    pub lag: Latencies,
    /// Grants a second.
    pub grants_per_s: f64,
}

/// Live requests in the scheduler.
const MAX_LIVE: usize = 1 << 18;

impl Stress {
    /// Runs the load; takes as long as it says.
    pub fn run(&self) -> Result<StressReport, BuildError> {
        let batch = self.models.iter().map(|model| model.max_batch).max().unwrap_or(1);
        let (models, devices) = (self.models.len(), self.devices);
        let limits = Limits { requests: MAX_LIVE, models, devices, depth: 1, batch, nodes: 0 };
        let setup = Setup { models: self.models.clone(), devices, limits };
        let halves = build_halves(&self.policy, &setup, &self.options, self.shards)?;
        let (clock, stop) = (Clock::start(), Arc::new(AtomicBool::new(false)));
        let (board, events) = (Arc::new(Board::new(models)), Arc::new(ArrayQueue::new(2 * limits.tasks())));
        let grants: Vec<_> = halves.shards.iter().map(|_| Arc::new(ArrayQueue::new(limits.tasks()))).collect();
        let matchmaker = MatchmakerThread {
            clock,
            matchmaker: halves.matchmaker,
            board: board.clone(),
            events: events.clone(),
            grants: grants.clone(),
            stop: stop.clone(),
        };
        let counted_from = clock.now() + Nanos(self.warmup.as_nanos() as i64);
        let shard = |(number, shard)| ShardThread {
            clock,
            shard,
            models: self.models.clone(),
            own: (number..models).step_by(self.shards).map(|id| ModelId(id as u16)).collect(),
            limits,
            board: board.clone(),
            events: events.clone(),
            grants: grants[number].clone(),
            stop: stop.clone(),
            gap: Nanos((1e9 * self.shards as f64 / self.rate) as i64).max(Nanos(1)),
            counted_from,
        };
        let shards: Vec<ShardThread> = halves.shards.into_iter().enumerate().map(shard).collect();
        let (given, tallies) = thread::scope(|scope| {
            let matchmaker = scope.spawn(move || matchmaker.run());
            let shards: Vec<_> = shards.into_iter().map(|shard| scope.spawn(move || shard.run())).collect();
            thread::sleep(self.warmup + self.duration);
            stop.store(true, Ordering::Relaxed);
            let tallies: Vec<_> = shards.into_iter().map(|shard| shard.join().expect("no shard panics")).collect();
            (matchmaker.join().expect("the matchmaker does not panic"), tallies)
        });
        Ok(report(&tallies, given, clock.now() - Time::ORIGIN, clock.now() - counted_from, self.longest_slo()))
    }

    fn longest_slo(&self) -> Nanos {
        self.models.iter().map(|model| model.slo).max().unwrap_or(Nanos::ZERO)
    }
}

fn report(tallies: &[Tally], grants: u64, ran: Nanos, counted: Nanos, slo: Nanos) -> StressReport {
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>() as f64;
    let (requests, good) = (sum(|tally| tally.requests), sum(|tally| tally.good));
    // At the end up to one SLO's worth of requests was on its way.
    let rate = requests / counted.as_secs_f64();
    let on_the_way = (rate * slo.as_secs_f64()).min(requests - good);
    let mut lag = Latencies::new();
    tallies.iter().for_each(|tally| lag.merge(&tally.lag));
    StressReport {
        handled_rps: rate,
        bad_rate: 1.0 - (good + on_the_way) / requests.max(1.0),
        mean_batch: requests / counted.as_secs_f64() * ran.as_secs_f64() / sum(|tally| tally.batches).max(1.0),
        lag,
        grants_per_s: grants as f64 / ran.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Profile;

    /// A light load on two shards: nothing is refused, and nearly everything is answered in time, whatever else the
    /// machine does: the SLO is long.
    #[test]
    fn shards_and_matchmaker_carry_a_light_load() {
        let profile = Profile::linear(0.05, 1.0, 64).unwrap();
        let model = |at: usize| Model::whole(&at.to_string(), profile.clone(), Nanos::from_millis(400));
        let stress = Stress {
            policy: "deferred".to_owned(),
            options: Options::new(),
            models: (0..5).map(model).collect(),
            devices: 16,
            shards: 2,
            rate: 2_000.0,
            duration: Duration::from_millis(600),
            warmup: Duration::from_millis(50),
        };
        let report = stress.run().unwrap();
        assert!(report.handled_rps > 0.0 && report.grants_per_s > 0.0 && report.mean_batch >= 1.0, "{report:?}");
        assert!(report.bad_rate < 0.5, "{report:?}");
    }
}
