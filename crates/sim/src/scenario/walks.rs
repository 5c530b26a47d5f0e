//! Walks of requests: lengths, outputs and trees.
//!
//! The drawn values are known to the world only. A decoder's requests end after the length of their
//! output, which by default is also their limit. So it is in the experiments of the papers, where
//! the steps of a decoder were unfolded in advance. With `extra_steps` or `max_steps` the end is
//! not known in advance, as with a real model.

use super::ParseResult;
use ripieno_base::{BlockId, Histogram};
use ripieno_model::{Block, Extent, Graph, Model, Steps, Walk};
use ripieno_workload::{
    Children, LengthDistribution, MAX_LENGTH, SeededRng, complete_tree, counted_lengths, parse_tree, tree_shapes, unit,
};
use serde::Deserialize;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The source of extents for a model that unfolds, or whose cost depends on the length of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct WalkSource {
    source: LengthSource,
    output: OutputLength,
    limit: Limit,
}

#[derive(Clone, Debug, PartialEq)]
enum LengthSource {
    Lengths(LengthDistribution),
    /// These graphs of the scenario, with equal probability.
    Trees(Range<u32>),
}

/// The length of a decoder's output.
#[derive(Clone, Debug, PartialEq)]
enum OutputLength {
    /// Equal to the input.
    Same,
    /// The input times a log-normal factor: mean and standard deviation of its logarithm.
    Ratio(f64, f64),
    Own(LengthDistribution),
}

/// Upper bound on the steps of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// No bound: no block runs until an end.
    Without,
    /// The length of its output.
    Output,
    Extra(u32),
    Absolute(u32),
}

/// The properties drawn for a request.
pub(crate) struct Drawn {
    pub(crate) extent: Extent,
    pub(crate) output: u32,
    pub(crate) graph: Option<u32>,
}

impl WalkSource {
    /// Draws the next request.
    pub(crate) fn draw(&self, random: &mut SeededRng, graphs: &[Graph]) -> Drawn {
        match &self.source {
            LengthSource::Trees(range) => {
                let many = f64::from(range.end - range.start);
                let graph = range.start + (unit(random) * many) as u32;
                of_tree(graph, graphs)
            }
            LengthSource::Lengths(lengths) => {
                let length = lengths.draw(random);
                let output = match &self.output {
                    OutputLength::Same => length,
                    OutputLength::Own(lengths) => lengths.draw(random),
                    OutputLength::Ratio(mu, sigma) => {
                        let mu = mu + f64::from(length).ln();
                        LengthDistribution::LogNormal { mu, sigma: *sigma, min: 1, max: MAX_LENGTH }.draw(random)
                    }
                };
                self.of_lengths(length, output)
            }
        }
    }

    fn of_lengths(&self, length: u32, output: u32) -> Drawn {
        let limit = match self.limit {
            Limit::Without => return Drawn { extent: Extent { length, limit: 0 }, output: 0, graph: None },
            Limit::Output => output,
            Limit::Extra(more) => length.saturating_add(more),
            Limit::Absolute(most) => most,
        };
        Drawn { extent: Extent { length, limit }, output: output.min(limit), graph: None }
    }

    /// Returns the mean steps of a sequence and of an output, or the nodes of a graph, for a first
    /// estimate of the goodput.
    pub(crate) fn mean_steps(&self, graphs: &[Graph]) -> (f64, f64) {
        match &self.source {
            LengthSource::Trees(range) => {
                let nodes: usize = range.clone().map(|graph| graphs[graph as usize].len()).sum();
                (nodes as f64 / f64::from(range.end - range.start).max(1.0), 0.0)
            }
            LengthSource::Lengths(lengths) => {
                let output = match &self.output {
                    OutputLength::Same => lengths.mean(),
                    OutputLength::Ratio(mu, sigma) => lengths.mean() * (mu + sigma * sigma / 2.0).exp(),
                    OutputLength::Own(own) => own.mean(),
                };
                (lengths.mean(), output)
            }
        }
    }
}

fn of_tree(graph: u32, graphs: &[Graph]) -> Drawn {
    let nodes = graphs[graph as usize].len() as u32;
    Drawn { extent: Extent { length: nodes, limit: 0 }, output: 0, graph: Some(graph) }
}

