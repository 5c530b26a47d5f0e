//! CUDA through ONNX Runtime: whether all parts are installed, and the settings of a session.
//!
//! The provider is a library beside ONNX Runtime's. It needs CUDA's libraries and cuDNN of certain
//! versions, and the driver. If one of them is missing, the loader names only the first, in words
//! that name no fix. So all parts are looked for before anything is loaded, and one message names
//! everything that is missing. The provider's file itself names the libraries and versions that it
//! needs, so no list of versions has to be kept here. Newer providers load some libraries by name
//! only when they need them; those are loaded in advance if they are found.
//!
//! Libraries are looked for in the folders of `LD_LIBRARY_PATH`, then in the system's, then in the
//! Python packages beside ONNX Runtime. Those found are loaded by their paths in advance, because
//! the loader does not look into Python packages.

use super::library;
use crate::LoadError;
use elf::ElfStream;
use elf::abi::DT_NEEDED;
use elf::endian::AnyEndian;
use ort::ep::CUDA;
use ort::session::builder::SessionBuilder;
use ripieno_cuda::Precision;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const PROVIDER: &str = "libonnxruntime_providers_cuda.so";
const SHARED: &str = "libonnxruntime_providers_shared.so";
const DRIVER: &str = "libcuda.so.1";
/// Libraries that providers since 1.31 load by name when they first need them, without naming them
/// in their file.
const LOADED_BY_NAME: [&str; 2] = ["libcudnn.so.", "libcufft.so."];
const INSTALL: &str = "pip uninstall onnxruntime; pip install 'onnxruntime-gpu[cuda,cudnn]'";
const INSTALL_DRIVER: &str =
    "install the NVIDIA driver of this machine's distribution, or start the container with --gpus all";
const SYSTEM_FOLDERS: [&str; 10] = [
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/lib64",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/lib/x86_64-linux-gnu",
    "/opt/cuda/lib64",
];

/// Settings of a model on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// Limit of the memory for tensors and weights, for each concurrent batch, in bytes.
    pub memory_limit: Option<u64>,
    /// Whether operators that the GPU cannot run may run on the CPU.
    pub allow_cpu_nodes: bool,
    /// Number format of products in cells that run on the GPU.
    pub precision: Precision,
}

/// A GPU, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gpu {
    name: String,
    uuid: String,
}

/// Places where parts are looked for.
#[derive(Clone, Debug)]
pub(super) struct SearchPaths {
    /// Folders of libraries, in order.
    folders: Vec<PathBuf>,
    /// Folder in which the driver describes itself and its GPUs.
    driver: PathBuf,
    /// Program that is asked about GPUs if the driver's folder does not exist.
    query: Option<PathBuf>,
    /// Value of `CUDA_VISIBLE_DEVICES`.
    visible: Option<String>,
}

/// The parts of an installation that is complete.
#[derive(Debug)]
pub(super) struct CudaParts {
    /// File of ONNX Runtime.
    pub(super) library: PathBuf,
    /// Files to load in advance, in order.
    preloads: Vec<PathBuf>,
    /// The number of those, the first ones, that the provider's file needs. If another cannot be
    /// loaded, the provider says so when it needs it.
    needed: usize,
    /// Names of the GPUs and version of the driver, for the key of cached profiles.
    pub(super) key: String,
}

/// Returns the folders of CUDA's libraries, at last of Python packages, and a key of these GPUs and
/// their driver.
pub(crate) fn find_gpus(ordinals: &[u32]) -> Result<(Vec<PathBuf>, String), LoadError> {
    let paths = SearchPaths::of_system();
    let key = paths.check_gpus(ordinals).map_err(LoadError)?;
    let mut folders = paths.folders;
    folders.extend(library::python_folders("nvidia").iter().flatten().flat_map(|packages| lib_folders(packages)));
    Ok((folders, key))
}

