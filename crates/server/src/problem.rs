//! Failures of calls, independent of the protocol, and what clients and operators read of each.
//!
//! The tables: [`ProblemKind::of`] from a reason to its kind, [`ProblemKind::statuses`] from a kind
//! to HTTP and gRPC, [`in_words`] and [`triton_reason`] for endings on the page and in metrics.

use crate::durations::rounded;
use ripieno_repository::registry::{LookupError, ServedEntry};
use ripieno_runtime::{DeviceRefused, Ending, Failure};
use ripieno_wire::WireError;
use std::time::Duration;
use tonic::Code;

/// Maximum length of a message, which may quote client input as long as a request.
const MAX_MESSAGE_BYTES: usize = 2048;

/// Shortest time that a message asks a client to wait for: no client waits for microseconds.
const SHORTEST_SHOWN: Duration = Duration::from_millis(1);

/// Kind of a failure; each has one HTTP status and one gRPC code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemKind {
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

/// Mapping of failures to HTTP and gRPC statuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorProfile {
    /// The standard meanings of HTTP and gRPC statuses.
    #[default]
    Ripieno,
    /// Triton's statuses, where its clients and their retries depend on them.
    Triton,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: ProblemKind,
    pub(crate) message: String,
    /// Time after which a retry may succeed.
    pub(crate) retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, message: impl Into<String>) -> Problem {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
            message.push('…');
        }
        message.shrink_to_fit();
        Problem { kind, message, retry_after: None }
    }

    /// Returns the error for a request that lost its answer, which only a bug can cause.
    pub(crate) fn lost() -> Problem {
        Problem::new(ProblemKind::Internal, "the request was lost")
    }

    /// The refusal of a request larger than `max_body_bytes`.
    pub(crate) fn too_large(max_body_bytes: usize) -> Problem {
        let message = format!("the request is larger than {max_body_bytes} bytes; send fewer rows per request");
        Problem::new(ProblemKind::TooLarge, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Problem {
        Problem::new(ProblemKind::Invalid, message)
    }

    /// Maps the kind to the error profile. Triton reports late and excess requests as
    /// "unavailable", and has no status for requests that are too large.
    pub(crate) fn under(mut self, profile: ErrorProfile) -> Problem {
        self.kind = match (profile, self.kind) {
            (ErrorProfile::Triton, ProblemKind::Expired | ProblemKind::Overloaded) => ProblemKind::Unavailable,
            (ErrorProfile::Triton, ProblemKind::TooLarge) => ProblemKind::Invalid,
            (_, kind) => kind,
        };
        self
    }

    /// Returns the seconds for the header Retry-After, rounded up; 0 would invite an immediate
    /// retry.
    pub(crate) fn retry_after_s(&self) -> Option<u64> {
        self.retry_after.map(|after| after.as_millis().div_ceil(1000).max(1) as u64)
    }
}

impl ProblemKind {
    /// Returns the kind of a failure.
    pub(crate) fn of(failure: &Failure) -> ProblemKind {
        match failure {
            Failure::Expired
            | Failure::Hopeless
            | Failure::TooLate { .. }
            | Failure::TooLong { .. }
            | Failure::SlowLink { .. } => ProblemKind::Expired,
            Failure::Share(_) | Failure::Overload(_) | Failure::QueueFull { .. } | Failure::NodesFull { .. } => {
                ProblemKind::Overloaded
            }
            Failure::Outage { .. } | Failure::NotLoaded | Failure::Unloaded | Failure::ShuttingDown => {
                ProblemKind::Unavailable
            }
            Failure::TooLarge { .. } => ProblemKind::TooLarge,
            Failure::Invalid(_) => ProblemKind::Invalid,
            Failure::Cancelled => ProblemKind::Cancelled,
            Failure::Failed(_) => ProblemKind::Internal,
        }
    }

    /// Returns the HTTP status and the gRPC code. 499 is nginx's status for a client that left; it
    /// appears only in the log. Triton has no HTTP status for something that already exists.
    fn statuses(self) -> (u16, Code) {
        match self {
            ProblemKind::Invalid => (400, Code::InvalidArgument),
            ProblemKind::AlreadyThere => (400, Code::AlreadyExists),
            ProblemKind::Unauthenticated => (401, Code::Unauthenticated),
            ProblemKind::Forbidden => (403, Code::PermissionDenied),
            ProblemKind::NotFound => (404, Code::NotFound),
            ProblemKind::WrongMethod => (405, Code::Unimplemented),
            ProblemKind::TooSlow => (408, Code::DeadlineExceeded),
            ProblemKind::TooLarge => (413, Code::InvalidArgument),
            ProblemKind::UnknownEncoding => (415, Code::Unimplemented),
            ProblemKind::Overloaded => (429, Code::ResourceExhausted),
            ProblemKind::Cancelled => (499, Code::Cancelled),
            ProblemKind::Internal => (500, Code::Internal),
            ProblemKind::NotOffered => (501, Code::Unimplemented),
            ProblemKind::Unavailable => (503, Code::Unavailable),
            ProblemKind::Expired => (504, Code::DeadlineExceeded),
        }
    }

    pub(crate) fn http_status(self) -> u16 {
        self.statuses().0
    }

    pub(crate) fn grpc_code(self) -> Code {
        self.statuses().1
    }
}

/// Returns the outcome in words.
pub(crate) fn in_words(ending: Ending) -> &'static str {
    match ending {
        Ending::Ok => "in time",
        Ending::Late => "late",
        Ending::Expired => "expired",
        Ending::Hopeless => "refused: would be late",
        Ending::Share => "refused: above share",
        Ending::Refused => "refused: queue full",
        Ending::Cancelled => "cancelled",
        Ending::Failed => "failed",
        Ending::Outage => "outage",
        Ending::Unloaded => "unloaded",
        Ending::ShuttingDown => "shutting down",
    }
}

