//! A model that accepts text: its tokenizer, its task, and the roles of its tensors.

use crate::heads::{Pooling, TextTask, floats, normalize, sigmoid, softmax};
use crate::sidecar::{SidecarFiles, TOKENIZER_FILE, files};
use crate::steps::HeadStep;
use crate::tokenizer::Tokenizer;
use crate::tokens::{TokenizeError, Tokens};
use ripieno_model::{DataType, TensorSpec};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Settings from `model.toml`. Unset ones are inferred from the sidecar files and the output's
/// shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextConfig {
    /// Task name, see [`TextTask`].
    pub task: Option<String>,
    /// Method that reduces the token rows to one row.
    pub pooling: Option<Pooling>,
    /// Whether embeddings are normalised to unit length.
    pub normalize: Option<bool>,
    /// Whether texts that are too long are truncated.
    pub truncate: bool,
    /// Name of the output tensor to read.
    pub output: Option<String>,
}

/// Names of the token inputs of a text model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInputs {
    /// Input that takes the token ids.
    pub ids: String,
    /// Input that takes the attention mask, if the model has one.
    pub mask: Option<String>,
    /// Input that takes the segment ids, if the model has one.
    pub types: Option<String>,
    /// Input that takes the positions 0, 1, 2, …, if the model has one.
    pub positions: Option<String>,
}

impl TokenInputs {
    /// Recognises the inputs by their usual names; returns `None` if these are not the inputs of a
    /// text model.
    pub fn from_specs(inputs: &[TensorSpec]) -> Option<TokenInputs> {
        let has =
            |name: &str| inputs.iter().any(|spec| spec.name == name && is_row_of_ids(spec)).then(|| name.to_owned());
        let inputs_by_role = TokenInputs {
            ids: has("input_ids")?,
            mask: has("attention_mask"),
            types: has("token_type_ids"),
            positions: has("position_ids"),
        };
        (inputs_by_role.names().count() == inputs.len()).then_some(inputs_by_role)
    }

    /// Returns the names of all inputs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let others = [&self.mask, &self.types, &self.positions].into_iter().flatten();
        std::iter::once(&self.ids).chain(others).map(String::as_str)
    }
}

fn is_row_of_ids(spec: &TensorSpec) -> bool {
    matches!(spec.datatype, DataType::Int64 | DataType::Int32) && spec.shape.len() == 2
}

/// A tokenizer and its sidecar files, before the model is loaded.
pub struct TextReader {
    tokenizer: Tokenizer,
    sidecar: SidecarFiles,
    path: PathBuf,
}

impl TextReader {
    /// Returns the files that [`TextReader::read`] would read; empty without a tokenizer.
    pub fn files(folders: &[PathBuf]) -> Vec<PathBuf> {
        let files: Vec<PathBuf> = files(folders).collect();
        if files.first().is_some_and(|file| file.ends_with(TOKENIZER_FILE)) { files } else { Vec::new() }
    }

    /// Reads the sidecar files; a file in an earlier folder takes precedence. Returns `None`
    /// without a tokenizer.
    pub fn read(folders: &[PathBuf]) -> Result<Option<TextReader>, String> {
        let Some(path) = TextReader::files(folders).into_iter().next() else { return Ok(None) };
        let (tokenizer, beside) = (Tokenizer::read(&path)?, SidecarFiles::read(folders)?);
        Ok(Some(TextReader { tokenizer, sidecar: beside, path }))
    }

    /// Returns the maximum number of tokens in a text, from the sidecar files.
    pub fn max_length(&self) -> usize {
        self.sidecar.max_length(self.tokenizer.truncation())
    }

    /// Returns the id of the padding token.
    pub fn pad_id(&self) -> u32 {
        self.tokenizer.pad_id()
    }

