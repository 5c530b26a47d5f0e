//! The element types of the protocol.

use crate::WireError;
use std::fmt;

/// An element type. BF16 is not in the protocol's table but in every client.
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

/// The one table: type, name in messages, name in a model configuration, bytes of an element (0: it carries its length).
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
    /// Every datatype.
    pub fn all() -> impl Iterator<Item = Datatype> {
        TABLE.iter().map(|row| row.0)
    }

    /// The name in messages: "FP32".
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The name in a model configuration: "TYPE_FP32"; BYTES is "TYPE_STRING" there.
    pub const fn config_name(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// Bytes of one element; none for BYTES, whose elements carry a 4-byte length each.
    pub const fn size(self) -> Option<usize> {
        match TABLE[self as usize].3 {
            0 => None,
            size => Some(size),
        }
    }

    /// The datatype of this name.
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
