//! Models that accept text: token ids as inputs, and a tokenizer beside the model.
//!
//! Their requests vary in length, so length dimensions and padding values are taken from the
//! tokenizer unless configured. A tokenizer beside a model with other inputs is ignored, unless
//! `[text]` is present.

use super::model_files::{ModelFiles, PYTHON_FILE};
use super::plan::{LoadPlan, LoadTarget};
use ripieno_executor::{InputLength, LengthDims, LoadedModel, OutputLength};
use ripieno_model::TensorSpec;
use ripieno_onnx::{Declared, OnnxFile};
use ripieno_text::{TextModel, TextReader, TokenInputs};
use std::path::{Path, PathBuf};

/// Text support of a model before it is loaded.
pub(super) struct PreparedText {
    reader: TextReader,
    max_length: usize,
}

/// Returns the folders that may contain tokenizer files: the ONNX file's folder, and its parent if
/// it is a version folder.
pub(super) fn folders(found: &ModelFiles) -> Vec<PathBuf> {
    let beside = found.model.parent().map(Path::to_owned);
    let version = beside.iter().filter(|folder| folder.ends_with(&found.version));
    let above = version.filter_map(|folder| folder.parent()).map(Path::to_owned).collect::<Vec<_>>();
    beside.into_iter().chain(above).collect()
}

/// Reads the tokenizer and adds the resulting lengths to the plan. The second value is the reason
/// for which a tokenizer is not used.
pub(super) fn prepare(
    found: &ModelFiles,
    plan: &mut LoadPlan,
    target: &LoadTarget,
) -> Result<(Option<PreparedText>, Option<String>), String> {
    let (asked, folders) = (plan.config.text.is_some(), folders(found));
    let files = TextReader::files(&folders);
    if target.emulates() || plan.is_python || plan.config.cells.is_some() || files.is_empty() {
        return match asked {
            true if plan.is_python => {
                Err(format!("{}: [text] is for ONNX models; read texts in {PYTHON_FILE}", plan.config.file))
            }
            true if !target.emulates() => Err(format!(
                "{}: [text] needs a tokenizer.json in the model's folder, and a model that is not made of cells",
                plan.config.file
            )),
            _ => Ok((None, aside(plan, target, &files))),
        };
    }
    let (inputs, outputs) = declared(plan)?;
    let Some(token_inputs) = TokenInputs::from_specs(&inputs) else {
        return unlike_tokens(plan, &inputs);
    };
    for file in &files {
        target.check_contained(found, file)?;
    }
    let reader = match TextReader::read(&folders) {
        Ok(Some(reader)) => reader,
        Err(cause) if asked => return Err(cause),
        Err(cause) => return Ok((None, Some(unused(&cause)))),
        Ok(None) => return Ok((None, None)),
    };
    let asked_for = plan.config.text.as_ref().and_then(|text| text.max_length);
    let max_length = asked_for.or(plan.config.lengths.as_ref().map(|lengths| lengths.max_length as usize));
    let max_length = max_length.unwrap_or_else(|| reader.max_length());
    if plan.config.lengths.is_none() && !plan.source.unbatched {
        let dims = lengths(&token_inputs, &inputs, &outputs, reader.pad_id());
        if !dims.inputs.is_empty() {
            (plan.source.max_length, plan.source.lengths) = (max_length as u32, dims);
        }
    }
    Ok((Some(PreparedText { reader, max_length }), None))
}

/// Returns the reason for which the tokenizer of a model without token inputs of its own is left
/// aside; `None` if it has no tokenizer.
fn aside(plan: &LoadPlan, target: &LoadTarget, files: &[PathBuf]) -> Option<String> {
    let cause = match target.emulates() {
        true => "an emulated model computes no values that texts could be answered with",
        false if plan.config.cells.is_some() => "a model that is served in cells reads no texts",
        false => return None,
    };
    (!files.is_empty()).then(|| cause.to_owned())
}

