//! Tensors of a batch, and the rows of it that belong to each request.
//!
//! A batch is one allocation. A block's outputs are stored for its members as ranges of rows in the
//! output batch. So scattering copies nothing. Gathering the same members in the same order finds
//! their rows contiguous and copies nothing either. The disadvantage is that a single row in use
//! keeps its whole batch in memory.

use crate::contract::buffer::{AlignedBuffer, is_aligned};
use crate::run::device_row::DeviceRow;
use crate::{ExecError, Tensor};
use bytes::Bytes;
use ripieno_model::DataType;
use std::ops::Range;
use std::sync::Arc;

/// A tensor whose first dimension is the rows of one or more requests.
#[derive(Debug)]
pub(crate) struct BatchTensor {
    pub(crate) datatype: DataType,
    pub(crate) shape: Vec<i64>,
    data: Bytes,
    rows: RowBytes,
}

/// Positions of the rows in the data, in bytes.
#[derive(Debug)]
enum RowBytes {
    Even(usize),
    /// Offsets of BYTES rows, which differ in size. There is one more offset than rows.
    Offsets(Box<[usize]>),
}

impl BatchTensor {
    /// Checks `data` against `datatype` and `shape`. The error describes the mismatch but not the
    /// tensor's name.
    pub(crate) fn new(datatype: DataType, shape: Vec<i64>, data: Bytes) -> Result<BatchTensor, String> {
        let Some((&rows, row_shape)) = shape.split_first() else {
            return Err("it has no dimensions, so no batch".to_owned());
        };
        let per_row = elements(row_shape).ok_or_else(|| format!("its shape {shape:?} is not a size"))?;
        let rows = usize::try_from(rows).map_err(|_| format!("its shape {shape:?} is not a size"))?;
        let rows = match datatype.size() {
            Some(size) => {
                let row = per_row.checked_mul(size).ok_or_else(|| format!("its shape {shape:?} is too large"))?;
                if row.checked_mul(rows) != Some(data.len()) {
                    return Err(format!("it holds {} bytes, which is not {datatype} {shape:?}", data.len()));
                }
                RowBytes::Even(row)
            }
            // Rows without elements have no bytes, however many there are.
            None if per_row == 0 && data.is_empty() => RowBytes::Even(0),
            None => RowBytes::Offsets(offsets(&data, rows, per_row)?),
        };
        Ok(BatchTensor { datatype, shape, data, rows })
    }

    /// Returns the shape of an engine's output with a batch dimension. For an unbatched model, a
    /// first dimension of 1 is added.
    pub(crate) fn shape_of(given: impl IntoIterator<Item = i64>, unbatched: bool) -> Vec<i64> {
        unbatched.then_some(1).into_iter().chain(given).collect()
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.shape[0] as usize
    }

    /// Returns the shape of one row.
    pub(crate) fn row_shape(&self) -> &[i64] {
        &self.shape[1..]
    }

    fn byte_range(&self, rows: &Range<usize>) -> Range<usize> {
        match &self.rows {
            RowBytes::Even(row) => rows.start * row..rows.end * row,
            RowBytes::Offsets(offsets) => offsets[rows.start]..offsets[rows.end],
        }
    }
}

fn elements(shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))
}

/// Computes the offsets of rows of BYTES elements, each of which has a 4-byte length prefix.
fn offsets(data: &[u8], rows: usize, per_row: usize) -> Result<Box<[usize]>, String> {
    // Each element has at least its length prefix, so the size of the data bounds the table of
    // offsets.
    if rows.checked_mul(per_row).is_none_or(|count| count > data.len() / 4) || rows > data.len() {
        return Err(format!("it holds {} bytes, too few for {rows} x {per_row} BYTES elements", data.len()));
    }
    let mut at = 0;
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    for _ in 0..rows {
        for _ in 0..per_row {
            let prefix = data[at..].first_chunk().ok_or("its last BYTES element is cut short")?;
            at += 4 + u32::from_le_bytes(*prefix) as usize;
            if at > data.len() {
                return Err("its last BYTES element is cut short".to_owned());
            }
        }
        offsets.push(at);
    }
    if at != data.len() {
        return Err(format!("{} bytes follow its last BYTES element", data.len() - at));
    }
    Ok(offsets.into())
}

