//! Shared by several suites: options as on a command line, random faults, walks and trees, and a
//! checker of padding.

use proptest::prelude::*;
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, Time};
use ripieno_model::{Graph, Model, Steps, Walk};
use ripieno_sched::{NetworkDelay, OptionValue, Options, Request, Setup};
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
        delay().prop_map(Fault::Delay),
        (0..3u16, delay()).prop_map(|(model, delay)| Fault::Gather(ModelId(model), delay)),
    ]
}

/// Any delay before a batch can run.
fn delay() -> impl Strategy<Value = NetworkDelay> {
    (0..3_000i64, 0..200i64).prop_map(|(control, row)| {
        let (control, data_per_row) = (Nanos::from_micros(control), Nanos::from_micros(row));
        NetworkDelay { control, data_per_row }
    })
}

pub(crate) fn micros(at: i64) -> Time {
    Time::ORIGIN + Nanos::from_micros(at)
}

/// Returns the step kinds of each walk, `blocks` of them where their number is free; the last block
/// may be a head.
pub(crate) fn steps(walk: Walk, blocks: usize, head: bool) -> Vec<Steps> {
    let mut steps = match walk {
        Walk::Whole => vec![Steps::Once],
        Walk::Chain => vec![Steps::Once; blocks],
        Walk::Repeat => vec![Steps::Length],
        Walk::Stacked => vec![Steps::Length; blocks],
        Walk::Bidirectional => vec![Steps::Length; 2],
        Walk::EncodeDecode => vec![Steps::Length, Steps::UntilEnd],
        Walk::Tree => vec![Steps::Nodes; 2],
        Walk::Graph => vec![Steps::Nodes; 3],
    };
    if head && walk.is_unfolded() {
        steps.push(Steps::Once);
    }
    steps
}

/// A tree: node n > 0 is a child of the node that `parents` names.
pub(crate) fn tree(parents: &[usize]) -> Graph {
    let mut children = vec![Vec::new(); parents.len() + 1];
    for (at, parent) in parents.iter().enumerate() {
        children[parent % (at + 1)].push(at as i64 + 1);
    }
    Graph::tree(children.len(), |node| &children[node], BlockId(0), BlockId(1)).unwrap()
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
