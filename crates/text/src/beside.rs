//! What lies beside an exported model and says how it was made.

use crate::heads::Pooling;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The tokenizer of a model.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// All that is read where it is there.
const FILES: [&str; 6] = [
    TOKENIZER_FILE,
    "config.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "modules.json",
];

/// The largest tokenizer: vocabularies of many languages take some 20 MB.
pub(crate) const MOST_TOKENIZER_BYTES: u64 = 128 << 20;
/// The largest of the other files; labels are the most that they hold.
const MOST_BYTES: u64 = 4 << 20;
/// Lengths above this stand for "no limit" in files of tokenizers.
const LONGEST: u64 = 1_000_000;
/// The longest text of a model of which nothing says it.
const DEFAULT_MAX_LENGTH: usize = 512;

/// Kinds of models that count positions from behind that of the padding on.
const SHIFTED: [&str; 4] = ["roberta", "xlm-roberta", "camembert", "mpnet"];

/// What the files say together.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// The most tokens in one text that they allow.
    pub(crate) max_length: Option<usize>,
    /// The names of classes, in their order.
    pub(crate) labels: Vec<String>,
    /// Whether several classes may be true of one text.
    pub(crate) several: bool,
    /// Whether the model was made to classify, or to score pairs.
    pub(crate) classifies: bool,
    /// How the rows of tokens become one.
    pub(crate) pooling: Option<Pooling>,
    /// Whether vectors are brought to length one; none where no file says what is done with them.
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
    /// A number that is not a length where there is no limit.
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
struct Module {
    #[serde(rename = "type")]
    kind: String,
}

impl Beside {
    /// Reads the files in the first folder that has them.
    pub(crate) fn read(folders: &[PathBuf]) -> Result<Beside, String> {
        let mut beside = Beside::default();
        let positions = read::<ModelFile>(folders, "config.json")?.and_then(|(_, file)| beside.take(file));
        let sentence = read::<SentenceFile>(folders, "sentence_bert_config.json")?;
        let sentence = sentence.and_then(|(_, file)| file.max_seq_length);
        let tokenizer = read::<TokenizerConfigFile>(folders, "tokenizer_config.json")?;
        let tokenizer = tokenizer.and_then(|(_, file)| file.model_max_length).map(|longest| longest as u64);
        let limits = [sentence, tokenizer, positions].into_iter().flatten();
        let least = limits.filter(|&longest| (1..=LONGEST).contains(&longest)).min();
        beside.max_length = least.map(|longest| longest as usize);
        if let Some((path, file)) = read::<PoolingFile>(folders, "1_Pooling/config.json")? {
            beside.pooling = Some(pooling(&path, &file)?);
        }
        let modules = read::<Vec<Module>>(folders, "modules.json")?;
        beside.normalize = modules.map(|(_, modules)| modules.iter().any(|module| module.kind.ends_with(".Normalize")));
        Ok(beside)
    }

    /// The most tokens in one text, if its owner does not say; `truncation` is what the tokenizer was trained with.
    pub(crate) fn max_length(&self, truncation: Option<usize>) -> usize {
        self.max_length.or(truncation).unwrap_or(DEFAULT_MAX_LENGTH)
    }

    /// The most positions that the model knows, if its file says so.
    fn take(&mut self, file: ModelFile) -> Option<u64> {
        self.classifies = file.architectures.iter().any(|name| name.ends_with("ForSequenceClassification"));
        self.several = file.problem_type.as_deref() == Some("multi_label_classification");
        let mut labels: Vec<(usize, String)> =
            file.id2label.into_iter().filter_map(|(id, label)| Some((id.parse().ok()?, label))).collect();
        labels.sort();
        if labels.iter().enumerate().all(|(at, (id, _))| at == *id) {
            self.labels = labels.into_iter().map(|(_, label)| label).collect();
        }
        let shifted = file.model_type.is_some_and(|kind| SHIFTED.contains(&kind.as_str()));
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

/// The files in these folders that are read.
pub(crate) fn files(folders: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    FILES.into_iter().filter_map(|name| find(folders, name))
}

/// The file in the first folder that has it.
fn find(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// What such a file says, and where it lies.
fn read<T: DeserializeOwned>(folders: &[PathBuf], name: &str) -> Result<Option<(PathBuf, T)>, String> {
    let Some(path) = find(folders, name) else { return Ok(None) };
    let bytes = bounded(&path, MOST_BYTES)?;
    let read = serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some((path, read)))
}

/// A whole file of at most so many bytes.
pub(crate) fn bounded(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("{shown}: cannot be read: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("{shown}: is larger than {} MiB, more than such a file ever is", most >> 20));
    }
    Ok(bytes)
}