/// A range of rows in a batch: one request's part of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    batch: Arc<BatchTensor>,
    range: Range<usize>,
}

impl Rows {
    /// Creates the rows of a request's tensor.
    pub(crate) fn of_tensor(tensor: &Tensor) -> Result<Rows, String> {
        let batch = BatchTensor::new(tensor.datatype, tensor.shape.clone(), tensor.data.clone())?;
        let range = 0..batch.rows();
        Ok(Rows { batch: Arc::new(batch), range })
    }

    /// Returns rows `range` of `batch`.
    pub(crate) fn of_batch(batch: &Arc<BatchTensor>, range: Range<usize>) -> Rows {
        Rows { batch: Arc::clone(batch), range }
    }

    pub(crate) fn count(&self) -> usize {
        self.range.len()
    }

    /// Returns one of these rows.
    pub(crate) fn at(&self, row: usize) -> Rows {
        let at = self.range.start + row;
        Rows { batch: Arc::clone(&self.batch), range: at..at + 1 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.batch.data[self.batch.byte_range(&self.range)]
    }

    /// Returns the bytes of `rows` rows of the batch, from the first of these on.
    fn bytes_of(&self, rows: usize) -> &[u8] {
        &self.batch.data[self.batch.byte_range(&(self.range.start..self.range.start + rows))]
    }

    pub(crate) fn datatype(&self) -> DataType {
        self.batch.datatype
    }

    /// Returns the shape of each of these rows.
    pub(crate) fn row_shape(&self) -> &[i64] {
        self.batch.row_shape()
    }

    /// Returns the first `to` elements along a dimension of `from` elements. Copies, unless the
    /// result is all elements or the first bytes of a single row.
    pub(crate) fn cut(&self, dim: usize, from: i64, to: i64) -> Result<Rows, String> {
        let BatchTensor { datatype, shape, .. } = &*self.batch;
        let size = datatype.size().ok_or("strings cannot be cut")?;
        if shape.get(dim) != Some(&from) {
            return Err(format!("its shape {shape:?} should be {from} long in dimension {dim}, as the batch is"));
        }
        if from == to {
            return Ok(self.clone());
        }
        let count = |dims: &[i64]| dims.iter().map(|&dim| dim as usize).product::<usize>();
        let inner = count(&shape[dim + 1..]) * size;
        let (long, short) = (from as usize * inner, to as usize * inner);
        let bytes = self.batch.byte_range(&self.range);
        let data = match self.count() * count(&shape[1..dim]) {
            1 => self.batch.data.slice(bytes.start..bytes.start + short),
            _ => self.batch.data[bytes].chunks_exact(long.max(1)).flat_map(|part| &part[..short]).copied().collect(),
        };
        let mut shape = shape.clone();
        (shape[0], shape[dim]) = (self.count() as i64, to);
        let batch = BatchTensor::new(*datatype, shape, data)?;
        let range = 0..batch.rows();
        Ok(Rows { batch: Arc::new(batch), range })
    }

    /// Returns these rows as a tensor, without copying.
    pub(crate) fn to_tensor(&self, name: &Arc<str>) -> Tensor {
        let mut shape = self.batch.shape.clone();
        shape[0] = self.count() as i64;
        let data = self.batch.data.slice(self.batch.byte_range(&self.range));
        Tensor { name: Arc::clone(name), datatype: self.batch.datatype, shape, data }
    }
}

/// One row of a batch for a cell.
#[derive(Clone, Debug)]
pub(crate) enum RowPart<'a> {
    Rows(Rows),
    /// A row in a device's memory.
    Device(DeviceRow),
    /// Constant bytes.
    Fill(&'a [u8]),
    /// Padding, whose content is arbitrary.
    Any,
}

/// A contiguous, aligned tensor for an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineInput<'a> {
    pub(crate) name: &'a str,
    pub(crate) datatype: DataType,
    /// The shape of one row.
    pub(crate) row_shape: &'a [i64],
    pub(crate) rows: usize,
    pub(crate) data: &'a [u8],
    /// Whether the tensor is one for all rows of the batch. It then has one row.
    pub(crate) whole: bool,
}

