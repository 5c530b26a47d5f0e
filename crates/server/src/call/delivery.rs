//! Processing of an output before it is sent: classification into its best classes, or a copy to
//! shared memory.

use crate::call::regions::RegionSlice;
use crate::problem::Problem;
use crate::state::{PARSE_INLINE_BYTES, ServerState};
use bytes::Bytes;
use ripieno_model::DataType;
use ripieno_repository::labels::Labels;
use ripieno_repository::registry::ServedEntry;
use ripieno_wire::ResponseTensor;
use std::sync::Arc;

/// An output and its target.
pub(crate) struct Delivery {
    pub(crate) output: ResponseTensor,
    pub(crate) target: Option<OutputTarget>,
}

pub(crate) enum OutputTarget {
    /// Write the output to this slice of shared memory.
    Write(RegionSlice),
    /// Send this number of best classes, with the labels of this entry.
    Classify(usize, Arc<ServedEntry>),
}

/// Bytes of a class without its label, in the row's list and in the response; the longest number
/// has about 330 digits, most have ten.
const CLASS_BYTES: usize = 400;

/// Returns true if outputs of this datatype can be ranked.
pub(crate) fn has_classes(datatype: DataType) -> bool {
    !matches!(datatype, DataType::Bool | DataType::Bytes | DataType::Fp16 | DataType::Bf16)
}

/// Returns the output as it is to be sent.
pub(crate) async fn deliver(state: &ServerState, delivery: Delivery) -> Result<ResponseTensor, Problem> {
    let Delivery { mut output, target } = delivery;
    let Some(target) = target else { return Ok(output) };
    let is_long = output.data.len() > PARSE_INLINE_BYTES;
    let ranking_bytes = match &target {
        OutputTarget::Write(_) => 0,
        OutputTarget::Classify(most, entry) => ranking_bytes(&output, *most, entry),
    };
    let reserved = state.budget.reserve(ranking_bytes)?;
    let work = move || {
        let _reserved = reserved;
        match target {
            OutputTarget::Write(slice) => slice.write(&output.name, &std::mem::take(&mut output.data))?,
            OutputTarget::Classify(most, entry) => {
                let labels = entry.labels.get(&output.name);
                classify(&mut output, most, entry.batched, labels);
            }
        }
        Ok(output)
    };
    if is_long { state.run_cpu_bound(work).await? } else { work() }
}

/// Returns the memory for ranking: the order of a row's elements, and the classes of all rows.
fn ranking_bytes(output: &ResponseTensor, most: usize, entry: &ServedEntry) -> usize {
    let elements = output.data.len() / output.datatype.size().unwrap_or(1).max(1);
    let rows = if entry.batched { output.shape.first().map_or(1, |&rows| rows.max(1) as usize) } else { 1 };
    let label = entry.labels.get(&output.name).map_or(0, |labels| labels.longest);
    let classes = elements.min(rows.saturating_mul(most));
    8 * elements.div_ceil(rows) + classes.saturating_mul(CLASS_BYTES + label)
}

/// Replaces the scores of each row by its best classes, as "value:index" or "value:index:label".
fn classify(output: &mut ResponseTensor, most: usize, batched: bool, labels: Option<&Labels>) {
    let rows = if batched { output.shape.first().map_or(1, |&rows| rows.max(0) as usize) } else { 1 };
    let data = std::mem::take(&mut output.data);
    let row = data.len() / rows.max(1);
    let elements = row / output.datatype.size().unwrap_or(1).max(1);
    let most = most.min(elements);
    let mut classes = Vec::new();
    // A row without elements has no classes.
    for row in data.chunks_exact(row.max(1)) {
        for (value, index) in best(output.datatype, row, most) {
            let label = labels.and_then(|labels| labels.names.get(index));
            let class = label.map_or_else(|| format!("{value}:{index}"), |label| format!("{value}:{index}:{label}"));
            // Label lengths are bounded at load.
            classes.extend_from_slice(&(class.len() as u32).to_le_bytes());
            classes.extend_from_slice(class.as_bytes());
        }
    }
    output.datatype = DataType::Bytes;
    output.shape = if batched { vec![rows as i64, most as i64] } else { vec![most as i64] };
    output.data = Bytes::from(classes);
}

