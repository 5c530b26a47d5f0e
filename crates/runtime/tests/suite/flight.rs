//! The flight recorder of a live run: what is dumped replays, and a cut one is consistent.

use crate::common::device::Doubling;
use crate::common::fifo::Fifo;
use crate::common::{Client, SAFETY, config, eager, in_one_piece_and_in_shards, limits, policy, served};
use ripieno_base::{Nanos, RequestSlot, TaskId};
use ripieno_policies::ServedPolicy;
use ripieno_runtime::history::History;
use ripieno_runtime::{
    Aside, Clock, Ending, Engine, FlightConfig, FlightEntry, FlightRecorder, Header, RecordedEvents, RefusedWhy,
    ReplayError, RingBounds, replay,
};
use ripieno_sched::{Action, Control, Event};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn engine(shards: usize, bytes: usize) -> Engine {
    engine_with(shards, bytes, Clock::start())
}

fn engine_with(shards: usize, bytes: usize, clock: Clock) -> Engine {
    let mut config = config(&Doubling::failing(13), 2, limits(64), shards);
    let bounds = RingBounds { bytes, span: Nanos::from_millis(600_000) };
    let options = serde_json::json!({ "knob": 1 });
    config.flight = Some(FlightConfig { policy: "fifo".to_owned(), options, bounds });
    config.clock = clock;
    Engine::start(config).unwrap()
}

/// Runs requests of two models; some expire, some are cancelled, some fail.
fn run(engine: &Engine, rounds: usize) {
    let models = [1, 2].map(|blocks| engine.load(served(blocks, Duration::from_secs(600))).unwrap());
    std::thread::scope(|scope| {
        for model in models {
            scope.spawn(move || {
                let client = Client::new(engine, model);
                for round in 0..rounds {
                    let submit = |at: usize| {
                        let timeout = at.is_multiple_of(5).then_some(Duration::from_micros(50));
                        let ticket = client.submit(round * 8 + at, 1 + at % 6, timeout);
                        if let Ok(ticket) = &ticket
                            && at == 7
                        {
                            ticket.cancel();
                        }
                        ticket.is_ok()
                    };
                    let accepted = (0..8).filter(|&at| submit(at)).count();
                    (0..accepted).for_each(|_| drop(client.next()));
                }
            });
        }
    });
}

fn dump(engine: &Engine, name: &str, shards: usize) -> (PathBuf, bool) {
    dump_of(&engine.flight().unwrap(), &format!("{shards}-{name}"))
}

fn dump_of(flight: &FlightRecorder, name: &str) -> (PathBuf, bool) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let dumped = flight.dump(&mut File::create(&path).unwrap()).unwrap();
    assert_eq!(dumped.lines, std::fs::read_to_string(&path).unwrap().lines().count() as u64);
    (path, dumped.whole)
}

fn built(header: &Header) -> Result<ServedPolicy, String> {
    match header.shards {
        1 => Ok(Box::new(Fifo::new(&header.setup)).into()),
        shards => Ok(policy("eager", &header.setup, &eager(), shards)),
    }
}

/// Returns all entries of shard 0.
fn entries(path: &Path) -> Vec<FlightEntry> {
    let mut events = RecordedEvents::open(path).unwrap();
    let mut all = Vec::new();
    while let Some((_, _, entry)) = events.next_entry().unwrap() {
        all.push(entry);
    }
    assert!(!events.is_truncated());
    all
}

in_one_piece_and_in_shards! {
    fn a_dump_of_the_whole_run_replays_to_the_same_decisions(shards: usize) {
        let engine = engine(shards, 64 << 20);
        run(&engine, 40);
        assert!(engine.drain(SAFETY));
        let (path, whole) = dump(&engine, "whole.jsonl", shards);
        assert!(whole);
        let replayed = replay(&path, built).unwrap();
        assert_eq!(replayed.difference, None);
        assert!(!replayed.truncated && replayed.settles > 100, "{replayed:?}");
    }
}

#[test]
fn every_call_has_one_end_and_every_task_its_times() {
    let engine = engine(1, 64 << 20);
    run(&engine, 20);
    assert!(engine.drain(SAFETY));
    let (path, _) = dump(&engine, "asides.jsonl", 1);
    let (mut open, mut endings, mut tasks): (HashSet<RequestSlot>, HashMap<_, u64>, HashSet<TaskId>) =
        Default::default();
    for entry in entries(&path) {
        match entry {
            FlightEntry::Aside(Aside::Call { lead, .. }) => assert!(open.insert(lead)),
            FlightEntry::Aside(Aside::Ended { lead, ending }) => {
                assert!(open.remove(&lead));
                *endings.entry(ending).or_default() += 1;
            }
            FlightEntry::Aside(Aside::Ran { task, started, finished, .. }) => {
                assert!(started <= finished && tasks.insert(task));
            }
            FlightEntry::Event(Event::TaskDone { task, .. }) => assert!(tasks.remove(&task), "its times come first"),
            _ => {}
        }
    }
    assert!(open.is_empty() && tasks.is_empty());
    for (_, _, model) in engine.all_metrics() {
        for (ending, count) in model.requests {
            let seen = endings.entry(ending).or_default();
            *seen = seen.checked_sub(count).unwrap();
        }
    }
    assert!(endings.values().all(|&rest| rest == 0), "{endings:?}");
}

