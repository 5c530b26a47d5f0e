//! Delays of task reports, as measured in a live run.
//!
//! Between the end of a task and the scheduler's next turn threads wake up and processors are
//! shared, so a report arrives some time after the end. After a pause of the machine several
//! reports arrive together. A task that ends between the end of a recorded one and its report is
//! reported with it. Any other is as late as the next recorded one: the start of a pause is not
//! recorded, only its effect on a waiting report, so each pause delays about one task in the replay
//! as well. The device itself continues meanwhile.

use ripieno_base::{Nanos, Time};

/// The ends of tasks, in order, with the times of their reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reports<'a>(&'a [(Time, Time)]);

impl<'a> Reports<'a> {
    /// Returns none if nothing was measured.
    pub(crate) fn new(heard: &'a [(Time, Time)]) -> Option<Reports<'a>> {
        (!heard.is_empty()).then_some(Reports(heard))
    }

    /// Returns the time of the report of a task that ends at `end`. After the recorded run there is
    /// no delay.
    pub(crate) fn of(self, end: Time) -> Time {
        let next = self.0.partition_point(|&(ended, _)| ended <= end);
        match self.0[..next].last() {
            Some(&(ended, heard)) if heard > end || ended == end => heard,
            _ => end + self.0.get(next).map_or(Nanos::ZERO, |&(ended, heard)| heard - ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_in_a_pause_are_reported_after_it_and_others_are_as_late_as_the_next() {
        let heard = [(10, 12), (20, 20), (30, 90), (95, 97)].map(|(ended, heard)| (Time(ended), Time(heard)));
        let reports = Reports::new(&heard).unwrap();
        let of = |end: i64| reports.of(Time(end)).0;
        assert_eq!([10, 20, 30, 95].map(of), [12, 20, 90, 97], "what was measured");
        assert_eq!([11, 31, 89].map(of), [12, 90, 90], "in a pause");
        assert_eq!([5, 12, 25, 90, 97].map(of), [7, 12, 85, 92, 97], "at any other time");
        assert!(Reports::new(&[]).is_none());
    }
}
