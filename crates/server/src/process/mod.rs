//! The process: listeners and shutdown, its threads, reload of credentials.

mod credentials_reload;
pub(crate) mod serve;
mod threads;
