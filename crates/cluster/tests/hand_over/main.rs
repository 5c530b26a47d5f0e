//! Many processes of the hand-over protocol in virtual time, under every kind of fault, with checks
//! of its guarantees.
//!
//! A seed determines a run: it draws the faults, the delays and the load.

mod answered;
mod backend;
mod checkers;
mod counts;
mod faults;
mod frontend;
mod host;
mod message;
mod network;
mod store;
mod world;

use counts::Counts;
use faults::Kind;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use world::World;

/// Names one seed to run alone, with a log.
const SEED: &str = "RIPIENO_HANDOVER_SEED";
/// Sets the number of seeds, by default a thousand.
const SEEDS: &str = "RIPIENO_HANDOVER_SEEDS";

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs a seed; if a guarantee breaks, prints how to repeat it.
fn run(kind: Kind, seed: u64) -> Counts {
    let verbose = number(SEED).is_some();
    catch_unwind(AssertUnwindSafe(|| World::new(kind, seed, verbose).run())).unwrap_or_else(|broken| {
        let test = "cargo test -p ripieno-cluster --test hand_over";
        eprintln!("{kind:?}, seed {seed}: a promise broke; again, event by event: {SEED}={seed} {test}");
        resume_unwind(broken)
    })
}

/// Runs many seeds on all cores, or the chosen one; returns the sum of the counters.
fn run_all(kind: Kind, seeds: u64) -> Counts {
    let seeds = number(SEED).map_or(0..number(SEEDS).unwrap_or(seeds), |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut counts = Counts::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return counts;
            }
            counts.add(&run(kind, seed));
        }
    };
    let counts = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let mut all = Counts::default();
        threads.into_iter().for_each(|thread| all.add(&thread.join().unwrap_or_else(|broken| resume_unwind(broken))));
        all
    });
    println!("{kind:?}, seeds {seeds:?}: {counts:#?}");
    counts
}

#[test]
fn every_promise_holds_under_every_fault() {
    let counts = run_all(Kind::All, 1_000);
    if number(SEED).is_some() {
        return;
    }
    // Events that never happen are not tested.
    let seeds = number(SEEDS).unwrap_or(1_000);
    assert!(counts.epochs > 2 * seeds, "hardly any hand-over: {counts:?}");
    assert!(counts.ran > counts.retried, "hardly any request ran: {counts:?}");
    for (what, count) in counts.rare() {
        assert!(count >= seeds / 10, "{what}: {count} times only in {seeds} runs: {counts:?}");
    }
}

#[test]
fn a_primary_that_ends_or_hangs_costs_no_request_and_hardly_any_runs_twice() {
    let counts = run_all(Kind::Primaries, 100);
    assert_eq!(counts.retried, 0, "{counts:?}");
    // Requests whose answers were on their way when they were submitted to a new primary.
    assert!(counts.begun_again * 1_000 < counts.ran, "{counts:?}");
    assert!(counts.epochs > 1 && counts.adopted > 0, "{counts:?}");
}

#[test]
fn a_pause_of_any_role_costs_no_request_and_one_election_at_most() {
    let mut elections = 0;
    for seed in 0..200 {
        let counts = run(Kind::Pauses, seed);
        assert_eq!(counts.retried, 0, "seed {seed}: {counts:?}");
        assert!(counts.epochs <= 2, "seed {seed}: {counts:?}");
        elections += counts.epochs - 1;
    }
    assert!(elections > 20, "primaries stood still, too: {elections}");
}

#[test]
fn a_backend_that_ends_or_hangs_costs_no_request() {
    let counts = run_all(Kind::Backends, 100);
    assert_eq!((counts.retried, counts.epochs > 0), (0, true), "{counts:?}");
}

#[test]
fn what_the_network_loses_is_said_again() {
    let counts = run_all(Kind::Losses, 50);
    // One message in fifty is lost. Only a batch that is lost twice is refused.
    assert!(counts.retried * 500 < counts.ran, "{counts:?}");
}

#[test]
fn a_restarted_backend_accepts_no_earlier_primary() {
    let counts = run_all(Kind::Restarts, 50);
    assert!(counts.stepped_down > 0, "no primary of the past was there: {counts:?}");
}

#[test]
fn a_primary_that_is_cut_off_from_a_role_is_replaced_once() {
    for seed in 0..100 {
        let counts = run(Kind::CutOff, seed);
        assert_eq!((counts.epochs, counts.stepped_down), (2, 1), "seed {seed}: {counts:?}");
    }
}

#[test]
fn equal_seeds_run_alike() {
    let run = || World::new(Kind::All, 7, false).run();
    assert_eq!(run(), run());
}
