//! Hugging Face files beside an exported model (sidecar files) that describe its tokenizer and
//! heads.

use crate::heads::Pooling;
use crate::read::read_bounded;
use crate::steps::HeadStep;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// File name of a model's tokenizer.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// Names of all sidecar files that are read if they exist.
const FILES: [&str; 6] = [
    TOKENIZER_FILE,
    "config.json",
    "tokenizer_config.json",
    "1_Pooling/config.json",
    MODULES_FILE,
    "config_sentence_transformers.json",
];
/// Names of the file of a sentence encoder's first step, of which the first that exists is read.
const SENTENCE_FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];
/// File that lists the steps of a sentence encoder.
const MODULES_FILE: &str = "modules.json";
/// Upper bound on the steps of a sentence encoder.
const MAX_MODULES: usize = 16;

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
    /// Steps between pooling and the last normalisation.
    pub(crate) steps: Vec<HeadStep>,
    /// Whether long texts are cut on the left; `None` if no file says so.
    pub(crate) cuts_left: Option<bool>,
    /// Whether texts are written in lower case before the tokenizer reads them.
    pub(crate) lower_case: bool,
    /// Texts that are put before a text, by name.
    pub(crate) prompts: BTreeMap<String, String>,
    /// Name of the prompt of a call that names none.
    pub(crate) default_prompt: Option<String>,
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
    truncation_side: Option<String>,
}

#[derive(Deserialize)]
struct SentenceFile {
    max_seq_length: Option<u64>,
    #[serde(default)]
    do_lower_case: bool,
}

/// Methods by name since release 6 of sentence-transformers.
#[derive(Deserialize)]
#[serde(untagged)]
enum PoolingModes {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct PoolingFile {
    pooling_mode: Option<PoolingModes>,
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_max_tokens: bool,
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pooling_mode_mean_sqrt_len_tokens: bool,
    #[serde(default)]
    pooling_mode_weightedmean_tokens: bool,
    #[serde(default)]
    pooling_mode_lasttoken: bool,
    /// Whether the tokens of a prompt are pooled, too; true if absent.
    include_prompt: Option<bool>,
}

/// A step of a sentence encoder.
#[derive(Deserialize)]
struct PipelineModule {
    /// Path of its class, such as `sentence_transformers.models.Pooling`.
    #[serde(rename = "type")]
    kind: String,
    /// Folder of its files, relative to the model's.
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
struct PromptsFile {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

impl SidecarFiles {
    /// Reads each file from the first folder that contains it.
    pub(crate) fn read(folders: &[PathBuf]) -> Result<SidecarFiles, String> {
        let mut sidecar = SidecarFiles::default();
        let positions =
            read::<ModelFile>(folders, "config.json")?.and_then(|(_, file)| sidecar.apply_model_config(file));
        let named = SENTENCE_FILES.into_iter().find(|name| find(folders, name).is_some());
        let sentence = read::<SentenceFile>(folders, named.unwrap_or(SENTENCE_FILES[0]))?;
        sidecar.lower_case = sentence.as_ref().is_some_and(|(_, file)| file.do_lower_case);
        let sentence = sentence.and_then(|(_, file)| file.max_seq_length);
        let tokenizer = read::<TokenizerConfigFile>(folders, "tokenizer_config.json")?;
        let side = tokenizer.as_ref().and_then(|(_, file)| file.truncation_side.as_deref());
        sidecar.cuts_left = side.map(|side| side == "left");
        let tokenizer = tokenizer.and_then(|(_, file)| file.model_max_length).map(|longest| longest as u64);
        let limits = [sentence, tokenizer, positions].into_iter().flatten();
        let least = limits.filter(|&longest| (1..=UNLIMITED_LENGTH).contains(&longest)).min();
        sidecar.max_length = least.map(|longest| longest as usize);
        if let Some((_, file)) = read::<PromptsFile>(folders, "config_sentence_transformers.json")? {
            (sidecar.prompts, sidecar.default_prompt) = (file.prompts, file.default_prompt_name);
        }
        match read::<Vec<PipelineModule>>(folders, MODULES_FILE)? {
            Some((path, modules)) => sidecar.apply_modules(&path, folders, &modules)?,
            None => sidecar.apply_pooling(folders, "1_Pooling")?,
        }
        Ok(sidecar)
    }

