//! `/embed`, `/rerank` and `/predict`: the calls of Hugging Face's server of text encoders, which
//! name no model. The only one of the task answers; among several, `?model=NAME` names one.

use super::{AnswerSize, HttpAnswer, TextRequest, read, shortened};
use crate::problem::{Problem, ProblemKind};
use crate::protocol::http::path;
use crate::state::ServerState;
use hyper::Request;
use hyper::body::Incoming;
use ripieno_text::{TextTask, normalize};
use ripieno_wire::json::encoders::{EmbedBody, PredictAnswer, PredictBody, PredictedClass, RankTextsBody, RankedText};
use ripieno_wire::json::text::{Document, TextInput};
use std::sync::Arc;

const NO_RAW_SCORES: &str = "raw_scores: this server gives probabilities only; leave it out, or ask \
                             /v2/models/MODEL/infer for the model's own numbers";

pub(in crate::protocol::http) async fn embed(
    state: &ServerState,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let (body, room): (EmbedBody, _) = read(state, request).await?;
    let model = model_of(state, request, "embed")?;
    let mut call = TextRequest::begin(state, request, &model, "embed", room)?;
    let is_normal = matches!(call.text.text.task, TextTask::Embed { normalize: true, .. });
    if is_normal && body.normalize == Some(false) {
        return Err(Problem::invalid(format!(
            "normalize is false, but model '{model}' gives vectors of length one by its configuration"
        )));
    }
    let becomes_normal = body.normalize.unwrap_or(true);
    call.check_direction(body.truncation_direction.as_deref())?;
    let prompt = call.prompt(body.prompt_name.as_deref())?;
    let tokens = call.tokens(body.inputs, body.truncate, prompt).await?;
    let vector = |vector: Vec<f32>| {
        let mut vector = shortened(vector, body.dimensions, false)?;
        if becomes_normal {
            normalize(&mut vector);
        }
        Ok(vector)
    };
    let vectors = call.text.answer(tokens).await?.into_iter().map(vector).collect::<Result<Vec<_>, Problem>>()?;
    let size = AnswerSize { rows: vectors.len(), numbers: vectors.iter().map(Vec::len).sum(), bytes: 0 };
    call.encode(size, move || vectors).await
}

pub(in crate::protocol::http) async fn rerank(
    state: &ServerState,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let (body, room): (RankTextsBody, _) = read(state, request).await?;
    if body.raw_scores {
        return Err(Problem::invalid(NO_RAW_SCORES));
    }
    let model = model_of(state, request, "rerank")?;
    let mut call = TextRequest::begin(state, request, &model, "rerank", room)?;
    let texts: Arc<Vec<Document>> = Arc::new(body.texts.into_iter().map(Document::Text).collect());
    let tokens = call.pairs(body.query, texts.clone(), body.truncate).await?;
    let scores = call.text.answer(tokens).await?;
    let mut ranked: Vec<(usize, f32)> = scores.iter().map(|score| score[0]).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    // An unprintable byte takes six bytes in JSON.
    let echoed = if body.return_text { texts.iter().map(|text| 6 * text.text().len()).sum() } else { 0 };
    let size = AnswerSize { rows: ranked.len(), numbers: ranked.len(), bytes: echoed };
    call.encode(size, move || {
        let text = |index: usize| body.return_text.then(|| texts[index].text().to_owned());
        let row = |(index, score)| RankedText { index, score, text: text(index) };
        ranked.into_iter().map(row).collect::<Vec<_>>()
    })
    .await
}

pub(in crate::protocol::http) async fn predict(
    state: &ServerState,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let (body, room): (PredictBody, _) = read(state, request).await?;
    if body.raw_scores {
        return Err(Problem::invalid(NO_RAW_SCORES));
    }
    let model = model_of(state, request, "classify")?;
    let mut call = TextRequest::begin(state, request, &model, "classify", room)?;
    let is_one = matches!(body.inputs, TextInput::Text(_) | TextInput::Ids(_));
    let tokens = call.tokens(body.inputs, body.truncate, String::new()).await?;
    let classes = call.text.answer(tokens).await?;
    let text = call.text.text.clone();
    let labels = if let TextTask::Classify { labels, .. } = &text.task { &labels[..] } else { &[] };
    let of_text = |scores: Vec<f32>| {
        let label = |class: usize| labels.get(class).cloned().unwrap_or_default();
        let classes = scores.into_iter().enumerate();
        let mut classes: Vec<_> = classes.map(|(class, score)| PredictedClass { score, label: label(class) }).collect();
        classes.sort_by(|a, b| b.score.total_cmp(&a.score));
        classes
    };
    let mut all: Vec<Vec<PredictedClass>> = classes.into_iter().map(of_text).collect();
    let numbers = all.iter().map(Vec::len).sum();
    let bytes = all.iter().flatten().map(|class| 6 * class.label.len() + 32).sum();
    let size = AnswerSize { rows: all.len(), numbers, bytes };
    let answer = match all.pop() {
        Some(only) if is_one => PredictAnswer::One(only),
        last => PredictAnswer::Many(all.into_iter().chain(last).collect()),
    };
    call.encode(size, move || answer).await
}

/// Returns the name of the model that answers calls of a task.
fn model_of(state: &ServerState, request: &Request<Incoming>, task: &str) -> Result<String, Problem> {
    if let Some(name) =
        request.uri().query().and_then(|query| query.split('&').find_map(|part| part.strip_prefix("model=")))
    {
        let name = path::decode(name).ok_or_else(|| Problem::invalid("the model's name is not valid in the query"))?;
        return Ok(name.into_owned());
    }
    let entries = state.registry.ready_entries();
    let of_task = |entry: &&Arc<_>| is_of(entry, task);
    let mut names: Vec<&str> = entries.iter().filter(of_task).map(|entry| &*entry.name).collect();
    names.dedup();
    match names[..] {
        [name] => Ok(name.to_owned()),
        [] => Err(Problem::new(
            ProblemKind::NotFound,
            format!("no model that serves has the task {task}; see /v1/models"),
        )),
        _ => Err(Problem::invalid(format!(
            "several models have the task {task}: {}; add ?model=NAME to the path",
            names.join(", ")
        ))),
    }
}

fn is_of(entry: &ripieno_repository::registry::ServedEntry, task: &str) -> bool {
    entry.text.as_ref().is_some_and(|text| text.task.name() == task)
}
