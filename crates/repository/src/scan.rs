//! Finds the models at a path, their versions and their files. Reads folders, never a model.
//!
//! Three kinds of paths are supported: a repository (a folder of `NAME/VERSION/model.onnx`,
//! `NAME/VERSION/model.py`, `NAME/model.toml`, `NAME/config.pbtxt` and `NAME.onnx`), the folder of
//! one model, and one ONNX file. A model's folder may also be an export by Hugging Face's tools:
//! `config.json` beside `model.onnx` or `onnx/model.onnx`. The highest version of a model is
//! served, unless the `version_policy` of its `config.pbtxt` selects others. Each served version is
//! a separate model to the scheduler, with its own profile and queue. An error of one entry does
//! not affect the others.

use super::containment;
use super::foreign;
use super::model_files::{ModelFiles, file_in};
use super::triton::{self, FileChoice, TRITON_FILE};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

pub use super::model_files::{CONFIG_FILE, MODEL_FILE, PYTHON_FILE};

/// Configuration of an export by Hugging Face's tools.
const EXPORT_FILE: &str = "config.json";

/// Folder that file systems create at the root of a volume, such as one mounted for models.
const LOST_AND_FOUND: &str = "lost+found";

/// One entry of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCandidate {
    /// Model name.
    pub name: String,
    /// Files of the model, or the error: file, cause and fix.
    pub found: Result<ModelFiles, String>,
}

/// Returns every model at `path`, by name. Fails if the path itself cannot be read.
pub fn scan(path: &Path) -> Result<Vec<ModelCandidate>, String> {
    let shown = path.display();
    let kind = fs::metadata(path)
        .map_err(|error| format!("{shown}: cannot be read: {error}; give a folder of models or an ONNX file"))?;
    if kind.is_file() {
        return single_file(path).map(|candidate| vec![candidate]);
    }
    if let Some(candidate) = version_of_model(path) {
        return Ok(vec![candidate]);
    }
    if is_model_folder(path) {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        return Ok(vec![model_folder(&path, &path)]);
    }
    let mut candidates = BTreeMap::new();
    let root = containment::root(path);
    for entry in list(path)? {
        if let Some(candidate) = entry_of_repository(&entry, &root) {
            insert(&mut candidates, candidate, &entry);
        }
    }
    Ok(candidates.into_values().map(|(candidate, _)| candidate).collect())
}

/// Returns the model whose version folder `path` is: the settings beside the folder are its own.
fn version_of_model(path: &Path) -> Option<ModelCandidate> {
    let path = path.canonicalize().ok()?;
    let (version, folder) = (version_number(&path)?, path.parent()?);
    let has_settings = folder.join(CONFIG_FILE).is_file() || folder.join(TRITON_FILE).is_file();
    if !file_in(&path).is_file() && !has_settings {
        return None;
    }
    let mut candidate = model_folder(folder, folder);
    if let Ok(found) = &mut candidate.found {
        found.served = vec![version];
        let chosen = found.each_version().next()?;
        *found = chosen;
    }
    Some(candidate)
}

fn single_file(path: &Path) -> Result<ModelCandidate, String> {
    if !is_onnx(path) {
        return Err(foreign::not_onnx(path));
    }
    let root = containment::root(path.parent().unwrap_or(Path::new("")));
    let mut candidate = onnx_file(path, &root);
    if let Ok(found) = &mut candidate.found {
        found.named = Some(path.to_owned());
    }
    Ok(candidate)
}

/// Inserts a candidate. Two entries with the same name become an error, since choosing one could
/// serve the wrong one.
fn insert(candidates: &mut BTreeMap<String, (ModelCandidate, PathBuf)>, candidate: ModelCandidate, entry: &Path) {
    let name = candidate.name.clone();
    if let Some((other, first)) = candidates.get_mut(&name) {
        let (first, second) = (first.display(), entry.display());
        let error = format!("{first} and {second} both are the model \"{name}\"; rename or remove one of them");
        other.found = Err(error);
        return;
    }
    candidates.insert(name, (candidate, entry.to_owned()));
}

/// Returns the model of an entry; `None` for other files, such as a README or a hidden folder.
fn entry_of_repository(entry: &Path, root: &Path) -> Option<ModelCandidate> {
    if is_hidden(entry) || entry.ends_with(LOST_AND_FOUND) {
        return None;
    }
    if entry.is_dir() {
        return Some(model_folder(entry, root));
    }
    is_onnx(entry).then(|| onnx_file(entry, root))
}

