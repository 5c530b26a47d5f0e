//! Environment of engine processes, and the reason for which an interpreter cannot run models.

use std::path::Path;
use std::process::{Command, Stdio};

/// Environment variables passed to a process. Others may hold the server's secrets, which a model
/// must not see.
const PASSED_VARIABLES: [&str; 10] = [
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "ORT_DYLIB_PATH",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "RUST_BACKTRACE",
    "CUDA_VISIBLE_DEVICES",
];

/// Variables by which libraries learn how many threads they may use.
const THREAD_VARIABLES: [&str; 3] = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"];
/// Longest quoted output of an interpreter, in characters.
const MAX_QUOTED: usize = 300;

/// Clears the environment of a process but for the variables that it may see.
pub(super) fn set_environment(command: &mut Command) {
    command.env_clear();
    command.envs(PASSED_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    // A model that uses ONNX Runtime itself must not send reports over the network either.
    command.env("ORT_DISABLE_TELEMETRY", "1");
    // CUDA then numbers GPUs as nvidia-smi and the check of ordinals do.
    command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
}

/// Sets the number of threads that libraries in a process may use.
pub(super) fn set_threads(command: &mut Command, threads: u64) {
    command.envs(THREAD_VARIABLES.map(|name| (name, threads.max(1).to_string())));
}

/// Returns the reason for which an interpreter cannot run the worker; `None` if it can.
pub(super) fn diagnose_python(interpreter: &Path) -> Option<String> {
    let mut command = Command::new(interpreter);
    set_environment(&mut command);
    command.args(["-c", "import ripieno.worker"]).stdin(Stdio::null()).stdout(Stdio::null());
    let done = command.output().ok().filter(|done| !done.status.success())?;
    let text = String::from_utf8_lossy(&done.stderr);
    let last: String = text.lines().next_back().unwrap_or("it says nothing").chars().take(MAX_QUOTED).collect();
    let (shown, version) = (interpreter.display(), env!("CARGO_PKG_VERSION"));
    Some(format!(
        "{shown} cannot run ripieno.worker ({last}); install the package for it: {shown} -m pip install ripieno=={version}, or \
         name another interpreter as python = \"...\" in model.toml"
    ))
}
