//! Framing of gRPC messages: a five-byte head (compression flag and length), then the message.
//!
//! tonic handles all calls that carry no tensors. It buffers messages without limits; here their
//! bytes are reserved as they arrive, must arrive in time, and are inspected before they are
//! decoded.

use crate::call::decoded;
use crate::limits::budget::{MemoryBudget, Reservation, hold};
use crate::limits::connection::ClientConnection;
use crate::problem::{Problem, ProblemKind};
use crate::protocol::compression::{Encoding, compress};
use crate::protocol::http::body::inflate;
use crate::state::{PARSE_INLINE_BYTES, ServerState};
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use prost::Message;
use ripieno_wire::proto::inference::ModelInferRequest;
use ripieno_wire::{InferRequest, grpc};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

const HEAD_BYTES: usize = 5;
pub(super) static ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
static ACCEPT: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Incoming messages of one call.
pub(super) struct Messages {
    body: Incoming,
    encoding: Encoding,
    /// Received bytes of the next message.
    rest: Bytes,
    /// Whether part of the next message has arrived.
    begun: Arc<AtomicBool>,
    budget: Arc<MemoryBudget>,
    connection: Option<Arc<ClientConnection>>,
}

impl Messages {
    pub(super) fn new(
        state: &ServerState,
        headers: &HeaderMap,
        body: Incoming,
        connection: Option<Arc<ClientConnection>>,
    ) -> Result<Messages, Problem> {
        let name = headers.get(&ENCODING).map_or(&b""[..], |value| value.as_bytes());
        let encoding = Encoding::named(name).ok_or_else(|| {
            let name = String::from_utf8_lossy(name);
            Problem::new(
                ProblemKind::UnknownEncoding,
                format!("grpc-encoding {name:?} is not supported; use gzip or deflate"),
            )
        })?;
        let budget = state.budget_of(connection.as_ref()).clone();
        Ok(Messages { body, encoding, rest: Bytes::new(), begun: Arc::default(), budget, connection })
    }

    /// Returns the flag for a partially received message, for callers that wait for messages and
    /// other events.
    pub(super) fn begun(&self) -> Arc<AtomicBool> {
        self.begun.clone()
    }

    /// Returns the only message of a unary call.
    pub(super) async fn only(&mut self, state: &ServerState) -> Result<Bytes, Problem> {
        tokio::select! {
            biased;
            message = self.only_one(state) => message,
            problem = state.until_bodies_overdue() => Err(problem),
        }
    }

    async fn only_one(&mut self, state: &ServerState) -> Result<Bytes, Problem> {
        let until = Instant::now() + state.config.body_timeout;
        let message = self.next_until(state, until).await?;
        let message = message.ok_or_else(|| Problem::invalid("the call ended without a message"))?;
        if self.next_until(state, until).await?.is_some() {
            return Err(Problem::invalid("the call has more than one message"));
        }
        Ok(message)
    }

    /// Returns the next message of a stream. It may take any time to begin, but has a timeout once
    /// it has. `None` at the end.
    pub(super) async fn next(&mut self, state: &ServerState) -> Result<Option<Bytes>, Problem> {
        if self.rest.is_empty() && !self.read_more().await? {
            return Ok(None);
        }
        self.begun.store(true, Relaxed);
        let message = self.next_until(state, Instant::now() + state.config.body_timeout).await;
        self.begun.store(false, Relaxed);
        message
    }

    async fn next_until(&mut self, state: &ServerState, until: Instant) -> Result<Option<Bytes>, Problem> {
        let late = || {
            let seconds = state.config.body_timeout.as_secs_f64();
            Problem::new(ProblemKind::TooSlow, format!("the message did not arrive within {seconds} s"))
        };
        let Some((compressed, length)) = timeout_at(until, self.head()).await.map_err(|_| late())?? else {
            return Ok(None);
        };
        if length > state.config.max_body_bytes {
            return Err(Problem::too_large(state.config.max_body_bytes));
        }
        let (mut reserved, mut message) = (self.budget.reserve(0)?, Vec::new());
        reserved.reserve_body(&mut message, length)?;
        while message.len() < length {
            if self.rest.is_empty() && !timeout_at(until, self.read_more()).await.map_err(|_| late())?? {
                return Err(Problem::invalid("the call ended within a message"));
            }
            let take = self.rest.len().min(length - message.len());
            reserved.grow(&mut message, take, length)?;
            message.extend_from_slice(&self.rest.split_to(take));
        }
        let encoding = match (compressed, self.encoding) {
            (0, _) => Encoding::Identity,
            (1, Encoding::Identity) => return Err(Problem::invalid("a compressed message without grpc-encoding")),
            (1, encoding) => encoding,
            (other, _) => return Err(Problem::invalid(format!("a message begins with {other}; it must be 0 or 1"))),
        };
        inflate(state, encoding, message, reserved).await.map(Some)
    }

