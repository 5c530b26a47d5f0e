//! Real requests: held-out images, one request each, sent together, so that the server batches
//! them.

use super::Live;
use super::assets::IMAGES;
use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Upper bound on the attempts of a request.
const ATTEMPTS: usize = 20;
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Number of images drawn, side by side.
const DRAWN: usize = 6;
/// Shades from white to black, two characters a pixel.
const SHADES: [&str; 5] = ["  ", "░░", "▒▒", "▓▓", "██"];

/// Images of one model with their labels, as in models/samples/.
#[derive(Deserialize)]
struct ImageSamples {
    input: String,
    shape: Vec<i64>,
    scale: f64,
    labels: Vec<String>,
    rows: Vec<ImageSample>,
}

#[derive(Deserialize)]
struct ImageSample {
    data: Vec<f64>,
    label: usize,
}

/// A model's answers to its images.
#[derive(Serialize)]
pub(super) struct Answers {
    model: String,
    right: usize,
    /// Number of answers before the last block; `None` if the model has only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    early: Option<u64>,
    answers: Vec<Answer>,
}

#[derive(Serialize)]
struct Answer {
    said: String,
    truth: String,
    #[serde(skip)]
    pixels: Vec<f64>,
}

#[derive(Deserialize)]
struct Response {
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    data: Vec<f64>,
}

/// Sends every sample to the server.
pub(super) async fn ask(live: &Live) -> anyhow::Result<Vec<Answers>> {
    let mut all = Vec::new();
    for (text, models) in IMAGES {
        let samples: ImageSamples = serde_json::from_str(text)?;
        for model in models {
            let answers = ask_model(live.http, model, &samples).await?;
            all.push(Answers { early: live.early_exits(model)?, ..answers });
        }
    }
    Ok(all)
}

async fn ask_model(http: SocketAddr, model: &str, samples: &ImageSamples) -> anyhow::Result<Answers> {
    let client = ModelClient::new(http, model);
    let asked: Vec<_> = samples.rows.iter().map(|row| tokio::spawn(client.clone().infer(body(samples, row)))).collect();
    let mut answers = Vec::new();
    for (row, asked) in samples.rows.iter().zip(asked) {
        let logits = output_of(&asked.await??)?;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
        let label = |index: usize| samples.labels.get(index).cloned().unwrap_or_else(|| index.to_string());
        answers.push(Answer { said: label(best), truth: label(row.label), pixels: pixels(samples, row) });
    }
    let right = answers.iter().filter(|answer| answer.said == answer.truth).count();
    Ok(Answers { model: model.to_owned(), right, early: None, answers })
}

fn pixels(samples: &ImageSamples, row: &ImageSample) -> Vec<f64> {
    row.data.iter().map(|value| value * samples.scale).collect()
}

fn body(samples: &ImageSamples, row: &ImageSample) -> Bytes {
    let shape: Vec<i64> = std::iter::once(1).chain(samples.shape.iter().copied()).collect();
    let input = serde_json::json!({
        "name": samples.input, "datatype": "FP32", "shape": shape, "data": pixels(samples, row),
    });
    serde_json::json!({ "inputs": [input] }).to_string().into()
}

/// A client of one model.
#[derive(Clone)]
pub(super) struct ModelClient {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
}

impl ModelClient {
    pub(super) fn new(http: SocketAddr, model: &str) -> ModelClient {
        let client = Client::builder(TokioExecutor::new()).build_http();
        ModelClient { client, url: format!("http://{http}/v2/models/{model}/infer") }
    }

    /// Returns the answer; retries if it is late or refused: the burst of all requests may be more
    /// than a busy machine answers within the SLO.
    pub(super) async fn infer(self, body: Bytes) -> anyhow::Result<Bytes> {
        let ModelClient { client, url } = self;
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            let request =
                Request::post(&url).header("content-type", "application/json").body(Full::new(body.clone()))?;
            let response = client.request(request).await.with_context(|| format!("cannot reach {url}"))?;
            let status = response.status();
            let bytes = response.into_body().collect().await?.to_bytes();
            match status {
                _ if status.is_success() => return Ok(bytes),
                StatusCode::GATEWAY_TIMEOUT | StatusCode::TOO_MANY_REQUESTS if left > 0 => {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                _ => bail!("{url} answers {status}: {}", String::from_utf8_lossy(&bytes)),
            }
        }
    }
}

/// Returns the elements of the first output of an answer.
pub(super) fn output_of(answer: &[u8]) -> anyhow::Result<Vec<f64>> {
    let response: Response = serde_json::from_slice(answer).context("no inference answer")?;
    let output = response.outputs.into_iter().next().context("the answer has no output")?;
    Ok(output.data)
}

/// Returns the first digits drawn with their answers, and the accuracy of each model.
pub(super) fn show(all: &[Answers]) -> String {
    let mut text = String::new();
    for answers in all {
        let shown = &answers.answers[..DRAWN.min(answers.answers.len())];
        if answers.model == "digits" {
            text.push_str(&draw(shown));
        }
        let verdicts: Vec<_> = shown.iter().map(|answer| format!("{:<16}", verdict(answer))).collect();
        text.push_str(&format!("{}\n", verdicts.join(" ").trim_end()));
        let (model, right, asked) = (&answers.model, answers.right, answers.answers.len());
        let early = answers.early.map_or(String::new(), |early| format!(", {early} answered before the last block"));
        text.push_str(&format!("{model}: {right} of {asked} held-out images right{early}\n\n"));
    }
    text
}

fn verdict(answer: &Answer) -> String {
    match answer.said == answer.truth {
        true => format!("{} ✓", answer.said),
        false => format!("{} ✗ ({})", answer.said, answer.truth),
    }
}

/// Draws square grey images side by side.
fn draw(shown: &[Answer]) -> String {
    let side = shown.first().map_or(0, |answer| answer.pixels.len().isqrt());
    let shade = |value: f64| SHADES[((value * SHADES.len() as f64) as usize).min(SHADES.len() - 1)];
    let mut text = String::new();
    for y in 0..side {
        let line = |answer: &Answer| answer.pixels[y * side..][..side].iter().map(|&value| shade(value)).collect();
        let lines: Vec<String> = shown.iter().map(line).collect();
        text.push_str(&format!("{}\n", lines.join(" ").trim_end()));
    }
    text
}
