//! `GET /openapi.json`: the calls over HTTP in OpenAPI terms, for clients that are generated.
//!
//! Methods and permissions come from the paths themselves, so that the document cannot differ from
//! what is served. Calls that are only refused (trace settings, CUDA regions) are left out.

use super::path::{RestCall, parse};
use crate::access::Permission;
use serde_json::{Map, Value, json};

/// A path with placeholders, its summary, and the schemas of its body and of its answer; an empty
/// name is any JSON.
type ApiRoute = (&'static str, &'static str, &'static str, &'static str);

const MODEL: &str = "/v2/models/{model}";
const ROUTES: [ApiRoute; 36] = [
    ("/openapi.json", "This document", "", ""),
    ("/v2", "Name, version and extensions of the server", "", ""),
    ("/v2/health/live", "Whether the process answers", "", ""),
    ("/v2/health/ready", "Whether the server is ready", "", ""),
    ("/v2/health/status", "What is wrong, and what to change", "", "Status"),
    (MODEL, "Inputs and outputs of a model", "", ""),
    ("/v2/models/{model}/ready", "Whether a model is ready", "", ""),
    ("/v2/models/{model}/config", "Configuration of a model", "", ""),
    ("/v2/models/{model}/stats", "Statistics of a model", "", ""),
    ("/v2/models/{model}/infer", "Run a model", "InferRequest", "InferResponse"),
    ("/v2/models/{model}/generate", "Run a model by named parameters", "Generate", ""),
    ("/v2/models/{model}/generate_stream", "The same, each step as an event", "Generate", ""),
    ("/v2/models/{model}/versions/{version}", "Inputs and outputs of a version", "", ""),
    ("/v2/models/{model}/versions/{version}/ready", "Whether a version is ready", "", ""),
    ("/v2/models/{model}/versions/{version}/config", "Configuration of a version", "", ""),
    ("/v2/models/{model}/versions/{version}/stats", "Statistics of a version", "", ""),
    ("/v2/models/{model}/versions/{version}/infer", "Run a version", "InferRequest", "InferResponse"),
    ("/v2/models/stats", "Statistics of all models", "", ""),
    ("/v2/repository/index", "Models and versions with their states", "", ""),
    ("/v2/repository/models/{model}/load", "Load a model, or load it again", "Load", ""),
    ("/v2/repository/models/{model}/unload", "Take a model out of service", "Load", ""),
    ("/v2/devices", "The devices", "", ""),
    ("/v2/devices/add", "Add a device", "", ""),
    ("/v2/devices/{device}/remove", "Remove a device after its tasks", "", ""),
    ("/v2/devices/{device}/lose", "Give a device up with its tasks", "", ""),
    ("/v2/recording/dump", "The last minutes as a recording", "", ""),
    ("/v2/systemsharedmemory/status", "Regions of shared memory", "", ""),
    ("/v2/systemsharedmemory/region/{region}/register", "Register a region", "Region", ""),
    ("/v2/systemsharedmemory/region/{region}/unregister", "Forget a region", "", ""),
    ("/v1/models", "Models that take text", "", ""),
    ("/v1/embeddings", "Vectors of texts, as OpenAI's", "Texts", ""),
    ("/v1/classify", "Labels of texts", "Texts", ""),
    ("/v1/rerank", "Order documents by a query", "Ranking", ""),
    ("/embed", "Vectors of texts, as Hugging Face's server", "", ""),
    ("/rerank", "Order texts, as Hugging Face's server", "", ""),
    ("/predict", "Labels of texts, as Hugging Face's server", "", ""),
];

/// Returns the document.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    for (template, summary, body, answer) in ROUTES {
        let Some(call) = call(template) else { continue };
        let method = call.method().map_or("get".to_owned(), |method| method.as_str().to_lowercase());
        paths.insert(template.to_owned(), json!({ method: operation(template, &call, summary, (body, answer)) }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ripieno",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0" },
            "description": "The Open Inference Protocol (KServe V2) with Triton's extensions, and calls for texts.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// Returns the call of a template, with a number for each placeholder.
fn call(template: &str) -> Option<RestCall> {
    let filled = template.split('/').map(|part| if part.starts_with('{') { "1" } else { part });
    parse(&filled.collect::<Vec<_>>().join("/"))
}

fn operation(template: &str, call: &RestCall, summary: &str, (body, answer): (&str, &str)) -> Value {
    let content = |schema: &str| match schema {
        "" => json!({ "application/json": {} }),
        name => json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{name}") } } }),
    };
    let named = template.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = named
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    let mut operation = json!({
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": { "description": "The answer", "content": content(answer) },
            "default": { "description": "The reason for the refusal", "content": content("Error") },
        },
        // A server without tokens ignores one.
        "security": if call.permission() == Permission::Health { json!([]) } else { json!([{}, { "token": [] }]) },
    });
    if !body.is_empty() {
        operation["requestBody"] = json!({ "content": content(body) });
    }
    operation
}