/// Returns the device time of a mean request in batches that make the best use of the device, given
/// the share of requests that run each block.
pub(super) fn seconds_at_best(model: &Model, unfold: Option<&WalkSource>, reach: &[f64]) -> f64 {
    let length = unfold.map_or(1.0, |unfold| unfold.mean_steps(&[]).0);
    let rows = 1..=model.max_batch;
    let seconds = |(block, reach): (&Block, &f64)| {
        let work =
            |length: u32, rows: usize| block.cost(rows, length).as_secs_f64() / (rows as f64 * f64::from(length));
        let best = match &block.lengths {
            None => rows.clone().map(|rows| work(1, rows)).fold(f64::INFINITY, f64::min),
            Some(lengths) => {
                let points =
                    lengths.table().iter().flat_map(|&(length, _)| rows.clone().map(move |rows| (length, rows)));
                length * points.map(|(length, rows)| work(length, rows)).fold(f64::INFINITY, f64::min)
            }
        };
        reach * best
    };
    model.blocks.iter().zip(reach).map(seconds).sum()
}

/// Returns the device time of a mean request in full batches.
pub(super) fn seconds_per_request(model: &Model, unfold: &WalkSource, graphs: &[Graph]) -> f64 {
    let (length, output) = unfold.mean_steps(graphs);
    let nodes = model.blocks.iter().filter(|block| block.steps == Steps::Nodes).count();
    let seconds = |block: &Block| {
        let batch = block.max_batch().min(model.max_batch);
        let steps = match block.steps {
            Steps::Once => 1.0,
            Steps::Length => length,
            Steps::UntilEnd => output,
            Steps::Nodes => length / nodes as f64,
        };
        steps * block.profile.latency(batch).as_secs_f64() / batch as f64
    };
    model.blocks.iter().map(seconds).sum()
}

