//! Options of policies: their names, defaults and help, and the checked values that a user has set.

use crate::Setup;
use ripieno_model::Walk;
use std::collections::BTreeMap;
use std::fmt;

/// Options of a policy by name, as in a scenario's `[policy_options]` or on the command line. An
/// option `knob.model` holds for one model and overrides `knob`.
pub type Options = BTreeMap<String, OptionValue>;

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(untagged))]
pub enum OptionValue {
    /// true or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A word.
    Text(String),
}

/// An option that a policy has.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name of the option in `[policy_options]`.
    pub name: &'static str,
    /// Default of the option, in the notation of an option's value.
    pub default: &'static str,
    /// Effect and unit of the option, and when to change it.
    pub help: &'static str,
}

/// The rule for late requests.
pub const DROP: Knob = Knob {
    name: "drop",
    default: "hopeless",
    help: "rule for requests that cannot meet their deadline: \"hopeless\" = reject immediately, \"expired\" = reject at \
           the deadline, \"never\" = answer late; a model's own drop rule takes precedence",
};

/// The largest batch.
pub const MAX_BATCH: Knob =
    Knob { name: "max_batch", default: "the model's", help: "largest batch in rows; a wider request runs alone" };

/// The options given for one policy, read by name.
pub struct Knobs<'a> {
    /// The policy's name.
    pub policy: &'static str,
    /// The policy's options.
    pub known: &'static [Knob],
    /// The values that were given.
    pub options: &'a Options,
}

impl Knobs<'_> {
    /// Checks that every option is a knob and that every `knob.model` names a model.
    pub fn check(&self, setup: &Setup) -> Result<(), BuildError> {
        for name in self.options.keys() {
            let (knob, model) = name.split_once('.').map_or((name.as_str(), None), |(knob, model)| (knob, Some(model)));
            let model_known = model.is_none_or(|model| setup.models.iter().any(|known| known.name == model));
            if !self.has(knob) {
                let known = self.known.iter().map(|knob| knob.name).collect();
                return Err(BuildError::UnknownKnob { policy: self.policy, name: name.clone(), known });
            }
            if !model_known {
                let models = setup.models.iter().map(|model| model.name.clone()).collect();
                return Err(BuildError::UnknownModel { option: name.clone(), models });
            }
        }
        Ok(())
    }

    /// Returns whether the policy has this option.
    pub fn has(&self, knob: &str) -> bool {
        self.known.iter().any(|known| known.name == knob)
    }

    fn get(&self, knob: &str, model: Option<&str>) -> Option<&OptionValue> {
        debug_assert!(self.has(knob), "{knob} is not a knob");
        let own = model.and_then(|model| self.options.get(&format!("{knob}.{model}")));
        own.or_else(|| self.options.get(knob))
    }

    /// Returns the value of the word that was set; `default` if none was.
    pub fn choice<T: Copy>(&self, knob: &str, choices: &[(&str, T)], default: T) -> Result<T, BuildError> {
        let Some(value) = self.get(knob, None) else { return Ok(default) };
        let chosen = choices.iter().find(|(word, _)| matches!(value, OptionValue::Text(text) if text == word));
        chosen.map(|&(_, value)| value).ok_or_else(|| {
            let words: Vec<_> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
            self.bad(knob, value, &format!("one of {}", words.join(", ")))
        })
    }

    /// Returns a number of at least zero, for one model or for all.
    pub fn number(&self, knob: &str, model: Option<&str>) -> Result<Option<f64>, BuildError> {
        let Some(value) = self.get(knob, model) else { return Ok(None) };
        let number = match value {
            OptionValue::Int(int) => *int as f64,
            OptionValue::Float(float) => *float,
            OptionValue::Bool(_) | OptionValue::Text(_) => f64::NAN,
        };
        if number.is_finite() && number >= 0.0 {
            return Ok(Some(number));
        }
        Err(self.bad(knob, value, "a number of at least 0"))
    }

    /// Returns a number from 0 to 1, for one model or for all.
    pub fn fraction(&self, knob: &str, model: Option<&str>) -> Result<Option<f64>, BuildError> {
        match self.number(knob, model)? {
            Some(part) if part > 1.0 => Err(self.bad(knob, &OptionValue::Float(part), "a number from 0 to 1")),
            part => Ok(part),
        }
    }

    /// Returns a whole number of at least one.
    pub fn count(&self, knob: &str, model: Option<&str>) -> Result<Option<usize>, BuildError> {
        let Some(value) = self.get(knob, model) else { return Ok(None) };
        match value {
            OptionValue::Int(int) if *int >= 1 => Ok(Some(*int as usize)),
            _ => Err(self.bad(knob, value, "a whole number of at least 1")),
        }
    }

    /// Returns a whole number from one to `most`.
    pub fn count_to(&self, knob: &str, most: usize) -> Result<Option<usize>, BuildError> {
        match self.count(knob, None)? {
            Some(count) if count > most => {
                Err(self.bad(knob, &OptionValue::Int(count as i64), &format!("a whole number from 1 to {most}")))
            }
            count => Ok(count),
        }
    }

    /// Returns true or false, which may also be given as words.
    pub fn flag(&self, knob: &str, default: bool) -> Result<bool, BuildError> {
        match self.get(knob, None) {
            None => Ok(default),
            Some(OptionValue::Bool(value)) => Ok(*value),
            Some(OptionValue::Text(word)) if word == "true" || word == "false" => Ok(word == "true"),
            Some(value) => Err(self.bad(knob, value, "true or false")),
        }
    }

    /// Returns the error for a number above the driver's limit.
    pub fn too_many(&self, knob: &str, requested: usize, most: usize) -> BuildError {
        let expected = format!("at most {most}, which is what the driver lets a device hold");
        self.bad(knob, &OptionValue::Int(requested as i64), &expected)
    }

    fn bad(&self, knob: &str, value: &OptionValue, expected: &str) -> BuildError {
        BuildError::BadValue {
            policy: self.policy,
            knob: knob.to_owned(),
            value: value.to_string(),
            expected: expected.to_owned(),
        }
    }
}

