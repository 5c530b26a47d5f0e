//! Calls that were refused because of the client: wrong, unknown, too large or not allowed. Most of
//! them name no model, so that they are counted by status, over all ports and protocols.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The statuses that are counted. 429 is missing: it is an outcome of a model's requests.
const STATUSES: [u16; 8] = [400, 401, 403, 404, 405, 408, 413, 415];

/// Number of refused calls by status.
#[derive(Default)]
pub(crate) struct CallErrors([AtomicU64; STATUSES.len()]);

impl CallErrors {
    /// Counts the answer of an HTTP call, if the client is to blame.
    pub(crate) fn on_status(&self, status: u16) {
        if let Some(at) = STATUSES.iter().position(|known| *known == status) {
            self.0[at].fetch_add(1, Relaxed);
        }
    }

    /// Counts the status of a gRPC call under the HTTP status of the same meaning.
    pub(crate) fn on_grpc(&self, code: tonic::Code) {
        self.on_status(match code {
            tonic::Code::InvalidArgument | tonic::Code::AlreadyExists => 400,
            tonic::Code::Unauthenticated => 401,
            tonic::Code::PermissionDenied => 403,
            tonic::Code::NotFound => 404,
            tonic::Code::Unimplemented => 405,
            _ => return,
        });
    }

    /// Returns each status with its count.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        STATUSES.into_iter().zip(self.0.iter().map(|count| count.load(Relaxed)))
    }
}
