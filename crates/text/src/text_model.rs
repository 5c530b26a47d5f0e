//! A model that reads text: its tokenizer, what it is asked, and which of its tensors are which.

use crate::beside::{Beside, TOKENIZER_FILE, files};
use crate::heads::{Pooling, Task, floats, normalize, sigmoid, softmax};
use crate::tokens::{TextError, Tokenizer, Tokens};
use ripieno_model::{DataType, TensorSpec};
use std::fmt;
use std::path::PathBuf;

/// What the owner says; where that is nothing, what lies beside the model and how its output looks decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextConfig {
    /// What the model is asked: the name of a [`Task`].
    pub task: Option<String>,
    /// How the rows of tokens become one.
    pub pooling: Option<Pooling>,
    /// Whether vectors are brought to length one.
    pub normalize: Option<bool>,
    /// Whether texts that are too long are cut.
    pub truncate: bool,
    /// The output that is read.
    pub output: Option<String>,
}

/// The inputs of a model that reads text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The ids of tokens.
    pub ids: String,
    /// Which of them are real, if the model asks.
    pub mask: Option<String>,
    /// To which text each belongs, if the model asks.
    pub types: Option<String>,
}

impl Roles {
    /// The inputs by their usual names; none where these are not the inputs of a model that reads text.
    pub fn of(inputs: &[TensorSpec]) -> Option<Roles> {
        let has =
            |name: &str| inputs.iter().any(|spec| spec.name == name && is_row_of_ids(spec)).then(|| name.to_owned());
        let roles = Roles { ids: has("input_ids")?, mask: has("attention_mask"), types: has("token_type_ids") };
        (roles.names().count() == inputs.len()).then_some(roles)
    }

    /// The names of all.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [Some(&self.ids), self.mask.as_ref(), self.types.as_ref()].into_iter().flatten().map(String::as_str)
    }
}

fn is_row_of_ids(spec: &TensorSpec) -> bool {
    matches!(spec.datatype, DataType::Int64 | DataType::Int32) && spec.shape.len() == 2
}

/// A tokenizer with what lies beside it, before the model is known.
pub struct TextReader {
    tokenizer: Tokenizer,
    beside: Beside,
    path: PathBuf,
}

impl TextReader {
    /// The files that [`TextReader::read`] would read; none without a tokenizer.
    pub fn files(folders: &[PathBuf]) -> Vec<PathBuf> {
        let files: Vec<PathBuf> = files(folders).collect();
        if files.first().is_some_and(|file| file.ends_with(TOKENIZER_FILE)) { files } else { Vec::new() }
    }

    /// Reads what lies in the folders, of two files of one name the one in the first. None without a tokenizer.
    pub fn read(folders: &[PathBuf]) -> Result<Option<TextReader>, String> {
        let Some(path) = TextReader::files(folders).into_iter().next() else { return Ok(None) };
        let (tokenizer, beside) = (Tokenizer::read(&path)?, Beside::read(folders)?);
        Ok(Some(TextReader { tokenizer, beside, path }))
    }

    /// The most tokens of a text, by what lies beside the model.
    pub fn max_length(&self) -> usize {
        self.beside.max_length(self.tokenizer.truncation())
    }

    /// What shorter texts are filled up with.
    pub fn pad_id(&self) -> u32 {
        self.tokenizer.pad_id()
    }

