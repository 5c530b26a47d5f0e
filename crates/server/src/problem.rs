//! Why a call fails, free of the protocol that carries the failure.

use crate::config::ErrorProfile;
use ripieno_repository::registry::{LookupError, ServedEntry};
use ripieno_runtime::{DeviceRefused, Failure, Refused};
use ripieno_wire::WireError;
use std::time::Duration;

/// Messages quote what the client sent, which may be as long as its request; no one reads that much of it.
const MAX_MESSAGE_BYTES: usize = 2048;

/// What sort of failure; each has one HTTP status and one gRPC code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Invalid,
    Unauthenticated,
    Forbidden,
    NotFound,
    WrongMethod,
    TooSlow,
    AlreadyThere,
    TooLarge,
    UnknownEncoding,
    Overloaded,
    Cancelled,
    Internal,
    NotOffered,
    Unavailable,
    Expired,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// When a retry may succeed.
    pub(crate) retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Problem {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
            message.push('…');
        }
        message.shrink_to_fit();
        Problem { kind, message, retry_after: None }
    }

    /// A request whose answer nobody owes any more, which a bug alone can do.
    pub(crate) fn lost() -> Problem {
        Problem::new(Kind::Internal, "the request was lost")
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Problem {
        Problem::new(Kind::Invalid, message)
    }

    /// As this profile has it. Triton says "unavailable" to who was too late or too many, and has no status for what is too large.
    pub(crate) fn under(mut self, profile: ErrorProfile) -> Problem {
        self.kind = match (profile, self.kind) {
            (ErrorProfile::Triton, Kind::Expired | Kind::Overloaded) => Kind::Unavailable,
            (ErrorProfile::Triton, Kind::TooLarge) => Kind::Invalid,
            (_, kind) => kind,
        };
        self
    }

    /// Seconds for the header Retry-After, which knows no fractions; 0 would invite an immediate retry.
    pub(crate) fn retry_after_s(&self) -> Option<u64> {
        self.retry_after.map(|after| after.as_millis().div_ceil(1000).max(1) as u64)
    }
}

impl Kind {
    /// 499 is nginx's word for a client that left; nobody reads it but the log.
    pub(crate) fn http_status(self) -> u16 {
        match self {
            // Triton has no status of its own for what is there already.
            Kind::Invalid | Kind::AlreadyThere => 400,
            Kind::Unauthenticated => 401,
            Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::WrongMethod => 405,
            Kind::TooSlow => 408,
            Kind::TooLarge => 413,
            Kind::UnknownEncoding => 415,
            Kind::Overloaded => 429,
            Kind::Cancelled => 499,
            Kind::Internal => 500,
            Kind::NotOffered => 501,
            Kind::Unavailable => 503,
            Kind::Expired => 504,
        }
    }

    pub(crate) fn grpc_code(self) -> tonic::Code {
        match self {
            Kind::Invalid | Kind::TooLarge => tonic::Code::InvalidArgument,
            Kind::Unauthenticated => tonic::Code::Unauthenticated,
            Kind::Forbidden => tonic::Code::PermissionDenied,
            Kind::NotFound => tonic::Code::NotFound,
            Kind::AlreadyThere => tonic::Code::AlreadyExists,
            Kind::WrongMethod | Kind::UnknownEncoding | Kind::NotOffered => tonic::Code::Unimplemented,
            Kind::Overloaded => tonic::Code::ResourceExhausted,
            Kind::Cancelled => tonic::Code::Cancelled,
            Kind::Internal => tonic::Code::Internal,
            Kind::Unavailable => tonic::Code::Unavailable,
            Kind::Expired | Kind::TooSlow => tonic::Code::DeadlineExceeded,
        }
    }
}

impl From<WireError> for Problem {
    fn from(error: WireError) -> Problem {
        Problem::invalid(error.0)
    }
}

impl From<LookupError> for Problem {
    fn from(error: LookupError) -> Problem {
        let kind = match error {
            LookupError::UnknownModel(_) | LookupError::UnknownVersion { .. } => Kind::NotFound,
            LookupError::Loading(_) | LookupError::Unavailable { .. } => Kind::Unavailable,
        };
        Problem::new(kind, error.to_string())
    }
}

impl From<DeviceRefused> for Problem {
    fn from(refused: DeviceRefused) -> Problem {
        let kind = match refused {
            DeviceRefused::NotEnded(retry_after) => {
                let problem = Problem::new(Kind::Unavailable, refused.to_string());
                return Problem { retry_after: Some(retry_after), ..problem };
            }
            DeviceRefused::TooMany(_) | DeviceRefused::Last(_) => Kind::Invalid,
            DeviceRefused::NotServing(_) => Kind::NotFound,
            DeviceRefused::Elsewhere => Kind::NotOffered,
            DeviceRefused::Unopened(_) => Kind::Internal,
            DeviceRefused::Stopped => Kind::Unavailable,
        };
        Problem::new(kind, refused.to_string())
    }
}

