//! Measures the machine's own lateness: a thread sleeps for a millisecond repeatedly, and measures
//! the excess.
//!
//! Policies are compared by milliseconds. On a busy machine the emulated devices, the clients and
//! the server wait for a core by about as much, and the comparison is chance. The policies' own
//! figures do not show that, since they are late under overload on any machine; a thread that does
//! nothing else does.

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

    /// Returns the 99th percentile of the lateness, in ms.
    pub(super) fn p99_ms(self) -> anyhow::Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let late = self.thread.join().map_err(|_| anyhow!("the thread that measures lateness has panicked"))?;
        Ok(late.p99_ms().unwrap_or(0.0))
    }
}
