//! The server's bytes: requests from their first byte, what they decode to, and answers until their last byte is sent.
//!
//! A reservation is tied to the memory that it stands for ([`hold`]): the bytes go back when the last slice of them is dropped,
//! wherever that is (in an engine's batch, in a connection's unsent data), and not when somebody thinks that it is.

use crate::problem::{Kind, Problem};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What a call takes whatever it carries: heads, futures, and its place in its connection.
const CALL_BYTES: usize = 4 << 10;
/// The most that is set aside for a body of which nothing has come.
const FIRST_BYTES: usize = 256 << 10;
/// Calls may go this far beyond the bound, so that a full server can still say so and answer health checks.
const CALLS_BEYOND: usize = 16;
const LEAST_BEYOND: usize = 256 << 10;

/// Bytes that may be held, and those that are.
#[derive(Debug)]
pub(crate) struct Budget {
    held: AtomicUsize,
    bound: usize,
    /// The budget that this is a part of; what is taken from the one is taken from the other.
    whole: Option<Arc<Budget>>,
}

/// Bytes set aside until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(bound: usize) -> Arc<Budget> {
        Arc::new(Budget { held: AtomicUsize::new(0), bound, whole: None })
    }

    /// A part of this budget, which may be used up by others before it is used up itself.
    pub(crate) fn part(self: &Arc<Budget>, bound: usize) -> Arc<Budget> {
        Arc::new(Budget { held: AtomicUsize::new(0), bound, whole: Some(self.clone()) })
    }

    /// Sets bytes aside, or says when to come again.
    pub(crate) fn reserve(self: &Arc<Budget>, bytes: usize) -> Result<Reservation, Problem> {
        let mut reservation = Reservation { budget: self.clone(), bytes: 0 };
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    /// Room for one more call; none if even the reserve for saying no is used up.
    pub(crate) fn enter(self: &Arc<Budget>) -> Option<Reservation> {
        self.take(CALL_BYTES, true).then(|| Reservation { budget: self.clone(), bytes: CALL_BYTES })
    }

    /// Takes from this and from what it is a part of, or from neither.
    fn take(&self, bytes: usize, is_call: bool) -> bool {
        let beyond = if is_call { (self.bound / CALLS_BEYOND).max(LEAST_BEYOND) } else { 0 };
        let bound = self.bound.saturating_add(beyond);
        let fits = |held: usize| held.checked_add(bytes).filter(|&sum| sum <= bound);
        if self.held.fetch_update(Relaxed, Relaxed, fits).is_err() {
            return false;
        }
        let taken = self.whole.as_ref().is_none_or(|whole| whole.take(bytes, is_call));
        if !taken {
            self.held.fetch_sub(bytes, Relaxed);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }

    /// Bytes that are reserved now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    /// Says what is full: this, or what it is a part of.
    fn full(&self, wanted: usize, more: usize) -> Problem {
        let (held, bound) = (self.held(), self.bound);
        let whole = self.whole.as_ref();
        if let Some(whole) = whole.filter(|_| held.saturating_add(more) <= bound) {
            return whole.full(wanted, more);
        }
        let who = whole.map_or("the server", |_| "one client (--max-held-mib-per-peer)");
        if wanted > bound {
            return Problem::new(
                Kind::TooLarge,
                format!("the request or its answer takes {wanted} bytes, more than the {bound} that {who} may hold"),
            );
        }
        Problem {
            retry_after: Some(Duration::from_secs(1)),
            ..Problem::new(
                Kind::Overloaded,
                format!("{who} holds {held} of {bound} bytes, and {more} more do not fit; retry later"),
            )
        }
    }
}

impl Reservation {
    /// Grows or shrinks; a growth that is refused changes nothing.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Problem> {
        if bytes > self.bytes && !self.budget.take(bytes - self.bytes, false) {
            return Err(self.budget.full(bytes, bytes - self.bytes));
        }
        if bytes < self.bytes {
            self.budget.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Nothing yet, of the same budget.
    pub(crate) fn beside(&self) -> Reservation {
        Reservation { budget: self.budget.clone(), bytes: 0 }
    }

    /// Makes the first room in `buffer` for `declared` bytes: little, since they may never come, and such that doubling it
    /// leads to just them.
    pub(crate) fn begin(&mut self, buffer: &mut Vec<u8>, declared: usize) -> Result<(), Problem> {
        let mut first = declared;
        while first > FIRST_BYTES {
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

    /// Makes room in `buffer` for at least `more` bytes, and at most `most` in all. The old and the new buffer stand side
    /// by side for a moment, so both are reserved.
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
        self.budget.give_back(self.bytes);
    }
}

/// Ties something (a reservation, a place among the unsent) to bytes until the last slice of them is gone.
pub(crate) fn hold<T: AsRef<[u8]> + Send + 'static, W: Send + 'static>(data: T, with: W) -> Bytes {
    struct Held<T, W>(T, #[allow(dead_code)] W);
    impl<T: AsRef<[u8]>, W> AsRef<[u8]> for Held<T, W> {
        fn as_ref(&self) -> &[u8] {
            self.0.as_ref()
        }
    }
    Bytes::from_owner(Held(data, with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_until_the_last_slice_is_gone() {
        let budget = Budget::new(100);
        let reservation = budget.reserve(60).unwrap();
        let slice = hold(vec![7; 60], reservation).slice(5..6);
        assert_eq!((budget.held(), slice[0]), (60, 7));
        let refused = budget.reserve(41).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after_s()), (Kind::Overloaded, Some(1)));
        assert_eq!(budget.reserve(101).unwrap_err().kind, Kind::TooLarge);
        drop(slice);
        assert_eq!(budget.held(), 0);
        assert!(budget.reserve(100).is_ok());
    }

    #[test]
    fn a_growing_buffer_is_reserved_before_it_grows() {
        let budget = Budget::new(100);
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
        for declared in [0, 1, FIRST_BYTES, FIRST_BYTES + 1, 3 * FIRST_BYTES, 67_000_000] {
            // The last doubling is the most; halves are rounded up.
            let budget = Budget::new(declared + declared.div_ceil(2) + 512);
            let mut reservation = budget.reserve(0).unwrap();
            let mut buffer = Vec::new();
            reservation.begin(&mut buffer, declared).unwrap();
            assert_eq!((budget.held(), buffer.capacity()), (buffer.capacity(), buffer.capacity()));
            assert!(budget.held() <= FIRST_BYTES.min(declared));
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
        let budget = Budget::new(1000);
        let _all = budget.reserve(1000).unwrap();
        let calls: Vec<_> = std::iter::from_fn(|| budget.enter()).collect();
        assert_eq!(calls.len(), LEAST_BEYOND / CALL_BYTES);
    }
}
