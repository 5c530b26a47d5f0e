//! Which gRPC call needs what, decided before a message is read.

use crate::access::Need;

/// What is not served needs as much as a description: stock clients try it and expect to hear that it is not implemented. A test holds every call of the protocol against this.
pub(super) fn need(path: &str) -> Need {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, method) {
        ("grpc.health.v1.Health", _) => Need::Health,
        (_, "ServerLive" | "ServerReady") => Need::Health,
        (_, "ModelInfer" | "ModelStreamInfer") => Need::Infer,
        (_, "RepositoryModelLoad" | "RepositoryModelUnload") => Need::Admin,
        (_, method) if method.contains("SharedMemory") => Need::Regions,
        _ => Need::Describe,
    }
}
