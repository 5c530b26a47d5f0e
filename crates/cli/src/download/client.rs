//! Files over HTTP: redirects are followed, the bytes are hashed on the way to the disk.

use anyhow::{Context, bail, ensure};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use hyper::{Response, Uri};
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_bench::target::call;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Largest number of redirects of one call.
const MAX_REDIRECTS: usize = 5;
/// Time without a byte after which a server is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// Asks for a file. A redirect to another server gets no credentials, and none leaves TLS.
pub(super) async fn get(url: &str, headers: &HeaderMap) -> anyhow::Result<Response<Incoming>> {
    let first: Uri = url.parse().with_context(|| format!("{url} is no address"))?;
    let (mut at, mut headers) = (first.clone(), headers.clone());
    for _ in 0..=MAX_REDIRECTS {
        let asked = tokio::time::timeout(SILENCE, call::get(&at, &headers));
        let answer = asked.await.with_context(|| format!("{at} is silent"))??;
        let target = answer.headers().get(LOCATION).filter(|_| answer.status().is_redirection());
        let Some(target) = target else { return Ok(answer) };
        let target = joined(&at, target.to_str().context("a redirect leads to no address")?)?;
        ensure!(at.scheme_str() != Some("https") || target.scheme_str() == Some("https"), "{at} leads out of TLS");
        if target.authority() != first.authority() {
            headers.remove(AUTHORIZATION);
        }
        at = target;
    }
    bail!("{url} leads to more than {MAX_REDIRECTS} redirects")
}

/// Returns the address that a redirect names.
fn joined(from: &Uri, to: &str) -> anyhow::Result<Uri> {
    let whole = match to.starts_with('/') {
        true => format!("{}://{}{to}", from.scheme_str().unwrap_or("http"), from.authority().context("no host")?),
        false => to.to_owned(),
    };
    let target: Uri = whole.parse().with_context(|| format!("a redirect leads to {to:?}, which is no address"))?;
    ensure!(target.authority().is_some(), "a redirect leads to {to:?}, which names no server");
    Ok(target)
}

/// Returns the error for a status, with what to do about it.
pub(super) fn refusal(url: &str, status: hyper::StatusCode) -> anyhow::Error {
    let fix = match status.as_u16() {
        401 | 403 => "; it is closed, or does not exist: set HF_TOKEN to a token that may read it",
        404 => "; look for a mistake in the address",
        _ => "",
    };
    anyhow::anyhow!("{url} answers {status}{fix}")
}

/// Writes an answer into a file, which appears once it is whole, and returns its SHA-256. A known
/// checksum must be the same.
pub(super) async fn save(answer: Response<Incoming>, to: &Path, expected: Option<&str>) -> anyhow::Result<String> {
    let folder = to.parent().context("the file has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let draft = folder.join(format!(".{name}.{}", std::process::id()));
    let written = write(answer, &draft, &name).await.and_then(|sum| match expected {
        Some(expected) if !expected.eq_ignore_ascii_case(&sum) => {
            bail!("{name}: its SHA-256 is {sum}, expected {expected}: the file was changed or damaged on the way")
        }
        _ => Ok(sum),
    });
    let kept = written.and_then(|sum| {
        fs::rename(&draft, to).with_context(|| format!("cannot write {}", to.display()))?;
        Ok(sum)
    });
    if kept.is_err() {
        // There is no draft if it could not be made.
        drop(fs::remove_file(&draft));
    }
    kept
}

async fn write(answer: Response<Incoming>, draft: &Path, name: &str) -> anyhow::Result<String> {
    let failed = || format!("cannot write {}", draft.display());
    let mut file = BufWriter::new(File::create(draft).with_context(failed)?);
    let declared = hyper::body::Body::size_hint(answer.body()).exact();
    let bar = ProgressBar::new(declared.unwrap_or(0));
    bar.set_style(ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes}")?);
    bar.set_message(name.to_owned());
    let (mut body, mut hash, mut received) = (answer.into_body(), Sha256::new(), 0);
    while let Some(frame) = tokio::time::timeout(SILENCE, body.frame()).await.context("the server is silent")? {
        if let Ok(data) = frame.context("the server broke off")?.into_data() {
            hash.update(&data);
            file.write_all(&data).with_context(failed)?;
            received += data.len() as u64;
            bar.set_position(received);
        }
    }
    bar.finish_and_clear();
    ensure!(
        declared.is_none_or(|declared| declared == received),
        "{name}: the server broke off after {received} bytes"
    );
    file.flush().with_context(failed)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the headers that carry a bearer token.
pub(super) fn bearer(token: &str) -> anyhow::Result<HeaderMap> {
    let value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).ok();
    let mut value = value.context("HF_TOKEN: a token has no line breaks or control characters")?;
    value.set_sensitive(true);
    Ok(HeaderMap::from_iter([(AUTHORIZATION, value)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_names_a_server_or_stays_on_its_own() {
        let from: Uri = "https://hub.example/a/b".parse().unwrap();
        let to = |target: &str| joined(&from, target).map(|uri| uri.to_string()).unwrap_or_default();
        assert_eq!(to("/c?d=1"), "https://hub.example/c?d=1");
        assert_eq!(to("https://files.example/x"), "https://files.example/x");
        assert_eq!((to("x/y"), to("")), (String::new(), String::new()));
    }
}
