//! When a scheduler hears of the ends of tasks, as it was measured in a live run.
//!
//! Between the end of a task and the scheduler's next turn threads wake up and processors are shared, so that a report comes
//! some time after the end, and after a pause of the machine several come at once. A task that ends while the scheduler was
//! found deaf is heard when it was heard again; any other as late as was usual. The device itself goes on meanwhile.

use ripieno_base::{Nanos, Time};

/// The ends of tasks, in order, and when the scheduler heard of each.
#[derive(Clone, Debug)]
pub(crate) struct Reports<'a> {
    heard: &'a [(Time, Time)],
    usual: Nanos,
}

impl<'a> Reports<'a> {
    /// None if nothing was measured.
    pub(crate) fn new(heard: &'a [(Time, Time)]) -> Option<Reports<'a>> {
        let mut late: Vec<Nanos> = heard.iter().map(|&(ended, heard)| heard - ended).collect();
        late.sort_unstable();
        let usual = *late.get(late.len() / 2)?;
        Some(Reports { heard, usual })
    }

    /// When the scheduler hears of a task that ends then.
    pub(crate) fn of(&self, end: Time) -> Time {
        let before = self.heard.partition_point(|&(ended, _)| ended <= end);
        match self.heard[..before].last() {
            Some(&(_, heard)) if heard > end => heard,
            // It was heard in the very instant.
            Some(&(ended, heard)) if ended == end => heard,
            _ => end + self.usual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_in_a_pause_is_heard_after_it_and_others_as_late_as_usual() {
        let heard = [(10, 12), (20, 20), (30, 90), (95, 97)].map(|(ended, heard)| (Time(ended), Time(heard)));
        let reports = Reports::new(&heard).unwrap();
        let of = |end: i64| reports.of(Time(end)).0;
        assert_eq!([10, 20, 30, 95].map(of), [12, 20, 90, 97], "what was measured");
        assert_eq!([11, 31, 89].map(of), [12, 90, 90], "in a pause");
        assert_eq!([5, 12, 25, 90, 200].map(of), [7, 14, 27, 92, 202], "at any other time");
        assert!(Reports::new(&[]).is_none());
    }
}
