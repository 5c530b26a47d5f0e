//! Bodies of the small calls.

use crate::Parameters;
use serde::{Deserialize, Serialize};

/// The body of every error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: String,
}

/// `GET /v2/health/live`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LiveBody {
    pub live: bool,
}

/// `GET /v2/health/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ReadyBody {
    pub ready: bool,
}

/// `GET /v2/models/{name}/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ModelReadyBody {
    pub name: String,
    pub ready: bool,
}

/// `GET /v2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ServerMetadataBody {
    pub name: String,
    pub version: String,
    pub extensions: Vec<String>,
}

/// An input or output in a model's metadata; -1 stands for a size that varies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TensorMetadataBody {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<i64>,
}

/// `GET /v2/models/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ModelMetadataBody {
    pub name: String,
    pub versions: Vec<String>,
    pub platform: String,
    pub inputs: Vec<TensorMetadataBody>,
    pub outputs: Vec<TensorMetadataBody>,
}

/// Sent to `POST /v2/repository/index`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexBody {
    /// Only models that are ready.
    pub ready: bool,
}

/// One row of the answer to it; empty strings are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct IndexRowBody {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// One row of the answer to `GET /v2/systemsharedmemory/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RegionBody {
    pub name: String,
    pub key: String,
    pub offset: u64,
    pub byte_size: u64,
}

/// Sent to `POST /v2/systemsharedmemory/region/{name}/register`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct RegisterBody {
    pub key: String,
    pub offset: u64,
    pub byte_size: u64,
}

/// Sent to `POST /v2/repository/models/{name}/load` and `/unload`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadBody {
    /// `config`; `unload_dependents`.
    pub parameters: Parameters,
}
