//! Peers that are not accepted: a backend with other models, or without the certificate of a role.
//!
//! Such a peer connects again and again. The reason is logged when it is new, and backends that
//! were refused in the last seconds are shown to operators.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time after which a refusal that was not repeated is over.
const SPAN: Duration = Duration::from_secs(10);
/// Number of refusals that are kept.
const MAX_KEPT: usize = 64;

/// The end of a connection that was not accepted.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct NotAccepted(String);

impl NotAccepted {
    pub(super) fn error(cause: &dyn Display) -> io::Error {
        io::Error::other(NotAccepted(cause.to_string()))
    }
}

/// A process whose registration was refused.
pub(super) enum RegistrationError {
    /// The connection ends.
    Io(io::Error),
    /// The peer learns of this reason, and closes the connection.
    Refused(String),
}

impl From<io::Error> for RegistrationError {
    fn from(error: io::Error) -> RegistrationError {
        RegistrationError::Io(error)
    }
}

/// The refusals of the last seconds.
#[derive(Default)]
pub(super) struct Refusals(Mutex<VecDeque<Refusal>>);

struct Refusal {
    host: Option<IpAddr>,
    cause: String,
    at: Instant,
    is_backend: bool,
}

impl Refusals {
    /// Notes a refusal; returns true if this host was not refused for the same cause lately.
    pub(super) fn note(&self, peer: Option<SocketAddr>, cause: &str, is_backend: bool) -> bool {
        self.note_at(Instant::now(), peer.map(|peer| peer.ip()), cause, is_backend)
    }

    fn note_at(&self, now: Instant, host: Option<IpAddr>, cause: &str, is_backend: bool) -> bool {
        let mut refusals = self.0.lock();
        refusals.retain(|refusal| now.duration_since(refusal.at) < SPAN);
        match refusals.iter_mut().find(|refusal| refusal.host == host && refusal.cause == cause) {
            Some(known) => {
                known.at = now;
                false
            }
            None => {
                refusals.push_back(Refusal { host, cause: cause.to_owned(), at: now, is_backend });
                if refusals.len() > MAX_KEPT {
                    refusals.pop_front();
                }
                true
            }
        }
    }

    /// Returns the refused backends, each with the reason.
    pub(super) fn backends(&self) -> Vec<String> {
        let refusals = self.0.lock();
        let lately = refusals.iter().filter(|refusal| refusal.is_backend && refusal.at.elapsed() < SPAN);
        let host = |refusal: &Refusal| refusal.host.map_or("an unknown address".to_owned(), |host| host.to_string());
        lately.map(|refusal| format!("the backend at {} is refused: {}", host(refusal), refusal.cause)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_new_once_and_over_when_it_is_not_repeated() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let host = |last| Some(IpAddr::from([10, 0, 0, last]));
        assert!(refusals.note_at(now, host(1), "other files", true));
        assert!(!refusals.note_at(now + SPAN / 2, host(1), "other files", true));
        assert!(refusals.note_at(now + SPAN / 2, host(2), "other files", true), "another host");
        assert!(refusals.note_at(now + SPAN / 2, host(2), "no certificate", false));
        assert_eq!(refusals.backends().len(), 2);
        assert!(refusals.note_at(now + 2 * SPAN, host(1), "other files", true), "it had ended");
        assert!((0..200).all(|number| refusals.note_at(now + 2 * SPAN, host(3), &number.to_string(), false)));
        assert_eq!(refusals.0.lock().len(), MAX_KEPT);
    }
}
