//! `/v1/…`: texts in, vectors, classes or scores out, as OpenAI's clients and those of rerankers have it.

use super::{Answer, body, reply, send};
use crate::access::caller_of;
use crate::bounds::budget::Reservation;
use crate::problem::{Kind, Problem};
use crate::slo;
use crate::state::{PARSE_INLINE_BYTES, State};
use crate::texts::TextCall;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use ripieno_repository::registry::ServedEntry;
use ripieno_text::{Task, TextError, TextModel, Tokens, normalize};
use ripieno_wire::json::decoded_size;
use ripieno_wire::json::text::{
    ClassRow, ClassifyBody, Document, EmbeddingRow, EmbeddingsBody, EncodingFormat, ListAnswer, Numbers, RerankAnswer,
    RerankBody, RerankRow, TextErrorBody, TextInput, TextModelRow, TextProblem, Usage,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Texts in one call, as OpenAI has it.
const MOST_TEXTS: usize = 2048;
/// What a tokenizer takes for each byte of a text while it reads it, at most: ids, words and where they stand.
const BYTES_FOR_EACH: usize = 200;
/// Bodies up to this are read and tokenised where they came: it takes some 0.2 ms.
const INLINE_BYTES: usize = 512;
/// What a number takes in JSON, at most, with its comma; and what stands around the numbers of a text.
const BYTES_A_NUMBER: usize = 16;
const BYTES_A_ROW: usize = 128;

/// Whether errors on this path are told as OpenAI's clients read them.
pub(super) fn is_text(path: &str) -> bool {
    path.starts_with("/v1/")
}

/// A failure as OpenAI's clients read it.
pub(super) fn error_body(problem: &Problem) -> Bytes {
    let kind = match problem.kind {
        Kind::Unauthenticated | Kind::Forbidden => "authentication_error",
        Kind::Overloaded => "rate_limit_error",
        kind if kind.http_status() >= 500 => "server_error",
        _ => "invalid_request_error",
    };
    let (message, code) = (problem.message.clone(), problem.kind.http_status());
    super::encode(&TextErrorBody { error: TextProblem { message, r#type: kind, param: None, code } })
}

/// The models that read text.
pub(super) fn models(state: &State) -> Answer {
    let row = |entry: &Arc<ServedEntry>| {
        let text = entry.text.as_ref()?;
        let (id, task, max_model_len) = (entry.name.clone(), text.task.name(), text.max_length);
        Some(TextModelRow { id, object: "model", created: 0, owned_by: "ripieno", task, max_model_len })
    };
    let data: Vec<TextModelRow> = state.registry.ready_entries().iter().filter_map(row).collect();
    super::json(StatusCode::OK, &ListAnswer { object: "list", data, model: None, usage: None })
}

pub(super) async fn embeddings(state: &State, request: &mut Request<Incoming>) -> Result<Answer, Problem> {
    let (asked, room): (EmbeddingsBody, _) = read(state, request).await?;
    let mut call = Call::begin(state, request, &asked.model, "embed", room)?;
    let tokens = call.tokens(asked.input, asked.truncate).await?;
    let usage = usage(&tokens);
    let is_normal = matches!(call.text.text.task, Task::Embed { normalize: true, .. });
    let vectors =
        call.text.answer(tokens).await?.into_iter().map(|vector| shortened(vector, asked.dimensions, is_normal));
    let vectors = vectors.collect::<Result<Vec<_>, _>>()?;
    let size = Size { rows: vectors.len(), numbers: vectors.iter().map(Vec::len).sum(), bytes: 0 };
    let format = asked.encoding_format.unwrap_or_default();
    let row = move |(index, vector): (usize, Vec<f32>)| {
        let embedding = match format {
            EncodingFormat::Float => Numbers::Float(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                Numbers::Base64(BASE64_STANDARD.encode(bytes))
            }
        };
        EmbeddingRow { object: "embedding", index, embedding }
    };
    let model = Some(asked.model);
    call.encode(size, move || {
        let data = vectors.into_iter().enumerate().map(row).collect();
        ListAnswer { object: "list", data, model, usage: Some(usage) }
    })
    .await
}

/// The first numbers of a vector, of length one again if it was.
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

pub(super) async fn classify(state: &State, request: &mut Request<Incoming>) -> Result<Answer, Problem> {
    let (asked, room): (ClassifyBody, _) = read(state, request).await?;
    let mut call = Call::begin(state, request, &asked.model, "classify", room)?;
    let tokens = call.tokens(asked.input, asked.truncate).await?;
    let usage = usage(&tokens);
    let classes = call.text.answer(tokens).await?;
    let text = call.text.text.clone();
    let labels = if let Task::Classify { labels, .. } = &text.task { &labels[..] } else { &[] };
    let row = |(index, probs): (usize, Vec<f32>)| {
        let best = probs.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(best, _)| best);
        ClassRow { index, label: labels.get(best).cloned().unwrap_or_default(), num_classes: probs.len(), probs }
    };
    let data: Vec<ClassRow> = classes.into_iter().enumerate().map(row).collect();
    let (numbers, bytes) = data.iter().fold((0, 0), |sum, row| (sum.0 + row.probs.len(), sum.1 + 2 * row.label.len()));
    let answer = ListAnswer { object: "list", data, model: Some(asked.model), usage: Some(usage) };
    call.encode(Size { rows: answer.data.len(), numbers, bytes }, move || answer).await
}

pub(super) async fn rerank(state: &State, request: &mut Request<Incoming>) -> Result<Answer, Problem> {
    let (asked, room): (RerankBody, _) = read(state, request).await?;
    let mut call = Call::begin(state, request, &asked.model, "rerank", room)?;
    let RerankBody { model, query, documents, top_n, return_documents, truncate } = asked;
    let documents = Arc::new(documents);
    let tokens = call.pairs(query, documents.clone(), truncate).await?;
    let usage = usage(&tokens);
    let scores = call.text.answer(tokens).await?;
    let mut ranked: Vec<(usize, f32)> = scores.iter().map(|score| score[0]).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(top_n.unwrap_or(usize::MAX));
    // What is not printable takes six bytes in JSON.
    let echoed = ranked.iter().filter(|_| return_documents).map(|&(index, _)| 6 * documents[index].text().len()).sum();
    let size = Size { rows: ranked.len(), numbers: ranked.len(), bytes: echoed };
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

/// The body of a call, and what it takes.
async fn read<T: DeserializeOwned + Send + 'static>(
    state: &State,
    request: &mut Request<Incoming>,
) -> Result<(T, Reservation), Problem> {
    let received = body::read(state, request).await?;
    let connection = send::caller(request);
    // Twice: which form an input has is known once it is read.
    let room = state.budget_of(connection.as_ref()).reserve(2 * decoded_size(&received))?;
    let length = received.len();
    let work = move || {
        serde_json::from_slice(&received).map_err(|error| Problem::invalid(format!("the body is not valid: {error}")))
    };
    let parsed: Result<T, Problem> = if length <= PARSE_INLINE_BYTES { work() } else { state.work(work).await? };
    Ok((parsed?, room))
}

/// A call under way.
struct Call<'a> {
    text: TextCall<'a>,
    connection: send::Caller,
    /// What its texts, tokens and vectors take.
    room: Reservation,
}

/// How large an answer becomes, at most.
struct Size {
    rows: usize,
    numbers: usize,
    /// Of texts in it.
    bytes: usize,
}

impl<'a> Call<'a> {
    fn begin(
        state: &'a State,
        request: &Request<Incoming>,
        model: &str,
        task: &str,
        room: Reservation,
    ) -> Result<Call<'a>, Problem> {
        let (entry, slo) = (state.registry.get(model, "")?, slo::of(request.headers())?);
        let text = entry.text.clone().ok_or_else(|| {
            Problem::invalid(format!(
                "model '{model}' reads no text: it has no tokenizer.json, or takes something else than token ids; \
                 /v2/models/{model}/infer takes tensors"
            ))
        })?;
        if text.task.name() != task {
            let (is, path) = match text.task {
                Task::Embed { .. } => ("gives vectors", "embeddings"),
                Task::Classify { .. } => ("classifies", "classify"),
                Task::Rerank => ("scores pairs", "rerank"),
            };
            return Err(Problem::invalid(format!("model '{model}' {is}: ask /v1/{path}")));
        }
        let connection = send::caller(request);
        let (budget, caller) = (state.budget_of(connection.as_ref()).clone(), caller_of(request.extensions()));
        Ok(Call { text: TextCall { state, budget, entry, text, caller, slo }, connection, room })
    }

    /// The tokens of an input, which a client may bring itself.
    async fn tokens(&mut self, input: TextInput, truncate: Option<bool>) -> Result<Vec<Tokens>, Problem> {
        let texts = match input {
            TextInput::Ids(ids) => return self.check(vec![ids], truncate),
            TextInput::ManyIds(many) => return self.check(many, truncate),
            TextInput::Text(text) => vec![text],
            TextInput::Texts(texts) => texts,
        };
        let (count, bytes) = (texts.len(), texts.iter().map(|text| self.text.text.read_bytes(text)).sum());
        self.tokenised(count, bytes, truncate, move |text, truncate, at| text.encode(&texts[at], None, truncate)).await
    }

    fn check(&mut self, many: Vec<Vec<u32>>, truncate: Option<bool>) -> Result<Vec<Tokens>, Problem> {
        self.check_count(many.len())?;
        let text = self.text.text.clone();
        let truncate = truncate.unwrap_or(text.truncate);
        let one = |(at, ids)| text.check(ids, truncate).map_err(|error| wrong(at, &error));
        self.keep(many.into_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?)
    }

    /// The tokens of a query beside each document.
    async fn pairs(
        &mut self,
        query: String,
        documents: Arc<Vec<Document>>,
        truncate: Option<bool>,
    ) -> Result<Vec<Tokens>, Problem> {
        let count = documents.len();
        let read = |text: &str| self.text.text.read_bytes(text);
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
        encode: impl Fn(&TextModel, bool, usize) -> Result<Tokens, TextError> + Send + 'static,
    ) -> Result<Vec<Tokens>, Problem> {
        self.check_count(count)?;
        let kept = self.room.bytes();
        self.room.add(bytes.saturating_mul(BYTES_FOR_EACH))?;
        let text = self.text.text.clone();
        let truncate = truncate.unwrap_or(text.truncate);
        let work = move || {
            let one = |at| encode(&text, truncate, at).map_err(|error| wrong(at, &error));
            (0..count).map(one).collect::<Result<Vec<_>, _>>()
        };
        let tokens = if bytes <= INLINE_BYTES { work() } else { self.text.state.work(work).await? }?;
        self.room.resize(kept)?;
        self.keep(tokens)
    }

    fn check_count(&self, count: usize) -> Result<(), Problem> {
        match count {
            0 => Err(Problem::invalid("there is no text; send 1 at least")),
            1..=MOST_TEXTS => Ok(()),
            _ => {
                Err(Problem::invalid(format!("{count} texts; {MOST_TEXTS} are the most in one call, so send several")))
            }
        }
    }

    /// Tokens, and the numbers that they are going to become.
    fn keep(&mut self, tokens: Vec<Tokens>) -> Result<Vec<Tokens>, Problem> {
        let (entry, output) = (&self.text.entry, &self.text.text.output);
        let width = entry.outputs.iter().find(|spec| spec.name == *output).and_then(|spec| spec.shape.last().copied());
        let width = usize::try_from(width.unwrap_or(1)).unwrap_or(1);
        let each = |tokens: &Tokens| 8 * tokens.ids.len() + 4 * width;
        self.room.add(tokens.iter().map(each).sum())?;
        Ok(tokens)
    }

    async fn encode<T: Serialize + Send + 'static>(
        self,
        size: Size,
        answer: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer, Problem> {
        let Size { rows, numbers, bytes } = size;
        let most = numbers * BYTES_A_NUMBER + (rows + 1) * BYTES_A_ROW + bytes + 2 * self.text.entry.name.len();
        let room = self.text.budget.reserve(most)?;
        let work = move || serde_json::to_vec(&answer()).expect("numbers and strings into memory always serialise");
        let encoded = if most <= PARSE_INLINE_BYTES { work() } else { self.text.state.work(work).await? };
        Ok(reply(StatusCode::OK, "application/json", send::bytes(&self.connection, encoded, room)?))
    }
}

fn wrong(at: usize, error: &TextError) -> Problem {
    Problem::invalid(format!("text {at}: {error}"))
}