/// Returns the reason for which a model with these inputs reads no text: an error if `[text]` asks
/// for texts.
fn unlike_tokens(plan: &LoadPlan, inputs: &[TensorSpec]) -> Result<(Option<PreparedText>, Option<String>), String> {
    let names: Vec<&str> = inputs.iter().map(|spec| spec.name.as_str()).collect();
    let cause = format!(
        "needs the inputs input_ids and, if any, attention_mask, token_type_ids and position_ids, of INT64 or INT32 \
         and two dimensions; the model takes {}",
        names.join(", ")
    );
    match plan.config.text.is_some() {
        true => Err(format!("{}: [text] {cause}", plan.config.file)),
        // A model without token ids is no text model, so its log has nothing to say.
        false if !names.contains(&"input_ids") => Ok((None, Some(format!("text {cause}")))),
        false => Ok((None, Some(unused(&format!("text {cause}"))))),
    }
}

/// Returns the inputs of the first block's file and the outputs of the last one's.
fn declared(plan: &LoadPlan) -> Result<(Vec<TensorSpec>, Vec<TensorSpec>), String> {
    let files = plan.files();
    let read = |file: Option<&PathBuf>| {
        let file = file.ok_or_else(|| format!("{}: the model has no file", plan.config.file))?;
        OnnxFile::read(file).and_then(|file| Declared::of(&file)).map_err(|error| error.to_string())
    };
    let first = read(files.first())?;
    let outputs = if files.len() > 1 { read(files.last())?.outputs } else { first.outputs };
    Ok((first.inputs, outputs))
}

/// Returns the tensor dimensions that hold the text length.
fn lengths(token_inputs: &TokenInputs, inputs: &[TensorSpec], outputs: &[TensorSpec], pad_id: u32) -> LengthDims {
    let is_open = |spec: &&TensorSpec| spec.shape.first() == Some(&-1) && spec.shape.get(1) == Some(&-1);
    let pad = |name: &str| if name == token_inputs.ids { f64::from(pad_id) } else { 0.0 };
    let input = |spec: &TensorSpec| InputLength { tensor: spec.name.clone(), dim: 1, pad: pad(&spec.name) };
    let output = |spec: &TensorSpec| OutputLength::new(&spec.name, 1);
    LengthDims {
        inputs: inputs.iter().filter(is_open).map(input).collect(),
        outputs: outputs.iter().filter(is_open).map(output).collect(),
    }
}

impl PreparedText {
    /// Matches the tokenizer with the loaded model. Without the section `[text]`, a mismatch is a
    /// warning and disables text support.
    pub(super) fn fit(
        self,
        plan: &LoadPlan,
        loaded: &dyn LoadedModel,
    ) -> Result<(Option<TextModel>, Option<String>), String> {
        let seen = |specs: &[TensorSpec]| -> Vec<TensorSpec> {
            let shape =
                |spec: &TensorSpec| if loaded.batched() { spec.shape.clone() } else { spec.shape[1..].to_vec() };
            specs.iter().map(|spec| TensorSpec { shape: shape(spec), ..spec.clone() }).collect()
        };
        let config = plan.config.text.as_ref().map(|text| text.config.clone());
        let (inputs, outputs) = (seen(loaded.inputs()), seen(loaded.outputs()));
        match (self.reader.fit(&config.clone().unwrap_or_default(), self.max_length, &inputs, &outputs), config) {
            (Ok(text), _) => Ok((Some(text), None)),
            (Err(cause), Some(_)) => Err(format!("{}: {cause}", plan.config.file)),
            (Err(cause), None) => Ok((None, Some(unused(&cause)))),
        }
    }
}

/// Beginning of the warning about a tokenizer that does not fit its model.
const UNUSED: &str = "its tokenizer is not used: ";

fn unused(cause: &str) -> String {
    format!("{UNUSED}{cause}")
}

/// Returns the reason for which a model reads no text, if it is worth a warning.
pub(super) fn warning(reason: Option<&String>) -> Option<String> {
    reason.filter(|reason| reason.starts_with(UNUSED)).cloned()
}
