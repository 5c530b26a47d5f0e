//! The front end: HTTP, gRPC and metrics on three ports.
//!
//! A request takes one path whatever its protocol: decode (`ripieno-wire`), look the model up (`ripieno-repository`),
//! check it against the model, submit it to a [`Backend`], wait, encode. Nothing here decides who runs when.
//!
//! Where servers of this protocol differ, Ripieno chooses so: health and readiness carry JSON bodies beside the status;
//! ModelStreamInfer speaks Triton's messages, and so does generate_stream; refusals for load are 429 with Retry-After
//! (RESOURCE_EXHAUSTED), missed deadlines 504 (DEADLINE_EXCEEDED), and `timeout` bounds the whole time in the server and not
//! only the queue.

mod access;
mod backend;
mod bounds;
mod check;
mod compression;
mod config;
mod decoded;
mod delivery;
mod describe;
mod ensemble;
mod fresh;
mod grpc;
mod http;
mod infer;
mod metrics;
mod not_offered;
mod overrides;
mod problem;
mod regions;
mod scaler;
mod sequences;
mod serve;
mod signals;
mod slo;
mod state;
mod stream;
mod texts;
mod threads;
mod trace;

pub use access::{AccessConfig, AccessError, Admin, SharedMemory, TlsFiles, TokenSource};
pub use backend::{Backend, DeviceChange, Withdraw};
pub use config::{ErrorProfile, ServerConfig};
pub use serve::{Addresses, BindError, Server};
