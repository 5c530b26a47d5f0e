//! Splitting of requests that are larger than a batch, and joining of their outputs.

use bytes::{Bytes, BytesMut};
use ripieno_executor::Tensor;
use std::sync::Arc;

/// Splits a request of `rows` rows into full batches and a rest. Returns the number of rows and the
/// inputs of each part. Copies no elements.
pub(crate) fn split(inputs: &Arc<[Tensor]>, rows: usize, max_batch: usize) -> Vec<(usize, Arc<[Tensor]>)> {
    if rows <= max_batch {
        return vec![(rows, Arc::clone(inputs))];
    }
    let mut columns: Vec<_> = inputs.iter().map(|input| RowSplitter::new(input, rows)).collect();
    sizes(rows, max_batch)
        .map(|take| (take, columns.iter_mut().map(|column| column.take_rows(take)).collect()))
        .collect()
}

/// Returns the inputs of the `count` rows from row `first` on; `None` if the request has fewer
/// rows. Copies no elements.
pub fn some_rows(inputs: &Arc<[Tensor]>, rows: usize, first: usize, count: usize) -> Option<Arc<[Tensor]>> {
    if first == 0 && count == rows {
        return Some(Arc::clone(inputs));
    }
    let within = count > 0 && first.checked_add(count).is_some_and(|end| end <= rows);
    within.then(|| {
        let cut = |input| {
            let mut column = RowSplitter::new(input, rows);
            column.take_rows(first);
            column.take_rows(count)
        };
        inputs.iter().map(cut).collect()
    })
}

/// Returns the number of rows of each part: full batches, then the rest.
pub(crate) fn sizes(rows: usize, max_batch: usize) -> impl Iterator<Item = usize> {
    (0..rows).step_by(max_batch).map(move |first| max_batch.min(rows - first))
}

/// A tensor that is being split.
struct RowSplitter<'a> {
    tensor: &'a Tensor,
    /// Remaining bytes of the tensor.
    rest: Bytes,
    /// Size of a row in bytes; `None` if elements vary in size.
    row_bytes: Option<usize>,
    row_elements: usize,
}

impl RowSplitter<'_> {
    fn new(tensor: &Tensor, rows: usize) -> RowSplitter<'_> {
        let row_elements = tensor.shape.iter().skip(1).map(|&dim| usize::try_from(dim).unwrap_or(0)).product();
        let row_bytes = tensor.datatype.size().map(|_| tensor.data.len() / rows);
        RowSplitter { tensor, rest: tensor.data.clone(), row_bytes, row_elements }
    }

    fn take_rows(&mut self, rows: usize) -> Tensor {
        let wanted = self.row_bytes.map_or_else(|| self.varying(rows * self.row_elements), |bytes| bytes * rows);
        let data = self.rest.split_to(wanted.min(self.rest.len()));
        let shape = std::iter::once(rows as i64).chain(self.tensor.shape.iter().skip(1).copied()).collect();
        Tensor { name: Arc::clone(&self.tensor.name), datatype: self.tensor.datatype, shape, data }
    }

    /// Returns the size in bytes of the next `elements` elements. Each element has a 4-byte length
    /// prefix.
    fn varying(&self, elements: usize) -> usize {
        let mut at = 0_usize;
        for _ in 0..elements {
            let Some(length) = self.rest.get(at..).and_then(|rest| rest.first_chunk::<4>()) else { break };
            at = at.saturating_add(4 + u32::from_le_bytes(*length) as usize);
        }
        at
    }
}

/// Checks whether the outputs of a request's parts can be joined. The error is the reason.
pub fn check_joinable(parts: &[Vec<Tensor>]) -> Result<(), String> {
    let first = &parts[0];
    for other in &parts[1..] {
        let alike = |a: &Tensor, b: &Tensor| {
            a.name == b.name && a.datatype == b.datatype && a.shape.get(1..) == b.shape.get(1..)
        };
        if other.len() != first.len() || !first.iter().zip(other).all(|(a, b)| alike(a, b)) {
            return Err("the outputs of the request's parts differ in name, type or shape".to_owned());
        }
    }
    Ok(())
}

/// Joins the outputs of a request's parts, which must be in order.
pub fn join(parts: &[Vec<Tensor>]) -> Vec<Tensor> {
    (0..parts[0].len()).map(|at| join_one(parts.iter().map(|part| &part[at]))).collect()
}

