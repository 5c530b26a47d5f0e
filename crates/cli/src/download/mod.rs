//! Models by address: `hf://ORG/NAME` and `https://HOST/…/model.onnx`, kept in the user's cache.
//!
//! The serving code knows folders and files only, so an address becomes one before it starts. What
//! is in the cache and named by its content (a commit, a checksum) is never asked for again. A file
//! takes its place only once it is whole and its checksum is right.
//!
//! A crate for the hub was rejected: `ripieno bench` has a client with TLS, and the hub's interface
//! is two calls.

mod client;
mod file;
mod hub;

use anyhow::{Context, bail};
use ripieno_repository::user_cache_folder;
use std::path::{Path, PathBuf};

/// Returns the path of what is to be served: a path as it is, an address as its copy in the cache.
pub(crate) async fn local(repository: &Path) -> anyhow::Result<PathBuf> {
    let Some(address) = repository.to_str().filter(|text| text.contains("://")) else {
        return Ok(repository.to_owned());
    };
    let cache = user_cache_folder().context("there is no folder for downloads; set HOME or XDG_CACHE_HOME")?;
    let cache = cache.join("models");
    let copied = match address.split_once("://") {
        Some(("hf", rest)) => hub::copy(rest, &cache).await,
        Some(("http" | "https", _)) => file::copy(address, &cache).await,
        _ => bail!("{address}: such addresses are not read; give hf://ORG/NAME, https://HOST/…/model.onnx, or a path"),
    };
    copied.with_context(|| address.to_owned())
}

/// [`local`], for commands without a runtime.
pub(crate) fn local_now(repository: &Path) -> anyhow::Result<PathBuf> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(local(repository))
}
