//! The protocol's element types.

use crate::WireError;
use std::fmt;

/// An element type. BF16 is missing from the protocol's table, but every client supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    Bytes,
}

/// Per datatype: its name in messages, its name in a model configuration, and its element size in
/// bytes (0 if each element carries its own length).
const TABLE: [(Datatype, &str, &str, usize); 14] = [
    (Datatype::Bool, "BOOL", "TYPE_BOOL", 1),
    (Datatype::Uint8, "UINT8", "TYPE_UINT8", 1),
    (Datatype::Uint16, "UINT16", "TYPE_UINT16", 2),
    (Datatype::Uint32, "UINT32", "TYPE_UINT32", 4),
    (Datatype::Uint64, "UINT64", "TYPE_UINT64", 8),
    (Datatype::Int8, "INT8", "TYPE_INT8", 1),
    (Datatype::Int16, "INT16", "TYPE_INT16", 2),
    (Datatype::Int32, "INT32", "TYPE_INT32", 4),
    (Datatype::Int64, "INT64", "TYPE_INT64", 8),
    (Datatype::Fp16, "FP16", "TYPE_FP16", 2),
    (Datatype::Bf16, "BF16", "TYPE_BF16", 2),
    (Datatype::Fp32, "FP32", "TYPE_FP32", 4),
    (Datatype::Fp64, "FP64", "TYPE_FP64", 8),
    (Datatype::Bytes, "BYTES", "TYPE_STRING", 0),
];

impl Datatype {
    /// Returns every datatype.
    pub fn all() -> impl Iterator<Item = Datatype> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns the name in messages, such as "FP32".
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Returns the name in a model configuration, such as "TYPE_FP32"; BYTES is "TYPE_STRING"
    /// there.
    pub const fn config_name(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// Returns the element size in bytes; `None` for BYTES, whose elements carry a 4-byte length
    /// each.
    pub const fn size(self) -> Option<usize> {
        match TABLE[self as usize].3 {
            0 => None,
            size => Some(size),
        }
    }

    /// Returns the datatype with this name in messages.
    pub fn from_name(name: &str) -> Option<Datatype> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    pub(crate) fn parse(name: &str, tensor: &str) -> Result<Datatype, WireError> {
        Datatype::from_name(name).ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().map(|row| row.1).collect();
            WireError::new(format!(
                "input '{tensor}': datatype '{}' is unknown; use one of {}",
                name.escape_debug(),
                known.join(", ")
            ))
        })
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for datatype in Datatype::all() {
            assert_eq!(Datatype::from_name(datatype.name()), Some(datatype));
        }
        assert_eq!(Datatype::Bytes.config_name(), "TYPE_STRING");
        assert_eq!((Datatype::Bf16.size(), Datatype::Bytes.size()), (Some(2), None));
        assert!(Datatype::parse("FLOAT", "x").unwrap_err().to_string().contains("use one of BOOL"));
    }
}
