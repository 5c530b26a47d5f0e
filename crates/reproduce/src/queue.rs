//! Runs jobs on all cores and caches their answers.
//!
//! The key of an answer is a hash of the question, the scenario with its seed and policy, and the
//! running program itself: after any change of the code the runs are repeated, since a stale number
//! would look like a fresh one.

use super::job::{SimAnswer, SimJob};
use super::parallel;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The worker threads and their cache.
#[derive(Debug)]
pub struct JobQueue {
    cache: PathBuf,
    jobs: usize,
    /// Hash of this program.
    program: String,
    /// Prefix of the progress bar.
    heading: Mutex<String>,
}

/// A cached answer, with its scenario so that it can be run alone.
#[derive(Serialize, Deserialize)]
struct CachedAnswer {
    question: String,
    scenario: String,
    answer: SimAnswer,
}

impl JobQueue {
    /// Returns a queue that caches answers in the folder `cache`, which is created, and runs `jobs`
    /// jobs at a time.
    pub fn new(cache: PathBuf, jobs: usize) -> anyhow::Result<JobQueue> {
        std::fs::create_dir_all(&cache).with_context(|| format!("cannot make the folder {}", cache.display()))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let bytes = std::fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
        Ok(JobQueue { cache, jobs, program: hex(&Sha256::digest(bytes)), heading: Mutex::default() })
    }

    /// Returns the hash of the running program, which distinguishes the answers of different
    /// versions.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Sets the prefix of the progress bar.
    pub(super) fn head(&self, heading: String) {
        *self.heading.lock().unwrap_or_else(PoisonError::into_inner) = heading;
    }

    /// Returns the answers, in the order of the jobs. The first error ends all.
    pub(super) fn answers(&self, jobs: &[SimJob]) -> anyhow::Result<Vec<SimAnswer>> {
        self.each(jobs, |job| self.answer(job))
    }

    /// Returns the output of `run` for each of `inputs`, in their order, on all threads. The first
    /// error ends all.
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

    fn answer(&self, job: &SimJob) -> anyhow::Result<SimAnswer> {
        let (question, scenario) = (format!("{:?}", job.question), job.scenario.clone());
        let key = Sha256::digest(format!("{}\n{question}\n{scenario}", self.program));
        let file = self.cache.join(format!("{}.json", hex(&key[..16])));
        if let Some(kept) = read(&file) {
            return Ok(kept.answer);
        }
        let answer = job.answer().with_context(|| format!("the simulation of {} failed", job.policy))?;
        let kept = CachedAnswer { question, scenario, answer };
        write(&file, &kept).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(kept.answer)
    }
}

/// Reads a cached answer; `None` if the file is missing or unreadable.
fn read(file: &Path) -> Option<CachedAnswer> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Writes a file atomically.
fn write(file: &Path, kept: &CachedAnswer) -> anyhow::Result<()> {
    let unfinished = file.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&unfinished, serde_json::to_vec_pretty(kept)?)?;
    Ok(std::fs::rename(&unfinished, file)?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
