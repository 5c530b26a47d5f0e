//! Parts that policies are made of.

pub(crate) mod rate;
pub(crate) mod requests;
pub(crate) mod tasks;
