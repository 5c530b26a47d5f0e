//! Text models, from their files to the calls of OpenAI's and rerankers' clients.

use crate::support::{Running, config, serving};
use hyper::StatusCode;
use ripieno_server::ServerConfig;
use serde_json::{Value, json};
use std::path::Path;

const CLASSES: &str = r#"{"id2label": {"0": "bad", "1": "fine", "2": "good"}}"#;

/// Builds a repository of the test models, each with a tokenizer; "half" declares nothing and takes
/// other inputs than token ids.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let of = |file: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let put = |model: &str, file: &str, toml: &str| {
        let version = folder.path().join(model).join("1");
        std::fs::create_dir_all(&version).unwrap();
        std::fs::copy(of(file), version.join("model.onnx")).unwrap();
        let beside = folder.path().join(model);
        std::fs::copy(of("text/tests/models/tokenizer.json"), beside.join("tokenizer.json")).unwrap();
        std::fs::write(beside.join("model.toml"), format!("slo_ms = 60000\nmax_batch = 4\n{toml}")).unwrap();
    };
    put("encoder", "text/tests/models/encoder.onnx", "[text]\nmax_length = 32\n");
    put("classifier", "text/tests/models/classifier.onnx", "");
    std::fs::write(folder.path().join("classifier/config.json"), CLASSES).unwrap();
    put("ranker", "text/tests/models/ranker.onnx", "[text]\nmax_length = 32\ntruncate = true\n");
    put("half", "executor/tests/models/mlp.onnx", "");
    folder
}

async fn start(config: ServerConfig) -> Running {
    let (server, reports) = serving(config, folder().path()).await;
    assert!(reports.iter().all(|report| report.error.is_none() && report.warnings.is_empty()), "{reports:?}");
    server
}

async fn ask(server: &Running, path: &str, body: Value) -> (StatusCode, Value) {
    let reply = server.post(path, &[], body.to_string()).await;
    (reply.status, reply.json())
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[tokio::test]
async fn embeddings_do_not_depend_on_other_texts_of_the_batch() {
    let server = start(config()).await;
    let texts =
        ["The film was great.", "the film was great .", "a very very very long river in germany and france", "food"];
    let (status, together) = ask(&server, "/v1/embeddings", json!({"model": "encoder", "input": texts})).await;
    assert_eq!((status, &together["object"], &together["model"]), (StatusCode::OK, &json!("list"), &json!("encoder")));
    // [CLS] the film was great . [SEP], the same, eleven and three.
    assert_eq!(together["usage"], json!({"prompt_tokens": 7 + 7 + 12 + 3, "total_tokens": 7 + 7 + 12 + 3}));
    let vectors: Vec<Vec<f64>> = (0..4).map(|at| numbers(&together["data"][at]["embedding"])).collect();
    assert!(vectors.iter().all(|vector| vector.len() == 16 && (product(vector, vector) - 1.0).abs() < 1e-5));
    assert!((product(&vectors[0], &vectors[1]) - 1.0).abs() < 1e-5 && product(&vectors[0], &vectors[2]) < 0.99);
    for (at, text) in texts.into_iter().enumerate() {
        let (_, alone) = ask(&server, "/v1/embeddings", json!({"model": "encoder", "input": text})).await;
        let alone = numbers(&alone["data"][0]["embedding"]);
        assert!(alone.iter().zip(&vectors[at]).all(|(a, b)| (a - b).abs() < 1e-4), "{text}");
    }
    let shorter = json!({"model": "encoder", "input": texts, "dimensions": 4, "encoding_format": "base64"});
    let (_, shorter) = ask(&server, "/v1/embeddings", shorter).await;
    // Four numbers of four bytes, in base64.
    assert_eq!(shorter["data"][3]["embedding"].as_str().unwrap().len(), 24);
    let ids = json!({"model": "encoder", "input": [[2, 4, 7, 3]]});
    assert_eq!(ask(&server, "/v1/embeddings", ids).await.1["usage"]["total_tokens"], 4);
}

#[tokio::test]
async fn classes_and_ranks() {
    let server = start(config()).await;
    let (status, classes) =
        ask(&server, "/v1/classify", json!({"model": "classifier", "input": ["the food was bad", "lovely"]})).await;
    assert_eq!((status, classes["data"].as_array().unwrap().len()), (StatusCode::OK, 2));
    let probabilities = numbers(&classes["data"][0]["probs"]);
    assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-5 && classes["data"][0]["num_classes"] == 3);
    let best = probabilities.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    assert_eq!(classes["data"][0]["label"], ["bad", "fine", "good"][best]);

    let documents = json!(["paris is the capital of france", {"text": "a dull film"}, "the river"]);
    let asked = json!({"model": "ranker", "query": "what is the capital of france ?", "documents": documents,
        "top_n": 2, "return_documents": true});
    let (status, ranked) = ask(&server, "/v1/rerank", asked).await;
    let results = ranked["results"].as_array().unwrap();
    assert_eq!((status, results.len()), (StatusCode::OK, 2));
    let score = |at: usize| results[at]["relevance_score"].as_f64().unwrap();
    assert!(score(0) >= score(1) && (0.0..=1.0).contains(&score(0)));
    let place = results[0]["index"].as_u64().unwrap() as usize;
    let text = documents[place].as_str().or(documents[place]["text"].as_str()).unwrap();
    assert_eq!(results[0]["document"]["text"], text);
    // The model's configuration truncates texts that are too long.
    let long = json!({"model": "ranker", "query": "who", "documents": ["the river ".repeat(100)]});
    let (status, cut) = ask(&server, "/v1/rerank", long).await;
    assert_eq!((status, &cut["usage"]["total_tokens"]), (StatusCode::OK, &json!(32)));
}