/// The reasons of failures in Triton's metrics.
pub(crate) const TRITON_REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// Returns the failure reason in Triton's terms; `None` for a success.
pub(crate) fn triton_reason(ending: Ending) -> Option<&'static str> {
    match ending {
        Ending::Ok | Ending::Late => None,
        Ending::Refused | Ending::Share | Ending::Hopeless | Ending::Expired => Some("REJECTED"),
        Ending::Cancelled => Some("CANCELED"),
        Ending::Failed | Ending::Outage => Some("BACKEND"),
        Ending::Unloaded | Ending::ShuttingDown => Some("OTHER"),
    }
}

impl From<WireError> for Problem {
    fn from(error: WireError) -> Problem {
        Problem::invalid(error.0)
    }
}

/// Time after which the models of a cluster are listed, if a scheduler is there.
const LISTING: Duration = Duration::from_secs(1);

impl From<LookupError> for Problem {
    fn from(error: LookupError) -> Problem {
        let kind = match error {
            LookupError::UnknownModel { .. } | LookupError::UnknownVersion { .. } => ProblemKind::NotFound,
            LookupError::Unlisted(_) => {
                let problem = Problem::new(ProblemKind::Unavailable, error.to_string());
                return Problem { retry_after: Some(LISTING), ..problem };
            }
            LookupError::Loading(_) | LookupError::Unavailable { .. } => ProblemKind::Unavailable,
        };
        Problem::new(kind, error.to_string())
    }
}

impl From<DeviceRefused> for Problem {
    fn from(refused: DeviceRefused) -> Problem {
        let kind = match refused {
            DeviceRefused::NotEnded(retry_after) => {
                let problem = Problem::new(ProblemKind::Unavailable, refused.to_string());
                return Problem { retry_after: Some(retry_after), ..problem };
            }
            DeviceRefused::TooMany(_) | DeviceRefused::Last(_) => ProblemKind::Invalid,
            DeviceRefused::NotServing(_) => ProblemKind::NotFound,
            DeviceRefused::Elsewhere => ProblemKind::NotOffered,
            DeviceRefused::Unopened(_) => ProblemKind::Internal,
            DeviceRefused::Stopped => ProblemKind::Unavailable,
        };
        Problem::new(kind, refused.to_string())
    }
}

