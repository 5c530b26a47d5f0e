//! Behaviour while the device is busy: expiry, cancellation, refusal, drain. The device ends its
//! task only when the test allows it.

use crate::common::device::{Doubling, Gatekeeper};
use crate::common::{Client, SAFETY, config, data, in_one_piece_and_in_shards, limits, served, start};
use ripieno_executor::Executor;
use ripieno_runtime::{Ending, Engine, Failure, ServedModel};
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_millis(5);
/// Long enough for a task to begin on a loaded machine.
const A_WHILE: Duration = Duration::from_secs(2);

/// Starts an engine whose one device is busy with job 0 of 4 rows.
fn busy(served: ServedModel, shards: usize) -> (Engine, Client, Gatekeeper) {
    let (executor, gatekeeper): (Arc<dyn Executor>, Gatekeeper) = Doubling::gated();
    let engine = start(&executor, 1, limits(16), shards);
    let client = Client::new(&engine, engine.load(served).unwrap());
    client.submit(0, 4, None).unwrap();
    gatekeeper.begun.recv_timeout(SAFETY).unwrap();
    (engine, client, gatekeeper)
}

fn count(engine: &Engine, client: &Client, ending: Ending) -> u64 {
    let seen = engine.model_metrics(client.model).unwrap();
    seen.requests.iter().find(|(each, _)| *each == ending).unwrap().1
}

