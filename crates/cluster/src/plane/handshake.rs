//! The first bytes of each connection: the sender's role, its protocol version, and the latest
//! epoch that it knows of.
//!
//! The connecting side sends first. The accepting side always replies with its own handshake, even
//! if it refuses the connection, so that the other side can report the reason.

use super::transport::silence;
use super::{ByteStream, DecodeError};
use crate::handover::Role;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// Version of the protocol; a peer with another version is refused. It changes where neighbouring
/// releases could not work together.
pub const VERSION: u16 = 3;

/// Revision within the version, which the sender tells: a message that a later revision adds goes
/// only to peers that have it. Fields may be added to models at any time.
pub const REVISION: u16 = 1;

/// The first revision whose roles serve models that run cell by cell.
pub(crate) const CELLS: u16 = 1;

const MAGIC: [u8; 8] = *b"ripieno\n";
const BYTES: usize = 24;

/// First byte of an alert and of a handshake under TLS.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// The error of a peer that speaks TLS to a side that does not.
const ENCRYPTS: &str = "the other side encrypts, and this one does not: give it --peer-cert, too";

/// The error of a peer that closes first.
const CLOSED_EARLY: &str = "the other side closed the connection before its greeting; its log says why";

/// The usual reason for which a peer under TLS does so: it cannot accept the certificate.
const CERTIFICATES: &str = "Roles with --peer-cert accept only roles that have one of the same --peer-ca and \
                            --peer-name";

/// Longest wait for a peer's handshake.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The first message in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Protocol version of the sender.
    pub version: u16,
    /// Revision of the sender within that version.
    pub revision: u16,
    /// Role of the sender.
    pub role: Role,
    /// The latest epoch that the sender knows of: a primary of an earlier epoch steps down.
    pub epoch: u64,
}

/// The reason why a connection was refused.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The peer has another protocol version.
    #[error(
        "the other side speaks version {theirs} of the protocol between roles, this program version {VERSION}; run \
         neighbouring releases of ripieno in all roles"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// The peer has an unexpected role.
    #[error("the other side is a {0:?}, which does not belong on this port")]
    Role(Role),
    /// The handshake could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Handshake {
    /// Returns the handshake of this program.
    pub fn new(role: Role, epoch: u64) -> Handshake {
        Handshake { version: VERSION, revision: REVISION, role, epoch }
    }

    /// Encodes the handshake.
    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.role as u16).to_le_bytes());
        bytes[12..14].copy_from_slice(&self.revision.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// Decodes a handshake.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Result<Handshake, DecodeError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if TLS_RECORDS.contains(&bytes[0]) {
            return Err(DecodeError(ENCRYPTS.to_owned()));
        }
        if bytes[..8] != MAGIC {
            return Err(DecodeError("its greeting is not that of a role of ripieno".to_owned()));
        }
        let role = [Role::Frontend, Role::Scheduler, Role::Backend].into_iter().find(|&role| role as u16 == u16_at(10));
        let role = role.ok_or_else(|| DecodeError(format!("a greeting of role {}", u16_at(10))))?;
        let epoch = u64::from_le_bytes(std::array::from_fn(|at| bytes[16 + at]));
        Ok(Handshake { version: u16_at(8), revision: u16_at(12), role, epoch })
    }
}

/// Performs the handshake on a connection made from here, and returns the peer's.
pub fn connect_handshake(stream: &dyn ByteStream, own: Handshake, expected: Role) -> Result<Handshake, HandshakeError> {
    stream.write_all(&own.to_bytes())?;
    let theirs = read(stream)?;
    check_version(theirs)?;
    if theirs.role == expected { Ok(theirs) } else { Err(HandshakeError::Role(theirs.role)) }
}

/// Performs the handshake on an accepted connection, and returns the peer's.
pub fn accept_handshake(
    stream: &dyn ByteStream,
    own: Handshake,
    expected: &[Role],
) -> Result<Handshake, HandshakeError> {
    let theirs = read(stream)?;
    stream.write_all(&own.to_bytes())?;
    check_version(theirs)?;
    if expected.contains(&theirs.role) { Ok(theirs) } else { Err(HandshakeError::Role(theirs.role)) }
}

