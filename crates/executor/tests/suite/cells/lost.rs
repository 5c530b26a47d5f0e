//! Cells of a device that another process owns: the process may end or hang at any time.

use super::drive::Bench;
use super::models::{Random, Sent, model};
use super::{check, mixed};
use crate::common::PATIENCE;
use crate::isolated::{Folder, isolation, until};
use ripieno_base::RequestSlot;
use ripieno_executor::*;
use ripieno_model::Walk;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::time::Duration;

/// A model of cells in a process whose id is known.
struct CellProcess {
    bench: Bench,
    folder: Folder,
}

impl CellProcess {
    fn new(walk: Walk, devices: usize, task_limit: Duration) -> CellProcess {
        let folder = Folder::new();
        let program = std::env::current_exe().unwrap();
        let serve = format!("exec '{}' {}", program.display(), isolation().args.join(" "));
        let args = vec!["-c".to_owned(), format!("echo $$ >>{}/pids; {serve}", folder.0.display())];
        let isolation = Isolation { program: "/bin/sh".into(), args, task_limit, ..isolation() };
        let source = ModelSource { isolation: Some(isolation), ..model(walk) };
        CellProcess { bench: Bench::new(&CudaCellsEngine::on_host(0).with_depth(4), source, devices), folder }
    }

    /// Sends a signal to the process that was started last. Returns once a stopped one is stopped.
    fn signal(&self, signal: Signal) {
        let pids = std::fs::read_to_string(self.folder.0.join("pids")).unwrap();
        let last = pids.lines().last().unwrap().parse().unwrap();
        kill_process(Pid::from_raw(last).unwrap(), signal).unwrap();
        if signal == Signal::STOP {
            until(|| is_stopped(last).then_some(()));
        }
    }

    fn result(&self) -> TaskResult {
        self.bench.devices[0].1.recv_timeout(PATIENCE).unwrap()
    }

    /// Waits until the process that takes the place of the last one runs.
    fn wait_for_restart(&self, number: u64) {
        until(|| (self.bench.model.restarts() == Some(number) && self.bench.model.outage().is_none()).then_some(()));
    }

    fn answers_all(&self, walk: Walk, seed: u64) {
        let mut random = Random::new(seed);
        let sent = mixed(walk, 40, &mut random);
        let requests: Vec<Vec<Tensor>> = sent.iter().map(|sent| sent.tensors(walk)).collect();
        let answers = self.bench.answer_all(&requests, 12, &mut random);
        sent.iter().zip(&answers).for_each(|(sent, answer)| check(walk, sent, answer));
    }
}

/// Whether each thread of a process is stopped: one that runs stops some time after the signal.
fn is_stopped(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| thread.unwrap().path());
    let stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'));
    threads.map(|thread| std::fs::read_to_string(thread.join("stat"))).all(|stat| stat.is_ok_and(stopped))
}

fn sent(first: i64) -> Sent {
    Sent { tokens: vec![first, 1, 2, 3], children: vec![] }
}

fn member(slot: u32, node: u32, entry: Option<&Arc<RequestEntry>>) -> TaskMember {
    TaskMember { node, ..TaskMember::new(RequestSlot(slot), 1, entry.map(Arc::clone)) }
}

#[test]
fn requests_whose_process_ended_are_lost_and_their_neighbours_answered() {
    let process = CellProcess::new(Walk::Repeat, 1, PATIENCE);
    let bench = &process.bench;
    for round in 1..=3 {
        let [old, new] = [sent(5), sent(6)];
        let entries = [&old, &new].map(|sent| bench.entry(sent.tensors(Walk::Repeat)).unwrap());
        bench.run(0, 0, vec![member(0, 0, Some(&entries[0]))]);
        process.signal(Signal::KILL);
        process.wait_for_restart(round);
        // The first task finds that the process has ended, and the next one finds another.
        let rest = until(|| {
            bench.submit(0, 0, vec![member(0, 1, None), member(1, 0, Some(&entries[1]))]);
            let TaskResult { outcome, lost, .. } = process.result();
            assert!(outcome.is_ok() || lost.is_some(), "{outcome:?}");
            outcome.ok()
        });
        // The request that had state is either lost here, or was lost with the whole task.
        assert!(rest[0].failed.is_none() || rest[0].lost.is_some_and(|lost| lost.inside), "{:?}", rest[0]);
        assert!(rest[1].failed.is_none() && rest[1].lost.is_none(), "{:?}", rest[1]);
        for node in 1..3 {
            bench.run(0, 0, vec![member(1, node, None)]);
        }
        let ended = bench.run(0, 0, vec![member(1, 3, None)]).remove(0);
        assert!(ended.ended);
        check(Walk::Repeat, &new, &ended.outputs);
    }
    process.answers_all(Walk::Repeat, 3);
}

