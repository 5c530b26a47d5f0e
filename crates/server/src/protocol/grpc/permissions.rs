//! Permission of each gRPC call, checked before a message is read.

use crate::access::Permission;

/// Returns the permission that a call needs. Unknown calls need the permission for metadata: stock
/// clients try them and expect "unimplemented". A test checks every call of the protocol against
/// this table.
pub(super) fn permission(path: &str) -> Permission {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, method) {
        ("grpc.health.v1.Health", _) => Permission::Health,
        (_, "ServerLive" | "ServerReady") => Permission::Health,
        (_, "ModelInfer" | "ModelStreamInfer") => Permission::Infer,
        (_, "RepositoryModelLoad" | "RepositoryModelUnload") => Permission::Admin,
        (_, method) if method.contains("SharedMemory") => Permission::Regions,
        _ => Permission::Describe,
    }
}
