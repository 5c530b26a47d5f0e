//! One-pass conversion of a tensor's JSON data, nested or flat, into bytes.
//!
//! `serde_json` has validated the text beforehand, so this parser only separates tokens; the
//! standard library then parses each number into the target type. Parsing through
//! `serde_json::Value` or `f64` would take several times the memory, and would round FP32 twice.

use crate::infer::push_byte_element;
use crate::{MAX_DEPTH, WireError};
use ripieno_model::DataType;
use std::str::FromStr;

/// Returns the bytes of the data in `text`, which must be an array of `count` elements, evenly
/// nested to any depth.
pub(super) fn parse(tensor: &str, datatype: DataType, count: usize, text: &str) -> Result<Vec<u8>, WireError> {
    if !text.starts_with('[') {
        return Err(error(tensor, "data must be an array"));
    }
    // An element takes at least two characters ("1,"), so that a short text with a large shape
    // reserves little. Unescaping never makes a string longer, so one allocation suffices.
    let elements = count.min(text.len() / 2 + 1);
    let capacity = datatype.size().map_or_else(|| 4 * elements + text.len(), |size| elements * size);
    let mut reader =
        DataParser { tensor, datatype, count, found: 0, data: Vec::with_capacity(capacity), nesting: vec![] };
    reader.read(text)?;
    if reader.found != count {
        return Err(error(tensor, format!("expected {count} elements by its shape, got {}", reader.found)));
    }
    Ok(reader.data)
}

fn error(tensor: &str, message: impl std::fmt::Display) -> WireError {
    WireError(format!("input '{tensor}': {message}"))
}

/// An array that is not closed yet.
#[derive(Clone, Copy)]
struct OpenArray {
    /// Number of elements read before the array began.
    start: usize,
}

struct DataParser<'a> {
    tensor: &'a str,
    datatype: DataType,
    count: usize,
    found: usize,
    data: Vec<u8>,
    nesting: Vec<OpenArray>,
}

