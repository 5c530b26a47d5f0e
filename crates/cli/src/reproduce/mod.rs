//! `ripieno reproduce`: runs the experiments of the papers again, and says how ours compare.
//!
//! An [`Item`] is a figure or a table. It asks the [`Context`] for simulations, which are
//! independent of each other, so that they run on all cores, and are kept on disk, so that an interrupted call goes on
//! where it was. What comes out is a [`Report`](item::Report): rows of paper's value, our value and ratio, and a plot.

mod case;
mod cells;
mod context;
mod dvabatch;
mod item;
mod job;
mod lazybatching;
mod measured;
mod outcome;
mod played;
mod print;
mod queue;
mod symphony;
#[cfg(test)]
mod tests;

use crate::devices::EngineName;
use crate::output;
use anyhow::{Context as _, bail};
use clap::Args;
use context::{Context, Effort};
use item::Item;
use queue::Queue;
use ripieno_report::Format;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Rerun a figure or table of a paper: prints the paper's value, ours and their ratio, and writes a plot.
///
/// Every run is a simulation with the scheduling code of the live server; equal seeds give equal results. Runs are kept
/// in DIR/cache, so that a call that was interrupted goes on where it stopped. Only symphony/figure13-left is measured on a
/// wall clock, and what --measured adds.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// Which: `list` names them all, `all` runs them all, symphony/table2 runs one.
    #[arg(value_name = "list|PAPER/ITEM|all")]
    what: String,

    /// Fewer requests and points: everything within two minutes, with rougher numbers.
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// Everything that the paper ran, where the default is a sample. May take hours.
    #[arg(long)]
    full: bool,

    /// Beside the simulation, measure cells with a state of 1,024 and random weights on this machine, where the item says
    /// how (batchmaker/figure7a, figure13, figure14); a minute or two each, on an otherwise idle machine. With --models, real
    /// models of lazybatching and dvabatch, too.
    #[arg(long, value_name = "ENGINE", num_args = 0..=1, default_missing_value = "cpu")]
    measured: Option<EngineName>,

    /// Folder for plots and finished runs.
    #[arg(long, value_name = "DIR", default_value = "reproduce")]
    out: PathBuf,

    /// Simulations at a time; by default as many as there are cores.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Seeds per point, instead of the item's own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,

    /// With --measured, also measure the models of this repository; at most two minutes each with --quick, else ten. For
    /// lazybatching/figure12, figure13, figure16: tests/python/measured_models.py writes resnet50, bert and transformer with
    /// random weights, whole and in blocks. For dvabatch/figure14 to figure17: tests/python/dva_models.py writes bert, unet and
    /// resnet, whole and in stages.
    #[arg(long, value_name = "DIR", requires = "measured")]
    models: Option<PathBuf>,

    /// How to print the result.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &ReproduceArgs) -> anyhow::Result<()> {
    if args.what == "list" {
        return print::list(&items().collect::<Vec<_>>(), args.format);
    }
    let chosen: Vec<_> = items().filter(|item| args.what == "all" || args.what == item.id).collect();
    if chosen.is_empty() {
        let known: Vec<_> = items().map(|item| item.id).collect();
        bail!("nothing is called {:?}; use list, all, or one of {}", args.what, known.join(", "));
    }
    let context = context(args)?;
    let mut done = Vec::new();
    for item in chosen {
        done.push(reproduce(item, &context, &args.out, args.format)?);
    }
    match (args.format, done.as_slice()) {
        (Format::Table, _) => Ok(()),
        (Format::Json, [only]) if args.what != "all" => output::print_json(only),
        (Format::Json, all) => output::print_json(&serde_json::json!({ "items": all })),
    }
}

fn items() -> impl Iterator<Item = &'static Item> {
    symphony::ITEMS.iter().chain(cells::ITEMS).chain(lazybatching::ITEMS).chain(dvabatch::ITEMS)
}

fn context(args: &ReproduceArgs) -> anyhow::Result<Context> {
    let effort = match (args.quick, args.full) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Full,
        _ => Effort::Usual,
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let jobs = args.jobs.map_or(cores, NonZeroUsize::get);
    let queue = Queue::new(args.out.join("cache"), jobs)?;
    Ok(Context::new(effort, args.seeds, queue)
        .measuring(args.measured)
        .with_models(args.models.clone(), args.what == "all"))
}

/// Runs an item, writes its plot, prints it if people read it, and returns it for programs.
fn reproduce(item: &Item, context: &Context, out: &Path, format: Format) -> anyhow::Result<serde_json::Value> {
    let report = (item.run)(context).with_context(|| format!("{} cannot be reproduced", item.id))?;
    let plot = out.join(format!("{}.svg", item.id));
    let folder = plot.parent().unwrap_or(out);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    std::fs::write(&plot, report.figure.svg()).with_context(|| format!("cannot write {}", plot.display()))?;
    if format == Format::Table {
        print::report(item, &report, &plot)?;
    }
    let plot = plot.display().to_string();
    Ok(serde_json::json!({ "item": item.id, "rows": report.rows, "plot": plot }))
}
