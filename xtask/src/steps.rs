//! Running other programs: each step is printed before it starts and timed when it ends, and a
//! failing one stops all.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

/// The repository's root. Cargo says where it runs us; where we were built may be another working
/// tree, if its build was copied.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = PathBuf::from(here);
    here.parent().expect("xtask lies in the root of the repository").to_path_buf()
}

/// The linter in place of the compiler, once `lint_builds` has set it.
static LINTER: OnceLock<PathBuf> = OnceLock::new();

/// The cargo that runs us, to run in the repository's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    build_alike(&mut command);
    command
}

/// Lets a program's cargo build as ours does: what is built is then there, and not built again.
pub(crate) fn build_alike(command: &mut Command) {
    if let Some(linter) = LINTER.get() {
        // As cargo clippy passes it on.
        command.env("RUSTC_WORKSPACE_WRAPPER", linter).env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings");
    }
}

/// From now on our crates are linted when they are built: a build for lints alone would compile all
/// dependencies a second time.
pub(crate) fn lint_builds() -> Result<()> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let toolchain = PathBuf::from(output(Command::new(compiler).args(["--print", "sysroot"]))?.trim());
    let linter = toolchain.join("bin/clippy-driver");
    if !linter.exists() {
        bail!("the toolchain has no {}; install it with rustup component add clippy", linter.display());
    }
    LINTER.get_or_init(|| linter);
    Ok(())
}

/// Runs a step with its output shown as it comes; an error if it fails.
pub(crate) fn step(what: &str, command: &mut Command) -> Result<()> {
    timed(what, || {
        let status = command.status().with_context(|| format!("{what}: cannot start {}", name(command)))?;
        if status.success() { Ok(()) } else { bail!("{what}: {} ended with {status}", name(command)) }
    })
}

/// Does what a step is to do.
pub(crate) fn timed(what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("\n=== {what}");
    let begun = Instant::now();
    work()?;
    eprintln!("=== {what}: done in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a program and returns what it prints; an error with its last words if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", name(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}: {}", name(command), output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} printed something that is not UTF-8", name(command)))
}

/// The program and its first arguments, for messages.
fn name(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args().take(3));
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_step_is_an_error() {
        assert!(step("no such command", &mut cargo(&["no-such-command"])).is_err());
        assert!(output(&mut cargo(&["no-such-command"])).is_err());
    }

    #[test]
    fn output_returns_what_was_printed() {
        assert!(output(&mut cargo(&["--version"])).unwrap().starts_with("cargo "));
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.toml").is_file() && root().join("xtask").is_dir());
    }
}
