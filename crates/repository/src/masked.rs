//! Finds models whose mask lets requests of unequal length share batches, without a `length_dim`.
//!
//! A model qualifies if it has an input that is named a mask and all open dimensions of its inputs
//! are the second ones. These can then only be one length. It is tried like a declared one: a short
//! request must be answered alone as beside a long one. The longest request that it takes is found
//! by trial, too. A model without a bound is left as it is: no bound that is made up may refuse a
//! request that it would answer.

use super::config::Granularity;
use super::plan::{LoadPlan, LoadTarget};
use ripieno_executor::{
    InputLength, LengthDims, LoadedModel, ModelSource, check_padding, find_output_lengths, run_example,
};
use ripieno_model::{TensorSpec, Walk};
use std::sync::Arc;

/// Part of the name of an input that says which elements count.
const MASK: &str = "mask";
/// Longest request of a model that most exporters make, and the others that are tried.
const USUAL: u32 = 512;
const SHORTER: [u32; 2] = [256, 128];
const LONGER: [u32; 2] = [1024, 2048];

/// Returns the dimensions that hold the length, if the inputs look like a masked model's.
fn candidate(inputs: &[TensorSpec]) -> Option<LengthDims> {
    let open = |spec: &TensorSpec| spec.shape.iter().skip(1).filter(|&&size| size < 0).count();
    let is_length = |spec: &&TensorSpec| spec.shape.get(1) == Some(&-1) && open(spec) == 1;
    let (lengths, others): (Vec<_>, Vec<_>) = inputs.iter().partition(is_length);
    let has_mask = lengths.iter().any(|spec| spec.name.contains(MASK) && spec.shape.len() == 2);
    if lengths.len() < 2 || !has_mask || others.iter().any(|spec| open(spec) > 0) {
        return None;
    }
    let input = |spec: &TensorSpec| InputLength { tensor: spec.name.clone(), dim: 1, pad: 0.0 };
    Some(LengthDims { inputs: lengths.into_iter().map(input).collect(), outputs: Vec::new() })
}

/// Returns the model with lengths, and replaces the source of the plan; `None` if its requests
/// share batches by shape only. The text says what was found.
pub(super) fn apply(
    target: &LoadTarget,
    plan: &mut LoadPlan,
    loaded: &Arc<dyn LoadedModel>,
) -> Option<(Arc<dyn LoadedModel>, String)> {
    let (source, config) = (&plan.source, &plan.config);
    let plain = source.walk == Walk::Whole && source.blocks.len() == 1 && config.granularity == Granularity::Whole;
    let declared =
        plan.is_python || !source.lengths.inputs.is_empty() || !config.inputs.is_empty() || config.latency.is_some();
    if !plain || declared || !target.groups_lengths || target.emulates() || !loaded.batched() || source.max_batch < 2 {
        return None;
    }
    let lengths = candidate(loaded.inputs())?;
    let longest = longest(target, &ModelSource { lengths: lengths.clone(), ..source.clone() })?;
    let mut source = ModelSource { max_length: longest, lengths, ..source.clone() };
    let model = target.engine.load(&source).ok()?;
    source.lengths.outputs = find_output_lengths(&*target.engine, &model, &[]);
    let model = target.engine.load(&source).ok()?;
    check_padding(&*target.engine, &model).ok()?;
    plan.source = source;
    let said = format!(
        "{}: requests of up to {longest} share batches whatever their length, since its mask lets them; a shape declared for \
         an [[input]] keeps lengths apart",
        plan.shown_file()
    );
    Some((model, said))
}

/// Returns the longest request that the model takes, if that is one of the usual bounds.
fn longest(target: &LoadTarget, source: &ModelSource) -> Option<u32> {
    let tried = ModelSource { max_length: 2 * LONGER[1], ..source.clone() };
    let model = target.engine.load(&tried).ok()?;
    let takes = |length: u32| {
        let example = model.example(length).map(Arc::from);
        example.is_some_and(|example| run_example(&*target.engine, &model, Some(example), 1).is_ok())
    };
    let ends = |length: &u32| takes(*length) && !takes(*length + 1);
    if takes(USUAL) {
        return if takes(USUAL + 1) { LONGER.into_iter().find(ends) } else { Some(USUAL) };
    }
    SHORTER.into_iter().find(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::DataType;

    fn found(inputs: &[(&str, &[i64])]) -> bool {
        let spec = |&(name, shape): &(&str, &[i64])| TensorSpec {
            name: name.to_owned(),
            datatype: DataType::Int64,
            shape: shape.to_vec(),
        };
        candidate(&inputs.iter().map(spec).collect::<Vec<_>>()).is_some()
    }

    #[test]
    fn only_one_length_beside_a_mask_is_tried() {
        let ids = ("ids", &[-1, -1][..]);
        assert!(found(&[ids, ("attention_mask", &[-1, -1])]));
        assert!(found(&[("features", &[-1, -1, 80]), ("mask", &[-1, -1]), ("language", &[-1, 1])]));
        assert!(!found(&[ids, ("token_type_ids", &[-1, -1])]), "no mask");
        assert!(!found(&[ids, ("mask", &[-1, -1]), ("past", &[-1, 4, -1, 8])]), "two lengths");
        assert!(!found(&[ids, ("mask", &[-1, 128])]), "a mask of one size");
        assert!(!found(&[("mask", &[-1, -1])]), "nothing to mask");
    }
}