/// The keys of `[[model]]` about walks.
#[derive(Default)]
pub(super) struct WalkKeys<'a> {
    pub(super) lengths: Option<&'a LengthsTable>,
    pub(super) output_lengths: Option<&'a LengthsTable>,
    pub(super) trees: Option<&'a TreesTable>,
    pub(super) extra_steps: Option<u32>,
    pub(super) max_steps: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LengthsTable {
    kind: String,
    value: Option<u32>,
    mu: Option<f64>,
    sigma: Option<f64>,
    min: Option<u32>,
    max: Option<u32>,
    file: Option<PathBuf>,
    dataset: Option<String>,
    mean: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TreesTable {
    kind: String,
    leaves: Option<u32>,
    file: Option<PathBuf>,
    dataset: Option<String>,
}

impl WalkKeys<'_> {
    /// Returns the length of the longest requests: the given one, or the longest that may be drawn.
    pub(super) fn longest(&self, given: Option<u32>, folder: &Path) -> ParseResult<Option<u32>> {
        let drawn = self.lengths.map(|lengths| lengths.parse("lengths", folder)).transpose()?.map(|it| it.longest());
        match (given, drawn) {
            (Some(given), Some(drawn)) if given < drawn => {
                Err(format!("max_length = {given}, but lengths go up to {drawn}; give lengths a max of {given}"))
            }
            (Some(0), _) => Err("max_length = 0; it must be at least 1".to_owned()),
            (given, drawn) => Ok(given.or(drawn)),
        }
    }

    /// Parses the source of a model's requests; graphs are added to the scenario's. None if the
    /// requests do not differ.
    pub(super) fn parse(
        &self,
        model: &Model,
        listed: bool,
        folder: &Path,
        graphs: &mut Vec<Graph>,
    ) -> ParseResult<Option<WalkSource>> {
        let walk = model.walk;
        let takes_output = walk == Walk::EncodeDecode;
        let takes_lengths = (walk.is_unfolded() && walk != Walk::Tree) || model.has_lengths();
        for (key, given, taken) in [
            ("lengths", self.lengths.is_some(), takes_lengths),
            ("output_lengths", self.output_lengths.is_some(), takes_output),
            ("extra_steps", self.extra_steps.is_some(), takes_output),
            ("max_steps", self.max_steps.is_some(), takes_output),
            ("trees", self.trees.is_some(), walk == Walk::Tree),
        ] {
            if given && !taken && key == "lengths" && !walk.is_unfolded() {
                return Err(
                    "lengths have no effect: latencies do not depend on them; give preferred_tokens or by_length"
                        .to_owned(),
                );
            }
            if given && !taken {
                return Err(format!("{key} has no meaning for walk = {:?}; remove it", walk.name()));
            }
        }
        if !takes_lengths && walk != Walk::Tree {
            return Ok(None);
        }
        let source = match (walk, self.lengths, self.trees) {
            (Walk::Tree, _, Some(trees)) => LengthSource::Trees(trees.parse(folder, graphs)?),
            (Walk::Tree, _, None) if !listed => {
                return Err(
                    "walk = \"tree\" needs trees = { kind = \"complete\", leaves = 16 }, or shapes from a file"
                        .to_owned(),
                );
            }
            (Walk::Tree, ..) => LengthSource::Trees(0..0),
            (_, Some(lengths), _) => LengthSource::Lengths(lengths.parse("lengths", folder)?),
            (_, None, _) if !listed => {
                return Err(format!("walk = {:?} needs lengths = {{ kind = \"fixed\", value = 24 }}", walk.name()));
            }
            (_, None, _) => LengthSource::Lengths(LengthDistribution::Fixed(1)),
        };
        let limit = if walk.is_unfolded() { self.limit()? } else { Limit::Without };
        Ok(Some(WalkSource { source, output: self.output(folder)?, limit }))
    }

    fn output(&self, folder: &Path) -> ParseResult<OutputLength> {
        match self.output_lengths {
            None => Ok(OutputLength::Same),
            Some(table) if table.kind == "same" => Ok(OutputLength::Same),
            Some(table) if table.kind == "ratio" => match (table.mu.unwrap_or(0.0), table.sigma) {
                (mu, _) if mu.is_nan() || mu.abs() >= 5.0 => {
                    Err(format!("output_lengths: mu = {mu}; it must lie between -5 and 5"))
                }
                (mu, Some(sigma)) if (0.0..10.0).contains(&sigma) => Ok(OutputLength::Ratio(mu, sigma)),
                _ => Err("output_lengths of kind \"ratio\" need sigma, at least 0 and below 10".to_owned()),
            },
            Some(table) => Ok(OutputLength::Own(table.parse("output_lengths", folder)?)),
        }
    }

    fn limit(&self) -> ParseResult<Limit> {
        match (self.extra_steps, self.max_steps) {
            (None, None) => Ok(Limit::Output),
            (Some(extra), None) => Ok(Limit::Extra(extra)),
            (None, Some(0)) => Err("max_steps = 0; it must be at least 1".to_owned()),
            (None, Some(most)) => Ok(Limit::Absolute(most)),
            (Some(_), Some(_)) => Err("both extra_steps and max_steps are given; remove one".to_owned()),
        }
    }
}

impl LengthsTable {
    fn parse(&self, key: &str, folder: &Path) -> ParseResult<LengthDistribution> {
        let fail = |problem: String| format!("{key}: {problem}");
        match self.kind.as_str() {
            "fixed" => match self.value {
                Some(value) if (1..=MAX_LENGTH).contains(&value) => Ok(LengthDistribution::Fixed(value)),
                _ => Err(fail(format!("kind \"fixed\" needs a value of 1 to {MAX_LENGTH}"))),
            },
            "lognormal" => {
                let (Some(mu), Some(sigma)) = (self.mu, self.sigma) else {
                    return Err(fail("kind \"lognormal\" needs mu and sigma".to_owned()));
                };
                let (min, max) = (self.min.unwrap_or(1), self.max.unwrap_or(MAX_LENGTH));
                LengthDistribution::log_normal(mu, sigma, min, max).map_err(|error| fail(error.to_string()))
            }
            "histogram" => self.histogram(folder).map(LengthDistribution::Histogram).map_err(fail),
            other => Err(fail(format!("kind = {other:?}; it must be \"fixed\", \"lognormal\" or \"histogram\""))),
        }
    }

