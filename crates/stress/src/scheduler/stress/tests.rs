use super::*;
use ripieno_model::Profile;

/// Two shards, five models and plenty of devices, with a long SLO.
fn light(rate: f64) -> SchedulerStress {
    let profile = Profile::linear(0.05, 1.0, 64).unwrap();
    let model = |at: usize| Model::whole(&at.to_string(), profile.clone(), Nanos::from_millis(400));
    SchedulerStress {
        policy: "deferred".to_owned(),
        options: Options::new(),
        models: (0..5).map(model).collect(),
        devices: 16,
        shards: 2,
        rate,
        duration: Duration::from_millis(600),
        warmup: Duration::from_millis(50),
    }
}

const TURN: Nanos = Nanos::from_micros(1);

/// Nothing is refused, and nearly everything is answered in time under any load of the machine: the
/// SLO is long.
#[test]
fn shards_and_matchmaker_carry_a_light_load() {
    let report = light(2_000.0).run().unwrap();
    assert!(report.handled_rps > 0.0 && report.batches_per_s > 0.0 && report.mean_batch >= 1.0, "{report:?}");
    assert!(report.bad_rate < 0.5, "{report:?}");
    assert!(report.decision.count() > 0 && report.shard_ns > 0.0 && report.matchmaker_ns > 0.0, "{report:?}");
}

/// In virtual time all of it is exact: a batch starts within a turn of its window's opening, every
/// request is answered in time, and runs repeat.
#[test]
fn turns_in_virtual_time_start_batches_when_their_windows_open() {
    for policy in ["deferred", "eager"] {
        let stress = SchedulerStress { policy: policy.to_owned(), devices: 200, ..light(20_000.0) };
        let report = stress.run_in_turns(TURN).unwrap();
        assert_eq!((report.handled_rps, report.bad_rate, report.lag.max_ms()), (20_000.0, 0.0, Some(0.0)), "{policy}");
        // The matchmaker grants in the turn of the opening, and the shard starts in the next.
        assert!(report.decision.count() > 40, "{policy}: {report:?}");
        assert_eq!(report.decision.max_ms(), Some(TURN.as_millis_f64()), "{policy}");
        let again = stress.run_in_turns(TURN).unwrap();
        assert_eq!((report.mean_batch, report.batches_per_s), (again.mean_batch, again.batches_per_s), "{policy}");
    }
}

/// Shards, matchmaker, table and rings: a second of turns under a load that keeps the devices busy
/// and drops requests, counted by the allocator.
#[test]
fn turns_allocate_nothing() {
    for policy in ["deferred", "eager"] {
        let stress = SchedulerStress { policy: policy.to_owned(), devices: 4, ..light(400_000.0) };
        let (mut threads, clock) = (stress.threads().unwrap(), Clock::start());
        let at = |ms: i64| Time::ORIGIN + Nanos::from_millis(ms);
        threads.take_turns(at(0), at(100), TURN, &clock);
        let counted = allocation_counter::measure(|| {
            threads.take_turns(at(100), at(400), TURN, &clock);
        });
        assert_eq!(counted.count_total, 0, "{policy}");
        assert!(threads.shards.iter().all(|shard| shard.load.tally.requests > 10_000), "{policy}");
    }
}
