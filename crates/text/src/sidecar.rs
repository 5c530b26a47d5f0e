//! Hugging Face files beside an exported model (sidecar files) that describe its tokenizer and
//! heads.

use crate::heads::Pooling;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// File name of a model's tokenizer.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// Names of all sidecar files that are read if they exist.
const FILES: [&str; 6] = [
    TOKENIZER_FILE,
    "config.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "modules.json",
];

/// Upper bound on each sidecar file but the tokenizer, in bytes. Class labels are the largest
/// content.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Tokenizer files use lengths above this for "no limit".
const UNLIMITED_LENGTH: u64 = 1_000_000;
/// Maximum text length, in tokens, of a model whose files do not give one.
const DEFAULT_MAX_LENGTH: usize = 512;

/// Model types whose position numbers start after the padding token's.
const OFFSET_POSITION_MODELS: [&str; 4] = ["roberta", "xlm-roberta", "camembert", "mpnet"];

/// Settings merged from all sidecar files.
#[derive(Debug, Default)]
pub(crate) struct SidecarFiles {
    /// Maximum number of tokens in a text.
    pub(crate) max_length: Option<usize>,
    /// Class names in class order.
    pub(crate) labels: Vec<String>,
    /// Whether several classes may apply to one text.
    pub(crate) multi_label: bool,
    /// Whether the model was trained to classify or to score pairs.
    pub(crate) is_classifier: bool,
    /// Method that reduces the token rows to one row.
    pub(crate) pooling: Option<Pooling>,
    /// Whether embeddings are normalised to unit length; `None` if no file says so.
    pub(crate) normalize: Option<bool>,
}

#[derive(Deserialize)]
struct ModelFile {
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    id2label: BTreeMap<String, String>,
    problem_type: Option<String>,
    max_position_embeddings: Option<u64>,
    model_type: Option<String>,
    pad_token_id: Option<u64>,
}

#[derive(Deserialize)]
struct TokenizerConfigFile {
    /// Maximum length in tokens; a huge number means no limit.
    model_max_length: Option<f64>,
}

#[derive(Deserialize)]
struct SentenceFile {
    max_seq_length: Option<u64>,
}

#[derive(Deserialize)]
struct PoolingFile {
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pooling_mode_lasttoken: bool,
}

#[derive(Deserialize)]
struct PipelineModule {
    #[serde(rename = "type")]
    kind: String,
}

impl SidecarFiles {
    /// Reads each file from the first folder that contains it.
    pub(crate) fn read(folders: &[PathBuf]) -> Result<SidecarFiles, String> {
        let mut sidecar = SidecarFiles::default();
        let positions =
            read::<ModelFile>(folders, "config.json")?.and_then(|(_, file)| sidecar.apply_model_config(file));
        let sentence = read::<SentenceFile>(folders, "sentence_bert_config.json")?;
        let sentence = sentence.and_then(|(_, file)| file.max_seq_length);
        let tokenizer = read::<TokenizerConfigFile>(folders, "tokenizer_config.json")?;
        let tokenizer = tokenizer.and_then(|(_, file)| file.model_max_length).map(|longest| longest as u64);
        let limits = [sentence, tokenizer, positions].into_iter().flatten();
        let least = limits.filter(|&longest| (1..=UNLIMITED_LENGTH).contains(&longest)).min();
        sidecar.max_length = least.map(|longest| longest as usize);
        if let Some((path, file)) = read::<PoolingFile>(folders, "1_Pooling/config.json")? {
            sidecar.pooling = Some(pooling(&path, &file)?);
        }
        let modules = read::<Vec<PipelineModule>>(folders, "modules.json")?;
        sidecar.normalize =
            modules.map(|(_, modules)| modules.iter().any(|module| module.kind.ends_with(".Normalize")));
        Ok(sidecar)
    }

    /// Returns the maximum number of tokens in a text if `model.toml` gives none. `truncation` is
    /// the length that the tokenizer file gives.
    pub(crate) fn max_length(&self, truncation: Option<usize>) -> usize {
        self.max_length.or(truncation).unwrap_or(DEFAULT_MAX_LENGTH)
    }

    /// Applies `config.json` and returns the number of positions that the model supports, if given.
    fn apply_model_config(&mut self, file: ModelFile) -> Option<u64> {
        self.is_classifier = file.architectures.iter().any(|name| name.ends_with("ForSequenceClassification"));
        self.multi_label = file.problem_type.as_deref() == Some("multi_label_classification");
        let mut labels: Vec<(usize, String)> =
            file.id2label.into_iter().filter_map(|(id, label)| Some((id.parse().ok()?, label))).collect();
        labels.sort();
        if labels.iter().enumerate().all(|(at, (id, _))| at == *id) {
            self.labels = labels.into_iter().map(|(_, label)| label).collect();
        }
        let shifted = file.model_type.is_some_and(|kind| OFFSET_POSITION_MODELS.contains(&kind.as_str()));
        let before = if shifted { file.pad_token_id.unwrap_or(1) + 1 } else { 0 };
        file.max_position_embeddings.map(|positions| positions.saturating_sub(before))
    }
}

fn pooling(path: &Path, file: &PoolingFile) -> Result<Pooling, String> {
    match (file.pooling_mode_cls_token, file.pooling_mode_mean_tokens, file.pooling_mode_lasttoken) {
        (true, false, false) => Ok(Pooling::Cls),
        (false, true, false) => Ok(Pooling::Mean),
        (false, false, true) => Ok(Pooling::Last),
        _ => Err(format!(
            "{}: its way of pooling is not known here, which knows cls_token, mean_tokens and lasttoken, one at a time; export the \
             model with its pooling inside, or write pooling under [text] in model.toml",
            path.display()
        )),
    }
}

/// Returns the paths of the sidecar files that exist in these folders.
pub(crate) fn files(folders: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    FILES.into_iter().filter_map(|name| find(folders, name))
}

/// Returns the path in the first folder that contains the file.
fn find(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Reads and parses a sidecar file; returns its path and content.
fn read<T: DeserializeOwned>(folders: &[PathBuf], name: &str) -> Result<Option<(PathBuf, T)>, String> {
    let Some(path) = find(folders, name) else { return Ok(None) };
    let bytes = read_bounded(&path, MAX_FILE_BYTES)?;
    let read = serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some((path, read)))
}

/// Reads a whole file of at most `most` bytes.
pub(crate) fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("{shown}: cannot be read: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("{shown}: is larger than {} MiB, more than such a file ever is", most >> 20));
    }
    Ok(bytes)
}
