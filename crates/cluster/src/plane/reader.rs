//! Reads frames from a stream: as many at once as have come, each with its tail as a slice of what was read.

use super::frame::{Garbled, RECORD, head};
use super::message::most_tail;
use super::{Message, Stream};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Read at once. Memory grows with what has come, whatever a frame says of its length.
const CHUNK: usize = 256 << 10;

/// What comes from a peer, message by message.
pub struct Reader {
    stream: Arc<dyn Stream>,
    /// What the stream writes into.
    chunk: Box<[u8]>,
    buffer: BytesMut,
    silence: Duration,
}

impl Reader {
    /// Of a peer that is taken for gone if it is silent for so long.
    pub fn new(stream: Arc<dyn Stream>, silence: Duration) -> Reader {
        Reader { stream, chunk: vec![0; CHUNK].into(), buffer: BytesMut::new(), silence }
    }

    /// Waits for the next message; an error once the stream has ended, or says what cannot be read.
    pub fn read(&mut self) -> io::Result<Message> {
        loop {
            if let Some((record, tail)) = self.frame()? {
                return Ok(Message::decode(&record, tail)?);
            }
            self.fill()?;
        }
    }

    /// Whether the next message has come already.
    pub fn has_next(&self) -> bool {
        let record = self.buffer.first_chunk::<RECORD>();
        record.is_some_and(|record| self.buffer.len() - RECORD >= head(record).1)
    }

    fn frame(&mut self) -> Result<Option<([u8; RECORD], Bytes)>, Garbled> {
        let Some(&record) = self.buffer.first_chunk::<RECORD>() else { return Ok(None) };
        let (kind, tail) = head(&record);
        let most = most_tail(kind).ok_or_else(|| Garbled(format!("a record of kind {kind}")))?;
        if tail > most {
            return Err(Garbled(format!("a record of kind {kind} with {tail} bytes behind it; {most} are taken")));
        }
        if self.buffer.len() - RECORD < tail {
            return Ok(None);
        }
        self.buffer.advance(RECORD);
        // Most have none, and a slice of the buffer costs more than to read a record.
        let tail = if tail == 0 { Bytes::new() } else { self.buffer.split_to(tail).freeze() };
        Ok(Some((record, tail)))
    }

    fn fill(&mut self) -> io::Result<()> {
        match self.stream.read(&mut self.chunk, self.silence) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.buffer.extend_from_slice(&self.chunk[..read]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}
