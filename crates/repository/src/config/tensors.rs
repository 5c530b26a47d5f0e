//! What `model.toml` says of inputs and outputs.
//!
//! Whoever declares a tensor and forgets its shape is helped by the shape that the model has, which is known only once the model
//! is read. So that mistake is kept until then; of an emulated model, which has no file, it is told at once.

use super::keys::Keys;
use ripieno_executor::InputRange;
use ripieno_model::{DataType, TensorSpec};

/// An `[[input]]` or `[[output]]` without its datatype or shape.
#[derive(Clone, Debug, PartialEq)]
pub struct HalfDeclared {
    /// "input" or "output".
    pub kind: &'static str,
    /// The tensor.
    pub name: String,
    missing: Vec<&'static str>,
    /// File, line and section.
    place: String,
}

impl HalfDeclared {
    /// The error, with what the model has; without it if nobody knows what that is.
    pub fn error(&self, actual: Option<&TensorSpec>, batched: bool) -> String {
        let HalfDeclared { kind, name, missing, place } = self;
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

/// The tensors of one kind.
#[derive(Default)]
pub(super) struct Tensors {
    /// Those that are declared with type and shape.
    pub(super) whole: Vec<TensorSpec>,
    /// All others.
    pub(super) half: Vec<HalfDeclared>,
}

pub(super) fn read_tensors<'a>(
    kind: &'static str,
    sections: impl Iterator<Item = &'a Keys<'a>>,
) -> Result<Tensors, String> {
    let mut tensors = Tensors::default();
    for keys in sections {
        let name = keys.required(keys.text("name", "images")?, "name", "\"images\"")?;
        let datatypes = DataType::ALL.map(|datatype| (datatype.name(), datatype));
        let datatype = keys.one_of("datatype", &datatypes)?;
        let shape = keys.integers("shape", "[-1, 64]")?;
        if shape.iter().flatten().any(|&size| size < -1 || size == 0) {
            return Err(keys.wrong("shape", "must hold sizes above 0, or -1 where the size is not fixed"));
        }
        match (datatype, shape) {
            (Some(datatype), Some(shape)) => tensors.whole.push(TensorSpec { name, datatype, shape }),
            (datatype, shape) => {
                let keys_of_it = [("datatype", datatype.is_none()), ("shape", shape.is_none())];
                let missing = keys_of_it.into_iter().filter(|(_, missing)| *missing).map(|(key, _)| key).collect();
                tensors.half.push(HalfDeclared { kind, name, missing, place: keys.error("") });
            }
        }
    }
    Ok(tensors)
}

/// The smallest and the largest number that requests may bring; from zero on if only the largest is given.
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
