//! Sessions of a block by batch size.
//!
//! Since version 1.20 of ONNX Runtime, a convolution on a GPU keeps one plan, for its last input
//! shape. A batch of another size makes all plans anew: 140 ms for a ResNet-50 whose batches take 3
//! ms. So a block with convolutions has a session of its own for each batch size. The disadvantage
//! is a copy of the weights for each.

/// Largest number of sessions of a block: those for 1, 2, 4, … 2,048 rows, and for the sizes midway
/// between them from 32 on. Beyond, the session that was used the longest time ago takes another
/// size.
const MAX_SESSIONS: usize = 18;

/// The sessions of a block, for one batch at a time.
pub(super) struct SizedSessions<S> {
    /// Sessions and the rows that they last ran, 0 before the first batch. The last used is last.
    sessions: Vec<(usize, S)>,
    /// Whether each size has its own.
    by_size: bool,
}

impl<S> SizedSessions<S> {
    pub(super) fn new(first: S, by_size: bool) -> SizedSessions<S> {
        SizedSessions { sessions: vec![(0, first)], by_size }
    }

    /// Returns all sessions.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut S> {
        self.sessions.iter_mut().map(|(_, session)| session)
    }

    /// Returns the session for a batch of this many rows, made by `make` if it is missing.
    pub(super) fn for_rows<E>(&mut self, rows: usize, make: impl FnOnce() -> Result<S, E>) -> Result<&mut S, E> {
        let fits = |&(size, _): &(usize, S)| !self.by_size || size == rows || size == 0;
        let session = match self.sessions.iter().position(fits) {
            Some(at) => self.sessions.remove(at).1,
            None if self.sessions.len() < MAX_SESSIONS => make()?,
            None => self.sessions.remove(0).1,
        };
        self.sessions.push((rows, session));
        let last = self.sessions.len() - 1;
        Ok(&mut self.sessions[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of the sessions that batches of these sizes ran in.
    fn ran_in(by_size: bool, sizes: &[usize]) -> Vec<usize> {
        let mut sessions = SizedSessions::new(0, by_size);
        let mut made = 0;
        let mut make = || {
            made += 1;
            Ok::<usize, ()>(made)
        };
        sizes.iter().map(|&rows| *sessions.for_rows(rows, &mut make).unwrap()).collect()
    }

    #[test]
    fn each_size_has_its_session_up_to_the_limit() {
        assert_eq!(ran_in(false, &[1, 4, 1]), [0, 0, 0]);
        assert_eq!(ran_in(true, &[4, 1, 4, 2, 1]), [0, 1, 0, 2, 1]);
        let mut sizes: Vec<usize> = (1..=MAX_SESSIONS).collect();
        sizes.extend([1, 100, 2]);
        let mut expected: Vec<usize> = (0..MAX_SESSIONS).collect();
        expected.extend([0, 1, 2]);
        assert_eq!(ran_in(true, &sizes), expected, "the size that was used the longest time ago gives way");
    }

    #[test]
    fn without_a_session_for_its_size_a_batch_fails_and_the_others_stay() {
        let mut sessions = SizedSessions::new(7, true);
        assert_eq!(sessions.for_rows(1, || Err("no memory")), Ok(&mut 7));
        assert_eq!(sessions.for_rows(2, || Err("no memory")), Err("no memory"));
        assert_eq!(sessions.for_rows(1, || Err("no memory")), Ok(&mut 7));
    }
}