impl EngineInput<'_> {
    /// Returns the shape that an engine expects. For an unbatched model, this is the shape of the
    /// single row.
    pub(crate) fn shape(&self, unbatched: bool) -> impl Iterator<Item = i64> {
        let rows = (!unbatched && !self.whole).then_some(self.rows as i64);
        rows.into_iter().chain(self.row_shape.iter().copied())
    }
}

/// One input of a batch whose rows are contiguous: in a buffer, or in the batch of the members.
#[derive(Debug)]
pub(crate) struct GatheredInput {
    /// The first member's rows.
    first: Rows,
    /// Shape of a padded row; `None` if rows have the shape of the first member's.
    padded_row: Option<Vec<i64>>,
    /// Number of rows.
    rows: usize,
    /// Number of bytes in the buffer; `None` if the rows follow the first member's in its batch.
    copied_bytes: Option<usize>,
}

impl GatheredInput {
    /// Makes the members' rows contiguous, followed by copies of the last row if there are fewer
    /// than `rows`. Uses `buffer` if the rows must be copied.
    pub(crate) fn gather(
        name: &str,
        members: &[&Rows],
        rows: usize,
        buffer: &mut AlignedBuffer,
    ) -> Result<GatheredInput, ExecError> {
        let first = members[0];
        let (datatype, row_shape) = (first.batch.datatype, first.batch.row_shape());
        if let Some(other) = members.iter().find(|member| member.batch.row_shape() != row_shape) {
            return Err(ExecError(format!(
                "requests of different shapes cannot share a batch: input '{name}' has rows of {row_shape:?} and of {:?}",
                other.batch.row_shape()
            )));
        }
        let in_place = side_by_side(members, rows);
        let in_place = in_place && is_aligned(first.bytes_of(rows), datatype.size().unwrap_or(1));
        let copied_bytes = (!in_place).then(|| copy(members, rows, buffer));
        Ok(GatheredInput { first: first.clone(), padded_row: None, rows, copied_bytes })
    }

    /// Returns the tensor for an engine. `buffer` is the one that it was gathered with.
    pub(crate) fn tensor<'a>(&'a self, name: &'a str, buffer: &'a AlignedBuffer) -> EngineInput<'a> {
        let GatheredInput { first, padded_row, rows, copied_bytes } = self;
        let data = copied_bytes.map_or_else(|| first.bytes_of(*rows), |bytes| buffer.first(bytes));
        let row_shape = padded_row.as_deref().unwrap_or_else(|| first.row_shape());
        EngineInput { name, datatype: first.datatype(), row_shape, rows: *rows, data, whole: false }
    }

    /// Returns the number of rows that were copied.
    pub(crate) fn rows_copied(&self) -> usize {
        if self.copied_bytes.is_some() { self.rows } else { 0 }
    }
}

/// The dimension of an input that is padded.
#[derive(Clone, Debug)]
pub(crate) struct PaddingAxis {
    pub(crate) dim: usize,
    /// Bytes of one padding element.
    pub(crate) pad: Vec<u8>,
}

