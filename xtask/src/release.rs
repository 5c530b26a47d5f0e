//! `cargo xtask release`: what a version must agree on, and the files of which it consists.
//!
//! A version is cut by hand, in the steps of `docs/internals/releasing.md`. This command checks
//! what a person overlooks: one version everywhere, a section of the changelog, no file missing
//! from the checksums. With `--dry-run` it lists what is missing and goes on; without, a missing
//! file or section is an error, and `SHA256SUMS` is written.

use crate::steps::root;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Folder of the files to publish.
const FOLDER: &str = "target/release-files";
const STEPS: &str = include_str!("../../docs/internals/releasing.md");

/// A tree of files, and the version that its manifest names.
struct VersionedTree {
    root: PathBuf,
    version: String,
}

/// Checks the release; with `dry_run` only prints what is missing.
pub(crate) fn run(dry_run: bool) -> Result<()> {
    let release = VersionedTree::read(&root())?;
    println!("version {}", release.version);
    let wrong = release.disagreements()?;
    if !wrong.is_empty() {
        bail!("{} places disagree:\n{}", wrong.len(), wrong.join("\n"));
    }
    let changes = release.changelog(dry_run)?;
    println!("changelog: {changes}");
    let (sums, missing) = release.checksums()?;
    print!("{sums}");
    missing.iter().for_each(|file| println!("not built: {FOLDER}/{file}"));
    if dry_run {
        println!("\nsteps:\n{}", release.steps());
        return Ok(());
    }
    if !missing.is_empty() {
        bail!("{} files are not built; docs/internals/releasing.md says how", missing.len());
    }
    let path = release.root.join(FOLDER).join("SHA256SUMS");
    fs::write(&path, sums).with_context(|| format!("cannot write {}", path.display()))?;
    println!("written: {FOLDER}/SHA256SUMS");
    Ok(())
}

impl VersionedTree {
    fn read(root: &Path) -> Result<VersionedTree> {
        let manifest = text(&root.join("Cargo.toml"))?;
        let section = manifest.split("[workspace.package]").nth(1).context("Cargo.toml has no [workspace.package]")?;
        let line = section.lines().find_map(|line| line.strip_prefix("version = \""));
        let version = line.context("[workspace.package] has no version")?.trim_end_matches('"').to_owned();
        Ok(VersionedTree { root: root.to_owned(), version })
    }

    /// Returns a line for each place that names another version.
    fn disagreements(&self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        let mut judge = |path: &str, number: usize, found: &str| {
            if found != self.version {
                wrong.push(format!("{path}:{number}: {found:?} instead of {:?}", self.version));
            }
        };
        let lock = text(&self.root.join("Cargo.lock"))?;
        for (number, pair) in (1..).zip(lock.lines().zip(lock.lines().skip(1))) {
            if let (name, Some(found)) = (pair.0, pair.1.strip_prefix("version = "))
                && name.starts_with("name = \"ripieno-")
            {
                judge("Cargo.lock", number + 1, found.trim_matches('"'));
            }
        }
        for path in ["deploy/Containerfile", "deploy/Containerfile.cuda", "docs/guide/cluster.md"] {
            let text = text(&self.root.join(path))?;
            for (line, number) in text.lines().zip(1..) {
                let line = line.replace("/ripieno-cuda:", "/ripieno:");
                let tags = line.split("/ripieno:").skip(1).filter_map(|rest| rest.split(' ').next());
                tags.for_each(|tag| judge(path, number, tag));
            }
        }
        for path in kustomizations(&self.root.join("deploy/kubernetes"))? {
            let shown = path.strip_prefix(&self.root).unwrap_or(&path).display().to_string();
            for (line, number) in text(&path)?.lines().zip(1..) {
                line.trim().strip_prefix("newTag: ").into_iter().for_each(|tag| judge(&shown, number, tag));
            }
        }
        let wheel = text(&self.root.join("pyproject.toml"))?;
        if !wheel.contains("dynamic = [\"version\"]") {
            wrong.push(
                "pyproject.toml: the wheel takes its version from the manifest: dynamic = [\"version\"]".to_owned(),
            );
        }
        Ok(wrong)
    }

    /// Returns the heading of the version's section; in a dry run the one of what is not released.
    fn changelog(&self, dry_run: bool) -> Result<String> {
        let changes = text(&self.root.join("CHANGELOG.md"))?;
        let heading = |name: &str| changes.lines().find(|line| line.starts_with(&format!("## {name}")));
        let found = heading(&self.version).or_else(|| heading("Unreleased").filter(|_| dry_run));
        let found = found.with_context(|| format!("CHANGELOG.md has no section \"## {}\"", self.version))?;
        let body = changes.split(found).nth(1).unwrap_or_default().split("\n## ").next().unwrap_or_default();
        if !body.contains("\n- ") {
            bail!("CHANGELOG.md: the section {found:?} is empty");
        }
        Ok(found.trim_start_matches("## ").to_owned())
    }

