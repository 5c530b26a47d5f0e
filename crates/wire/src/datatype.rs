//! Datatypes as messages name them.

use crate::WireError;
use ripieno_model::DataType;

/// Returns the datatype that an input names; the error lists the known ones.
pub(crate) fn parse(name: &str, tensor: &str) -> Result<DataType, WireError> {
    DataType::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = DataType::ALL.iter().map(|datatype| datatype.name()).collect();
        WireError::new(format!(
            "input '{tensor}': datatype '{}' is unknown; use one of {}",
            name.escape_debug(),
            known.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        assert_eq!(parse("FP32", "x").unwrap(), DataType::Fp32);
        assert!(parse("FLOAT", "x").unwrap_err().to_string().contains("use one of BOOL"));
    }
}