impl GatheredInput {
    /// Makes the members' rows contiguous and pads each row at its end to `row_shape`. Repeats the
    /// last row if there are fewer than `rows`.
    pub(crate) fn pad(
        name: &str,
        members: &[&Rows],
        rows: usize,
        axis: &PaddingAxis,
        row_shape: &[i64],
        buffer: &mut AlignedBuffer,
    ) -> Result<GatheredInput, ExecError> {
        if members.iter().all(|member| member.row_shape() == row_shape) {
            return GatheredInput::gather(name, members, rows, buffer);
        }
        let at = axis.dim - 1;
        let fits = |member: &&Rows| {
            let shape = member.row_shape();
            let alike = |(dim, (a, b)): (usize, (&i64, &i64))| if dim == at { (1..=*b).contains(a) } else { a == b };
            shape.len() == row_shape.len() && shape.iter().zip(row_shape).enumerate().all(alike)
        };
        if let Some(other) = members.iter().find(|member| !fits(member)) {
            return Err(ExecError(format!(
                "requests of different shapes cannot share a batch: input '{name}' has rows of {:?} where {row_shape:?} is the \
                 longest",
                other.row_shape()
            )));
        }
        let count = |dims: &[i64]| dims.iter().map(|&dim| dim as usize).product::<usize>();
        let inner = count(&row_shape[at + 1..]) * axis.pad.len();
        let (outer, long) = (count(&row_shape[..at]), row_shape[at] as usize * inner);
        let own_bytes = members.iter().map(|member| member.count()).sum::<usize>() * outer * long;
        let bytes = rows * outer * long;
        let mut places = buffer.first_mut(bytes).chunks_exact_mut(long.max(1));
        for member in members {
            let short = member.row_shape()[at] as usize * inner;
            for (part, place) in member.bytes().chunks_exact(short.max(1)).zip(&mut places) {
                let (own, rest) = place.split_at_mut(short);
                own.copy_from_slice(part);
                rest.chunks_exact_mut(axis.pad.len()).for_each(|element| element.copy_from_slice(&axis.pad));
            }
        }
        repeat_last(buffer.first_mut(bytes), own_bytes, outer * long);
        let (first, padded_row) = (members[0].clone(), Some(row_shape.to_vec()));
        Ok(GatheredInput { first, padded_row, rows, copied_bytes: Some(bytes) })
    }
}

impl<'a> EngineInput<'a> {
    /// Makes single rows contiguous. All rows must have the declared type and a fixed size. Also
    /// returns the number of rows copied into `buffer`.
    pub(crate) fn assemble(
        name: &'a str,
        datatype: DataType,
        row_shape: &'a [i64],
        parts: &'a [RowPart<'a>],
        buffer: &'a mut AlignedBuffer,
    ) -> Result<(EngineInput<'a>, usize), ExecError> {
        for part in parts {
            let batch = match part {
                RowPart::Rows(Rows { batch, .. }) => batch,
                RowPart::Device(_) => {
                    return Err(ExecError(format!("input '{name}' is in the memory of another device")));
                }
                RowPart::Fill(_) | RowPart::Any => continue,
            };
            if batch.datatype != datatype || batch.row_shape() != row_shape {
                return Err(ExecError(format!(
                    "input '{name}' must have rows of {datatype} {row_shape:?}, but is given {} {:?}",
                    batch.datatype,
                    batch.row_shape()
                )));
            }
        }
        let size = datatype.size().unwrap_or(1);
        let row = row_shape.iter().fold(size, |product, &dim| product * dim as usize);
        let input = |data| EngineInput { name, datatype, row_shape, rows: parts.len(), data, whole: false };
        if let Some(data) = in_place(parts).filter(|data| is_aligned(data, size)) {
            return Ok((input(data), 0));
        }
        let rows = buffer.first_mut(row * parts.len()).chunks_exact_mut(row.max(1));
        for (place, part) in rows.zip(parts) {
            match part {
                RowPart::Rows(rows) => place.copy_from_slice(rows.bytes()),
                RowPart::Fill(bytes) => place.copy_from_slice(bytes),
                RowPart::Device(_) | RowPart::Any => place.fill(0),
            }
        }
        Ok((input(buffer.first(row * parts.len())), parts.len()))
    }
}

