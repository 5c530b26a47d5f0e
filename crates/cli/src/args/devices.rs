//! The devices and engines of models, from the command line.

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use ripieno_executor::{
    CpuEngine, CpuOptions, EitherEngine, EmulatedEngine, EmulatedOptions, Executor, GpuEngine, LoadError,
    OnnxRuntimeEngine, OnnxRuntimeOptions,
};
use ripieno_model::zoo::ZooDevice;
use ripieno_repository::{EngineProcess, LoadTarget};
use ripieno_sched::Limits;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The devices that models run on.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// cpu; or emulated: a device that waits as long as the model's latency profile says.
    /// emulated:1080ti and emulated:a100 know the published profiles of 35 and 37 models by name.
    /// cuda:0, or several as cuda:0,cuda:1: NVIDIA GPUs.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: DeviceKind,

    /// Number of devices; each runs one batch at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) devices: u16,

    /// Engine for ONNX models. auto, on the CPU: ONNX Runtime if it is installed, which is faster,
    /// and the built-in engine for models that it cannot run and where it is missing; on GPUs:
    /// cells with their state on the GPU, all else by ONNX Runtime. onnxruntime: it alone.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) engine: EngineName,

    /// Threads per batch, for each device [default: the machine's cores, shared by the devices].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// The ONNX Runtime library [default: $ORT_DYLIB_PATH, the system's, or the Python package
    /// onnxruntime's].
    #[arg(long, value_name = "FILE")]
    pub(crate) onnxruntime: Option<PathBuf>,
}

/// An engine for models on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// ONNX Runtime if it is found, else the built-in engine.
    Auto,
    /// Built in, pure Rust: nothing to install.
    Cpu,
    /// ONNX Runtime, loaded when the server starts.
    Onnxruntime,
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineName::Auto => "auto",
            EngineName::Cpu => "cpu",
            EngineName::Onnxruntime => "onnxruntime",
        })
    }
}

/// A kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// This machine's processor.
    Cpu,
    /// Emulated: batches take as long as their profile says.
    Emulated(Option<ZooDevice>),
    /// GPUs, by their numbers in CUDA.
    Cuda(Vec<u32>),
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceKind, String> {
        if text.starts_with("cuda") {
            return gpus(text).map(DeviceKind::Cuda);
        }
        let (kind, name) = text.split_once(':').map_or((text, None), |(kind, name)| (kind, Some(name)));
        match (kind, name) {
            ("cpu", None) => Ok(DeviceKind::Cpu),
            ("emulated", None) => Ok(DeviceKind::Emulated(None)),
            ("emulated", Some(name)) => match ZooDevice::from_name(name) {
                Some(device) => Ok(DeviceKind::Emulated(Some(device))),
                None => Err(format!("no profiles are known for {name:?}; use {}", zoo_names())),
            },
            _ => Err(format!("use cpu, cuda:0, emulated, {}", zoo_names())),
        }
    }
}

/// Returns the numbers of GPUs, each named once.
fn gpus(text: &str) -> Result<Vec<u32>, String> {
    let mut gpus = Vec::new();
    for name in text.split(',') {
        let ordinal = name.strip_prefix("cuda:").filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
        let ordinal = ordinal.and_then(|digits| digits.parse::<u16>().ok()).map(u32::from);
        let ordinal = ordinal.ok_or_else(|| format!("{name:?} is no GPU; use cuda:0, or several as cuda:0,cuda:1"))?;
        if gpus.contains(&ordinal) {
            return Err(format!(
                "{name} is named twice; name each GPU once, and use instances and lanes for more batches"
            ));
        }
        gpus.push(ordinal);
    }
    Ok(gpus)
}

fn zoo_names() -> String {
    ZooDevice::ALL.map(|device| format!("emulated:{}", device.name())).join(" or ")
}

impl Default for DeviceArgs {
    fn default() -> DeviceArgs {
        DeviceArgs { device: DeviceKind::Cpu, devices: 1, engine: EngineName::Cpu, threads: None, onnxruntime: None }
    }
}

impl DeviceArgs {
    fn threads_per_device(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(|| (cores / usize::from(self.devices)).max(1), usize::from)
    }

    /// Returns the number of devices.
    pub(crate) fn count(&self) -> u16 {
        match &self.device {
            DeviceKind::Cuda(gpus) => gpus.len() as u16,
            DeviceKind::Cpu | DeviceKind::Emulated(_) => self.devices,
        }
    }

    fn library_options(&self, threads: usize) -> OnnxRuntimeOptions {
        let gpus = match &self.device {
            DeviceKind::Cuda(gpus) => gpus.clone(),
            DeviceKind::Cpu | DeviceKind::Emulated(_) => Vec::new(),
        };
        OnnxRuntimeOptions { library: self.onnxruntime.clone(), threads, gpus, ..Default::default() }
    }