fn onnx_file(path: &Path, root: &Path) -> ModelCandidate {
    let stem = path.file_stem().unwrap_or_default();
    let name = match name_of(stem, path) {
        Ok(name) => name.to_owned(),
        Err(error) => return ModelCandidate { found: Err(error), name: shown(stem) },
    };
    let config = path.with_extension("toml");
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new(".")).to_owned();
    let found = ModelFiles {
        name: name.clone(),
        version: "1".to_owned(),
        config: config.is_file().then_some(config),
        triton: None,
        versions: vec![1],
        served: vec![1],
        is_ensemble: false,
        version_folder: Some(folder.clone()),
        folder,
        model: path.to_owned(),
        root: root.to_owned(),
        named: None,
    };
    ModelCandidate { name, found: Ok(found) }
}

fn model_folder(folder: &Path, root: &Path) -> ModelCandidate {
    let name = shown(folder.file_name().unwrap_or_default());
    ModelCandidate { found: read_model_folder(folder, root), name }
}

fn read_model_folder(folder: &Path, root: &Path) -> Result<ModelFiles, String> {
    let name = name_of(folder.file_name().unwrap_or_default(), folder)?;
    let mut versions: Vec<u64> = list(folder)?.iter().filter_map(|entry| version_number(entry)).collect();
    versions.sort_unstable();
    let file = |name: &str| Some(folder.join(name)).filter(|file| file.is_file());
    let (config, triton) = (file(CONFIG_FILE), file(TRITON_FILE));
    if versions.is_empty()
        && triton.is_none()
        && let Some(model) = exported(folder)
    {
        let version_folder = model.parent().map(Path::to_owned);
        return Ok(ModelFiles {
            name: name.to_owned(),
            folder: folder.to_owned(),
            config,
            triton: None,
            model,
            version_folder,
            versions: vec![1],
            served: vec![1],
            is_ensemble: false,
            version: "1".to_owned(),
            root: root.to_owned(),
            named: None,
        });
    }
    if versions.is_empty() && config.is_none() && triton.is_none() {
        return Err(nothing_in(folder));
    }
    let newest = versions.last().copied().unwrap_or(1);
    let version = newest.to_string();
    let version_folder = folder.join(&version);
    let mut found = ModelFiles {
        name: name.to_owned(),
        folder: folder.to_owned(),
        config,
        triton,
        model: file_in(&version_folder),
        version_folder: versions.last().map(|_| version_folder),
        versions,
        served: vec![newest],
        is_ensemble: false,
        version,
        root: root.to_owned(),
        named: None,
    };
    apply_triton_choice(&mut found);
    Ok(found)
}

/// Applies the versions and the file name that `config.pbtxt` selects. A `config.pbtxt` outside of
/// the repository is not read here.
fn apply_triton_choice(found: &mut ModelFiles) {
    let Some(file) = found.triton.clone().filter(|file| containment::check_contained(found, file).is_ok()) else {
        return;
    };
    let FileChoice { versions, model, is_ensemble } = triton::choose_files(&file, found);
    found.is_ensemble = is_ensemble;
    if let Some(version) = versions.last() {
        found.version = version.to_string();
        found.version_folder = Some(found.folder.join(&found.version));
        found.served = versions;
    }
    let folder = found.folder.join(&found.version);
    found.model = model.map_or_else(|| file_in(&folder), |model| folder.join(model));
}

/// Returns the same model with another configuration, which replaces all files beside it.
pub(super) fn with_triton(found: ModelFiles, config: PathBuf) -> Result<ModelFiles, String> {
    let newest = found.versions.last().copied().unwrap_or(1);
    let highest = newest.to_string();
    let version_folder = found.folder.join(&highest);
    if found.version_folder.as_ref().is_none_or(|folder| folder.parent() != Some(&found.folder)) {
        return Err(format!(
            "{}: is no model in a folder of its own; bring it along as file:1/{MODEL_FILE}",
            found.model.display()
        ));
    }
    let mut found = ModelFiles {
        version: highest,
        served: vec![newest],
        is_ensemble: false,
        model: file_in(&version_folder),
        version_folder: Some(version_folder),
        config: None,
        named: Some(config.clone()),
        triton: Some(config),
        ..found
    };
    apply_triton_choice(&mut found);
    Ok(found)
}

