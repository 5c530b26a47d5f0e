//! What a backend says that it runs: a record, and behind it one of 24 bytes for each request.

use super::frame::{Garbled, Get, Put};
use crate::handover::{Epoch, Held, Process, RequestId, Stamp};

/// The most requests of one report.
pub(super) const MOST_HELD: usize = 1 << 16;
/// Bytes of each.
pub(super) const HELD: usize = 24;

/// All that a backend runs of earlier epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The claim that it answers.
    pub stamp: Stamp,
    /// Counts up over the reports of a claim.
    pub revision: u32,
    /// What it runs, and what has failed since the last.
    pub held: Vec<Held>,
}

impl Report {
    pub(super) fn put(&self, put: Put) -> Put {
        put.u64(self.stamp.epoch.0).u64(self.stamp.number).u32(self.revision)
    }

    pub(super) fn write_held(&self, into: &mut Vec<u8>) {
        for Held { request, rows, failed } in self.held.iter().take(MOST_HELD) {
            into.extend_from_slice(&request.frontend.0.to_le_bytes());
            into.extend_from_slice(&request.number.to_le_bytes());
            into.extend_from_slice(&rows.to_le_bytes());
            into.extend_from_slice(&u32::from(*failed).to_le_bytes());
        }
    }

    pub(super) fn get(get: &mut Get<'_>, tail: &[u8]) -> Result<Report, Garbled> {
        let stamp = Stamp { epoch: Epoch(get.u64()), number: get.u64() };
        let revision = get.u32();
        let (held, rest) = tail.as_chunks::<HELD>();
        if !rest.is_empty() {
            return Err(Garbled(format!("a report with {} bytes of requests", tail.len())));
        }
        let u64_at = |bytes: &[u8; HELD], at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let held = held.iter().map(|bytes| {
            let request = RequestId { frontend: Process(u64_at(bytes, 0)), number: u64_at(bytes, 8) };
            let last = u64_at(bytes, 16);
            Held { request, rows: last as u32, failed: last >> 32 != 0 }
        });
        Ok(Report { stamp, revision, held: held.collect() })
    }
}
