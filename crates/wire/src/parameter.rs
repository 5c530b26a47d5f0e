//! Parameters: the protocol's free-form options, each a string, a number or a boolean.

use crate::MAX_PARAMETERS;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Parameter {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
}

impl Parameter {
    /// Returns the value if it is a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Parameter::Bool(value) = self { Some(*value) } else { None }
    }

    /// Returns the value if it is a non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Parameter::Int(value) => u64::try_from(*value).ok(),
            Parameter::Uint(value) => Some(*value),
            _ => None,
        }
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parameter::Bool(value) => value.fmt(f),
            Parameter::Int(value) => value.fmt(f),
            Parameter::Uint(value) => value.fmt(f),
            Parameter::Double(value) => value.fmt(f),
            Parameter::Text(value) => write!(f, "\"{}\"", value.escape_debug()),
        }
    }
}

impl Serialize for Parameter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Parameter::Bool(value) => serializer.serialize_bool(*value),
            Parameter::Int(value) => serializer.serialize_i64(*value),
            Parameter::Uint(value) => serializer.serialize_u64(*value),
            Parameter::Double(value) => serializer.serialize_f64(*value),
            Parameter::Text(value) => serializer.serialize_str(value),
        }
    }
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parameter, D::Error> {
        deserializer.deserialize_any(ParameterVisitor)
    }
}

struct ParameterVisitor;

impl Visitor<'_> for ParameterVisitor {
    type Value = Parameter;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a parameter: a string, a number or a boolean")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Parameter, E> {
        Ok(Parameter::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Parameter, E> {
        Ok(Parameter::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Parameter, E> {
        Ok(i64::try_from(value).map_or(Parameter::Uint(value), Parameter::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Parameter, E> {
        Ok(Parameter::Double(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Parameter, E> {
        Ok(Parameter::Text(value.to_owned()))
    }
}

/// Parameters by name, at most [`MAX_PARAMETERS`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Parameters(pub BTreeMap<String, Parameter>);

impl Parameters {
    /// Returns the parameter with this name.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.0.get(name)
    }

    /// Returns true if there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parameters, D::Error> {
        deserializer.deserialize_map(ParametersVisitor)
    }
}

struct ParametersVisitor;

impl<'de> Visitor<'de> for ParametersVisitor {
    type Value = Parameters;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
        let mut parameters = BTreeMap::new();
        while let Some((name, value)) = map.next_entry()? {
            if parameters.len() == MAX_PARAMETERS {
                return Err(A::Error::custom(format!("more than {MAX_PARAMETERS} parameters")));
            }
            parameters.insert(name, value);
        }
        Ok(Parameters(parameters))
    }
}
