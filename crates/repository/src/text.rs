//! Models that read text: with a tokenizer beside them, and inputs that are token ids.
//!
//! Their requests differ in length, so the lengths and what fills them up follow from the tokenizer where the owner does not say
//! them. A tokenizer beside a model that takes something else says nothing, unless the owner asks for it.

use super::found::Found;
use super::plan::{Plan, Target};
use ripieno_executor::{InputLength, LengthDims, Loaded, OutputLength};
use ripieno_model::TensorSpec;
use ripieno_onnx::{Declared, OnnxFile};
use ripieno_text::{Roles, TextModel, TextReader};
use std::path::{Path, PathBuf};

/// What is known of a model that reads text, before it is loaded.
pub(super) struct Text {
    reader: TextReader,
    max_length: usize,
}

/// The folders in which the files of a tokenizer may lie: beside the weights, and above their version.
pub(super) fn folders(found: &Found) -> Vec<PathBuf> {
    let beside = found.model.parent().map(Path::to_owned);
    let version = beside.iter().filter(|folder| folder.ends_with(&found.version));
    let above = version.filter_map(|folder| folder.parent()).map(Path::to_owned).collect::<Vec<_>>();
    beside.into_iter().chain(above).collect()
}

/// Reads the tokenizer and adds to the plan what follows from it. The second says why a tokenizer is not used.
pub(super) fn prepare(
    found: &Found,
    plan: &mut Plan,
    target: &Target,
) -> Result<(Option<Text>, Option<String>), String> {
    let (asked, folders) = (plan.config.text.is_some(), folders(found));
    let files = TextReader::files(&folders);
    if target.emulates() || plan.config.cells.is_some() || files.is_empty() {
        return match asked {
            true if !target.emulates() => Err(format!(
                "{}: [text] needs a tokenizer.json in the model's folder, and a model that is not made of cells",
                plan.config.file
            )),
            _ => Ok((None, None)),
        };
    }
    let (inputs, outputs) = declared(plan)?;
    let Some(roles) = Roles::of(&inputs) else {
        return match asked {
            true => {
                let names: Vec<&str> = inputs.iter().map(|spec| spec.name.as_str()).collect();
                Err(format!(
                    "{}: [text] needs the inputs input_ids and, if any, attention_mask and token_type_ids; the model takes {}",
                    plan.config.file,
                    names.join(", ")
                ))
            }
            false => Ok((None, None)),
        };
    };
    for file in &files {
        target.check_border(found, file)?;
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
        let dims = lengths(&roles, &inputs, &outputs, reader.pad_id());
        if !dims.inputs.is_empty() {
            (plan.source.max_length, plan.source.lengths) = (max_length as u32, dims);
        }
    }
    Ok((Some(Text { reader, max_length }), None))
}

/// What the files of the first and the last block say that the model takes and gives.
fn declared(plan: &Plan) -> Result<(Vec<TensorSpec>, Vec<TensorSpec>), String> {
    let files = plan.files();
    let read = |file: Option<&PathBuf>| {
        let file = file.ok_or_else(|| format!("{}: the model has no file", plan.config.file))?;
        OnnxFile::read(file).and_then(|file| Declared::of(&file)).map_err(|error| error.to_string())
    };
    let first = read(files.first())?;
    let outputs = if files.len() > 1 { read(files.last())?.outputs } else { first.outputs };
    Ok((first.inputs, outputs))
}

/// Where the length of a text stands.
fn lengths(roles: &Roles, inputs: &[TensorSpec], outputs: &[TensorSpec], pad_id: u32) -> LengthDims {
    let is_open = |spec: &&TensorSpec| spec.shape.first() == Some(&-1) && spec.shape.get(1) == Some(&-1);
    let pad = |name: &str| if name == roles.ids { f64::from(pad_id) } else { 0.0 };
    let input = |spec: &TensorSpec| InputLength { tensor: spec.name.clone(), dim: 1, pad: pad(&spec.name) };
    let output = |spec: &TensorSpec| OutputLength { tensor: spec.name.clone(), dim: 1 };
    LengthDims {
        inputs: inputs.iter().filter(is_open).map(input).collect(),
        outputs: outputs.iter().filter(is_open).map(output).collect(),
    }
}

impl Text {
    /// The reader of a loaded model. Without a section `[text]` one that does not fit is told and not used.
    pub(super) fn fit(self, plan: &Plan, loaded: &dyn Loaded) -> Result<(Option<TextModel>, Option<String>), String> {
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

fn unused(cause: &str) -> String {
    format!("its tokenizer is not used: {cause}")
}

/// Whether requests of this model are going to be padded because they are texts, seen before it is loaded.
pub(super) fn pads(found: &Found) -> bool {
    let has_tokenizer = !TextReader::files(&folders(found)).is_empty();
    let declared = || OnnxFile::read(&found.model).and_then(|file| Declared::of(&file)).ok();
    let Some(Declared { inputs, outputs, .. }) = has_tokenizer.then(declared).flatten() else { return false };
    Roles::of(&inputs).is_some_and(|roles| !lengths(&roles, &inputs, &outputs, 0).inputs.is_empty())
}
