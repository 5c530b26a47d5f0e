//! Bodies of `/embed`, `/rerank` and `/predict`, as Hugging Face's server of text encoders defines
//! them. They name no model. Unknown keys are ignored.

use super::text::TextInput;
use serde::{Deserialize, Serialize};

/// Request of `POST /embed`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub struct EmbedBody {
    pub inputs: TextInput,
    /// Whether vectors have length one; true if absent.
    pub normalize: Option<bool>,
    pub truncate: Option<bool>,
    /// Number of leading values to keep of each embedding.
    pub dimensions: Option<usize>,
    /// Name of the prompt that is put before each text.
    pub prompt_name: Option<String>,
    /// Side on which texts that are too long are cut, "Left" or "Right".
    pub truncation_direction: Option<String>,
}

/// Request of `POST /rerank`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub struct RankTextsBody {
    pub query: String,
    pub texts: Vec<String>,
    #[serde(default)]
    pub raw_scores: bool,
    #[serde(default)]
    pub return_text: bool,
    pub truncate: Option<bool>,
}

/// Request of `POST /predict`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub struct PredictBody {
    pub inputs: TextInput,
    #[serde(default)]
    pub raw_scores: bool,
    pub truncate: Option<bool>,
}

/// Relevance of one text to the query.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct RankedText {
    pub index: usize,
    pub score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A class of a text and its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct PredictedClass {
    pub score: f32,
    pub label: String,
}

/// The classes of one text, or of each text of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum PredictAnswer {
    One(Vec<PredictedClass>),
    Many(Vec<Vec<PredictedClass>>),
}