    /// The model that takes at most so many tokens and has these inputs and outputs. The error says what does not fit, and what to
    /// write.
    pub fn fit(
        mut self,
        config: &TextConfig,
        max_length: usize,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Result<TextModel, String> {
        let file = self.path.display().to_string();
        let roles = Roles::of(inputs).ok_or_else(|| {
            let names: Vec<&str> = inputs.iter().map(|spec| spec.name.as_str()).collect();
            format!(
                "{file} makes input_ids and, if asked for, attention_mask and token_type_ids, of INT64 or INT32 and two \
                 dimensions; the model takes {}",
                names.join(", ")
            )
        })?;
        // A model that was exported for one length gets that.
        let fixed = inputs.iter().find_map(|spec| usize::try_from(spec.shape[1]).ok());
        let max_length = fixed.unwrap_or(max_length);
        self.tokenizer.bound(max_length).map_err(|error| format!("{file}: {error}"))?;
        let output = self.output(config, outputs)?;
        let task = self.task(config, output)?;
        let pad_id = self.tokenizer.pad_id();
        let (name, truncate) = (output.name.clone(), config.truncate);
        Ok(TextModel { tokenizer: self.tokenizer, task, roles, output: name, max_length, fixed, pad_id, truncate })
    }

    fn output<'a>(&self, config: &TextConfig, outputs: &'a [TensorSpec]) -> Result<&'a TensorSpec, String> {
        let named = |name: &str| outputs.iter().find(|spec| spec.name == name);
        let names = || outputs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = match &config.output {
            Some(name) => {
                named(name).ok_or_else(|| format!("[text] output = \"{name}\": the model gives {}", names()))?
            }
            // A vector that the model pools itself goes before those of tokens.
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

    fn task(&self, config: &TextConfig, output: &TensorSpec) -> Result<Task, String> {
        let by_token = output.shape.len() == 3;
        let size = output.shape.last().map_or(0, |&size| usize::try_from(size).unwrap_or(0));
        let scores = self.beside.classifies || output.name == "logits";
        let guessed = match (by_token, scores, size) {
            (false, true, 1) => "rerank",
            (false, true, _) => "classify",
            _ => "embed",
        };
        let task = config.task.as_deref().unwrap_or(guessed);
        let pooling = || config.pooling.or(self.beside.pooling).unwrap_or(Pooling::Mean);
        if config.pooling.is_some() && !by_token {
            return Err(format!(
                "[text] pooling: output \"{}\" has one row a text already; remove the key, or name the output of tokens",
                output.name
            ));
        }
        match task {
            "embed" => Ok(Task::Embed {
                pooling: by_token.then(pooling),
                normalize: config.normalize.or(self.beside.normalize).unwrap_or(true),
            }),
            "rerank" | "classify" if by_token => Err(format!(
                "[text] task = \"{task}\": output \"{}\" has a row for each token, and one for each text is needed",
                output.name
            )),
            "rerank" if size == 1 => Ok(Task::Rerank),
            "rerank" => {
                Err(format!("[text] task = \"rerank\": output \"{}\" has {size} numbers, and needs one", output.name))
            }
            _ => {
                let known = &self.beside.labels;
                let labels = if known.len() == size { known.clone() } else { (0..size).map(label).collect() };
                Ok(Task::Classify { labels, several: self.beside.several })
            }
        }
    }
}

fn label(class: usize) -> String {
    format!("LABEL_{class}")
}

/// A model that reads text.
pub struct TextModel {
    tokenizer: Tokenizer,
    /// What it is asked.
    pub task: Task,
    /// Its inputs.
    pub roles: Roles,
    /// The output that is read.
    pub output: String,
    /// The most tokens of a text.
    pub max_length: usize,
    /// How many tokens it takes always, if it does.
    fixed: Option<usize>,
    pad_id: u32,
    /// Whether texts that are too long are cut, unless a client says otherwise.
    pub truncate: bool,
}

impl TextModel {
    /// The tokens of a text, or of a pair; what is too long is cut or refused.
    pub fn encode(&self, first: &str, second: Option<&str>, truncate: bool) -> Result<Tokens, TextError> {
        self.tokenizer.encode(first, second, truncate)
    }

    /// How many bytes of a text are read, at most.
    pub fn read_bytes(&self, text: &str) -> usize {
        text.len().min(self.tokenizer.most_bytes())
    }

    /// Tokens that a client brings itself.
    pub fn check(&self, mut ids: Vec<u32>, truncate: bool) -> Result<Tokens, TextError> {
        if truncate {
            ids.truncate(self.max_length);
        }
        match ids.len() {
            0 => Err(TextError::Empty),
            count if count > self.max_length => Err(TextError::TooLong(self.max_length)),
            count => Ok(Tokens { ids, types: vec![0; count] }),
        }
    }

    /// The inputs of one row, in little-endian bytes as a type has them: name, length, numbers.
    pub fn inputs(&self, tokens: &Tokens, datatype: impl Fn(&str) -> DataType) -> Vec<(&str, usize, Vec<u8>)> {
        let length = self.fixed.unwrap_or(tokens.ids.len());
        let filled = |numbers: &[u32], pad: u32, name: &str| {
            let numbers = numbers.iter().copied().chain(std::iter::repeat(pad)).take(length);
            match datatype(name) {
                DataType::Int32 => numbers.flat_map(|number| (number as i32).to_le_bytes()).collect(),
                _ => numbers.flat_map(|number| i64::from(number).to_le_bytes()).collect(),
            }
        };
        let Roles { ids, mask, types } = &self.roles;
        let mut inputs: Vec<(&str, usize, Vec<u8>)> = vec![(ids, length, filled(&tokens.ids, self.pad_id, ids))];
        if let Some(mask) = mask {
            inputs.push((mask, length, filled(&vec![1; tokens.ids.len()], 0, mask)));
        }
        if let Some(types) = types {
            inputs.push((types, length, filled(&tokens.types, 0, types)));
        }
        inputs
    }

    /// What the model says of a text of so many tokens: a vector, the probabilities of classes, or one score. None if the output
    /// is not what it was when the model was loaded.
    pub fn read(&self, tokens: usize, datatype: DataType, shape: &[i64], bytes: &[u8]) -> Option<Vec<f32>> {
        let mut numbers = floats(datatype, bytes)?;
        let width = usize::try_from(*shape.last()?).ok().filter(|&width| width > 0)?;
        match &self.task {
            Task::Embed { pooling, normalize: is_normal } => {
                if let Some(pooling) = pooling {
                    // Behind the text's own tokens stands what it was filled up with.
                    let rows = numbers.get(..tokens * width).filter(|rows| !rows.is_empty())?;
                    numbers = pooling.pool(rows, width);
                }
                if *is_normal {
                    normalize(&mut numbers);
                }
            }
            Task::Classify { several: true, .. } => numbers.iter_mut().for_each(|number| *number = sigmoid(*number)),
            Task::Classify { .. } => softmax(&mut numbers),
            Task::Rerank => numbers.iter_mut().for_each(|number| *number = sigmoid(*number)),
        }
        (numbers.len() == width).then_some(numbers)
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
