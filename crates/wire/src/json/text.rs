//! Bodies of the text calls: OpenAI's embeddings and models, and reranking and classification as
//! other encoder servers define them.
//!
//! Unknown keys are ignored, because clients send some that have no meaning here, as OpenAI's own
//! client does.

use serde::{Deserialize, Serialize};

/// One text or several, or the token ids of one text or of several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "input must be a text, a list of texts, a list of token ids, or a list of such lists")]
#[allow(missing_docs)]
pub enum TextInput {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

/// Encoding of an embedding's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum EncodingFormat {
    #[default]
    Float,
    /// FP32, little-endian.
    Base64,
}

/// Request of `POST /v1/embeddings`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub struct EmbeddingsBody {
    pub model: String,
    pub input: TextInput,
    pub encoding_format: Option<EncodingFormat>,
    /// Number of leading values to keep of each embedding.
    pub dimensions: Option<usize>,
    /// Whether texts that are too long are truncated.
    pub truncate: Option<bool>,
    /// Name of the prompt that is put before each text.
    pub prompt_name: Option<String>,
    /// Side on which texts that are too long are cut, "left" or "right".
    pub truncation_direction: Option<String>,
}

/// Request of `POST /v1/classify`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub struct ClassifyBody {
    pub model: String,
    pub input: TextInput,
    pub truncate: Option<bool>,
}

/// A document, as a string or as an object with the key `text`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a document must be a text, or an object with the key text")]
#[allow(missing_docs)]
pub enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    /// Returns the text.
    pub fn text(&self) -> &str {
        match self {
            Document::Text(text) | Document::Object { text } => text,
        }
    }
}

/// Request of `POST /v1/rerank`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub struct RerankBody {
    pub model: String,
    pub query: String,
    pub documents: Vec<Document>,
    /// Number of best documents to return.
    pub top_n: Option<usize>,
    #[serde(default)]
    pub return_documents: bool,
    pub truncate: Option<bool>,
}

/// Number of tokens in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
}

/// A list as OpenAI defines it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct ListAnswer<T> {
    /// Always "list".
    pub object: &'static str,
    pub data: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The numbers of an embedding.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum EmbeddingValue {
    Float(Vec<f32>),
    Base64(String),
}

/// The embedding of one text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct EmbeddingRow {
    /// Always "embedding".
    pub object: &'static str,
    pub index: usize,
    pub embedding: EmbeddingValue,
}

/// Classification of one text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct ClassRow {
    pub index: usize,
    /// The most probable class.
    pub label: String,
    /// Probability of each class, in class order.
    pub probs: Vec<f32>,
    pub num_classes: usize,
}

/// Relevance of one document to the query.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct RerankRow {
    pub index: usize,
    pub relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Document>,
}

/// Response of `POST /v1/rerank`: documents by descending relevance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct RerankAnswer {
    pub model: String,
    pub results: Vec<RerankRow>,
    pub usage: Usage,
}

/// A text model in the response of `GET /v1/models`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct TextModelRow {
    pub id: String,
    /// Always "model".
    pub object: &'static str,
    /// Seconds since 1970; OpenAI's clients require the key.
    pub created: u64,
    pub owned_by: &'static str,
    /// "embed", "classify" or "rerank".
    pub task: &'static str,
    /// Maximum number of tokens in a text.
    pub max_model_len: usize,
}

/// Body of an error as OpenAI's clients expect it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct TextErrorBody {
    pub error: TextProblem,
}

/// Details of an error of a text call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct TextProblem {
    pub message: String,
    pub r#type: &'static str,
    pub param: Option<String>,
    /// HTTP status.
    pub code: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &str) -> Result<TextInput, String> {
        let body = format!(r#"{{"model": "m", "input": {text}, "user": "someone", "encoding_format": "base64"}}"#);
        let body: Result<EmbeddingsBody, _> = serde_json::from_str(&body);
        body.map(|body| body.input).map_err(|error| error.to_string())
    }

    #[test]
    fn inputs_have_four_forms() {
        assert_eq!(input(r#""a""#), Ok(TextInput::Text("a".into())));
        assert_eq!(input(r#"["a", "b"]"#), Ok(TextInput::Texts(vec!["a".into(), "b".into()])));
        assert_eq!(input("[1, 2]"), Ok(TextInput::Ids(vec![1, 2])));
        assert_eq!(input("[[1], [2, 3]]"), Ok(TextInput::ManyIds(vec![vec![1], vec![2, 3]])));
        let null = serde_json::from_str::<EmbeddingsBody>(r#"{"model": "m", "input": "a", "encoding_format": null}"#);
        assert_eq!(null.unwrap().encoding_format.unwrap_or_default(), EncodingFormat::Float);
        for odd in ["1", "[-1]", "[[\"a\"]]", "null", "[1, \"a\"]"] {
            assert!(input(odd).unwrap_err().starts_with("input must be a text"), "{odd}");
        }
    }

    #[test]
    fn documents_are_texts_or_objects() {
        let body = r#"{"model": "m", "query": "q", "documents": ["a", {"text": "b", "id": 3}]}"#;
        let body: RerankBody = serde_json::from_str(body).unwrap();
        assert_eq!(body.documents.iter().map(Document::text).collect::<Vec<_>>(), ["a", "b"]);
        assert!(!body.return_documents && body.top_n.is_none());
    }
}