impl Problem {
    /// Converts the failure of an accepted request. For a late one, the message gives its limit,
    /// the needed time and the key to change.
    pub(crate) fn of_failure(failure: Failure, entry: &ServedEntry, rows: usize, timeout: Option<Duration>) -> Problem {
        let (never, slow) = (matches!(failure, Failure::TooLong { .. }), matches!(failure, Failure::SlowLink { .. }));
        let problem = Problem::of_ending(failure, &entry.name);
        if problem.kind != ProblemKind::Expired {
            return problem;
        }
        let slo = (!entry.slo.answer_late).then(|| Duration::from_nanos(entry.slo.span.0.unsigned_abs()));
        let (had, fix) = match (timeout, slo) {
            (Some(own), slo) if slo.is_none_or(|slo| own < slo) => {
                (format!("{:?} (the request's own timeout)", rounded(own)), "give the request more time".to_owned())
            }
            (_, Some(slo)) => {
                let raise = "raise slo_ms, or write late = \"answer\", in its model.toml";
                // Where a row alone takes up to half of the SLO, others were in the way.
                let crowded = !never && entry.one_row.is_some_and(|row| row.0 <= entry.slo.span.0 / 2);
                let fix = if slow {
                    format!("move the frontend nearer, or {raise}")
                } else if crowded {
                    format!("add devices, send less, or {raise}")
                } else {
                    raise.to_owned()
                };
                (format!("{:?} ({})", rounded(slo), entry.slo.origin.key()), fix)
            }
            (_, None) => return problem,
        };
        let fewer = if never && rows > 1 { "send fewer rows in a request, or " } else { "" };
        let needed = entry.one_row.map_or(String::new(), |row| {
            let row = rounded(Duration::from_nanos(row.0.unsigned_abs()));
            let more = if rows > 1 { format!(", and the request has {rows}") } else { String::new() };
            format!("; one row needs {row:?} by its profile on an idle device{more}")
        });
        let message = format!("{}; model '{}' had {had}{needed}; {fewer}{fix}", problem.message, entry.name);
        Problem { retry_after: problem.retry_after, ..Problem::new(problem.kind, message) }
    }

