//! Requests that run cell by cell, with steps queued ahead: right answers, streams, waste, and one
//! answer under all failures.

use crate::common::SAFETY;
use crate::common::stepping::{DEPTH, LONGEST, Stepping, answer_to, counting, sequence};
use ripieno_base::{BlockId, ModelId};
use ripieno_executor::Executor;
use ripieno_policies::{build, find};
use ripieno_runtime::{
    Engine, EngineConfig, Failure, Job, JobResult, ModelRefused, OnStep, Recording, StreamedStep, Ticket, replay,
};
use ripieno_sched::{Limits, Options, Setup};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(600);

fn config(executor: &Arc<dyn Executor>, devices: usize, requests: usize) -> EngineConfig {
    config_with("cellular", executor, devices, requests)
}

fn config_with(policy: &str, executor: &Arc<dyn Executor>, devices: usize, requests: usize) -> EngineConfig {
    let limits = Limits { requests, models: 3, devices, lanes: 1, depth: DEPTH, batch: 8, nodes: 64 };
    let setup = Setup { models: Vec::new(), devices, limits };
    let scheduler = build(policy, &setup, &Options::new()).unwrap();
    EngineConfig::new(scheduler, setup, vec![Arc::clone(executor); devices])
}

fn job(model: ModelId, bytes: &[u8]) -> (Job, Receiver<JobResult>) {
    let (send, answers) = channel();
    // The test may have ended already.
    let on_answer = Box::new(move |answer| drop(send.send(answer)));
    (Job::new(model, sequence(bytes), 1, on_answer), answers)
}

fn ask(engine: &Engine, model: ModelId, bytes: &[u8]) -> JobResult {
    let (job, answers) = job(model, bytes);
    engine.submit(job).unwrap();
    answers.recv_timeout(SAFETY).unwrap()
}

/// Some sequence of the n-th request.
fn bytes_of(number: usize) -> Vec<u8> {
    (0..number * 7 % LONGEST + 1).map(|at| (number * 31 + at * 17) as u8).collect()
}

#[test]
fn sequences_of_all_lengths_are_answered_as_if_alone() {
    for devices in [1, 2] {
        let engine = Engine::start(config(&Stepping::failing(0), devices, 512)).unwrap();
        let model = engine.load(counting(LONG)).unwrap();
        let asked: Vec<_> = (0..400)
            .map(|number| {
                let (job, answers) = job(model, &bytes_of(number));
                engine.submit(job).unwrap();
                answers
            })
            .collect();
        for (number, answers) in asked.iter().enumerate() {
            let answered = answers.recv_timeout(SAFETY).unwrap().unwrap();
            assert_eq!(answered.outputs[0].data, answer_to(&bytes_of(number)), "request {number} on {devices} devices");
        }
        let useful: usize = (0..400).map(|n| bytes_of(n).len() + answer_to(&bytes_of(n)).len()).sum();
        assert!(engine.drain(SAFETY));
        engine.shutdown();
        let seen = engine.model_metrics(model).unwrap();
        assert_eq!(seen.success.count, 400);
        // Steps that were still queued when the engine shut down are not counted.
        assert!(seen.batch_rows.sum as u64 >= useful as u64, "{seen:?}");
        assert!(seen.batch_rows.sum as u64 - seen.wasted_rows - seen.padding_rows <= useful as u64, "{seen:?}");
    }
}