    /// Combines the tokenizer with a model that has these inputs and outputs and accepts at most
    /// `max_length` tokens. The error names the mismatch and the fix.
    pub fn fit(
        mut self,
        config: &TextConfig,
        max_length: usize,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Result<TextModel, String> {
        let file = self.path.display().to_string();
        let inputs_by_role = TokenInputs::from_specs(inputs).ok_or_else(|| {
            let names: Vec<&str> = inputs.iter().map(|spec| spec.name.as_str()).collect();
            format!(
                "{file} makes input_ids and, if asked for, attention_mask, token_type_ids and position_ids, of INT64 or \
                 INT32 and two dimensions; the model takes {}",
                names.join(", ")
            )
        })?;
        // A model exported for a fixed length always gets that length.
        let fixed = inputs.iter().find_map(|spec| usize::try_from(spec.shape[1]).ok());
        let max_length = fixed.unwrap_or(max_length);
        self.tokenizer
            .set_max_tokens(max_length, self.sidecar.cuts_left)
            .map_err(|error| format!("{file}: {error}"))?;
        if self.sidecar.lower_case {
            self.tokenizer.lower_case();
        }
        let output = self.output(config, outputs)?;
        let task = self.task(config, output)?;
        let steps = self.steps(&task, output)?;
        let pad_id = self.tokenizer.pad_id();
        let (name, truncate) = (output.name.clone(), config.truncate);
        Ok(TextModel {
            steps,
            prompts: self.sidecar.prompts,
            default_prompt: self.sidecar.default_prompt,
            tokenizer: self.tokenizer,
            task,
            inputs_by_role,
            output: name,
            max_length,
            fixed,
            pad_id,
            truncate,
        })
    }

    /// Returns the steps of `modules.json` between pooling and the last normalisation, if the model
    /// gives token rows. An output of pooled rows has them inside.
    fn steps(&self, task: &TextTask, output: &TensorSpec) -> Result<Vec<HeadStep>, String> {
        let TextTask::Embed { pooling: Some(pooling), .. } = task else { return Ok(Vec::new()) };
        let mut size = output.shape.last().map_or(0, |&size| usize::try_from(size).unwrap_or(0)) * pooling.count();
        for (at, step) in self.sidecar.steps.iter().enumerate() {
            size = step.size_after(size).ok_or_else(|| {
                format!("modules.json: step {at} after the pooling does not take vectors of {size} numbers")
            })?;
        }
        Ok(self.sidecar.steps.clone())
    }

    fn output<'a>(&self, config: &TextConfig, outputs: &'a [TensorSpec]) -> Result<&'a TensorSpec, String> {
        let named = |name: &str| outputs.iter().find(|spec| spec.name == name);
        let names = || outputs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = match &config.output {
            Some(name) => {
                named(name).ok_or_else(|| format!("[text] output = \"{name}\": the model gives {}", names()))?
            }
            // A pooled output takes precedence over token rows.
            None => ["sentence_embedding", "last_hidden_state", "token_embeddings", "logits"]
                .into_iter()
                .find_map(named)
                .or_else(|| outputs.first())
                .ok_or("the model gives nothing")?,
        };
        let real = matches!(found.datatype, DataType::Fp32 | DataType::Fp16 | DataType::Fp64);
        if !real || !(2..=3).contains(&found.shape.len()) || found.shape.last() == Some(&-1) {
            return Err(format!(
                "output \"{}\" has the type {} and the shape {:?}; texts need real numbers, as [-1, size] or [-1, -1, size]: name \
                 another one of {} with output = \"...\" under [text]",
                found.name,
                found.datatype,
                found.shape,
                names()
            ));
        }
        Ok(found)
    }

    fn task(&self, config: &TextConfig, output: &TensorSpec) -> Result<TextTask, String> {
        let by_token = output.shape.len() == 3;
        let size = output.shape.last().map_or(0, |&size| usize::try_from(size).unwrap_or(0));
        let scores = self.sidecar.is_classifier || output.name == "logits";
        let guessed = match (by_token, scores, size) {
            (false, true, 1) => "rerank",
            (false, true, _) => "classify",
            _ => "embed",
        };
        let task = config.task.as_deref().unwrap_or(guessed);
        let pooling = || config.pooling.or(self.sidecar.pooling).unwrap_or(Pooling::MEAN);
        if config.pooling.is_some() && !by_token {
            return Err(format!(
                "[text] pooling: output \"{}\" has one row a text already; remove the key, or name the output of tokens",
                output.name
            ));
        }
        match task {
            "embed" => Ok(TextTask::Embed {
                pooling: by_token.then(pooling),
                normalize: config.normalize.or(self.sidecar.normalize).unwrap_or(true),
            }),
            "rerank" | "classify" if by_token => Err(format!(
                "[text] task = \"{task}\": output \"{}\" has a row for each token, and one for each text is needed",
                output.name
            )),
            "rerank" if size == 1 => Ok(TextTask::Rerank),
            "rerank" => {
                Err(format!("[text] task = \"rerank\": output \"{}\" has {size} numbers, and needs one", output.name))
            }
            _ => {
                let known = &self.sidecar.labels;
                let labels = if known.len() == size { known.clone() } else { (0..size).map(label).collect() };
                Ok(TextTask::Classify { labels, multi_label: self.sidecar.multi_label })
            }
        }
    }
}

fn label(class: usize) -> String {
    format!("LABEL_{class}")
}

/// A model that accepts text.
pub struct TextModel {
    tokenizer: Tokenizer,
    /// Steps between pooling and the last normalisation.
    steps: Vec<HeadStep>,
    /// Texts that are put before a text, by name.
    prompts: BTreeMap<String, String>,
    /// Name of the prompt of a call that names none.
    default_prompt: Option<String>,
    /// Task of the model.
    pub task: TextTask,
    /// Names of its token inputs.
    pub inputs_by_role: TokenInputs,
    /// Name of the output tensor that is read.
    pub output: String,
    /// Maximum number of tokens in a text.
    pub max_length: usize,
    /// Fixed input length in tokens, if the model was exported with one.
    fixed: Option<usize>,
    pad_id: u32,
    /// Whether texts that are too long are truncated by default; a request may override this.
    pub truncate: bool,
}

