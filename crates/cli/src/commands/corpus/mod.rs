//! `ripieno profile --lengths FILE | --corpus FILE`: characterises the sequence lengths of a
//! corpus.
//!
//! A decoder's length is known only at its end, but a corpus like its training data shows the usual
//! lengths of outputs. `lazy` predicts with the length that covers N % of them (`dec_timesteps` of
//! LazyBatching): a larger one is conservative and batches less, a smaller one risks late answers.
//! The output of `-o` belongs beside `model.toml` or a scenario.

mod read;

use crate::output::{self, print_json};
use anyhow::{Context, bail, ensure};
use clap::Args;
use read::{Side, Sides};
use ripieno_base::Histogram;
use ripieno_report::{Format, Table, number};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Lengths to characterise instead of models to measure.
#[derive(Args, Debug)]
pub(crate) struct CorpusArgs {
    /// Characterise lengths instead of measuring models: a number per line, a column of a CSV file,
    /// or lines of "length,count" after that header.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["corpus", "model"])]
    lengths: Option<PathBuf>,

    /// Characterise a text instead of measuring models: a sentence per line, its words counted; of
    /// lines "source TAB target" both sides.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    corpus: Option<PathBuf>,

    /// The column of --lengths, by its name in the first line.
    #[arg(long, value_name = "NAME", requires = "lengths")]
    column: Option<String>,

    /// Percentage of the outputs that a prediction should cover.
    #[arg(long, value_name = "N", default_value_t = 90.0)]
    coverage: f64,

    /// Write the length profile: for a text with two sides, of the target, the model's output.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Percentages for the table of covering lengths.
const COVERAGES: [f64; 9] = [16.0, 50.0, 70.0, 75.0, 80.0, 90.0, 95.0, 99.0, 100.0];
/// Number of bars of the histogram.
const BARS: u32 = 12;
/// Length of the longest bar, in characters.
const WIDEST: f64 = 50.0;

impl CorpusArgs {
    /// Returns true if lengths are characterised instead of latencies.
    pub(crate) fn given(&self) -> bool {
        self.lengths.is_some() || self.corpus.is_some()
    }

    /// Refuses options for lengths if there are none.
    pub(crate) fn check_absent(&self) -> anyhow::Result<()> {
        ensure!(self.output.is_none(), "-o is for --lengths and --corpus; profiles of models are kept beside them");
        Ok(())
    }

