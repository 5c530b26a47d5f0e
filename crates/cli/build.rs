//! Sets the commit that the binary was built from: the variable `RIPIENO_COMMIT`, or git's answer
//! in a release build. A development build is not rebuilt for each commit.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RIPIENO_COMMIT");
    let given = std::env::var("RIPIENO_COMMIT").ok().filter(|commit| !commit.is_empty());
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = given.or_else(|| release.then(from_git).flatten());
    println!("cargo::rustc-env=RIPIENO_BUILT_FROM={}", commit.as_deref().unwrap_or("development build"));
}

/// Returns the commit; `None` outside of a git repository, as in a source archive.
fn from_git() -> Option<String> {
    let head = git(&["rev-parse", "--git-path", "HEAD"])?;
    println!("cargo::rerun-if-changed={head}");
    if let Some(branch) =
        git(&["symbolic-ref", "--quiet", "HEAD"]).and_then(|branch| git(&["rev-parse", "--git-path", &branch]))
    {
        println!("cargo::rerun-if-changed={branch}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
