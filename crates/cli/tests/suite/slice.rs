//! `ripieno slice` leaves nothing behind when it fails, so that the next try finds an empty place.

use std::path::Path;
use std::process::{Command, Output};

fn slice(folder: &Path, device: &str) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models/mlp.onnx");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
    command.arg("slice").arg(model).args(["--stages", "2", "--estimate", "--device", device, "-o"]).arg(folder);
    command.output().unwrap()
}

#[test]
fn a_failed_slice_leaves_no_folder() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("failed-slice");
    let _ = std::fs::remove_dir_all(&folder);
    assert_eq!(slice(&folder, "emulated:1080ti").status.code(), Some(1));
    assert!(!folder.exists());
    let again = slice(&folder, "cpu");
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(folder.join("model.toml").is_file() && folder.join("1").is_dir());
    let third = slice(&folder, "cpu");
    assert!(String::from_utf8_lossy(&third.stderr).contains("holds a model already"), "it is kept");
    assert!(folder.join("model.toml").is_file());
}