    /// Converts a failure without that additional information.
    pub(crate) fn of_ending(failure: Failure, model: &str) -> Problem {
        let failure = failure.with_times(|time| rounded(time).max(SHORTEST_SHOWN));
        let kind = ProblemKind::of(&failure);
        let message = match kind {
            ProblemKind::TooLarge | ProblemKind::Invalid => format!("model '{model}': {failure}"),
            _ => failure.to_string(),
        };
        Problem { retry_after: failure.retry_after(), ..Problem::new(kind, message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_runtime::FailureNumbers;

    const PAGE: &str = include_str!("../../../docs/reference/errors.md");

    /// All reasons that have numbers, each with a time and without.
    fn failures() -> Vec<Failure> {
        let times = [Duration::ZERO, Duration::from_secs(2)];
        let numbers = (0..=u8::MAX).flat_map(|reason| {
            let counts = [[0, 0], [9, 9]];
            counts.into_iter().flat_map(move |counts| times.map(|time| FailureNumbers { reason, time, counts }))
        });
        numbers.filter_map(|numbers| Failure::from_numbers(numbers, "a cause".to_owned())).collect()
    }

    #[test]
    fn the_page_of_errors_has_each_reason_with_its_statuses_and_its_retry() {
        let failures = failures();
        assert!(failures.len() > 20, "{failures:?}");
        for failure in failures.into_iter().filter(|failure| *failure != Failure::Cancelled) {
            let problem = Problem::of_ending(failure.clone(), "m");
            let (http, code) = problem.kind.statuses();
            let code = format!("{code:?}");
            let capital = |(at, c): (usize, char)| if at > 0 && c.is_uppercase() { vec!['_', c] } else { vec![c] };
            let code = code.char_indices().flat_map(capital).collect::<String>().to_uppercase();
            let mut rows = PAGE.lines().filter(|row| row.starts_with(&format!("| {http} {code} |")));
            let retries = |row: &str| row.ends_with("| after Retry-After |") || row.ends_with("if given |");
            let retry = problem.retry_after.is_some();
            assert!(rows.any(|row| !retry || retries(row)), "{failure:?}: no row of {http} {code}, retry: {retry}");
        }
    }

    #[test]
    fn numbers_are_the_whole_failure() {
        for failure in failures() {
            let read = Failure::from_numbers(failure.to_numbers(), failure.text().to_owned());
            assert_eq!(read.as_ref(), Some(&failure));
        }
    }

    #[test]
    fn a_message_does_not_repeat_a_whole_request() {
        let long = Problem::invalid("é".repeat(100_000));
        assert!(long.message.len() < 2 * MAX_MESSAGE_BYTES && long.message.ends_with('…'));
    }

    #[test]
    fn a_time_to_retry_is_rounded() {
        let retry_after = Duration::from_nanos(2_132_532_380);
        let full = Problem::of_ending(Failure::QueueFull { bound: 8, retry_after }, "m");
        assert!(full.message.ends_with("retry after 2.14s"), "{}", full.message);
        let share = Problem::of_ending(Failure::Share(retry_after), "m");
        assert!(share.message.ends_with("its share of them; retry after 2.14s"), "{}", share.message);
        let alone = Problem::of_ending(Failure::Overload(retry_after), "m");
        assert_eq!((alone.kind.http_status(), alone.retry_after_s()), (429, Some(3)));
        assert_eq!(alone.message, "the devices are busy, and cannot answer more requests in time; retry after 2.14s");
    }

    #[test]
    fn a_refusal_by_forecast_says_when_it_would_have_been_answered() {
        let (expected, retry_after) = (Duration::from_micros(340_211), Duration::from_micros(1_240_211));
        let late = Problem::of_ending(Failure::TooLate { expected, retry_after }, "m");
        assert_eq!((late.kind.http_status(), late.retry_after_s()), (504, Some(2)));
        let soon = Problem::of_ending(Failure::Overload(Duration::from_micros(456)), "m");
        assert!(soon.message.ends_with("retry after 1ms"), "{}", soon.message);
        let message = "Request timeout expired: the request would be answered after 341ms; retry after 1.25s";
        assert_eq!(late.message, message);
    }

    #[test]
    fn a_model_that_no_scheduler_has_listed_may_be_asked_for_again() {
        let problem = Problem::from(LookupError::Unlisted("m".to_owned()));
        assert_eq!((problem.kind.http_status(), problem.retry_after_s()), (503, Some(1)));
    }

    #[test]
    fn a_retry_is_never_immediate() {
        let after = |millis| {
            let retry_after = Duration::from_millis(millis);
            Problem::of_ending(Failure::QueueFull { bound: 8, retry_after }, "m").retry_after_s()
        };
        assert_eq!((after(0), after(1000), after(1001)), (Some(1), Some(1), Some(2)));
        assert_eq!(Problem::of_ending(Failure::NotLoaded, "m").retry_after_s(), Some(1), "it is being replaced");
        assert_eq!(Problem::of_ending(Failure::Unloaded, "m").retry_after_s(), None);
        let (cause, retry_after) = ("its process ended".to_owned(), Duration::from_millis(100));
        let lost = Problem::of_ending(Failure::Outage { cause, retry_after }, "m");
        assert_eq!((lost.kind.http_status(), lost.retry_after_s()), (503, Some(1)));
        assert_eq!(lost.kind.grpc_code(), Code::Unavailable);
        assert!(lost.message.starts_with("its process ended; retry after"));
    }
}
