//! A model of a hub of Hugging Face's kind: `hf://ORG/NAME[@REVISION][/FILE.onnx]`.
//!
//! The hub tells the commit of a revision, its files and their checksums. The ONNX file and what
//! texts need beside it are copied into a folder of that commit, laid out as exports are.
//! HF_ENDPOINT names another hub, HF_TOKEN a token for models that are not public.

use super::client;
use anyhow::{Context, bail, ensure};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde::Deserialize;
use std::fs;
use std::path::{Component, Path, PathBuf};

const ENDPOINT: &str = "https://huggingface.co";
/// Revision that is taken if none is named.
const REVISION: &str = "main";
/// Files beside the ONNX file that say how texts are read, and settings of the model.
const BESIDE: [&str; 8] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "model.toml",
    "labels.txt",
];
/// Files of the steps of `modules.json`, in folders of their own.
const OF_STEPS: [&str; 2] = ["config.json", "model.safetensors"];

/// A model of the hub.
#[derive(Debug, PartialEq, Eq)]
struct HubModel<'a> {
    org: &'a str,
    name: &'a str,
    revision: &'a str,
    file: Option<&'a str>,
}

/// The hub's description of a revision.
#[derive(Deserialize)]
struct HubListing {
    sha: String,
    siblings: Vec<HubFile>,
}

#[derive(Deserialize)]
struct HubFile {
    rfilename: String,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: String,
}

/// Returns the folder of the model's copy below `cache`.
pub(super) async fn copy(address: &str, cache: &Path) -> anyhow::Result<PathBuf> {
    let model = parse(address)?;
    let kept = cache.join("hub").join(model.org).join(model.name);
    let variant = model.file.unwrap_or("default").replace('/', "--");
    let folder_of = |commit: &str| kept.join(commit).join(&variant).join(model.name);
    let is_whole = |folder: &Path| folder.with_file_name("complete").is_file();
    if is_commit(model.revision) && is_whole(&folder_of(model.revision)) {
        return Ok(folder_of(model.revision));
    }
    let (endpoint, headers) = (endpoint(), headers()?);
    let reference = kept.join("refs").join(model.revision.replace('/', "--"));
    let listing = match list(&endpoint, &headers, &model).await {
        Ok(listing) => listing,
        Err(error) => {
            let known = fs::read_to_string(&reference).ok().map(|commit| folder_of(&commit));
            let Some(folder) = known.filter(|folder| is_whole(folder)) else { return Err(error) };
            tracing::warn!("hf://{address}: {error:#}; the copy of an earlier download is served");
            return Ok(folder);
        }
    };
    ensure!(is_commit(&listing.sha), "the hub names no commit, but {:?}", listing.sha);
    let folder = folder_of(&listing.sha);
    if !is_whole(&folder) {
        for (file, place) in chosen(&listing.siblings, &model)? {
            let (base, commit) = (format!("{endpoint}/{}/{}", model.org, model.name), &listing.sha);
            let url = format!("{base}/resolve/{commit}/{}", file.rfilename);
            let answer = client::get(&url, &headers).await?;
            ensure!(answer.status() == StatusCode::OK, client::refusal(&url, answer.status()));
            let sum = file.lfs.as_ref().map(|large| large.sha256.as_str());
            client::save(answer, &folder.join(place), sum).await?;
        }
        fs::write(folder.with_file_name("complete"), address)?;
    }
    fs::create_dir_all(kept.join("refs"))?;
    fs::write(&reference, &listing.sha)?;
    if !is_commit(model.revision) {
        let (HubModel { org, name, revision, .. }, commit) = (&model, &listing.sha);
        tracing::info!("{org}/{name}: {revision} is {commit}; hf://{org}/{name}@{commit} takes no other");
    }
    tracing::info!("settings of the model, such as slo_ms, are read from {}", folder.join("model.toml").display());
    Ok(folder)
}

fn parse(address: &str) -> anyhow::Result<HubModel<'_>> {
    let wrong = || "write hf://ORG/NAME, hf://ORG/NAME@REVISION or hf://ORG/NAME/FILE.onnx";
    let (org, rest) = address.trim_end_matches('/').split_once('/').with_context(wrong)?;
    let (name, file) = rest.split_once('/').map_or((rest, None), |(name, file)| (name, Some(file)));
    let (name, revision) = name.split_once('@').unwrap_or((name, REVISION));
    let is_name = |text: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !text.is_empty() && !text.starts_with('.') && text.chars().all(is_part)
    };
    let is_file = file.is_none_or(|file| file.ends_with(".onnx") && is_inside(file));
    ensure!([org, name, revision].into_iter().all(is_name) && is_file, wrong());
    Ok(HubModel { org, name, revision, file })
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns true if a path leads into its folder.
fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

fn endpoint() -> String {
    let other = std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
    other.unwrap_or_else(|| ENDPOINT.to_owned()).trim_end_matches('/').to_owned()
}

fn headers() -> anyhow::Result<HeaderMap> {
    match std::env::var("HF_TOKEN") {
        Ok(token) if !token.trim().is_empty() => client::bearer(&token),
        _ => Ok(HeaderMap::new()),
    }
}

