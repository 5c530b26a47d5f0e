//! The HTTP, gRPC and metrics server.
//!
//! A request takes the same path in every protocol: decode (`ripieno-wire`), look the model up
//! (`ripieno-repository`), check it against the model, submit it to a [`Backend`], wait, encode.
//! This crate makes no scheduling decisions.
//!
//! Where servers of this protocol differ, Ripieno behaves as follows: health and readiness have
//! JSON bodies besides the status. ModelStreamInfer and generate_stream use Triton's messages.
//! Refusals under load are 429 with Retry-After (RESOURCE_EXHAUSTED), missed deadlines 504
//! (DEADLINE_EXCEEDED). `timeout` bounds the total time in the server, not only queueing.

mod access;
mod backend;
mod call;
mod config;
mod credentials_reload;
mod limits;
mod observe;
mod overrides;
mod protocol;
mod serve;
mod signals;
mod state;
mod threads;
mod ui;

pub use access::{AccessConfig, AccessError, Admin, SharedMemory, TlsFiles, TokenSource};
pub use backend::{Backend, DeviceChange, Withdraw};
pub use config::{AccessLogConfig, AutoDump, ErrorProfile, ServerConfig, TelemetryConfig};
pub use serve::{Addresses, BindError, Server};