in_one_piece_and_in_shards! {
    fn requests_expire_though_the_device_never_ends_its_task(shards: usize) {
        let (engine, client, gatekeeper) = busy(served(1, A_WHILE), shards);
        client.submit(1, 1, Some(SOON)).unwrap();
        let mut expired = [client.next_failure(), client.next_failure()];
        expired.sort_by_key(|(number, _)| *number);
        assert_eq!(expired, [(0, Failure::Expired), (1, Failure::Expired)]);
        assert_eq!(count(&engine, &client, Ending::Expired), 2);
        // The running task is discarded, and the device is free for the next.
        let patient = Client::new(&engine, engine.load(served(1, LONG)).unwrap());
        patient.submit(7, 1, None).unwrap();
        drop(gatekeeper.release);
        assert_eq!(data(patient.next().1), [14]);
        assert!(client.answers.try_recv().is_err());
    }

    fn late_answers_are_given_where_wanted_but_the_clients_own_limit_holds(shards: usize) {
        let (engine, client, gatekeeper) = busy(ServedModel { answer_late: true, ..served(1, Duration::from_nanos(1)) }, shards);
        client.submit(1, 1, Some(SOON)).unwrap();
        assert_eq!(client.next_failure(), (1, Failure::Expired));
        drop(gatekeeper.release);
        let (number, answer) = client.next();
        let answered = answer.unwrap();
        assert!(number == 0 && answered.late && answered.outputs[0].data[..] == [0, 2, 4, 6]);
        assert_eq!(count(&engine, &client, Ending::Late), 1);
        assert_eq!(engine.model_metrics(client.model).unwrap().slack.cumulative[0], 1);
    }

    fn a_client_that_goes_away_frees_what_waits(shards: usize) {
        let (engine, client, gatekeeper) = busy(served(1, LONG), shards);
        let waiting = client.submit(1, 4 * 15, None).unwrap();
        assert!(matches!(client.submit(2, 1, None), Err(Failure::QueueFull { bound: 16, .. })));
        waiting.cancel();
        assert_eq!(client.next_failure(), (1, Failure::Cancelled));
        // Its slots are freed although the device is still busy.
        let running = loop {
            match client.submit(3, 4 * 15, None) {
                Ok(ticket) => break ticket,
                Err(_) => std::thread::yield_now(),
            }
        };
        assert!(count(&engine, &client, Ending::Refused) > 0);
        running.cancel();
        running.cancel();
        assert_eq!(client.next_failure(), (3, Failure::Cancelled));
        drop(gatekeeper.release);
        assert_eq!(client.next().0, 0);
        assert_eq!(engine.model_metrics(client.model).unwrap().waiting, 0);
    }

    fn a_running_request_can_be_cancelled_and_is_discarded(shards: usize) {
        let (engine, client, gatekeeper) = busy(served(1, LONG), shards);
        let ticket = client.submit(1, 8, None).unwrap();
        gatekeeper.release.send(()).unwrap();
        assert_eq!(client.next().0, 0);
        gatekeeper.begun.recv_timeout(SAFETY).unwrap();
        ticket.cancel();
        assert_eq!(client.next_failure(), (1, Failure::Cancelled));
        drop(gatekeeper.release);
        assert!(engine.drain(SAFETY));
        assert!(client.answers.try_recv().is_err());
        ticket.cancel();
    }

    fn unloading_rejects_what_waits_and_lets_run_what_runs(shards: usize) {
        let (engine, client, gatekeeper) = busy(served(1, LONG), shards);
        client.submit(1, 1, None).unwrap();
        engine.unload(client.model).unwrap();
        assert_eq!(client.next_failure(), (1, Failure::Unloaded));
        assert_eq!(client.submit(2, 1, None).err(), Some(Failure::NotLoaded));
        assert!(engine.model_metrics(client.model).is_none());
        // The id is not reassigned while the old model runs.
        let other = engine.load(served(1, LONG)).unwrap();
        assert_ne!(other, client.model);
        drop(gatekeeper.release);
        assert_eq!(data(client.next().1), [0, 2, 4, 6]);
    }

    fn a_drain_answers_the_rest_when_its_time_is_over(shards: usize) {
        let (engine, client, gatekeeper) = busy(served(1, LONG), shards);
        client.submit(1, 1, None).unwrap();
        assert!(!engine.drain(SOON));
        assert_eq!(client.submit(2, 1, None).err(), Some(Failure::ShuttingDown));
        for _ in 0..2 {
            assert_eq!(client.next().1.unwrap_err(), Failure::ShuttingDown);
        }
        assert!(engine.drain(Duration::ZERO) && engine.unanswered() == 0);
        drop(gatekeeper);
    }

    fn dropping_the_engine_answers_everyone(shards: usize) {
        let (engine, client, gatekeeper) = busy(served(1, LONG), shards);
        client.submit(1, 1, None).unwrap();
        let Client { engine: second, sender, answers, .. } = client;
        // The last handle waits for the device, but no thread waits for the handle.
        let dropping = std::thread::spawn(move || drop((engine, second, sender)));
        for _ in 0..2 {
            let (_, answer) = answers.recv_timeout(SAFETY).unwrap();
            assert_eq!(answer.unwrap_err(), Failure::ShuttingDown);
        }
        drop(gatekeeper);
        dropping.join().unwrap();
        assert!(answers.recv().is_err());
    }

    fn queued_bytes_and_each_models_queue_are_bounded(shards: usize) {
        let (executor, gatekeeper) = Doubling::gated();
        let mut config = config(&executor, 1, limits(16), shards);
        config.max_queued_bytes = 10;
        let engine = Engine::start(config).unwrap();
        // Dropped before the engine, which waits for its device: a failing test fails, rather than
        // hangs.
        let gatekeeper = gatekeeper;
        let client = Client::new(&engine, engine.load(ServedModel { max_queue: Some(3), ..served(1, LONG) }).unwrap());
        client.submit(0, 4, None).unwrap();
        client.submit(1, 4, None).unwrap();
        assert!(matches!(client.submit(2, 3, None), Err(Failure::QueueFull { bound: 2, .. })));
        client.submit(3, 1, None).unwrap();
        assert!(matches!(client.submit(4, 1, None), Err(Failure::QueueFull { bound: 3, .. })));
        drop(gatekeeper);
        (0..3).for_each(|_| assert!(client.next().1.is_ok()));
    }
}
