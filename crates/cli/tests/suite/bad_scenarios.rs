//! Invalid scenarios, given to the binary as a user would: it ends soon, with exit code 1 and an
//! error that names the file and the key, and prints nothing on stdout that a program could take
//! for a result.

use std::path::PathBuf;
use std::process::{Command, Output};

const MODEL: &str = "[[model]]\nname = \"m\"\nslo_ms = 25.0\nalpha_ms = 1.0\nbeta_ms = 5.0\n";
const IMPOSSIBLE: &str = "[[model]]\nname = \"slow\"\nslo_ms = 5.0\nalpha_ms = 1.0\nbeta_ms = 5.0\n";

/// A folder of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("ripieno-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// Runs a command on a scenario with this text.
    fn run(&self, command: &str, text: &str, more: &[&str]) -> Output {
        let file = self.0.join("s.toml");
        std::fs::write(&file, text).unwrap();
        Command::new(env!("CARGO_BIN_EXE_ripieno")).arg(command).arg(file).args(more).output().unwrap()
    }

    /// Returns the error of a run that must fail.
    fn error(&self, command: &str, text: &str, more: &[&str]) -> String {
        let output = self.run(command, text, more);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command} {text}\n{error}");
        assert!(output.stdout.is_empty(), "{command} {text}\n{}", String::from_utf8_lossy(&output.stdout));
        error
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

const COMMANDS: [&str; 3] = ["simulate", "goodput", "plan"];

#[test]
fn a_folder_or_a_model_in_place_of_a_scenario_is_named_as_such() {
    let folder = Folder::new("no-scenarios");
    let model = folder.0.join("m.onnx");
    std::fs::write(&model, b"\x08\x08").unwrap();
    for command in ["simulate", "goodput"] {
        for (path, what) in [(&folder.0, "is a folder, not a scenario"), (&model, "is a model, not a scenario")] {
            let output = Command::new(env!("CARGO_BIN_EXE_ripieno")).arg(command).arg(path).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(1) && error.contains(what), "{command}: {error}");
            assert!(error.contains("docs/reference/scenarios.md"), "{command}: {error}");
        }
    }
}

#[test]
fn every_command_names_the_file_and_the_key() {
    let folder = Folder::new("bad-scenarios");
    let model = |keys: &str| format!("rate = 100.0\n[[model]]\nname = \"m\"\n{keys}\n");
    let cases = [
        (format!("rate = -1.0\n{MODEL}"), "rate = -1;"),
        (format!("rate = nan\n{MODEL}"), "rate = NaN;"),
        (format!("rate = 100.0\n[cluster]\ndevices = 0\n{MODEL}"), "cluster.devices = 0;"),
        (format!("rate = 100.0\npolicy = \"best\"\n{MODEL}"), "policy: unknown policy \"best\""),
        (format!("rate = 100.0\npolicy_options = {{ gathers = 1 }}\n{MODEL}"), "policy_options.gathers: "),
        (format!("rate = 100.0\npolicy_options = {{ gather = 1 }}\n{MODEL}"), "policy_options.gather: "),
        (format!("rate = 100.0\nrates = 1.0\n{MODEL}"), "unknown field `rates`"),
        (format!("rate = 100.0\nrates = 1.0\n{MODEL}"), "; did you mean `rate`?"),
        (model("slo = 25.0\nlatency_ms = [1.0]"), "; did you mean `slo_ms`?"),
        (format!("rate = 100.0\n{MODEL}share = nan\n"), "model \"m\": share = NaN;"),
        (model("slo_ms = nan\nlatency_ms = [1.0]"), "model \"m\": slo_ms = NaN;"),
        (model("slo_ms = 25.0\nlatency_ms = [nan]"), "model \"m\": latency_ms[0] = NaN;"),
        (model("slo_ms = 25.0\nalpha_ms = nan\nbeta_ms = 5.0"), "model \"m\": alpha_ms = NaN;"),
    ];
    for (text, key) in &cases {
        for command in COMMANDS {
            let error = folder.error(command, text, &[]);
            assert!(error.contains("s.toml: ") && error.contains(key), "{command} {text}\n{error}");
        }
    }
}

#[test]
fn flags_are_named_where_they_are_wrong() {
    let folder = Folder::new("bad-flags");
    let text = format!("rate = 100.0\nrequests = 1000\n{MODEL}");
    for command in COMMANDS {
        for (flag, problem) in
            [("--rate=-1", "--rate = -1;"), ("--rate=nan", "--rate = NaN;"), ("--rate=0", "--rate = 0;")]
        {
            let error = folder.error(command, &text, &[flag]);
            assert!(error.contains(problem), "{command} {flag}\n{error}");
        }
        let error = folder.error(command, &text, &["--option", "gathers=1"]);
        assert!(error.contains("policy_options.gathers: "), "{command}\n{error}");
        // Also if another policy replaces it.
        let unknown = format!("policy = \"best\"\n{text}");
        let error = folder.error(command, &unknown, &["--as-served"]);
        assert!(error.contains("s.toml: policy: unknown policy \"best\""), "{command}\n{error}");
        // An unknown policy is wrong usage: the known ones are in the help.
        assert_eq!(folder.run(command, &text, &["--policy", "best"]).status.code(), Some(2));
    }
}

/// An SLO below ℓ(1) is neither a load of 0 nor a run in which everything is dropped.
#[test]
fn an_impossible_model_is_reported_as_such() {
    let folder = Folder::new("impossible");
    let text = format!("rate = 100.0\nrequests = 1000\n{MODEL}{IMPOSSIBLE}");
    for command in ["simulate", "goodput"] {
        let error = folder.error(command, &text, &[]);
        let reason = "s.toml: model \"slow\": slo_ms = 5, but one request alone takes 6 ms";
        assert!(error.contains(reason) && error.contains("give at least 6"), "{command}\n{error}");
    }
    // Planning has a result for the other model, and still reports the error.
    let plan = folder.run("plan", &text, &["--format", "json"]);
    let stdout = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.status.code() == Some(1) && stdout.contains("\"impossible\":[{\"model\":\"slow\""), "{stdout}");
    assert!(String::from_utf8(plan.stderr).unwrap().contains("model \"slow\": slo_ms = 5"));
}

/// Late answers can be simulated on purpose. They are never goodput.
#[test]
fn late_answers_may_be_asked_for() {
    let folder = Folder::new("late");
    let text = format!("rate = 10.0\nrequests = 1000\n{IMPOSSIBLE}drop = \"never\"\n");
    let run = folder.run("simulate", &text, &["--format", "json"]);
    let stdout = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success() && stdout.contains("\"dropped\":0"), "{stdout}");
    assert!(folder.error("goodput", &text, &[]).contains("so no rate is low enough"));
}

/// These flags change a recording: with a scenario they would be ignored.
#[test]
fn what_changes_a_recording_is_refused_beside_a_scenario() {
    let folder = Folder::new("changes");
    let text = format!("rate = 10.0\nrequests = 10\n{MODEL}");
    for changes in [&["--devices", "3"][..], &["--slo-ms", "5"], &["--exact"]] {
        let error = folder.error("simulate", &text, changes);
        assert!(error.contains(changes[0]) && error.contains("changes a recording"), "{error}");
    }
}
