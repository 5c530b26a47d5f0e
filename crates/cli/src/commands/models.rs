//! `ripieno models` and `ripieno profile`: the models of a repository, and their costs.

use crate::args::devices::DeviceArgs;
use crate::args::policy::PolicyArgs;
use crate::commands::corpus::{self, CorpusArgs};
use crate::download;
use crate::output::{self, print_json};
use crate::service::{Opened, Service, progress_bars};
use crate::{args::stages, output::tables};
use anyhow::bail;
use clap::{Args, Command, FromArgMatches, ValueEnum};
use ripieno_report::Format;
use ripieno_repository::staging::stage;
use ripieno_repository::{LoadTarget, ModelControl, ModelReport, found_instead, profile, read};
use ripieno_sched::Limits;
use ripieno_server::ServerConfig;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Filter of the log of `ripieno models`: the table shows errors and warnings of models.
pub(crate) const LOG_LEVEL: &str = "warn,ripieno_repository::live=off";

/// List the models of a repository, each with its state, tensors and settings, or its error.
///
/// Loads each model as `serve` does with the same flags, so that READY means that `serve` serves
/// it. A model that is new to the device is measured, for about three seconds, and its profile is
/// kept for `serve`. Nothing is served.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelsArgs {
    /// The model repository, one ONNX file, hf://ORG/NAME or https://HOST/.../MODEL.onnx.
    #[arg(value_name = "REPOSITORY|MODEL.onnx", default_value = "models/repository")]
    repository: PathBuf,

    #[command(flatten)]
    devices: DeviceArgs,

    /// Only read the files: a model whose files and settings are right is "not tried".
    #[arg(long)]
    no_load: bool,

    /// Accept models whose files are outside of the repository, behind symbolic links.
    #[arg(long)]
    allow_symlinks: bool,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

/// Measure latency by batch size, the profile on which every decision about a model is based; or
/// characterise lengths.
///
/// `serve` measures a model that is new to the device by itself; this command repeats it, or does
/// it ahead of time. Profiles are stored beside the model and are valid for this device, engine and
/// model file.
///
/// With --lengths or --corpus it measures nothing, but shows the distribution of sequence lengths,
/// and the number of decoder steps that covers most of them.
#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    /// The model repository, or one ONNX file.
    #[arg(value_name = "REPOSITORY|MODEL.onnx", default_value = "models/repository")]
    repository: PathBuf,

    /// Only this model.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Search for the best number of stages of each model, and the cuts; `granularity = "stages"`
    /// with `stages = "auto"` in model.toml serves it so. Takes about half a minute a model.
    #[arg(long, value_enum, value_name = "auto")]
    stages: Option<Stages>,

    #[command(flatten)]
    corpus: CorpusArgs,

    #[command(flatten)]
    devices: DeviceArgs,

    /// Accept models whose files are outside of the repository, behind symbolic links.
    #[arg(long)]
    allow_symlinks: bool,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

/// The numbers of stages to try.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stages {
    /// Several numbers with cuts even in time, and cuts where the preferred batch size changes.
    Auto,
}

impl ProfileArgs {
    /// Parses arguments as on the command line, for callers in this program.
    #[cfg_attr(not(feature = "reproduce"), expect(dead_code, reason = "only `reproduce` calls it"))]
    pub(crate) fn from_words<'a>(
        repository: &'a Path,
        words: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<ProfileArgs> {
        let command = ProfileArgs::augment_args(Command::new("profile").no_binary_name(true));
        let words = std::iter::once(repository.as_os_str()).chain(words.into_iter().map(OsStr::new));
        Ok(ProfileArgs::from_arg_matches(&command.try_get_matches_from(words)?)?)
    }

    /// Measures the models.
    pub(crate) fn models(&self) -> anyhow::Result<Vec<ModelReport>> {
        let target = LoadTarget { allow_symlinks: self.allow_symlinks, ..self.devices.target()? };
        let bars = progress_bars("measuring", "batch sizes");
        profile(&self.repository, target, self.model.as_deref(), bars).map_err(anyhow::Error::msg)
    }
}

pub(crate) fn list(args: &ModelsArgs) -> anyhow::Result<()> {
    let args = &ModelsArgs { repository: download::local_now(&args.repository)?, ..args.clone() };
    let models = if args.no_load {
        let target = LoadTarget { allow_symlinks: args.allow_symlinks, ..args.devices.target()? };
        read(&args.repository, &target).map_err(anyhow::Error::msg)?
    } else {
        load(args)?
    };
    if args.format == Format::Json {
        print_json(&serde_json::json!({ "models": models }))?;
    } else {
        output::print(format!("{}\n\n{}", tables::models(&models), tables::tensors(&models)))?;
    }
    check_all(&args.repository, &models)
}

