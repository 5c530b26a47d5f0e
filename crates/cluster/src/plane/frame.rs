//! A frame: a record of 64 bytes, which is one cache line, and for some kinds a tail of bytes after
//! it.
//!
//! The first eight bytes of every record are the same: its kind, two bytes that most kinds leave
//! zero, and the length of its tail. The other bytes belong to the kind, little-endian.
//! [`RecordWriter`] and [`RecordReader`] use the same order of fields, so a layout is written down
//! twice and no more.

use std::fmt;

/// Size of a record, in bytes.
pub const RECORD: usize = 64;

/// Length of the longest text, in bytes.
pub(super) const MAX_TEXT: usize = 64 << 10;

/// Offset of a record's own fields.
const FIELDS: usize = 8;

/// Bytes that are not a valid message, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError(pub String);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for DecodeError {}

impl From<DecodeError> for std::io::Error {
    fn from(error: DecodeError) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Writes the fields of a record in order.
pub(super) struct RecordWriter {
    record: [u8; RECORD],
    at: usize,
}

impl RecordWriter {
    pub(super) fn new(kind: u16) -> RecordWriter {
        let mut record = [0; RECORD];
        record[..2].copy_from_slice(&kind.to_le_bytes());
        RecordWriter { record, at: FIELDS }
    }

    /// Writes the two bytes after the kind.
    pub(super) fn extra(mut self, value: u16) -> RecordWriter {
        self.record[2..4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes<const N: usize>(mut self, bytes: [u8; N]) -> RecordWriter {
        self.record[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
        self
    }

    pub(super) fn u8(self, value: u8) -> RecordWriter {
        self.bytes([value])
    }

    pub(super) fn u16(self, value: u16) -> RecordWriter {
        self.bytes(value.to_le_bytes())
    }

    pub(super) fn u32(self, value: u32) -> RecordWriter {
        self.bytes(value.to_le_bytes())
    }

    pub(super) fn u64(self, value: u64) -> RecordWriter {
        self.bytes(value.to_le_bytes())
    }

    pub(super) fn i64(self, value: i64) -> RecordWriter {
        self.bytes(value.to_le_bytes())
    }

    pub(super) fn record(self) -> [u8; RECORD] {
        self.record
    }
}

/// Reads the fields of a record in order.
pub(super) struct RecordReader<'a> {
    record: &'a [u8; RECORD],
    at: usize,
}

impl<'a> RecordReader<'a> {
    pub(super) fn new(record: &'a [u8; RECORD]) -> RecordReader<'a> {
        RecordReader { record, at: FIELDS }
    }

    /// Returns the two bytes after the kind.
    pub(super) fn extra(&self) -> u16 {
        u16::from_le_bytes([self.record[2], self.record[3]])
    }

    #[inline]
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, _) = self.record[self.at..].split_first_chunk().expect("a record has all fields of its kind");
        self.at += N;
        *bytes
    }

    #[inline]
    pub(super) fn u8(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }

    #[inline]
    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    #[inline]
    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    #[inline]
    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    #[inline]
    pub(super) fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.bytes())
    }
}

/// Returns the kind of a record and the length of its tail, in bytes.
pub(super) fn header(record: &[u8; RECORD]) -> (u16, usize) {
    let tail = u32::from_le_bytes(std::array::from_fn(|at| record[4 + at]));
    (u16::from_le_bytes([record[0], record[1]]), tail as usize)
}

/// Writes the length of a record's tail, in bytes.
pub(super) fn set_tail(record: &mut [u8], tail: usize) {
    let tail = u32::try_from(tail).expect("what is written is far smaller");
    record[4..8].copy_from_slice(&tail.to_le_bytes());
}

/// Appends a text, truncated to [`MAX_TEXT`] bytes.
pub(super) fn write_text(text: &str, into: &mut Vec<u8>) {
    into.extend_from_slice(&text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]);
}

pub(super) fn read_text(bytes: &[u8]) -> Result<String, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError("a text that is none".to_owned()))?;
    Ok(text.to_owned())
}
