//! Declarations of inputs and outputs in `model.toml`.
//!
//! The error for a declaration without a shape shows the model's actual shape, which is known only
//! after loading, so the error is deferred until then. An emulated model has no file; its error is
//! reported immediately.

use super::keys::Keys;
use ripieno_executor::InputRange;
use ripieno_model::{DataType, TensorSpec};

/// An `[[input]]` or `[[output]]` without datatype or shape.
#[derive(Clone, Debug, PartialEq)]
pub struct IncompleteTensor {
    /// "input" or "output".
    pub kind: &'static str,
    /// Tensor name.
    pub name: String,
    missing: Vec<&'static str>,
    /// File, line and section for errors.
    place: String,
}

impl IncompleteTensor {
    /// Returns the error, with the model's actual values if they are known.
    pub fn error(&self, actual: Option<&TensorSpec>, batched: bool) -> String {
        let IncompleteTensor { kind, name, missing, place } = self;
        let keys = if let [key] = missing[..] { format!("key {key} is") } else { "keys datatype and shape are".into() };
        let said = |&key: &&str| match (key, actual) {
            ("datatype", Some(spec)) => format!("datatype = \"{}\"", spec.datatype),
            (_, Some(spec)) => format!("shape = {:?}", if batched { &spec.shape[..] } else { &spec.shape[1..] }),
            ("datatype", None) => "datatype = \"FP32\"".to_owned(),
            (_, None) => "shape = [-1, 64]".to_owned(),
        };
        let said = missing.iter().map(said).collect::<Vec<_>>().join(" and ");
        match actual {
            Some(_) => format!(
                "{place}the {keys} missing; the model has {said}: write that, or remove the section of {kind} \"{name}\""
            ),
            None => format!("{place}the {keys} missing; add for example {said}"),
        }
    }
}

/// Declared tensors of one kind.
#[derive(Default)]
pub(super) struct DeclaredTensors {
    /// Tensors with datatype and shape.
    pub(super) complete: Vec<TensorSpec>,
    /// Tensors without one of the two.
    pub(super) incomplete: Vec<IncompleteTensor>,
}

pub(super) fn read_tensors<'a>(
    kind: &'static str,
    sections: impl Iterator<Item = &'a Keys<'a>>,
) -> Result<DeclaredTensors, String> {
    let mut tensors = DeclaredTensors::default();
    for keys in sections {
        let name = keys.required(keys.text("name", "images")?, "name", "\"images\"")?;
        let datatypes = DataType::ALL.map(|datatype| (datatype.name(), datatype));
        let datatype = keys.one_of("datatype", &datatypes)?;
        let shape = keys.integers("shape", "[-1, 64]")?;
        if shape.iter().flatten().any(|&size| size < -1 || size == 0) {
            return Err(keys.wrong("shape", "must hold sizes above 0, or -1 where the size is not fixed"));
        }
        match (datatype, shape) {
            (Some(datatype), Some(shape)) => tensors.complete.push(TensorSpec { name, datatype, shape }),
            (datatype, shape) => {
                let keys_of_it = [("datatype", datatype.is_none()), ("shape", shape.is_none())];
                let missing = keys_of_it.into_iter().filter(|(_, missing)| *missing).map(|(key, _)| key).collect();
                tensors.incomplete.push(IncompleteTensor { kind, name, missing, place: keys.error("") });
            }
        }
    }
    Ok(tensors)
}

/// Largest index of a batch dimension.
const MAX_BATCH_DIM: usize = 15;

/// Reads the tensors whose batch is not their first dimension.
pub(super) fn read_batch_dims<'a>(tensors: impl Iterator<Item = &'a Keys<'a>>) -> Result<Vec<(String, usize)>, String> {
    let mut dims = Vec::new();
    for keys in tensors {
        if let Some(dim) = keys.whole("batch_dim", 0, MAX_BATCH_DIM)? {
            let name = keys.required(keys.text("name", "x")?, "name", "\"x\"")?;
            if dim > 0 {
                dims.push((name, dim));
            }
        }
    }
    Ok(dims)
}

/// Reads the range of an input's values; `min` defaults to zero.
pub(super) fn read_range(keys: &Keys<'_>) -> Result<Option<InputRange>, String> {
    if !keys.has("min") && !keys.has("max") {
        return Ok(None);
    }
    let number = |key: &str| match (keys.has(key), keys.any_number(key)) {
        (true, None) => Err(keys.wrong(key, "must be a number, without quotes")),
        (_, number) => Ok(number),
    };
    let tensor = keys.required(keys.text("name", "images")?, "name", "\"images\"")?;
    let (least, most) = (number("min")?.unwrap_or(0.0), number("max")?);
    let most = keys.required(most, "max", "64")?;
    match least <= most {
        true => Ok(Some(InputRange { tensor, least, most })),
        false => Err(keys.wrong("max", "is below min, which is 0 if not given; raise max or lower min")),
    }
}