fn join_one<'a>(pieces: impl Iterator<Item = &'a Tensor> + Clone) -> Tensor {
    let mut data = BytesMut::with_capacity(pieces.clone().map(|piece| piece.data.len()).sum());
    let mut rows = 0;
    let mut shape = Vec::new();
    let mut named = None;
    for piece in pieces {
        data.extend_from_slice(&piece.data);
        rows += piece.shape.first().copied().unwrap_or(0);
        shape.clone_from(&piece.shape);
        named = Some((Arc::clone(&piece.name), piece.datatype));
    }
    let (name, datatype) = named.expect("a request has at least one part");
    if let Some(first) = shape.first_mut() {
        *first = rows;
    }
    Tensor { name, datatype, shape, data: data.freeze() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::DataType;

    fn tensor(datatype: DataType, shape: &[i64], data: &[u8]) -> Tensor {
        Tensor { name: "x".into(), datatype, shape: shape.to_vec(), data: Bytes::copy_from_slice(data) }
    }

    fn round_trip(inputs: Vec<Tensor>, rows: usize, max_batch: usize) -> Vec<usize> {
        let inputs: Arc<[Tensor]> = inputs.into();
        let parts = split(&inputs, rows, max_batch);
        let outputs: Vec<Vec<Tensor>> = parts.iter().map(|(_, part)| part.to_vec()).collect();
        check_joinable(&outputs).unwrap();
        assert_eq!(join(&outputs), inputs.to_vec());
        parts.iter().map(|(rows, _)| *rows).collect()
    }

    #[test]
    fn what_is_split_joins_to_the_same() {
        let numbers = tensor(DataType::Uint16, &[5, 2], &(0..20).collect::<Vec<u8>>());
        let words: Vec<u8> = [&b"a"[..], b"", b"ccc", b"dd", b"e"]
            .iter()
            .flat_map(|word| [&(word.len() as u32).to_le_bytes()[..], word].concat())
            .collect();
        let words = tensor(DataType::Bytes, &[5, 1], &words);
        assert_eq!(round_trip(vec![numbers.clone(), words.clone()], 5, 2), [2, 2, 1]);
        assert_eq!(round_trip(vec![words], 5, 4), [4, 1]);
        assert_eq!(round_trip(vec![numbers], 5, 8), [5]);
    }

    #[test]
    fn elements_of_varying_size_go_with_their_row() {
        let words = tensor(DataType::Bytes, &[3], &[1, 0, 0, 0, b'a', 0, 0, 0, 0, 2, 0, 0, 0, b'b', b'c']);
        let parts = split(&vec![words].into(), 3, 1);
        let data: Vec<&[u8]> = parts.iter().map(|(_, part)| &part[0].data[4..]).collect();
        assert_eq!(data, [&b"a"[..], b"", b"bc"]);
    }

    #[test]
    fn some_rows_are_those_of_the_part() {
        let words = tensor(DataType::Bytes, &[3], &[1, 0, 0, 0, b'a', 0, 0, 0, 0, 2, 0, 0, 0, b'b', b'c']);
        let numbers = tensor(DataType::Uint16, &[3, 1], &[0, 1, 2, 3, 4, 5]);
        let inputs: Arc<[Tensor]> = vec![words, numbers].into();
        let mut first = 0;
        for (count, part) in split(&inputs, 3, 2) {
            assert_eq!(some_rows(&inputs, 3, first, count).unwrap()[..], part[..]);
            first += count;
        }
        assert!(Arc::ptr_eq(&some_rows(&inputs, 3, 0, 3).unwrap(), &inputs));
        let beyond = [(0, 4), (3, 1), (1, 0), (usize::MAX, 2)];
        assert!(beyond.into_iter().all(|(first, count)| some_rows(&inputs, 3, first, count).is_none()));
    }

    #[test]
    fn malformed_elements_are_cut_short_without_harm() {
        let words = tensor(DataType::Bytes, &[2], &[255, 255, 255, 255, b'a']);
        assert_eq!(split(&vec![words].into(), 2, 1).len(), 2);
    }

    #[test]
    fn outputs_of_different_shapes_do_not_join() {
        let (a, b) = (tensor(DataType::Int8, &[1, 2], &[1, 2]), tensor(DataType::Int8, &[1, 3], &[1, 2, 3]));
        assert!(check_joinable(&[vec![a.clone()], vec![b]]).is_err());
        assert!(check_joinable(&[vec![a], vec![]]).is_err());
    }
}