    /// Returns the names of the files to publish, by their extension; the image goes to a registry.
    fn files(&self) -> [String; 3] {
        let VersionedTree { version, .. } = self;
        [
            format!("ripieno-{version}-x86_64-unknown-linux-gnu.tar.gz"),
            format!("ripieno-{version}-py3-none-manylinux_2_34_x86_64.whl"),
            format!("ripieno-{version}-source.tar.gz"),
        ]
    }

    /// Returns a line with checksum and name for each file that is built, and the names of the
    /// rest.
    fn checksums(&self) -> Result<(String, Vec<String>)> {
        let (mut sums, mut missing) = (String::new(), Vec::new());
        for name in self.files() {
            let path = self.root.join(FOLDER).join(&name);
            if path.is_file() {
                let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                Sha256::digest(bytes).iter().try_for_each(|byte| write!(sums, "{byte:02x}"))?;
                writeln!(sums, "  {name}")?;
            } else {
                missing.push(name);
            }
        }
        Ok((sums, missing))
    }

    /// Returns the commands of the page, with this version.
    fn steps(&self) -> String {
        let blocks = STEPS.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        blocks.collect::<String>().replace("$VERSION", &self.version)
    }
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn kustomizations(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("kustomization.yaml") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a tree that agrees on version 1.2.3, and returns its folder.
    fn tree(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ripieno-release-{}-{name}", std::process::id()));
        let files = [
            ("Cargo.toml", "[workspace.package]\nversion = \"1.2.3\"\n"),
            ("Cargo.lock", "name = \"ripieno-base\"\nversion = \"1.2.3\"\nname = \"other\"\nversion = \"9.9.9\"\n"),
            ("pyproject.toml", "dynamic = [\"version\"]\n"),
            ("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- Something.\n\n## 1.2.2\n"),
            ("deploy/Containerfile", "#  -t registry.example.com/ripieno:1.2.3 .\n"),
            ("deploy/Containerfile.cuda", "#  -t registry.example.com/ripieno-cuda:1.2.3 .\n"),
            ("docs/guide/cluster.md", "podman push registry.example.com/ripieno:1.2.3\n"),
            ("deploy/kubernetes/a/kustomization.yaml", "    newTag: 1.2.3\n"),
        ];
        for (path, text) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn this_tree_could_be_released_but_for_its_files() {
        run(true).unwrap();
        let steps = VersionedTree::read(&root()).unwrap().steps();
        assert!(
            steps.contains("git tag") && steps.contains("cargo xtask release\n") && !steps.contains('$'),
            "{steps}"
        );
    }

    #[test]
    fn another_version_is_found_in_every_place() {
        let folder = tree("versions");
        assert!(VersionedTree::read(&folder).unwrap().disagreements().unwrap().is_empty());
        fs::write(folder.join("Cargo.toml"), "[workspace.package]\nversion = \"1.3.0\"\n").unwrap();
        fs::write(folder.join("pyproject.toml"), "version = \"1.2.3\"\n").unwrap();
        let wrong = VersionedTree::read(&folder).unwrap().disagreements().unwrap();
        let places: Vec<_> = wrong.iter().filter_map(|line| line.split(": ").next()).collect();
        let expected = [
            "Cargo.lock:2",
            "deploy/Containerfile:1",
            "deploy/Containerfile.cuda:1",
            "docs/guide/cluster.md:1",
            "deploy/kubernetes/a/kustomization.yaml:1",
            "pyproject.toml",
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn the_changelog_needs_a_section_with_entries() {
        let release = VersionedTree::read(&tree("changelog")).unwrap();
        assert_eq!(release.changelog(true).unwrap(), "Unreleased");
        assert!(release.changelog(false).unwrap_err().to_string().contains("## 1.2.3"));
        fs::write(release.root.join("CHANGELOG.md"), "## 1.2.3, 2026-12-01\n\n## 1.2.2\n\n- Old.\n").unwrap();
        assert!(release.changelog(false).unwrap_err().to_string().contains("is empty"));
    }

    #[test]
    fn checksums_are_of_the_files_that_are_built() {
        let release = VersionedTree::read(&tree("sums")).unwrap();
        let [binary, ..] = release.files();
        fs::create_dir_all(release.root.join(FOLDER)).unwrap();
        fs::write(release.root.join(FOLDER).join(&binary), "").unwrap();
        let (sums, missing) = release.checksums().unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!((sums, missing.len()), (format!("{empty}  {binary}\n"), 2));
    }
}
