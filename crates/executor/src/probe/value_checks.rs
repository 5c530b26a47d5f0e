//! Checks of a request's values before the request takes a slot.
//!
//! An engine detects an id outside a table, or invalid text, only while it runs a batch. The
//! model's file declares enough to refuse such a request at admission. So the client learns
//! immediately which value is wrong, and no batch fails.

use crate::{RequestError, Tensor};
use ripieno_model::{DataType, TensorSpec};

/// A constraint on the values of an input.
#[derive(Clone, Debug)]
pub(crate) struct ValueCheck {
    input: String,
    rule: ValueRule,
}

#[derive(Clone, Copy, Debug)]
enum ValueRule {
    /// Indices into a table with this number of rows. Negative indices count from the end.
    Ids(i64),
    /// Strings that ONNX allows.
    Text,
    /// Numbers and infinities, but no NaN. Holds the name of the operator that would turn NaN into
    /// a number.
    NoNan(&'static str),
}

impl ValueCheck {
    /// Creates the check of an input that holds indices of table rows.
    pub(crate) fn ids(input: &TensorSpec, rows: i64) -> ValueCheck {
        ValueCheck { input: input.name.clone(), rule: ValueRule::Ids(rows) }
    }

    /// Creates the check of an input that the engine reads as text; `None` if it is not BYTES.
    pub(crate) fn text(input: &TensorSpec) -> Option<ValueCheck> {
        let bytes = input.datatype == DataType::Bytes;
        bytes.then(|| ValueCheck { input: input.name.clone(), rule: ValueRule::Text })
    }

    /// Creates the check of an input that reaches an operator which turns NaN into a number.
    pub(crate) fn no_nan(input: &TensorSpec, operator: &'static str) -> Option<ValueCheck> {
        let floats = input.datatype == DataType::Fp32;
        floats.then(|| ValueCheck { input: input.name.clone(), rule: ValueRule::NoNan(operator) })
    }

    pub(crate) fn check(&self, inputs: &[Tensor]) -> Result<(), RequestError> {
        let Some(tensor) = inputs.iter().find(|tensor| *tensor.name == *self.input) else { return Ok(()) };
        let name = &self.input;
        match self.rule {
            ValueRule::Ids(rows) => match outside(tensor, rows) {
                Some((at, id)) => Err(RequestError(format!(
                    "input '{name}' holds {id} at element {at}, but the model has a table of {rows} rows there; send ids from \
                     {} to {}",
                    -rows,
                    rows - 1
                ))),
                None => Ok(()),
            },
            ValueRule::Text => match no_text(&tensor.data) {
                Some(at) => Err(RequestError(format!(
                    "input '{name}' holds no UTF-8 text without zero bytes at element {at}, but the model takes text; encode it as \
                     UTF-8"
                ))),
                None => Ok(()),
            },
            ValueRule::NoNan(operator) => match nan(tensor) {
                Some(at) => Err(RequestError(format!(
                    "input '{name}' holds NaN at element {at}, of which operator {operator} of engine 'cpu' would make a number: send \
                     numbers, or serve with --engine onnxruntime"
                ))),
                None => Ok(()),
            },
        }
    }
}

/// Returns the index of the first NaN.
fn nan(tensor: &Tensor) -> Option<usize> {
    let is_nan = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).is_nan();
    let (elements, _) = tensor.data.as_chunks();
    // Compilers vectorise the search in whole chunks, and nearly all chunks contain no NaN.
    let piece = elements.chunks(256).position(|piece| piece.iter().fold(false, |any, bytes| any | is_nan(bytes)))?;
    elements[piece * 256..].iter().position(is_nan).map(|at| piece * 256 + at)
}

