//! A binary min-heap over the keys `0..capacity` that can change or remove any key.
//!
//! It is used for timers: one entry per model or device, which changes often. A position table
//! makes changes and removals O(log n). Equal priorities are ordered by key, so that equal inputs
//! give equal decisions. The heap itself stores the priorities, so a comparison needs no second
//! lookup. A moving entry is written once, at its final position.

/// A min-heap of `(priority, key)` pairs with at most one pair per key.
#[derive(Clone, Debug)]
pub struct IndexedHeap<P> {
    /// Entries in heap order.
    heap: Vec<(P, u32)>,
    /// Index of each key in `heap`, or `ABSENT`.
    position: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl<P: Copy + Ord> IndexedHeap<P> {
    /// Creates an empty heap for the keys `0..capacity`. It never allocates again.
    pub fn new(capacity: usize) -> IndexedHeap<P> {
        assert!(capacity < ABSENT as usize);
        IndexedHeap { heap: Vec::with_capacity(capacity), position: vec![ABSENT; capacity] }
    }

    /// Returns the number of keys present.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no key is present.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Whether `key` is present.
    pub fn contains(&self, key: usize) -> bool {
        self.position[key] != ABSENT
    }

    /// Returns the priority of `key`, if present.
    pub fn get(&self, key: usize) -> Option<P> {
        self.heap.get(self.position[key] as usize).map(|&(priority, _)| priority)
    }

    /// Returns the smallest `(priority, key)`.
    pub fn peek(&self) -> Option<(P, usize)> {
        self.heap.first().map(|&(priority, key)| (priority, key as usize))
    }

    /// Returns the second smallest `(priority, key)`.
    pub fn second(&self) -> Option<(P, usize)> {
        self.heap.iter().skip(1).take(2).min().map(|&(priority, key)| (priority, key as usize))
    }

    /// Returns the keys present, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = usize> + '_ {
        self.heap.iter().map(|&(_, key)| key as usize)
    }

    /// Inserts `key`, or changes its priority.
    pub fn set(&mut self, key: usize, priority: P) {
        let (at, entry) = (self.position[key] as usize, (priority, key as u32));
        match self.heap.get(at) {
            None => {
                self.heap.push(entry);
                self.sift_up(self.heap.len() - 1, entry);
            }
            Some(before) if entry <= *before => self.sift_up(at, entry),
            Some(_) => self.sift_down(at, entry),
        }
    }

    /// Removes `key` if present.
    pub fn remove(&mut self, key: usize) {
        let at = std::mem::replace(&mut self.position[key], ABSENT) as usize;
        let Some(&before) = self.heap.get(at) else { return };
        // The last entry replaces the removed one.
        match self.heap.pop() {
            Some(last) if last < before => self.sift_up(at, last),
            Some(last) if last > before => self.sift_down(at, last),
            _ => {}
        }
    }

    /// Removes and returns the smallest `(priority, key)`.
    pub fn pop(&mut self) -> Option<(P, usize)> {
        let top = self.peek()?;
        self.remove(top.1);
        Some(top)
    }

    fn place(&mut self, at: usize, entry: (P, u32)) {
        self.heap[at] = entry;
        self.position[entry.1 as usize] = at as u32;
    }

    /// Places `entry` at `at` or above. It must not be larger than the entry at `at`.
    fn sift_up(&mut self, mut at: usize, entry: (P, u32)) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent] <= entry {
                break;
            }
            self.place(at, self.heap[parent]);
            at = parent;
        }
        self.place(at, entry);
    }

    /// Places `entry` at `at` or below. It must not be smaller than the entry at `at`.
    fn sift_down(&mut self, mut at: usize, entry: (P, u32)) {
        while let Some(&left) = self.heap.get(2 * at + 1) {
            let (child, smaller) = match self.heap.get(2 * at + 2) {
                Some(&right) if right < left => (2 * at + 2, right),
                _ => (2 * at + 1, left),
            };
            if entry <= smaller {
                break;
            }
            self.place(at, smaller);
            at = child;
        }
        self.place(at, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_workload::{below, stream};
    use std::collections::BTreeMap;

    /// Compares random operations with a sorted map.
    #[test]
    fn agrees_with_a_sorted_map() {
        let mut heap = IndexedHeap::new(37);
        let mut model = BTreeMap::new();
        let mut random = stream(1, 0);
        for _ in 0..20_000 {
            let (key, priority) = (below(&mut random, 37) as usize, below(&mut random, 11) as i64);
            match below(&mut random, 4) {
                0 => {
                    heap.remove(key);
                    model.remove(&key);
                }
                1 => {
                    let top = model.iter().map(|(&k, &p)| (p, k)).min();
                    assert_eq!(heap.pop(), top);
                    top.map(|(_, k)| model.remove(&k));
                }
                _ => {
                    heap.set(key, priority);
                    model.insert(key, priority);
                }
            }
            assert_eq!(heap.len(), model.len());
            assert_eq!(heap.peek(), model.iter().map(|(&k, &p)| (p, k)).min());
            assert_eq!(heap.get(key), model.get(&key).copied());
            let mut entries: Vec<_> = model.iter().map(|(&key, &priority)| (priority, key)).collect();
            entries.sort_unstable();
            assert_eq!(heap.second(), entries.get(1).copied());
        }
    }

    #[test]
    fn ties_order_by_key() {
        let mut heap = IndexedHeap::new(4);
        for key in [3, 1, 2] {
            heap.set(key, 7);
        }
        assert_eq!((heap.pop(), heap.pop(), heap.pop()), (Some((7, 1)), Some((7, 2)), Some((7, 3))));
    }
}
