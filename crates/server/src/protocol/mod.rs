//! The wire side of the server: HTTP, gRPC, errors and descriptions as clients read them.

pub(crate) mod compression;
pub(crate) mod describe;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod not_offered;
pub(crate) mod slo;
