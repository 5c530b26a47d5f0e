//! The end of a request: its result without the outputs, as the fields of a record.

use super::frame::{DecodeError, RecordReader, RecordWriter};
use ripieno_base::Nanos;
use ripieno_runtime::{Failure, FailureNumbers, JobOutput, JobResult};
use std::time::Duration;

/// Number of a request that has outputs; the other numbers are reasons of failures.
const OK: u8 = 0;

/// The result of a request.
#[derive(Debug)]
pub struct RequestEnd {
    /// The frontend's number for the request.
    pub request: u64,
    /// The result without its outputs, which backends send.
    pub answer: JobResult,
}

impl RequestEnd {
    pub(super) fn put(&self, put: RecordWriter) -> RecordWriter {
        write_result(&self.answer, put.u64(self.request))
    }

    pub(super) fn get(get: &mut RecordReader<'_>, text: String) -> Result<RequestEnd, DecodeError> {
        Ok(RequestEnd { request: get.u64(), answer: read_result(get, text)? })
    }
}

fn write_result(answer: &JobResult, put: RecordWriter) -> RecordWriter {
    match answer {
        Ok(JobOutput { queued, executed, batch, late, .. }) => {
            let put = put.u8(OK).u8(u8::from(*late)).u16(0).u32(*batch as u32);
            put.i64(queued.0).i64(executed.0)
        }
        Err(failure) => {
            let FailureNumbers { reason, time, counts: [first, second] } = failure.to_numbers();
            let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            put.u8(reason).u8(0).u16(0).u32(0).u64(time).u64(first).u64(second)
        }
    }
}

fn read_result(get: &mut RecordReader<'_>, text: String) -> Result<JobResult, DecodeError> {
    let (reason, late, _, batch) = (get.u8(), get.u8() != 0, get.u16(), get.u32() as usize);
    if reason == OK {
        let (queued, executed) = (Nanos(get.i64()), Nanos(get.i64()));
        return Ok(Ok(JobOutput { outputs: Vec::new(), queued, executed, batch, late }));
    }
    let (time, counts) = (Duration::from_nanos(get.u64()), [get.u64(), get.u64()]);
    let failure = Failure::from_numbers(FailureNumbers { reason, time, counts }, text);
    failure.map(Err).ok_or_else(|| DecodeError(format!("a request that ended as {reason}")))
}
