//! Reads frames from a stream, as many per read as have arrived; each tail is a slice of the
//! buffer.

use super::frame::{DecodeError, RECORD, header};
use super::message::max_tail;
use super::transport::silence;
use super::{ByteStream, Message};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Bytes per read. Memory grows with the bytes received, whatever length a frame claims.
const CHUNK: usize = 256 << 10;

/// Reads the messages of a peer.
pub struct MessageReader {
    stream: Arc<dyn ByteStream>,
    /// Target of the stream's reads.
    chunk: Box<[u8]>,
    frames: FrameBuffer,
    silence: Duration,
}

/// Bytes that have arrived, and are not decoded yet.
#[derive(Default)]
pub(super) struct FrameBuffer(BytesMut);

impl MessageReader {
    /// Returns a reader that fails once the peer has been silent for `silence`.
    pub fn new(stream: Arc<dyn ByteStream>, silence: Duration) -> MessageReader {
        MessageReader { stream, chunk: vec![0; CHUNK].into(), frames: FrameBuffer::default(), silence }
    }

    /// Waits for the next message. Fails once the stream has ended or a frame is malformed.
    pub fn read(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = self.frames.pop()? {
                return Ok(message);
            }
            self.fill()?;
        }
    }

    /// Returns true if the next message has arrived already.
    pub fn has_next(&self) -> bool {
        self.frames.has_next()
    }

    fn fill(&mut self) -> io::Result<()> {
        match self.stream.read(&mut self.chunk, self.silence) {
            Ok(0) => Err(end_of_stream()),
            Ok(read) => {
                self.frames.push(&self.chunk[..read]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(silence(error, "nothing", self.silence)),
        }
    }
}

/// Returns the error of a stream that the peer has closed.
pub(super) fn end_of_stream() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection")
}

impl FrameBuffer {
    /// Appends bytes that have arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if a whole message is there.
    pub(super) fn has_next(&self) -> bool {
        let record = self.0.first_chunk::<RECORD>();
        record.is_some_and(|record| self.0.len() - RECORD >= header(record).1)
    }

    /// Removes the next message; `None` if it has not arrived.
    pub(super) fn pop(&mut self) -> Result<Option<Message>, DecodeError> {
        let Some((record, tail)) = self.frame()? else { return Ok(None) };
        Message::decode(&record, tail).map(Some)
    }

    fn frame(&mut self) -> Result<Option<([u8; RECORD], Bytes)>, DecodeError> {
        let FrameBuffer(buffer) = self;
        let Some(&record) = buffer.first_chunk::<RECORD>() else { return Ok(None) };
        let (kind, tail) = header(&record);
        let most = max_tail(kind).ok_or_else(|| DecodeError(format!("a record of kind {kind}")))?;
        if tail > most {
            return Err(DecodeError(format!("a record of kind {kind} with {tail} bytes behind it; {most} are taken")));
        }
        if buffer.len() - RECORD < tail {
            return Ok(None);
        }
        buffer.advance(RECORD);
        // Most frames have no tail, and a slice of the buffer costs more than reading a record.
        let tail = if tail == 0 { Bytes::new() } else { buffer.split_to(tail).freeze() };
        Ok(Some((record, tail)))
    }
}
