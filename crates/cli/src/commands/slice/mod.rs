//! `ripieno slice`: cuts a model in one file into a chain of blocks, or a recurrent one into cells,
//! ready to be served.

mod print;

use crate::args::devices::DeviceArgs;
use crate::output::{self, print_json};
use anyhow::{Context, bail};
use clap::{ArgGroup, Args};
use ripieno_executor::{BlockSource, Executor, ModelSource};
use ripieno_onnx::{OnnxModel, RecurrentCells};
use ripieno_report::Format;
use ripieno_repository::slicing::{self, Cut, Sliced};
use ripieno_repository::slicing_check::{SliceComparison, compare, price_of_cuts};
use ripieno_repository::trial;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The batch sizes that are compared.
const CHECKED: [usize; 3] = [1, 3, 8];
/// Number of blocks up to which --check prices each cut, which takes as long as a check for each.
const MAX_PRICED: usize = 16;
/// The largest difference between the blocks and the whole that passes.
const TOLERANCE: f64 = 1e-4;

/// Cut a model in one file into a chain of blocks, so that batches may change between them.
///
/// Writes a folder that `ripieno serve DIR` serves: model.toml and, in 1/, one ONNX file for each
/// block. The blocks in sequence give the results of the whole model.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("how").required(true).args(["stages", "per_node", "at", "cells"])))]
pub(crate) struct SliceArgs {
    /// The model.
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,

    /// Cut into N blocks that are even in time, measured layer by layer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    stages: Option<u16>,

    /// Cut between any two layers: operators with weights, each with its normalisation and
    /// activation.
    #[arg(long)]
    per_node: bool,

    /// Cut behind the operators that compute these tensors.
    #[arg(long, value_name = "TENSOR,…", value_delimiter = ',')]
    at: Vec<String>,

    /// Cut a recurrent model into cells: one step of each LSTM, GRU or RNN, and the walk that
    /// repeats it.
    #[arg(long)]
    cells: bool,

    /// The folder to write; its name is the model's.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// Do not measure; estimate times from shapes.
    #[arg(long)]
    estimate: bool,

    /// Run the whole and the blocks in turn at 1, 3 and 8 rows, and compare answers and times. With
    /// up to 16 blocks, measure the cost of each cut, too.
    #[arg(long)]
    check: bool,

    /// Number of runs of each for the comparison of times.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "check")]
    runs: usize,

    #[command(flatten)]
    devices: DeviceArgs,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &SliceArgs) -> anyhow::Result<()> {
    let model = OnnxModel::read(&args.model)?;
    let existed = args.output.exists();
    let folder = new_folder(&args.output)?;
    let sliced = slice_into(args, &model, &folder);
    if sliced.is_err() {
        // A second try must not find half a model.
        let _ = fs::remove_dir_all(if existed { &folder } else { &args.output });
        let _ = fs::remove_file(args.output.join("model.toml"));
    }
    sliced
}

fn slice_into(args: &SliceArgs, model: &OnnxModel, folder: &Path) -> anyhow::Result<()> {
    if args.cells && args.check {
        bail!(
            "--check runs blocks one after the other, and cells are run step by step by a server; slice without --check, serve the \
             folder beside the model, and compare the answers to one request"
        );
    }
    if args.cells {
        return cells(args, &model.cells()?, folder);
    }
    let target = args.devices.target()?;
    if target.emulates() {
        bail!("--device emulated runs no models, so none can be measured; slice for --device cpu");
    }
    let cut = match (args.stages, args.per_node) {
        (Some(stages), _) => Cut::Stages(usize::from(stages)),
        (None, true) => Cut::Layers,
        (None, false) => Cut::At(args.at.clone()),
    };
    let engine = (!args.estimate).then_some(&*target.engine);
    let sliced = slicing::cut(model, &cut, engine).map_err(anyhow::Error::msg)?;
    sliced.slices.write(folder)?;
    let text = toml(sliced.slices.blocks.iter().map(|block| block.name.as_str()));
    write(&args.output.join("model.toml"), &text)?;
    let times = slicing::times(&sliced, engine);
    let checked = if args.check { check(args, &target.engine, model, &sliced, folder)? } else { Checked::default() };
    match args.format {
        Format::Json => print_json(&print::json(&sliced, &times, &checked))?,
        Format::Table => {
            let last = format!("ripieno serve {}", args.output.display());
            output::print(format!("{}\n\n{last}", print::table(&sliced, &times, &checked)))?;
        }
    }
    match checked.chains.iter().find(|comparison| comparison.difference.is_nan() || comparison.difference > TOLERANCE) {
        Some(wrong) => bail!("at {} rows the blocks differ from the whole by {:.2e}", wrong.rows, wrong.difference),
        None => Ok(()),
    }
}

/// Creates the version folder in a folder that holds no model yet.
fn new_folder(output: &Path) -> anyhow::Result<PathBuf> {
    let version = output.join("1");
    if version.exists() || output.join("model.toml").exists() {
        bail!("{} holds a model already; remove it or name another folder", output.display());
    }
    fs::create_dir_all(&version).with_context(|| format!("{}: cannot be made", version.display()))?;
    Ok(version)
}

fn toml<'a>(blocks: impl Iterator<Item = &'a str>) -> String {
    let mut text =
        "# Made by ripieno slice; slo_ms and the other keys of docs/reference/model-toml.md go above the blocks.\nwalk = \"chain\"\n"
            .to_owned();
    for name in blocks {
        let _ = write!(text, "\n[[block]]\nname = \"{name}\"\nfile = \"{name}.onnx\"\n");
    }
    text
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

fn cells(args: &SliceArgs, cells: &RecurrentCells, folder: &Path) -> anyhow::Result<()> {
    cells.write(folder)?;
    write(&args.output.join("model.toml"), &cells.to_toml())?;
    match args.format {
        Format::Json => print_json(&print::cells_json(cells)),
        Format::Table => output::print(print::cells(cells)),
    }
}

/// The results of --check.
#[derive(Default)]
struct Checked {
    /// All blocks against the whole, at each batch size.
    chains: Vec<SliceComparison>,
    /// The two blocks of each cut alone against the whole.
    cuts: Vec<SliceComparison>,
}

fn check(
    args: &SliceArgs,
    engine: &Arc<dyn Executor>,
    model: &OnnxModel,
    sliced: &Sliced<'_>,
    folder: &Path,
) -> anyhow::Result<Checked> {
    let largest = CHECKED.iter().copied().max().unwrap_or(1);
    let file = BlockSource { path: Some(args.model.clone()), ..BlockSource::new("model") };
    let whole = ModelSource::new("whole", vec![file], largest);
    let blocks = sliced.slices.blocks.iter().map(|block| block.name.clone());
    let blocks = trial::source("blocks", folder, blocks, largest);
    let chains = compare(&**engine, &whole, &blocks, &CHECKED, args.runs).map_err(anyhow::Error::msg)?;
    let cuts = match sliced.cuts.blocks() {
        0..=MAX_PRICED => price_of_cuts(&**engine, model, &sliced.cuts, largest, args.runs),
        _ => Ok(Vec::new()),
    };
    Ok(Checked { chains, cuts: cuts.map_err(anyhow::Error::msg)? })
}
