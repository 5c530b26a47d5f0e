//! JSON encoding: bodies of the REST calls, and inference with the binary tensor extension.
//!
//! JSON has no NaN and no infinity: such outputs become `null`, which NumPy reads back as NaN; a
//! client that must tell them apart requests binary. FP16 and BF16 have no JSON form.

mod bodies;
mod bounded;
mod data;
pub mod encoders;
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
