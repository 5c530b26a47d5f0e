//! dva
mod batch_table;
mod stage_executors;