impl SearchPaths {
    pub(super) fn of_system() -> SearchPaths {
        let paths = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let own = std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty());
        SearchPaths {
            folders: own.chain(SYSTEM_FOLDERS.map(PathBuf::from)).collect(),
            driver: "/proc/driver/nvidia".into(),
            query: Some("nvidia-smi".into()),
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        }
    }

    /// Finds all parts for these GPUs. The error names every missing part and its fix.
    pub(super) fn find(&self, explicit: Option<&Path>, ordinals: &[u32]) -> Result<CudaParts, LoadError> {
        let mut missing = Vec::new();
        let library = self.library(explicit).map_err(|cause| missing.push(cause)).ok();
        let mut preloads = Preloads::new(self.folders.clone());
        if let Some(library) = &library {
            preloads.folders.extend(python_packages(library));
            missing.extend(preloads.check(&library.with_file_name(PROVIDER)));
        }
        let key = self.check_gpus(ordinals).map_err(|cause| missing.push(cause)).ok();
        match (library, key) {
            (Some(library), Some(key)) if missing.is_empty() => {
                Ok(CudaParts { library, preloads: preloads.files, needed: preloads.needed, key })
            }
            _ => {
                let devices: Vec<String> = ordinals.iter().map(|ordinal| format!("cuda:{ordinal}")).collect();
                Err(LoadError(format!("cannot run models on {}: {}", devices.join(","), missing.join("; "))))
            }
        }
    }

    /// Returns the named ONNX Runtime, or else the first one that has the provider.
    fn library(&self, explicit: Option<&Path>) -> Result<PathBuf, String> {
        let in_folders = || self.folders.iter().flat_map(|folder| library::SYSTEM_NAMES.map(|name| folder.join(name)));
        let candidates: Vec<PathBuf> = match explicit {
            Some(path) => vec![path.to_path_buf()],
            None => in_folders().filter(|file| file.is_file()).chain(library::python_package()).collect(),
        };
        let has = |library: &&PathBuf| library.with_file_name(PROVIDER).is_file();
        let missing = || match candidates.first() {
            Some(found) => {
                format!("{} has no CUDA provider: there is no {PROVIDER} beside it; {INSTALL}", found.display())
            }
            None => format!("ONNX Runtime is not installed; {INSTALL}"),
        };
        candidates.iter().find(has).cloned().ok_or_else(missing)
    }

    /// Checks the driver and the ordinals. Returns the names of the GPUs and the driver's version.
    fn check_gpus(&self, ordinals: &[u32]) -> Result<String, String> {
        if !self.folders.iter().any(|folder| folder.join(DRIVER).is_file()) {
            return Err(format!("there is no NVIDIA driver: {DRIVER} was not found; {INSTALL_DRIVER}"));
        }
        let (all, version) = self.gpus().ok_or_else(|| {
            let folder = self.driver.display();
            format!("the NVIDIA driver names no GPU, in {folder} or by nvidia-smi; {INSTALL_DRIVER}")
        })?;
        let visible = visible(&all, self.visible.as_deref());
        let names: Result<Vec<&str>, u32> = ordinals
            .iter()
            .map(|&ordinal| visible.get(ordinal as usize).map(|gpu| gpu.name.as_str()).ok_or(ordinal))
            .collect();
        let names = names.map_err(|ordinal| {
            let listed: Vec<String> =
                visible.iter().enumerate().map(|(at, gpu)| format!("cuda:{at} ({})", gpu.name)).collect();
            let hidden = all.len() - visible.len();
            let hidden = if hidden > 0 { format!(", and CUDA_VISIBLE_DEVICES hides {hidden}") } else { String::new() };
            let listed = if listed.is_empty() { "no GPU".to_owned() } else { listed.join(", ") };
            format!("there is no cuda:{ordinal}: this machine has {listed}{hidden}; name another with --device")
        })?;
        let distinct: BTreeSet<&str> = names.into_iter().collect();
        let names: Vec<&str> = distinct.into_iter().collect();
        Ok(format!("{}/driver-{version}", names.join("+")).replace(' ', "-"))
    }

    /// Returns the GPUs in the order of their bus addresses, and the driver's version.
    fn gpus(&self) -> Option<(Vec<Gpu>, String)> {
        self.gpus_of_files().or_else(|| gpus_of_program(self.query.as_deref()?))
    }

    fn gpus_of_files(&self) -> Option<(Vec<Gpu>, String)> {
        let version = fs::read_to_string(self.driver.join("version")).ok()?;
        let is_version = |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
        let version = version.lines().next()?.split_whitespace().find(is_version)?.to_owned();
        let mut folders: Vec<PathBuf> =
            fs::read_dir(self.driver.join("gpus")).ok()?.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        let gpu = |folder: &PathBuf| {
            let text = fs::read_to_string(folder.join("information")).ok()?;
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                Some(line.trim_start_matches(':').trim().to_owned())
            };
            Some(Gpu { name: field("Model")?, uuid: field("GPU UUID").unwrap_or_default() })
        };
        let gpus: Vec<Gpu> = folders.iter().filter_map(gpu).collect();
        (!gpus.is_empty()).then_some((gpus, version))
    }
}

