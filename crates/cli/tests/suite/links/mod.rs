//! Machines in network namespaces, a cluster on them, and its clients.

mod clients;
mod cluster;
mod network;

pub(crate) use clients::Load;
pub(crate) use cluster::{Cluster, Fault};
pub(crate) use network::enter;
