//! `cargo xtask deny`: licences, bans and sources of the dependencies, and known advisories, as
//! `deny.toml` has it.
//!
//! cargo-deny is a program of its own and its advisories come over the network, so neither may be
//! there. What cannot be checked is skipped with a line that says so; whatever can be checked must
//! hold.

use crate::steps::{cargo, output, step};
use anyhow::Result;
use std::process::Command;

/// Checks what can be checked.
pub(crate) fn run() -> Result<()> {
    check(cargo)
}

fn check(cargo: impl Fn(&[&str]) -> Command) -> Result<()> {
    if output(&mut cargo(&["deny", "--version"])).is_err() {
        skip("dependencies", "cargo-deny is not installed; cargo install --locked cargo-deny");
        return Ok(());
    }
    step("dependencies", &mut cargo(&["deny", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))?;
    match output(&mut cargo(&["deny", "fetch", "db"])) {
        Ok(_) => step("advisories", &mut cargo(&["deny", "check", "--disable-fetch", "advisories"])),
        Err(cause) => {
            skip("advisories", &format!("their database cannot be had: {cause:#}"));
            Ok(())
        }
    }
}

fn skip(what: &str, why: &str) {
    eprintln!("\n=== {what}: skipped: {why}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Returns the commands that ran and the result, where cargo fails for those that contain
    /// `failing`.
    fn outcome(failing: &str) -> (Vec<String>, bool) {
        let ran = RefCell::new(Vec::new());
        let checked = check(|arguments| {
            let line = arguments.join(" ");
            let mut command = Command::new("sh");
            command.args(["-c", if line.contains(failing) { "exit 1" } else { "exit 0" }]);
            ran.borrow_mut().push(line);
            command
        });
        (ran.into_inner(), checked.is_ok())
    }

    #[test]
    fn what_cannot_be_had_is_skipped_and_what_is_wrong_is_not() {
        let (ran, ok) = outcome("nothing fails");
        assert!(ok && ran.len() == 4 && ran[3].ends_with("advisories"), "{ran:?}");
        let (ran, ok) = outcome("--version");
        assert_eq!((ran.len(), ok), (1, true), "no cargo-deny");
        let (ran, ok) = outcome("fetch");
        assert_eq!((ran.len(), ok), (3, true), "no database: licences, bans and sources are checked all the same");
        assert!(ran[1].ends_with("bans licenses sources"), "{ran:?}");
        assert!(!outcome("licenses").1);
        assert!(!outcome("check --disable-fetch").1);
    }
}
