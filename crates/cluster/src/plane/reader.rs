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
    buffer: BytesMut,
    silence: Duration,
}

impl MessageReader {
    /// Returns a reader that fails once the peer has been silent for `silence`.
    pub fn new(stream: Arc<dyn ByteStream>, silence: Duration) -> MessageReader {
        MessageReader { stream, chunk: vec![0; CHUNK].into(), buffer: BytesMut::new(), silence }
    }

    /// Waits for the next message. Fails once the stream has ended or a frame is malformed.
    pub fn read(&mut self) -> io::Result<Message> {
        loop {
            if let Some((record, tail)) = self.frame()? {
                return Ok(Message::decode(&record, tail)?);
            }
            self.fill()?;
        }
    }

    /// Returns true if the next message has arrived already.
    pub fn has_next(&self) -> bool {
        let record = self.buffer.first_chunk::<RECORD>();
        record.is_some_and(|record| self.buffer.len() - RECORD >= header(record).1)
    }

    fn frame(&mut self) -> Result<Option<([u8; RECORD], Bytes)>, DecodeError> {
        let Some(&record) = self.buffer.first_chunk::<RECORD>() else { return Ok(None) };
        let (kind, tail) = header(&record);
        let most = max_tail(kind).ok_or_else(|| DecodeError(format!("a record of kind {kind}")))?;
        if tail > most {
            return Err(DecodeError(format!("a record of kind {kind} with {tail} bytes behind it; {most} are taken")));
        }
        if self.buffer.len() - RECORD < tail {
            return Ok(None);
        }
        self.buffer.advance(RECORD);
        // Most frames have no tail, and a slice of the buffer costs more than reading a record.
        let tail = if tail == 0 { Bytes::new() } else { self.buffer.split_to(tail).freeze() };
        Ok(Some((record, tail)))
    }

    fn fill(&mut self) -> io::Result<()> {
        match self.stream.read(&mut self.chunk, self.silence) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection")),
            Ok(read) => {
                self.buffer.extend_from_slice(&self.chunk[..read]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(silence(error, "nothing", self.silence)),
        }
    }
}
