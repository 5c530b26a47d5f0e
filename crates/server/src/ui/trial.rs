//! The form to try a model: a request as JSON, its answer, and the way to the request's life.
//!
//! The metrics port runs the request, since the page may call nothing else. So a token needs the
//! scope for inference besides the one for the page.

use super::format;
use super::view::View;
use crate::access::Caller;
use crate::call::infer::{InferCall, infer};
use crate::problem::Problem;
use crate::protocol::http::body;
use crate::state::ServerState;
use hyper::Request;
use hyper::body::Incoming;
use maud::{Markup, html};
use ripieno_base::Nanos;
use ripieno_model::{DataType, TensorSpec};
use ripieno_repository::registry::ServedEntry;
use ripieno_wire::json;
use serde_json::json as value;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Path of the form's target, below the page.
pub(super) const PATH: &str = "/try";
/// Largest number of elements of a request that is proposed.
const MOST_ELEMENTS: i64 = 1_024;
/// Bytes of an answer that are shown.
const SHOWN_BYTES: usize = 16 << 10;

/// Number of requests that were tried, by which their ids differ.
static TRIED: AtomicU64 = AtomicU64::new(0);

/// A request that was tried.
pub(super) struct Trial {
    model: String,
    version: String,
    request: String,
    id: String,
    took: Nanos,
    answer: Result<String, Problem>,
}

impl Trial {
    /// Returns the view of its model.
    pub(super) fn view(&self) -> View {
        View::Model(self.model.clone(), self.version.clone())
    }
}

/// Runs the request of a form.
pub(super) async fn run(
    state: &ServerState,
    caller: Caller,
    request: &mut Request<Incoming>,
) -> Result<Trial, Problem> {
    let form = body::read(state, request).await?;
    let field = |name: &str| {
        let mut pairs = form_urlencoded::parse(&form);
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).unwrap_or_default()
    };
    let (model, version, request) = (field("name"), field("version"), field("request"));
    let id = format!("try-{}", TRIED.fetch_add(1, Relaxed) + 1);
    let begun = Instant::now();
    let answer = answer(state, caller, (&model, &version), &request, &id).await;
    let took = Nanos(i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX));
    Ok(Trial { model, version, request, id, took, answer })
}

async fn answer(
    state: &ServerState,
    caller: Caller,
    (model, version): (&str, &str),
    request: &str,
    id: &str,
) -> Result<String, Problem> {
    state.registry.get(model, version)?;
    let body = bytes::Bytes::copy_from_slice(request.as_bytes());
    let room = state.budget.reserve(json::decoded_size(&body))?;
    let mut parsed = json::parse_infer(model, version, &body, None)?;
    id.clone_into(&mut parsed.id);
    parsed.binary_outputs = false;
    let parsed = crate::call::decoded::hold_inputs(parsed, room)?;
    let (received, timeout, slo, trace, position) = (Instant::now(), None, None, None, None);
    let call = InferCall { request: parsed, received, timeout, slo, caller, trace, position };
    let mut inferred = infer(state, &state.budget, call).await?;
    inferred.make_room(json::encoded_size(&inferred.response))?;
    let encoded = json::encode_infer(&inferred.response)?;
    let text = String::from_utf8_lossy(&encoded.body).into_owned();
    Ok(match text.len() > SHOWN_BYTES {
        true => {
            format!("{}… and {} more bytes", &text[..text.floor_char_boundary(SHOWN_BYTES)], text.len() - SHOWN_BYTES)
        }
        false => text,
    })
}

/// Returns a request of zeros in JSON; `None` if it is too large to be read.
fn proposed(entry: &ServedEntry) -> Option<String> {
    let mut left = MOST_ELEMENTS;
    let tensor = |spec: &TensorSpec| -> Option<String> {
        let shape: Vec<i64> = entry.shape(spec).iter().map(|&size| size.max(1)).collect();
        let elements = shape.iter().try_fold(1_i64, |all, &size| all.checked_mul(size))?;
        left = left.checked_sub(elements).filter(|left| *left >= 0)?;
        let element = match spec.datatype {
            DataType::Bytes => value!("a text"),
            DataType::Bool => value!(false),
            _ => value!(0),
        };
        let data = vec![element; usize::try_from(elements).ok()?];
        let (name, data) = (value!(spec.name), value!(data));
        Some(format!(
            "{{\"name\": {name}, \"datatype\": \"{}\", \"shape\": {shape:?}, \"data\": {data}}}",
            spec.datatype.name()
        ))
    };
    let inputs: Option<Vec<String>> = entry.inputs.iter().map(tensor).collect();
    Some(format!("{{\"inputs\": [\n  {}\n]}}", inputs?.join(",\n  ")))
}

/// Shows the form of a model, with the request and the answer of a trial.
pub(super) fn form(state: &ServerState, name: &str, version: &str, trial: Option<&Trial>) -> Markup {
    let Ok(entry) = state.registry.get(name, version) else { return html! {} };
    let example = proposed(&entry);
    let hint =
        example.is_none().then_some("A request of this model has too many numbers to write one here: paste one.");
    let request = trial.map(|trial| trial.request.clone()).or(example).unwrap_or_default();
    html! {
        h2 { "Try it" span.aside { "a request of the Open Inference Protocol, in JSON" } }
        form #try action={ "/ui" (PATH) } method="post" {
            input type="hidden" name="name" value=(name);
            input type="hidden" name="version" value=(version);
            textarea name="request" rows="6" aria-label="Request" spellcheck="false" required { "\n" (request) }
            @if let Some(hint) = hint { p.note { (hint) } }
            button type="submit" { "Send" }
        }
        div #answer aria-live="polite" { @if let Some(trial) = trial { (result(trial)) } }
    }
}

fn result(trial: &Trial) -> Markup {
    html! {
        @match &trial.answer {
            Ok(answer) => {
                p { "Answered after " (format::span(trial.took)) ": "
                    a href=(View::Search(trial.id.clone()).path()) { "its life" } }
                pre { (answer) }
            }
            Err(problem) => {
                p.bad { (problem.kind.http_status()) " after " (format::span(trial.took)) ": " (problem.message) }
            }
        }
    }
}
