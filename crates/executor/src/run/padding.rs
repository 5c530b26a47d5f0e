//! Batches of requests that differ in length: inputs are padded to the longest request, and outputs
//! are cut back.
//!
//! A batch is padded before its first block, to the length of its task. Each member then keeps this
//! length. Outputs of blocks cannot be padded, because only the model knows the right padding of an
//! intermediate tensor. For example, the padding of scores with a mask added is not 0. So batches
//! of later blocks contain only members of equal padding. Inputs of the request that a later block
//! takes are padded for that block.
//!
//! Padding is harmless only if the model uses a mask or processes elements independently. This is
//! tested at load; see [`check_padding`](crate::check_padding).

use crate::contract::buffer::bytes_of;
use crate::contract::length_rule::LengthRule;
use crate::contract::source::{InputLength, OutputLength};
use crate::run::rows::{PaddingAxis, Rows};
use crate::{ModelSource, RequestError, Tensor, request_extent};
use ripieno_model::{DataType, Extent, InputLengths, TensorSpec};

/// Rules for padding and cutting the values of a plan.
#[derive(Clone, Debug)]
pub(crate) struct PaddingPlan {
    pub(crate) lengths: InputLengths,
    inputs: Vec<TensorSpec>,
    /// Smallest and largest number of each input, if known.
    ranges: Vec<Option<(f64, f64)>>,
    /// Padding of each value that is an input of the request.
    axes: Vec<Option<PaddingAxis>>,
    /// Dimension along which each value is cut, and its size, if the value is an output.
    cuts: Vec<Option<(usize, LengthRule)>>,
}

/// Inputs and outputs of a model, with the indices of their values.
pub(crate) struct ModelBoundary<'a> {
    pub(crate) inputs: (&'a [TensorSpec], &'a [usize]),
    pub(crate) outputs: (&'a [TensorSpec], &'a [usize]),
    pub(crate) values: usize,
    /// Inputs that look up an embedding, with its number of ids.
    pub(crate) vocabulary: &'a [(String, i64)],
}

impl PaddingPlan {
    /// Checks the declared lengths against the model; `None` if no lengths are declared.
    pub(crate) fn link(source: &ModelSource, ends: &ModelBoundary<'_>) -> Result<Option<PaddingPlan>, String> {
        let said = &source.lengths;
        if said.inputs.is_empty() {
            return match said.outputs.first() {
                None => Ok(None),
                Some(output) => Err(format!(
                    "output '{}' has a length_dim, but no input has one; write length_dim = 1 in an [[input]] as well",
                    output.tensor
                )),
            };
        }
        let (inputs, input_values) = ends.inputs;
        let mut padding = PaddingPlan {
            lengths: InputLengths { max: source.max_length.max(1), dims: vec![None; inputs.len()] },
            inputs: inputs.to_vec(),
            ranges: inputs.iter().map(|spec| range(source, spec, ends)).collect(),
            axes: vec![None; ends.values],
            cuts: vec![None; ends.values],
        };
        for InputLength { tensor, dim, pad } in &said.inputs {
            let at = find("input", tensor, *dim, inputs)?;
            let datatype = inputs[at].datatype;
            let pad = bytes_of(datatype, *pad).ok_or_else(|| {
                format!("input '{tensor}' is {datatype}, which cannot be padded with {pad}; change pad")
            })?;
            padding.lengths.dims[at] = Some(*dim);
            padding.axes[input_values[at]] = Some(PaddingAxis { dim: *dim, pad });
        }
        let (outputs, output_values) = ends.outputs;
        for OutputLength { tensor, dim, rule } in &said.outputs {
            padding.cuts[output_values[find("output", tensor, *dim, outputs)?]] = Some((*dim, *rule));
        }
        Ok(Some(padding))
    }

    /// Returns the extent of a request with these inputs.
    pub(crate) fn describe(&self, inputs: &[Tensor]) -> Result<Extent, RequestError> {
        request_extent(&self.lengths, &self.inputs, inputs)
    }

