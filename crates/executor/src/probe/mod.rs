//! Trials at load: profiles, independence of rows, equal answers, valid values.

pub(crate) mod curve;
pub(crate) mod equality;
pub(crate) mod example;
pub(crate) mod independence;
pub(crate) mod output_lengths;
pub(crate) mod profile;
pub(crate) mod value_checks;
pub(crate) mod values;