    /// Returns the compression flag and length of the next message. `None` at the end of the call.
    async fn head(&mut self) -> Result<Option<(u8, usize)>, Problem> {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        while head.len() < HEAD_BYTES {
            if self.rest.is_empty() && !self.read_more().await? {
                if head.is_empty() {
                    return Ok(None);
                }
                return Err(Problem::invalid("the call ended within the head of a message"));
            }
            let take = self.rest.len().min(HEAD_BYTES - head.len());
            head.extend_from_slice(&self.rest.split_to(take));
        }
        Ok(Some((head.get_u8(), head.get_u32() as usize)))
    }

    /// Waits for more bytes; returns false at the end of the call.
    async fn read_more(&mut self) -> Result<bool, Problem> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| Problem::invalid(format!("the call broke off: {error}")))?;
            match frame.into_data() {
                Ok(data) if !data.is_empty() => {
                    self.rest = data;
                    return Ok(true);
                }
                _ => {}
            }
        }
        if let Some(connection) = self.connection.take() {
            connection.body_read();
        }
        Ok(false)
    }
}

/// Decodes a request; also returns its id, which is known even if the request is invalid.
pub(super) async fn decode(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    message: Bytes,
) -> (String, Result<InferRequest, Problem>) {
    let room = grpc::decoded_size(&message).map_err(Problem::from).and_then(|size| budget.reserve(size));
    let room = match room {
        Ok(room) => room,
        Err(problem) => return (String::new(), Err(problem)),
    };
    // Raw contents are not copied, so only typed ones take long.
    let is_long = room.bytes() > PARSE_INLINE_BYTES;
    let work = move || match grpc::decode_infer(message) {
        Ok(message) => (message.id.clone(), parse(message, room)),
        Err(error) => (String::new(), Err(error.into())),
    };
    if !is_long {
        return work();
    }
    state.run_cpu_bound(work).await.unwrap_or_else(|problem| (String::new(), Err(problem)))
}

fn parse(message: ModelInferRequest, room: Reservation) -> Result<InferRequest, Problem> {
    decoded::hold_inputs(grpc::parse_infer(message)?, room)
}

/// Encodes a message for the client, with its reservation until it is sent.
pub(super) fn encode(
    message: &impl Message,
    mut room: Reservation,
    connection: Option<&Arc<ClientConnection>>,
) -> Result<Bytes, Problem> {
    let mut bytes = grpc::encode_message(message, HEAD_BYTES);
    let length = u32::try_from(bytes.len() - HEAD_BYTES).map_err(|_| {
        Problem::new(ProblemKind::TooLarge, "the answer is larger than 4 GiB; ask for fewer rows per request")
    })?;
    bytes[1..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    room.resize(bytes.len())?;
    let unsent = connection.map(|connection| connection.unsent(bytes.len()));
    Ok(hold(bytes, (room, unsent)))
}

/// Returns the encoding of responses: the call's own, if the client accepts it.
pub(super) fn answers_in(headers: &HeaderMap) -> Encoding {
    let encoding = headers.get(&ENCODING).and_then(|name| Encoding::named(name.as_bytes()));
    let accepts = |encoding: &Encoding| {
        let Some(accepted) = headers.get(&ACCEPT) else { return false };
        accepted.as_bytes().split(|&byte| byte == b',').any(|name| Encoding::named(name) == Some(*encoding))
    };
    encoding.filter(accepts).unwrap_or(Encoding::Identity)
}

/// Compresses a message for the client if requested and smaller.
pub(super) async fn compressed(
    state: &ServerState,
    connection: Option<&Arc<ClientConnection>>,
    encoding: Encoding,
    message: Bytes,
) -> Bytes {
    let budget = state.budget_of(connection);
    let Some((mut smaller, room)) = compress(state, budget, encoding, &message, HEAD_BYTES).await else {
        return message;
    };
    let length = (smaller.len() - HEAD_BYTES) as u32;
    smaller[0] = 1;
    smaller[1..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    let unsent = connection.map(|connection| connection.unsent(smaller.len()));
    hold(smaller, (room, unsent))
}

/// Outgoing frames of a stream.
pub(super) type Frames = ReceiverStream<Result<Frame<Bytes>, Infallible>>;

/// Returns the trailers for a status.
pub(super) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if let Err(error) = status.add_header(&mut trailers) {
        tracing::warn!("a status cannot be sent: {error}");
        trailers.insert("grpc-status", HeaderValue::from(tonic::Code::Internal as i32));
    }
    trailers
}
