//! The result of a request without its outputs, as the fields of a record.

use super::frame::{DecodeError, RecordReader, RecordWriter};
use ripieno_base::Nanos;
use ripieno_runtime::{Failure, JobOutput, JobResult};
use std::time::Duration;

/// Numbers of the results. They are part of the protocol.
mod ending {
    pub(super) const OK: u8 = 0;
    pub(super) const EXPIRED: u8 = 1;
    pub(super) const HOPELESS: u8 = 2;
    pub(super) const SHARE: u8 = 3;
    pub(super) const CANCELLED: u8 = 4;
    pub(super) const FAILED: u8 = 5;
    pub(super) const OUTAGE: u8 = 6;
    pub(super) const UNLOADED: u8 = 7;
    pub(super) const SHUTTING_DOWN: u8 = 8;
    pub(super) const QUEUE_FULL: u8 = 9;
    pub(super) const TOO_LARGE: u8 = 10;
    pub(super) const NODES_FULL: u8 = 11;
    pub(super) const INVALID: u8 = 12;
    /// Read as [`OUTAGE`]; schedulers of version 0.1 send it for requests that they refuse.
    pub(super) const REFUSED_OUTAGE: u8 = 13;
    pub(super) const NOT_LOADED: u8 = 14;
    /// Read as [`SHUTTING_DOWN`], likewise.
    pub(super) const REFUSED_SHUTTING_DOWN: u8 = 15;
}

/// Fields of a failure: a time to retry after, and two counts.
type Numbers = (Duration, usize, usize);

pub(super) fn write_result(answer: &JobResult, put: RecordWriter) -> RecordWriter {
    let failure = match answer {
        Ok(JobOutput { queued, executed, batch, late, .. }) => {
            let put = put.u8(ending::OK).u8(u8::from(*late)).u16(0).u32(*batch as u32);
            return put.i64(queued.0).i64(executed.0);
        }
        Err(failure) => failure,
    };
    let (ending, (after, first, second)) = numbers(failure);
    let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
    put.u8(ending).u8(0).u16(0).u32(0).u64(after).u64(first as u64).u64(second as u64)
}

fn numbers(failure: &Failure) -> (u8, Numbers) {
    const NONE: Numbers = (Duration::ZERO, 0, 0);
    match failure {
        Failure::Expired => (ending::EXPIRED, NONE),
        Failure::Hopeless => (ending::HOPELESS, NONE),
        Failure::TooLate { expected, retry_after } => (ending::HOPELESS, (*retry_after, nanos(*expected), 0)),
        Failure::TooLong { needed } => (ending::HOPELESS, (Duration::ZERO, nanos(*needed), 0)),
        Failure::Overload(after) => (ending::SHARE, (*after, 1, 0)),
        Failure::Share(after) => (ending::SHARE, (*after, 0, 0)),
        Failure::Cancelled => (ending::CANCELLED, NONE),
        Failure::Failed(_) => (ending::FAILED, NONE),
        Failure::Outage { retry_after, .. } => (ending::OUTAGE, (*retry_after, 0, 0)),
        Failure::Unloaded => (ending::UNLOADED, NONE),
        Failure::ShuttingDown => (ending::SHUTTING_DOWN, NONE),
        Failure::QueueFull { bound, retry_after } => (ending::QUEUE_FULL, (*retry_after, *bound, 0)),
        Failure::TooLarge { most, .. } => (ending::TOO_LARGE, (Duration::ZERO, *most, 0)),
        Failure::NodesFull { held, bound, retry_after } => (ending::NODES_FULL, (*retry_after, *bound, *held)),
        Failure::Invalid(_) => (ending::INVALID, NONE),
        Failure::NotLoaded => (ending::NOT_LOADED, NONE),
    }
}

fn nanos(span: Duration) -> usize {
    usize::try_from(span.as_nanos()).unwrap_or(usize::MAX).max(1)
}

/// Returns the text of a failure, or "" if it has none.
pub(super) fn text(failure: &Failure) -> &str {
    match failure {
        Failure::Failed(cause) | Failure::Outage { cause, .. } | Failure::Invalid(cause) => cause,
        Failure::TooLarge { asked, .. } => asked,
        _ => "",
    }
}

pub(super) fn read_result(get: &mut RecordReader<'_>, text: String) -> Result<JobResult, DecodeError> {
    let (ending, late, _, batch) = (get.u8(), get.u8() != 0, get.u16(), get.u32() as usize);
    if ending == ending::OK {
        let (queued, executed) = (Nanos(get.i64()), Nanos(get.i64()));
        return Ok(Ok(JobOutput { outputs: Vec::new(), queued, executed, batch, late }));
    }
    let (retry_after, bound, held) = (Duration::from_nanos(get.u64()), get.u64() as usize, get.u64() as usize);
    let failure = match ending {
        ending::EXPIRED => Failure::Expired,
        ending::HOPELESS if bound == 0 => Failure::Hopeless,
        ending::HOPELESS if retry_after.is_zero() => Failure::TooLong { needed: Duration::from_nanos(bound as u64) },
        ending::HOPELESS => Failure::TooLate { expected: Duration::from_nanos(bound as u64), retry_after },
        ending::SHARE if bound > 0 => Failure::Overload(retry_after),
        ending::SHARE => Failure::Share(retry_after),
        ending::CANCELLED => Failure::Cancelled,
        ending::FAILED => Failure::Failed(text),
        ending::OUTAGE | ending::REFUSED_OUTAGE => Failure::Outage { cause: text, retry_after },
        ending::UNLOADED => Failure::Unloaded,
        ending::SHUTTING_DOWN | ending::REFUSED_SHUTTING_DOWN => Failure::ShuttingDown,
        ending::QUEUE_FULL => Failure::QueueFull { bound, retry_after },
        ending::TOO_LARGE => Failure::TooLarge { asked: text, most: bound },
        ending::NODES_FULL => Failure::NodesFull { held, bound, retry_after },
        ending::INVALID => Failure::Invalid(text),
        ending::NOT_LOADED => Failure::NotLoaded,
        _ => return Err(DecodeError(format!("a request that ended as {ending}"))),
    };
    Ok(Err(failure))
}
