//! Merges several streams in order of time.
//!
//! Simultaneous arrivals are ordered by stream: ties are common with uniform arrivals, and an
//! arbitrary order would make two runs differ.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use ripieno_base::Time;

/// Streams merged by `(time, stream)`; each item names its stream.
#[derive(Clone, Debug)]
pub struct Mix<I> {
    streams: Vec<I>,
    /// The next arrival of every stream that has one.
    heads: BinaryHeap<Reverse<(Time, usize)>>,
}

/// Merges streams that are each in order of time.
pub fn mix<I: Iterator<Item = Time>>(streams: impl IntoIterator<Item = I>) -> Mix<I> {
    let mut streams: Vec<I> = streams.into_iter().collect();
    let heads = streams
        .iter_mut()
        .enumerate()
        .filter_map(|(at, stream)| stream.next().map(|time| Reverse((time, at))))
        .collect();
    Mix { streams, heads }
}

impl<I: Iterator<Item = Time>> Iterator for Mix<I> {
    type Item = (Time, usize);

    fn next(&mut self) -> Option<(Time, usize)> {
        // The next head of the same stream replaces the one that leaves: one walk down the heap
        // instead of two.
        let mut head = self.heads.peek_mut()?;
        let Reverse((time, at)) = *head;
        match self.streams[at].next() {
            Some(next) => *head = Reverse((next, at)),
            None => {
                PeekMut::pop(head);
            }
        }
        Some((time, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArrivalProcess, Arrivals};

    #[test]
    fn one_instant_orders_by_stream() {
        let streams = [vec![0, 5, 5, 9], vec![5], vec![], vec![0, 1]];
        let merged: Vec<(i64, usize)> =
            mix(streams.map(|times| times.into_iter().map(Time))).map(|(time, at)| (time.0, at)).collect();
        assert_eq!(merged, [(0, 0), (0, 3), (1, 3), (5, 0), (5, 0), (5, 1), (9, 0)]);
    }

    #[test]
    fn nothing_is_lost_and_time_never_goes_back() {
        let stream = |index| Arrivals::new(ArrivalProcess::Gamma { shape: 0.1 }, 100.0, 5, index).unwrap().take(500);
        let merged: Vec<_> = mix((0..4).map(stream)).collect();
        assert!(merged.is_sorted());
        for index in 0..4 {
            let own = merged.iter().filter(|(_, at)| *at == index as usize).map(|(time, _)| *time);
            assert!(own.eq(stream(index)));
        }
    }
}