#[tokio::test]
async fn text_models_are_listed_and_errors_use_openais_format() {
    let server = start(config()).await;
    let listed = server.get("/v1/models").await.json();
    let rows = listed["data"].as_array().unwrap();
    let row = |row: &Value| (row["id"].as_str().unwrap().to_owned(), row["task"].as_str().unwrap().to_owned());
    let expected = [("classifier", "classify"), ("encoder", "embed"), ("ranker", "rerank")];
    assert_eq!(rows.iter().map(row).collect::<Vec<_>>(), expected.map(|(id, task)| (id.to_owned(), task.to_owned())));
    let long = "the ".repeat(40);
    let many = vec!["a"; 2049];
    for (path, body, status, needle) in [
        ("embeddings", json!({"model": "missing", "input": "a"}), 404, "unknown model"),
        ("embeddings", json!({"model": "half", "input": "a"}), 400, "reads no text"),
        ("embeddings", json!({"model": "classifier", "input": "a"}), 400, "ask /v1/classify"),
        ("embeddings", json!({"model": "encoder", "input": ["a", long]}), 400, "text 1: it has more than 32 tokens"),
        ("embeddings", json!({"model": "encoder", "input": []}), 400, "there is no text"),
        ("embeddings", json!({"model": "encoder", "input": many}), 400, "2048 are the most"),
        ("embeddings", json!({"model": "encoder", "input": 7}), 400, "input must be a text"),
        ("embeddings", json!({"model": "encoder", "input": "a", "dimensions": 17}), 400, "vectors have 16"),
        ("embeddings", json!({"model": "encoder", "input": [[1_000_000]]}), 400, ""),
        ("rerank", json!({"model": "ranker", "query": "a", "documents": []}), 400, "there is no text"),
        ("rerank", json!({"model": "ranker", "documents": ["a"]}), 400, "missing field `query`"),
        ("nowhere", json!({}), 404, "is no path"),
    ] {
        let (got, answer) = ask(&server, &format!("/v1/{path}"), body).await;
        let error = &answer["error"];
        assert_eq!((got.as_u16(), &error["code"]), (status, &json!(status)), "{answer}");
        assert!(error["message"].as_str().unwrap().contains(needle), "{needle}: {answer}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

/// A call with many texts holds the memory that it needs, and fills at most two batches of the
/// queue.
#[tokio::test]
async fn many_texts_in_one_call() {
    let server = start(config()).await;
    let texts: Vec<String> = (0..2000).map(|at| "great film ".repeat(1 + at % 14)).collect();
    let (status, answer) = ask(&server, "/v1/embeddings", json!({"model": "encoder", "input": texts})).await;
    assert_eq!((status, answer["data"].as_array().map(Vec::len)), (StatusCode::OK, Some(2000)));
    let tight = start(ServerConfig { max_bytes_in_flight: 1 << 19, ..config() }).await;
    let large = json!({"model": "encoder", "input": "word ".repeat(10_000), "truncate": true});
    let (status, answer) = ask(&tight, "/v1/embeddings", large).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{answer}");
    let (status, _) = ask(&tight, "/v1/embeddings", json!({"model": "encoder", "input": "word"})).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn calls_that_name_no_model_reach_the_only_one_of_their_task() {
    let server = start(config()).await;
    let texts = ["The film was great.", "food"];
    let (status, vectors) = ask(&server, "/embed", json!({"inputs": texts, "truncate": true})).await;
    let (_, same) = ask(&server, "/v1/embeddings", json!({"model": "encoder", "input": texts})).await;
    assert_eq!((status, vectors.as_array().unwrap().len()), (StatusCode::OK, 2));
    for at in 0..2 {
        let (one, other) = (numbers(&vectors[at]), numbers(&same["data"][at]["embedding"]));
        assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-4), "{at}");
    }
    let (_, short) = ask(&server, "/embed", json!({"inputs": "food", "dimensions": 4})).await;
    let short = numbers(&short[0]);
    assert!(short.len() == 4 && (product(&short, &short) - 1.0).abs() < 1e-5);

    let asked =
        json!({"query": "what is the capital of france ?", "texts": ["a dull film", "the river"], "return_text": true});
    let (status, ranked) = ask(&server, "/rerank", asked).await;
    assert_eq!((status, ranked.as_array().unwrap().len()), (StatusCode::OK, 2));
    assert!(ranked[0]["score"].as_f64().unwrap() >= ranked[1]["score"].as_f64().unwrap());
    assert_eq!(ranked[0]["text"], ["a dull film", "the river"][ranked[0]["index"].as_u64().unwrap() as usize]);

    let (status, classes) = ask(&server, "/predict", json!({"inputs": "the food was bad"})).await;
    let scores: Vec<f64> = classes.as_array().unwrap().iter().map(|class| class["score"].as_f64().unwrap()).collect();
    assert_eq!((status, scores.len()), (StatusCode::OK, 3));
    assert!(scores.is_sorted_by(|a, b| a >= b) && (scores.iter().sum::<f64>() - 1.0).abs() < 1e-5);
    let (_, many) = ask(&server, "/predict", json!({"inputs": ["the food was bad"]})).await;
    assert_eq!(many[0][0]["label"], classes[0]["label"]);

    for (path, body, status, needle) in [
        ("/embed?model=missing", json!({"inputs": "a"}), 404, "unknown model"),
        ("/embed?model=ranker", json!({"inputs": "a"}), 400, "ask /v1/rerank"),
        ("/embed", json!({"inputs": "a", "normalize": false}), 400, "of length one by its configuration"),
        ("/rerank", json!({"query": "a", "texts": ["b"], "raw_scores": true}), 400, "probabilities only"),
    ] {
        let (found, body) = ask(&server, path, body).await;
        assert_eq!(
            (found.as_u16(), body["error"].as_str().unwrap().contains(needle)),
            (status, true),
            "{path}: {body}"
        );
    }
}
