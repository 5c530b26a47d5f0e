//! Shared by several suites: options as on a command line, and random faults.

use proptest::prelude::*;
use ripieno_base::{DeviceId, ModelId};
use ripieno_sched::{OptionValue, Options};
use ripieno_sim::Fault;

/// Parses `name=value name=value …`.
pub(crate) fn options(text: &str) -> Options {
    let option = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap();
        let number = value.parse().map(OptionValue::Int).or_else(|_| value.parse().map(OptionValue::Float));
        let value = number.unwrap_or(OptionValue::Text(value.to_owned()));
        (name.to_owned(), value)
    };
    text.split_whitespace().map(option).collect()
}

/// Any fault of a world with `devices` devices; requests below `requests` may be cancelled.
pub(crate) fn fault(devices: usize, requests: u64) -> impl Strategy<Value = Fault> {
    let device = move || (0..devices as u16).prop_map(DeviceId);
    prop_oneof![
        device().prop_map(Fault::Join),
        device().prop_map(Fault::Leave),
        device().prop_map(Fault::Lose),
        (device(), 20..400u32).prop_map(|(device, percent)| Fault::Slow(device, percent)),
        device().prop_map(Fault::FailNext),
        (1..requests).prop_map(Fault::Cancel),
        (0..3u16).prop_map(|model| Fault::Unload(ModelId(model))),
    ]
}
