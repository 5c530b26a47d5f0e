//! Memory that a large batch leaves behind is given back once it is no longer used.

use crate::common::*;
use ripieno_executor::*;
use std::time::Instant;

/// Bytes of the tensors that [`large`] makes inside the model.
const INSIDE: usize = 2 * 64 * 4 * LENGTH * MAX_BATCH;
const LENGTH: usize = 20_000;

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn small() -> Tensor {
    fp32("x", &[1, 2], &[0.0, 0.0])
}

fn large() -> Tensor {
    fp32("x", &[MAX_BATCH as i64, LENGTH as i64], &vec![0.0; MAX_BATCH * LENGTH])
}

/// Runs a large batch, waits until its memory is given back, and checks that the model still
/// answers. `beside` runs while the lane waits.
fn give_back(engine: &dyn Executor, beside: impl Fn(&Stand)) {
    let stand = Stand::new(engine, &files(&["widened"]));
    assert_eq!(floats(&stand.ask(small()).unwrap()[0]), [1.0]);
    let before = resident();
    assert_eq!(floats(&stand.ask(large()).unwrap()[0]), [1.0; MAX_BATCH]);
    let since = Instant::now();
    // Other tests of this process use some memory, too.
    while resident() > before + INSIDE / 4 {
        assert!(since.elapsed() < PATIENCE, "{} MiB are still kept", (resident() - before) >> 20);
        beside(&stand);
        std::thread::yield_now();
    }
    assert_eq!(floats(&stand.ask(large()).unwrap()[0]), [1.0; MAX_BATCH]);
    assert_eq!(floats(&stand.ask(small()).unwrap()[0]), [1.0]);
}

#[test]
fn an_idle_device_gives_back_what_a_large_batch_left() {
    for engine in [onnxruntime().engine, cpu().engine] {
        give_back(&*engine, |_| ());
    }
}

#[test]
fn a_device_that_runs_small_batches_gives_back_what_a_large_one_left() {
    give_back(&*onnxruntime().engine, |stand| drop(stand.ask(small()).unwrap()));
}

#[test]
fn what_an_engine_process_keeps_is_counted_and_given_back() {
    let stand = Stand::new(&*isolated_onnxruntime_of_two_lanes().engine, &files(&["widened"]));
    stand.ask(small()).unwrap();
    assert_eq!(floats(&stand.ask(large()).unwrap()[0]), [1.0; MAX_BATCH]);
    let kept = kept_bytes();
    assert!(kept > INSIDE / 2, "the process keeps its arena: {} MiB", kept >> 20);
    let since = Instant::now();
    while kept_bytes() > INSIDE / 4 {
        assert!(since.elapsed() < PATIENCE, "{} MiB are still counted", kept_bytes() >> 20);
        std::thread::yield_now();
    }
    assert_eq!(floats(&stand.ask(large()).unwrap()[0]), [1.0; MAX_BATCH]);
}
