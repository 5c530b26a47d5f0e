//! Every accepted job gets exactly one answer under all circumstances.

use crate::common::device::Doubling;
use crate::common::{Client, bytes, data, in_one_piece_and_in_shards, limits, served, start};
use ripieno_base::{BlockId, ModelId, Nanos};
use ripieno_model::Profile;
use ripieno_runtime::{Engine, Failure, Job, JobResult, ModelRefused};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

in_one_piece_and_in_shards! {
    fn the_answer_is_the_models_for_these_inputs(shards: usize) {
        let engine = start(&Doubling::prompt(), 1, limits(16), shards);
        let client = Client::new(&engine, engine.load(served(1, LONG)).unwrap());
        client.submit(3, 2, None).unwrap();
        let (_, answer) = client.next();
        let answered = answer.unwrap();
        assert!(!answered.late && answered.queued >= Nanos::ZERO && answered.batch == 2);
        assert_eq!((&answered.outputs[0].data[..], &answered.outputs[0].shape[..]), (&[6, 8][..], &[2, 1][..]));
    }

    fn a_chain_passes_through_all_its_blocks(shards: usize) {
        let engine = start(&Doubling::prompt(), 2, limits(16), shards);
        let client = Client::new(&engine, engine.load(served(3, LONG)).unwrap());
        client.submit(3, 2, None).unwrap();
        assert_eq!(data(client.next().1), [24, 32]);
    }

    fn a_large_request_is_split_and_put_together_again(shards: usize) {
        let engine = start(&Doubling::prompt(), 2, limits(16), shards);
        let client = Client::new(&engine, engine.load(served(1, LONG)).unwrap());
        client.submit(10, 50, None).unwrap();
        let expected: Vec<u8> = (0..50).map(|row| (10 + row) * 2).collect();
        assert_eq!(data(client.next().1), expected);
        let seen = engine.model_metrics(client.model).unwrap();
        assert_eq!((seen.rows, seen.success.count), (50, 1));
        assert!(matches!(client.submit(0, 4 * 16 + 1, None), Err(Failure::TooLarge { most: 64, .. })));
    }

    fn one_failing_part_fails_the_whole_request(shards: usize) {
        let engine = start(&Doubling::failing(3), 1, limits(16), shards);
        let client = Client::new(&engine, engine.load(served(1, LONG)).unwrap());
        client.submit(0, 20, None).unwrap();
        assert_eq!(client.next().1.unwrap_err(), Failure::Failed("the device stumbled".to_owned()));
        // All slots are freed.
        while client.submit(1, 4 * 16, None).is_err() {
            std::thread::yield_now();
        }
        assert!(client.next().1.is_err());
    }
}

/// Counts the answers of each job.
struct Tally {
    accepted: AtomicUsize,
    refused: AtomicUsize,
    answers: Vec<AtomicUsize>,
    wrong: AtomicUsize,
}

