//! Maps request paths to calls.

use crate::access::Permission;
use crate::backend::DeviceChange;
use hyper::Method;
use ripieno_base::DeviceId;
use std::borrow::Cow;

/// Maximum number of segments of a valid path.
const MAX_SEGMENTS: usize = 8;

/// Model named in a path; an empty version leaves the choice to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelTarget {
    pub(super) name: String,
    pub(super) version: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RestCall {
    Server,
    Live,
    Ready,
    Status,
    ModelReady(ModelTarget),
    Metadata(ModelTarget),
    Config(ModelTarget),
    /// An empty name means all models.
    Statistics(ModelTarget),
    Infer(ModelTarget),
    Generate(ModelTarget),
    GenerateStream(ModelTarget),
    Index,
    Load(String),
    Unload(String),
    Devices,
    ChangeDevices(DeviceChange),
    DumpRecording,
    Regions(RegionsCall),
    /// The same calls for CUDA regions.
    CudaRegions(RegionsCall),
    /// Lists the models that accept text.
    TextModels,
    Embeddings,
    Classify,
    Rerank,
    /// The calls of Hugging Face's server of text encoders.
    EncoderEmbed,
    EncoderRerank,
    EncoderPredict,
    TraceSettings,
    LogSettings,
    /// The description of all calls.
    OpenApi,
}

/// A call about shared memory regions; `None` means all regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RegionsCall {
    Status(Option<String>),
    Register(String),
    Unregister(Option<String>),
}

impl RestCall {
    /// Returns the required method; `None` for unsupported calls, whose methods share one refusal.
    pub(super) fn method(&self) -> Option<Method> {
        Some(match self {
            RestCall::Infer(_) | RestCall::Generate(_) | RestCall::GenerateStream(_) => Method::POST,
            RestCall::Embeddings | RestCall::Classify | RestCall::Rerank => Method::POST,
            RestCall::EncoderEmbed | RestCall::EncoderRerank | RestCall::EncoderPredict => Method::POST,
            RestCall::Index | RestCall::Load(_) | RestCall::Unload(_) | RestCall::ChangeDevices(_) => Method::POST,
            RestCall::DumpRecording => Method::POST,
            RestCall::Regions(call) | RestCall::CudaRegions(call) if !matches!(call, RegionsCall::Status(_)) => {
                Method::POST
            }
            RestCall::TraceSettings | RestCall::LogSettings => return None,
            _ => Method::GET,
        })
    }

    /// Returns the permission that the call needs. The match names every call, so that a new one
    /// cannot be left unprotected by oversight.
    pub(super) fn permission(&self) -> Permission {
        match self {
            RestCall::Live | RestCall::Ready => Permission::Health,
            RestCall::Server | RestCall::ModelReady(_) | RestCall::Metadata(_) | RestCall::Config(_) => {
                Permission::Describe
            }
            RestCall::Statistics(_) | RestCall::Index | RestCall::Devices | RestCall::TextModels => {
                Permission::Describe
            }
            RestCall::OpenApi | RestCall::Status => Permission::Describe,
            RestCall::Embeddings | RestCall::Classify | RestCall::Rerank => Permission::Infer,
            RestCall::EncoderEmbed | RestCall::EncoderRerank | RestCall::EncoderPredict => Permission::Infer,
            RestCall::TraceSettings | RestCall::LogSettings => Permission::Describe,
            RestCall::Infer(_) | RestCall::Generate(_) | RestCall::GenerateStream(_) => Permission::Infer,
            RestCall::Load(_) | RestCall::Unload(_) | RestCall::ChangeDevices(_) => Permission::Admin,
            RestCall::DumpRecording => Permission::Admin,
            RestCall::Regions(_) | RestCall::CudaRegions(_) => Permission::Regions,
        }
    }
}