    /// Applies the steps of `modules.json`. A step that is not known here is an error.
    fn apply_modules(&mut self, file: &Path, folders: &[PathBuf], modules: &[PipelineModule]) -> Result<(), String> {
        let shown = file.display();
        if modules.len() > MAX_MODULES {
            return Err(format!("{shown}: lists {} modules; {MAX_MODULES} are the most", modules.len()));
        }
        for module in modules {
            let name = module.kind.rsplit('.').next().unwrap_or_default();
            let folder = module_folder(file, folders, &module.path)?;
            match name {
                "Transformer" if self.pooling.is_none() => {}
                "Pooling" if self.pooling.is_none() => self.apply_pooling(folders, &module.path)?,
                "Dense" if self.pooling.is_some() => self.steps.push(HeadStep::dense(&folder)?),
                "LayerNorm" if self.pooling.is_some() => self.steps.push(HeadStep::layer_norm(&folder)?),
                "Normalize" => self.steps.push(HeadStep::Normalize),
                _ => {
                    return Err(format!(
                        "{shown}: module {name} is not known here in this place, which knows Transformer, Pooling, Dense, \
                         LayerNorm and Normalize, in this order of use"
                    ));
                }
            }
        }
        if self.pooling.is_none() {
            self.apply_pooling(folders, "1_Pooling")?;
        }
        self.normalize = Some(self.steps.pop_if(|step| *step == HeadStep::Normalize).is_some());
        Ok(())
    }

    fn apply_pooling(&mut self, folders: &[PathBuf], folder: &str) -> Result<(), String> {
        if let Some((path, file)) = read::<PoolingFile>(folders, &format!("{folder}/config.json"))? {
            if file.include_prompt == Some(false) && self.prompts.values().any(|prompt| !prompt.is_empty()) {
                return Err(format!(
                    "{}: include_prompt = false: prompts are always pooled here; export the model with its pooling inside",
                    path.display()
                ));
            }
            self.pooling = Some(pooling(&path, &file)?);
        }
        Ok(())
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
    let methods = [
        ("cls", file.pooling_mode_cls_token, Pooling::CLS),
        ("max", file.pooling_mode_max_tokens, Pooling::MAX),
        ("mean", file.pooling_mode_mean_tokens, Pooling::MEAN),
        ("mean_sqrt_len_tokens", file.pooling_mode_mean_sqrt_len_tokens, Pooling::MEAN_SQRT_LEN),
        ("weightedmean", file.pooling_mode_weightedmean_tokens, Pooling::WEIGHTED_MEAN),
        ("lasttoken", file.pooling_mode_lasttoken, Pooling::LAST),
    ];
    let by_name = |name: &String| methods.iter().find(|(known, ..)| known == name).map(|&(.., method)| method);
    let asked: Option<Vec<Pooling>> = match &file.pooling_mode {
        Some(PoolingModes::One(name)) => by_name(name).map(|method| vec![method]),
        Some(PoolingModes::Several(names)) => names.iter().map(by_name).collect(),
        None => Some(methods.iter().filter(|(_, asked, _)| *asked).map(|&(.., method)| method).collect()),
    };
    let asked = asked.filter(|asked| asked.len() <= Pooling::MOST);
    asked.and_then(|asked| asked.into_iter().reduce(Pooling::then)).ok_or_else(|| {
        format!(
            "{}: its way of pooling is not known here, which knows cls, max, mean, mean_sqrt_len_tokens, weightedmean and \
             lasttoken, at most {} of them; export the model with its pooling inside, or write pooling under [text] in \
             model.toml",
            path.display(),
            Pooling::MOST
        )
    })
}

/// Returns the folder of a module, which must lie within the model's.
fn module_folder(file: &Path, folders: &[PathBuf], path: &str) -> Result<PathBuf, String> {
    let within = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !within {
        return Err(format!("{}: path {path:?} leads out of the model's folder", file.display()));
    }
    let places = folders.iter().map(|folder| folder.join(path));
    Ok(places.into_iter().find(|place| place.is_dir()).unwrap_or_else(|| PathBuf::from(path)))
}

/// Returns the paths of the sidecar files that exist in these folders.
pub(crate) fn files(folders: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    let modules = read::<Vec<PipelineModule>>(folders, MODULES_FILE).ok().flatten();
    let of_modules = modules.into_iter().flat_map(|(_, modules)| modules).take(MAX_MODULES);
    let beside = of_modules
        .flat_map(|module| ["config.json", "model.safetensors"].map(|name| format!("{}/{name}", module.path)));
    let names = FILES.into_iter().chain(SENTENCE_FILES).map(str::to_owned).chain(beside);
    names.filter_map(|name| find(folders, &name)).collect::<Vec<_>>().into_iter()
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
