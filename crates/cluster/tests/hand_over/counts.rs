//! Counters of the events in runs: a test of events that never happen tests nothing.

/// Counters of one run or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    pub(crate) epochs: u64,
    pub(crate) ran: u64,
    pub(crate) retried: u64,
    /// A primary learned of a later epoch.
    pub(crate) stepped_down: u64,
    /// A backend refused an order of an earlier epoch.
    pub(crate) fenced: u64,
    /// A second answer came to a frontend, and was dropped.
    pub(crate) dropped: u64,
    /// A scheduler received its own success a second time, since the first reply was lost or late.
    pub(crate) recognised: u64,
    /// A swap was refused.
    pub(crate) refused: u64,
    /// A request was started a second time.
    pub(crate) begun_again: u64,
    /// A primary received a report of what an earlier one had started.
    pub(crate) adopted: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        let Counts {
            events,
            epochs,
            ran,
            retried,
            stepped_down,
            fenced,
            dropped,
            recognised,
            refused,
            begun_again,
            adopted,
        } = other;
        self.events += events;
        self.epochs += epochs;
        self.ran += ran;
        self.retried += retried;
        self.stepped_down += stepped_down;
        self.fenced += fenced;
        self.dropped += dropped;
        self.recognised += recognised;
        self.refused += refused;
        self.begun_again += begun_again;
        self.adopted += adopted;
    }

    /// Returns the events that one run may lack, but all runs together must have.
    pub(crate) fn rare(&self) -> [(&'static str, u64); 7] {
        [
            ("a primary stepped down", self.stepped_down),
            ("an old order was refused", self.fenced),
            ("a second answer came", self.dropped),
            ("a lost success was recognised", self.recognised),
            ("a swap was refused", self.refused),
            ("a request was begun again", self.begun_again),
            ("a batch was taken over", self.adopted),
        ]
    }
}
