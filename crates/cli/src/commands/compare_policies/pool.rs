//! Threads that run simulations until all are done or the user interrupts them.

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_reproduce::each;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Threads, a progress bar, and the interrupt flag.
pub(super) struct Pool {
    jobs: usize,
    bar: ProgressBar,
    /// Number of runs of the current scenario.
    runs: AtomicUsize,
    stopped: Arc<AtomicBool>,
}

impl Pool {
    /// Returns a pool of `jobs` threads for this number of scenarios.
    pub(super) fn new(jobs: usize, scenarios: usize) -> anyhow::Result<Pool> {
        let style =
            ProgressStyle::with_template("  [{bar:30}] {pos}/{len} scenarios, {eta} left; {prefix}: {msg} runs")?;
        let bar = ProgressBar::new(scenarios as u64).with_style(style);
        Ok(Pool { jobs, bar, runs: AtomicUsize::new(0), stopped: Arc::default() })
    }

    /// Handles Ctrl-C from now on: it stops this pool instead of the process, so that finished
    /// results are printed.
    pub(super) fn catch_interrupt(&self) -> anyhow::Result<()> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().context("cannot start tokio")?;
        let stopped = Arc::clone(&self.stopped);
        // The thread waits as long as the process lives.
        std::thread::spawn(move || {
            if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                stopped.store(true, Ordering::Relaxed);
            }
        });
        Ok(())
    }

    /// Returns true after Ctrl-C.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Sets the current scenario.
    pub(super) fn at(&self, scenario: &str) {
        self.runs.store(0, Ordering::Relaxed);
        self.bar.set_message("0");
        self.bar.set_prefix(scenario.to_owned());
    }

    /// Counts the current scenario as done.
    pub(super) fn next(&self) {
        self.bar.inc(1);
    }

    /// Prints a line above the bar.
    pub(super) fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Returns the output of `run` for each of `inputs`, in their order. The first error ends all.
    pub(super) fn each<I: Sync, O: Send>(
        &self,
        inputs: &[I],
        run: impl Fn(&I) -> anyhow::Result<O> + Sync,
    ) -> anyhow::Result<Vec<O>> {
        each(inputs, self.jobs, |input| {
            let output = if self.is_stopped() { Err(anyhow!("interrupted")) } else { run(input) };
            let runs = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
            self.bar.set_message(runs.to_string());
            output
        })
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_come_in_the_order_of_the_inputs_and_an_interrupt_ends_all() {
        let pool = Pool::new(3, 1).unwrap();
        let inputs: Vec<u32> = (0..100).collect();
        let squares = pool.each(&inputs, |&input| Ok(input * input)).unwrap();
        assert!(squares.iter().zip(&inputs).all(|(square, input)| *square == input * input) && squares.len() == 100);
        let outcome = pool.each(&inputs, |&input| {
            pool.stopped.store(input == 50 || pool.is_stopped(), Ordering::Relaxed);
            Ok(())
        });
        assert_eq!((outcome.unwrap_err().to_string(), pool.is_stopped()), ("interrupted".to_owned(), true));
    }
}
