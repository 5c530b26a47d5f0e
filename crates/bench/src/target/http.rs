//! REST: a JSON header, then the tensors in binary (or everything in JSON).
//!
//! Connections are HTTP/1.1, kept alive and pooled; each carries one request at a time, which is
//! what most clients do.

use std::error::Error;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Builder;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ripieno_model::DataType;
use serde::Deserialize;
use serde_json::{Value, json};

use super::tls::{ClientAuth, Connector};
use super::{TargetMetadata, failed, spec};
use crate::inputs::BenchTensor;
use crate::load::RequestOutcome;

const HEADER_LENGTH: &str = "inference-header-content-length";

/// A client for one model.
pub struct HttpClient {
    client: Client<Connector, Full<Bytes>>,
    auth: ClientAuth,
    model_url: String,
    infer: Uri,
    prepared: Vec<EncodedRequest>,
}

/// One encoded request.
struct EncodedRequest {
    body: Bytes,
    /// Length of the JSON part, if tensors follow it.
    header_length: Option<usize>,
}

#[derive(Deserialize)]
struct Metadata {
    inputs: Vec<InputMetadata>,
}

#[derive(Deserialize)]
struct InputMetadata {
    name: String,
    datatype: String,
    shape: Vec<i64>,
}

impl HttpClient {
    pub(super) fn new(
        authority: &str,
        model: &str,
        connections: usize,
        auth: &ClientAuth,
    ) -> anyhow::Result<HttpClient> {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(connections)
            .build(auth.connector(b"http/1.1"));
        let model_url = format!("{}://{authority}/v2/models/{model}", auth.scheme());
        let infer = format!("{model_url}/infer");
        let infer = infer.parse().with_context(|| format!("{infer} is no URL; check the address and --model"))?;
        Ok(HttpClient { client, auth: auth.clone(), model_url, infer, prepared: Vec::new() })
    }

    pub(super) async fn describe(&self) -> anyhow::Result<TargetMetadata> {
        let (status, body) = self.get(&self.model_url).await?;
        if !status.is_success() {
            bail!("{} answers {status}: {}", self.model_url, super::excerpt(&String::from_utf8_lossy(&body)));
        }
        let metadata: Metadata = serde_json::from_slice(&body)
            .with_context(|| format!("{} does not answer with a model's metadata", self.model_url))?;
        let inputs = metadata.inputs.into_iter().map(|input| spec(input.name, &input.datatype, input.shape));
        let inputs = inputs.collect::<anyhow::Result<_>>()?;
        // The configuration is an extension: a server without it just has no SLO.
        let config = self.get(&format!("{}/config", self.model_url)).await.ok();
        let config = config.and_then(|(_, body)| serde_json::from_slice::<Value>(&body).ok());
        Ok(TargetMetadata { inputs, slo_ms: config.as_ref().and_then(slo_ms) })
    }

    async fn get(&self, url: &str) -> anyhow::Result<(StatusCode, Bytes)> {
        let uri = url.parse().with_context(|| format!("{url} is no URL"))?;
        let request = self.request(Method::GET, uri).body(Full::default())?;
        let answer = tokio::time::timeout(Duration::from_secs(10), self.client.request(request));
        let response = answer.await.with_context(|| format!("{url} does not answer within 10 s"))?;
        let response = response.with_context(|| format!("cannot reach {url}; is the server running?"))?;
        let status = response.status();
        let body = response.into_body().collect().await.with_context(|| format!("{url}: the answer broke off"))?;
        Ok((status, body.to_bytes()))
    }

    fn request(&self, method: Method, uri: Uri) -> Builder {
        let request = Request::builder().method(method).uri(uri);
        match self.auth.authorization() {
            Some(authorization) => request.header(AUTHORIZATION, authorization),
            None => request,
        }
    }

    pub(super) fn prepare(&mut self, requests: &[Vec<BenchTensor>], json_tensors: bool) -> anyhow::Result<()> {
        let encode = |tensors: &Vec<BenchTensor>| if json_tensors { as_json(tensors) } else { Ok(as_binary(tensors)) };
        self.prepared = requests.iter().map(encode).collect::<anyhow::Result<_>>()?;
        Ok(())
    }

    pub(super) async fn send(&self, index: u64) -> RequestOutcome {
        match self.exchange(index).await {
            Ok((StatusCode::OK, _)) => RequestOutcome::Answered,
            Ok((status, body)) => failed(format!("HTTP {}", status.as_u16()), &String::from_utf8_lossy(&body)),
            Err(error) => failed("connection", &causes(&*error)),
        }
    }

