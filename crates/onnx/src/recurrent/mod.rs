//! Recurrent operators into cells: an LSTM, GRU or RNN over a whole sequence becomes a file for one step and a walk that
//! repeats it, so that sequences of any length join and leave a batch at every element and none is padded.
//!
//! The operators around the recurrence go with it as they are: with a length of 1 they do to one element what they do to
//! each element of a sequence, which [`time`] makes sure of. What needs the end of the sequence (the last state, the last
//! element) becomes a block of its own, `head`, which runs once. A model that does not come apart so is refused with the
//! operator that stands in the way: stacked bidirectional layers, for one, need all elements of the layer below.

mod draft;
mod random;
mod steps;
#[cfg(test)]
mod tests;
mod text;
mod time;

use crate::error::{OnnxError, refuse};
use crate::graph::{Model, Node};
use draft::CellDraft;
use prost::Message;
pub use random::RandomCells;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use steps::Recurrence;
use time::Time;

/// A recurrent model as cells and the walk through them.
#[derive(Clone, Debug)]
pub struct Cells {
    /// "repeat", "stacked" or "bidirectional".
    pub walk: &'static str,
    /// The cells in the walk's order; a head comes last.
    pub blocks: Vec<Cell>,
    /// What a request gets.
    pub outputs: Vec<Answer>,
}

/// One cell.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Its name; the file is NAME.onnx.
    pub name: String,
    /// Whether it runs once, at the end.
    pub once: bool,
    /// Its inputs, and where each comes from: "request", "previous.TENSOR", "BLOCK.TENSOR".
    pub inputs: Vec<(String, String)>,
    /// The ONNX file.
    pub file: Vec<u8>,
}

/// One output of the model.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its name.
    pub name: String,
    /// "BLOCK.TENSOR".
    pub from: String,
    /// Whether it has one part for every element; only the last element's if not.
    pub every: bool,
}

/// A recurrent operator of the graph and the blocks that it becomes.
struct Layer<'m> {
    node: &'m Node,
    recurrence: Recurrence,
    /// One a direction.
    blocks: Vec<String>,
}

/// What a value is computed from.
struct Part {
    nodes: BTreeSet<usize>,
    /// Graph inputs, outputs of recurrent operators, and for heads the operators that take a last element.
    leaves: BTreeSet<usize>,
}

struct Conversion<'m> {
    model: &'m Model,
    time: Time<'m>,
    layers: Vec<Layer<'m>>,
}

impl Model {
    /// Whether it holds a recurrent operator.
    pub fn is_recurrent(&self) -> bool {
        self.nodes.iter().any(is_recurrent)
    }

    /// The cells that a recurrent model is made of.
    pub fn cells(&self) -> Result<Cells, OnnxError> {
        let named = |cause: OnnxError| {
            OnnxError(format!("{}: its recurrence does not come apart into cells: {cause}", self.path.display()))
        };
        Conversion::new(self).and_then(|conversion| conversion.cells()).map_err(named)
    }
}

impl Cells {
    /// Writes each cell into a folder that exists, as NAME.onnx.
    pub fn write(&self, folder: &Path) -> Result<(), OnnxError> {
        self.blocks.iter().try_for_each(|cell| {
            let path = folder.join(format!("{}.onnx", cell.name));
            std::fs::write(&path, &cell.file)
                .map_err(|cause| OnnxError(format!("cannot write {}: {cause}", path.display())))
        })
    }
}

fn is_recurrent(node: &Node) -> bool {
    node.proto.is_standard() && matches!(&*node.proto.op_type, "LSTM" | "GRU" | "RNN")
}

