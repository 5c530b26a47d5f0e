//! Runs the same work on many inputs, on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Returns the output of `run` for each of `inputs`, in their order, computed on several threads.
/// The first error ends all.
pub fn each<I: Sync, O: Send, E: Send>(
    inputs: &[I],
    threads: usize,
    run: impl Fn(&I) -> Result<O, E> + Sync,
) -> Result<Vec<O>, E> {
    let next = AtomicUsize::new(0);
    let outputs: Vec<_> = inputs.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((input, slot)) = inputs.get(index).zip(outputs.get(index)) else { break };
            let output = run(input);
            if output.is_err() {
                next.store(inputs.len(), Ordering::Relaxed);
            }
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(inputs.len()) {
            scope.spawn(work);
        }
    });
    // An error stops the others, so that without one there is an output for every input.
    outputs.into_iter().filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}
