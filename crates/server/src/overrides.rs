//! What load calls bring along: a configuration (`config`) and files (`file:VERSION/NAME`), as Triton's do.
//!
//! It is a door through which clients have the server run models that they wrote, so it is closed unless `--load-overrides` opens it.
//! Over HTTP files are base64 in JSON, over gRPC they are bytes; both are counted in the budget until the model is loaded.

use crate::bounds::budget::{Budget, hold};
use crate::problem::{Kind, Problem};
use crate::state::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ripieno_repository::registry::Brought;
use ripieno_wire::Parameter;
use ripieno_wire::proto::inference::ModelRepositoryParameter;
use ripieno_wire::proto::inference::model_repository_parameter::ParameterChoice;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const FILE: &str = "file:";

/// What the parameters of an HTTP call bring. May take long.
pub(crate) fn of_json(
    budget: &Arc<Budget>,
    parameters: BTreeMap<String, Parameter>,
) -> Result<Option<Arc<Brought>>, Problem> {
    let mut brought = Brought::default();
    for (name, value) in parameters {
        match (name.as_str(), name.strip_prefix(FILE), value) {
            ("config", _, Parameter::Text(text)) => brought.config = Some(text),
            (_, Some(file), Parameter::Text(text)) => {
                let room = budget.reserve(text.len() / 4 * 3 + 3)?;
                let content = STANDARD
                    .decode(&text)
                    .map_err(|error| Problem::invalid(format!("parameter {name} is not base64: {error}")))?;
                brought.files.insert(file.to_owned(), hold(content, room));
            }
            (key, file, other) if key == "config" || file.is_some() => {
                return Err(Problem::invalid(format!("parameter {name} is {other}; it must be a string")));
            }
            _ => {}
        }
    }
    Ok(some(brought))
}

/// What the parameters of a gRPC call bring.
pub(crate) fn of_message(
    parameters: HashMap<String, ModelRepositoryParameter>,
) -> Result<Option<Arc<Brought>>, Problem> {
    let mut brought = Brought::default();
    for (name, value) in parameters {
        let file = name.strip_prefix(FILE);
        match (name.as_str(), file, value.parameter_choice) {
            ("config", _, Some(ParameterChoice::StringParam(text))) => brought.config = Some(text),
            ("config", ..) => return Err(Problem::invalid("parameter config must be a string_param")),
            (_, Some(file), Some(ParameterChoice::BytesParam(content))) => {
                let content: Bytes = content;
                brought.files.insert(file.to_owned(), content);
            }
            (_, Some(_), _) => return Err(Problem::invalid(format!("parameter {name} must be a bytes_param"))),
            _ => {}
        }
    }
    Ok(some(brought))
}

fn some(brought: Brought) -> Option<Arc<Brought>> {
    (brought != Brought::default()).then(|| Arc::new(brought))
}

/// Refuses what is brought where that is not open.
pub(crate) fn check(state: &State, brought: &Option<Arc<Brought>>) -> Result<(), Problem> {
    if brought.is_none() || state.config.load_overrides > 0 {
        return Ok(());
    }
    let message = "load calls may not bring a configuration or files to this server: put them into its repository, or have its \
                   operator open that (--load-overrides, docs/security.md)";
    Err(Problem::new(Kind::Forbidden, message))
}