    fn library(&self, threads: usize) -> Result<OnnxRuntimeEngine, LoadError> {
        Ok(OnnxRuntimeEngine::new(self.library_options(threads))?.with_depth(Limits::MOST_DEPTH))
    }

    /// Returns whether the user names the file of the ONNX Runtime library.
    fn names_library(&self) -> bool {
        self.onnxruntime.is_some() || std::env::var_os("ORT_DYLIB_PATH").is_some_and(|path| !path.is_empty())
    }

    /// Logs the engine of a server, and how to get a faster one.
    pub(crate) fn log_engine(&self, target: &LoadTarget) {
        match (target.engine.name(), self.engine) {
            _ if matches!(self.device, DeviceKind::Cuda(_)) => {
                tracing::info!("the engine is {} on GPUs: {}", target.engine.name(), target.engine.device_key());
            }
            ("onnxruntime", EngineName::Auto) => tracing::info!(
                "the engine is onnxruntime, which was found; models that it cannot run go to the built-in engine"
            ),
            ("cpu", EngineName::Auto) => tracing::warn!(
                "the engine is cpu, which is built in; ONNX Runtime is faster and was not found: pip install onnxruntime, \
                 or name its library with --onnxruntime FILE"
            ),
            (name, _) => tracing::info!("the engine is {name}"),
        }
    }

    /// Opens the engine, and returns the target to load models for.
    pub(crate) fn target(&self) -> anyhow::Result<LoadTarget> {
        let threads = self.threads_per_device();
        let built_in = || CpuEngine::new(CpuOptions { threads }).with_depth(Limits::MOST_DEPTH);
        let engine: Arc<dyn Executor> = match (&self.device, self.engine) {
            (DeviceKind::Emulated(zoo), EngineName::Auto | EngineName::Cpu) => {
                let name = zoo.map_or("", ZooDevice::name).to_owned();
                Arc::new(EmulatedEngine::new(EmulatedOptions { name }).with_depth(Limits::MOST_DEPTH))
            }
            (DeviceKind::Cuda(_), _) if self.devices > 1 => {
                bail!("--devices is for --device cpu and emulated; name each GPU in --device, as cuda:0,cuda:1")
            }
            (DeviceKind::Cuda(_), EngineName::Auto) => {
                let engine = GpuEngine::new(self.library_options(threads), Limits::MOST_DEPTH);
                Arc::new(engine.context("--device cuda")?)
            }
            (DeviceKind::Cuda(_), EngineName::Onnxruntime) => Arc::new(self.library(threads).context("--device cuda")?),
            (DeviceKind::Cuda(_), EngineName::Cpu) => {
                bail!("--engine cpu computes on the CPU only; leave it out, since GPUs are used by ONNX Runtime")
            }
            (DeviceKind::Emulated(_), EngineName::Onnxruntime) => bail!("--engine is for --device cpu; leave it out"),
            (DeviceKind::Cpu, EngineName::Cpu) => Arc::new(built_in()),
            (DeviceKind::Cpu, EngineName::Onnxruntime) => {
                Arc::new(self.library(threads).context("--engine onnxruntime")?)
            }
            (DeviceKind::Cpu, EngineName::Auto) => match self.library(threads) {
                Ok(library) => Arc::new(EitherEngine::new(library, built_in())),
                Err(cause) if self.names_library() => return Err(cause).context("--engine auto"),
                Err(cause) => {
                    tracing::debug!("{cause}");
                    Arc::new(built_in())
                }
            },
        };
        let zoo = match self.device {
            DeviceKind::Emulated(zoo) => zoo,
            DeviceKind::Cpu | DeviceKind::Cuda(_) => None,
        };
        let args = vec!["engine-process".to_owned()];
        let engine_process = Some(EngineProcess { program: own_program()?, args });
        let policies = ripieno_policies::CATALOGUE.iter().map(|policy| policy.name).collect();
        Ok(LoadTarget { zoo, policies, devices: usize::from(self.count()), engine_process, ..LoadTarget::new(engine) })
    }
}

/// Returns the path of this very program, even if another has been installed over it since.
fn own_program() -> anyhow::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Ok(running) } else { std::env::current_exe().context("this program's own file is not known") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_named_by_their_numbers() {
        let parse = |text: &str| text.parse::<DeviceKind>();
        assert_eq!(parse("cuda:0"), Ok(DeviceKind::Cuda(vec![0])));
        assert_eq!(parse("cuda:2,cuda:0"), Ok(DeviceKind::Cuda(vec![2, 0])));
        for wrong in ["cuda", "cuda:", "cuda:-1", "cuda:+1", "cuda:0,1", "cuda:99999", "cuda:0,"] {
            assert!(parse(wrong).unwrap_err().contains("use cuda:0"), "{wrong}");
        }
        assert!(parse("cuda:1,cuda:1").unwrap_err().contains("named twice"));
        assert!(parse("rocm:0").unwrap_err().contains("use cpu, cuda:0, emulated"));
    }
}
