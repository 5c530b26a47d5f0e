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
//!
//! ```
//! # use ripieno_executor::{CpuEngine, CpuOptions};
//! # use ripieno_repository::{LiveRepository, LoadTarget, registry::ModelRegistry};
//! # use ripieno_runtime::{Engine, EngineConfig};
//! # use ripieno_sched::{Limits, Options, Setup};
//! # use std::sync::Arc;
//! use ripieno_server::{Server, ServerConfig};
//!
//! # let (requests, models, devices, lanes, depth, batch, nodes) = (64, 4, 1, 1, 2, 64, 0);
//! # let limits = Limits { requests, models, devices, lanes, depth, batch, nodes };
//! # let setup = || Setup { models: vec![], devices: 1, limits };
//! # let scheduler = ripieno_policies::build("deferred", &setup(), &Options::new()).unwrap();
//! # let executor = Arc::new(CpuEngine::new(CpuOptions::default()));
//! # let config = EngineConfig::new(scheduler, setup(), vec![executor.clone()]);
//! # let engine = Engine::start(config).unwrap();
//! # let (registry, target) = (Arc::new(ModelRegistry::new()), LoadTarget::new(executor));
//! # let (host, folder) = (Arc::new(engine.clone()), tempfile::tempdir().unwrap());
//! # let (folder, on_change) = (folder.path().into(), Arc::new(|_: &str, _, _| {}));
//! # let models = LiveRepository::new(folder, target, registry.clone(), host, on_change);
//! # let runtime = tokio::runtime::Runtime::new().unwrap();
//! # runtime.block_on(async {
//! let free = Some(([127, 0, 0, 1], 0).into());
//! let config = ServerConfig { http: free, grpc: None, metrics: None, ..ServerConfig::default() };
//! let server = Server::bind(config, Arc::new(engine), registry, Arc::new(models)).await.unwrap();
//! println!("http://{}", server.addresses().http.unwrap());
//! assert!(server.run(async {}).await, "until this future ends; a signal, for instance");
//! # });
//! ```

mod access;
mod backend;
mod call;
mod config;
mod durations;
mod limits;
mod observe;
mod problem;
mod process;
mod protocol;
mod state;
mod trace;
mod ui;

pub use access::{AccessConfig, AccessError, Admin, SharedMemory, TlsFiles, TokenSource};
pub use backend::{Backend, DeviceChange, DeviceDelays, Withdraw};
pub use config::{AccessLogConfig, AutoDump, BuildInfo, ServerConfig, TelemetryConfig};
pub use observe::starvation::watch_processor;
pub use problem::ErrorProfile;
pub use process::serve::{Addresses, BindError, Server};
