//! The server over loopback as clients see it: a scripted backend for exact tests, and the runtime
//! with an emulated device for end-to-end tests.

mod access;
mod compression;
mod connections;
mod ensembles;
mod gateway;
mod grpc;
mod http;
mod infer;
mod light_clients;
mod live;
mod memory;
mod reflection;
mod regions;
mod scaler;
mod scripted;
mod shutdown;
mod streams;
mod support;
mod texts;
mod tls;
mod triton;
mod ui;
mod unbatched;
mod whole_requests;
