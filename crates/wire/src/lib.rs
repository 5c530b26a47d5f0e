//! The Open Inference Protocol on the wire: JSON with binary tensors, and gRPC.
//!
//! Both protocols decode into one [`InferRequest`] and are encoded from one [`InferResponse`], so that the server has one
//! path. Tensors are little-endian, row-major bytes throughout: what a client sent in binary is never copied or
//! looked at, except that the elements of BYTES are walked once to see that their lengths add up.
//!
//! Everything that comes from outside is bounded here: nesting, tensors, dimensions, parameters, element counts. The size
//! of the whole message is the server's business.

mod datatype;
mod error;
pub mod grpc;
mod infer;
pub mod json;
mod parameter;
pub mod pbtxt;

pub use datatype::Datatype;
pub use error::WireError;
pub use infer::{Form, InferRequest, InferResponse, Place, RequestedOutput, ResponseTensor, WireTensor, element_count};
pub use parameter::{Parameter, Parameters};

/// The generated messages and services.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod proto {
    /// What the messages and services are, as an encoded `FileDescriptorSet`.
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

/// The most inputs, and the most requested outputs, of one request.
pub const MAX_TENSORS: usize = 256;
/// The most dimensions of one tensor.
pub const MAX_DIMENSIONS: usize = 32;
/// The most parameters of one request, tensor or output.
pub const MAX_PARAMETERS: usize = 256;
/// The longest id of a request, which is kept until the answer.
pub const MAX_ID_BYTES: usize = 4096;
/// The deepest nesting of a tensor's JSON data.
pub const MAX_DEPTH: usize = 64;