async fn list(endpoint: &str, headers: &HeaderMap, model: &HubModel<'_>) -> anyhow::Result<HubListing> {
    let HubModel { org, name, revision, .. } = model;
    let url = format!("{endpoint}/api/models/{org}/{name}/revision/{revision}?blobs=true");
    let answer = client::get(&url, headers).await?;
    ensure!(answer.status() == StatusCode::OK, client::refusal(&url, answer.status()));
    let body = answer.into_body().collect().await?.to_bytes();
    serde_json::from_slice(&body).with_context(|| format!("{url} answers with no list of files"))
}

/// Returns the files to copy, each with its place in the model's folder.
fn chosen<'a>(files: &'a [HubFile], model: &HubModel<'_>) -> anyhow::Result<Vec<(&'a HubFile, String)>> {
    let named = |wanted: &str| files.iter().find(|file| file.rfilename == wanted);
    let all: Vec<&str> =
        files.iter().map(|file| file.rfilename.as_str()).filter(|name| name.ends_with(".onnx")).collect();
    let found = match (model.file, &all[..]) {
        (Some(file), _) => named(file),
        (None, [only]) => named(only),
        (None, _) => named("onnx/model.onnx").or_else(|| named("model.onnx")),
    };
    let Some(found) = found.filter(|file| is_inside(&file.rfilename)) else {
        let HubModel { org, name, .. } = model;
        match &all[..] {
            [] => bail!(
                "it holds no ONNX file; make one: optimum-cli export onnx -m {org}/{name} {name}, then ripieno serve {name} \
                 (docs/guide/exporting.md)"
            ),
            several => bail!("name one of its ONNX files, as hf://{org}/{name}/{}: {}", several[0], several.join(", ")),
        }
    };
    // Without an export's settings the folder of a version says that it is a model.
    let place = if named("config.json").is_some() { "onnx" } else { "1" };
    let (folder, own) = found.rfilename.rsplit_once('/').unwrap_or(("", &found.rfilename));
    let mut copied = vec![(found, format!("{place}/model.onnx"))];
    for file in files.iter().filter(|file| is_inside(&file.rfilename) && file.rfilename != found.rfilename) {
        let (beside, name) = file.rfilename.rsplit_once('/').unwrap_or(("", &file.rfilename));
        if beside == folder && name.starts_with(own) {
            // Weights of a large model, which the ONNX file names.
            copied.push((file, format!("{place}/{name}")));
        } else if beside.is_empty() && BESIDE.contains(&name) || is_step(beside) && OF_STEPS.contains(&name) {
            copied.push((file, file.rfilename.clone()));
        }
    }
    Ok(copied)
}

/// Returns true for folders of steps, such as `1_Pooling`.
fn is_step(folder: &str) -> bool {
    folder.split_once('_').is_some_and(|(number, _)| number.parse::<u8>().is_ok() && !folder.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_model_revision_and_file() {
        let model = |org, name, revision, file| HubModel { org, name, revision, file };
        assert_eq!(parse("a/b").unwrap(), model("a", "b", "main", None));
        assert_eq!(parse("a/b@v1.2/").unwrap(), model("a", "b", "v1.2", None));
        assert_eq!(parse("a/b@x/onnx/m_int8.onnx").unwrap(), model("a", "b", "x", Some("onnx/m_int8.onnx")));
        for wrong in ["", "a", "a/", "/b", "a/../b.onnx", "a/b/x.bin", "a/b/../x.onnx", "a/b@", "a?x/b", ".git/b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    fn files(names: &[&str]) -> Vec<HubFile> {
        names.iter().map(|name| HubFile { rfilename: (*name).to_owned(), lfs: None }).collect()
    }

    #[test]
    fn what_a_model_needs_is_chosen() {
        let places = |names: &[&str], address: &str| -> Result<Vec<String>, String> {
            let files = files(names);
            let chosen = chosen(&files, &parse(address).unwrap()).map_err(|error| error.to_string())?;
            Ok(chosen.into_iter().map(|(file, place)| format!("{} {place}", file.rfilename)).collect())
        };
        let encoder = [
            "onnx/model.onnx",
            "onnx/model_int8.onnx",
            "onnx/model.onnx_data",
            "config.json",
            "tokenizer.json",
            "1_Pooling/config.json",
            "README.md",
            "pytorch_model.bin",
            "../config.json",
            "0_x/y/config.json",
        ];
        let common =
            ["config.json config.json", "tokenizer.json tokenizer.json", "1_Pooling/config.json 1_Pooling/config.json"];
        let whole = ["onnx/model.onnx onnx/model.onnx", "onnx/model.onnx_data onnx/model.onnx_data"];
        assert_eq!(places(&encoder, "a/b").unwrap(), [&whole[..], &common].concat());
        let small = ["onnx/model_int8.onnx onnx/model.onnx"];
        assert_eq!(places(&encoder, "a/b/onnx/model_int8.onnx").unwrap(), [&small[..], &common].concat());
        assert_eq!(places(&["deep/net.onnx", "x.txt"], "a/b").unwrap(), ["deep/net.onnx 1/model.onnx"]);
        assert!(places(&["p.bin"], "a/b").unwrap_err().contains("optimum-cli export onnx -m a/b b"));
        assert!(places(&["x.onnx", "y.onnx"], "a/b").unwrap_err().contains("hf://a/b/x.onnx: x.onnx, y.onnx"));
        assert!(places(&["x.onnx"], "a/b/y.onnx").unwrap_err().contains("x.onnx"));
    }
}
