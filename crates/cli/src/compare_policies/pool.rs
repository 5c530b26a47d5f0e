//! Threads that run simulations until all are done or somebody interrupts them.

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_reproduce::each;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Threads, a progress bar, and whether to stop.
pub(super) struct Pool {
    jobs: usize,
    bar: ProgressBar,
    /// Of the scenario in hand.
    runs: AtomicUsize,
    stopped: Arc<AtomicBool>,
}

impl Pool {
    /// So many threads for so many scenarios.
    pub(super) fn new(jobs: usize, scenarios: usize) -> anyhow::Result<Pool> {
        let style =
            ProgressStyle::with_template("  [{bar:30}] {pos}/{len} scenarios, {eta} left; {prefix}: {msg} runs")?;
        let bar = ProgressBar::new(scenarios as u64).with_style(style);
        Ok(Pool { jobs, bar, runs: AtomicUsize::new(0), stopped: Arc::default() })
    }

    /// From now on Ctrl-C stops this, and no longer the process: what is finished can be printed.
    pub(super) fn catch_interrupt(&self) -> anyhow::Result<()> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().context("cannot start tokio")?;
        let stopped = Arc::clone(&self.stopped);
        // It waits for as long as the process lives.
        std::thread::spawn(move || {
            if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                stopped.store(true, Ordering::Relaxed);
            }
        });
        Ok(())
    }

    /// Whether Ctrl-C came.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The scenario in hand.
    pub(super) fn at(&self, scenario: &str) {
        self.runs.store(0, Ordering::Relaxed);
        self.bar.set_message("0");
        self.bar.set_prefix(scenario.to_owned());
    }

    /// It is done.
    pub(super) fn next(&self) {
        self.bar.inc(1);
    }

    /// A line for people, above the bar.
    pub(super) fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// What `run` makes of each of `inputs`, in their order. The first error ends all.
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

    /// Takes the bar away.
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
