//! Recurrent operators: `[time, batch, features]`, or `[batch, time, features]` in layout 1.

use super::call::{CROSSED, FIXED, Made, RowCall, meet};
use super::value::{RowAxis, RowRelation, RowValue};
use crate::dim::Dim;

pub(super) fn recurrent(call: &RowCall<'_>) -> Made {
    let (dims, rows) = call.plain(0)?;
    let batch_first = call.node.int("layout", 0) == 1;
    let (at, state_at) = if batch_first { (0, 0) } else { (1, 1) };
    if rows.axis != at || dims.len() != 3 {
        return meet("it steps along the rows of the batch");
    }
    // The weights, their biases and the peepholes of an LSTM.
    for weights in [1, 2, 3, 7].into_iter().filter_map(|number| call.optional(number)) {
        if !weights.is_constant() {
            return meet("its weights are computed from rows");
        }
    }
    for (number, own) in [(4, 0), (5, state_at), (6, state_at)] {
        let Some(input) = call.optional(number) else { continue };
        match input.axis() {
            Some(axis) if *axis == rows.at(own) && super::call::dims_of(input)?[own] == dims[at] => {}
            Some(_) => return meet(CROSSED),
            None => return meet(FIXED),
        }
    }
    let directions = Dim::known(if call.node.text("direction") == "bidirectional" { 2 } else { 1 });
    let hidden = match call.node.int("hidden_size", 0) {
        0 => call.fresh(),
        size => Dim::known(size),
    };
    let (batch, time) = (dims[at].clone(), dims[1 - at].clone());
    let rows = |axis: usize| RowRelation::Along(RowAxis { inner: rows.inner.clone(), ..rows.at(axis) });
    let (all, last) = if batch_first {
        let all = vec![batch.clone(), time, directions.clone(), hidden.clone()];
        (RowValue::new(all, rows(0)), RowValue::new(vec![batch, directions, hidden], rows(0)))
    } else {
        let all = vec![time, directions.clone(), batch.clone(), hidden.clone()];
        (RowValue::new(all, rows(2)), RowValue::new(vec![directions, batch, hidden], rows(1)))
    };
    Ok(vec![all, last.clone(), last])
}
