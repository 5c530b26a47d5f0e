//! HTTP and gRPC front end, model repository, metrics.

pub mod registry;
pub mod repository;
pub mod stats;
