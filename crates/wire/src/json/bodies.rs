//! Request and response bodies of the metadata and control calls.

use crate::Parameters;
use serde::{Deserialize, Serialize};

/// Body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Error message.
    pub error: String,
}

/// Response of `GET /v2/health/live`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LiveBody {
    pub live: bool,
}

/// Response of `GET /v2/health/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ReadyBody {
    pub ready: bool,
}

/// Response of `GET /v2/models/{name}/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ModelReadyBody {
    pub name: String,
    pub ready: bool,
}

/// Response of `GET /v2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ServerMetadataBody {
    pub name: String,
    pub version: String,
    pub extensions: Vec<String>,
}

/// An input or output in a model's metadata; -1 means a variable size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TensorMetadataBody {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<i64>,
}

/// Response of `GET /v2/models/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ModelMetadataBody {
    pub name: String,
    pub versions: Vec<String>,
    pub platform: String,
    pub inputs: Vec<TensorMetadataBody>,
    pub outputs: Vec<TensorMetadataBody>,
}

/// Request of `POST /v2/repository/index`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexBody {
    /// Whether only ready models are listed.
    pub ready: bool,
}

/// One row of the response of `POST /v2/repository/index`; empty strings are omitted.
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

/// One row of the response of `GET /v2/systemsharedmemory/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RegionBody {
    pub name: String,
    pub key: String,
    pub offset: u64,
    pub byte_size: u64,
}

/// Request of `POST /v2/systemsharedmemory/region/{name}/register`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct RegisterBody {
    pub key: String,
    pub offset: u64,
    pub byte_size: u64,
}

/// Request of `POST /v2/repository/models/{name}/load` and `/unload`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadBody {
    /// Parameters such as `config` and `unload_dependents`.
    pub parameters: Parameters,
}