#[test]
fn each_step_in_flight_ends_once_when_its_process_is_killed() {
    let process = CellProcess::new(Walk::Repeat, 1, PATIENCE);
    let bench = &process.bench;
    let entries = [5, 6, 7].map(|first| bench.entry(sent(first).tensors(Walk::Repeat)).unwrap());
    // A stopped process ends no step, so that all are in flight when it is killed.
    process.signal(Signal::STOP);
    for (slot, entry) in entries.iter().enumerate() {
        bench.submit(0, 0, vec![member(slot as u32, 0, Some(entry))]);
    }
    process.signal(Signal::KILL);
    for _ in &entries {
        let TaskResult { outcome, lost, .. } = process.result();
        assert!(outcome.is_err() && lost.is_some(), "{outcome:?}");
    }
    assert!(bench.devices[0].1.try_recv().is_err(), "each has one end");
    process.wait_for_restart(1);
    process.answers_all(Walk::Repeat, 4);
}

#[test]
fn a_process_that_ends_no_step_is_killed_after_the_limit() {
    // Longer than any step of a machine that does much else.
    let process = CellProcess::new(Walk::EncodeDecode, 1, Duration::from_secs(5));
    process.answers_all(Walk::EncodeDecode, 5);
    let sent = Sent::random(Walk::EncodeDecode, &mut Random::new(7), 9);
    let entry = process.bench.entry(sent.tensors(Walk::EncodeDecode)).unwrap();
    process.signal(Signal::STOP);
    process.bench.submit(0, 0, vec![member(0, 0, Some(&entry))]);
    let TaskResult { outcome, lost, .. } = process.result();
    let cause = outcome.unwrap_err().0;
    assert!(cause.contains("a step did not end within 5s (task_limit_s)"), "{cause}");
    assert!(lost.is_some_and(|lost| lost.inside));
    process.wait_for_restart(1);
    process.answers_all(Walk::EncodeDecode, 6);
}

#[test]
fn lanes_of_one_device_share_its_process() {
    let process = CellProcess::new(Walk::Tree, 3, PATIENCE);
    for seed in 0..3 {
        process.answers_all(Walk::Tree, seed);
    }
    let pids = std::fs::read_to_string(process.folder.0.join("pids")).unwrap();
    assert_eq!((pids.lines().count(), process.bench.model.restarts()), (1, Some(0)));
}

/// A model that is attached while its process is down is served once there is one.
#[test]
fn a_device_that_joins_during_an_outage_serves_afterwards() {
    let process = CellProcess::new(Walk::Repeat, 1, PATIENCE);
    let engine = CudaCellsEngine::on_host(0);
    for round in 1..=2 {
        process.signal(Signal::KILL);
        until(|| process.bench.model.outage());
        let joined = Bench::of_model(&engine, Arc::clone(&process.bench.model), process.bench.source.clone(), 1);
        let entry = joined.entry(sent(1).tensors(Walk::Repeat)).unwrap();
        until(|| {
            joined.submit(0, 0, vec![member(0, 0, Some(&entry))]);
            let TaskResult { outcome, lost, .. } = joined.devices[0].1.recv_timeout(PATIENCE).unwrap();
            assert!(outcome.is_ok() || lost.is_some(), "{outcome:?}");
            outcome.ok()
        });
        process.wait_for_restart(round);
    }
}

#[test]
fn a_process_that_opens_no_lane_is_killed_and_its_requests_are_lost() {
    // It says that it has loaded the model, and answers the first call with nonsense.
    let isolation = Isolation {
        program: "/bin/sh".into(),
        args: vec!["-c".to_owned(), "printf '\\0\\0\\0\\0\\005\\0\\0\\0hello' >&0; exec sleep 1000".to_owned()],
        ..isolation()
    };
    let engine = CudaCellsEngine::on_host(0);
    let loaded = engine.load(&ModelSource { isolation: Some(isolation), ..model(Walk::Repeat) }).unwrap();
    let bench = Bench::of_model(&engine, loaded, model(Walk::Repeat), 1);
    let entry = bench.entry(sent(1).tensors(Walk::Repeat)).unwrap();
    bench.submit(0, 0, vec![member(0, 0, Some(&entry))]);
    let TaskResult { outcome, lost, .. } = bench.devices[0].1.recv_timeout(PATIENCE).unwrap();
    let cause = outcome.unwrap_err().0;
    assert!(cause.contains("killed for an answer that is none") && lost.is_some(), "{cause}");
}
