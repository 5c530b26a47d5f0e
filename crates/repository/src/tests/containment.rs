//! Containment of files in the repository, and server paths in errors.

use super::*;
use crate::load::{Loader, Profiling};
use crate::scan::scan;
use std::os::unix::fs::symlink;

/// Loads the only model of a repository.
fn load(path: &Path, target: LoadTarget) -> Result<(), String> {
    let found = scan(path)?.remove(0).found?;
    Loader::new(target, silent()).prepare(&found, Profiling::Never).map(|_| ())
}

/// Creates a folder with a repository, and an unrelated folder beside it.
fn outside() -> TempRepository {
    let folder = TempRepository::new();
    folder.write("outside/model.onnx", onnx("mlp.onnx"));
    folder.write("outside/model.toml", "secret = \"hunter2\"");
    folder.write("outside/1/model.onnx", onnx("mlp.onnx"));
    std::fs::create_dir_all(folder.path().join("repository/m/1")).unwrap();
    folder
}

#[test]
fn links_out_of_the_repository_are_refused_unless_allowed() {
    let allowed = || LoadTarget { allow_symlinks: true, ..cpu() };
    let cases = [
        ("outside/model.onnx", "repository/m/1/model.onnx"),
        ("outside", "repository/m"),
        ("outside/1", "repository/m/1"),
        ("outside/model.onnx", "repository/m.onnx"),
    ];
    for (to, link) in cases {
        let folder = outside();
        if link != "repository/m/1/model.onnx" {
            std::fs::remove_dir_all(folder.path().join("repository/m")).unwrap();
            std::fs::create_dir_all(folder.path().join(link).parent().unwrap()).unwrap();
        }
        if to == "outside" {
            folder.write("outside/model.toml", "");
        }
        symlink(folder.path().join(to), folder.path().join(link)).unwrap();
        let repository = folder.path().join("repository");
        let error = load(&repository, cpu()).unwrap_err();
        assert!(error.contains("leads out of the repository") && error.contains("--allow-symlinks"), "{link}: {error}");
        assert!(!error.contains("outside"), "what lies behind is not told: {error}");
        load(&repository, allowed()).unwrap_or_else(|error| panic!("{link}: {error}"));
    }
}

#[test]
fn a_configuration_behind_a_link_is_not_quoted() {
    let folder = outside();
    folder.write("repository/m/1/model.onnx", onnx("mlp.onnx"));
    symlink(folder.path().join("outside/model.toml"), folder.path().join("repository/m/model.toml")).unwrap();
    let error = load(&folder.path().join("repository"), cpu()).unwrap_err();
    assert!(error.contains("leads out of the repository") && !error.contains("secret"), "{error}");
}

#[test]
fn links_within_the_repository_and_a_named_file_are_fine() {
    let folder = TempRepository::new();
    folder.write("blobs/abc", onnx("mlp.onnx"));
    std::fs::create_dir_all(folder.path().join("m/1")).unwrap();
    symlink("../../blobs/abc", folder.path().join("m/1/model.onnx")).unwrap();
    std::fs::rename(folder.path().join("blobs"), folder.path().join(".blobs")).unwrap();
    std::fs::remove_file(folder.path().join("m/1/model.onnx")).unwrap();
    symlink("../../.blobs/abc", folder.path().join("m/1/model.onnx")).unwrap();
    load(folder.path(), cpu()).unwrap();
    // The repository itself may be a link, as may a file named on the command line.
    let other = outside();
    symlink(folder.path(), other.path().join("link")).unwrap();
    load(&other.path().join("link"), cpu()).unwrap();
    symlink(other.path().join("outside/model.onnx"), other.path().join("repository/named.onnx")).unwrap();
    load(&other.path().join("repository/named.onnx"), cpu()).unwrap();
}

/// Returns the ONNX model `mlp` with weights in `location`.
fn with_weights_in(location: &str) -> Vec<u8> {
    // A second graph message is merged into the first: one more initializer with external data.
    let entry = [&[0x0a, 8][..], b"location", &[0x12, location.len() as u8], location.as_bytes()].concat();
    let tensor = [&[0x6a, entry.len() as u8][..], &entry].concat();
    let graph = [&[0x2a, tensor.len() as u8][..], &tensor].concat();
    [&onnx("mlp.onnx"), &[0x3a, graph.len() as u8][..], &graph].concat()
}

#[test]
fn weights_lie_beside_their_model_and_nowhere_else() {
    let folder = outside();
    for location in ["../../../outside/model.onnx", "/etc/hostname", "a/../../b"] {
        folder.write("repository/m/1/model.onnx", with_weights_in(location));
        for allow_symlinks in [false, true] {
            let error = load(&folder.path().join("repository"), LoadTarget { allow_symlinks, ..cpu() }).unwrap_err();
            assert!(error.contains(&format!("has weights in {location:?}")), "{error}");
        }
    }
    folder.write("repository/m/1/model.onnx", with_weights_in("w.bin"));
    symlink("/etc/hostname", folder.path().join("repository/m/1/w.bin")).unwrap();
    let error = load(&folder.path().join("repository"), cpu()).unwrap_err();
    assert!(error.contains("w.bin: is or lies behind a link that leads out"), "{error}");
}

#[test]
fn a_length_profile_is_read_from_the_repository_only() {
    let folder = TempRepository::new();
    folder.write("secret.csv", "1,1\nhunter2");
    let toml = "walk = \"encode-decode\"\nmax_length = 8\nlength_profile = \"../../secret.csv\"\n";
    folder.write("repository/m/model.toml", toml);
    folder.write("repository/m/1/model.onnx", onnx("mlp.onnx"));
    let error = load(&folder.path().join("repository"), cpu()).unwrap_err();
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn clients_do_not_hear_where_the_repository_lies() {
    let fixture = Fixture::new();
    fixture.folder.write("bad/1/model.onnx", "not onnx");
    fixture.folder.write("flat/model.onnx", "");
    fixture.folder.write("key/1/model.onnx", onnx("mlp.onnx"));
    fixture.folder.write("key/model.toml", "slo = 5");
    let repository = fixture.repository(cpu());
    repository.load_all().unwrap();
    fixture.folder.write("later/model.onnx", "");
    let mut heard: Vec<String> = fixture.index(&repository).into_iter().map(|(_, _, reason)| reason).collect();
    assert_eq!(heard.len(), 4, "{heard:?}");
    for name in ["bad", "flat", "key", "missing"] {
        heard.push(repository.load(name, None).unwrap_err());
    }
    heard.push(fixture.registry.get("bad", "").unwrap_err().to_string());
    std::fs::rename(fixture.folder.path(), fixture.folder.path().with_extension("gone")).unwrap();
    heard.push(repository.load("bad", None).unwrap_err());
    std::fs::rename(fixture.folder.path().with_extension("gone"), fixture.folder.path()).unwrap();
    let hidden = fixture.folder.path().parent().unwrap().display().to_string();
    for text in &heard {
        assert!(!text.is_empty() && !text.contains(&hidden), "{text}");
    }
    assert!(heard.iter().any(|text| text.starts_with("bad/1/model.onnx: ")), "{heard:?}");
    assert!(heard.last().unwrap().starts_with("the repository: cannot be read"), "{heard:?}");
}
