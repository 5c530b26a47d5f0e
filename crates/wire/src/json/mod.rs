//! The JSON form: bodies of the REST calls, and inference with the binary tensor extension.
//!
//! Numbers that JSON cannot express: a NaN or an infinity in an output becomes `null` (NumPy reads that back as NaN);
//! clients that must tell them apart ask for binary. FP16 and BF16 have no JSON form at all.

mod bodies;
mod bounded;
mod data;
mod generate;
mod request;
mod response;
mod size;
pub mod text;

pub use bodies::{
    ErrorBody, IndexBody, IndexRowBody, LiveBody, LoadBody, ModelMetadataBody, ModelReadyBody, ReadyBody, RegionBody,
    RegisterBody, ServerMetadataBody, TensorMetadataBody,
};
pub use generate::{InputShape, encode_generate, parse_generate};
pub use request::parse_infer;
pub use response::{EncodedResponse, encode_infer};
pub use size::{decoded_size, encoded_size, text_size};

#[cfg(test)]
mod tests;