/// Loads the models into an engine with the default policy of `serve`, and ends the engine.
fn load(args: &ModelsArgs) -> anyhow::Result<Vec<ModelReport>> {
    let (policy, options) = PolicyArgs::default().served(None)?;
    let service = Service {
        repository: args.repository.clone(),
        devices: args.devices.clone(),
        policy,
        options,
        shards: 1,
        max_live: Limits::SERVED_REQUESTS,
        max_devices: None,
        record: None,
        flight: None,
        measure_for: None,
        slo: None,
        control: ModelControl::default(),
        allow_symlinks: args.allow_symlinks,
        config: ServerConfig::default(),
    };
    let Opened { engine, repository, .. } = service.open()?;
    let models = repository.load_all().map_err(anyhow::Error::msg);
    engine.shutdown();
    models
}

pub(crate) fn measure(args: &ProfileArgs) -> anyhow::Result<()> {
    if args.corpus.given() {
        return corpus::run(&args.corpus, args.format);
    }
    args.corpus.check_absent()?;
    if let Some(Stages::Auto) = args.stages {
        let target = LoadTarget { allow_symlinks: args.allow_symlinks, ..args.devices.target()? };
        return try_stages(args, &target);
    }
    let models = args.models()?;
    if args.format == Format::Json {
        print_json(&serde_json::json!({ "models": models }))?;
    } else {
        output::print(format!("{}\n\n{}", tables::models(&models), tables::profiles(&models)))?;
    }
    check_all(&args.repository, &models)
}

fn try_stages(args: &ProfileArgs, target: &LoadTarget) -> anyhow::Result<()> {
    let bars = progress_bars("trying stages of", "steps");
    let tried = stage(&args.repository, target, args.model.as_deref(), &bars).map_err(anyhow::Error::msg)?;
    if args.format == Format::Json {
        print_json(&tried)?;
    } else {
        output::print(stages::tables(&tried.models, &tried.errors))?;
    }
    match tried.models.is_empty() {
        true => bail!("no model has stages to try; it says above why"),
        false => Ok(()),
    }
}

/// Returns the advice for a repository without a model.
pub(crate) fn nothing_in(repository: &Path) -> String {
    let shown = repository.display();
    let instead = found_instead(repository).map_or_else(String::new, |found| format!(" ({found})"));
    format!(
        "{shown} holds no models{instead}; put one at {shown}/NAME/1/model.onnx or model.py, or see `ripieno demo`, which brings its own"
    )
}

/// Returns an error if a model cannot be served, or if there is none, since scripts rely on the
/// exit code.
pub(crate) fn check_all(repository: &Path, models: &[ModelReport]) -> anyhow::Result<()> {
    if models.is_empty() {
        bail!("{}", nothing_in(repository));
    }
    match models.iter().filter(|model| model.error.is_some()).count() {
        0 => Ok(()),
        failed => bail!("{failed} of {} models cannot be served; it says above why", models.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::devices::DeviceKind;
    use std::fs;

    #[test]
    fn the_exit_code_tells_of_any_model_that_cannot_be_served() {
        let folder = std::env::temp_dir().join(format!("ripieno-models-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let check = || {
            let devices = DeviceArgs { device: DeviceKind::Emulated(None), ..DeviceArgs::default() };
            let args = ModelsArgs {
                repository: folder.clone(),
                devices,
                no_load: false,
                allow_symlinks: false,
                format: Format::default(),
            };
            let loaded = check_all(&folder, &load(&args).unwrap()).map_err(|error| error.to_string());
            let target = args.devices.target().unwrap();
            let read = check_all(&folder, &read(&folder, &target).unwrap()).map_err(|error| error.to_string());
            assert_eq!(loaded, read);
            loaded
        };
        assert!(check().unwrap_err().contains("holds no models; put one at"));
        fs::create_dir_all(folder.join("good")).unwrap();
        fs::write(folder.join("good/model.toml"), "alpha_ms = 1\nbeta_ms = 1\n").unwrap();
        assert_eq!(check(), Ok(()));
        fs::create_dir_all(folder.join("bad")).unwrap();
        fs::write(folder.join("bad/model.toml"), "slo = 1\n").unwrap();
        assert_eq!(check().unwrap_err(), "1 of 2 models cannot be served; it says above why");
        fs::remove_dir_all(folder).unwrap();
    }
}