    fn sides(&self) -> anyhow::Result<Sides> {
        match (&self.lengths, &self.corpus) {
            (Some(file), _) => read::lengths(file, self.column.as_deref()),
            (None, Some(file)) => read::corpus(file),
            (None, None) => bail!("give --lengths FILE or --corpus FILE"),
        }
    }
}

/// The JSON output.
#[derive(Serialize)]
struct Characterisation {
    file: String,
    /// Number of lines without a word, which are not counted.
    empty_lines: u64,
    /// The length for `coverage`, of the last side.
    coverage: f64,
    dec_timesteps: u32,
    sides: Vec<Distribution>,
}

/// The distribution of one side's lengths.
#[derive(Serialize)]
struct Distribution {
    name: String,
    count: u64,
    mean: f64,
    min: u32,
    p25: u32,
    p50: u32,
    p75: u32,
    p90: u32,
    p99: u32,
    max: u32,
    histogram: Vec<HistogramBar>,
    coverage: Vec<Covered>,
}

/// The lengths `from..=to`.
#[derive(Serialize)]
struct HistogramBar {
    from: u32,
    to: u32,
    count: u64,
}

/// The length that covers a percentage.
#[derive(Serialize)]
struct Covered {
    percent: f64,
    dec_timesteps: u32,
}

pub(crate) fn run(args: &CorpusArgs, format: Format) -> anyhow::Result<()> {
    ensure!(
        args.coverage > 0.0 && args.coverage <= 100.0,
        "--coverage {}: it must be above 0 and at most 100",
        args.coverage
    );
    let Sides { file, empty_lines, sides } = args.sides()?;
    let outputs = &sides.last().context("a file has at least one side")?.lengths;
    let found = Characterisation {
        file,
        empty_lines,
        coverage: args.coverage,
        dec_timesteps: outputs.covering(args.coverage / 100.0),
        sides: sides.iter().map(|side| Distribution::of(side, args.coverage)).collect(),
    };
    if let Some(path) = &args.output {
        std::fs::write(path, outputs.to_csv()).with_context(|| format!("-o {}: cannot be written", path.display()))?;
    }
    match format {
        Format::Json => print_json(&found),
        Format::Table => output::print(show(&found, args.output.as_deref())),
    }
}

impl Distribution {
    fn of(Side { name, lengths }: &Side, wanted: f64) -> Distribution {
        let mut shares = COVERAGES.to_vec();
        if !shares.contains(&wanted) {
            shares.push(wanted);
            shares.sort_by(f64::total_cmp);
        }
        let covered = |percent: f64| Covered { percent, dec_timesteps: lengths.covering(percent / 100.0) };
        Distribution {
            name: name.clone(),
            count: lengths.total(),
            mean: lengths.mean(),
            min: lengths.covering(0.0),
            p25: lengths.covering(0.25),
            p50: lengths.covering(0.5),
            p75: lengths.covering(0.75),
            p90: lengths.covering(0.9),
            p99: lengths.covering(0.99),
            max: lengths.longest(),
            histogram: bars(lengths),
            coverage: shares.into_iter().map(covered).collect(),
        }
    }
}

/// Returns bars of one width up to the 99th percentile, and one for longer lengths.
fn bars(lengths: &Histogram) -> Vec<HistogramBar> {
    let reach = lengths.covering(0.99);
    let width = reach.div_ceil(BARS).max(1);
    let mut bars: Vec<HistogramBar> = (0..reach.div_ceil(width))
        .map(|place| HistogramBar { from: place * width + 1, to: (place + 1) * width, count: 0 })
        .collect();
    let mut beyond = HistogramBar { from: bars.last().map_or(1, |bar| bar.to + 1), to: lengths.longest(), count: 0 };
    for (length, count) in lengths.counts() {
        bars.get_mut(((length - 1) / width) as usize).unwrap_or(&mut beyond).count += count;
    }
    bars.extend((beyond.count > 0).then_some(beyond));
    bars
}

fn show(found: &Characterisation, written: Option<&Path>) -> String {
    let Characterisation { file, empty_lines, coverage, dec_timesteps, sides } = found;
    let mut table = Table::new(["lengths", "count", "mean", "min", "25 %", "50 %", "75 %", "90 %", "99 %", "max"]);
    for side in sides {
        let Distribution { min, p25, p50, p75, p90, p99, max, .. } = side;
        let whole = [min, p25, p50, p75, p90, p99, max].map(ToString::to_string);
        table.row([side.name.clone(), side.count.to_string(), number(side.mean)].into_iter().chain(whole));
    }
    let mut covering = Table::new(["covers %"].into_iter().chain(sides.iter().map(|side| side.name.as_str())));
    for (place, Covered { percent, .. }) in sides[0].coverage.iter().enumerate() {
        let steps = sides.iter().map(|side| side.coverage[place].dec_timesteps.to_string());
        covering.row([number(*percent)].into_iter().chain(steps));
    }
    let empty = if *empty_lines > 0 { format!("; {empty_lines} empty lines left out") } else { String::new() };
    let histogram = show_bars(sides.last().map_or(&[], |side| &side.histogram));
    let advice = match written {
        Some(path) => format!(
            "The length profile is in {}. In model.toml, or [[model]] of a scenario, beside it:\n  length_profile = {:?}\n  coverage = {}\n",
            path.display(),
            path.file_name().unwrap_or_default().to_string_lossy(),
            coverage / 100.0
        ),
        None => "With -o FILE it is written down, for length_profile in model.toml and scenarios.\n".to_owned(),
    };
    format!(
        "{file}{empty}\n\n{table}\n\n{histogram}\n{covering}\n\ndec_timesteps = {dec_timesteps} covers {coverage} %. {advice}"
    )
}

fn show_bars(bars: &[HistogramBar]) -> String {
    let most = bars.iter().map(|bar| bar.count).max().unwrap_or(1).max(1) as f64;
    let line = |bar: &HistogramBar| {
        let length = (bar.count as f64 / most * WIDEST).round() as usize;
        let range = if bar.from == bar.to { bar.to.to_string() } else { format!("{}-{}", bar.from, bar.to) };
        format!("{range:>11}  {:<50}  {}\n", "#".repeat(length), bar.count)
    };
    bars.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_hold_everybody() {
        let lengths = Histogram::new((1..=200).map(|length| (length, 1)).chain([(5000, 1)]).collect()).unwrap();
        let bars = bars(&lengths);
        assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), 201);
        assert_eq!((bars[0].from, bars.last().unwrap().to), (1, 5000));
        assert!(bars.windows(2).all(|pair| pair[0].to + 1 == pair[1].from));
    }

    #[test]
    fn one_length_is_one_bar() {
        let bars = bars(&Histogram::new(vec![(1, 3)]).unwrap());
        assert_eq!((bars.len(), bars[0].count), (1, 3));
    }
}
