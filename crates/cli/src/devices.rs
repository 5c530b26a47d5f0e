//! The devices and engines of models, from the command line.

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use ripieno_executor::{
    CpuEngine, CpuOptions, EmulatedEngine, EmulatedOptions, Executor, OnnxRuntimeEngine, OnnxRuntimeOptions,
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
    /// cpu; or emulated: a device that waits as long as the model's latency profile says; or
    /// emulated:1080ti and emulated:a100, which know the published profiles of 35 and 37 models by
    /// name.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: DeviceKind,

    /// Number of devices; each runs one batch at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) devices: u16,

    /// Engine for ONNX models on the CPU: the built-in one, or ONNX Runtime, which is faster and
    /// has to be installed.
    #[arg(long, value_enum, default_value = "cpu")]
    pub(crate) engine: EngineName,

    /// Threads per batch, for each device [default: the machine's cores, shared by the devices].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// The ONNX Runtime library [default: $ORT_DYLIB_PATH, the system's, or that of the Python
    /// package onnxruntime].
    #[arg(long, value_name = "FILE")]
    pub(crate) onnxruntime: Option<PathBuf>,
}

/// An engine for models on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// Built in, pure Rust: nothing to install.
    Cpu,
    /// ONNX Runtime, loaded when the server starts.
    Onnxruntime,
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
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
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceKind, String> {
        let (kind, name) = text.split_once(':').map_or((text, None), |(kind, name)| (kind, Some(name)));
        match (kind, name) {
            ("cpu", None) => Ok(DeviceKind::Cpu),
            ("emulated", None) => Ok(DeviceKind::Emulated(None)),
            ("emulated", Some(name)) => match ZooDevice::from_name(name) {
                Some(device) => Ok(DeviceKind::Emulated(Some(device))),
                None => Err(format!("no profiles are known for {name:?}; use {}", zoo_names())),
            },
            ("cuda", _) => Err("this build has no CUDA engine; use cpu, or emulated:a100 to try a load".to_owned()),
            _ => Err(format!("use cpu, emulated, {}", zoo_names())),
        }
    }
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

    /// Opens the engine, and returns the target to load models for.
    pub(crate) fn target(&self) -> anyhow::Result<LoadTarget> {
        let threads = self.threads_per_device();
        let engine: Arc<dyn Executor> = match (&self.device, self.engine) {
            (DeviceKind::Emulated(zoo), EngineName::Cpu) => {
                let name = zoo.map_or("", ZooDevice::name).to_owned();
                Arc::new(EmulatedEngine::new(EmulatedOptions { name }).with_depth(Limits::MOST_DEPTH))
            }
            (DeviceKind::Emulated(_), EngineName::Onnxruntime) => bail!("--engine is for --device cpu; leave it out"),
            (DeviceKind::Cpu, EngineName::Cpu) => {
                Arc::new(CpuEngine::new(CpuOptions { threads }).with_depth(Limits::MOST_DEPTH))
            }
            (DeviceKind::Cpu, EngineName::Onnxruntime) => {
                let options = OnnxRuntimeOptions { library: self.onnxruntime.clone(), threads };
                Arc::new(
                    OnnxRuntimeEngine::new(options).context("--engine onnxruntime")?.with_depth(Limits::MOST_DEPTH),
                )
            }
        };
        let zoo = match self.device {
            DeviceKind::Emulated(zoo) => zoo,
            DeviceKind::Cpu => None,
        };
        let args = vec!["engine-process".to_owned()];
        let engine_process = Some(EngineProcess { program: own_program()?, args });
        let policies = ripieno_sched::CATALOGUE.iter().map(|policy| policy.name).collect();
        Ok(LoadTarget { zoo, policies, devices: usize::from(self.devices), engine_process, ..LoadTarget::new(engine) })
    }
}

/// Returns the path of this very program, even if another has been installed over it since.
fn own_program() -> anyhow::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Ok(running) } else { std::env::current_exe().context("this program's own file is not known") }
}