    /// Returns the padding of a value; `None` if it is not padded.
    pub(crate) fn axis(&self, value: usize) -> Option<&PaddingAxis> {
        self.axes[value].as_ref()
    }

    /// Cuts a request's rows of an output from the padded length back to the request's length.
    pub(crate) fn cut(&self, value: usize, rows: &Rows, length: u32, padded: u32) -> Result<Rows, String> {
        match self.cuts[value] {
            Some((dim, rule)) => rows.cut(dim, rule.length(padded), rule.length(length)),
            None => Ok(rows.clone()),
        }
    }

    /// Creates a test request of this length. Ids and floats vary. Other integers are 1, as in an
    /// attention mask, because their meaning is unknown.
    pub(crate) fn example(&self, length: u32) -> Option<Vec<Tensor>> {
        let length = length.clamp(1, self.lengths.max);
        let each = self.inputs.iter().zip(&self.lengths.dims).zip(&self.ranges);
        each.map(|((spec, dim), range)| {
            let mut shape: Vec<i64> = spec.shape.iter().map(|&size| size.max(1)).collect();
            shape[0] = 1;
            if let Some(dim) = dim {
                shape[*dim] = i64::from(length);
            }
            let count = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(usize::try_from(size).ok()?))?;
            if count > MOST_ELEMENTS {
                return None;
            }
            let mut data = Vec::with_capacity(count * spec.datatype.size()?);
            for at in 0..count {
                data.extend(bytes_of(spec.datatype, element(spec.datatype, *range, at))?);
            }
            Some(Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape, data: data.into() })
        })
        .collect()
    }
}

/// Largest number of elements of an example.
const MOST_ELEMENTS: usize = 1 << 28;

fn element(datatype: DataType, range: Option<(f64, f64)>, at: usize) -> f64 {
    let varied = ((at * 7919 + 13) % 211) as f64;
    match (datatype, range) {
        (DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64, range) => {
            let (least, most) = range.unwrap_or((-1.0, 1.0));
            least + (most - least) * varied / 210.0
        }
        (_, Some((least, most))) => least.ceil() + varied % (most.floor() - least.ceil() + 1.0).max(1.0),
        _ => 1.0,
    }
}

/// Returns the smallest and largest number of an input, if they are declared or follow from a table
/// that it indexes.
fn range(source: &ModelSource, spec: &TensorSpec, ends: &ModelBoundary<'_>) -> Option<(f64, f64)> {
    let declared = source.ranges.iter().find(|range| range.tensor == spec.name).map(|range| (range.least, range.most));
    let sizes = ends.vocabulary.iter().filter(|(name, _)| *name == spec.name).map(|&(_, size)| size);
    declared.or(sizes.min().map(|size| (0.0, (size - 1).max(0) as f64)))
}

