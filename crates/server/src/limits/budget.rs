//! Memory budget of the server: requests from their first byte, decoded requests, and responses
//! until their last byte is sent.
//!
//! A reservation is tied to the memory that it covers ([`hold`]): its bytes are released when the
//! last slice of that memory is dropped, whether in an engine's batch or among a connection's
//! unsent data.

use crate::problem::{Problem, ProblemKind};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Bytes reserved per call for headers, futures and connection state.
const CALL_BYTES: usize = 4 << 10;
/// Maximum bytes reserved for a body before any of it arrives.
const MAX_FIRST_BODY_BYTES: usize = 256 << 10;
/// Calls may exceed the budget by 1/16, so that a full server can still refuse requests and answer
/// health checks.
const CALL_RESERVE_DIVISOR: usize = 16;
const MIN_CALL_RESERVE_BYTES: usize = 256 << 10;

/// A budget of bytes, and the amount in use.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    held: AtomicUsize,
    bound: usize,
    /// Returns the bytes that engines keep between batches. They count, up to half of the bound.
    kept: fn() -> usize,
    /// Parent budget; every reservation counts against both.
    parent: Option<Arc<MemoryBudget>>,
}

/// Bytes reserved until drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl MemoryBudget {
    #[cfg(test)]
    pub(crate) fn new(bound: usize) -> Arc<MemoryBudget> {
        MemoryBudget::with_kept(bound, || 0)
    }

    /// Creates a budget against which `kept` bytes count, too.
    pub(crate) fn with_kept(bound: usize, kept: fn() -> usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget { held: AtomicUsize::new(0), bound, kept, parent: None })
    }

    /// Creates a child budget. Other children may exhaust the parent before the child is exhausted.
    pub(crate) fn child(self: &Arc<MemoryBudget>, bound: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget { held: AtomicUsize::new(0), bound, kept: || 0, parent: Some(self.clone()) })
    }

    /// Reserves bytes, or returns an error with a retry time.
    pub(crate) fn reserve(self: &Arc<MemoryBudget>, bytes: usize) -> Result<Reservation, Problem> {
        let mut reservation = Reservation { budget: self.clone(), bytes: 0 };
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    /// Reserves the bytes of a call; `None` if even the reserve for refusals is used up.
    pub(crate) fn reserve_call(self: &Arc<MemoryBudget>) -> Option<Reservation> {
        self.try_reserve(CALL_BYTES, true).then(|| Reservation { budget: self.clone(), bytes: CALL_BYTES })
    }

    /// Reserves from this budget and its parents, or from none of them.
    fn try_reserve(&self, bytes: usize, is_call: bool) -> bool {
        let beyond = if is_call { (self.bound / CALL_RESERVE_DIVISOR).max(MIN_CALL_RESERVE_BYTES) } else { 0 };
        let bound = (self.bound - self.kept()).saturating_add(beyond);
        let fits = |held: usize| held.checked_add(bytes).filter(|&sum| sum <= bound);
        if self.held.fetch_update(Relaxed, Relaxed, fits).is_err() {
            return false;
        }
        let taken = self.parent.as_ref().is_none_or(|whole| whole.try_reserve(bytes, is_call));
        if !taken {
            self.held.fetch_sub(bytes, Relaxed);
        }
        taken
    }

    fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        if let Some(whole) = &self.parent {
            whole.release(bytes);
        }
    }

    /// Returns the number of reserved bytes.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    fn kept(&self) -> usize {
        (self.kept)().min(self.bound / 2)
    }

    /// Returns the error for the budget that is exhausted, this one or a parent.
    fn full_problem(&self, wanted: usize, more: usize) -> Problem {
        let (held, bound) = (self.held() + self.kept(), self.bound);
        let whole = self.parent.as_ref();
        if let Some(whole) = whole.filter(|_| held.saturating_add(more) <= bound) {
            return whole.full_problem(wanted, more);
        }
        let who = whole.map_or("the server", |_| "one client (--max-held-mib-per-peer)");
        if wanted > bound {
            return Problem::new(
                ProblemKind::TooLarge,
                format!("the request or its answer takes {wanted} bytes, more than the {bound} that {who} may hold"),
            );
        }
        Problem {
            retry_after: Some(Duration::from_secs(1)),
            ..Problem::new(
                ProblemKind::Overloaded,
                format!("{who} holds {held} of {bound} bytes, and {more} more do not fit; retry later"),
            )
        }
    }
}

