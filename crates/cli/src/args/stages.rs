//! `ripieno profile --stages auto`: the candidates, as a table for each model.

use ripieno_report::{Table, number};
use ripieno_repository::staging::{Staging, StagingTrial};
use std::fmt::Write;

/// Number of characters up to which a cut's tensors are shown.
const SHOWN: usize = 28;

/// Returns the candidates for each model, the chosen one and its benefit; then the models without
/// stages to try.
pub(crate) fn tables(stagings: &[Staging], errors: &[String]) -> String {
    let mut text = String::new();
    for staging in stagings {
        let _ = write!(text, "{}\n\n", table(staging));
    }
    for error in errors {
        let _ = writeln!(text, "not tried: {error}");
    }
    text.trim_end().to_owned()
}

fn table(staging: &Staging) -> String {
    let headers = [
        "",
        "stages",
        "cuts",
        "l(1) ms",
        "l(max) ms",
        "preferred batches",
        "over b=1",
        "over b=8",
        "expected ms",
        "cut behind",
    ];
    let mut table = Table::new(headers);
    for (at, trial) in staging.trials.iter().enumerate() {
        let preferred: Vec<String> = trial.stages.iter().map(|stage| stage.preferred.to_string()).collect();
        table.row([
            if at == staging.chosen { "*" } else { "" }.to_owned(),
            trial.stages.len().to_string(),
            trial.way.clone(),
            number(trial.latency_ms.0),
            number(trial.latency_ms.1),
            preferred.join(" "),
            number(trial.overhead.0),
            number(trial.overhead.1),
            number(trial.expected_ms),
            cuts(trial),
        ]);
    }
    let Staging { model, layers, max_batch, .. } = staging;
    format!("{model}: {layers} layers that can be parted, batches of up to {max_batch}\n{table}\n{}", verdict(staging))
}

fn cuts(trial: &StagingTrial) -> String {
    let short = |cut: &String| match cut.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &cut[..at]),
        None => cut.clone(),
    };
    trial.cuts.iter().map(short).collect::<Vec<_>>().join(" | ")
}

fn verdict(staging: &Staging) -> String {
    let Staging { model, preferred: (least, most), .. } = staging;
    let input = if staging.input_diversity { "requests differ in length" } else { "requests are all alike" };
    let operator = match staging.operator_diversity {
        true => format!("parts saturate the device at batches of {least} to {most}"),
        false => "all parts saturate the device at about the same batch".to_owned(),
    };
    let count = staging.choice().stages.len();
    let stages = if count == 1 { "1 stage, the whole".to_owned() } else { format!("{count} stages") };
    format!(
        "{model}: {stages} (*). Input: {input}. Operators: {operator}. Load: always. Policy of dva: {}.\n\
         granularity = \"stages\" with stages = \"auto\" in model.toml serves it so.",
        staging.policy()
    )
}