impl Problem {
    /// Why a request that was accepted got no answer. Of one that was too late: what it had, what it needed, and the key.
    pub(crate) fn of_failure(failure: Failure, entry: &ServedEntry, rows: usize, timeout: Option<Duration>) -> Problem {
        let late = matches!(failure, Failure::Expired | Failure::Hopeless);
        let problem = Problem::of_ending(failure, &entry.name);
        if !late {
            return problem;
        }
        let slo = (!entry.slo.answer_late).then(|| Duration::from_nanos(entry.slo.span.0.unsigned_abs()));
        let (had, fix) = match (timeout, slo) {
            (Some(own), slo) if slo.is_none_or(|slo| own < slo) => {
                (format!("{own:?} (the request's own timeout)"), "give the request more time".to_owned())
            }
            (_, Some(slo)) => {
                let key = entry.slo.origin.key();
                (format!("{slo:?} ({key})"), "raise slo_ms, or write late = \"answer\", in its model.toml".to_owned())
            }
            (_, None) => return problem,
        };
        let needed = entry.one_row.map_or(String::new(), |row| {
            let row = Duration::from_nanos(row.0.unsigned_abs());
            let more = if rows > 1 { format!(", and the request has {rows}") } else { String::new() };
            format!("; one row needs {row:?} by its profile on an idle device{more}")
        });
        Problem::new(problem.kind, format!("{}; model '{}' had {had}{needed}; {fix}", problem.message, entry.name))
    }

    /// The same, as far as the failure itself says.
    fn of_ending(failure: Failure, model: &str) -> Problem {
        let kind = match failure {
            Failure::Share(retry_after) => {
                let problem = Problem::new(Kind::Overloaded, failure.to_string());
                return Problem { retry_after: Some(retry_after), ..problem };
            }
            Failure::Outage { retry_after, .. } => {
                let problem = Problem::new(Kind::Unavailable, failure.to_string());
                return Problem { retry_after: Some(retry_after), ..problem };
            }
            Failure::Refused(refused) => return Problem::of_refusal(refused, model),
            Failure::Expired | Failure::Hopeless => Kind::Expired,
            Failure::Cancelled => Kind::Cancelled,
            Failure::Failed(_) => Kind::Internal,
            Failure::Unloaded | Failure::ShuttingDown => Kind::Unavailable,
        };
        Problem::new(kind, failure.to_string())
    }

    /// Why a request for `model` did not even get in.
    pub(crate) fn of_refusal(refused: Refused, model: &str) -> Problem {
        let message = refused.to_string();
        match refused {
            Refused::QueueFull { retry_after, .. } | Refused::NodesFull { retry_after, .. } => {
                Problem { retry_after: Some(retry_after), ..Problem::new(Kind::Overloaded, message) }
            }
            Refused::Outage { retry_after, .. } => {
                Problem { retry_after: Some(retry_after), ..Problem::new(Kind::Unavailable, message) }
            }
            Refused::TooLarge { .. } => Problem::new(Kind::TooLarge, format!("model '{model}': {message}")),
            Refused::Invalid(_) => Problem::invalid(format!("model '{model}': {message}")),
            Refused::NotLoaded | Refused::ShuttingDown => Problem::new(Kind::Unavailable, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_does_not_repeat_a_whole_request() {
        let long = Problem::invalid("é".repeat(100_000));
        assert!(long.message.len() < 2 * MAX_MESSAGE_BYTES && long.message.ends_with('…'));
    }

    #[test]
    fn a_retry_is_never_immediate() {
        let after = |millis| {
            let retry_after = Duration::from_millis(millis);
            Problem::of_refusal(Refused::QueueFull { bound: 8, retry_after }, "m").retry_after_s()
        };
        assert_eq!((after(0), after(1000), after(1001)), (Some(1), Some(1), Some(2)));
        assert_eq!(Problem::of_refusal(Refused::NotLoaded, "m").retry_after_s(), None);
        let (cause, retry_after) = ("its process ended".to_owned(), Duration::from_millis(100));
        let lost = Problem::of_ending(Failure::Outage { cause: cause.clone(), retry_after }, "m");
        let refused = Problem::of_refusal(Refused::Outage { cause, retry_after }, "m");
        for outage in [lost, refused] {
            assert_eq!((outage.kind.http_status(), outage.retry_after_s()), (503, Some(1)));
            assert_eq!(outage.kind.grpc_code(), tonic::Code::Unavailable);
            assert!(outage.message.starts_with("its process ended; retry after"));
        }
    }
}
