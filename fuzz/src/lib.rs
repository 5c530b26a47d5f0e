//! Fuzz targets: one for each thing that strangers write, each a function of bytes.
//!
//! A target may refuse its input in any words; it must not panic, hang, or take more memory than its input excuses. It is run by
//! `tests/fuzz.rs` over the corpus and over mutations of it, on stable Rust, as a test: bounded by a count, or by
//! `RIPIENO_FUZZ_SECONDS` for each target. Mutations are seeded, so a failure names all that is needed to see it again. Rejected:
//! coverage-guided fuzzers, which need a nightly compiler; a corpus that reaches the branches stands in for the guide. The
//! targets are what `libfuzzer-sys` wants, should one be at hand.

mod mutator;
mod targets;

pub use mutator::Mutator;
pub use targets::{TARGETS, Target};
