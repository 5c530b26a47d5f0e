//! Reads request bodies with limits on size before and after decompression, on time, and on the sum
//! over all requests.
//!
//! Bytes are reserved before they are read or decompressed, and stay reserved until the last tensor
//! that is a slice of them is dropped.

use crate::limits::budget::{MemoryBudget, Reservation, hold};
use crate::limits::connection::ClientConnection;
use crate::problem::{Problem, ProblemKind};
use crate::protocol::compression::Encoding;
use crate::state::ServerState;
use bytes::Bytes;
use flate2::read::{GzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::CONTENT_ENCODING;
use hyper::{HeaderMap, Request};
use ripieno_base::ModelId;
use ripieno_runtime::RefusedWhy;
use std::io::Read;
use std::sync::Arc;

/// Number of bytes decompressed at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Reads the body of a request and marks it as read on its connection.
///
/// The flight recorder learns of a body for `model` that did not arrive in time.
pub(super) async fn read_for(
    state: &ServerState,
    model: Option<ModelId>,
    request: &mut Request<Incoming>,
) -> Result<Bytes, Problem> {
    let read = read(state, request).await;
    if let (Err(Problem { kind: ProblemKind::TooSlow, .. }), Some(model)) = (&read, model)
        && let Some(flight) = state.backend.flight()
    {
        flight.refused(model, RefusedWhy::SlowClient);
    }
    read
}

/// Reads the body of a request and marks it as read on its connection.
pub(crate) async fn read(state: &ServerState, request: &mut Request<Incoming>) -> Result<Bytes, Problem> {
    let encoding = encoding(request.headers())?;
    let connection = request.extensions().get::<Arc<ClientConnection>>().cloned();
    let budget = state.budget_of(connection.as_ref());
    let (bytes, reserved) = collect(state, budget, request.body_mut(), state.config.max_body_bytes).await?;
    if let Some(connection) = connection {
        connection.body_read();
    }
    inflate(state, encoding, bytes, reserved).await
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(Encoding::Identity) };
    Encoding::named(value.as_bytes()).ok_or_else(|| {
        Problem::new(
            ProblemKind::UnknownEncoding,
            format!("Content-Encoding {value:?} is not supported; use gzip, deflate or none"),
        )
    })
}

/// Reads a body of at most `most` bytes within the body timeout, which is shorter during shutdown.
pub(crate) async fn collect(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    body: &mut Incoming,
    most: usize,
) -> Result<(Vec<u8>, Reservation), Problem> {
    let timeout = state.config.body_timeout;
    tokio::select! {
        biased;
        collected = tokio::time::timeout(timeout, collect_all(state, budget, body, most)) => collected.map_err(|_| {
            Problem::new(ProblemKind::TooSlow, format!("the body did not arrive within {} s", timeout.as_secs_f64()))
        })?,
        problem = state.until_bodies_overdue() => Err(problem),
    }
}

async fn collect_all(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    body: &mut Incoming,
    most: usize,
) -> Result<(Vec<u8>, Reservation), Problem> {
    let declared = body.size_hint().exact();
    let most = match declared {
        Some(declared) if declared > most as u64 => return Err(Problem::too_large(state.config.max_body_bytes)),
        Some(declared) => declared as usize,
        None => most,
    };
    let (mut reserved, mut whole) = (budget.reserve(0)?, Vec::new());
    reserved.reserve_body(&mut whole, declared.map_or(0, |_| most))?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::invalid(format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > most {
            return Err(Problem::too_large(state.config.max_body_bytes));
        }
        reserved.grow(&mut whole, data.len(), most)?;
        whole.extend_from_slice(&data);
    }
    Ok((whole, reserved))
}

/// Decompresses the bytes, with a reservation for the result.
pub(crate) async fn inflate(
    state: &ServerState,
    encoding: Encoding,
    bytes: Vec<u8>,
    reserved: Reservation,
) -> Result<Bytes, Problem> {
    if encoding == Encoding::Identity {
        return Ok(hold(bytes, reserved));
    }
    let (most, room) = (state.config.max_body_bytes, reserved.empty_sibling());
    let inflated = state.run_cpu_bound(move || {
        let inflated = match encoding {
            Encoding::Gzip => read_reserved(GzDecoder::new(bytes.as_slice()), room, most),
            _ => read_reserved(ZlibDecoder::new(bytes.as_slice()), room, most),
        };
        drop((bytes, reserved));
        inflated
    });
    inflated.await??.ok_or_else(|| Problem::too_large(state.config.max_body_bytes))
}

/// Reads a decoder to its end; returns `None` if the output exceeds `most`.
fn read_reserved(mut reader: impl Read, mut room: Reservation, most: usize) -> Result<Option<Bytes>, Problem> {
    let mut inflated = Vec::new();
    loop {
        let filled = inflated.len();
        room.grow(&mut inflated, PIECE_BYTES, most.saturating_add(PIECE_BYTES))?;
        inflated.resize(filled + PIECE_BYTES, 0);
        let read = reader
            .read(&mut inflated[filled..])
            .map_err(|error| Problem::invalid(format!("the body cannot be decompressed: {error}")))?;
        inflated.truncate(filled + read);
        if inflated.len() > most {
            return Ok(None);
        }
        if read == 0 {
            return Ok(Some(hold(inflated, room)));
        }
    }
}
