//! Arguments that several commands share, and their meaning.

pub(crate) mod access;
pub(crate) mod address;
pub(crate) mod bounds;
pub(crate) mod devices;
pub(crate) mod environment;
pub(crate) mod logs;
pub(crate) mod overrides;
pub(crate) mod plan_store;
pub(crate) mod policy;
pub(crate) mod server_threads;
pub(crate) mod settings;
pub(crate) mod stages;
