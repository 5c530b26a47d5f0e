//! A connection to another process: bytes in both directions, never waited for.

use crate::handover::encoding::Garbled;
use crate::handover::ids::{Process, Role};
use crate::handover::message::{Body, Message};
use mio::net::TcpStream;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

/// A peer that has not taken so many bytes stands still, and is lost.
const MOST_UNSENT: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: TcpStream,
    /// Where it was dialled, if it was.
    pub(super) dialled: Option<SocketAddr>,
    /// Who speaks there, once they have said so.
    pub(super) peer: Option<(Process, Role)>,
    read: Vec<u8>,
    unsent: Vec<u8>,
}

impl Link {
    pub(super) fn new(stream: TcpStream, dialled: Option<SocketAddr>) -> Link {
        Link { stream, dialled, peer: None, read: Vec::new(), unsent: Vec::new() }
    }

    /// Reads some bytes. Whether there may be more; an error if the connection has ended.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        let mut part = [0; 1 << 16];
        match self.stream.read(&mut part) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.read.extend_from_slice(&part[..length]);
                Ok(true)
            }
            Err(error) => may_come(error).map(|()| false),
        }
    }

    /// The messages that have come whole. An error if it is none, or says to be of another process than before.
    pub(super) fn messages(&mut self) -> io::Result<Vec<(Process, Message)>> {
        let mut at = 0;
        let mut messages = Vec::new();
        while let Some((from, message, length)) = Message::decode(&self.read[at..]).map_err(garbled)? {
            at += length;
            match (self.peer, &message.body) {
                (None, Body::Hello(role)) => self.peer = Some((from, *role)),
                (Some((peer, _)), _) if peer == from => {}
                _ => return Err(ErrorKind::InvalidData.into()),
            }
            messages.push((from, message));
        }
        self.read.drain(..at);
        Ok(messages)
    }

    /// Says something, as far as the other end takes it now; the rest when it can be written again.
    pub(super) fn send(&mut self, me: Process, message: &Message) -> io::Result<()> {
        message.encode(me, &mut self.unsent);
        self.flush()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.stream.write(&self.unsent[sent..]) {
                Ok(length) => sent += length,
                Err(error) => {
                    may_come(error)?;
                    break;
                }
            }
        }
        self.unsent.drain(..sent);
        if self.unsent.len() > MOST_UNSENT { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

/// Not now, or not yet: a connection that is being made takes nothing.
fn may_come(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::NotConnected | ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

fn garbled(garbled: Garbled) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, garbled)
}
