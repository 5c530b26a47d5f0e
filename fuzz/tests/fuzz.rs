//! Runs every target over its corpus and over mutations of it: no panic, no hang, no more memory
//! than the input justifies.
//!
//! By default a fixed number of inputs from a fixed stream, so that the result is the same
//! everywhere. `RIPIENO_FUZZ_SECONDS=1800` runs for that long with a different stream each time. An
//! input that breaks a target is written to `found/TARGET/`; once fixed it moves into the corpus
//! and is run in every test.

use ripieno_fuzz::{Mutator, TARGETS, Target};
use std::any::Any;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Number of mutations without a time limit. They are the same at each run: finding new ones takes
/// time, not another number here.
const INPUTS: u64 = 5_000;
/// Time from which an input of at most 64 KiB counts as hanging, on any machine.
const LONGEST: Duration = Duration::from_secs(30);
/// Memory that a target may take per input byte, and a constant for an error of one line and a few
/// tables.
const BYTES_PER_BYTE: u64 = 300;
const BYTES_BESIDE: u64 = 1 << 20;

#[test]
fn http_json() {
    fuzz("http_json");
}

#[test]
fn binary() {
    fuzz("binary");
}

#[test]
fn generate() {
    fuzz("generate");
}

#[test]
fn grpc() {
    fuzz("grpc");
}

#[test]
fn model_toml() {
    fuzz("model_toml");
}

#[test]
fn config_pbtxt() {
    fuzz("config_pbtxt");
}

#[test]
fn onnx() {
    fuzz("onnx");
}

#[test]
fn tree() {
    fuzz("tree");
}

#[test]
fn plane() {
    fuzz("plane");
}

#[test]
fn texts() {
    fuzz("texts");
}

fn fuzz(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    let corpus = corpus(name);
    // Excludes one-time initialisation from the memory of an input.
    (target.run)(b"");
    for input in &corpus {
        check(target, input, "the corpus");
    }
    let seconds = std::env::var("RIPIENO_FUZZ_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = if end.is_some() { epoch } else { 1 };
    let mut mutator = Mutator::new(seed);
    let (mut count, mut accepted) = (0, 0);
    while end.map_or(count < INPUTS, |end| Instant::now() < end) {
        let input = mutator.next(&corpus, target.is_text);
        accepted += u64::from(check(target, &input, &format!("seed {seed}, input {count}")));
        count += 1;
    }
    println!("{name}: {count} inputs from a corpus of {}, {accepted} of them accepted", corpus.len());
    // If all mutations are refused, or none, the targets are not exercised.
    assert!(count < 1000 || accepted > count / 1000 && accepted < count, "{name}: {accepted} of {count} accepted");
}

/// Runs one input and keeps it if it breaks the target; returns true if the target accepts it.
fn check(target: &Target, input: &[u8], origin: &str) -> bool {
    let begun = Instant::now();
    let mut outcome = Ok(false);
    let memory = allocation_counter::measure(|| outcome = catch_unwind(|| (target.run)(input)));
    let allowed = BYTES_BESIDE + BYTES_PER_BYTE * input.len() as u64;
    let fault = if let Err(panic) = &outcome {
        format!("panicked: {}", message(panic.as_ref()))
    } else if begun.elapsed() > LONGEST {
        format!("took {:?}", begun.elapsed())
    } else if memory.bytes_max > allowed {
        format!("took {} bytes of memory for {} of input", memory.bytes_max, input.len())
    } else {
        return outcome.unwrap_or(false);
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("found").join(target.name);
    let file = folder.join(format!("{:016x}", hash(input)));
    fs::create_dir_all(&folder).and_then(|()| fs::write(&file, input)).expect("the input can be kept");
    panic!("{}: an input {fault} ({origin}); it is kept as {}", target.name, file.display());
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Returns the files of a target; the ONNX reader also has the models of other tests.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("corpus").join(name)];
    if name == "onnx" {
        folders.push(root.join("../crates/executor/tests/models"));
    }
    let mut files: Vec<PathBuf> = folders.iter().flat_map(|folder| list(folder)).collect();
    files.sort();
    assert!(!files.is_empty(), "{name} has no corpus");
    let read = |file: &PathBuf| fs::read(file).expect("a file of the corpus can be read");
    files.iter().map(read).filter(|input| input.len() <= 64 << 10).collect()
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry of the corpus").path()).filter(|path| path.is_file()).collect()
}

/// FNV-1a, so that an input has the same name everywhere.
fn hash(input: &[u8]) -> u64 {
    input.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