/// Returns the call of a path, which excludes the query; `None` for an unknown path.
pub(super) fn parse(path: &str) -> Option<RestCall> {
    let path = path.strip_prefix('/')?;
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut decoded: [Cow<'_, str>; MAX_SEGMENTS] = Default::default();
    let mut count = 0;
    for segment in path.split('/') {
        *decoded.get_mut(count)? = decode(segment)?;
        count += 1;
    }
    let segments: [&str; MAX_SEGMENTS] = std::array::from_fn(|at| &*decoded[at]);
    match &segments[..count] {
        ["v2"] => Some(RestCall::Server),
        ["v2", "health", "live"] => Some(RestCall::Live),
        ["v2", "health", "ready"] => Some(RestCall::Ready),
        ["v2", "health", "status"] => Some(RestCall::Status),
        // This path precedes the models': a model named "stats" has no metadata path.
        ["v2", "models", "stats"] => Some(RestCall::Statistics(ModelTarget::default())),
        ["v2", "models", name, "versions", version, rest @ ..] => model(name, version, rest),
        ["v2", "models", name, rest @ ..] => model(name, "", rest),
        ["v2", "repository", rest @ ..] => repository(rest),
        ["v2", "devices"] => Some(RestCall::Devices),
        ["v2", "devices", "add"] => Some(RestCall::ChangeDevices(DeviceChange::Add)),
        ["v2", "devices", id, "remove"] => device(id).map(|id| RestCall::ChangeDevices(DeviceChange::Remove(id))),
        ["v2", "devices", id, "lose"] => device(id).map(|id| RestCall::ChangeDevices(DeviceChange::Lose(id))),
        ["v2", "recording", "dump"] => Some(RestCall::DumpRecording),
        ["v2", "systemsharedmemory", rest @ ..] => regions(rest).map(RestCall::Regions),
        ["v2", "cudasharedmemory", rest @ ..] => regions(rest).map(RestCall::CudaRegions),
        ["v1", "models"] => Some(RestCall::TextModels),
        ["v1", "embeddings"] => Some(RestCall::Embeddings),
        ["v1", "classify"] => Some(RestCall::Classify),
        ["v1", "rerank"] => Some(RestCall::Rerank),
        ["embed"] => Some(RestCall::EncoderEmbed),
        ["rerank"] => Some(RestCall::EncoderRerank),
        ["predict"] => Some(RestCall::EncoderPredict),
        ["v2", "trace", "setting"] => Some(RestCall::TraceSettings),
        ["v2", "logging"] => Some(RestCall::LogSettings),
        ["openapi.json"] => Some(RestCall::OpenApi),
        _ => None,
    }
}

fn model(name: &str, version: &str, rest: &[&str]) -> Option<RestCall> {
    let target = ModelTarget { name: name.to_owned(), version: version.to_owned() };
    match rest {
        [] => Some(RestCall::Metadata(target)),
        ["ready"] => Some(RestCall::ModelReady(target)),
        ["config"] => Some(RestCall::Config(target)),
        ["stats"] => Some(RestCall::Statistics(target)),
        ["infer"] => Some(RestCall::Infer(target)),
        ["generate"] => Some(RestCall::Generate(target)),
        ["generate_stream"] => Some(RestCall::GenerateStream(target)),
        ["trace", "setting"] => Some(RestCall::TraceSettings),
        _ => None,
    }
}

/// Parses repository paths. There is one repository, so that its name in a path is ignored.
fn repository(rest: &[&str]) -> Option<RestCall> {
    match rest {
        ["index"] | [_, "index"] => Some(RestCall::Index),
        ["models", name, "load"] | [_, "models", name, "load"] => Some(RestCall::Load((*name).to_owned())),
        ["models", name, "unload"] | [_, "models", name, "unload"] => Some(RestCall::Unload((*name).to_owned())),
        _ => None,
    }
}

fn device(id: &str) -> Option<DeviceId> {
    id.parse().ok().map(DeviceId)
}

fn regions(rest: &[&str]) -> Option<RegionsCall> {
    let (name, verb) = match rest {
        [verb] => (None, *verb),
        ["region", name, verb] => (Some((*name).to_owned()), *verb),
        _ => return None,
    };
    match (verb, name) {
        ("status", name) => Some(RegionsCall::Status(name)),
        ("register", Some(name)) => Some(RegionsCall::Register(name)),
        ("unregister", name) => Some(RegionsCall::Unregister(name)),
        _ => None,
    }
}

/// Decodes percent encoding; returns `None` if it is invalid or not UTF-8.
pub(super) fn decode(segment: &str) -> Option<Cow<'_, str>> {
    if !segment.contains('%') {
        return Some(Cow::Borrowed(segment));
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, version: &str) -> ModelTarget {
        ModelTarget { name: name.into(), version: version.into() }
    }

    #[test]
    fn paths_mean_calls() {
        let cases = [
            ("/v2", Some(RestCall::Server)),
            ("/v2/", Some(RestCall::Server)),
            ("/v2/health/ready", Some(RestCall::Ready)),
            ("/v2/models/stats", Some(RestCall::Statistics(ModelTarget::default()))),
            ("/v2/models/stats/stats", Some(RestCall::Statistics(target("stats", "")))),
            ("/v2/models/m", Some(RestCall::Metadata(target("m", "")))),
            ("/v2/models/m/versions/3", Some(RestCall::Metadata(target("m", "3")))),
            ("/v2/models/m/generate", Some(RestCall::Generate(target("m", "")))),
            ("/v2/models/m/versions/3/generate_stream", Some(RestCall::GenerateStream(target("m", "3")))),
            ("/v2/models/m/versions/3/infer", Some(RestCall::Infer(target("m", "3")))),
            ("/v2/models/a%20b%2Fc/config", Some(RestCall::Config(target("a b/c", "")))),
            ("/v2/repository/index", Some(RestCall::Index)),
            ("/v2/repository/main/models/m/load", Some(RestCall::Load("m".into()))),
            ("/v2/repository/models/m/unload", Some(RestCall::Unload("m".into()))),
            ("/v2/devices", Some(RestCall::Devices)),
            ("/v2/devices/add", Some(RestCall::ChangeDevices(DeviceChange::Add))),
            ("/v2/devices/3/remove", Some(RestCall::ChangeDevices(DeviceChange::Remove(DeviceId(3))))),
            ("/v2/devices/0/lose", Some(RestCall::ChangeDevices(DeviceChange::Lose(DeviceId(0))))),
            ("/v2/recording/dump", Some(RestCall::DumpRecording)),
            ("/v2/devices/65536/lose", None),
            ("/v2/devices/x/remove", None),
            ("/v2/models/m/trace/setting", Some(RestCall::TraceSettings)),
            ("/v2/trace/setting", Some(RestCall::TraceSettings)),
            ("/v2/logging", Some(RestCall::LogSettings)),
            ("/v1/models", Some(RestCall::TextModels)),
            ("/v1/embeddings", Some(RestCall::Embeddings)),
            ("/v1/rerank/", Some(RestCall::Rerank)),
            ("/v1/completions", None),
            ("/v2/systemsharedmemory/status", Some(RestCall::Regions(RegionsCall::Status(None)))),
            (
                "/v2/systemsharedmemory/region/r%2F/register",
                Some(RestCall::Regions(RegionsCall::Register("r/".into()))),
            ),
            (
                "/v2/cudasharedmemory/region/r/unregister",
                Some(RestCall::CudaRegions(RegionsCall::Unregister(Some("r".into())))),
            ),
            ("/v2/systemsharedmemory/register", None),
            ("/v2/models/%zz", None),
            ("/v2/models/%+1", None),
            ("/v2/models/%f", None),
            ("/v2/models/%ff", None),
            ("/v2/models/m/versions", None),
            ("/v1", None),
            ("", None),
        ];
        for (path, call) in cases {
            assert_eq!(parse(path), call, "{path}");
        }
    }
}
