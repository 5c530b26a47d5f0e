//! Doubly linked lists over a shared table of links.
//!
//! Every live request is in at most one list, such as its model's queue. So one table of links,
//! indexed by slot, serves all lists. Moving a request allocates nothing, and any request leaves
//! its list in O(1).

/// Links between slots. One table serves many [`List`]s, as long as each slot is in at most one
/// list.
#[derive(Clone, Debug)]
pub struct Links {
    next: Vec<u32>,
    prev: Vec<u32>,
}

/// A list of slots: its two ends. The links between the slots are in [`Links`].
#[derive(Clone, Copy, Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

const END: u32 = u32::MAX;

impl Links {
    /// Creates links for the slots `0..capacity`. The table never allocates again.
    pub fn new(capacity: usize) -> Links {
        assert!(capacity < END as usize);
        Links { next: vec![END; capacity], prev: vec![END; capacity] }
    }

    /// Returns the slot after `slot` in its list.
    pub fn next(&self, slot: u32) -> Option<u32> {
        some(self.next[slot as usize])
    }

    /// Returns the slot before `slot` in its list.
    pub fn prev(&self, slot: u32) -> Option<u32> {
        some(self.prev[slot as usize])
    }
}

impl Default for List {
    fn default() -> List {
        List { head: END, tail: END, len: 0 }
    }
}

impl List {
    /// Returns the number of slots in the list.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first slot.
    pub fn front(&self) -> Option<u32> {
        some(self.head)
    }

    /// Returns the last slot.
    pub fn back(&self) -> Option<u32> {
        some(self.tail)
    }

    /// Appends `slot` at the back.
    pub fn push_back(&mut self, links: &mut Links, slot: u32) {
        self.insert_after(links, some(self.tail), slot);
    }

    /// Inserts `slot` after `before`, or at the front if `before` is `None`.
    pub fn insert_after(&mut self, links: &mut Links, before: Option<u32>, slot: u32) {
        let after = match before {
            Some(before) => std::mem::replace(&mut links.next[before as usize], slot),
            None => std::mem::replace(&mut self.head, slot),
        };
        links.prev[slot as usize] = before.unwrap_or(END);
        links.next[slot as usize] = after;
        match some(after) {
            Some(after) => links.prev[after as usize] = slot,
            None => self.tail = slot,
        }
        self.len += 1;
    }

    /// Inserts `slot` after all slots with a smaller or equal key. Searches from the back, which
    /// takes O(1) if keys mostly increase.
    pub fn insert_by_key<K: Ord>(&mut self, links: &mut Links, slot: u32, key: impl Fn(u32) -> K) {
        let own = key(slot);
        let mut before = self.back();
        while before.is_some_and(|other| key(other) > own) {
            before = before.and_then(|other| links.prev(other));
        }
        self.insert_after(links, before, slot);
    }

    /// Removes `slot`, which must be in this list.
    pub fn remove(&mut self, links: &mut Links, slot: u32) {
        let (prev, next) = (links.prev[slot as usize], links.next[slot as usize]);
        match some(prev) {
            Some(prev) => links.next[prev as usize] = next,
            None => self.head = next,
        }
        match some(next) {
            Some(next) => links.prev[next as usize] = prev,
            None => self.tail = prev,
        }
        (links.prev[slot as usize], links.next[slot as usize]) = (END, END);
        self.len -= 1;
    }

    /// Removes and returns the first slot.
    pub fn pop_front(&mut self, links: &mut Links) -> Option<u32> {
        let slot = self.front()?;
        self.remove(links, slot);
        Some(slot)
    }

    /// Returns the slots in order.
    pub fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = u32> + Clone + use<'a> {
        std::iter::successors(self.front(), move |&slot| links.next(slot))
    }
}

fn some(slot: u32) -> Option<u32> {
    (slot != END).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insertion_by_key_keeps_the_order_of_equals() {
        let mut links = Links::new(6);
        let (mut list, keys) = (List::default(), [3, 1, 3, 2, 1, 9]);
        (0..6).for_each(|slot| list.insert_by_key(&mut links, slot, |slot| keys[slot as usize]));
        assert_eq!(list.iter(&links).collect::<Vec<_>>(), [1, 4, 3, 0, 2, 5]);
    }

    #[test]
    fn two_lists_share_one_table() {
        let mut links = Links::new(6);
        let (mut a, mut b) = (List::default(), List::default());
        for slot in [0, 2, 4] {
            a.push_back(&mut links, slot);
            b.push_back(&mut links, slot + 1);
        }
        a.remove(&mut links, 2);
        a.insert_after(&mut links, None, 2);
        assert_eq!(a.iter(&links).collect::<Vec<_>>(), [2, 0, 4]);
        assert_eq!(b.iter(&links).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!((a.pop_front(&mut links), a.len(), a.back()), (Some(2), 2, Some(4)));
        assert_eq!((links.prev(5), links.next(5)), (Some(3), None));
        b.remove(&mut links, 5);
        b.remove(&mut links, 1);
        assert_eq!((b.pop_front(&mut links), b.is_empty(), b.front()), (Some(3), true, None));
    }
}
