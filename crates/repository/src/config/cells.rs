//! Keys of `model.toml` that describe walks in cells: the source of each cell input, and the
//! model's outputs.
//!
//! Sources are strings such as `"previous.h_next"`. They are parsed here, where errors can name
//! their line. Whether the cells have these tensors, with matching shapes, is checked at load.

#[cfg(test)]
mod tests;

use super::keys::{Keys, nearest};
use super::length_profile::LengthProfile;
use super::{MAX_BATCH, batch_sizes};
use ripieno_base::BlockId;
use ripieno_executor::{
    AnswerSource, AnswerSteps, BlockSource, Initial, InputLink, InputSource, ModelSource, StepLimit,
};
use ripieno_model::{Steps, Walk};

/// Maximum configurable request length, in elements or nodes.
const MAX_LENGTH: usize = 1_000_000;
const MAX_PRIORITY: usize = 1_000_000;
/// Words that begin a source and therefore cannot name a block.
const RESERVED: [&str; 3] = ["request", "previous", "root"];
/// Keys of a [[block]] that apply only to cells.
pub(super) const CELL_KEYS: [&str; 7] = ["priority", "max_batch", "batch_sizes", "inputs", "initial", "end", "once"];

/// Configuration of a model in cells.
#[derive(Clone, Debug, PartialEq)]
pub struct CellsConfig {
    /// Walk of a request through the cells.
    pub walk: Walk,
    /// Maximum number of elements of a sequence, or of nodes of a tree or graph.
    pub max_length: u32,
    /// Limit on a decoder's steps.
    pub limit: StepLimit,
    /// Distribution of output lengths.
    pub lengths: Option<LengthProfile>,
    /// One entry per block, in order.
    pub cells: Vec<CellConfig>,
    /// The outputs that clients receive.
    pub answers: Vec<AnswerSource>,
}

impl CellsConfig {
    /// Creates the configuration of cells that the model's own code declares.
    pub(crate) fn of(source: &ModelSource) -> CellsConfig {
        let cell = |block: &BlockSource| CellConfig {
            steps: block.steps,
            backward: block.backward,
            priority: block.priority,
            max_batch: None,
            sizes: block.sizes.clone(),
            links: block.links.clone(),
            end: block.end.clone(),
        };
        CellsConfig {
            walk: source.walk,
            max_length: source.max_length,
            limit: source.limit,
            lengths: None,
            cells: source.blocks.iter().map(cell).collect(),
            answers: source.answers.clone(),
        }
    }
}

/// Keys of a `[[block]]` that is a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellConfig {
    /// Number of times that a request runs the cell.
    pub steps: Steps,
    /// Whether the cell steps from the last element to the first, in parallel with the block before
    /// it.
    pub backward: bool,
    /// Priority; higher runs first.
    pub priority: u32,
    /// Maximum rows in a batch of this cell; `None` selects the best measured size.
    pub max_batch: Option<usize>,
    /// Sizes that batches are padded to; empty allows any size.
    pub sizes: Vec<usize>,
    /// Sources of the inputs.
    pub links: Vec<InputLink>,
    /// Output that signals the last step.
    pub end: Option<String>,
}

/// Names of the blocks, and the number of times that each runs.
struct CellBlocks {
    walk: Walk,
    names: Vec<String>,
    steps: Vec<Steps>,
}