fn check_version(theirs: Handshake) -> Result<(), HandshakeError> {
    if theirs.version == VERSION { Ok(()) } else { Err(HandshakeError::Version { theirs: theirs.version }) }
}

fn read(stream: &dyn ByteStream) -> io::Result<Handshake> {
    let (mut bytes, mut at) = ([0; BYTES], 0);
    while at < BYTES {
        let read = stream.read(&mut bytes[at..], TIMEOUT).map_err(|error| silence(error, "no greeting", TIMEOUT))?;
        match read {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed_early(stream, &bytes[..at]))),
            read => at += read,
        }
    }
    Ok(Handshake::from_bytes(&bytes)?)
}

/// Returns the error of a peer that has closed the connection after these bytes.
fn closed_early(stream: &dyn ByteStream, received: &[u8]) -> String {
    match received.first() {
        Some(first) if TLS_RECORDS.contains(first) => ENCRYPTS.to_owned(),
        _ if stream.encrypts() => format!("{CLOSED_EARLY}. {CERTIFICATES}"),
        _ => CLOSED_EARLY.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Tcp, Transport};
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_greeting_survives_and_others_are_refused() {
        let greeting = Handshake::new(Role::Backend, u64::MAX - 1);
        assert_eq!(Handshake::from_bytes(&greeting.to_bytes()), Ok(greeting));
        let mut http = *b"GET / HTTP/1.1\r\nHost: ab";
        assert!(Handshake::from_bytes(&http).is_err());
        for record in TLS_RECORDS {
            let mut hello = http;
            hello[..3].copy_from_slice(&[record, 3, 1]);
            assert!(Handshake::from_bytes(&hello).unwrap_err().0.contains("--peer-cert"));
        }
        http[..8].copy_from_slice(&MAGIC);
        assert!(Handshake::from_bytes(&http).unwrap_err().0.contains("role"));
    }

    #[test]
    fn only_a_peer_under_tls_that_closes_early_is_said_to_want_a_certificate() {
        for (sent, wants) in [(&[][..], false), (&MAGIC[..3], false), (&[0x15, 3, 3, 0, 2, 2, 70], true)] {
            let listener = Tcp.listen("127.0.0.1:0".parse().unwrap()).unwrap();
            let stream = Tcp.connect(&listener.address().to_string(), TIMEOUT).unwrap();
            let theirs = listener.accept().unwrap().unwrap();
            theirs.write_all(sent).unwrap();
            theirs.close();
            let error = read(&*stream).unwrap_err().to_string();
            assert_eq!(error.contains("--peer-cert"), wants, "{error}");
        }
    }

    /// Returns what either side receives.
    fn exchange(
        client: Handshake,
        server: Handshake,
    ) -> (Result<Handshake, HandshakeError>, Result<Handshake, HandshakeError>) {
        let listener = Tcp.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().to_string();
        let answered = std::thread::spawn(move || {
            let stream = listener.accept().unwrap().unwrap();
            let theirs = accept_handshake(&*stream, server, &[Role::Backend]);
            (theirs, Arc::clone(&stream))
        });
        let stream = Tcp.connect(&address, TIMEOUT).unwrap();
        let greeted = connect_handshake(&*stream, client, Role::Scheduler);
        (greeted, answered.join().unwrap().0)
    }

    #[test]
    fn versions_must_agree_and_both_sides_say_why_not() {
        let (backend, scheduler) = (Handshake::new(Role::Backend, 7), Handshake::new(Role::Scheduler, 8));
        let (greeted, answered) = exchange(backend, scheduler);
        assert_eq!((greeted.unwrap(), answered.unwrap()), (scheduler, backend));
        let newer = Handshake { revision: REVISION + 1, ..backend };
        let (greeted, answered) = exchange(newer, scheduler);
        assert_eq!((greeted.unwrap(), answered.unwrap()), (scheduler, newer), "a neighbour is taken");
        let (greeted, answered) = exchange(Handshake { version: 1, ..backend }, scheduler);
        assert!(greeted.is_ok() && answered.unwrap_err().to_string().contains("version 1"));
        let (greeted, answered) = exchange(Handshake { role: Role::Scheduler, ..backend }, scheduler);
        assert!(greeted.is_ok() && matches!(answered.unwrap_err(), HandshakeError::Role(Role::Scheduler)));
    }
}