    fn histogram(&self, folder: &Path) -> ParseResult<Histogram> {
        let mut histogram = match (&self.file, &self.dataset) {
            (Some(file), None) => counted(&folder.join(file)),
            (None, Some(name)) => counted_lengths(name).map_err(|error| error.to_string()),
            _ => Err("kind \"histogram\" needs either a file of lines \"length,count\", or a dataset".to_owned()),
        }?;
        if let Some(mean) = self.mean {
            histogram = histogram.scaled_to(mean).map_err(|error| error.to_string())?;
        }
        match self.max {
            Some(max) => histogram.up_to(max).map_err(|error| error.to_string()),
            None => Ok(histogram),
        }
    }
}

/// Reads a file of counted lengths.
pub(super) fn counted(path: &Path) -> ParseResult<Histogram> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Histogram::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

impl TreesTable {
    fn parse(&self, folder: &Path, graphs: &mut Vec<Graph>) -> ParseResult<Range<u32>> {
        let first = graphs.len() as u32;
        match (self.kind.as_str(), self.leaves, &self.file, &self.dataset) {
            ("complete", Some(leaves @ 1..=65_536), None, None) => graphs.push(graph(&complete_tree(leaves))?),
            ("complete", ..) => return Err("trees: kind \"complete\" needs leaves, 1 to 65536".to_owned()),
            ("shapes", None, Some(file), None) => {
                let path = folder.join(file);
                let text =
                    std::fs::read_to_string(&path).map_err(|error| format!("trees: {}: {error}", path.display()))?;
                read_shapes(&text, graphs).map_err(|problem| format!("trees: {}, {problem}", path.display()))?;
            }
            ("shapes", None, None, Some(name)) => {
                let text = tree_shapes(name).map_err(|error| format!("trees: {error}"))?;
                read_shapes(text, graphs)?;
            }
            ("shapes", ..) => {
                return Err("trees: kind \"shapes\" needs either a file with a shape a line, or a dataset".to_owned());
            }
            (other, ..) => return Err(format!("trees: kind = {other:?}; it must be \"complete\" or \"shapes\"")),
        }
        Ok(first..graphs.len() as u32)
    }
}

/// Reads one shape per line, after a header that names the column.
fn read_shapes(text: &str, graphs: &mut Vec<Graph>) -> ParseResult<()> {
    let before = graphs.len();
    for (at, line) in
        text.lines().enumerate().filter(|(at, line)| !(line.trim().is_empty() || *at == 0 && *line == "shape"))
    {
        graphs.push(tree(line).map_err(|problem| format!("line {}: {problem}", at + 1))?);
    }
    if graphs.len() == before { Err("there is no shape".to_owned()) } else { Ok(()) }
}

fn tree(text: &str) -> ParseResult<Graph> {
    graph(&parse_tree(text).map_err(|error| error.to_string())?)
}

fn graph(children: &Children) -> ParseResult<Graph> {
    let tree = Graph::tree(children.len(), |node| &children[node], BlockId(0), BlockId(1));
    tree.map_err(|error| error.to_string())
}

/// The walk of a listed request.
pub(super) struct Listed<'a> {
    pub(super) length: Option<u32>,
    pub(super) output_length: Option<u32>,
    pub(super) tree: Option<&'a str>,
}

impl Listed<'_> {
    pub(super) fn parse(
        &self,
        model: &Model,
        unfold: Option<&WalkSource>,
        longest: Option<u32>,
        graphs: &mut Vec<Graph>,
    ) -> ParseResult<Drawn> {
        let walk = model.walk;
        let Some(unfold) = unfold else {
            // The columns belong to other models in the same file.
            return Ok(Drawn { extent: Extent::ONE, output: 0, graph: None });
        };
        if walk == Walk::Tree {
            let text = self.tree.filter(|text| !text.is_empty()).ok_or("tree is missing; write one as ((xx)x)")?;
            graphs.push(tree(text)?);
            return Ok(of_tree(graphs.len() as u32 - 1, graphs));
        }
        let length = self.length.ok_or_else(|| format!("length is missing; walk {:?} needs it", walk.name()))?;
        let output = self.output_length.unwrap_or(length);
        for (key, value) in [("length", length), ("output_length", output)] {
            let most = longest.unwrap_or(MAX_LENGTH);
            if !(1..=most).contains(&value) {
                return Err(format!("{key} = {value}; it must be between 1 and {most}"));
            }
        }
        Ok(unfold.of_lengths(length, output))
    }
}
