//! `ripieno migrate`: explains the config.pbtxt of each model of a Triton repository.

use crate::output::{self, print_json};
use anyhow::bail;
use clap::Args;
use ripieno_report::Format;
use ripieno_repository::triton::{FieldFinding, FieldOutcome, Migration, migrate};
use std::fmt::Write;
use std::path::PathBuf;

/// Explain the effect of each field of the config.pbtxt files of a Triton repository.
///
/// `serve` reads them directly; nothing has to be written. Each field is honoured (as in Triton),
/// mapped (to a key of model.toml), or not needed (the server determines it by itself). Or it is
/// without effect (the log warns of it), or refused (the model is not served; the text says what to
/// do). Exits with 1 if a model is refused.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  ripieno migrate ./model_repository\n  ripieno migrate ./model_repository --write")]
pub(crate) struct MigrateArgs {
    /// The model repository, or the folder of one model.
    #[arg(value_name = "REPOSITORY")]
    repository: PathBuf,

    /// Only this model.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Write the model.toml of each model that is not refused beside its config.pbtxt, over which
    /// it takes precedence.
    #[arg(long)]
    write: bool,

    /// Replace an existing model.toml, with --write.
    #[arg(long, requires = "write")]
    force: bool,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &MigrateArgs) -> anyhow::Result<()> {
    let mut models = migrate(&args.repository).map_err(anyhow::Error::msg)?;
    models.retain(|model| args.model.as_ref().is_none_or(|name| model.model == *name));
    if models.is_empty() {
        let wanted = args.model.as_ref().map_or("no model".to_owned(), |name| format!("no model {name:?}"));
        bail!("{} holds {wanted}", args.repository.display());
    }
    if args.format == Format::Json {
        print_json(&serde_json::json!({ "models": models }))?;
    } else {
        output::print(text(&models))?;
    }
    if args.write {
        write(&models, args)?;
    }
    match models.iter().filter(|model| model.error.is_some()).count() {
        0 => Ok(()),
        refused => bail!("{refused} of {} models are refused; it says above why", models.len()),
    }
}

fn write(models: &[Migration], args: &MigrateArgs) -> anyhow::Result<()> {
    for model in models.iter().filter(|model| model.model_toml.is_some()) {
        model.write(args.force).map_err(anyhow::Error::msg)?;
        if args.format == Format::Table {
            output::print(format!("written: {}", model.target.display()))?;
        }
    }
    Ok(())
}

/// Width up to which columns are aligned.
const WIDEST: usize = 64;

/// Returns a line for each field, and the result for the model.
fn text(models: &[Migration]) -> String {
    let mut text = String::new();
    for model in models {
        let Some(file) = &model.file else {
            match &model.error {
                Some(error) => _ = writeln!(text, "{}: refused: {error}\n", model.model),
                None => _ = writeln!(text, "{}: has no config.pbtxt, so there is nothing to migrate\n", model.model),
            }
            continue;
        };
        let _ = writeln!(text, "{file}");
        let said = |field: &FieldFinding| format!("{} = {}", field.field, field.value);
        let width = model.fields.iter().map(|field| said(field).chars().count()).max().unwrap_or(0).min(WIDEST);
        for field in &model.fields {
            let (said, outcome) = (said(field), field.outcome.name());
            let _ = writeln!(text, "{:>4}  {said:width$}  {outcome:10}  {}", field.line, field.becomes);
        }
        match &model.error {
            Some(error) => _ = writeln!(text, "{}: refused: {error}\n", model.model),
            None => _ = writeln!(text, "{}: served; {}\n", model.model, counts(&model.fields)),
        }
    }
    text.trim_end().to_owned()
}

fn counts(fields: &[FieldFinding]) -> String {
    let of = |outcome| fields.iter().filter(|field| field.outcome == outcome).count();
    let all = [FieldOutcome::Honoured, FieldOutcome::Mapped, FieldOutcome::NotNeeded, FieldOutcome::WithoutEffect];
    let counted: Vec<String> = all.iter().map(|&outcome| format!("{} {}", of(outcome), outcome.name())).collect();
    counted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_line_and_each_model_its_end() {
        let finding = |line, outcome| FieldFinding {
            line,
            field: "max_batch_size".to_owned(),
            value: "8".to_owned(),
            outcome,
            becomes: "max_batch = 8".to_owned(),
        };
        let model = |name: &str, fields, error: Option<&str>| Migration {
            model: name.to_owned(),
            file: Some(format!("{name}/config.pbtxt")),
            fields,
            model_toml: None,
            target: PathBuf::new(),
            error: error.map(str::to_owned),
        };
        let models = [
            model("a", vec![finding(3, FieldOutcome::Mapped), finding(4, FieldOutcome::WithoutEffect)], None),
            model("b", Vec::new(), Some("b/config.pbtxt:1: no")),
            Migration { file: None, ..model("c", Vec::new(), None) },
        ];
        let text = text(&models);
        assert!(text.contains("a: served; 0 honoured, 1 mapped, 0 not needed, 1 no effect"), "{text}");
        assert!(text.contains("b: refused: b/config.pbtxt:1: no") && text.contains("c: has no config.pbtxt"), "{text}");
        assert!(text.contains("   3  max_batch_size = 8  mapped      max_batch = 8\n"), "{text}");
    }
}
