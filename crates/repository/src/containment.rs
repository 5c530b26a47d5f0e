//! Containment of files in the repository, and removal of server paths from errors.
//!
//! The repository's owner may let other users add models. All files of a model must therefore lie
//! in the repository: a symbolic link or file name that leads out would let the server read any
//! file that its user may read. Errors go to clients, which must not learn the server's folders, so
//! they name files relative to the repository.
//!
//! This is no defence against a user who changes files during loading: a link can change between
//! the check and the use.

use super::cache::user_cache_folder;
use super::model_files::ModelFiles;
use ripieno_onnx::OnnxFile;
use std::path::{Component, Path, PathBuf};

/// Refuses a model file that lies outside of its repository. A file that does not exist passes.
pub(super) fn check_contained(found: &ModelFiles, file: &Path) -> Result<(), String> {
    let Ok(real) = file.canonicalize() else { return Ok(()) };
    let named = || found.named.as_ref().and_then(|named| named.canonicalize().ok());
    if real.starts_with(&found.root) || named().as_ref() == Some(&real) {
        return Ok(());
    }
    Err(format!(
        "{}: is or lies behind a link that leads out of the repository; put the file itself there, \
         or start the server with --allow-symlinks",
        file.display()
    ))
}

/// Refuses a model whose external weights lie outside of its folder or repository.
pub(super) fn check_weights(found: &ModelFiles, model: &Path, allow_symlinks: bool) -> Result<(), String> {
    let file = OnnxFile::read(model).map_err(|error| error.to_string())?;
    for name in file.external_files() {
        let inner = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !Path::new(&name).components().all(inner) {
            let shown = model.display();
            return Err(format!("{shown}: has weights in {name:?}; save the model with its weights beside it"));
        }
        if !allow_symlinks {
            check_contained(found, &model.parent().unwrap_or(Path::new("")).join(name))?;
        }
    }
    Ok(())
}

/// Returns the error without the folders that contain the repository and the cache.
pub(super) fn error_for_clients(repository: &Path, text: &str) -> String {
    let folder = if repository.is_file() { repository.parent().unwrap_or(repository) } else { repository };
    let real = folder.canonicalize().ok();
    let inside = [Some(folder.to_owned()), real].into_iter().flatten().map(|folder| (folder, "the repository"));
    let cache = user_cache_folder().map(|folder| (folder, "the cache"));
    inside.chain(cache).fold(text.to_owned(), |text, (folder, name)| strip_folder(&text, &folder, name))
}

/// Removes a folder in front of file names, and replaces the folder itself with a name.
fn strip_folder(text: &str, folder: &Path, name: &str) -> String {
    let folder = folder.display().to_string();
    let folder = folder.trim_end_matches('/');
    if folder.is_empty() || folder == "." {
        return text.to_owned();
    }
    let of_name = |next: char| next.is_alphanumeric() || "/._-".contains(next);
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(folder) {
        let (before, after) = (&rest[..at], &rest[at + folder.len()..]);
        let begins = !before.ends_with(of_name) && (at > 0 || !shown.ends_with(of_name));
        shown.push_str(before);
        rest = match (begins, after.strip_prefix('/')) {
            (true, Some(file)) if file.starts_with(of_name) => file,
            (true, Some(end)) => {
                shown.push_str(name);
                end
            }
            (true, None) if !after.starts_with(of_name) || after.starts_with(". ") || after == "." => {
                shown.push_str(name);
                after
            }
            _ => {
                shown.push_str(folder);
                after
            }
        };
    }
    shown + rest
}

/// Returns the canonical folder that must contain a repository's files.
pub(super) fn root(folder: &Path) -> PathBuf {
    let folder = if folder == Path::new("") { Path::new(".") } else { folder };
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_files_from_the_repository_on() {
        let cases = [
            ("/srv/models/a/1/model.onnx: no", "a/1/model.onnx: no"),
            ("cannot read /srv/models/a: no; \"/srv/models/b\"", "cannot read a: no; \"b\""),
            ("/srv/models: cannot be read", "the repository: cannot be read"),
            ("/srv/models/ holds a", "the repository holds a"),
            ("/srv/models holds /srv/models/a", "the repository holds a"),
            ("see /srv/models.", "see the repository."),
            ("/srv/models2/a and /x/srv/models/a", "/srv/models2/a and /x/srv/models/a"),
            ("operator /encoder/Add", "operator /encoder/Add"),
        ];
        for (text, expected) in cases {
            assert_eq!(strip_folder(text, Path::new("/srv/models"), "the repository"), expected);
            assert_eq!(strip_folder(text, Path::new("/srv/models/"), "the repository"), expected);
        }
        assert_eq!(strip_folder("models/repository/a: no", Path::new("models/repository"), "x"), "a: no");
        assert_eq!(strip_folder("./a: no. 1.5/2", Path::new("."), "x"), "./a: no. 1.5/2");
    }
}
