//! The report of a backend on rows that it still runs: a record, and after it 24 bytes for each
//! request.

use super::frame::{DecodeError, RecordReader, RecordWriter};
use crate::handover::{Epoch, ProcessId, RequestId, RunningRows, Stamp};

/// The largest number of requests in one report.
pub(super) const MAX_HELD: usize = 1 << 16;
/// Size of one request, in bytes.
pub(super) const HELD: usize = 24;

/// All rows that a backend still runs from earlier epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningReport {
    /// The claim that this report answers.
    pub stamp: Stamp,
    /// Counts up over the reports of a claim.
    pub revision: u32,
    /// The rows that still run, and those that have failed since the last report.
    pub held: Vec<RunningRows>,
}

impl RunningReport {
    pub(super) fn put(&self, put: RecordWriter) -> RecordWriter {
        put.u64(self.stamp.epoch.0).u64(self.stamp.number).u32(self.revision)
    }

    pub(super) fn write_held(&self, into: &mut Vec<u8>) {
        for RunningRows { request, rows, failed } in self.held.iter().take(MAX_HELD) {
            into.extend_from_slice(&request.frontend.0.to_le_bytes());
            into.extend_from_slice(&request.number.to_le_bytes());
            into.extend_from_slice(&rows.to_le_bytes());
            into.extend_from_slice(&u32::from(*failed).to_le_bytes());
        }
    }

    pub(super) fn get(get: &mut RecordReader<'_>, tail: &[u8]) -> Result<RunningReport, DecodeError> {
        let stamp = Stamp { epoch: Epoch(get.u64()), number: get.u64() };
        let revision = get.u32();
        let (held, rest) = tail.as_chunks::<HELD>();
        if !rest.is_empty() {
            return Err(DecodeError(format!("a report with {} bytes of requests", tail.len())));
        }
        let u64_at = |bytes: &[u8; HELD], at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let held = held.iter().map(|bytes| {
            let request = RequestId { frontend: ProcessId(u64_at(bytes, 0)), number: u64_at(bytes, 8) };
            let last = u64_at(bytes, 16);
            RunningRows { request, rows: last as u32, failed: last >> 32 != 0 }
        });
        Ok(RunningReport { stamp, revision, held: held.collect() })
    }
}