/// Returns the index and value of the first id outside a table with this number of rows.
fn outside(tensor: &Tensor, rows: i64) -> Option<(usize, i64)> {
    macro_rules! find {
        ($int:ty) => {{
            let ids = tensor.data.as_chunks().0.iter().map(|&bytes| <$int>::from_le_bytes(bytes));
            ids.map(i64::from).enumerate().find(|(_, id)| !(-rows..rows).contains(id))
        }};
    }
    match tensor.datatype {
        DataType::Int64 => find!(i64),
        DataType::Int32 => find!(i32),
        DataType::Int16 => find!(i16),
        DataType::Int8 => find!(i8),
        DataType::Uint32 => find!(u32),
        DataType::Uint16 => find!(u16),
        DataType::Uint8 => find!(u8),
        _ => None,
    }
}

/// Returns the index of the first BYTES element that is invalid text or truncated.
fn no_text(mut data: &[u8]) -> Option<usize> {
    let mut at = 0;
    while !data.is_empty() {
        let element = data.split_first_chunk().and_then(|(length, rest)| {
            let (element, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            data = rest;
            std::str::from_utf8(element).ok().filter(|text| !text.contains('\0'))
        });
        if element.is_none() {
            return Some(at);
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wanted: ValueRule, datatype: DataType, data: &[u8]) -> Result<(), String> {
        let tensor = Tensor { name: "x".into(), datatype, shape: vec![1], data: data.to_vec().into() };
        ValueCheck { input: "x".to_owned(), rule: wanted }.check(&[tensor]).map_err(|cause| cause.0)
    }

    #[test]
    fn ids_are_rows_of_the_table_from_either_end() {
        let of = |ids: &[i64]| {
            let data: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            check(ValueRule::Ids(100), DataType::Int64, &data)
        };
        assert_eq!(of(&[0, 99, -1, -100]), Ok(()));
        let refused =
            "input 'x' holds 100 at element 1, but the model has a table of 100 rows there; send ids from -100 to 99";
        assert_eq!(of(&[0, 100, 101]).unwrap_err(), refused);
        for wrong in [-101, i64::MAX, i64::MIN] {
            assert!(of(&[wrong]).unwrap_err().contains(&format!("holds {wrong} at element 0")));
        }
        assert!(check(ValueRule::Ids(4), DataType::Int32, &[255; 4]).is_ok());
        assert!(check(ValueRule::Ids(4), DataType::Uint32, &[255; 4]).is_err());
        assert!(check(ValueRule::Ids(4), DataType::Uint8, &[3, 4]).unwrap_err().contains("holds 4 at element 1"));
        assert!(
            check(ValueRule::Ids(4), DataType::Fp32, &[255; 4]).is_ok(),
            "only the model knows what it makes of it"
        );
    }

    #[test]
    fn nan_is_found_wherever_it_stands() {
        for (length, at) in [(1, 0), (700, 0), (700, 255), (700, 256), (700, 699)] {
            let mut numbers = vec![f32::NEG_INFINITY; length];
            let bytes = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
            assert!(check(ValueRule::NoNan("Relu"), DataType::Fp32, &bytes(&numbers)).is_ok());
            numbers[at] = -f32::NAN;
            let refused = check(ValueRule::NoNan("Relu"), DataType::Fp32, &bytes(&numbers)).unwrap_err();
            assert!(refused.contains(&format!("NaN at element {at}, of which operator Relu")), "{refused}");
        }
    }

    #[test]
    fn text_is_utf8_without_zero_bytes() {
        let text = |data: &[u8]| check(ValueRule::Text, DataType::Bytes, data);
        assert_eq!(text(b"\x02\0\0\0ab\0\0\0\0"), Ok(()));
        assert!(text(b"\x01\0\0\0a\x01\0\0\0\xff").unwrap_err().contains("without zero bytes at element 1"));
        for wrong in [&b"\x01\0\0\0\0"[..], b"\x05\0\0\0a", b"\x01\0", b"\xff\xff\xff\xffa"] {
            assert!(text(wrong).unwrap_err().contains("at element 0"));
        }
    }
}