impl<'m> Conversion<'m> {
    fn new(model: &'m Model) -> Result<Conversion<'m>, OnnxError> {
        let time = Time::new(model)?;
        let mut layers = Vec::new();
        let nodes: Vec<&Node> = model.nodes.iter().filter(|node| is_recurrent(node)).collect();
        for (number, node) in nodes.iter().enumerate() {
            let recurrence = Recurrence::read(model, node)?;
            let blocks = match (recurrence.directions, nodes.len()) {
                (1, 1) => vec!["cell".to_owned()],
                (1, _) => vec![format!("layer{}", number + 1)],
                (_, 1) => vec!["forward".to_owned(), "backward".to_owned()],
                _ => return refuse("stacked layers of both directions need all elements of the layer below"),
            };
            layers.push(Layer { node, recurrence, blocks });
        }
        if layers.is_empty() {
            return refuse("it holds no LSTM, GRU or RNN");
        }
        Ok(Conversion { model, time, layers })
    }

    fn cells(&self) -> Result<Cells, OnnxError> {
        let (every, last): (Vec<usize>, Vec<usize>) =
            self.model.outputs.iter().partition(|&&output| self.time.bears(output));
        let head = self.head(&last)?;
        let both = self.layers[0].blocks.len() == 2;
        let picks: Vec<usize> =
            head.iter().flat_map(|part| &part.leaves).filter_map(|&leaf| self.picked(leaf)).collect();
        if both && !(every.is_empty() && picks.is_empty()) {
            return refuse("its outputs take both directions at one element, of which each knows only its own side");
        }
        let mut blocks = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            let ends = number + 1 == self.layers.len();
            for direction in 0..layer.blocks.len() {
                let (every, picks) = if ends { (&every[..], &picks[..]) } else { Default::default() };
                blocks.push(self.cell(number, direction, every, picks)?);
            }
        }
        let last_block = self.layers.last().map_or("", |layer| &*layer.blocks[0]);
        let answer = |&output: &usize| {
            let (name, every) = (self.model.values[output].name.clone(), self.time.bears(output));
            let block = if every { last_block } else { "head" };
            Answer { from: format!("{block}.{name}"), name, every }
        };
        if let Some(part) = head {
            blocks.push(self.head_cell(&part, &last)?);
        }
        let walk = match self.layers.len() {
            1 if both => "bidirectional",
            1 => "repeat",
            _ => "stacked",
        };
        Ok(Cells { walk, blocks, outputs: self.model.outputs.iter().map(answer).collect() })
    }

    /// What the outputs that need the end of a sequence are computed from.
    fn head(&self, outputs: &[usize]) -> Result<Option<Part>, OnnxError> {
        if outputs.is_empty() {
            return Ok(None);
        }
        let part = self.part(outputs, true);
        for &leaf in &part.leaves {
            let name = &self.model.values[leaf].name;
            if self.model.values[leaf].node.is_none() {
                return refuse(format!("input '{name}' is not a sequence, or the end takes all of it"));
            }
            let whole = self.picked(leaf).is_none() && self.time.bears(leaf);
            if whole {
                return refuse(format!("the end takes all elements of '{name}', not the last one"));
            }
        }
        if let Some(node) = part
            .nodes
            .iter()
            .map(|&node| &self.model.nodes[node])
            .find(|node| node.inputs.iter().chain(&node.outputs).flatten().any(|&value| self.time.bears(value)))
        {
            return refuse(format!("{} takes all elements of a sequence", node.proto.label()));
        }
        Ok(Some(part))
    }

    /// The sequence that a leaf takes the last element of, if it is one that does.
    fn picked(&self, leaf: usize) -> Option<usize> {
        let node = &self.model.nodes[self.model.values[leaf].node?];
        let picks = !is_recurrent(node) && self.time.picks_last(node);
        picks.then(|| node.inputs.first().copied().flatten()).flatten()
    }

    /// The operators behind some values, back to the leaves.
    fn part(&self, values: &[usize], to_picks: bool) -> Part {
        let (mut nodes, mut leaves, mut open) = (BTreeSet::new(), BTreeSet::new(), values.to_vec());
        while let Some(value) = open.pop() {
            let at = &self.model.values[value];
            if at.weight.is_some() {
                continue;
            }
            let leaf = at.node.is_none_or(|node| is_recurrent(&self.model.nodes[node]));
            if leaf || to_picks && self.picked(value).is_some() {
                leaves.insert(value);
            } else if let Some(node) = at.node.filter(|&node| nodes.insert(node)) {
                open.extend(self.model.nodes[node].inputs.iter().flatten());
            }
        }
        Part { nodes, leaves }
    }

    fn cell(&self, number: usize, direction: usize, every: &[usize], picks: &[usize]) -> Result<Cell, OnnxError> {
        let layer = &self.layers[number];
        let name = &layer.blocks[direction];
        let mut writer = Writer::new(self, name);
        let Some(x) = layer.node.inputs.first().copied().flatten() else {
            return refuse("a recurrent operator without input");
        };
        let direct = self.direct(x);
        let targets: Vec<usize> = every.iter().chain(picks).copied().chain((direct.is_none()).then_some(x)).collect();
        let part = self.part(&targets, false);
        for &leaf in &part.leaves {
            writer.step_leaf(leaf, number)?;
        }
        let input = match direct {
            Some(leaf) => writer.step_input(leaf)?,
            None => "cell/x".to_owned(),
        };
        let before = self.part(&[x], false).nodes;
        let first = before.iter().filter(|node| part.nodes.contains(node)).copied().collect::<Vec<_>>();
        writer.nodes(&first)?;
        if direct.is_none() {
            writer.draft.axes("Squeeze", &inner(self.model, x), "cell/x", &[0]);
        }
        layer.recurrence.step(&mut writer.draft, &input, direction);
        for state in layer.recurrence.states() {
            writer.draft.state(state, layer.recurrence.hidden);
            writer.inputs.push(((*state).to_owned(), format!("previous.{state}_next")));
        }
        let own = layer.node.outputs.first().copied().flatten();
        if let Some(own) = own.filter(|own| part.leaves.contains(own)) {
            writer.draft.axes("Unsqueeze", "h_next", &inner(self.model, own), &[0, 1]);
        }
        let behind = part.nodes.iter().filter(|node| !before.contains(node)).copied().collect::<Vec<_>>();
        writer.nodes(&behind)?;
        for &output in every {
            writer.step_output(output, &self.model.values[output].name.clone())?;
        }
        for &picked in picks {
            writer.step_output(picked, &last_name(self.model, picked))?;
        }
        Ok(writer.finish(false))
    }