/// Reads the keys that only models in cells have.
pub(super) fn read(
    keys: &Keys<'_>,
    walk: Walk,
    blocks: &[Keys<'_>],
    outputs: &[Keys<'_>],
) -> Result<CellsConfig, String> {
    let names = blocks.iter().map(|block| name(block)).collect::<Result<Vec<_>, _>>()?;
    let steps = read_steps(keys, walk, blocks)?;
    let cast = CellBlocks { walk, names, steps };
    let cells = blocks.iter().enumerate().map(|(at, block)| read_cell(block, at, &cast));
    if outputs.is_empty() {
        return Err(keys.error("a walk of cells needs an [[output]] with from = \"BLOCK.OUTPUT\", what clients get"));
    }
    Ok(CellsConfig {
        walk,
        max_length: keys.whole("max_length", 1, MAX_LENGTH)?.map_or(ModelSource::MAX_LENGTH, |length| length as u32),
        limit: read_limit(keys, walk)?,
        lengths: LengthProfile::read(keys, walk == Walk::EncodeDecode)?,
        cells: cells.collect::<Result<_, _>>()?,
        answers: outputs.iter().map(|output| read_answer(output, &cast)).collect::<Result<_, _>>()?,
    })
}

/// Refuses cell keys in other models. `max_length` is also allowed for inputs with a length.
pub(super) fn refuse(
    keys: &Keys<'_>,
    blocks: &[Keys<'_>],
    outputs: &[Keys<'_>],
    has_lengths: bool,
) -> Result<(), String> {
    let belongs = "belongs to a walk of cells; write walk = \"repeat\", for example, or remove it";
    if keys.has("max_length") && !has_lengths {
        let fix = "belongs to a walk of cells or to inputs with a length_dim; write one of the two, or remove it";
        return Err(keys.wrong("max_length", fix));
    }
    let of_model = ["extra_steps", "max_steps", "length_profile", "coverage"].map(|key| (keys, key));
    let of_blocks = blocks.iter().flat_map(|block| CELL_KEYS.map(|key| (block, key)));
    let of_outputs = outputs.iter().flat_map(|output| ["from", "take"].map(|key| (output, key)));
    match of_model.into_iter().chain(of_blocks).chain(of_outputs).find(|(keys, key)| keys.has(key)) {
        Some((keys, "batch_sizes")) => {
            Err(keys.wrong("batch_sizes", "holds for all blocks of a chain; write it once, above the first [[block]]"))
        }
        Some((keys, key)) => Err(keys.wrong(key, belongs)),
        None => Ok(()),
    }
}

fn name(block: &Keys<'_>) -> Result<String, String> {
    let name = block.required(block.text("name", "encoder")?, "name", "\"encoder\"")?;
    let child = name.strip_prefix("child").is_some_and(|rest| rest.parse::<u32>().is_ok());
    match RESERVED.contains(&name.as_str()) || child || name.contains('.') {
        true => Err(block.wrong("name", "has a meaning of its own in the sources of cells; use another name")),
        false => Ok(name),
    }
}

/// Returns how often each block runs, from the walk, the block's position and the key `once`.
fn read_steps(keys: &Keys<'_>, walk: Walk, blocks: &[Keys<'_>]) -> Result<Vec<Steps>, String> {
    let (every, count, needs) = match walk {
        Walk::Repeat => (Steps::Length, Some(1), "one block that repeats, and maybe a head"),
        Walk::Bidirectional => (Steps::Length, Some(2), "a forward and a backward block, and maybe a head"),
        Walk::EncodeDecode => (Steps::Length, Some(2), "an encoder and a decoder, and maybe a head"),
        Walk::Tree => (Steps::Nodes, Some(2), "a leaf and an internal block, and maybe a head"),
        Walk::Graph => (Steps::Nodes, None, "a block for each kind of node"),
        _ => (Steps::Length, None, "a block for each layer"),
    };
    let mut steps = Vec::with_capacity(blocks.len());
    for (at, block) in blocks.iter().enumerate() {
        let once = block.yes_or_no("once")?;
        let of_walk = match walk {
            Walk::EncodeDecode if at == 1 => Steps::UntilEnd,
            _ => every,
        };
        let runs = match (once, count) {
            (Some(true), Some(count)) if at < count => {
                return Err(block.wrong("once", &format!("walk = \"{}\" needs {needs}; remove it", walk.name())));
            }
            (Some(true), _) => Steps::Once,
            (None, Some(count)) if at >= count => Steps::Once,
            (_, Some(count)) if at >= count => {
                return Err(block.wrong("once", "what comes after the cells of the walk runs once; write once = true"));
            }
            _ => of_walk,
        };
        if runs != Steps::Once && steps.last() == Some(&Steps::Once) {
            return Err(block.error("a block that repeats stands after a head; put the head last"));
        }
        steps.push(runs);
    }
    let repeating = steps.iter().filter(|&&steps| steps != Steps::Once).count();
    match repeating > 0 && count.is_none_or(|count| repeating == count) {
        true => Ok(steps),
        false => Err(keys.wrong("walk", &format!("needs {needs}; add a [[block]] section for each"))),
    }
}

fn read_limit(keys: &Keys<'_>, walk: Walk) -> Result<StepLimit, String> {
    let (extra, fixed) = (keys.whole("extra_steps", 0, MAX_LENGTH)?, keys.whole("max_steps", 1, MAX_LENGTH)?);
    match (extra, fixed) {
        (Some(_), None) if walk != Walk::EncodeDecode => {
            Err(keys.wrong("extra_steps", "belongs to walk = \"encode-decode\"; remove it"))
        }
        (None, Some(_)) if walk != Walk::EncodeDecode => {
            Err(keys.wrong("max_steps", "belongs to walk = \"encode-decode\"; remove it"))
        }
        (Some(_), Some(_)) => Err(keys.wrong("max_steps", "stands beside extra_steps; keep one of the two")),
        (Some(extra), None) => Ok(StepLimit::Extra(extra as u32)),
        (None, Some(steps)) => Ok(StepLimit::Fixed(steps as u32)),
        (None, None) => Ok(StepLimit::default()),
    }
}

fn read_cell(block: &Keys<'_>, at: usize, cast: &CellBlocks) -> Result<CellConfig, String> {
    let end = block.text("end", "done")?;
    let steps = cast.steps[at];
    if end.is_some() && steps != Steps::UntilEnd {
        return Err(block.wrong("end", "belongs to the decoder of walk = \"encode-decode\"; remove it"));
    }
    if end.is_none() && steps == Steps::UntilEnd {
        return Err(block
            .error("the key end is missing; name the output that is not zero at the last step, as in end = \"done\""));
    }
    Ok(CellConfig {
        steps,
        backward: cast.walk == Walk::Bidirectional && at == 1,
        priority: block.whole("priority", 0, MAX_PRIORITY)?.unwrap_or(at) as u32,
        max_batch: block.whole("max_batch", 1, MAX_BATCH)?,
        sizes: batch_sizes::read(block)?.unwrap_or_default(),
        links: read_links(block, at, cast)?,
        end,
    })
}

fn read_links(block: &Keys<'_>, at: usize, cast: &CellBlocks) -> Result<Vec<InputLink>, String> {
    let (inputs, initial) = (block.table("inputs")?, block.table("initial")?);
    let mut links = Vec::new();
    for input in inputs.iter().flat_map(Keys::names) {
        let inputs = inputs.as_ref().expect("it has names");
        let text = inputs.required(inputs.text(input, "previous.h_next")?, input, "\"request\"")?;
        let from = read_source(&text, input, at, cast).map_err(|fix| inputs.wrong(input, &fix))?;
        links.push(InputLink { input: input.to_owned(), from, initial: None });
    }
    let Some(initial) = initial else { return Ok(links) };
    for input in initial.names() {
        let repeats = |link: &&mut InputLink| link.input == input && matches!(link.from, InputSource::Previous(_));
        let link = links.iter_mut().find(repeats).ok_or_else(|| {
            initial.wrong(
                input,
                "is for inputs that [block.inputs] takes from \"previous.OUTPUT\"; write that, or remove it",
            )
        })?;
        link.initial = Some(read_initial(&initial, input, at, cast)?);
    }
    Ok(links)
}

fn read_initial(initial: &Keys<'_>, input: &str, at: usize, cast: &CellBlocks) -> Result<Initial, String> {
    if let Some(number) = initial.any_number(input) {
        return Ok(Initial::Number(number));
    }
    let text = initial.required(initial.text(input, "encoder.h_next")?, input, "0")?;
    let refuse = |fix: String| initial.wrong(input, &fix);
    let Some((block, output)) = text.split_once('.') else {
        return Err(refuse("must be a number, or the last output of a block as in \"encoder.h_next\"".to_owned()));
    };
    let block = find_block(block, at, cast).map_err(refuse)?;
    Ok(Initial::Last(block, output.to_owned()))
}

/// Parses a source. The error describes the valid forms.
fn read_source(text: &str, input: &str, at: usize, cast: &CellBlocks) -> Result<InputSource, String> {
    if let Some(rest) = text.strip_prefix("request") {
        match rest.strip_prefix(':') {
            Some(name) if !name.is_empty() => return Ok(InputSource::Request(name.to_owned())),
            None if rest.is_empty() => return Ok(InputSource::Request(input.to_owned())),
            _ => {}
        }
    }
    let Some((giver, output)) = text.split_once('.').filter(|(_, output)| !output.is_empty()) else {
        let words = "\"request\", \"request:NAME\", \"previous.OUTPUT\", \"childN.OUTPUT\", \"root.OUTPUT\" or \"BLOCK.OUTPUT\"";
        return Err(format!("must be one of {words}"));
    };
    let output = output.to_owned();
    if let Some(child) = giver.strip_prefix("child").and_then(|child| child.parse().ok()) {
        return match cast.steps[at] == Steps::Nodes && child < MAX_CHILDREN {
            true => Ok(InputSource::Child(child, output)),
            false => Err(format!("only the cells of a tree or graph have children, at most {MAX_CHILDREN}")),
        };
    }
    match giver {
        "previous" if matches!(cast.steps[at], Steps::Length | Steps::UntilEnd) => Ok(InputSource::Previous(output)),
        "previous" => Err("only a cell that steps along a sequence has a step before".to_owned()),
        "root" if cast.walk.brings_graph() && cast.steps[at] == Steps::Once => Ok(InputSource::Root(output)),
        "root" => Err("only a head (once = true) of a tree or graph takes its root".to_owned()),
        block => {
            let block = find_block(block, at, cast)?;
            let same_way = cast.walk != Walk::Bidirectional;
            let same_step = cast.steps[at] == Steps::Length && cast.steps[block.index()] == Steps::Length && same_way;
            Ok(if same_step { InputSource::Step(block, output) } else { InputSource::Last(block, output) })
        }
    }
}

/// Maximum number of children of a node.
const MAX_CHILDREN: u32 = 64;

/// Finds the block with this name before position `at`.
fn find_block(name: &str, at: usize, cast: &CellBlocks) -> Result<BlockId, String> {
    let earlier: Vec<&str> = cast.names[..at].iter().map(String::as_str).collect();
    if let Some(found) = earlier.iter().position(|known| *known == name) {
        return match cast.steps[found] {
            Steps::Nodes => {
                Err("a node's outputs are taken as \"childN.OUTPUT\", those of the last one as \"root.OUTPUT\""
                    .to_owned())
            }
            _ => Ok(BlockId(found as u16)),
        };
    }
    let advice = nearest(name, &earlier).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    let listed = if earlier.is_empty() { "none".to_owned() } else { earlier.join(", ") };
    Err(format!("no block \"{name}\" stands before this one, only {listed}{advice}"))
}

fn read_answer(output: &Keys<'_>, cast: &CellBlocks) -> Result<AnswerSource, String> {
    let name = output.required(output.text("name", "tokens")?, "name", "\"tokens\"")?;
    let take =
        output.one_of("take", &[("last", AnswerSteps::Last), ("every", AnswerSteps::Every)])?.unwrap_or_default();
    let from = output.required(output.text("from", "decoder.token_next")?, "from", "\"decoder.token_next\"")?;
    let refuse = |fix: String| output.wrong("from", &fix);
    let Some((block, tensor)) = from.split_once('.').filter(|(_, tensor)| !tensor.is_empty()) else {
        return Err(refuse("must be the output of a block, as in \"decoder.token_next\"".to_owned()));
    };
    let block = match block {
        "root" if cast.walk.brings_graph() => None,
        "root" => return Err(refuse("only a tree or graph has a root; name a block".to_owned())),
        block => Some(find_block(block, cast.names.len(), cast).map_err(refuse)?),
    };
    Ok(AnswerSource { name, block, tensor: tensor.to_owned(), take })
}
