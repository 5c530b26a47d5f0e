//! Shared by several suites: options as on a command line, random faults, and a checker of padding.

use proptest::prelude::*;
use ripieno_base::{BlockId, DeviceId, ModelId, Time};
use ripieno_model::Model;
use ripieno_sched::{OptionValue, Options, Request, Setup};
use ripieno_sim::{Fault, Observer, Run};

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

/// A checker that panics if a batch whose cost depends on its length is padded beyond its longest
/// member.
pub(crate) struct LongestChecker<'a> {
    models: &'a [Model],
    /// Length of the request, by slot.
    lengths: Vec<u32>,
}

impl<'a> LongestChecker<'a> {
    pub(crate) fn new(setup: &'a Setup) -> LongestChecker<'a> {
        LongestChecker { models: &setup.models, lengths: vec![1; setup.limits.requests] }
    }
}

impl Observer for LongestChecker<'_> {
    fn accepted(&mut self, _id: u64, request: &Request) {
        self.lengths[request.slot.index()] = request.extent.length;
    }

    fn started(&mut self, now: Time, run: &Run<'_>) {
        if run.block == BlockId(0) && self.models[run.model.index()].has_lengths() {
            let longest = run.slots.iter().map(|slot| self.lengths[slot.index()]).max();
            assert_eq!(longest, Some(run.length), "{run:?} at {now:?}");
        }
    }
}