    /// The leaf that is a recurrent operator's input but for its layout, so that a step can take it as it is.
    fn direct(&self, x: usize) -> Option<usize> {
        let node = &self.model.nodes[self.model.values[x].node?];
        let from = node.inputs.first().copied().flatten()?;
        let origin = self.model.values[from].node.map(|node| &self.model.nodes[node]);
        match (&*node.proto.op_type, origin) {
            ("Transpose", None) if node.proto.ints("perm") == Some(&[1, 0, 2]) => Some(from),
            ("Squeeze", Some(origin)) if is_recurrent(origin) && self.model.values[x].shape.len() == 3 => Some(from),
            _ => None,
        }
    }

    fn head_cell(&self, part: &Part, outputs: &[usize]) -> Result<Cell, OnnxError> {
        let mut writer = Writer::new(self, "head");
        for &leaf in &part.leaves {
            match self.picked(leaf) {
                Some(sequence) => writer.head_pick(leaf, sequence)?,
                None => writer.head_state(leaf)?,
            }
        }
        writer.nodes(&part.nodes.iter().copied().collect::<Vec<_>>())?;
        for &output in outputs {
            writer.head_output(output);
        }
        Ok(writer.finish(true))
    }

    /// The layer that computes a value, and which of its outputs it is: every state, the last `h`, the last `c`.
    fn layer_of(&self, value: usize) -> Option<(&Layer<'m>, usize)> {
        self.layers.iter().find_map(|layer| {
            let at = layer.node.outputs.iter().position(|&output| output == Some(value))?;
            Some((layer, at))
        })
    }
}

/// What a tensor of the model is called inside a cell, where other names are ours.
fn inner(model: &Model, value: usize) -> String {
    format!("model/{}", model.values[value].name)
}

/// What a cell calls the output of which the head takes the last.
fn last_name(model: &Model, value: usize) -> String {
    format!("{}_step", model.values[value].name)
}

/// A cell in the making, and where its inputs come from.
struct Writer<'c, 'm> {
    conversion: &'c Conversion<'m>,
    name: String,
    draft: CellDraft,
    inputs: Vec<(String, String)>,
    taken: BTreeMap<usize, String>,
}

impl<'c, 'm> Writer<'c, 'm> {
    fn new(conversion: &'c Conversion<'m>, name: &str) -> Writer<'c, 'm> {
        let draft = CellDraft::new(conversion.model, name);
        Writer { conversion, name: name.to_owned(), draft, inputs: Vec::new(), taken: BTreeMap::new() }
    }

