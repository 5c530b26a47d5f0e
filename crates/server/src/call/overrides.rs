//! Uploads in load calls: a configuration (`config`) and files (`file:VERSION/NAME`), as in Triton.
//!
//! Uploads let clients run their own models on the server, so they are refused unless
//! `--load-overrides` enables them. Files are base64 in JSON over HTTP, and bytes over gRPC; both
//! count against the memory budget until the model is loaded.

use crate::limits::budget::{MemoryBudget, hold};
use crate::problem::{Problem, ProblemKind};
use crate::state::ServerState;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ripieno_repository::registry::Upload;
use ripieno_wire::Parameter;
use ripieno_wire::proto::inference::ModelRepositoryParameter;
use ripieno_wire::proto::inference::model_repository_parameter::ParameterChoice;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const FILE: &str = "file:";

/// Extracts the upload from the parameters of an HTTP call. May take long.
pub(crate) fn from_json(
    budget: &Arc<MemoryBudget>,
    parameters: BTreeMap<String, Parameter>,
) -> Result<Option<Arc<Upload>>, Problem> {
    let mut upload = Upload::default();
    for (name, value) in parameters {
        match (name.as_str(), name.strip_prefix(FILE), value) {
            ("config", _, Parameter::Text(text)) => upload.config = Some(text),
            (_, Some(file), Parameter::Text(text)) => {
                let room = budget.reserve(text.len() / 4 * 3 + 3)?;
                let content = STANDARD
                    .decode(&text)
                    .map_err(|error| Problem::invalid(format!("parameter {name} is not base64: {error}")))?;
                upload.files.insert(file.to_owned(), hold(content, room));
            }
            (key, file, other) if key == "config" || file.is_some() => {
                return Err(Problem::invalid(format!("parameter {name} is {other}; it must be a string")));
            }
            _ => {}
        }
    }
    Ok(non_empty(upload))
}

/// Extracts the upload from the parameters of a gRPC call.
pub(crate) fn from_message(
    parameters: HashMap<String, ModelRepositoryParameter>,
) -> Result<Option<Arc<Upload>>, Problem> {
    let mut upload = Upload::default();
    for (name, value) in parameters {
        let file = name.strip_prefix(FILE);
        match (name.as_str(), file, value.parameter_choice) {
            ("config", _, Some(ParameterChoice::StringParam(text))) => upload.config = Some(text),
            ("config", ..) => return Err(Problem::invalid("parameter config must be a string_param")),
            (_, Some(file), Some(ParameterChoice::BytesParam(content))) => {
                let content: Bytes = content;
                upload.files.insert(file.to_owned(), content);
            }
            (_, Some(_), _) => return Err(Problem::invalid(format!("parameter {name} must be a bytes_param"))),
            _ => {}
        }
    }
    Ok(non_empty(upload))
}

fn non_empty(upload: Upload) -> Option<Arc<Upload>> {
    (upload != Upload::default()).then(|| Arc::new(upload))
}

/// Refuses an upload unless uploads are enabled.
pub(crate) fn check_allowed(state: &ServerState, upload: &Option<Arc<Upload>>) -> Result<(), Problem> {
    if upload.is_none() || state.config.load_overrides > 0 {
        return Ok(());
    }
    let message = "load calls may not bring a configuration or files to this server: put them into its repository, or have its \
                   operator open that (--load-overrides, docs/guide/security.md)";
    Err(Problem::new(ProblemKind::Forbidden, message))
}
