//! A load on the scheduler's own threads, and what the benchmarks of these threads share.
//!
//! `cargo bench -p ripieno-stress --bench scheduler -- --help` and `--bench wakeup -- --help` tell
//! what they measure.

mod scheduler;

pub use scheduler::{SchedulerStress, StressReport};

use clap::Parser;
use std::ffi::OsString;

/// Parses the arguments of a benchmark; cargo adds `--bench` to them.
pub fn arguments<T: Parser>() -> T {
    let words: Vec<OsString> = std::env::args_os().filter(|word| word != "--bench").collect();
    T::parse_from(words)
}

/// Prints a value as one line of JSON.
pub fn print_json(value: &serde_json::Value) {
    println!("{value}");
}
