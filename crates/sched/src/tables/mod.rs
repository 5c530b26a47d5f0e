//! Tables that schedulers keep, each once: models, requests, queues, tasks, devices, and batches
//! that change on the way.

pub mod cohorts;
pub mod devices;
pub mod models;
pub mod queue;
pub mod requests;
pub mod tasks;
