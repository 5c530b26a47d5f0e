//! Policy I: waiting requests divided by length into a few groups, each padded to its longest
//! member.
//!
//! Groups are contiguous ranges of the list sorted by length, so dynamic programming finds the
//! division with the least padded area exactly: for the first j requests in g groups it is the
//! minimum over the start of the last group. Requests of one length stay together, since a cut
//! between them saves nothing.

use ripieno_base::RequestSlot;

/// A divider with scratch memory.
#[derive(Debug)]
pub(super) struct Clusters {
    /// The requests by length, and among equals in the order of arrival.
    requests: Vec<(u32, u32, RequestSlot)>,
    /// Lengths, ascending, each with the end of its requests and the rows of all requests up to
    /// that end.
    lengths: Vec<(u32, usize, u64)>,
    /// Least area of the first lengths, by number of groups and of lengths.
    area: Vec<u64>,
    /// Start of the last group of the division with that area.
    cut: Vec<usize>,
    /// Ends of the groups among the requests.
    ends: Vec<usize>,
    /// Largest number of groups.
    groups: usize,
    /// Length of the part of `area` and `cut` of one number of groups.
    stride: usize,
}

impl Clusters {
    /// Creates a divider for the requests of one batch.
    pub(super) fn new(capacity: usize, groups: usize) -> Clusters {
        Clusters {
            requests: Vec::with_capacity(capacity),
            lengths: Vec::with_capacity(capacity),
            area: vec![0; (groups + 1) * (capacity + 1)],
            cut: vec![0; (groups + 1) * (capacity + 1)],
            ends: Vec::with_capacity(groups),
            groups,
            stride: capacity + 1,
        }
    }

    /// Divides requests, given by length, rows and slot, into `groups` groups with the least area,
    /// or into one for each length if there are fewer.
    pub(super) fn divide(&mut self, requests: impl Iterator<Item = (u32, u32, RequestSlot)>, groups: usize) {
        self.sort(requests);
        self.lengths.clear();
        let mut rows = 0;
        for (at, &(length, more, _)) in self.requests.iter().enumerate() {
            rows += u64::from(more);
            match self.lengths.last_mut().filter(|last| last.0 == length) {
                Some(last) => (last.1, last.2) = (at + 1, rows),
                None => self.lengths.push((length, at + 1, rows)),
            }
        }
        let groups = groups.min(self.groups).min(self.lengths.len());
        self.partition(groups);
        self.cut_into(groups);
    }

    fn sort(&mut self, requests: impl Iterator<Item = (u32, u32, RequestSlot)>) {
        self.requests.clear();
        self.requests.extend(requests);
        // Insertion sort: stable, and without memory of its own.
        for at in 1..self.requests.len() {
            let to = self.requests[..at].partition_point(|other| other.0 <= self.requests[at].0);
            self.requests[to..=at].rotate_right(1);
        }
    }

