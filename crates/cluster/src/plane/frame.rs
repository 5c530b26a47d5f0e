//! A frame: a record of 64 bytes, a cache line, and for some kinds a tail of bytes behind it.
//!
//! The first eight bytes of each record are alike: its kind, two bytes of nothing, and how long its tail is. The others
//! are the kind's own, little-endian. [`Put`] and [`Get`] write and read them in one order, so that a layout is said
//! twice and no more.

use std::fmt;

/// Bytes of a record.
pub const RECORD: usize = 64;

/// The longest text.
pub(super) const MOST_TEXT: usize = 64 << 10;

/// Where a record's own fields begin.
const FIELDS: usize = 8;

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbled(pub String);

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what came is no message: {}", self.0)
    }
}

impl std::error::Error for Garbled {}

impl From<Garbled> for std::io::Error {
    fn from(garbled: Garbled) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, garbled)
    }
}

/// Writes the fields of a record.
pub(super) struct Put {
    record: [u8; RECORD],
    at: usize,
}

impl Put {
    pub(super) fn new(kind: u16) -> Put {
        let mut record = [0; RECORD];
        record[..2].copy_from_slice(&kind.to_le_bytes());
        Put { record, at: FIELDS }
    }

    fn bytes<const N: usize>(mut self, bytes: [u8; N]) -> Put {
        self.record[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
        self
    }

    pub(super) fn u8(self, value: u8) -> Put {
        self.bytes([value])
    }

    pub(super) fn u16(self, value: u16) -> Put {
        self.bytes(value.to_le_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Put {
        self.bytes(value.to_le_bytes())
    }

    pub(super) fn u64(self, value: u64) -> Put {
        self.bytes(value.to_le_bytes())
    }

    pub(super) fn i64(self, value: i64) -> Put {
        self.bytes(value.to_le_bytes())
    }

    pub(super) fn record(self) -> [u8; RECORD] {
        self.record
    }
}

/// Reads them.
pub(super) struct Get<'a> {
    record: &'a [u8; RECORD],
    at: usize,
}

impl<'a> Get<'a> {
    pub(super) fn new(record: &'a [u8; RECORD]) -> Get<'a> {
        Get { record, at: FIELDS }
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

/// The kind of a record, and how long it says that its tail is.
pub(super) fn head(record: &[u8; RECORD]) -> (u16, usize) {
    let tail = u32::from_le_bytes(std::array::from_fn(|at| record[4 + at]));
    (u16::from_le_bytes([record[0], record[1]]), tail as usize)
}

/// Says how long the tail of a record is.
pub(super) fn set_tail(record: &mut [u8], tail: usize) {
    let tail = u32::try_from(tail).expect("what is written is far smaller");
    record[4..8].copy_from_slice(&tail.to_le_bytes());
}

/// A text, cut where it is longer than is taken.
pub(super) fn write_text(text: &str, into: &mut Vec<u8>) {
    into.extend_from_slice(&text.as_bytes()[..text.floor_char_boundary(MOST_TEXT)]);
}

pub(super) fn text(bytes: &[u8]) -> Result<String, Garbled> {
    let text = std::str::from_utf8(bytes).map_err(|_| Garbled("a text that is none".to_owned()))?;
    Ok(text.to_owned())
}
