//! JSON encoding: bodies of the REST calls, and inference with the binary tensor extension.
//!
//! JSON has no NaN and no infinity. As Triton and Python's `json` do, answers write `NaN`,
//! `Infinity` and `-Infinity`. Requests may bring these words for FP32 and FP64, also as strings
//! (`not_finite.rs`). FP16 and BF16 have no JSON form.

mod bodies;
mod bounded;
mod data;
pub mod encoders;
mod generate;
mod not_finite;
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