impl DataParser<'_> {
    fn read(&mut self, text: &str) -> Result<(), WireError> {
        // Size of the arrays at each depth, and the depth of all elements; uneven nesting is an
        // error.
        let mut sizes = [None; MAX_DEPTH];
        let mut element_depth = None;
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | b',' => at += 1,
                b'[' => {
                    self.open()?;
                    at += 1;
                }
                b']' => {
                    self.close(&mut sizes)?;
                    at += 1;
                }
                _ => {
                    let depth = self.nesting.len();
                    if *element_depth.get_or_insert(depth) != depth {
                        return Err(error(self.tensor, "data mixes elements and arrays at one level"));
                    }
                    let end = at + token_length(&bytes[at..]);
                    self.element(&text[at..end])?;
                    at = end;
                }
            }
        }
        Ok(())
    }

    fn open(&mut self) -> Result<(), WireError> {
        if self.nesting.len() == MAX_DEPTH {
            return Err(error(self.tensor, format!("data is nested deeper than {MAX_DEPTH} arrays")));
        }
        self.nesting.push(OpenArray { start: self.found });
        Ok(())
    }

    fn close(&mut self, sizes: &mut [Option<usize>; MAX_DEPTH]) -> Result<(), WireError> {
        let Some(open) = self.nesting.pop() else { return Err(error(self.tensor, "data must be an array")) };
        let size = self.found - open.start;
        let expected = *sizes[self.nesting.len()].get_or_insert(size);
        if expected != size {
            return Err(error(
                self.tensor,
                format!("data is ragged: an array of {size} elements beside one of {expected}"),
            ));
        }
        Ok(())
    }

    fn element(&mut self, token: &str) -> Result<(), WireError> {
        if self.found == self.count {
            return Err(error(self.tensor, format!("more than the {} elements of its shape", self.count)));
        }
        match self.datatype {
            DataType::Bool => self.bool(token)?,
            DataType::Uint8 => self.integer::<u8, 1>(token, u8::to_le_bytes)?,
            DataType::Uint16 => self.integer::<u16, 2>(token, u16::to_le_bytes)?,
            DataType::Uint32 => self.integer::<u32, 4>(token, u32::to_le_bytes)?,
            DataType::Uint64 => self.integer::<u64, 8>(token, u64::to_le_bytes)?,
            DataType::Int8 => self.integer::<i8, 1>(token, i8::to_le_bytes)?,
            DataType::Int16 => self.integer::<i16, 2>(token, i16::to_le_bytes)?,
            DataType::Int32 => self.integer::<i32, 4>(token, i32::to_le_bytes)?,
            DataType::Int64 => self.integer::<i64, 8>(token, i64::to_le_bytes)?,
            DataType::Fp32 => {
                let value = token.parse().ok().filter(|value: &f32| is_number(token) && value.is_finite());
                let value = value.or_else(|| not_finite(token).map(|value| value as f32));
                self.push(value.map(f32::to_le_bytes), token)?;
            }
            DataType::Fp64 => {
                let value = token.parse().ok().filter(|value: &f64| is_number(token) && value.is_finite());
                self.push(value.or_else(|| not_finite(token)).map(f64::to_le_bytes), token)?;
            }
            DataType::Bytes => self.string(token)?,
            DataType::Fp16 | DataType::Bf16 => {
                return Err(error(
                    self.tensor,
                    format!("{} has no JSON form; send it as binary data (parameter binary_data_size)", self.datatype),
                ));
            }
        }
        self.found += 1;
        Ok(())
    }

    fn integer<T: FromStr, const N: usize>(&mut self, token: &str, bytes: fn(T) -> [u8; N]) -> Result<(), WireError> {
        // JSON allows "-0" as an integer; Rust does not parse it as unsigned.
        let token = if token == "-0" { "0" } else { token };
        self.push(token.parse().ok().map(bytes), token)
    }

    fn bool(&mut self, token: &str) -> Result<(), WireError> {
        let value = match token {
            "true" | "1" => Some([1]),
            "false" | "0" => Some([0]),
            _ => None,
        };
        self.push(value, token)
    }

    fn string(&mut self, token: &str) -> Result<(), WireError> {
        let inner = token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        match inner {
            None => self.push::<0>(None, token),
            Some(plain) if !plain.contains('\\') => push_byte_element(self.tensor, plain.as_bytes(), &mut self.data),
            Some(_) => match serde_json::from_str::<String>(token) {
                Ok(text) => push_byte_element(self.tensor, text.as_bytes(), &mut self.data),
                Err(_) => self.push::<0>(None, token),
            },
        }
    }

    fn push<const N: usize>(&mut self, bytes: Option<[u8; N]>, token: &str) -> Result<(), WireError> {
        let bytes = bytes.ok_or_else(|| {
            let shown: String = token.chars().take(40).collect();
            let message = format!("element {} is {shown}, which is not {}", self.found, expected_value(self.datatype));
            error(self.tensor, message)
        })?;
        self.data.extend_from_slice(&bytes);
        Ok(())
    }
}

/// Returns the value of one of the words for numbers that JSON does not have, in quotes.
fn not_finite(token: &str) -> Option<f64> {
    super::not_finite::number(token.strip_prefix('"')?.strip_suffix('"')?)
}

/// Rejects tokens that Rust parses as numbers but JSON does not allow.
fn is_number(token: &str) -> bool {
    token.starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

/// Returns the length of the string, number, literal or object at the start of `bytes`.
fn token_length(bytes: &[u8]) -> usize {
    if bytes[0] != b'"' {
        let end = bytes.iter().position(|byte| matches!(byte, b',' | b']' | b' ' | b'\t' | b'\n' | b'\r'));
        return end.unwrap_or(bytes.len()).max(1);
    }
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn expected_value(datatype: DataType) -> String {
    let range = match datatype {
        DataType::Bool => return "a BOOL: true or false".to_owned(),
        DataType::Bytes => return "a BYTES element: a string".to_owned(),
        DataType::Fp32 | DataType::Fp64 => {
            return format!("a number in the range of {datatype}, or \"NaN\", \"Infinity\" or \"-Infinity\"");
        }
        DataType::Uint8 => (0, u64::from(u8::MAX)),
        DataType::Uint16 => (0, u64::from(u16::MAX)),
        DataType::Uint32 => (0, u64::from(u32::MAX)),
        DataType::Uint64 => (0, u64::MAX),
        DataType::Int8 => (i64::from(i8::MIN), i8::MAX as u64),
        DataType::Int16 => (i64::from(i16::MIN), i16::MAX as u64),
        DataType::Int32 => (i64::from(i32::MIN), i32::MAX as u64),
        _ => (i64::MIN, i64::MAX as u64),
    };
    format!("an integer in the range of {datatype}, {} to {}", range.0, range.1)
}
