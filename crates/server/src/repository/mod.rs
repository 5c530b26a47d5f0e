//! The model repository.

pub mod cache;
pub mod config;
#[cfg(test)]
mod fixture;
pub mod scan;
