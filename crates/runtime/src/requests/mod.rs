//! A client's call and its parts, from submission to its answer.

pub(crate) mod answer;
pub(crate) mod ending;
pub(crate) mod jobs;
pub(crate) mod parts;
pub(crate) mod split;
