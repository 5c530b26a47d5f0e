//! A live run with threads, recorded, replays to the same decisions.

use crate::common::device::Doubling;
use crate::common::fifo::Fifo;
use crate::common::{Client, config, eager, in_one_piece_and_in_shards, limits, policy, served};
use ripieno_policies::ServedPolicy;
use ripieno_runtime::{Engine, Header, Recording, ReplayError, replay};
use ripieno_sched::{Outbox, Request, Scheduler, TaskDone};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Records a run of several threads into a file of this name.
fn recorded(name: &str, shards: usize) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{shards}-{name}"));
    let mut config = config(&Doubling::failing(13), 2, limits(64), shards);
    config.record =
        Some(Recording { path: path.clone(), policy: "fifo".to_owned(), options: serde_json::json!({ "knob": 1 }) });
    let engine = Engine::start(config).unwrap();
    let models = [1, 2].map(|blocks| engine.load(served(blocks, Duration::from_secs(600))).unwrap());
    std::thread::scope(|scope| {
        for at in 0..3 {
            let (engine, model) = (&engine, models[at % 2]);
            scope.spawn(move || {
                let client = Client::new(engine, model);
                for round in 0..40 {
                    let accepted = (0..8).filter(|at| submit(&client, round * 8 + at)).count();
                    (0..accepted).for_each(|_| drop(client.next()));
                }
            });
        }
    });
    let guest = engine.load(served(1, Duration::from_secs(600))).unwrap();
    engine.unload(guest).unwrap();
    assert!(engine.drain(crate::common::SAFETY));
    engine.shutdown();
    path
}

/// Some expire, some are cancelled.
fn submit(client: &Client, number: usize) -> bool {
    let timeout = number.is_multiple_of(5).then_some(Duration::from_micros(50));
    let ticket = client.submit(number, 1 + number % 6, timeout);
    if let Ok(ticket) = &ticket
        && number.is_multiple_of(7)
    {
        ticket.cancel();
    }
    ticket.is_ok()
}

fn built(header: &Header) -> Result<ServedPolicy, String> {
    assert_eq!((header.policy.as_str(), header.options["knob"].as_i64()), ("fifo", Some(1)));
    match header.shards {
        1 => Ok(Box::new(Fifo::new(&header.setup)).into()),
        shards => Ok(policy("eager", &header.setup, &eager(), shards)),
    }
}

/// First in, first out, but it omits one decision, when the first request has arrived.
struct Forgetful {
    inner: Fifo,
    arrived: bool,
    forgot: bool,
}

impl Scheduler for Forgetful {
    fn on_request(&mut self, now: ripieno_base::Time, request: &Request) {
        self.arrived = true;
        self.inner.on_request(now, request);
    }
    fn on_task_done(&mut self, now: ripieno_base::Time, done: &TaskDone<'_>) {
        self.inner.on_task_done(now, done);
    }
    fn on_control(&mut self, now: ripieno_base::Time, control: ripieno_sched::Control) {
        self.inner.on_control(now, control);
    }
    fn settle(&mut self, now: ripieno_base::Time, out: &mut Outbox) {
        if self.arrived && !std::mem::replace(&mut self.forgot, self.arrived) {
            return;
        }
        self.inner.settle(now, out);
    }
    fn next_wakeup(&self) -> ripieno_base::Time {
        self.inner.next_wakeup()
    }
    fn members(&self, task: ripieno_base::TaskId) -> &[ripieno_base::RequestSlot] {
        self.inner.members(task)
    }
}

in_one_piece_and_in_shards! {
    fn a_live_run_replays_to_the_same_decisions(shards: usize) {
        let replayed = replay(&recorded("same.jsonl", shards), built).unwrap();
        assert_eq!(replayed.difference, None);
        assert!(
            !replayed.truncated && replayed.settles > 100 && replayed.inputs > replayed.settles / 2,
            "{replayed:?}"
        );
    }
}

#[test]
fn a_compressed_recording_replays_and_may_be_cut_off() {
    let path = recorded("packed.jsonl.gz", 1);
    let whole = replay(&path, built).unwrap();
    assert!(whole.difference.is_none() && !whole.truncated && whole.settles > 100, "{whole:?}");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[..2], [0x1f, 0x8b]);
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let half = replay(&path, built).unwrap();
    assert!(half.truncated && half.difference.is_none() && (1..whole.settles).contains(&half.settles), "{half:?}");
}

#[test]
fn the_first_difference_is_named() {
    let path = recorded("different.jsonl", 1);
    let forgetful = |header: &Header| -> Result<Box<dyn Scheduler>, String> {
        let inner = Fifo::new(&header.setup);
        Ok(Box::new(Forgetful { inner, arrived: false, forgot: false }))
    };
    let replayed = replay(&path, forgetful).unwrap();
    let difference = replayed.difference.expect("a difference");
    assert_ne!(difference.recorded, difference.decided);
    let text = std::fs::read_to_string(&path).unwrap();
    let line = text.lines().nth(difference.line - 1).unwrap();
    assert!(line.contains("Settle") && line.contains(&difference.now.0.to_string()));
}

in_one_piece_and_in_shards! {
    fn half_a_line_at_the_end_is_a_truncated_recording_and_nonsense_is_named(shards: usize) {
        let path = recorded("half.jsonl", shards);
        let text = std::fs::read_to_string(&path).unwrap();
        let half = text.rfind("{\"end\"").unwrap() - 5;
        std::fs::write(&path, &text[..half]).unwrap();
        let replayed = replay(&path, built).unwrap();
        assert!(replayed.truncated && replayed.difference.is_none() && replayed.settles > 0);

        std::fs::write(&path, format!("{}\nnonsense\n", text.lines().next().unwrap())).unwrap();
        let error = replay(&path, built).unwrap_err();
        assert!(matches!(error, ReplayError::Line { line: 2, .. }), "{error}");
        assert!(error.to_string().contains("half.jsonl:2"));
    }
}
