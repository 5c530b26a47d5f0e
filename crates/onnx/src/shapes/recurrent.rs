//! Recurrent operators, in the layout whose first dimension is time.

use super::{InferredTensor, OpCall};
use crate::dim::Dim;

pub(super) fn recurrent(call: &OpCall<'_>) -> Option<Vec<InferredTensor>> {
    let (input, recurrence) = (call.input(0)?, call.input(2)?);
    let [first, second, _] = &input.shape[..] else { return None };
    let [directions, _, hidden] = &recurrence.shape[..] else { return None };
    let state = |dims: [&Dim; 3]| InferredTensor::new(input.elem, dims.into_iter().cloned().collect());
    let (every, last) = match call.node.int("layout", 0) {
        0 => (vec![first, directions, second, hidden], state([directions, second, hidden])),
        _ => (vec![first, second, directions, hidden], state([first, directions, hidden])),
    };
    let every = InferredTensor::new(input.elem, every.into_iter().cloned().collect());
    Some(vec![every, last.clone(), last])
}