fn gpus_of_program(program: &Path) -> Option<(Vec<Gpu>, String)> {
    let query = ["--query-gpu=driver_version,uuid,name", "--format=csv,noheader"];
    let run = Command::new(program).args(query).output().ok().filter(|run| run.status.success())?;
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let line = |line: &str| {
        let mut fields = line.splitn(3, ',').map(|field| field.trim().to_owned());
        let (version, uuid, name) = (fields.next()?, fields.next()?, fields.next()?);
        Some((version, Gpu { name, uuid }))
    };
    let (mut versions, gpus): (Vec<String>, Vec<Gpu>) = text.lines().filter_map(line).unzip();
    (!gpus.is_empty()).then(|| (gpus, versions.swap_remove(0)))
}

/// Returns the GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order. As in CUDA, the list ends at
/// its first invalid entry.
fn visible(all: &[Gpu], variable: Option<&str>) -> Vec<Gpu> {
    let Some(variable) = variable else { return all.to_vec() };
    let named = |entry: &str| match entry.trim().parse::<usize>() {
        Ok(index) => all.get(index).cloned(),
        Err(_) if entry.trim().is_empty() => None,
        Err(_) => all.iter().find(|gpu| gpu.uuid.starts_with(entry.trim())).cloned(),
    };
    variable.split(',').map_while(named).collect()
}

/// Returns the library folders of NVIDIA's Python packages beside the package of ONNX Runtime.
fn python_packages(library: &Path) -> Vec<PathBuf> {
    library.ancestors().nth(3).map(|site| lib_folders(&site.join("nvidia"))).unwrap_or_default()
}

/// Returns the folders of libraries of NVIDIA's Python packages, which are in this folder.
fn lib_folders(packages: &Path) -> Vec<PathBuf> {
    let Ok(packages) = fs::read_dir(packages) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = packages.flatten().map(|package| package.path().join("lib")).collect();
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    folders
}

/// The libraries to load in advance, found from the provider's file.
struct Preloads {
    folders: Vec<PathBuf>,
    /// Found files, each after those that it needs.
    files: Vec<PathBuf>,
    /// The number of those that the provider's file needs.
    needed: usize,
    seen: BTreeSet<String>,
}

impl Preloads {
    fn new(folders: Vec<PathBuf>) -> Preloads {
        Preloads { folders, files: Vec::new(), needed: 0, seen: BTreeSet::new() }
    }

    /// Finds the libraries that the provider needs. Returns a message for those that are missing.
    fn check(&mut self, provider: &Path) -> Option<String> {
        if !provider.with_file_name(SHARED).is_file() {
            return Some(format!("{} has no {SHARED} beside it; {INSTALL}", provider.display()));
        }
        let needed = match needed(provider) {
            Ok(needed) => needed,
            Err(cause) => return Some(format!("{}: {cause}; {INSTALL}", provider.display())),
        };
        let missing: Vec<String> =
            needed.iter().filter(|name| is_cuda(name)).filter_map(|name| self.add(name)).collect();
        self.add_loaded_later();
        if missing.is_empty() {
            return None;
        }
        let list = missing.join(", ");
        Some(format!("the CUDA provider needs {list}; {INSTALL}, or add their folder to LD_LIBRARY_PATH"))
    }