    async fn exchange(&self, index: u64) -> Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>> {
        let prepared = &self.prepared[(index % self.prepared.len() as u64) as usize];
        let request = self.request(Method::POST, self.infer.clone());
        let request = match prepared.header_length {
            Some(length) => request.header(CONTENT_TYPE, "application/octet-stream").header(HEADER_LENGTH, length),
            None => request.header(CONTENT_TYPE, "application/json"),
        };
        let response = self.client.request(request.body(Full::new(prepared.body.clone()))?).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}

/// Returns an error with all its causes: the outermost alone says no more than "client error".
fn causes(error: &(dyn Error + 'static)) -> String {
    let chain: Vec<String> =
        std::iter::successors(Some(error), |&error| error.source()).map(|e| e.to_string()).collect();
    chain.join(": ")
}

/// Returns the SLO in a model configuration: `parameters.slo_ms.string_value`, as in Triton.
fn slo_ms(config: &Value) -> Option<f64> {
    config.pointer("/parameters/slo_ms/string_value")?.as_str()?.parse().ok()
}

fn as_binary(tensors: &[BenchTensor]) -> EncodedRequest {
    let inputs: Vec<Value> = tensors
        .iter()
        .map(|tensor| {
            json!({
                "name": tensor.name, "datatype": tensor.datatype.name(), "shape": tensor.shape,
                "parameters": { "binary_data_size": tensor.data.len() },
            })
        })
        .collect();
    let header = json!({ "parameters": { "binary_data_output": true }, "inputs": inputs }).to_string();
    let mut body = Vec::from(header.as_bytes());
    tensors.iter().for_each(|tensor| body.extend_from_slice(&tensor.data));
    EncodedRequest { body: body.into(), header_length: Some(header.len()) }
}

fn as_json(tensors: &[BenchTensor]) -> anyhow::Result<EncodedRequest> {
    let inputs = tensors.iter().map(|tensor| {
        Ok(json!({
            "name": tensor.name, "datatype": tensor.datatype.name(), "shape": tensor.shape, "data": elements(tensor)?,
        }))
    });
    let inputs = inputs.collect::<anyhow::Result<Vec<Value>>>()?;
    Ok(EncodedRequest { body: json!({ "inputs": inputs }).to_string().into(), header_length: None })
}

/// Returns the elements as a flat JSON array.
fn elements(tensor: &BenchTensor) -> anyhow::Result<Vec<Value>> {
    macro_rules! numbers {
        ($type:ty) => {{
            let (chunks, _) = tensor.data.as_chunks::<{ size_of::<$type>() }>();
            chunks.iter().map(|&bytes| json!(<$type>::from_le_bytes(bytes))).collect()
        }};
    }
    Ok(match tensor.datatype {
        DataType::Bool => tensor.data.iter().map(|&byte| json!(byte != 0)).collect(),
        DataType::Uint8 => numbers!(u8),
        DataType::Uint16 => numbers!(u16),
        DataType::Uint32 => numbers!(u32),
        DataType::Uint64 => numbers!(u64),
        DataType::Int8 => numbers!(i8),
        DataType::Int16 => numbers!(i16),
        DataType::Int32 => numbers!(i32),
        DataType::Int64 => numbers!(i64),
        DataType::Fp32 => numbers!(f32),
        DataType::Fp64 => numbers!(f64),
        // Only empty strings are ever generated: four zero bytes each.
        DataType::Bytes => vec![json!(""); tensor.data.len() / 4],
        DataType::Fp16 | DataType::Bf16 => {
            bail!("input {:?} is {}, which has no JSON form; leave --json-tensors out", tensor.name, tensor.datatype)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(datatype: DataType, data: &[u8]) -> BenchTensor {
        BenchTensor { name: "x".into(), datatype, shape: vec![1, 2], data: Bytes::copy_from_slice(data) }
    }

    #[test]
    fn binary_bodies_say_where_the_tensors_start() {
        let prepared = as_binary(&[tensor(DataType::Uint8, &[1, 2]), tensor(DataType::Uint8, &[3, 4])]);
        let (header, tensors) = prepared.body.split_at(prepared.header_length.unwrap());
        let header: Value = serde_json::from_slice(header).unwrap();
        assert_eq!(header["inputs"][1]["parameters"]["binary_data_size"], 2);
        assert_eq!(tensors, [1, 2, 3, 4]);
    }

    #[test]
    fn json_bodies_hold_the_elements() {
        let floats: Vec<u8> = [0.5f32, -1.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let body = as_json(&[tensor(DataType::Fp32, &floats), tensor(DataType::Bytes, &[0; 8])]).unwrap().body;
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["inputs"][0]["data"], json!([0.5, -1.0]));
        assert_eq!(body["inputs"][1]["data"], json!(["", ""]));
        assert!(as_json(&[tensor(DataType::Fp16, &[0; 4])]).is_err_and(|error| error.to_string().contains("FP16")));
    }

    #[test]
    fn the_slo_is_read_from_the_configuration() {
        assert_eq!(slo_ms(&json!({"parameters": {"slo_ms": {"string_value": "20.5"}}})), Some(20.5));
        assert_eq!(slo_ms(&json!({"parameters": {}})), None);
    }
}