fn nothing_in(folder: &Path) -> String {
    let shown = folder.display();
    if let Some(name) = file_in(folder).file_name().filter(|name| folder.join(name).is_file()) {
        let name = name.display();
        return format!("{shown}/{name}: must lie in a version folder; move it to {shown}/1/{name}");
    }
    if holds_models(folder) {
        return format!("{shown}: is a repository of models itself, not a model of this one; serve {shown}");
    }
    let instead = foreign::found_instead(folder).map_or_else(String::new, |found| format!(" ({found})"));
    format!(
        "{shown}: holds neither a version folder nor a {CONFIG_FILE} or {TRITON_FILE}{instead}; the file of a model belongs at {shown}/1/{MODEL_FILE}, a folder of anything else out of the repository"
    )
}

/// Returns the ONNX file of an export by Hugging Face's tools, if the folder is one.
fn exported(folder: &Path) -> Option<PathBuf> {
    let files = [folder.join(MODEL_FILE), folder.join("onnx").join(MODEL_FILE)];
    folder.join(EXPORT_FILE).is_file().then_some(files)?.into_iter().find(|file| file.is_file())
}

/// Returns true if a folder in this one looks like a model.
fn holds_models(folder: &Path) -> bool {
    let is_model = |entry: &Path| entry.join(CONFIG_FILE).is_file() || entry.join("1").is_dir();
    list(folder).is_ok_and(|entries| entries.iter().any(|entry| is_model(entry)))
}

/// Returns the number of a version folder: digits without a leading zero.
fn version_number(entry: &Path) -> Option<u64> {
    let name = entry.file_name()?.to_str()?;
    let number = name.parse().ok().filter(|number: &u64| *number > 0 && number.to_string() == name);
    number.filter(|_| entry.is_dir())
}

/// Returns true if `path` is the folder of one model: it has a configuration, or a version with a
/// model.
fn is_model_folder(path: &Path) -> bool {
    let holds_model = |entry: &PathBuf| version_number(entry).is_some() && file_in(entry).is_file();
    path.join(CONFIG_FILE).is_file()
        || path.join(TRITON_FILE).is_file()
        || exported(path).is_some()
        || list(path).is_ok_and(|entries| entries.iter().any(holds_model))
}

/// Returns the entries of a folder, sorted by name.
fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error| format!("{}: cannot be read: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(unreadable)?;
    let mut paths =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    paths.sort();
    Ok(paths)
}

fn is_onnx(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Returns the model's name if clients can request it and it cannot forge log lines.
fn name_of<'a>(name: &'a OsStr, path: &Path) -> Result<&'a str, String> {
    let refuse = |what: &str| format!("{}: the name {what}; rename it", shown(path.as_os_str()));
    let name = name.to_str().ok_or_else(|| refuse("is not UTF-8, so no client could ask for it"))?;
    if name.contains(char::is_control) { Err(refuse("has control characters")) } else { Ok(name) }
}