    /// Adds a library after those that it needs. Returns a description if it is missing.
    fn add(&mut self, name: &str) -> Option<String> {
        if !self.seen.insert(name.to_owned()) {
            return None;
        }
        let Some(file) = self.folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file()) else {
            return Some(self.describe_missing(name));
        };
        let below: Vec<String> = needed(&file).unwrap_or_default();
        let missing = below.iter().filter(|name| is_cuda(name)).find_map(|name| self.add(name));
        self.files.push(file);
        missing
    }

    fn describe_missing(&self, name: &str) -> String {
        let stem = name.split_inclusive(".so").next().unwrap_or(name);
        let is_other =
            |file: &String| *file != *name && file.strip_prefix(stem).is_some_and(|rest| rest.starts_with('.'));
        match names_in(&self.folders).into_iter().find(is_other) {
            Some(other) => format!("{name}, which is not installed (found {other}, of another version)"),
            None => format!("{name}, which is not installed"),
        }
    }

    /// Adds what is loaded only when it is first needed: libraries that the provider loads by name,
    /// cuDNN's parts, and the compiler of kernels. Which version of a library the provider asks for
    /// is not known; it is taken to be the newest.
    fn add_loaded_later(&mut self) {
        self.needed = self.files.len();
        for stem in LOADED_BY_NAME {
            let version = |name: &String| name.strip_prefix(stem)?.parse::<u32>().ok();
            if let Some(newest) = names_in(&self.folders).iter().filter_map(version).max() {
                self.add(&format!("{stem}{newest}"));
            }
        }
        let cudnn = self.files.iter().find(|file| file_name(file).starts_with("libcudnn.so."));
        let Some(cudnn) = cudnn.cloned() else { return };
        let suffix = file_name(&cudnn).trim_start_matches("libcudnn").to_owned();
        let mut parts = cudnn.parent().map(|folder| names_in(&[folder.to_owned()])).unwrap_or_default();
        parts.retain(|name| name.starts_with("libcudnn_") && name.ends_with(&suffix));
        let runtime = self.files.iter().map(|file| file_name(file)).find(|name| name.starts_with("libcudart.so."));
        parts.extend(runtime.map(|name| name.replace("libcudart", "libnvrtc")));
        for part in parts {
            self.add(&part);
        }
    }
}

/// Returns the names of the files in these folders, in order and each once.
fn names_in(folders: &[PathBuf]) -> BTreeSet<String> {
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a library is a part of CUDA, other than the driver, which is always the system's.
fn is_cuda(name: &str) -> bool {
    (name.starts_with("libcu") || name.starts_with("libnv")) && name != DRIVER && !name.starts_with("libcurl")
}

/// Returns the names of the libraries that a library needs.
fn needed(file: &Path) -> Result<Vec<String>, String> {
    let invalid = |cause: elf::ParseError| format!("it is no library: {cause}");
    let opened = File::open(file).map_err(|cause| cause.to_string())?;
    let mut elf = ElfStream::<AnyEndian, File>::open_stream(opened).map_err(invalid)?;
    let entries = elf.dynamic().map_err(invalid)?.into_iter().flat_map(|table| table.iter().collect::<Vec<_>>());
    let names: Vec<usize> =
        entries.filter(|entry| entry.d_tag == DT_NEEDED).map(|entry| entry.d_val() as usize).collect();
    let section = elf.section_header_by_name(".dynstr").map_err(invalid)?.copied();
    let Some(section) = section else { return Err("it is no library: it has no names".to_owned()) };
    let strings = elf.section_data_as_strtab(&section).map_err(invalid)?;
    names.into_iter().map(|at| strings.get(at).map(str::to_owned).map_err(invalid)).collect()
}

impl CudaParts {
    /// Loads CUDA's libraries, so that the provider finds them.
    pub(super) fn preload(&self) -> Result<(), LoadError> {
        self.preloads.iter().enumerate().try_for_each(|(at, file)| match ort::util::preload_dylib(file) {
            Err(cause) if at < self.needed => {
                Err(LoadError(format!("{}: cannot be loaded: {cause}; {INSTALL}", file.display())))
            }
            _ => Ok(()),
        })
    }
}

/// Configures a session for a GPU. Without the provider it is an error, and so are operators on the
/// CPU unless they are allowed.
pub(super) fn configure(
    builder: SessionBuilder,
    ordinal: u32,
    options: GpuOptions,
) -> Result<SessionBuilder, ort::Error> {
    let builder = match options.allow_cpu_nodes {
        true => builder,
        false => builder.with_config_entry("session.disable_cpu_ep_fallback", "1")?,
    };
    let provider = CUDA::default().with_device_id(ordinal as i32);
    let provider = match options.memory_limit {
        Some(limit) => provider.with_memory_limit(limit as usize),
        None => provider,
    };
    Ok(builder.with_execution_providers([provider.build().error_on_failure()])?)
}

#[cfg(test)]
mod tests;
