//! `ripieno new`: writes the folder of a model in Python.

use crate::output;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use ripieno_repository::scan::{CONFIG_FILE, PYTHON_FILE};
use std::fs;
use std::path::PathBuf;

/// Write the folder of a model in Python, which serves as it is.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  ripieno new ranker --from torch\n  ripieno serve models")]
pub(crate) struct NewArgs {
    /// Name of the model.
    #[arg(value_name = "NAME")]
    name: String,

    /// Kind of the model.
    #[arg(long, value_enum, default_value = "function")]
    from: Template,

    /// Folder of models to write into, made if need be.
    #[arg(long, value_name = "DIR", default_value = "models")]
    repository: PathBuf,
}

/// Kind of a new model.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Template {
    /// A NumPy function over a batch.
    Function,
    /// A PyTorch module.
    Torch,
    /// A scikit-learn estimator.
    Sklearn,
}

impl Template {
    fn code(self) -> &'static str {
        match self {
            Template::Function => include_str!("function.py"),
            Template::Torch => include_str!("torch.py"),
            Template::Sklearn => include_str!("sklearn.py"),
        }
    }
}

const CONFIG: &str = "# Requests are answered within this time, or refused early. Without it none is refused as late.\nslo_ms = 100\n\n\
                      # python = \".venv/bin/python\"    # an interpreter with the package ripieno\n";

pub(crate) fn run(args: &NewArgs) -> anyhow::Result<()> {
    let NewArgs { name, from, repository } = args;
    let plain = |next: char| next.is_alphanumeric() || "._-".contains(next);
    if name.starts_with('.') || !name.chars().all(plain) {
        bail!("{name:?}: a model's name has letters, digits, '.', '_' and '-', and begins with another than '.'");
    }
    let folder = repository.join(name);
    if folder.exists() {
        bail!("{} is there already; choose another name", folder.display());
    }
    let version = folder.join("1");
    fs::create_dir_all(&version).with_context(|| format!("{} cannot be made", version.display()))?;
    for (path, text) in [(version.join(PYTHON_FILE), from.code()), (folder.join(CONFIG_FILE), CONFIG)] {
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    let (file, models) = (version.join(PYTHON_FILE), repository.display());
    output::print(format!("{}\nserve it: ripieno serve {models}", file.display()))
}