/// Returns a name with control characters escaped.
fn shown(name: &OsStr) -> String {
    let escape = |next: char| if next.is_control() { next.escape_default().to_string() } else { next.to_string() };
    name.to_string_lossy().chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TempRepository;

    fn names(candidates: &[ModelCandidate]) -> Vec<&str> {
        candidates.iter().map(|candidate| candidate.name.as_str()).collect()
    }

    fn found(path: &Path, name: &str) -> Result<ModelFiles, String> {
        scan(path).unwrap().into_iter().find(|candidate| candidate.name == name).expect(name).found
    }

    #[test]
    fn a_version_folder_is_its_model_with_its_settings() {
        let folder = TempRepository::new();
        folder.write("digits/model.toml", "slo_ms = 20");
        folder.write("digits/1/model.onnx", "");
        folder.write("digits/2/model.onnx", "");
        let found = scan(&folder.path().join("digits/1")).unwrap().remove(0).found.unwrap();
        assert_eq!((found.name.as_str(), found.version.as_str(), &found.served[..]), ("digits", "1", &[1][..]));
        assert!(found.model.ends_with("digits/1/model.onnx") && found.settings().ends_with("digits/model.toml"));
        assert!(found.config.is_some());
        folder.write("alone.onnx", "");
        let alone = scan(&folder.path().join("alone.onnx")).unwrap().remove(0).found.unwrap();
        assert_eq!(alone.settings(), folder.path().join("alone.toml"));
        // A name without a folder, as from the working directory.
        let named = onnx_file(Path::new("alone.onnx"), Path::new("")).found.unwrap();
        assert_eq!(named.settings(), Path::new("alone.toml"));
    }

    #[test]
    fn the_highest_number_is_the_version() {
        let folder = TempRepository::new();
        for version in ["2", "10", "9", "011", "0", "draft"] {
            folder.write(&format!("digits/{version}/model.onnx"), "");
        }
        folder.write("digits/model.toml", "");
        let digits = found(folder.path(), "digits").unwrap();
        assert_eq!(digits.version, "10");
        assert_eq!(digits.model, folder.path().join("digits/10/model.onnx"));
        assert_eq!(digits.config, Some(folder.path().join("digits/model.toml")));
    }

    #[test]
    fn hidden_folders_and_other_files_are_no_models() {
        let folder = TempRepository::new();
        folder.write(".git/config", "");
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        folder.write("README.md", "");
        folder.write("a.onnx", "");
        folder.write("b/1/model.onnx", "");
        assert_eq!(names(&scan(folder.path()).unwrap()), ["a", "b"]);
        assert_eq!(found(folder.path(), "a").unwrap().version, "1");
    }

    #[test]
    fn a_folder_that_holds_no_model_is_one_error_with_the_fix() {
        let folder = TempRepository::new();
        folder.write("good/1/model.onnx", "");
        folder.write("flat/model.onnx", "");
        fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(found(folder.path(), "good").is_ok());
        assert!(found(folder.path(), "empty").unwrap_err().contains("empty: holds neither a version folder"));
        assert!(found(folder.path(), "flat").unwrap_err().contains("flat/model.onnx: must lie in a version folder"));
    }

    #[test]
    fn two_entries_of_one_name_are_one_error() {
        let folder = TempRepository::new();
        folder.write("a/1/model.onnx", "");
        folder.write("a.onnx", "");
        let candidates = scan(folder.path()).unwrap();
        assert_eq!(names(&candidates), ["a"]);
        assert!(candidates[0].found.as_ref().unwrap_err().contains("both are the model \"a\"; rename or remove"));
    }

    #[test]
    fn one_file_and_one_model_folder_serve_too() {
        let folder = TempRepository::new();
        let file = folder.write("repository/resnet.onnx", "");
        let config = folder.write("repository/resnet.toml", "");
        let single = &scan(&file).unwrap()[0];
        assert_eq!(single.found.as_ref().unwrap().config, Some(config));
        folder.write("repository/bert/3/model.onnx", "");
        let bert = &scan(&folder.path().join("repository/bert")).unwrap()[0];
        assert_eq!((bert.name.as_str(), bert.found.as_ref().unwrap().version.as_str()), ("bert", "3"));
        folder.write("repository/emulated/model.toml", "");
        let emulated = found(&folder.path().join("repository"), "emulated").unwrap();
        assert_eq!((emulated.version.as_str(), emulated.version_folder), ("1", None));
    }

    #[test]
    fn a_path_that_holds_nothing_readable_is_an_error() {
        let folder = TempRepository::new();
        assert!(scan(&folder.path().join("gone")).unwrap_err().contains("gone: cannot be read: "));
        let text = folder.write("notes.txt", "");
        assert!(scan(&text).unwrap_err().contains("notes.txt: not an ONNX file"));
        assert_eq!(scan(&folder.path().join(".")).unwrap(), []);
    }

    #[test]
    fn a_name_that_could_forge_a_line_of_the_log_is_refused() {
        let folder = TempRepository::new();
        folder.write("a\nERROR b/1/model.onnx", "");
        folder.write("c\x1b[31m.onnx", "");
        let candidates = scan(folder.path()).unwrap();
        assert_eq!(names(&candidates), ["a\\nERROR b", "c\\u{1b}[31m"]);
        for candidate in candidates {
            let error = candidate.found.unwrap_err();
            assert!(error.contains("has control characters") && !error.contains(char::is_control), "{error:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_name_that_is_not_utf8_is_an_error_of_its_own() {
        use std::os::unix::ffi::OsStrExt;
        let folder = TempRepository::new();
        folder.write("good/1/model.onnx", "");
        fs::create_dir(folder.path().join(std::ffi::OsStr::from_bytes(b"bad\xff"))).unwrap();
        let candidates = scan(folder.path()).unwrap();
        assert_eq!(candidates.iter().filter(|candidate| candidate.found.is_err()).count(), 1);
        let bad = candidates.iter().find(|candidate| candidate.found.is_err()).unwrap();
        assert!(bad.found.as_ref().unwrap_err().contains("is not UTF-8"));
    }
}
