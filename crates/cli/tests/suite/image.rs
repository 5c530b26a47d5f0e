//! The image of `deploy/Containerfile`, without a container engine: its last stage is assembled
//! into a plain folder, which becomes the root of a server that runs as the image's user, without
//! rights, on a read-only file system.
//!
//! Skipped, with a message, where this process is not root or may not mount; the layout is checked
//! all the same.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ripieno");
/// The libraries of the base image, gcr.io/distroless/cc-debian12.
const BASE_LIBRARIES: [&str; 8] = [
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux",
];

/// The last stage of the Containerfile: each line's first word and the rest.
fn stage() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("deploy/Containerfile")).unwrap();
    let last = text.rsplit("\nFROM ").next().unwrap();
    let lines = last.lines().skip(1).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(word, rest)| (word.to_owned(), rest.to_owned())).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn value_of<'a>(stage: &'a [(String, String)], word: &str) -> &'a str {
    let found = stage.iter().find(|(first, _)| first == word);
    &found.unwrap_or_else(|| panic!("the image has no {word}")).1
}

/// Returns the words of a JSON list, which may stand behind options.
fn words(text: &str) -> Vec<String> {
    serde_json::from_str(&text[text.find('[').unwrap()..]).unwrap()
}

/// Returns the paths of the program's shared libraries.
fn libraries() -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(PROGRAM).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/') && *word != PROGRAM);
    paths.map(PathBuf::from).collect()
}

fn copy(from: &Path, folder: &Path, to: &Path) {
    let to = folder.join(to.strip_prefix("/").unwrap());
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// Assembles the image's root, with a model in /models.
fn assemble(stage: &[(String, String)], folder: &Path) {
    // ONNX Runtime is fetched when the image is built; without it the built-in engine serves.
    let copied = value_of(stage, "COPY").split_whitespace().collect::<Vec<_>>();
    assert_eq!(copied[..2], ["--from=build", "/source/target/dist/ripieno"], "the program, stripped");
    copy(Path::new(PROGRAM), folder, Path::new(copied[2]));
    for library in libraries() {
        let name = library.file_name().unwrap().to_string_lossy().into_owned();
        assert!(BASE_LIBRARIES.iter().any(|known| name.starts_with(known)), "{name} is not in the base image");
        copy(&library, folder, &library);
    }
    copy(&root().join("models/repository/digits/1/model.onnx"), folder, Path::new("/models/digits/1/model.onnx"));
    for mounted in ["proc", "dev"] {
        fs::create_dir_all(folder.join(mounted)).unwrap();
    }
}

/// Returns a command that runs in the folder as its root, as the image's user.
fn inside(folder: &Path, stage: &[(String, String)], program: &[String]) -> Command {
    let (user, group) = value_of(stage, "USER").split_once(':').unwrap();
    assert!(user != "0" && group != "0");
    let mut command = Command::new("unshare");
    let script = "set -e; mount --bind \"$1\" \"$1\"; mount --rbind /proc \"$1/proc\"; mount --rbind /dev \"$1/dev\"; \
                  mount -o remount,bind,ro \"$1\"; root=$1; owner=$2; shift 2; \
                  exec setpriv --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid \
                  chroot --userspec=\"$owner\" --groups= \"$root\" \"$@\"";
    command.args(["--mount", "sh", "-c", script, "image"]).arg(folder).arg(format!("{user}:{group}")).args(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    let (name, value) = value_of(stage, "ENV").split_once('=').unwrap();
    command.env(name, value);
    command
}

fn may_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "mount", "--bind", "/proc", "/proc"]).output();
    let may = rustix::process::geteuid().is_root() && tried.is_ok_and(|tried| tried.status.success());
    if !may {
        eprintln!("the image is not run: it takes root and mounts");
    }
    may
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_image_serves_without_rights_on_a_read_only_root() {
    let (stage, folder) = (stage(), tempfile::tempdir().unwrap());
    assemble(&stage, folder.path());
    let entry = words(value_of(&stage, "ENTRYPOINT"));
    let given = words(value_of(&stage, "CMD"));
    assert_eq!(given[..2], ["serve", "/models"]);
    if !may_mount() {
        return;
    }
    let free = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--format", "json"];
    let free = free.map(str::to_owned);
    let started = [&entry, &given[..2], &free].concat();
    let mut server = Running(inside(folder.path(), &stage, &started).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let announced: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    let metrics = announced["metrics"].as_str().unwrap_or_else(|| panic!("{announced}"));
    let status = fs::read_to_string(format!("/proc/{}/status", server.0.id())).unwrap();
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
    assert_eq!(of("Uid:"), "65532\t65532\t65532\t65532");
    assert_eq!((of("CapEff:").trim_start_matches('0'), of("NoNewPrivs:").as_str()), ("", "1"));
    let check = words(value_of(&stage, "HEALTHCHECK"));
    for more in [&[][..], &["--ready".to_owned()]] {
        let check = [&check[..], &[metrics.trim_start_matches("http://").to_owned()], more].concat();
        let asked = inside(folder.path(), &stage, &check).output().unwrap();
        assert!(asked.status.success(), "{check:?}: {}", String::from_utf8_lossy(&asked.stderr));
    }
    let nowhere = [&check[..], &["127.0.0.1:1".to_owned()]].concat();
    assert_eq!(inside(folder.path(), &stage, &nowhere).output().unwrap().status.code(), Some(1));
}
