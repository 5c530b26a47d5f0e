//! Memory that devices keep between batches, so that the next batch need not allocate it.
//!
//! Gather buffers, buffers of engine processes and the arenas of ONNX Runtime keep the size of the
//! largest batch. Each lane gives a model's memory back [`IDLE`] after its last large batch. Beyond
//! the bound it gives the memory back after each batch. Reallocation costs about half of the time
//! of a batch that only moves memory, so small batches keep their buffers.
//!
//! The counter is global, because the memory is the process's. A process of an engine tells with
//! each answer what it keeps, and learns with each batch what the others leave of the bound.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Time after which memory is given back that no large batch has used.
pub(crate) const IDLE: Duration = Duration::from_secs(2);

static KEPT: AtomicUsize = AtomicUsize::new(0);
static BOUND: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Returns the number of bytes that the devices keep for further batches, in this process and in
/// processes of engines. The arenas of ONNX Runtime are estimated by the growth of their process.
pub fn kept_bytes() -> usize {
    KEPT.load(Relaxed)
}

/// Sets the number of bytes beyond which a lane gives memory back after each batch.
pub fn bound_kept_bytes(bytes: usize) {
    BOUND.store(bytes, Relaxed);
}

/// Returns the bound that is left for an engine process of which `own` bytes are counted.
pub(crate) fn bound_beside(own: usize) -> usize {
    BOUND.load(Relaxed).saturating_sub(kept_bytes().saturating_sub(own))
}

pub(crate) fn is_beyond_bound() -> bool {
    kept_bytes() > BOUND.load(Relaxed)
}

/// Bytes that one buffer keeps, as part of the total.
#[derive(Debug, Default)]
pub(crate) struct KeptBytes(usize);

impl KeptBytes {
    pub(crate) fn add(&mut self, bytes: usize) {
        self.0 += bytes;
        KEPT.fetch_add(bytes, Relaxed);
    }

    /// Counts a buffer that is at least this large.
    pub(crate) fn raise_to(&mut self, bytes: usize) {
        if bytes > self.0 {
            self.add(bytes - self.0);
        }
    }

    /// Replaces the number of bytes.
    pub(crate) fn set(&mut self, bytes: usize) {
        self.clear();
        self.add(bytes);
    }

    pub(crate) fn clear(&mut self) {
        KEPT.fetch_sub(std::mem::take(&mut self.0), Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the resident memory of this process; 0 where the system does not tell.
pub(crate) fn resident_bytes() -> usize {
    #[cfg(target_os = "linux")]
    {
        let pages = std::fs::read_to_string("/proc/self/statm").ok();
        let pages = pages.and_then(|fields| fields.split_whitespace().nth(1)?.parse::<usize>().ok());
        pages.unwrap_or(0) * rustix::param::page_size()
    }
    #[cfg(not(target_os = "linux"))]
    0
}
