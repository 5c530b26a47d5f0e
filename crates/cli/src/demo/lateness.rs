//! How late this machine is with what it is asked to do in time: a thread that sleeps for a millisecond again and again, and
//! looks how much longer that took.
//!
//! Policies are compared by milliseconds. A machine that others keep busy lets the emulated devices, the clients and the server
//! wait for a core by as much, and whichever policy then looks best is chance. That cannot be read from the policies' own
//! figures, which are late under overload on any machine; a thread that does nothing else is not.

use anyhow::anyhow;
use ripieno_base::Nanos;
use ripieno_report::Latencies;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(1);

/// The measurement, while it runs.
pub(super) struct Lateness {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Latencies>,
}

impl Lateness {
    pub(super) fn measure() -> anyhow::Result<Lateness> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let watch = move || {
            let mut late = Latencies::new();
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                thread::sleep(NAP);
                late.record(Nanos(begun.elapsed().saturating_sub(NAP).as_nanos() as i64));
            }
            late
        };
        let thread = thread::Builder::new().name("lateness".to_owned()).spawn(watch)?;
        Ok(Lateness { stop, thread })
    }

    /// What 99 of 100 naps were late by at most.
    pub(super) fn p99_ms(self) -> anyhow::Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let late = self.thread.join().map_err(|_| anyhow!("the thread that measures lateness has panicked"))?;
        Ok(late.p99_ms().unwrap_or(0.0))
    }
}
