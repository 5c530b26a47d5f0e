//! Which call a path means.

use crate::access::Need;
use crate::backend::DeviceChange;
use hyper::Method;
use ripieno_base::DeviceId;
use std::borrow::Cow;

/// No path that means something has more.
const MOST_SEGMENTS: usize = 8;

/// A model in a path; an empty version leaves the choice to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) version: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Server,
    Live,
    Ready,
    ModelReady(Target),
    Metadata(Target),
    Config(Target),
    /// An empty name means all models.
    Statistics(Target),
    Infer(Target),
    Generate(Target),
    GenerateStream(Target),
    Index,
    Load(String),
    Unload(String),
    Devices,
    ChangeDevices(DeviceChange),
    Regions(Regions),
    /// Of CUDA, under the same names.
    CudaRegions(Regions),
    /// Models that read text.
    TextModels,
    Embeddings,
    Classify,
    Rerank,
    TraceSettings,
    LogSettings,
}

/// What is asked of shared memory; without a name, of all regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Regions {
    Status(Option<String>),
    Register(String),
    Unregister(Option<String>),
}

impl Call {
    /// None where both are refused with the same text.
    pub(super) fn method(&self) -> Option<Method> {
        Some(match self {
            Call::Infer(_) | Call::Generate(_) | Call::GenerateStream(_) => Method::POST,
            Call::Embeddings | Call::Classify | Call::Rerank => Method::POST,
            Call::Index | Call::Load(_) | Call::Unload(_) | Call::ChangeDevices(_) => Method::POST,
            Call::Regions(call) | Call::CudaRegions(call) if !matches!(call, Regions::Status(_)) => Method::POST,
            Call::TraceSettings | Call::LogSettings => return None,
            _ => Method::GET,
        })
    }

    /// Every call is named, so that a new one cannot be open by oversight.
    pub(super) fn need(&self) -> Need {
        match self {
            Call::Live | Call::Ready => Need::Health,
            Call::Server | Call::ModelReady(_) | Call::Metadata(_) | Call::Config(_) => Need::Describe,
            Call::Statistics(_) | Call::Index | Call::Devices | Call::TextModels => Need::Describe,
            Call::Embeddings | Call::Classify | Call::Rerank => Need::Infer,
            Call::TraceSettings | Call::LogSettings => Need::Describe,
            Call::Infer(_) | Call::Generate(_) | Call::GenerateStream(_) => Need::Infer,
            Call::Load(_) | Call::Unload(_) | Call::ChangeDevices(_) => Need::Admin,
            Call::Regions(_) | Call::CudaRegions(_) => Need::Regions,
        }
    }
}