impl Reservation {
    /// Grows or shrinks the reservation; a refused growth changes nothing.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Problem> {
        if bytes > self.bytes && !self.budget.try_reserve(bytes - self.bytes, false) {
            return Err(self.budget.full_problem(bytes, bytes - self.bytes));
        }
        if bytes < self.bytes {
            self.budget.release(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Creates an empty reservation of the same budget.
    pub(crate) fn empty_sibling(&self) -> Reservation {
        Reservation { budget: self.budget.clone(), bytes: 0 }
    }

    /// Reserves the initial capacity of `buffer` for `declared` bytes. It is small, because the
    /// bytes may never arrive, and doubling it ends exactly at `declared`.
    pub(crate) fn reserve_body(&mut self, buffer: &mut Vec<u8>, declared: usize) -> Result<(), Problem> {
        let mut first = declared;
        while first > MAX_FIRST_BODY_BYTES {
            first = first.div_ceil(2);
        }
        self.grow(buffer, first, declared)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Problem> {
        self.resize(self.bytes.saturating_add(bytes))
    }

    /// Grows `buffer` by at least `more` bytes, up to `most` in total. Old and new buffer exist
    /// together for a moment, so both are reserved.
    pub(crate) fn grow(&mut self, buffer: &mut Vec<u8>, more: usize, most: usize) -> Result<(), Problem> {
        let wanted = buffer.len() + more;
        if wanted <= buffer.capacity() {
            return Ok(());
        }
        let (before, capacity) = (buffer.capacity(), wanted.max(buffer.capacity() * 2).min(most.max(wanted)));
        self.add(capacity)?;
        buffer.reserve_exact(capacity - buffer.len());
        self.resize(self.bytes - before)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

/// Returns `data` as bytes that keep `with` (a reservation, an unsent ticket) until the last slice
/// is dropped.
pub(crate) fn hold<T: AsRef<[u8]> + Send + 'static, W: Send + 'static>(data: T, with: W) -> Bytes {
    struct HeldBytes<T, W>(T, #[allow(dead_code)] W);
    impl<T: AsRef<[u8]>, W> AsRef<[u8]> for HeldBytes<T, W> {
        fn as_ref(&self) -> &[u8] {
            self.0.as_ref()
        }
    }
    Bytes::from_owner(HeldBytes(data, with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_until_the_last_slice_is_gone() {
        let budget = MemoryBudget::new(100);
        let reservation = budget.reserve(60).unwrap();
        let slice = hold(vec![7; 60], reservation).slice(5..6);
        assert_eq!((budget.held(), slice[0]), (60, 7));
        let refused = budget.reserve(41).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after_s()), (ProblemKind::Overloaded, Some(1)));
        assert_eq!(budget.reserve(101).unwrap_err().kind, ProblemKind::TooLarge);
        drop(slice);
        assert_eq!(budget.held(), 0);
        assert!(budget.reserve(100).is_ok());
    }

    #[test]
    fn what_engines_keep_counts_up_to_half_of_the_bound() {
        for (kept, fits) in [((|| 0) as fn() -> usize, 100), (|| 30, 70), (|| 50, 50), (|| 1000, 50)] {
            let budget = MemoryBudget::with_kept(100, kept);
            assert_eq!(
                budget.reserve(fits + 1).unwrap_err().kind,
                if fits == 100 { ProblemKind::TooLarge } else { ProblemKind::Overloaded }
            );
            let _all = budget.child(100).reserve(fits).unwrap();
            assert_eq!(budget.held(), fits);
        }
    }

    #[test]
    fn a_growing_buffer_is_reserved_before_it_grows() {
        let budget = MemoryBudget::new(100);
        let mut reservation = budget.reserve(0).unwrap();
        let mut buffer = Vec::new();
        reservation.grow(&mut buffer, 30, 64).unwrap();
        assert_eq!((budget.held(), buffer.capacity()), (30, 30));
        buffer.resize(30, 0);
        reservation.grow(&mut buffer, 1, 64).unwrap();
        assert_eq!((budget.held(), buffer.capacity()), (60, 60));
        buffer.resize(60, 0);
        assert!(reservation.grow(&mut buffer, 1, 64).is_err());
        assert_eq!((budget.held(), buffer.capacity()), (60, 60));
        drop(reservation);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn a_declared_body_takes_little_before_it_comes_and_no_more_than_itself_in_the_end() {
        for declared in [0, 1, MAX_FIRST_BODY_BYTES, MAX_FIRST_BODY_BYTES + 1, 3 * MAX_FIRST_BODY_BYTES, 67_000_000] {
            // The last doubling is the peak; halves are rounded up.
            let budget = MemoryBudget::new(declared + declared.div_ceil(2) + 512);
            let mut reservation = budget.reserve(0).unwrap();
            let mut buffer = Vec::new();
            reservation.reserve_body(&mut buffer, declared).unwrap();
            assert_eq!((budget.held(), buffer.capacity()), (buffer.capacity(), buffer.capacity()));
            assert!(budget.held() <= MAX_FIRST_BODY_BYTES.min(declared));
            while buffer.len() < declared {
                let piece = (declared - buffer.len()).min(100_000);
                reservation.grow(&mut buffer, piece, declared).unwrap();
                buffer.resize(buffer.len() + piece, 0);
            }
            assert_eq!((budget.held(), buffer.capacity()), (declared, declared));
        }
    }

    #[test]
    fn a_full_server_still_takes_calls_to_refuse_them() {
        let budget = MemoryBudget::new(1000);
        let _all = budget.reserve(1000).unwrap();
        let calls: Vec<_> = std::iter::from_fn(|| budget.reserve_call()).collect();
        assert_eq!(calls.len(), MIN_CALL_RESERVE_BYTES / CALL_BYTES);
    }
}
