//! Parts that only baselines are made of.

pub(super) mod central;
pub(super) mod frontends;
pub(super) mod placement;
pub(super) mod pool;
pub(super) mod squishy;
