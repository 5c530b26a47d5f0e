//! Published policies that other papers compare themselves with: one per file, under its published
//! name. The catalogue lists them.

pub(crate) mod bucketed;
pub(crate) mod clockwork;
pub(crate) mod delay_batch;
pub(crate) mod graph_merge;
pub(crate) mod nexus;
mod parts;
pub(crate) mod serial;
pub(crate) mod shepherd;
pub(crate) mod timeout;