/// The reason for which a policy cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// No policy has this name.
    UnknownPolicy {
        /// The name as given.
        name: String,
        /// Names of all policies.
        known: Vec<&'static str>,
    },
    /// The model of a `knob.model` does not exist.
    UnknownModel {
        /// The option as given.
        option: String,
        /// The existing models.
        models: Vec<String>,
    },
    /// The policy has no such knob.
    UnknownKnob {
        /// The policy.
        policy: &'static str,
        /// The option as given.
        name: String,
        /// Names of its options.
        known: Vec<&'static str>,
    },
    /// The value is not valid for the knob.
    BadValue {
        /// The policy.
        policy: &'static str,
        /// The knob.
        knob: String,
        /// The value as given.
        value: String,
        /// The valid values.
        expected: String,
    },
    /// The policy does not serve a model's walk.
    Walk {
        /// The policy.
        policy: &'static str,
        /// The model.
        model: String,
        /// Walk of the model.
        walk: Walk,
        /// Names of the policies that serve it.
        serves: Vec<&'static str>,
    },
    /// The policy merges batches at later blocks, but the model's batches are padded to different
    /// lengths.
    Lengths {
        /// The policy.
        policy: &'static str,
        /// The model.
        model: String,
        /// Names of the policies that serve it.
        serves: Vec<&'static str>,
    },
    /// The policy submits blocks ahead, but requests of the model skip some.
    Skips {
        /// The policy.
        policy: &'static str,
        /// The model.
        model: String,
        /// Names of the policies that serve it.
        serves: Vec<&'static str>,
    },
    /// Models, devices and limits contradict each other.
    Setup(String),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionValue::Bool(value) => write!(f, "{value}"),
            OptionValue::Int(value) => write!(f, "{value}"),
            OptionValue::Float(value) => write!(f, "{value}"),
            OptionValue::Text(value) => write!(f, "{value:?}"),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::UnknownPolicy { name, known } => {
                write!(f, "unknown policy {name:?}; choose one of: {}", known.join(", "))
            }
            BuildError::UnknownKnob { policy, name, known } => {
                write!(f, "policy {policy:?} has no option {name:?}; it has: {} (or KNOB.MODEL)", known.join(", "))
            }
            BuildError::UnknownModel { option, models } => {
                let models: Vec<_> = models.iter().take(20).map(String::as_str).collect();
                write!(f, "option {option:?} names a model that is not there; the models are: {}", models.join(", "))
            }
            BuildError::BadValue { policy, knob, value, expected } => {
                write!(f, "option {knob:?} of policy {policy:?} is {value}; it must be {expected}")
            }
            BuildError::Walk { policy, model, walk, serves } => {
                let (walk, serves) = (walk.name(), serves.join(", "));
                write!(f, "policy {policy:?} does not serve walk {walk:?} of model {model:?}; these do: {serves}")
            }
            BuildError::Lengths { policy, model, serves } => {
                let serve = serves.join(", ");
                write!(
                    f,
                    "policy {policy:?} merges batches between the blocks of model {model:?}, but they are padded to \
                     different lengths; serve it in one piece (granularity = \"whole\"), or by one of: {serve}"
                )
            }
            BuildError::Skips { policy, model, serves } => {
                let serve = serves.join(", ");
                write!(
                    f,
                    "policy {policy:?} submits blocks ahead, but requests of model {model:?} skip some; these policies \
                     serve it: {serve}"
                )
            }
            BuildError::Setup(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for BuildError {}
