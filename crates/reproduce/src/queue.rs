//! Runs jobs on all cores and keeps their answers.
//!
//! An answer is filed under a hash of the question, the scenario with its seed and policy, and the running program
//! itself: after any change of the code the runs are done anew, since a stale number would look like a fresh one.

use super::job::{Answer, Job};
use super::parallel;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The worker threads and their store.
#[derive(Debug)]
pub struct Queue {
    cache: PathBuf,
    jobs: usize,
    /// The hash of this program.
    program: String,
    /// What the progress bar says in front.
    heading: Mutex<String>,
}

/// A kept answer, with its scenario for whoever wants to run it alone.
#[derive(Serialize, Deserialize)]
struct Kept {
    question: String,
    scenario: String,
    answer: Answer,
}

impl Queue {
    /// Keeps answers in the folder `cache`, which is made, and runs so many jobs at a time.
    pub fn new(cache: PathBuf, jobs: usize) -> anyhow::Result<Queue> {
        std::fs::create_dir_all(&cache).with_context(|| format!("cannot make the folder {}", cache.display()))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let bytes = std::fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
        Ok(Queue { cache, jobs, program: hex(&Sha256::digest(bytes)), heading: Mutex::default() })
    }

    /// The hash of the running program, which tells the answers of one version from those of another.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// What the progress bar says in front from now on.
    pub(super) fn head(&self, heading: String) {
        *self.heading.lock().unwrap_or_else(PoisonError::into_inner) = heading;
    }

    /// The answers, in the order of the jobs. The first error ends all.
    pub(super) fn answers(&self, jobs: &[Job]) -> anyhow::Result<Vec<Answer>> {
        self.each(jobs, |job| self.answer(job))
    }

    /// What `run` makes of each of `inputs`, in their order, on all threads. The first error ends all.
    pub(super) fn each<I: Sync, O: Send>(
        &self,
        inputs: &[I],
        run: impl Fn(&I) -> anyhow::Result<O> + Sync,
    ) -> anyhow::Result<Vec<O>> {
        let style = ProgressStyle::with_template("{msg}{bar:40} {pos}/{len} runs, {eta} left")?;
        let heading = self.heading.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let bar = ProgressBar::new(inputs.len() as u64).with_style(style).with_message(heading);
        let outputs = parallel::each(inputs, self.jobs, |input| {
            let output = run(input);
            bar.inc(1);
            output
        });
        bar.finish_and_clear();
        outputs
    }

    fn answer(&self, job: &Job) -> anyhow::Result<Answer> {
        let (question, scenario) = (format!("{:?}", job.question), job.scenario.clone());
        let key = Sha256::digest(format!("{}\n{question}\n{scenario}", self.program));
        let file = self.cache.join(format!("{}.json", hex(&key[..16])));
        if let Some(kept) = read(&file) {
            return Ok(kept.answer);
        }
        let answer = job.answer().with_context(|| format!("the simulation of {} failed", job.policy))?;
        let kept = Kept { question, scenario, answer };
        write(&file, &kept).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(kept.answer)
    }
}

/// A file that is missing or cannot be read is no answer; the run is done again.
fn read(file: &Path) -> Option<Kept> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// A file appears whole or not at all, even if the program is stopped meanwhile.
fn write(file: &Path, kept: &Kept) -> anyhow::Result<()> {
    let unfinished = file.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&unfinished, serde_json::to_vec_pretty(kept)?)?;
    Ok(std::fs::rename(&unfinished, file)?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
