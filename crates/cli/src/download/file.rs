//! One ONNX file by its address, `https://HOST/…/model.onnx[#sha256=HEX]`.
//!
//! With a checksum the copy in the cache is served without a question. Without one the server is
//! asked whether the file has changed.

use super::client;
use anyhow::{Context, ensure};
use hyper::StatusCode;
use hyper::header::{ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the file's copy below `cache`.
pub(super) async fn copy(address: &str, cache: &Path) -> anyhow::Result<PathBuf> {
    let (url, fragment) = address.split_once('#').map_or((address, None), |(url, rest)| (url, Some(rest)));
    let expected = fragment.map(|rest| rest.strip_prefix("sha256=").filter(|sum| is_sum(sum)));
    let expected = match expected {
        None => None,
        Some(sum) => Some(sum.context("what follows # must be sha256= and 64 hexadecimal digits")?),
    };
    let path = url.split('?').next().unwrap_or_default();
    let name = path.rsplit('/').next().filter(|name| name.len() > 5 && name.ends_with(".onnx"));
    let name = name.context("the address must end with the name of an ONNX file")?;
    let folder = cache.join("url").join(short(expected.unwrap_or(url)));
    let (file, tag) = (folder.join(name), folder.join("etag"));
    let is_there = file.is_file();
    if is_there && expected.is_some() {
        return Ok(file);
    }
    let known = fs::read(&tag).ok().filter(|_| is_there).and_then(|tag| HeaderValue::from_bytes(&tag).ok());
    let headers = HeaderMap::from_iter(known.map(|tag| (IF_NONE_MATCH, tag)));
    let answer = match client::get(url, &headers).await {
        Ok(answer) => answer,
        Err(error) if is_there => {
            tracing::warn!("{url}: {error:#}; the copy of an earlier download is served");
            return Ok(file);
        }
        Err(error) => return Err(error),
    };
    match answer.status() {
        StatusCode::NOT_MODIFIED if is_there => return Ok(file),
        StatusCode::OK => {}
        status => return Err(client::refusal(url, status)),
    }
    let etag = answer.headers().get(ETAG).cloned();
    let sum = client::save(answer, &file, expected).await?;
    match etag {
        Some(etag) => fs::write(&tag, etag.as_bytes()).with_context(|| format!("cannot write {}", tag.display()))?,
        None => drop(fs::remove_file(&tag)),
    }
    if expected.is_none() {
        tracing::info!("{url}: downloaded; {url}#sha256={sum} takes no other content");
    }
    let settings = file.with_extension("toml");
    tracing::info!("settings of the model, such as slo_ms, are read from {}", settings.display());
    ensure!(file.is_file(), "the download is gone");
    Ok(file)
}

fn is_sum(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns a short name of a folder for this text.
fn short(text: &str) -> String {
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
