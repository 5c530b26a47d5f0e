//! Many machines as one server.
//!
//! For now the [`planner`]: how many devices a load needs, and which models share which devices. It decides every few
//! minutes and never about a request, so it knows profiles, rates and sizes, and neither schedulers nor sockets.

pub mod planner;