/// Returns the highest elements with their indices, in descending order; ties are in index order.
fn best(datatype: DataType, row: &[u8], most: usize) -> Vec<(String, usize)> {
    match datatype {
        DataType::Uint8 => highest(row, most, u8::from_le_bytes, |value| value.to_string()),
        DataType::Uint16 => highest(row, most, u16::from_le_bytes, |value| value.to_string()),
        DataType::Uint32 => highest(row, most, u32::from_le_bytes, |value| value.to_string()),
        DataType::Uint64 => highest(row, most, u64::from_le_bytes, |value| value.to_string()),
        DataType::Int8 => highest(row, most, i8::from_le_bytes, |value| value.to_string()),
        DataType::Int16 => highest(row, most, i16::from_le_bytes, |value| value.to_string()),
        DataType::Int32 => highest(row, most, i32::from_le_bytes, |value| value.to_string()),
        DataType::Int64 => highest(row, most, i64::from_le_bytes, |value| value.to_string()),
        DataType::Fp32 => highest(row, most, f32::from_le_bytes, decimal),
        DataType::Fp64 => highest(row, most, f64::from_le_bytes, decimal),
        // Refused when the request is checked.
        DataType::Bool | DataType::Bytes | DataType::Fp16 | DataType::Bf16 => Vec::new(),
    }
}

/// Formats a number as C++ does.
fn decimal(value: impl Into<f64>) -> String {
    format!("{:.6}", value.into()).replace("NaN", "nan")
}

fn highest<T: PartialOrd + Copy, const N: usize>(
    row: &[u8],
    most: usize,
    value: fn([u8; N]) -> T,
    text: fn(T) -> String,
) -> Vec<(String, usize)> {
    let elements = row.as_chunks::<N>().0;
    let at = |index: &usize| value(elements[*index]);
    // NaN sorts after all numbers.
    let is_number = |value: T| value.partial_cmp(&value).is_some();
    let order = |a: &usize, b: &usize| {
        let by_value = at(b).partial_cmp(&at(a)).unwrap_or_else(|| is_number(at(b)).cmp(&is_number(at(a))));
        by_value.then(a.cmp(b))
    };
    let mut indices: Vec<usize> = (0..elements.len()).collect();
    if most < indices.len() {
        indices.select_nth_unstable_by(most, order);
        indices.truncate(most);
    }
    indices.sort_unstable_by(order);
    indices.into_iter().map(|index| (text(at(&index)), index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_wire::OutputEncoding;

    fn classes(
        datatype: DataType,
        shape: &[i64],
        data: Vec<u8>,
        most: usize,
        batched: bool,
    ) -> (Vec<i64>, Vec<String>) {
        let labels = Labels { file: "l".into(), names: vec!["zero".into(), "one".into()], longest: 4 };
        let (name, shape, data) = ("y".into(), shape.to_vec(), Bytes::from(data));
        let mut output = ResponseTensor { name, datatype, shape, data, encoding: OutputEncoding::Json };
        classify(&mut output, most, batched, Some(&labels));
        assert_eq!(output.datatype, DataType::Bytes);
        let (mut rest, mut texts) = (&output.data[..], Vec::new());
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let (text, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
            texts.push(String::from_utf8(text.to_vec()).unwrap());
            rest = tail;
        }
        (output.shape, texts)
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn the_highest_come_first_with_value_index_and_label() {
        let data = floats(&[1.0, 5.0, 10.0, 4.0, -1.0, 0.5, -3.0, 0.5]);
        let (shape, texts) = classes(DataType::Fp32, &[2, 4], data.clone(), 2, true);
        assert_eq!(shape, [2, 2]);
        assert_eq!(texts, ["10.000000:2", "5.000000:1:one", "0.500000:1:one", "0.500000:3"]);
        let (shape, texts) = classes(DataType::Fp32, &[2, 2, 2], data.clone(), 99, true);
        assert_eq!((shape, texts.len(), texts[3].as_str()), (vec![2, 4], 8, "1.000000:0:zero"));
        assert_eq!(classes(DataType::Fp32, &[8], data, 1, false), (vec![1], vec!["10.000000:2".to_owned()]));
        let bytes = classes(DataType::Int8, &[1, 3], vec![0x80, 0x7f, 0], 3, true).1;
        assert_eq!(bytes, ["127:1:one", "0:2", "-128:0:zero"]);
    }

    #[test]
    fn nan_comes_last_and_an_empty_row_has_no_classes() {
        let data = floats(&[f32::NAN, f32::NEG_INFINITY, f32::NAN, 1.0]);
        let (_, texts) = classes(DataType::Fp32, &[1, 4], data, 4, true);
        assert_eq!(texts, ["1.000000:3", "-inf:1:one", "nan:0:zero", "nan:2"]);
        assert_eq!(classes(DataType::Fp32, &[2, 0], vec![], 3, true), (vec![2, 0], vec![]));
        assert_eq!(classes(DataType::Fp32, &[0, 3], vec![], 3, true).0, [0, 0]);
    }
}