    fn model(&self) -> &'m Model {
        self.conversion.model
    }

    /// One element of a sequence as an input of the cell: [batch, …].
    fn step_input(&mut self, leaf: usize) -> Result<String, OnnxError> {
        if let Some(name) = self.taken.get(&leaf) {
            return Ok(name.clone());
        }
        let value = &self.model().values[leaf];
        let (name, from) = match self.conversion.layer_of(leaf) {
            Some((layer, 0)) => {
                let block = &layer.blocks[0];
                (format!("{block}_h"), format!("{block}.h_next"))
            }
            Some(_) => return refuse(format!("'{}' is a last state, but every element takes it", value.name)),
            None => (value.name.clone(), "request".to_owned()),
        };
        let row = match self.conversion.layer_of(leaf) {
            Some((layer, _)) => vec![layer.recurrence.hidden as i64],
            None => self.row(leaf, 1)?,
        };
        self.draft.input(&name, value.elem, &row);
        self.inputs.push((name.clone(), from));
        self.taken.insert(leaf, name.clone());
        Ok(name)
    }

    /// The same, in the layout that the model's own operators expect. What the cell computes itself is no input.
    fn step_leaf(&mut self, leaf: usize, number: usize) -> Result<(), OnnxError> {
        let own = self.conversion.layers[number].node.outputs.contains(&Some(leaf));
        if own {
            return Ok(());
        }
        let name = self.step_input(leaf)?;
        let axes: &[i64] = if self.conversion.layer_of(leaf).is_some() { &[0, 1] } else { &[1] };
        self.draft.axes("Unsqueeze", &name, &inner(self.model(), leaf), axes);
        Ok(())
    }

    /// The sizes of one element of a sequence whose length is at `time`.
    fn row(&self, value: usize, time: usize) -> Result<Vec<i64>, OnnxError> {
        let value_of = &self.model().values[value];
        let first = usize::from(time == 0);
        let batch = value_of.shape.get(first).is_some_and(crate::dim::Dim::is_batch);
        if !batch || self.conversion.time.axis(value) != Some(time) {
            return refuse(format!("'{}' is not a sequence of rows, [batch, length, …]", value_of.name));
        }
        let rest = value_of.shape.iter().enumerate().filter(|(at, _)| *at != time && *at != first);
        Ok(rest.map(|(_, dim)| dim.value().unwrap_or(-1)).collect())
    }

    fn step_output(&mut self, value: usize, name: &str) -> Result<(), OnnxError> {
        let Some(time) = self.conversion.time.axis(value) else {
            return refuse(format!("'{}' has the length inside a dimension", self.model().values[value].name));
        };
        let row = self.row(value, time)?;
        if !self.draft.graph.output.iter().any(|output| output.name == name) {
            self.draft.axes("Squeeze", &inner(self.model(), value), name, &[time as i64]);
            self.draft.output(name, self.model().values[value].elem, &row);
        }
        Ok(())
    }

    /// The last state of a layer, as the operator gives it: [directions, batch, hidden].
    fn head_state(&mut self, leaf: usize) -> Result<(), OnnxError> {
        let Some((layer, output @ (1 | 2))) = self.conversion.layer_of(leaf) else {
            return refuse(format!("the end takes '{}'", self.model().values[leaf].name));
        };
        let state = ["h", "c"][output - 1];
        let to = inner(self.model(), leaf);
        let mut parts = Vec::new();
        for block in &layer.blocks {
            let (name, part) = (format!("{block}_{state}"), format!("cell/{block}_{state}"));
            self.draft.input(&name, self.model().values[leaf].elem, &[layer.recurrence.hidden as i64]);
            self.inputs.push((name.clone(), format!("{block}.{state}_next")));
            let to = if layer.blocks.len() == 1 { &to } else { &part };
            self.draft.axes("Unsqueeze", &name, to, &[0]);
            parts.push(part);
        }
        if let [forward, backward] = &parts[..] {
            self.draft
                .graph
                .node
                .push(crate::proto::NodeProto::new("Concat", &[forward, backward], &[&to]).with_int("axis", 0));
        }
        Ok(())
    }

    /// The last element of a sequence, as the operator that takes it gives it.
    fn head_pick(&mut self, leaf: usize, sequence: usize) -> Result<(), OnnxError> {
        let Some(time) = self.conversion.time.axis(sequence) else { return refuse("a last element without a length") };
        let (name, row) = (last_name(self.model(), sequence), self.row(sequence, time)?);
        let block = self.conversion.layers.last().map_or("", |layer| &*layer.blocks[0]).to_owned();
        if !self.inputs.iter().any(|(known, _)| *known == name) {
            self.draft.input(&name, self.model().values[sequence].elem, &row);
            self.inputs.push((name.clone(), format!("{block}.{name}")));
        }
        let to = inner(self.model(), leaf);
        match self.model().values[leaf].shape.len() == self.model().values[sequence].shape.len() {
            true => self.draft.axes("Unsqueeze", &name, &to, &[time as i64]),
            false => self.draft.op("Identity", &[&name], &to),
        }
        Ok(())
    }

    fn head_output(&mut self, output: usize) {
        let value = &self.model().values[output];
        let row = value.shape.iter().skip(1).map(|dim| dim.value().unwrap_or(-1)).collect::<Vec<_>>();
        self.draft.op("Identity", &[&inner(self.model(), output)], &value.name);
        self.draft.output(&value.name, value.elem, &row);
    }

    /// Operators of the model, their tensors under inner names, their weights with them.
    fn nodes(&mut self, nodes: &[usize]) -> Result<(), OnnxError> {
        let model = self.model();
        for &number in nodes {
            let node = &model.nodes[number];
            self.conversion.time.check_apart(node)?;
            let mut proto = node.proto.clone();
            let name = |value: &Option<usize>| value.map_or(String::new(), |value| inner(model, value));
            proto.input = node.inputs.iter().map(name).collect();
            proto.output = node.outputs.iter().map(name).collect();
            for &input in node.inputs.iter().flatten() {
                if let Some(weight) = model.values[input].weight {
                    let mut tensor = model.weight(weight)?;
                    tensor.name = inner(model, input);
                    self.draft.weight(weight, tensor);
                }
            }
            self.draft.graph.node.push(proto);
        }
        Ok(())
    }

    fn finish(self, once: bool) -> Cell {
        let file = self.conversion.model.file_around(self.draft.graph).encode_to_vec();
        Cell { name: self.name, once, inputs: self.inputs, file }
    }
}
