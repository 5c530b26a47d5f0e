//! The first bytes of each connection: who speaks, in which version, and the latest epoch that it has heard of.
//!
//! Whoever connects greets first. Whoever is connected to
//! answers with its own greeting, also if it will not go on, so that the other side can say in words what is the
//! matter.

use super::{Garbled, Stream};
use crate::handover::Role;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// The version of all that is said after it; another is refused.
pub const VERSION: u16 = 2;

const MAGIC: [u8; 8] = *b"ripieno\n";
const BYTES: usize = 24;

/// How long a peer may take for its greeting.
const PATIENCE: Duration = Duration::from_secs(3);

/// Who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Of the protocol.
    pub version: u16,
    /// Its role.
    pub role: Role,
    /// The latest epoch that it knows of: a primary of an earlier one steps down.
    pub epoch: u64,
}

/// Why two processes do not go on.
#[derive(Debug, Error)]
pub enum Unwelcome {
    /// It speaks otherwise.
    #[error(
        "the other side speaks version {theirs} of the protocol between roles, this program version {VERSION}; run one \
         version of ripieno in all roles"
    )]
    Version {
        /// Its version.
        theirs: u16,
    },
    /// It is something else.
    #[error("the other side is a {0:?}, which does not belong on this port")]
    Role(Role),
    /// It said nothing that can be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Greeting {
    /// Of this program.
    pub fn new(role: Role, epoch: u64) -> Greeting {
        Greeting { version: VERSION, role, epoch }
    }

    /// The bytes of it.
    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.role as u16).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// The greeting of these bytes.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Result<Greeting, Garbled> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC {
            return Err(Garbled("its greeting is not that of a role of ripieno".to_owned()));
        }
        let role = [Role::Frontend, Role::Scheduler, Role::Backend].into_iter().find(|&role| role as u16 == u16_at(10));
        let role = role.ok_or_else(|| Garbled(format!("a greeting of role {}", u16_at(10))))?;
        let epoch = u64::from_le_bytes(std::array::from_fn(|at| bytes[16 + at]));
        Ok(Greeting { version: u16_at(8), role, epoch })
    }
}

/// Greets on a connection that was made from here, and reads the answer.
pub fn greet(stream: &dyn Stream, own: Greeting, expected: Role) -> Result<Greeting, Unwelcome> {
    stream.write_all(&own.to_bytes())?;
    let theirs = read(stream)?;
    check(theirs)?;
    if theirs.role == expected { Ok(theirs) } else { Err(Unwelcome::Role(theirs.role)) }
}

/// Reads the greeting of whoever has connected, and answers it.
pub fn welcome(stream: &dyn Stream, own: Greeting, expected: &[Role]) -> Result<Greeting, Unwelcome> {
    let theirs = read(stream)?;
    stream.write_all(&own.to_bytes())?;
    check(theirs)?;
    if expected.contains(&theirs.role) { Ok(theirs) } else { Err(Unwelcome::Role(theirs.role)) }
}

fn check(theirs: Greeting) -> Result<(), Unwelcome> {
    if theirs.version == VERSION { Ok(()) } else { Err(Unwelcome::Version { theirs: theirs.version }) }
}

fn read(stream: &dyn Stream) -> io::Result<Greeting> {
    let (mut bytes, mut at) = ([0; BYTES], 0);
    while at < BYTES {
        match stream.read(&mut bytes[at..], PATIENCE)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed before it greeted")),
            read => at += read,
        }
    }
    Ok(Greeting::from_bytes(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::super::{Tcp, Transport};
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_greeting_survives_and_others_are_refused() {
        let greeting = Greeting::new(Role::Backend, u64::MAX - 1);
        assert_eq!(Greeting::from_bytes(&greeting.to_bytes()), Ok(greeting));
        let mut http = *b"GET / HTTP/1.1\r\nHost: ab";
        assert!(Greeting::from_bytes(&http).is_err());
        http[..8].copy_from_slice(&MAGIC);
        assert!(Greeting::from_bytes(&http).unwrap_err().0.contains("role"));
    }

    /// What both sides make of each other.
    fn meet(client: Greeting, server: Greeting) -> (Result<Greeting, Unwelcome>, Result<Greeting, Unwelcome>) {
        let listener = Tcp.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().to_string();
        let answered = std::thread::spawn(move || {
            let stream = listener.accept().unwrap().unwrap();
            let theirs = welcome(&*stream, server, &[Role::Backend]);
            (theirs, Arc::clone(&stream))
        });
        let stream = Tcp.connect(&address, PATIENCE).unwrap();
        let greeted = greet(&*stream, client, Role::Scheduler);
        (greeted, answered.join().unwrap().0)
    }

    #[test]
    fn versions_must_agree_and_both_sides_say_why_not() {
        let (backend, scheduler) = (Greeting::new(Role::Backend, 7), Greeting::new(Role::Scheduler, 8));
        let (greeted, answered) = meet(backend, scheduler);
        assert_eq!((greeted.unwrap(), answered.unwrap()), (scheduler, backend));
        let (greeted, answered) = meet(Greeting { version: 1, ..backend }, scheduler);
        assert!(greeted.is_ok() && answered.unwrap_err().to_string().contains("version 1"));
        let (greeted, answered) = meet(Greeting { role: Role::Scheduler, ..backend }, scheduler);
        assert!(greeted.is_ok() && matches!(answered.unwrap_err(), Unwelcome::Role(Role::Scheduler)));
    }
}