#[test]
fn a_request_is_answered_at_its_end_and_its_slot_kept_until_its_last_step_has_run() {
    let (executor, release) = Stepping::gated();
    let engine = Engine::start(config(&executor, 1, 1)).unwrap();
    let model = engine.load(counting(LONG)).unwrap();
    // Dropped before the engine, which waits for its device: a failing test fails, rather than
    // hangs.
    let release = release;
    // Encoding takes two steps. The sum is 7, so decoding takes one step, of up to four that are
    // queued together.
    let bytes = [3, 4];
    let (first, answers) = job(model, &bytes);
    engine.submit(first).unwrap();
    (0..3).for_each(|_| release.send(()).unwrap());
    let answered = answers.recv_timeout(SAFETY).unwrap().unwrap();
    assert_eq!(answered.outputs[0].data, answer_to(&bytes));
    // The request's further steps have not run, so its slot is not free.
    let full = engine.submit(job(model, &bytes).0).err().unwrap();
    assert!(matches!(full, Failure::QueueFull { bound: 1, .. }), "{full}");
    drop(release);
    let (second, answers) = submit_when_there_is_room(&engine, model, &bytes);
    answers.recv_timeout(SAFETY).unwrap().unwrap();
    // It has been answered.
    second.cancel();
    assert!(engine.drain(SAFETY));
    // The limit is four steps: three beyond the end were queued.
    assert!(engine.model_metrics(model).unwrap().wasted_rows >= 3);
}