/// None for a path that means nothing. The query is no part of it and is ignored.
pub(super) fn parse(path: &str) -> Option<Call> {
    let path = path.strip_prefix('/')?;
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut decoded: [Cow<'_, str>; MOST_SEGMENTS] = Default::default();
    let mut count = 0;
    for segment in path.split('/') {
        *decoded.get_mut(count)? = decode(segment)?;
        count += 1;
    }
    let segments: [&str; MOST_SEGMENTS] = std::array::from_fn(|at| &*decoded[at]);
    match &segments[..count] {
        ["v2"] => Some(Call::Server),
        ["v2", "health", "live"] => Some(Call::Live),
        ["v2", "health", "ready"] => Some(Call::Ready),
        // Before the models: no model is asked for by the name "stats".
        ["v2", "models", "stats"] => Some(Call::Statistics(Target::default())),
        ["v2", "models", name, "versions", version, rest @ ..] => model(name, version, rest),
        ["v2", "models", name, rest @ ..] => model(name, "", rest),
        ["v2", "repository", rest @ ..] => repository(rest),
        ["v2", "devices"] => Some(Call::Devices),
        ["v2", "devices", "add"] => Some(Call::ChangeDevices(DeviceChange::Add)),
        ["v2", "devices", id, "remove"] => device(id).map(|id| Call::ChangeDevices(DeviceChange::Remove(id))),
        ["v2", "devices", id, "lose"] => device(id).map(|id| Call::ChangeDevices(DeviceChange::Lose(id))),
        ["v2", "systemsharedmemory", rest @ ..] => regions(rest).map(Call::Regions),
        ["v2", "cudasharedmemory", rest @ ..] => regions(rest).map(Call::CudaRegions),
        ["v1", "models"] => Some(Call::TextModels),
        ["v1", "embeddings"] => Some(Call::Embeddings),
        ["v1", "classify"] => Some(Call::Classify),
        ["v1", "rerank"] => Some(Call::Rerank),
        ["v2", "trace", "setting"] => Some(Call::TraceSettings),
        ["v2", "logging"] => Some(Call::LogSettings),
        _ => None,
    }
}

fn model(name: &str, version: &str, rest: &[&str]) -> Option<Call> {
    let target = Target { name: name.to_owned(), version: version.to_owned() };
    match rest {
        [] => Some(Call::Metadata(target)),
        ["ready"] => Some(Call::ModelReady(target)),
        ["config"] => Some(Call::Config(target)),
        ["stats"] => Some(Call::Statistics(target)),
        ["infer"] => Some(Call::Infer(target)),
        ["generate"] => Some(Call::Generate(target)),
        ["generate_stream"] => Some(Call::GenerateStream(target)),
        ["trace", "setting"] => Some(Call::TraceSettings),
        _ => None,
    }
}

/// There is one repository, so its name in a path, if any, says nothing.
fn repository(rest: &[&str]) -> Option<Call> {
    match rest {
        ["index"] | [_, "index"] => Some(Call::Index),
        ["models", name, "load"] | [_, "models", name, "load"] => Some(Call::Load((*name).to_owned())),
        ["models", name, "unload"] | [_, "models", name, "unload"] => Some(Call::Unload((*name).to_owned())),
        _ => None,
    }
}

fn device(id: &str) -> Option<DeviceId> {
    id.parse().ok().map(DeviceId)
}

fn regions(rest: &[&str]) -> Option<Regions> {
    let (name, verb) = match rest {
        [verb] => (None, *verb),
        ["region", name, verb] => (Some((*name).to_owned()), *verb),
        _ => return None,
    };
    match (verb, name) {
        ("status", name) => Some(Regions::Status(name)),
        ("register", Some(name)) => Some(Regions::Register(name)),
        ("unregister", name) => Some(Regions::Unregister(name)),
        _ => None,
    }
}

/// Undoes percent encoding; none if it is broken or not UTF-8.
fn decode(segment: &str) -> Option<Cow<'_, str>> {
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

    fn target(name: &str, version: &str) -> Target {
        Target { name: name.into(), version: version.into() }
    }

    #[test]
    fn paths_mean_calls() {
        let cases = [
            ("/v2", Some(Call::Server)),
            ("/v2/", Some(Call::Server)),
            ("/v2/health/ready", Some(Call::Ready)),
            ("/v2/models/stats", Some(Call::Statistics(Target::default()))),
            ("/v2/models/stats/stats", Some(Call::Statistics(target("stats", "")))),
            ("/v2/models/m", Some(Call::Metadata(target("m", "")))),
            ("/v2/models/m/versions/3", Some(Call::Metadata(target("m", "3")))),
            ("/v2/models/m/generate", Some(Call::Generate(target("m", "")))),
            ("/v2/models/m/versions/3/generate_stream", Some(Call::GenerateStream(target("m", "3")))),
            ("/v2/models/m/versions/3/infer", Some(Call::Infer(target("m", "3")))),
            ("/v2/models/a%20b%2Fc/config", Some(Call::Config(target("a b/c", "")))),
            ("/v2/repository/index", Some(Call::Index)),
            ("/v2/repository/main/models/m/load", Some(Call::Load("m".into()))),
            ("/v2/repository/models/m/unload", Some(Call::Unload("m".into()))),
            ("/v2/devices", Some(Call::Devices)),
            ("/v2/devices/add", Some(Call::ChangeDevices(DeviceChange::Add))),
            ("/v2/devices/3/remove", Some(Call::ChangeDevices(DeviceChange::Remove(DeviceId(3))))),
            ("/v2/devices/0/lose", Some(Call::ChangeDevices(DeviceChange::Lose(DeviceId(0))))),
            ("/v2/devices/65536/lose", None),
            ("/v2/devices/x/remove", None),
            ("/v2/models/m/trace/setting", Some(Call::TraceSettings)),
            ("/v2/trace/setting", Some(Call::TraceSettings)),
            ("/v2/logging", Some(Call::LogSettings)),
            ("/v1/models", Some(Call::TextModels)),
            ("/v1/embeddings", Some(Call::Embeddings)),
            ("/v1/rerank/", Some(Call::Rerank)),
            ("/v1/completions", None),
            ("/v2/systemsharedmemory/status", Some(Call::Regions(Regions::Status(None)))),
            ("/v2/systemsharedmemory/region/r%2F/register", Some(Call::Regions(Regions::Register("r/".into())))),
            (
                "/v2/cudasharedmemory/region/r/unregister",
                Some(Call::CudaRegions(Regions::Unregister(Some("r".into())))),
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