impl Tally {
    /// Submits until accepted, except for every tenth job, which may be refused.
    fn submit(self: &Arc<Tally>, engine: &Engine, model: ModelId, number: usize) {
        loop {
            match engine.submit(self.job(model, number)) {
                Ok(ticket) => {
                    self.accepted.fetch_add(1, Ordering::Relaxed);
                    (0..number % 4 / 2).for_each(|_| ticket.cancel());
                    return;
                }
                Err(refused) => {
                    assert!(matches!(refused, Failure::QueueFull { .. }), "{refused}");
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    if number.is_multiple_of(10) {
                        self.answers[number].fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                    std::thread::yield_now();
                }
            }
        }
    }

    fn job(self: &Arc<Tally>, model: ModelId, number: usize) -> Job {
        let rows = 1 + number % 9;
        let tally = Arc::clone(self);
        let on_answer = Box::new(move |answer: JobResult| {
            tally.answers[number].fetch_add(1, Ordering::Relaxed);
            let doubled =
                bytes(rows, number as u8)[0].data.iter().map(|byte| byte.wrapping_mul(2)).collect::<Vec<u8>>();
            if answer.is_ok_and(|answered| answered.outputs[0].data != doubled) {
                tally.wrong.fetch_add(1, Ordering::Relaxed);
            }
        });
        let timeout = number.is_multiple_of(5).then(|| Duration::from_micros((number % 7 * 40) as u64));
        Job { timeout, ..Job::new(model, bytes(rows, number as u8), rows, on_answer) }
    }
}

in_one_piece_and_in_shards! {
    /// Threads submit, cancel and let requests expire, the device fails now and then, a model is
    /// loaded and unloaded; then the server drains. Four small bounds ensure that refusals happen
    /// too.
    fn many_threads_cancels_expiries_failures_and_unloads(shards: usize) {
        const THREADS: usize = 4;
        const EACH: usize = 3_000;
        let engine = start(&Doubling::failing(11), 2, limits(64), shards);
        let model = engine.load(served(1, LONG)).unwrap();
        let tally = Arc::new(Tally {
            accepted: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            answers: (0..THREADS * EACH).map(|_| AtomicUsize::new(0)).collect(),
            wrong: AtomicUsize::new(0),
        });
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (tally, engine) = (&tally, &engine);
                scope.spawn(move || (0..EACH).for_each(|at| tally.submit(engine, model, thread * EACH + at)));
            }
            scope.spawn(|| {
                for _ in 0..50 {
                    let Ok(guest) = engine.load(served(3, LONG)) else { continue };
                    let client = Client::new(&engine, guest);
                    let accepted = (0..8).filter(|&at| client.submit(at, 1, None).is_ok()).count();
                    engine.unload(guest).unwrap();
                    assert_eq!(client.submit(0, 1, None).err(), Some(Failure::NotLoaded));
                    (0..accepted).for_each(|_| drop(client.next()));
                }
            });
        });
        assert!(engine.drain(crate::common::SAFETY));
        assert!(tally.answers.iter().all(|answers| answers.load(Ordering::Relaxed) == 1));
        assert_eq!(tally.wrong.load(Ordering::Relaxed), 0);
        let (accepted, refused) = (tally.accepted.load(Ordering::Relaxed), tally.refused.load(Ordering::Relaxed));
        let seen = engine.model_metrics(model).unwrap();
        assert_eq!(seen.requests.iter().map(|(_, count)| count).sum::<u64>(), (accepted + refused) as u64);
        assert_eq!(seen.success.count + seen.fail.count, accepted as u64);
    }

    fn models_are_checked_and_ids_come_back(shards: usize) {
        let engine = start(&Doubling::prompt(), 1, limits(16), shards);
        let ids: Vec<ModelId> = (0..4).map(|_| engine.load(served(1, LONG)).unwrap()).collect();
        assert_eq!(engine.load(served(1, LONG)), Err(ModelRefused::TooMany(4)));
        engine.unload(ids[2]).unwrap();
        assert_eq!(engine.unload(ids[2]), Err(ModelRefused::NotLoaded));
        let again = loop {
            // The id is free once the scheduler thread has removed its model.
            match engine.load(served(1, LONG)) {
                Ok(id) => break id,
                Err(ModelRefused::TooMany(_)) => std::thread::yield_now(),
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(again, ids[2]);

        let short = Profile::linear(1.0, 1.0, 3).unwrap();
        let refused = engine.replace_profile(again, BlockId(0), short).unwrap_err();
        assert!(refused.to_string().contains("ends at batch size 3, before max_batch 4"), "{refused}");
        let fine = Profile::linear(1.0, 1.0, 4).unwrap();
        assert!(engine.replace_profile(again, BlockId(1), fine.clone()).is_err());
        engine.replace_profile(again, BlockId(0), fine).unwrap();
        let mut wide = served(1, LONG);
        wide.model.max_batch = 9;
        assert!(engine.load(wide).unwrap_err().to_string().contains("must be between 1 and 8"));
        engine.shutdown();
        assert_eq!(engine.unload(ids[0]), Err(ModelRefused::Stopped));
        assert!(!engine.is_alive());
    }
}
