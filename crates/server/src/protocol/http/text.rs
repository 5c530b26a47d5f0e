//! `/v1/…`: embeddings, classification and reranking of texts, compatible with clients of OpenAI
//! and of rerankers.

pub(super) mod encoders;

use super::{HttpAnswer, body, reply, send};
use crate::access::caller_of;
use crate::call::texts::TextCall;
use crate::limits::budget::Reservation;
use crate::problem::{Problem, ProblemKind};
use crate::protocol::slo;
use crate::state::{PARSE_INLINE_BYTES, ServerState};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use ripieno_repository::registry::ServedEntry;
use ripieno_text::{TextModel, TextTask, TokenizeError, Tokens, normalize};
use ripieno_wire::json::decoded_size;
use ripieno_wire::json::text::{
    ClassRow, ClassifyBody, Document, EmbeddingRow, EmbeddingValue, EmbeddingsBody, EncodingFormat, ListAnswer,
    RerankAnswer, RerankBody, RerankRow, TextErrorBody, TextInput, TextModelRow, TextProblem, Usage,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Maximum number of texts in a call, as at OpenAI.
const MAX_TEXTS: usize = 2048;
/// Upper bound on a tokenizer's memory per byte of text: ids, words and offsets.
const TOKENIZER_BYTES_PER_BYTE: usize = 200;
/// Texts up to this size are tokenised on the connection's thread, which takes about 0.2 ms.
const INLINE_BYTES: usize = 512;
/// Maximum JSON size of a number with its comma, and of the keys around a row.
const MAX_BYTES_PER_NUMBER: usize = 16;
const MAX_BYTES_PER_ROW: usize = 128;

/// Returns true if errors on this path use OpenAI's format.
pub(super) fn is_text(path: &str) -> bool {
    path.starts_with("/v1/")
}

/// Returns the error body in OpenAI's format.
pub(super) fn error_body(problem: &Problem) -> Bytes {
    let kind = match problem.kind {
        ProblemKind::Unauthenticated | ProblemKind::Forbidden => "authentication_error",
        ProblemKind::Overloaded => "rate_limit_error",
        kind if kind.http_status() >= 500 => "server_error",
        _ => "invalid_request_error",
    };
    let (message, code) = (problem.message.clone(), problem.kind.http_status());
    super::encode(&TextErrorBody { error: TextProblem { message, r#type: kind, param: None, code } })
}

/// Lists the models that accept text.
pub(super) fn models(state: &ServerState) -> HttpAnswer {
    let row = |entry: &Arc<ServedEntry>| {
        let text = entry.text.as_ref()?;
        let (id, task, max_model_len) = (entry.name.clone(), text.task.name(), text.max_length);
        Some(TextModelRow { id, object: "model", created: 0, owned_by: "ripieno", task, max_model_len })
    };
    let data: Vec<TextModelRow> = state.registry.ready_entries().iter().filter_map(row).collect();
    super::json(StatusCode::OK, &ListAnswer { object: "list", data, model: None, usage: None })
}

pub(super) async fn embeddings(state: &ServerState, request: &mut Request<Incoming>) -> Result<HttpAnswer, Problem> {
    let (body, room): (EmbeddingsBody, _) = read(state, request).await?;
    let mut call = TextRequest::begin(state, request, &body.model, "embed", room)?;
    call.check_direction(body.truncation_direction.as_deref())?;
    let prompt = call.prompt(body.prompt_name.as_deref())?;
    let tokens = call.tokens(body.input, body.truncate, prompt).await?;
    let usage = usage(&tokens);
    let is_normal = matches!(call.text.text.task, TextTask::Embed { normalize: true, .. });
    let vectors =
        call.text.answer(tokens).await?.into_iter().map(|vector| shortened(vector, body.dimensions, is_normal));
    let vectors = vectors.collect::<Result<Vec<_>, _>>()?;
    let size = AnswerSize { rows: vectors.len(), numbers: vectors.iter().map(Vec::len).sum(), bytes: 0 };
    let format = body.encoding_format.unwrap_or_default();
    let row = move |(index, vector): (usize, Vec<f32>)| {
        let embedding = match format {
            EncodingFormat::Float => EmbeddingValue::Float(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                EmbeddingValue::Base64(BASE64_STANDARD.encode(bytes))
            }
        };
        EmbeddingRow { object: "embedding", index, embedding }
    };
    let model = Some(body.model);
    call.encode(size, move || {
        let data = vectors.into_iter().enumerate().map(row).collect();
        ListAnswer { object: "list", data, model, usage: Some(usage) }
    })
    .await
}

/// Returns the first `dimensions` numbers of an embedding, normalised again if it was normalised.
fn shortened(mut vector: Vec<f32>, dimensions: Option<usize>, is_normal: bool) -> Result<Vec<f32>, Problem> {
    let Some(dimensions) = dimensions else { return Ok(vector) };
    if !(1..=vector.len()).contains(&dimensions) {
        return Err(Problem::invalid(format!(
            "dimensions is {dimensions}; the model's vectors have {}, and 1 to as many can be had",
            vector.len()
        )));
    }
    vector.truncate(dimensions);
    if is_normal {
        normalize(&mut vector);
    }
    Ok(vector)
}

pub(super) async fn classify(state: &ServerState, request: &mut Request<Incoming>) -> Result<HttpAnswer, Problem> {
    let (body, room): (ClassifyBody, _) = read(state, request).await?;
    let mut call = TextRequest::begin(state, request, &body.model, "classify", room)?;
    let tokens = call.tokens(body.input, body.truncate, String::new()).await?;
    let usage = usage(&tokens);
    let classes = call.text.answer(tokens).await?;
    let text = call.text.text.clone();
    let labels = if let TextTask::Classify { labels, .. } = &text.task { &labels[..] } else { &[] };
    let row = |(index, probs): (usize, Vec<f32>)| {
        let best = probs.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(best, _)| best);
        ClassRow { index, label: labels.get(best).cloned().unwrap_or_default(), num_classes: probs.len(), probs }
    };
    let data: Vec<ClassRow> = classes.into_iter().enumerate().map(row).collect();
    let (numbers, bytes) = data.iter().fold((0, 0), |sum, row| (sum.0 + row.probs.len(), sum.1 + 2 * row.label.len()));
    let answer = ListAnswer { object: "list", data, model: Some(body.model), usage: Some(usage) };
    call.encode(AnswerSize { rows: answer.data.len(), numbers, bytes }, move || answer).await
}

pub(super) async fn rerank(state: &ServerState, request: &mut Request<Incoming>) -> Result<HttpAnswer, Problem> {
    let (body, room): (RerankBody, _) = read(state, request).await?;
    let mut call = TextRequest::begin(state, request, &body.model, "rerank", room)?;
    let RerankBody { model, query, documents, top_n, return_documents, truncate } = body;
    let documents = Arc::new(documents);
    let tokens = call.pairs(query, documents.clone(), truncate).await?;
    let usage = usage(&tokens);
    let scores = call.text.answer(tokens).await?;
    let mut ranked: Vec<(usize, f32)> = scores.iter().map(|score| score[0]).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(top_n.unwrap_or(usize::MAX));
    // An unprintable byte takes six bytes in JSON.
    let echoed = ranked.iter().filter(|_| return_documents).map(|&(index, _)| 6 * documents[index].text().len()).sum();
    let size = AnswerSize { rows: ranked.len(), numbers: ranked.len(), bytes: echoed };
    call.encode(size, move || {
        let document = |index: usize| Document::Object { text: documents[index].text().to_owned() };
        let row = |(index, relevance_score): (usize, f32)| RerankRow {
            index,
            relevance_score,
            document: return_documents.then(|| document(index)),
        };
        RerankAnswer { model, results: ranked.into_iter().map(row).collect(), usage }
    })
    .await
}

fn usage(tokens: &[Tokens]) -> Usage {
    let total = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    Usage { prompt_tokens: total, total_tokens: total }
}

/// Reads the body of a call, with its reservation.
async fn read<T: DeserializeOwned + Send + 'static>(
    state: &ServerState,
    request: &mut Request<Incoming>,
) -> Result<(T, Reservation), Problem> {
    let received = body::read(state, request).await?;
    let connection = send::connection_of(request);
    // The input is decoded twice, because its form is known only after the first pass.
    let room = state.budget_of(connection.as_ref()).reserve(2 * decoded_size(&received))?;
    let length = received.len();
    let work = move || {
        serde_json::from_slice(&received).map_err(|error| Problem::invalid(format!("the body is not valid: {error}")))
    };
    let parsed: Result<T, Problem> =
        if length <= PARSE_INLINE_BYTES { work() } else { state.run_cpu_bound(work).await? };
    Ok((parsed?, room))
}

/// A text call in progress.
struct TextRequest<'a> {
    text: TextCall<'a>,
    connection: send::CallConnection,
    /// Reservation of its texts, tokens and embeddings.
    room: Reservation,
}

/// Upper bound on the size of a response.
struct AnswerSize {
    rows: usize,
    numbers: usize,
    /// Bytes of texts in the response.
    bytes: usize,
}

impl<'a> TextRequest<'a> {
    fn begin(
        state: &'a ServerState,
        request: &Request<Incoming>,
        model: &str,
        task: &str,
        room: Reservation,
    ) -> Result<TextRequest<'a>, Problem> {
        let (entry, slo) = (state.registry.get(model, "")?, slo::from_headers(request.headers())?);
        let text = entry.text.clone().ok_or_else(|| {
            let cause = entry.no_text.as_deref().unwrap_or("no tokenizer.json is beside its file");
            Problem::invalid(format!("model '{model}' reads no text: {cause}; /v2/models/{model}/infer takes tensors"))
        })?;
        if text.task.name() != task {
            let (is, path) = match text.task {
                TextTask::Embed { .. } => ("gives vectors", "embeddings"),
                TextTask::Classify { .. } => ("classifies", "classify"),
                TextTask::Rerank => ("scores pairs", "rerank"),
            };
            return Err(Problem::invalid(format!("model '{model}' {is}: ask /v1/{path}")));
        }
        let connection = send::connection_of(request);
        let (budget, caller) = (state.budget_of(connection.as_ref()).clone(), caller_of(request.extensions()));
        Ok(TextRequest { text: TextCall { state, budget, entry, text, caller, slo }, connection, room })
    }

    /// Returns the prompt that a call names, or else the model's own.
    fn prompt(&self, name: Option<&str>) -> Result<String, Problem> {
        self.text.text.prompt(name).map(str::to_owned).map_err(Problem::invalid)
    }

    /// Refuses a side of truncation that the model's files do not name.
    fn check_direction(&self, asked: Option<&str>) -> Result<(), Problem> {
        let own = if self.text.text.cuts_left() { "left" } else { "right" };
        match asked {
            Some(asked) if !asked.eq_ignore_ascii_case(own) => Err(Problem::invalid(format!(
                "truncation_direction is {asked:?}, but texts of this model are cut on the {own}, as its files say; leave \
                 it out"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the tokens of an input with `prompt` before each text, or checks those that the
    /// client sent.
    async fn tokens(
        &mut self,
        input: TextInput,
        truncate: Option<bool>,
        prompt: String,
    ) -> Result<Vec<Tokens>, Problem> {
        let texts = match input {
            TextInput::Ids(ids) => return self.check(vec![ids], truncate),
            TextInput::ManyIds(many) => return self.check(many, truncate),
            TextInput::Text(text) => vec![text],
            TextInput::Texts(texts) => texts,
        };
        let count = texts.len();
        let bytes = texts.iter().map(|text| prompt.len() + self.text.text.bytes_read(text)).sum();
        let encode = move |text: &TextModel, truncate, at: usize| match prompt.as_str() {
            "" => text.encode(&texts[at], None, truncate),
            prompt => text.encode(&format!("{prompt}{}", texts[at]), None, truncate),
        };
        self.tokenised(count, bytes, truncate, encode).await
    }

    fn check(&mut self, many: Vec<Vec<u32>>, truncate: Option<bool>) -> Result<Vec<Tokens>, Problem> {
        self.check_count(many.len())?;
        let text = self.text.text.clone();
        let truncate = truncate.unwrap_or(text.truncate);
        let one = |(at, ids)| text.check_ids(ids, truncate).map_err(|error| wrong(at, &error));
        self.reserve_tokens(many.into_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?)
    }

    /// Returns the tokens of the query paired with each document.
    async fn pairs(
        &mut self,
        query: String,
        documents: Arc<Vec<Document>>,
        truncate: Option<bool>,
    ) -> Result<Vec<Tokens>, Problem> {
        let count = documents.len();
        let read = |text: &str| self.text.text.bytes_read(text);
        let bytes = documents.iter().map(|document| read(document.text()) + read(&query)).sum();
        let encode =
            move |text: &TextModel, truncate, at: usize| text.encode(&query, Some(documents[at].text()), truncate);
        self.tokenised(count, bytes, truncate, encode).await
    }

    async fn tokenised(
        &mut self,
        count: usize,
        bytes: usize,
        truncate: Option<bool>,
        encode: impl Fn(&TextModel, bool, usize) -> Result<Tokens, TokenizeError> + Send + 'static,
    ) -> Result<Vec<Tokens>, Problem> {
        self.check_count(count)?;
        let kept = self.room.bytes();
        self.room.add(bytes.saturating_mul(TOKENIZER_BYTES_PER_BYTE))?;
        let text = self.text.text.clone();
        let truncate = truncate.unwrap_or(text.truncate);
        let work = move || {
            let one = |at| encode(&text, truncate, at).map_err(|error| wrong(at, &error));
            (0..count).map(one).collect::<Result<Vec<_>, _>>()
        };
        let tokens = if bytes <= INLINE_BYTES { work() } else { self.text.state.run_cpu_bound(work).await? }?;
        self.room.resize(kept)?;
        self.reserve_tokens(tokens)
    }

    fn check_count(&self, count: usize) -> Result<(), Problem> {
        match count {
            0 => Err(Problem::invalid("there is no text; send 1 at least")),
            1..=MAX_TEXTS => Ok(()),
            _ => Err(Problem::invalid(format!("{count} texts; {MAX_TEXTS} are the most in one call, so send several"))),
        }
    }

    /// Reserves memory for the tokens and for the numbers that they produce.
    fn reserve_tokens(&mut self, tokens: Vec<Tokens>) -> Result<Vec<Tokens>, Problem> {
        let (entry, output) = (&self.text.entry, &self.text.text.output);
        let width = entry.outputs.iter().find(|spec| spec.name == *output).and_then(|spec| spec.shape.last().copied());
        let width = self.text.text.vector_size(usize::try_from(width.unwrap_or(1)).unwrap_or(1));
        let each = |tokens: &Tokens| 8 * tokens.ids.len() + 4 * width;
        self.room.add(tokens.iter().map(each).sum())?;
        Ok(tokens)
    }

    async fn encode<T: Serialize + Send + 'static>(
        self,
        size: AnswerSize,
        answer: impl FnOnce() -> T + Send + 'static,
    ) -> Result<HttpAnswer, Problem> {
        let AnswerSize { rows, numbers, bytes } = size;
        let most =
            numbers * MAX_BYTES_PER_NUMBER + (rows + 1) * MAX_BYTES_PER_ROW + bytes + 2 * self.text.entry.name.len();
        let room = self.text.budget.reserve(most)?;
        let work = move || serde_json::to_vec(&answer()).expect("numbers and strings into memory always serialise");
        let encoded = if most <= PARSE_INLINE_BYTES { work() } else { self.text.state.run_cpu_bound(work).await? };
        Ok(reply(StatusCode::OK, "application/json", send::bytes(&self.connection, encoded, room)?))
    }
}

fn wrong(at: usize, error: &TokenizeError) -> Problem {
    Problem::invalid(format!("text {at}: {error}"))
}