fn schemas() -> Value {
    let text = || json!({ "type": "string" });
    let texts = json!({ "oneOf": [text(), { "type": "array", "items": { "type": "string" } }] });
    let tensor = json!({
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": text(),
            "shape": { "type": "array", "items": { "type": "integer" } },
            "datatype": { "type": "string", "examples": ["FP32", "INT64", "BYTES"] },
            "parameters": { "type": "object" },
            "data": { "type": "array", "description": "flat or nested, in row-major order", "items": {} },
        },
    });
    let tensors = || json!({ "type": "array", "items": { "$ref": "#/components/schemas/Tensor" } });
    json!({
        "Error": { "type": "object", "properties": { "error": { "type": "string" } } },
        "Status": {
            "type": "object",
            "properties": {
                "healthy": { "type": "boolean" },
                "problems": {
                    "type": "array",
                    "items": { "type": "object", "properties": { "name": text(), "says": text() } },
                },
            },
        },
        "Tensor": tensor,
        "InferRequest": {
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "id": text(),
                "parameters": { "type": "object", "description": "timeout in microseconds, priority, and more" },
                "inputs": tensors(),
                "outputs": { "type": "array", "items": { "type": "object", "properties": { "name": text() } } },
            },
        },
        "InferResponse": {
            "type": "object",
            "properties": {
                "model_name": text(), "model_version": text(), "id": text(), "outputs": tensors(),
            },
        },
        "Generate": { "type": "object", "description": "inputs of one row by name" },
        "Load": { "type": "object", "properties": { "parameters": { "type": "object" } } },
        "Region": {
            "type": "object",
            "required": ["key", "byte_size"],
            "properties": { "key": text(), "offset": { "type": "integer" }, "byte_size": { "type": "integer" } },
        },
        "Texts": { "type": "object", "properties": { "model": text(), "input": texts } },
        "Ranking": {
            "type": "object",
            "properties": {
                "model": text(), "query": text(), "documents": { "type": "array", "items": { "type": "string" } },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    #[test]
    fn every_route_is_a_call_and_every_reference_is_defined() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), ROUTES.len(), "each template is a path of the server");
        let method = |path: &str| paths[path].as_object().unwrap().keys().next().unwrap().clone();
        assert_eq!((method("/v2"), method("/v2/models/{model}/infer")), ("get".to_owned(), "post".to_owned()));
        let defined: BTreeSet<&str> =
            document["components"]["schemas"].as_object().unwrap().keys().map(String::as_str).collect();
        let text = document.to_string();
        let named = text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
        assert!(named.clone().count() > 40);
        named.for_each(|name| assert!(defined.contains(name), "{name}"));
    }

    /// Calls that the document lacks are those that are refused in any case.
    #[test]
    fn every_call_is_described() {
        let described: Vec<RestCall> = ROUTES.iter().map(|(template, ..)| call(template).unwrap()).collect();
        let has = |path: &str| {
            let call = parse(path).unwrap();
            described.iter().any(|other| discriminant(other) == discriminant(&call))
        };
        for path in ["/v2/trace/setting", "/v2/logging", "/v2/cudasharedmemory/status"] {
            assert!(!has(path), "{path}");
        }
        for path in ["/v2/devices/0/lose", "/v1/rerank", "/v2/systemsharedmemory/status", "/embed", "/openapi.json"] {
            assert!(has(path), "{path}");
        }
        let kinds = described.iter().map(|call| format!("{call:?}").split(['(', ' ']).next().unwrap().to_owned());
        // All 29 kinds but the three that are refused.
        assert_eq!(kinds.collect::<BTreeSet<_>>().len(), 26);
    }
}
