//! The catalogue: every policy by the name that its paper gave it.

use crate::{Scheduler, Setup};
use std::collections::BTreeMap;
use std::fmt;

/// Options of a policy, by name, as they stand in a scenario's `[policy_options]` or on the command line.
pub type Options = BTreeMap<String, OptionValue>;

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(untagged))]
pub enum OptionValue {
    /// true or false
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A word.
    Text(String),
}