    /// Returns the groups, the shortest requests first: length, rows, and members.
    pub(super) fn groups(&self) -> impl Iterator<Item = (u32, usize, &[(u32, u32, RequestSlot)])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| {
            let members = &self.requests[start..end];
            let rows = members.iter().map(|member| member.1 as usize).sum();
            (members[members.len() - 1].0, rows, members)
        })
    }

    /// Finds the least area of every range from the first length on, in up to `groups` groups.
    fn partition(&mut self, groups: usize) {
        let (count, stride) = (self.lengths.len(), self.stride);
        for to in 1..=count {
            (self.area[stride + to], self.cut[stride + to]) = (self.padded(0, to), 0);
        }
        for group in 2..=groups {
            self.cut_last(group, (group, count), (group - 1, count - 1));
        }
    }

    /// Finds the start of the last of `group` groups, for the ranges up to each of `to.0..=to.1`
    /// lengths; it is within `from` in all cases. The start grows with the range, since a longer
    /// request makes early rows more expensive, so the middle one halves the candidates of the
    /// others (divide and conquer).
    fn cut_last(&mut self, group: usize, to: (usize, usize), from: (usize, usize)) {
        if to.0 > to.1 {
            return;
        }
        let middle = to.0.midpoint(to.1);
        let before = (group - 1) * self.stride;
        let of = |from: usize| self.area[before + from] + self.padded(from, middle);
        let best = (from.0..=from.1.min(middle - 1)).min_by_key(|&from| of(from)).expect("a length for each group");
        let place = group * self.stride + middle;
        (self.area[place], self.cut[place]) = (of(best), best);
        self.cut_last(group, (to.0, middle - 1), (from.0, best));
        self.cut_last(group, (middle + 1, to.1), (best, from.1));
    }

    /// Returns the area of one group of the lengths `from..to`.
    fn padded(&self, from: usize, to: usize) -> u64 {
        let rows_before = |at: usize| if at == 0 { 0 } else { self.lengths[at - 1].2 };
        u64::from(self.lengths[to - 1].0) * (rows_before(to) - rows_before(from))
    }

    /// Divides into `groups` groups.
    fn cut_into(&mut self, groups: usize) {
        self.ends.clear();
        let mut to = self.lengths.len();
        for group in (1..=groups).rev() {
            self.ends.push(self.lengths[to - 1].1);
            to = self.cut[group * self.stride + to];
        }
        self.ends.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_workload::{below, stream};

    fn divide(lengths: &[u32], groups: usize) -> Vec<Vec<u32>> {
        let mut clusters = Clusters::new(16, 4);
        let requests = lengths.iter().zip(0..).map(|(&length, slot)| (length, 1, RequestSlot(slot)));
        clusters.divide(requests, groups);
        clusters.groups().map(|(_, _, members)| members.iter().map(|member| member.2.0).collect()).collect()
    }

    /// Returns the padded area.
    fn area(clusters: &Clusters) -> u128 {
        clusters.groups().map(|(length, rows, _)| u128::from(length) * rows as u128).sum()
    }

    #[test]
    fn the_cut_is_where_it_saves_most() {
        assert_eq!(divide(&[9, 2, 2, 8, 3], 2), [vec![1, 2, 4], vec![3, 0]]);
        assert_eq!(divide(&[2, 2, 2, 4], 2), [vec![0, 1, 2], vec![3]]);
        assert_eq!(divide(&[5, 5, 5], 4), [vec![0, 1, 2]]);
        assert_eq!(divide(&[7, 1], 1), [vec![1, 0]]);
        assert_eq!(divide(&[], 2), Vec::<Vec<u32>>::new());
    }

    /// Compares with every division into at most `groups` groups.
    #[test]
    fn no_division_has_less_area() {
        let mut random = stream(1, 0);
        for _ in 0..300 {
            let mut draw = |bound: u64| below(&mut random, bound);
            let count = 1 + draw(9) as usize;
            let mut requests: Vec<_> =
                (0..count as u32).map(|slot| (1 + draw(20) as u32, 1 + draw(3) as u32, RequestSlot(slot))).collect();
            let groups = 1 + draw(4) as usize;
            let mut clusters = Clusters::new(16, 4);
            clusters.divide(requests.iter().copied(), groups);
            let found = area(&clusters);
            requests.sort_by_key(|request| request.0);
            let padded = |part: &[(u32, u32, RequestSlot)]| {
                part.iter().map(|request| u128::from(request.1)).sum::<u128>()
                    * part.last().map_or(0, |last| u128::from(last.0))
            };
            let cuts = |mask: u32| {
                let (mut sum, mut start) = (0, 0);
                for at in (0..count).filter(|at| *at + 1 == count || mask & (1 << at) != 0) {
                    sum += padded(&requests[start..=at]);
                    start = at + 1;
                }
                sum
            };
            let masks = (0..1u32 << (count - 1)).filter(|mask| mask.count_ones() < groups as u32);
            assert_eq!(found, masks.map(cuts).min().unwrap(), "{requests:?} in {groups}");
        }
    }
}
