//! Reads request bodies: bounded in size before and after decompression, in time, and in sum over all requests.

use crate::problem::{Kind, Problem};
use crate::state::State;
use bytes::{Bytes, BytesMut};
use flate2::read::{GzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Incoming};
use hyper::header::CONTENT_ENCODING;
use std::io::Read;
use tokio::sync::OwnedSemaphorePermit;

/// A body, and its share of the server's budget, which lasts until this is dropped.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    _reserved: Option<OwnedSemaphorePermit>,
}

#[derive(Clone, Copy)]
enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

pub(super) async fn read(state: &State, headers: &HeaderMap, body: Incoming) -> Result<Received, Problem> {
    let encoding = encoding(headers)?;
    let timeout = state.config.body_timeout;
    let (bytes, mut reserved) = tokio::time::timeout(timeout, collect(state, body)).await.map_err(|_| {
        Problem::new(Kind::TooSlow, format!("the body did not arrive within {} s", timeout.as_secs_f64()))
    })??;
    let Some(bytes) = inflate(state, encoding, bytes).await? else {
        return Err(too_large(state));
    };
    if !matches!(encoding, Encoding::Identity) {
        reserved = Some(state.reserve(bytes.len())?);
    }
    Ok(Received { bytes, _reserved: reserved })
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(Encoding::Identity) };
    match value.as_bytes().trim_ascii().to_ascii_lowercase().as_slice() {
        b"" | b"identity" => Ok(Encoding::Identity),
        b"gzip" | b"x-gzip" => Ok(Encoding::Gzip),
        b"deflate" => Ok(Encoding::Deflate),
        _ => Err(Problem::new(
            Kind::UnknownEncoding,
            format!("Content-Encoding {value:?} is not supported; use gzip, deflate or none"),
        )),
    }
}

fn too_large(state: &State) -> Problem {
    Problem::new(
        Kind::TooLarge,
        format!("the request is larger than {} bytes; send fewer rows at once", state.config.max_body_bytes),
    )
}

async fn collect(state: &State, mut body: Incoming) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Problem> {
    let declared = body.size_hint().exact().unwrap_or(0);
    if declared > state.config.max_body_bytes as u64 {
        return Err(too_large(state));
    }
    let declared = declared as usize;
    // What is declared is reserved at once, so that a body that was begun can also be finished.
    let mut reserved = (declared > 0).then(|| state.reserve(declared)).transpose()?;
    let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::invalid(format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let size = first.len() + whole.len() + data.len();
        if size > state.config.max_body_bytes {
            return Err(too_large(state));
        }
        if size > declared {
            let more = state.reserve(data.len())?;
            match &mut reserved {
                Some(reserved) => reserved.merge(more),
                None => reserved = Some(more),
            }
        }
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole.reserve(declared.max(size));
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok((if whole.is_empty() { first } else { whole.freeze() }, reserved))
}

/// None if it inflates beyond the bound.
async fn inflate(state: &State, encoding: Encoding, bytes: Bytes) -> Result<Option<Bytes>, Problem> {
    let limit = state.config.max_body_bytes;
    if matches!(encoding, Encoding::Identity) {
        return Ok(Some(bytes));
    }
    let work = move || match encoding {
        Encoding::Gzip => read_limited(GzDecoder::new(bytes.as_ref()), limit),
        Encoding::Deflate => read_limited(ZlibDecoder::new(bytes.as_ref()), limit),
        Encoding::Identity => Ok(Vec::new()),
    };
    let inflated = tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Problem::new(Kind::Internal, format!("decompression failed: {error}")))?;
    let inflated = inflated.map_err(|error| Problem::invalid(format!("the body cannot be decompressed: {error}")))?;
    Ok((inflated.len() <= limit).then(|| Bytes::from(inflated)))
}

fn read_limited(reader: impl Read, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut inflated = Vec::new();
    reader.take(limit as u64 + 1).read_to_end(&mut inflated)?;
    Ok(inflated)
}
