//! A binary min-heap over the keys `0..capacity` that can change or remove any key.
//!
//! Used for timers: one entry a model or device, re-armed often. A position array makes change and removal
//! O(log n); ties order by key, so that equal inputs give equal decisions.

/// A min-heap of `(priority, key)` pairs, at most one for each key below its capacity.
#[derive(Clone, Debug)]
pub struct IndexedHeap<P> {
    /// Keys in heap order.
    heap: Vec<u32>,
    /// Where a key stands in `heap`, or `ABSENT`.
    position: Vec<u32>,
    priority: Vec<P>,
}

const ABSENT: u32 = u32::MAX;

impl<P: Copy + Ord + Default> IndexedHeap<P> {
    /// An empty heap for the keys `0..capacity`; never allocates again.
    pub fn new(capacity: usize) -> IndexedHeap<P> {
        assert!(capacity < ABSENT as usize);
        IndexedHeap {
            heap: Vec::with_capacity(capacity),
            position: vec![ABSENT; capacity],
            priority: vec![P::default(); capacity],
        }
    }

    /// The number of keys present.
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

    /// The priority of `key`, if present.
    pub fn get(&self, key: usize) -> Option<P> {
        self.contains(key).then(|| self.priority[key])
    }

    /// The smallest `(priority, key)`.
    pub fn peek(&self) -> Option<(P, usize)> {
        self.heap.first().map(|&key| (self.priority[key as usize], key as usize))
    }

    /// The second smallest `(priority, key)`.
    pub fn second(&self) -> Option<(P, usize)> {
        (1..self.heap.len().min(3)).map(|at| self.rank(at)).min().map(|(priority, key)| (priority, key as usize))
    }

    /// The keys present, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = usize> + '_ {
        self.heap.iter().map(|&key| key as usize)
    }

    /// Inserts `key`, or changes its priority.
    pub fn set(&mut self, key: usize, priority: P) {
        let before = std::mem::replace(&mut self.priority[key], priority);
        let at = self.position[key];
        if at == ABSENT {
            self.position[key] = self.heap.len() as u32;
            self.heap.push(key as u32);
            self.sift_up(self.heap.len() - 1);
        } else if priority < before {
            self.sift_up(at as usize);
        } else if priority > before {
            self.sift_down(at as usize);
        }
    }

    /// Removes `key` if present.
    pub fn remove(&mut self, key: usize) {
        let at = self.position[key];
        if at == ABSENT {
            return;
        }
        let at = at as usize;
        self.heap.swap_remove(at);
        self.position[key] = ABSENT;
        if at < self.heap.len() {
            self.position[self.heap[at] as usize] = at as u32;
            if self.sift_up(at) == at {
                self.sift_down(at);
            }
        }
    }

    /// Removes and returns the smallest `(priority, key)`.
    pub fn pop(&mut self) -> Option<(P, usize)> {
        let top = self.peek()?;
        self.remove(top.1);
        Some(top)
    }

    fn rank(&self, at: usize) -> (P, u32) {
        let key = self.heap[at];
        (self.priority[key as usize], key)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.position[self.heap[a] as usize] = a as u32;
        self.position[self.heap[b] as usize] = b as u32;
    }

    fn sift_up(&mut self, mut at: usize) -> usize {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.rank(at) >= self.rank(parent) {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
        at
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut smallest = at;
            for child in [left, right] {
                if child < self.heap.len() && self.rank(child) < self.rank(smallest) {
                    smallest = child;
                }
            }
            if smallest == at {
                return;
            }
            self.swap(at, smallest);
            at = smallest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_workload::{below, stream};
    use std::collections::BTreeMap;

    /// Random operations against a map.
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
