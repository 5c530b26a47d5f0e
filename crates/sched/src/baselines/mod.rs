//! Published policies that others are measured against and that place batches otherwise: one per
//! file, under its published name. The catalogue lists them.

pub(crate) mod clockwork;
pub(crate) mod nexus;
mod parts;
pub(crate) mod shepherd;