impl TextModel {
    /// Tokenises a text or a pair. A text that is too long is truncated or refused.
    pub fn encode(&self, first: &str, second: Option<&str>, truncate: bool) -> Result<Tokens, TokenizeError> {
        self.tokenizer.encode(first, second, truncate)
    }

    /// Returns the prompt of this name, or of a call that names none; the error names those that
    /// there are.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str, String> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        self.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let known: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("prompt {name:?} is not known; the model's prompts are: {known}")
        })
    }

    /// Returns whether long texts are cut on the left.
    pub fn cuts_left(&self) -> bool {
        self.tokenizer.cuts_left()
    }

    /// Returns the size of an embedding made of output rows of `width` numbers.
    pub fn vector_size(&self, width: usize) -> usize {
        let TextTask::Embed { pooling: Some(pooling), .. } = &self.task else { return width };
        self.steps.iter().fold(width * pooling.count(), |size, step| step.size_after(size).unwrap_or(size))
    }

    /// Returns the number of bytes of `text` that are read.
    pub fn bytes_read(&self, text: &str) -> usize {
        text.len().min(self.tokenizer.max_bytes())
    }

    /// Checks token ids that a client sends instead of text.
    pub fn check_ids(&self, mut ids: Vec<u32>, truncate: bool) -> Result<Tokens, TokenizeError> {
        if truncate {
            ids.truncate(self.max_length);
        }
        match ids.len() {
            0 => Err(TokenizeError::Empty),
            count if count > self.max_length => Err(TokenizeError::TooLong(self.max_length)),
            count => Ok(Tokens { ids, types: vec![0; count] }),
        }
    }

    /// Returns the input tensors of one row as (name, length, little-endian bytes).
    pub fn encode_inputs(&self, tokens: &Tokens, datatype: impl Fn(&str) -> DataType) -> Vec<(&str, usize, Vec<u8>)> {
        let length = self.fixed.unwrap_or(tokens.ids.len());
        let filled = |numbers: &[u32], pad: u32, name: &str| {
            let numbers = numbers.iter().copied().chain(std::iter::repeat(pad)).take(length);
            match datatype(name) {
                DataType::Int32 => numbers.flat_map(|number| (number as i32).to_le_bytes()).collect(),
                _ => numbers.flat_map(|number| i64::from(number).to_le_bytes()).collect(),
            }
        };
        let TokenInputs { ids, mask, types, positions } = &self.inputs_by_role;
        let mut inputs: Vec<(&str, usize, Vec<u8>)> = vec![(ids, length, filled(&tokens.ids, self.pad_id, ids))];
        if let Some(mask) = mask {
            inputs.push((mask, length, filled(&vec![1; tokens.ids.len()], 0, mask)));
        }
        if let Some(types) = types {
            inputs.push((types, length, filled(&tokens.types, 0, types)));
        }
        if let Some(positions) = positions {
            let counted: Vec<u32> = (0..tokens.ids.len() as u32).collect();
            inputs.push((positions, length, filled(&counted, 0, positions)));
        }
        inputs
    }

    /// Decodes the output for a text of `tokens` tokens into an embedding, class probabilities or
    /// one score. Returns `None` if the output differs from its declaration at load.
    pub fn read(&self, tokens: usize, datatype: DataType, shape: &[i64], bytes: &[u8]) -> Option<Vec<f32>> {
        let mut numbers = floats(datatype, bytes)?;
        let width = usize::try_from(*shape.last()?).ok().filter(|&width| width > 0)?;
        match &self.task {
            TextTask::Embed { pooling, normalize: is_normal } => {
                if let Some(pooling) = pooling {
                    // Rows after the text's own tokens are padding.
                    let rows = numbers.get(..tokens * width).filter(|rows| !rows.is_empty())?;
                    numbers = pooling.pool(rows, width);
                }
                numbers = self.steps.iter().fold(numbers, |numbers, step| step.apply(numbers));
                if *is_normal {
                    normalize(&mut numbers);
                }
            }
            TextTask::Classify { multi_label: true, .. } => {
                numbers.iter_mut().for_each(|number| *number = sigmoid(*number))
            }
            TextTask::Classify { .. } => softmax(&mut numbers),
            TextTask::Rerank => numbers.iter_mut().for_each(|number| *number = sigmoid(*number)),
        }
        (numbers.len() == self.vector_size(width)).then_some(numbers)
    }
}

impl fmt::Debug for TextModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextModel")
            .field("task", &self.task)
            .field("max_length", &self.max_length)
            .finish_non_exhaustive()
    }
}
