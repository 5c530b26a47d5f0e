//! Chains with early exits and skips: read, checked against the files, and passed to the scheduler.

use super::*;
use crate::load::{Loader, Profiling};
use crate::scan::scan;

const WAYS: &str = r#"
max_batch = 4
[[block]]
name = "first"
file = "first.onnx"
exit_when = "confidence > 1"
exit_outputs = { y = "early" }
skip_when = "confidence <= -1"
skip_to = "third"
[[block]]
name = "second"
file = "second.onnx"
[[block]]
name = "third"
file = "third.onnx"
"#;

fn repository(toml: &str) -> TempRepository {
    let folder = TempRepository::new();
    folder.write("ways/model.toml", toml);
    for block in ["first", "second", "third"] {
        folder.write(&format!("ways/1/{block}.onnx"), onnx(&format!("way_{block}.onnx")));
    }
    folder
}

#[test]
fn a_chain_with_exits_is_measured_whole_and_the_scheduler_knows_its_skips() {
    let folder = repository(WAYS);
    let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
    let prepared = Loader::new(cpu(), silent()).prepare(&found, Profiling::IfMissing).unwrap();
    let model = prepared.served().unwrap().model;
    assert_eq!(model.blocks.iter().map(|block| block.skips).collect::<Vec<_>>(), [true, false, false]);
    let report = prepared.report(1);
    assert_eq!(report.outputs, ["y FP32 [-1, 3]"]);
    assert!(report.blocks.iter().all(|block| block.latency_ms.len() == 4));
    // An emulated device computes no values to compare.
    let latencies = WAYS.replace("file = ", "alpha_ms = 1\nbeta_ms = 1\nfile = ");
    let emulated = repository(&latencies);
    assert_eq!(one(inspect(emulated.path(), super::emulated())).error, None);
}

#[test]
fn conditions_that_the_files_do_not_bear_out_are_refused() {
    let cases = [
        (WAYS.replace("confidence > 1", "sure > 1"), "exit_when compares 'sure', which the block does not give"),
        (WAYS.replace("{ y = \"early\" }", "{ y = \"h\" }"), "output 'y' of an answer that ends here would be 'h'"),
        (WAYS.replace("exit_outputs = { y = \"early\" }\n", ""), "needs output 'y', but the block gives no 'y'"),
    ];
    for (toml, words) in cases {
        let error = one(inspect(repository(&toml).path(), cpu())).error.unwrap();
        assert!(error.starts_with("model 'ways': block 'first': ") || error.contains("block 'first'"), "{error}");
        assert!(error.contains(words), "{error}");
    }
}