/// Returns the index of the tensor of this name. Returns an error if the dimension is fixed.
fn find(kind: &str, name: &str, dim: usize, specs: &[TensorSpec]) -> Result<usize, String> {
    let Some(at) = specs.iter().position(|spec| spec.name == name) else {
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        return Err(format!(
            "length_dim stands at {kind} '{name}', which the model does not have; it has {}",
            names.join(", ")
        ));
    };
    let TensorSpec { shape, datatype, .. } = &specs[at];
    if *datatype == DataType::Bytes {
        return Err(format!("{kind} '{name}' is BYTES, which cannot be padded; remove its length_dim"));
    }
    match shape.get(dim) {
        Some(-1) if dim > 0 => Ok(at),
        Some(size) if dim > 0 => Err(format!(
            "{kind} '{name}' has the shape {shape:?}: its dimension {dim} is always {size}; export it with a dynamic length, or \
             remove length_dim = {dim}"
        )),
        _ => Err(format!(
            "{kind} '{name}' has the shape {shape:?}, which has no dimension {dim} behind the batch; correct length_dim = {dim}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::source::LengthDims;
    use bytes::Bytes;

    fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
    }

    fn link(inputs: &[(&str, usize, f64)], outputs: &[(&str, usize)]) -> Result<Option<PaddingPlan>, String> {
        let input = |&(tensor, dim, pad): &(&str, usize, f64)| InputLength { tensor: tensor.to_owned(), dim, pad };
        let output = |&(tensor, dim): &(&str, usize)| OutputLength::new(tensor, dim);
        let lengths =
            LengthDims { inputs: inputs.iter().map(input).collect(), outputs: outputs.iter().map(output).collect() };
        let source = ModelSource { lengths, max_length: 8, ..ModelSource::new("m", Vec::new(), 4) };
        let specs = [
            spec("ids", DataType::Int64, &[-1, -1]),
            spec("mask", DataType::Int64, &[-1, -1]),
            spec("image", DataType::Fp32, &[-1, 3, 4]),
            spec("text", DataType::Bytes, &[-1, -1]),
        ];
        let answers = [spec("tokens", DataType::Fp32, &[-1, -1, 2])];
        let ends = ModelBoundary {
            inputs: (&specs, &[0, 1, 2, 3]),
            outputs: (&answers, &[4]),
            values: 5,
            vocabulary: &[("ids".to_owned(), 5)],
        };
        PaddingPlan::link(&source, &ends)
    }

    #[test]
    fn what_is_said_of_lengths_is_checked_against_the_tensors() {
        assert!(link(&[], &[]).unwrap().is_none());
        let cases = [
            (link(&[], &[("tokens", 1)]), "but no input has one"),
            (link(&[("id", 1, 0.0)], &[]), "which the model does not have; it has ids, mask, image, text"),
            (link(&[("image", 1, 0.0)], &[]), "its dimension 1 is always 3; export it with a dynamic length"),
            (link(&[("ids", 2, 0.0)], &[]), "has no dimension 2 behind the batch"),
            (link(&[("ids", 0, 0.0)], &[]), "has no dimension 0 behind the batch"),
            (link(&[("ids", 1, 0.5)], &[]), "is INT64, which cannot be padded with 0.5"),
            (link(&[("text", 1, 0.0)], &[]), "is BYTES, which cannot be padded"),
            (link(&[("ids", 1, 0.0)], &[("tokens", 2)]), "its dimension 2 is always 2"),
        ];
        for (linked, words) in cases {
            let error = linked.unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_request_has_one_length_within_the_bound() {
        let padding = link(&[("ids", 1, 0.0), ("mask", 1, 0.0)], &[("tokens", 1)]).unwrap().unwrap();
        let tensor = |name: &str, length: i64| Tensor {
            name: name.into(),
            datatype: DataType::Int64,
            shape: vec![1, length],
            data: Bytes::from(vec![0; length as usize * 8]),
        };
        let describe = |ids, mask| padding.describe(&[tensor("ids", ids), tensor("mask", mask)]);
        assert_eq!(describe(3, 3), Ok(Extent { length: 3, limit: 0 }));
        assert!(describe(3, 4).unwrap_err().0.contains("input 'mask' is 4 long, but 'ids' is 3"));
        assert!(describe(9, 9).unwrap_err().0.contains("but the model takes 1 to 8"));
        assert!(describe(0, 0).unwrap_err().0.contains("is 0 long"));
    }

    #[test]
    fn an_example_has_valid_ids_and_a_mask_of_ones() {
        let padding = link(&[("ids", 1, 0.0), ("mask", 1, 0.0)], &[]).unwrap().unwrap();
        let mut padding = padding;
        padding.inputs.truncate(3);
        let example = padding.example(4).unwrap();
        let numbers = |at: usize| -> Vec<i64> {
            example[at].data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
        };
        assert!(
            numbers(0).iter().all(|id| (0..5).contains(id)) && numbers(0).windows(2).any(|pair| pair[0] != pair[1])
        );
        assert_eq!((numbers(1), &example[2].shape[..]), (vec![1; 4], &[1, 3, 4][..]));
        assert_eq!(padding.example(100).unwrap()[0].shape, [1, 8]);
    }
}