#[test]
fn a_cut_recording_is_consistent_and_cannot_be_replayed() {
    let engine = engine(1, 600 << 10);
    run(&engine, 2_000);
    let size = engine.flight().unwrap().size();
    assert!(size.bytes <= (600 << 10) + (300 << 10), "{size:?}");
    let (path, whole) = dump(&engine, "cut.jsonl", 1);
    assert!(!whole);
    assert!(matches!(replay(&path, built), Err(ReplayError::Partial { .. })));
    let (mut models, mut slots, mut tasks) = (0, HashSet::new(), HashMap::new());
    for entry in entries(&path) {
        let FlightEntry::Event(event) = entry else { continue };
        match event {
            Event::Control(Control::ModelLoaded(..)) => models += 1,
            Event::Request(request) => drop(slots.insert(request.slot)),
            Event::TaskDone { task, ended, .. } => {
                let members: usize = tasks.remove(&task).expect("its start is there");
                assert!(ended.is_empty() || ended.len() == members);
            }
            Event::Settle { actions, members, .. } => {
                let mut members = members.iter();
                for action in actions {
                    match action {
                        Action::Start { task, .. } => drop(tasks.insert(task, members.next().unwrap().len())),
                        Action::Finish { request } | Action::Reject { request, .. } => {
                            assert!(slots.contains(&request))
                        }
                        Action::Cancel { .. } => {}
                    }
                }
                assert!(members.next().is_none());
            }
            _ => {}
        }
    }
    assert_eq!(models, 2, "loaded long before the cut");
}

#[test]
fn a_follower_reads_each_entry_once() {
    let engine = engine(1, 64 << 20);
    let flight = engine.flight().unwrap();
    let (mut follower, history) = flight.follow(ripieno_base::Time::ORIGIN);
    assert_eq!(history.models().len(), 0);
    let mut seen = Vec::new();
    for rounds in [400, 5] {
        run(&engine, rounds);
        follower.read(|_, _, entry| seen.push(entry));
    }
    assert!(engine.drain(SAFETY));
    follower.read(|_, _, entry| seen.push(entry));
    flight.refused(ripieno_base::ModelId(0), RefusedWhy::SlowClient);
    follower.read(|_, _, entry| seen.push(entry));
    let (path, _) = dump(&engine, "followed.jsonl", 1);
    assert_eq!(seen, entries(&path));
    assert!(matches!(seen.last(), Some(FlightEntry::Aside(Aside::Refused { why: RefusedWhy::SlowClient, .. }))));
    assert!(seen.iter().any(|entry| matches!(entry, FlightEntry::Aside(Aside::Ended { ending: Ending::Expired, .. }))));
}

/// Two schedulers count models, devices, slots and tasks each from 0.
#[test]
fn recorders_of_sub_clusters_are_read_as_one() {
    let clock = Clock::start();
    let engines: [Engine; 2] = std::array::from_fn(|_| engine_with(1, 64 << 20, clock));
    std::thread::scope(|scope| engines.iter().for_each(|engine| drop(scope.spawn(|| run(engine, 50)))));
    assert!(engines.iter().all(|engine| engine.drain(SAFETY)));
    let parts = engines.each_ref().map(|engine| engine.flight().unwrap());
    let joined = FlightRecorder::joined(&parts, 8).unwrap();
    let (path, whole) = dump_of(&joined, "joined.jsonl");
    assert!(whole);
    let read = History::read(&path).unwrap();
    let (mut follower, mut live) = joined.follow(ripieno_base::Time::ORIGIN);
    follower.read(|shard, now, entry| live.add(shard, now, &entry));
    assert!(follower.reads(&joined) && !follower.reads(&parts[0]));
    for history in [read, live] {
        let devices: Vec<u16> = history.devices().iter().map(|(device, _)| device.0).collect();
        assert_eq!(devices, [0, 1, 8, 9]);
        for (sub_cluster, part) in parts.iter().enumerate() {
            let (mut follower, mut alone) = part.follow(ripieno_base::Time::ORIGIN);
            follower.read(|shard, now, entry| alone.add(shard, now, &entry));
            let of = |call: &&ripieno_runtime::history::CallRecord| call.sub_cluster == sub_cluster;
            let ends = history.calls().filter(of).map(|call| (call.arrived, call.rows, call.ended));
            let alone: Vec<_> = alone.calls().map(|call| (call.arrived, call.rows, call.ended)).collect();
            assert_eq!(ends.collect::<Vec<_>>(), alone);
            let devices = sub_cluster as u16 * 8..sub_cluster as u16 * 8 + 2;
            let mut tasks = history.tasks().filter(|task| task.sub_cluster == sub_cluster);
            assert!(tasks.all(|task| devices.contains(&task.device.0)));
        }
    }
    assert!(matches!(replay(&path, built), Err(ReplayError::SubClusters { sub_clusters: 2, .. })));
}
