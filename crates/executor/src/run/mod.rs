//! Execution of tasks: lanes, workers, batches of rows, padding, and cells.

pub(crate) mod abort;
pub(crate) mod attached;
pub(crate) mod cells;
pub(crate) mod chain_state;
pub(crate) mod conditions;
pub(crate) mod device_row;
pub(crate) mod gather;
pub(crate) mod lane;
pub(crate) mod lane_queue;
pub(crate) mod padding;
pub(crate) mod plan;
pub(crate) mod rerun;
pub(crate) mod row_check;
pub(crate) mod rows;
pub(crate) mod runner;
pub(crate) mod second_thread;
pub(crate) mod sharing;
pub(crate) mod task;
pub(crate) mod task_ends;
pub(crate) mod worker;
