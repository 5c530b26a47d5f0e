//! Search for the rules by which outputs grow with the length of a request.

use crate::contract::length_rule::LengthRule;
use crate::contract::source::OutputLength;
use crate::probe::profile::ExampleRunner;
use crate::{Executor, LoadedModel};
use std::sync::Arc;

/// Number of lengths below the longest that are tried. They tell rules apart that round.
const TRIED_BELOW: u32 = 9;

/// Runs requests of several lengths alone and returns the rules of the outputs that grow with them,
/// except those `declared`. An output that no rule fits, or that grows in two dimensions, is left
/// out; [`check_padding`](crate::check_padding) reports it.
pub fn find_output_lengths(
    engine: &dyn Executor,
    model: &Arc<dyn LoadedModel>,
    declared: &[OutputLength],
) -> Vec<OutputLength> {
    let Some(longest) = model.lengths().map(|lengths| lengths.max) else { return Vec::new() };
    let is_open = |at: usize, dim: usize| {
        let spec = &model.outputs()[at];
        dim > 0 && spec.shape.get(dim) == Some(&-1) && !declared.iter().any(|output| output.tensor == spec.name)
    };
    if !(0..model.outputs().len()).any(|at| (1..model.outputs()[at].shape.len()).any(|dim| is_open(at, dim))) {
        return Vec::new();
    }
    let mut shapes = Vec::new();
    let below = (0..TRIED_BELOW).map(|less| longest.saturating_sub(less));
    let mut lengths: Vec<u32> = below.chain([longest / 2, longest / 3]).map(|length| length.max(1)).collect();
    lengths.sort_unstable();
    lengths.dedup();
    for length in lengths {
        // A length that the model refuses tells nothing about its outputs.
        shapes.extend(shapes_of(engine, model, length).map(|shapes| (length, shapes)));
    }
    let mut found = Vec::new();
    for (at, spec) in model.outputs().iter().enumerate() {
        let size = |shape: &Vec<Vec<i64>>, dim: usize| shape.get(at).and_then(|shape| shape.get(dim)).copied();
        let points = |dim: usize| -> Option<Vec<(u32, i64)>> {
            shapes.iter().map(|(length, shape)| Some((*length, size(shape, dim)?))).collect()
        };
        let grows =
            |dim: &usize| points(*dim).is_some_and(|points| points.windows(2).any(|pair| pair[0].1 != pair[1].1));
        let growing: Vec<usize> = (1..spec.shape.len()).filter(|&dim| is_open(at, dim)).filter(grows).collect();
        if let [dim] = growing[..]
            && let Some(rule) = points(dim).and_then(|points| LengthRule::fit(&points))
        {
            found.push(OutputLength { tensor: spec.name.clone(), dim, rule });
        }
    }
    found
}

/// Returns the shapes of the outputs of a request of this length; `None` if it fails.
fn shapes_of(engine: &dyn Executor, model: &Arc<dyn LoadedModel>, length: u32) -> Option<Vec<Vec<i64>>> {
    let inputs = model.example(length)?;
    let runner = ExampleRunner::new(engine, model, inputs.clone().into()).ok()?;
    let answers = runner.answers(&[&runner.entry(inputs)]).ok()?;
    Some(answers.into_iter().next()?.into_iter().map(|tensor| tensor.shape).collect())
}