/// Returns the rows without copying, if they are consecutive in one batch. A padding row may be any
/// row of that batch.
fn in_place<'a>(parts: &'a [RowPart<'a>]) -> Option<&'a [u8]> {
    let anchor = parts.iter().zip(0..).find_map(|(part, at)| match part {
        RowPart::Rows(rows) => Some((rows, at)),
        _ => None,
    });
    let (first, at): (&Rows, usize) = anchor?;
    let start = first.range.start.checked_sub(at)?;
    let fits = |(part, at): (&RowPart<'_>, usize)| match part {
        RowPart::Rows(rows) => Arc::ptr_eq(&rows.batch, &first.batch) && rows.range.start == start + at,
        RowPart::Fill(_) | RowPart::Device(_) => false,
        RowPart::Any => true,
    };
    let end = start + parts.len();
    let whole = end <= first.batch.rows() && parts.iter().zip(0..).all(fits);
    whole.then(|| &first.batch.data[first.batch.byte_range(&(start..end))])
}

/// Whether the members' rows are `rows` consecutive ones of one batch. Padding is copied: the rows
/// behind the members may belong to other requests, which a batch must not depend on.
fn side_by_side(members: &[&Rows], rows: usize) -> bool {
    let follow =
        |pair: &[&Rows]| Arc::ptr_eq(&pair[0].batch, &pair[1].batch) && pair[0].range.end == pair[1].range.start;
    let own: usize = members.iter().map(|member| member.count()).sum();
    own == rows && members.windows(2).all(follow)
}

/// Copies the members' rows. Repeats the last row if there are fewer than `rows`. Returns the
/// number of bytes.
fn copy(members: &[&Rows], rows: usize, buffer: &mut AlignedBuffer) -> usize {
    let missing = rows - members.iter().map(|member| member.count()).sum::<usize>();
    let last = members.last().filter(|_| missing > 0).map(|last| last.at(last.count() - 1));
    let row = last.as_ref().map_or(0, |last| last.bytes().len());
    let own_bytes: usize = members.iter().map(|member| member.bytes().len()).sum();
    let bytes = own_bytes + missing * row;
    let mut rest = &mut *buffer.first_mut(bytes);
    for member in members {
        let (place, after) = rest.split_at_mut(member.bytes().len());
        place.copy_from_slice(member.bytes());
        rest = after;
    }
    repeat_last(buffer.first_mut(bytes), own_bytes, row);
    bytes
}

/// Fills `data` from byte `from` on with copies of the `row` bytes before it.
fn repeat_last(data: &mut [u8], from: usize, row: usize) {
    let (own, rest) = data.split_at_mut(from);
    let last = &own[from - row..];
    rest.chunks_exact_mut(row.max(1)).for_each(|place| place.copy_from_slice(last));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(elements: &[&str]) -> Bytes {
        let mut data = Vec::new();
        for element in elements {
            data.extend((element.len() as u32).to_le_bytes());
            data.extend(element.as_bytes());
        }
        data.into()
    }

    #[test]
    fn rows_of_no_strings_have_no_bytes() {
        for rows in [0, 1, 3] {
            let batch = BatchTensor::new(DataType::Bytes, vec![rows, 0], Bytes::new()).unwrap();
            assert_eq!((batch.rows(), batch.row_shape()), (rows as usize, &[0][..]));
        }
        assert!(BatchTensor::new(DataType::Bytes, vec![1, 0], Bytes::from_static(&[0; 4])).is_err());
        assert!(BatchTensor::new(DataType::Bytes, vec![0, 4], Bytes::new()).is_ok());
    }

    #[test]
    fn rows_of_strings_are_found_and_put_together() {
        let batch = BatchTensor::new(DataType::Bytes, vec![3, 2], strings(&["a", "", "bcd", "e", "f", "gh"])).unwrap();
        let batch = Arc::new(batch);
        let (first, last) = (Rows::of_batch(&batch, 0..1), Rows::of_batch(&batch, 2..3));
        assert_eq!(last.to_tensor(&"x".into()).data, strings(&["f", "gh"]));
        let mut buffer = AlignedBuffer::default();
        let gathered = GatheredInput::gather("x", &[&last, &first], 2, &mut buffer).unwrap();
        let (input, copied) = (gathered.tensor("x", &buffer), gathered.rows_copied());
        assert_eq!((input.data, input.rows, copied), (&strings(&["f", "gh", "a", ""])[..], 2, 2));
        let gathered = GatheredInput::gather("x", &[&first, &last], 4, &mut buffer).unwrap();
        let (input, copied) = (gathered.tensor("x", &buffer), gathered.rows_copied());
        let padded = strings(&["a", "", "f", "gh", "f", "gh", "f", "gh"]);
        assert_eq!((input.data, input.rows, copied), (&padded[..], 4, 4));
    }

    #[test]
    fn neighbours_in_order_are_not_copied() {
        let data = crate::contract::buffer::into_bytes(vec![1.0f32, 2.0, 3.0, 4.0]);
        let batch = Arc::new(BatchTensor::new(DataType::Fp32, vec![4, 1], data).unwrap());
        let rows: Vec<Rows> = [0..1, 1..3, 3..4].map(|range| Rows::of_batch(&batch, range)).into();
        let mut buffer = AlignedBuffer::default();
        let copied = |members: &[&Rows], buffer: &mut AlignedBuffer| {
            let rows = members.iter().map(|member| member.count()).sum();
            let gathered = GatheredInput::gather("x", members, rows, buffer).unwrap();
            (gathered.tensor("x", buffer).rows, gathered.rows_copied())
        };
        assert_eq!(copied(&[&rows[0], &rows[1], &rows[2]], &mut buffer), (4, 0));
        assert_eq!(copied(&[&rows[1], &rows[2]], &mut buffer), (3, 0));
        assert_eq!(copied(&[&rows[0], &rows[2]], &mut buffer), (2, 2));
        assert_eq!(copied(&[&rows[1], &rows[0]], &mut buffer), (3, 3));
        let mut padded = |member: &Rows, to: usize| {
            let gathered = GatheredInput::gather("x", &[member], to, &mut buffer).unwrap();
            let data = gathered.tensor("x", &buffer).data;
            (bytemuck::cast_slice::<u8, f32>(data).to_vec(), gathered.rows_copied())
        };
        assert_eq!(padded(&rows[0], 2), (vec![1.0, 1.0], 2), "the row behind it is another request's");
        assert_eq!(padded(&rows[1], 4), (vec![2.0, 3.0, 3.0, 3.0], 4));
    }

    #[test]
    fn padding_uses_existing_rows_and_moves_none() {
        let data = crate::contract::buffer::into_bytes(vec![1.0f32, 2.0, 3.0]);
        let batch = Arc::new(BatchTensor::new(DataType::Fp32, vec![3, 1], data).unwrap());
        let row = |at: usize| RowPart::Rows(Rows::of_batch(&batch, at..at + 1));
        let mut buffer = AlignedBuffer::default();
        let mut copied = |parts: &[RowPart<'_>]| {
            let (input, copied) = EngineInput::assemble("h", DataType::Fp32, &[1], parts, &mut buffer).unwrap();
            (bytemuck::cast_slice::<u8, f32>(input.data).to_vec(), copied)
        };
        assert_eq!(copied(&[row(0), row(1), row(2)]), (vec![1.0, 2.0, 3.0], 0));
        assert_eq!(copied(&[RowPart::Any, row(1), RowPart::Any]), (vec![1.0, 2.0, 3.0], 0));
        assert_eq!(copied(&[row(2), RowPart::Any]), (vec![3.0, 0.0], 2));
        assert_eq!(copied(&[RowPart::Any, row(0)]), (vec![0.0, 1.0], 2));
        assert_eq!(copied(&[RowPart::Any]), (vec![0.0], 1));
        assert_eq!(copied(&[row(0), RowPart::Fill(&7f32.to_le_bytes())]), (vec![1.0, 7.0], 2));
    }

    #[test]
    fn shorter_rows_are_padded_at_their_end_and_cut_back() {
        // Rows of shape [2, length, 1], padded along `length`.
        let member = |length: usize, from: u8| {
            let data = Bytes::from((from..from + 2 * length as u8).collect::<Vec<u8>>());
            Rows::of_tensor(&Tensor {
                name: "x".into(),
                datatype: DataType::Uint8,
                shape: vec![1, 2, length as i64, 1],
                data,
            })
            .unwrap()
        };
        let (short, long) = (member(1, 10), member(3, 20));
        let (mut buffer, axis) = (AlignedBuffer::default(), PaddingAxis { dim: 2, pad: vec![9] });
        let padded = [10, 9, 9, 11, 9, 9, 20, 21, 22, 23, 24, 25];
        let gathered = GatheredInput::pad("x", &[&short, &long], 2, &axis, &[2, 3, 1], &mut buffer).unwrap();
        let (input, copied) = (gathered.tensor("x", &buffer), gathered.rows_copied());
        assert_eq!((input.data, input.rows, copied), (&padded[..], 2, 2));
        let batch = BatchTensor::new(DataType::Uint8, vec![2, 2, 3, 1], Bytes::copy_from_slice(input.data)).unwrap();
        let batch = Arc::new(batch);
        let cut = |row: usize, to| Rows::of_batch(&batch, row..row + 1).cut(2, 3, to).unwrap();
        assert_eq!((cut(0, 1).bytes(), cut(0, 1).row_shape()), (&[10, 11][..], &[2, 1, 1][..]));
        assert_eq!((cut(1, 3).bytes(), cut(1, 2).bytes()), (&[20, 21, 22, 23, 24, 25][..], &[20, 21, 23, 24][..]));
        assert!(Rows::of_batch(&batch, 0..1).cut(1, 3, 1).unwrap_err().contains("should be 3 long in dimension 1"));
        let refused = GatheredInput::pad("x", &[&short, &long], 2, &axis, &[2, 2, 1], &mut buffer).unwrap_err();
        assert!(refused.0.contains("cannot share a batch"), "{refused}");
        let gathered = GatheredInput::pad("x", &[&long, &short], 4, &axis, &[2, 3, 1], &mut buffer).unwrap();
        let input = gathered.tensor("x", &buffer);
        let repeated = [&padded[6..], &padded[..6], &padded[..6], &padded[..6]].concat();
        assert_eq!((input.data, input.rows), (&repeated[..], 4));
    }

    #[test]
    fn data_that_does_not_fit_its_shape_is_refused() {
        let refused = |datatype, shape: &[i64], data: &'static [u8]| {
            BatchTensor::new(datatype, shape.to_vec(), Bytes::from_static(data)).unwrap_err()
        };
        assert_eq!(refused(DataType::Fp32, &[2, 1], &[0; 4]), "it holds 4 bytes, which is not FP32 [2, 1]");
        assert_eq!(refused(DataType::Fp32, &[], &[0; 4]), "it has no dimensions, so no batch");
        refused(DataType::Fp32, &[1, -1], &[]);
        refused(DataType::Fp32, &[i64::MAX, i64::MAX], &[]);
        refused(DataType::Bytes, &[1 << 40, 1], &[0; 8]);
        assert_eq!(refused(DataType::Bytes, &[1], &[5, 0, 0, 0, 1]), "its last BYTES element is cut short");
        assert_eq!(refused(DataType::Bytes, &[1], &[0; 5]), "1 bytes follow its last BYTES element");
    }
}
