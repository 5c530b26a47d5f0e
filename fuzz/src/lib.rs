//! Fuzz targets: one for each kind of untrusted input, each a function of bytes.
//!
//! A target may refuse its input with any message; it must not panic, hang, or take more memory
//! than its input justifies. `tests/fuzz.rs` runs it over the corpus and over mutations of it, on
//! stable Rust, as a test: bounded by a count, or by `RIPIENO_FUZZ_SECONDS` for each target.
//! Mutations are seeded, so a failure reports everything needed to reproduce it. Coverage-guided
//! fuzzers were rejected since they need a nightly compiler; a corpus that reaches the branches
//! takes the place of the guidance. The targets have the signature that `libfuzzer-sys` expects.

mod mutator;
mod targets;

pub use mutator::Mutator;
pub use targets::{TARGETS, Target};
