//! Requests of many lengths: dates, expressions and reviews, one request each, sent together.

use super::answers::{ModelClient, output_of};
use super::assets::TEXTS;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::net::SocketAddr;

/// Number of answers of each model that are shown.
const SHOWN: usize = 4;
/// The code at the end of a text.
const END: f64 = 3.0;

/// Requests of one model with their answers, as in models/samples/.
#[derive(Deserialize)]
struct TextSamples {
    model: String,
    output: String,
    reads: Reads,
    #[serde(default)]
    labels: Vec<String>,
    rows: Vec<TextSample>,
}

/// The decoding of an output.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reads {
    /// ASCII codes.
    Text,
    Number,
    /// An index into the labels.
    Label,
}

#[derive(Deserialize)]
struct TextSample {
    text: String,
    answer: String,
    inputs: Value,
}

/// A model's answers.
#[derive(Serialize)]
pub(super) struct Texts {
    model: String,
    right: usize,
    answers: Vec<TextAnswer>,
}

#[derive(Serialize)]
struct TextAnswer {
    asked: String,
    said: String,
    truth: String,
}

/// Sends every sample to the server at `http`.
pub(super) async fn ask(http: SocketAddr) -> anyhow::Result<Vec<Texts>> {
    let mut all = Vec::new();
    for text in TEXTS {
        let samples: TextSamples = serde_json::from_str(text)?;
        all.push(ask_model(http, samples).await.context("a model in cells")?);
    }
    Ok(all)
}

async fn ask_model(http: SocketAddr, samples: TextSamples) -> anyhow::Result<Texts> {
    let client = ModelClient::new(http, &samples.model);
    let body = |row: &TextSample| {
        let outputs = serde_json::json!([{ "name": samples.output }]);
        serde_json::json!({ "inputs": row.inputs, "outputs": outputs }).to_string().into()
    };
    let asked: Vec<_> = samples.rows.iter().map(|row| tokio::spawn(client.clone().infer(body(row)))).collect();
    let mut answers = Vec::new();
    for (row, asked) in samples.rows.iter().zip(asked) {
        let data = output_of(&asked.await??)?;
        let said = read(&samples, &data).with_context(|| format!("{}: {:?}", samples.model, row.text))?;
        answers.push(TextAnswer { asked: row.text.clone(), said, truth: row.answer.clone() });
    }
    let right = answers.iter().filter(|answer| answer.said == answer.truth).count();
    Ok(Texts { model: samples.model, right, answers })
}

fn read(samples: &TextSamples, data: &[f64]) -> anyhow::Result<String> {
    let first = || data.first().copied().context("the output is empty");
    Ok(match samples.reads {
        Reads::Text => data.iter().take_while(|&&code| code != END).map(|&code| char::from(code as u8)).collect(),
        Reads::Number => first()?.to_string(),
        Reads::Label => samples.labels.get(first()? as usize).cloned().unwrap_or_else(|| "?".to_owned()),
    })
}

/// Returns the first answers of each model, and its accuracy.
pub(super) fn show(all: &[Texts]) -> String {
    let mut text = String::new();
    for Texts { model, right, answers } in all {
        for TextAnswer { asked, said, truth } in answers.iter().take(SHOWN) {
            let verdict = if said == truth { "✓".to_owned() } else { format!("✗ ({truth})") };
            text.push_str(&format!("  {asked}  →  {said} {verdict}\n"));
        }
        text.push_str(&format!("{model}: {right} of {} held-out questions right\n\n", answers.len()));
    }
    text
}
