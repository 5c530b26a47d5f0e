//! Rules by which requests in cells join, leave and are padded.

use ripieno_base::Nanos;

/// Rules of a policy for a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRules {
    /// Whether a task may hold more rows than the requests of a set have.
    pub(crate) merges: bool,
    /// Largest number of tasks submitted to a device together.
    pub(crate) max_tasks: usize,
    /// The rule for joining.
    pub(crate) join: Join,
    /// The rule for leaving.
    pub(crate) leave: Leave,
    /// Whether outputs go on as padding until the last member of the set has ended. Needs a rule
    /// for leaving with padding.
    pub(crate) pads_output: bool,
    /// True if a bucket keeps its turn while it can fill sets.
    pub(crate) drains: bool,
    /// Longest time that the oldest request of a bucket waits for its set to fill.
    pub(crate) window: Nanos,
    /// Time of merging graphs before a set can start, per node.
    pub(crate) merge_per_node: Nanos,
}

impl CellRules {
    /// One step at a time: requests join at the next step and leave at their own end.
    pub(crate) const STEP_BY_STEP: CellRules = CellRules {
        merges: false,
        max_tasks: 1,
        join: Join::NextTask,
        leave: Leave::AtItsEnd,
        pads_output: false,
        drains: false,
        window: Nanos::ZERO,
        merge_per_node: Nanos::ZERO,
    };
}

/// The rule for the start of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// In the next task that has room.
    NextTask,
    /// In a fixed set of requests from one bucket, on a device that has no set.
    InSets {
        /// Number of lengths in a bucket; `None` puts all lengths into one.
        width: Option<u32>,
    },
}

/// The rule for the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// After its own last cell.
    AtItsEnd,
    /// After the last request of its set. If requests may join at any time, those that begin in one
    /// task form a set.
    WithItsSet(Padding),
}

/// The rule for the rows of shorter requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Padding {
    /// Rows of ended requests are removed.
    None,
    /// Rows are kept until the longest of the set has ended.
    ToLongest,
    /// Rows are kept until the end of the bucket.
    ToBucket,
}
