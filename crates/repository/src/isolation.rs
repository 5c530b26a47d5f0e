//! Processes that run models: this program for ONNX models, an interpreter for models in Python.

use super::config::{IsolationConfig, ModelConfig, ProcessConfig};
use super::model_files::ModelFiles;
use ripieno_executor::{Executor, Isolation};
use std::path::{Path, PathBuf};

/// Module of the package ripieno that runs models.
const WORKER: [&str; 2] = ["-m", "ripieno.worker"];
/// Interpreter without any named environment, looked up in `PATH`.
const DEFAULT: &str = "python3";

/// A program that calls `ripieno_executor::serve_engine`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineProcess {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
}

/// The engine of a device, and the program that runs it in processes.
pub(super) struct ProcessTarget<'a> {
    pub(super) engine: &'a dyn Executor,
    pub(super) program: Option<&'a EngineProcess>,
}

/// Returns the isolation of a model's engine, if configured.
pub(super) fn isolation(
    found: &ModelFiles,
    config: &ModelConfig,
    target: ProcessTarget<'_>,
) -> Result<Option<Isolation>, String> {
    let process = match config.isolation {
        _ if found.is_python() => return python(found, config, target.engine).map(Some),
        IsolationConfig::None | IsolationConfig::Unset { .. } if config.needs_process.is_some() => {
            return Err(config.needs_process.clone().unwrap_or_default());
        }
        IsolationConfig::None => return Ok(None),
        IsolationConfig::Unset { splits } if splits || !target.engine.isolates() => return Ok(None),
        IsolationConfig::Process if config.process.memory_limit.is_some() && target.engine.isolates() => {
            return Err(format!(
                "{}: memory_limit_mb: limits address space, of which CUDA reserves all that the machine has; use \
                 gpu_memory_limit_mb",
                config.file
            ));
        }
        IsolationConfig::Process | IsolationConfig::Unset { .. } => config.process,
    };
    let Some(EngineProcess { program, mut args }) = target.program.cloned() else {
        return Err(format!(
            "{}: isolation = \"process\": this program starts no processes for engines; serve the model with ripieno serve, or \
             remove the key",
            config.file
        ));
    };
    // The model's name as an argument identifies the process in process listings.
    args.push(found.name.clone());
    let ProcessConfig { memory_limit, task_limit } = process;
    Ok(Some(Isolation { program, args, memory_limit, task_limit }))
}

/// Returns the process of a model in Python.
fn python(found: &ModelFiles, config: &ModelConfig, engine: &dyn Executor) -> Result<Isolation, String> {
    let file = &config.file;
    if config.isolation == IsolationConfig::None {
        return Err(format!("{file}: isolation = \"none\": a model in Python always has a process; remove the key"));
    }
    let ProcessConfig { memory_limit, task_limit } = config.process;
    if memory_limit.is_some() && !engine.resources().1.is_empty() {
        return Err(format!(
            "{file}: memory_limit_mb: limits address space, of which CUDA reserves all that the machine has; remove it"
        ));
    }
    let program = interpreter(found, config)?;
    // The model's name as an argument identifies the process in process listings.
    let args = WORKER.into_iter().map(str::to_owned).chain([found.name.clone()]).collect();
    Ok(Isolation { program, args, memory_limit, task_limit })
}

/// Returns the interpreter: as configured, else beside this program, where the wheel installs it,
/// else of the active environment, else of the system.
fn interpreter(found: &ModelFiles, config: &ModelConfig) -> Result<PathBuf, String> {
    if let Some(named) = &config.python {
        if !named.contains('/') {
            return Ok(named.into());
        }
        let path = found.folder.join(named);
        return match path.is_file() {
            true => Ok(path),
            false => Err(format!(
                "{}: python = \"{named}\": there is no interpreter at {}; create it with python3 -m venv, or correct the path, \
                 which begins at the model's folder",
                config.file,
                path.display()
            )),
        };
    }
    let own = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
    let active = std::env::var_os("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("bin"));
    let beside = own.into_iter().chain(active).map(|folder| folder.join(DEFAULT));
    Ok(beside.into_iter().find(|path| path.is_file()).unwrap_or_else(|| DEFAULT.into()))
}