fn submit_when_there_is_room(engine: &Engine, model: ModelId, bytes: &[u8]) -> (Ticket, Receiver<JobResult>) {
    let begun = Instant::now();
    loop {
        let (job, answers) = job(model, bytes);
        match engine.submit(job) {
            Ok(ticket) => return (ticket, answers),
            Err(_) => assert!(begun.elapsed() < SAFETY, "the slot is never given back"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn the_rest_of_a_cancelled_walk_is_not_run() {
    let (executor, release) = Stepping::gated();
    let engine = Engine::start(config(&executor, 1, 1)).unwrap();
    let model = engine.load(counting(LONG)).unwrap();
    // Dropped before the engine, which waits for its device: a failing test fails, rather than
    // hangs.
    let release = release;
    let (long, answers) = job(model, &[1; LONGEST]);
    let ticket = engine.submit(long).unwrap();
    release.send(()).unwrap();
    ticket.cancel();
    assert_eq!(answers.recv_timeout(SAFETY).unwrap().unwrap_err(), Failure::Cancelled);
    drop(release);
    // The slot is free once the queued steps have run.
    let (_, answers) = submit_when_there_is_room(&engine, model, &[7]);
    assert_eq!(answers.recv_timeout(SAFETY).unwrap().unwrap().outputs[0].data, answer_to(&[7]));
    let seen = engine.model_metrics(model).unwrap();
    let of_the_second = 1 + 3;
    assert!(seen.batch_rows.sum as usize <= DEPTH + of_the_second, "{seen:?}");
    assert!(engine.drain(SAFETY));
}

#[test]
fn steps_that_only_pad_are_counted() {
    let engine = Engine::start(config_with("bucketed", &Stepping::failing(0), 1, 16)).unwrap();
    let model = engine.load(counting(LONG)).unwrap();
    // A bucket holds ten lengths, so a sequence of three has seven steps that do nothing.
    assert_eq!(ask(&engine, model, &[1, 2, 3]).unwrap().outputs[0].data, answer_to(&[1, 2, 3]));
    let seen = engine.model_metrics(model).unwrap();
    assert_eq!((seen.padding_rows, seen.success.count), (7, 1), "{seen:?}");
}

#[test]
fn steps_come_in_order_and_before_the_answer() {
    let engine = Engine::start(config(&Stepping::failing(0), 2, 64)).unwrap();
    let model = engine.load(counting(LONG)).unwrap();
    for number in 0..50 {
        let bytes = bytes_of(number);
        let (send, steps) = channel::<StreamedStep>();
        let (mut job, answers) = job(model, &bytes);
        job.on_step = Some(Box::new(move |step| send.send(step).unwrap()));
        engine.submit(job).unwrap();
        let whole = answers.recv_timeout(SAFETY).unwrap().unwrap().outputs[0].data.clone();
        // The sender is gone by this point, so this ends.
        let steps: Vec<StreamedStep> = steps.try_iter().collect();
        let together: Vec<u8> = steps.iter().flat_map(|step| step.outputs[0].data.to_vec()).collect();
        assert_eq!((together.as_slice(), &whole[..]), (&answer_to(&bytes)[..], &answer_to(&bytes)[..]));
        let last: Vec<bool> = steps.iter().map(|step| step.last).collect();
        assert_eq!(last.iter().position(|last| *last), Some(last.len() - 1));
    }
}

#[test]
fn a_failed_task_fails_its_own_members_and_none_queued_behind_it() {
    let (executor, release) = Stepping::gated_and_failing(2);
    let engine = Engine::start(config(&executor, 1, 16)).unwrap();
    let model = engine.load(counting(LONG)).unwrap();
    // Dropped before the engine, which waits for its device: a failing test fails, rather than
    // hangs.
    let release = release;
    let submit = |bytes: &[u8]| {
        let (job, answers) = job(model, bytes);
        engine.submit(job).unwrap();
        (bytes.to_vec(), answers)
    };
    // A command is executed after earlier mail.
    let profile = counting(LONG).model.blocks[0].profile.clone();
    let until_read = || engine.replace_profile(model, BlockId(0), profile.clone()).unwrap();
    let first = submit(&[1]);
    until_read();
    // The device holds the first request's step. When it ends, four of these requests fill a task.
    // The fifth request shares the later tasks with three of them.
    let four = [&[2][..], &[3, 4, 5], &[6, 7, 8], &[9, 10, 11]].map(submit);
    let fifth = submit(&[12, 13, 14]);
    until_read();
    drop(release);
    for (_, answers) in four {
        let failure = answers.recv_timeout(SAFETY).unwrap().unwrap_err();
        assert_eq!(failure, Failure::Failed("the device stumbled".to_owned()));
        assert!(answers.recv_timeout(SAFETY).is_err(), "it is answered once");
    }
    for (bytes, answers) in [first, fifth] {
        assert_eq!(answers.recv_timeout(SAFETY).unwrap().unwrap().outputs[0].data, answer_to(&bytes));
    }
    assert!(engine.drain(SAFETY));
    engine.shutdown();
    let seen = engine.model_metrics(model).unwrap();
    assert_eq!((seen.success.count, seen.fail.count), (2, 4));
    // Three of the four were queued for two more steps each.
    assert!(seen.wasted_rows >= 6, "{seen:?}");
}

#[test]
fn what_the_walk_does_not_take_is_refused_without_a_slot() {
    let mut config = config(&Stepping::failing(0), 1, 1);
    config.policy = Some(find("cellular").unwrap());
    let engine = Engine::start(config).unwrap();
    let model = engine.load(counting(LONG)).unwrap();
    for length in [0, LONGEST + 1, 10_000] {
        let refused = engine.submit(job(model, &vec![1; length]).0).err().unwrap();
        assert_eq!(refused, Failure::Invalid(format!("a sequence of {length}; 1 to {LONGEST} are possible")));
    }
    let (pair, _answers) = job(model, &[1, 2]);
    assert!(matches!(engine.submit(Job { rows: 2, ..pair }).err().unwrap(), Failure::Invalid(_)));
    assert_eq!(ask(&engine, model, &[1, 2]).unwrap().outputs[0].data, answer_to(&[1, 2]));
    assert_eq!(engine.model_metrics(model).unwrap().requests.iter().map(|(_, count)| count).sum::<u64>(), 1);
}

#[test]
fn a_policy_that_cannot_unfold_refuses_the_model_and_names_those_that_can() {
    let limits = Limits { requests: 8, models: 3, batch: 8, ..Limits::ONE };
    let setup = Setup { models: Vec::new(), devices: 1, limits };
    let scheduler = build("deferred", &setup, &Options::new()).unwrap();
    let mut config = EngineConfig::new(scheduler, setup, vec![Stepping::failing(0)]);
    config.policy = Some(find("deferred").unwrap());
    let engine = Engine::start(config).unwrap();
    let ModelRefused::Unsuitable(text) = engine.load(counting(LONG)).unwrap_err() else { panic!("another refusal") };
    assert!(text.contains("\"deferred\"") && text.contains("encode-decode") && text.contains("cellular"), "{text}");
}

/// Counts the answers to each job, and checks those with outputs.
#[derive(Default)]
struct Tally {
    accepted: AtomicUsize,
    answered: AtomicUsize,
    good: AtomicUsize,
    /// Number of outputs that differ from the outputs of the request alone, and of impossible
    /// endings.
    wrong: AtomicUsize,
}

impl Tally {
    /// A client thread: jobs of random lengths, some with little time, some streamed, some
    /// cancelled immediately or later.
    fn client(self: &Arc<Tally>, engine: &Engine, models: [ModelId; 2], thread: usize) {
        let begun = Instant::now();
        for number in (thread * 1_000..).take(300) {
            let ticket = loop {
                match engine.submit(self.job(models, number)) {
                    Ok(ticket) => break Some(ticket),
                    Err(Failure::QueueFull { .. }) => assert!(begun.elapsed() < SAFETY, "no slot is ever given back"),
                    Err(_) => break None,
                }
                std::thread::yield_now();
            };
            let Some(ticket) = ticket else { continue };
            self.accepted.fetch_add(1, Ordering::SeqCst);
            if number.is_multiple_of(5) {
                (0..number % 4).for_each(|_| std::thread::yield_now());
                ticket.cancel();
            }
        }
    }

    fn job(self: &Arc<Tally>, models: [ModelId; 2], number: usize) -> Job {
        let bytes = bytes_of(number);
        let (tally, expected) = (Arc::clone(self), answer_to(&bytes));
        let on_answer = Box::new(move |answer: JobResult| {
            tally.answered.fetch_add(1, Ordering::SeqCst);
            match answer {
                Ok(answered) if answered.outputs[0].data == expected => tally.good.fetch_add(1, Ordering::SeqCst),
                Ok(_) | Err(Failure::ShuttingDown) => tally.wrong.fetch_add(1, Ordering::SeqCst),
                Err(_) => 0,
            };
        });
        let timeout = number.is_multiple_of(3).then(|| Duration::from_micros((number % 97) as u64 * 20));
        let on_step: Option<OnStep> =
            number.is_multiple_of(2).then(|| Box::new(|step: StreamedStep| drop(step)) as OnStep);
        let model = models[usize::from(number.is_multiple_of(11))];
        Job { timeout, on_step, ..Job::new(model, sequence(&bytes), 1, on_answer) }
    }
}

#[test]
fn every_job_is_answered_once_under_cancellations_deadlines_unloads_and_failures() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("steps.jsonl");
    let mut config = config(&Stepping::failing(29), 2, 48);
    config.record =
        Some(Recording { path: path.clone(), policy: "cellular".to_owned(), options: serde_json::json!({}) });
    let engine = Engine::start(config).unwrap();
    let models = [engine.load(counting(LONG)).unwrap(), engine.load(counting(LONG)).unwrap()];
    let tally = Arc::new(Tally::default());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (tally, engine) = (&tally, &engine);
            scope.spawn(move || tally.client(engine, models, thread));
        }
        scope.spawn(|| {
            // In the midst of the load, one of the models is unloaded and another loaded.
            (0..50).for_each(|_| std::thread::yield_now());
            engine.unload(models[1]).unwrap();
            engine.load(counting(LONG)).unwrap();
        });
    });
    assert!(engine.drain(SAFETY));
    let accepted = tally.accepted.load(Ordering::SeqCst);
    assert_eq!(tally.answered.load(Ordering::SeqCst), accepted);
    assert_eq!(tally.wrong.load(Ordering::SeqCst), 0);
    assert!(tally.good.load(Ordering::SeqCst) > accepted / 4);
    engine.shutdown();
    let again = |header: &ripieno_runtime::Header| build("cellular", &header.setup, &Options::new());
    let replayed = replay(&path, again).unwrap();
    assert_eq!(replayed.difference, None);
    assert!(replayed.settles > 100, "{replayed:?}");
}
