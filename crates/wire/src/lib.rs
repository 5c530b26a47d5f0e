//! Wire formats of the Open Inference Protocol: JSON with binary tensors, and gRPC.
//!
//! Both protocols decode into one [`InferRequest`] and encode from one [`InferResponse`], so that
//! the server has a single path. Tensors are little-endian, row-major bytes throughout: binary data
//! is neither copied nor inspected, except that the lengths of BYTES elements are checked.
//!
//! This crate bounds everything that a client controls: nesting, tensors, dimensions, parameters
//! and element counts. The server bounds the size of the whole message.

mod datatype;
mod error;
pub mod grpc;
mod infer;
pub mod json;
mod parameter;
pub mod pbtxt;

pub use error::WireError;
pub use infer::{
    InferRequest, InferResponse, OutputEncoding, RequestedOutput, ResponseTensor, SharedMemoryRef, WireTensor,
    element_count,
};
pub use parameter::{Parameter, Parameters};

/// Generated messages and services.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod proto {
    /// Messages and services as an encoded `FileDescriptorSet`.
    pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

    pub mod inference {
        include!("generated/inference.rs");
    }
    pub mod health {
        include!("generated/grpc.health.v1.rs");
    }
    pub mod scaler {
        include!("generated/externalscaler.rs");
    }
}

/// Maximum number of inputs, and of requested outputs, in a request.
pub const MAX_TENSORS: usize = 256;
/// Maximum number of dimensions of a tensor.
pub const MAX_DIMENSIONS: usize = 32;
/// Maximum number of parameters of a request, tensor or output.
pub const MAX_PARAMETERS: usize = 256;
/// Maximum length of a request id, which is kept until the response.
pub const MAX_ID_BYTES: usize = 4096;
/// Maximum nesting depth of a tensor's JSON data.
pub const MAX_DEPTH: usize = 64;
