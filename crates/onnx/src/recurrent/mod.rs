//! Conversion of recurrent operators into cells. An LSTM, GRU or RNN over a whole sequence becomes
//! a file for one step, which a request runs once per element. So sequences of any length can join
//! and leave a batch at every element, and none is padded.
//!
//! The operators around the recurrence are included unchanged. With a length of 1, they must
//! compute for one element what they compute for each element of a sequence; [`time`] checks this.
//! Operators that need the end of the sequence (the last state or element) become a separate block,
//! `head`, which runs once. If a model cannot be converted, the error names the operator that
//! prevents it. For example, stacked bidirectional layers need all elements of the layer below.

mod draft;
mod random;
mod steps;
#[cfg(test)]
mod tests;
mod text;
mod time;

use crate::error::{OnnxError, refuse};
use crate::graph::{OnnxModel, OpNode};
use draft::CellDraft;
use prost::Message;
pub use random::RandomCells;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use steps::Recurrence;
use time::TimeAxis;

/// A recurrent model as cells, and the order in which a request runs them.
#[derive(Clone, Debug)]
pub struct RecurrentCells {
    /// Name of the walk: "repeat", "stacked" or "bidirectional".
    pub walk: &'static str,
    /// The cells, in the order of the walk. The head, if any, is the last.
    pub blocks: Vec<RecurrentCell>,
    /// Outputs of a request.
    pub outputs: Vec<CellOutput>,
}

/// One cell.
#[derive(Clone, Debug)]
pub struct RecurrentCell {
    /// Name of the cell; its file is NAME.onnx.
    pub name: String,
    /// Whether the cell runs only once, at the end.
    pub once: bool,
    /// Inputs of the cell, each with its source: "request", "previous.TENSOR" or "BLOCK.TENSOR".
    pub inputs: Vec<(String, String)>,
    /// Content of the ONNX file.
    pub file: Vec<u8>,
}

/// One output of the model.
#[derive(Clone, Debug)]
pub struct CellOutput {
    /// Name of the output.
    pub name: String,
    /// Source of the output, "BLOCK.TENSOR".
    pub from: String,
    /// True if the output has one part per element. Otherwise it is the output of the last element.
    pub every: bool,
}

/// A recurrent operator of the graph, and the blocks that replace it.
struct RecurrentLayer<'m> {
    node: &'m OpNode,
    recurrence: Recurrence,
    /// Names of the blocks, one per direction.
    blocks: Vec<String>,
}

/// The operators from which a value is computed, and the leaves where they begin.
struct ValueSources {
    nodes: BTreeSet<usize>,
    /// Graph inputs and outputs of recurrent operators. For a head, also the outputs of operators
    /// that take a last element.
    leaves: BTreeSet<usize>,
}

struct Conversion<'m> {
    model: &'m OnnxModel,
    time: TimeAxis<'m>,
    layers: Vec<RecurrentLayer<'m>>,
}

impl OnnxModel {
    /// Whether the model contains a recurrent operator.
    pub fn is_recurrent(&self) -> bool {
        self.nodes.iter().any(is_recurrent)
    }

    /// Converts a recurrent model to cells.
    pub fn cells(&self) -> Result<RecurrentCells, OnnxError> {
        let named = |cause: OnnxError| {
            OnnxError(format!("{}: its recurrence does not come apart into cells: {cause}", self.path.display()))
        };
        Conversion::new(self).and_then(|conversion| conversion.cells()).map_err(named)
    }
}

impl RecurrentCells {
    /// Writes each cell into an existing folder, as NAME.onnx.
    pub fn write(&self, folder: &Path) -> Result<(), OnnxError> {
        self.blocks.iter().try_for_each(|cell| {
            let path = folder.join(format!("{}.onnx", cell.name));
            std::fs::write(&path, &cell.file)
                .map_err(|cause| OnnxError(format!("cannot write {}: {cause}", path.display())))
        })
    }
}

fn is_recurrent(node: &OpNode) -> bool {
    node.proto.is_standard() && matches!(&*node.proto.op_type, "LSTM" | "GRU" | "RNN")
}

impl<'m> Conversion<'m> {
    fn new(model: &'m OnnxModel) -> Result<Conversion<'m>, OnnxError> {
        let time = TimeAxis::new(model)?;
        let mut layers = Vec::new();
        let nodes: Vec<&OpNode> = model.nodes.iter().filter(|node| is_recurrent(node)).collect();
        for (number, node) in nodes.iter().enumerate() {
            let recurrence = Recurrence::read(model, node)?;
            let blocks = match (recurrence.directions, nodes.len()) {
                (1, 1) => vec!["cell".to_owned()],
                (1, _) => vec![format!("layer{}", number + 1)],
                (_, 1) => vec!["forward".to_owned(), "backward".to_owned()],
                _ => return refuse("stacked layers of both directions need all elements of the layer below"),
            };
            layers.push(RecurrentLayer { node, recurrence, blocks });
        }
        if layers.is_empty() {
            return refuse("it holds no LSTM, GRU or RNN");
        }
        Ok(Conversion { model, time, layers })
    }

    fn cells(&self) -> Result<RecurrentCells, OnnxError> {
        let (every, last): (Vec<usize>, Vec<usize>) =
            self.model.outputs.iter().partition(|&&output| self.time.has_time(output));
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
            let (name, every) = (self.model.values[output].name.clone(), self.time.has_time(output));
            let block = if every { last_block } else { "head" };
            CellOutput { from: format!("{block}.{name}"), name, every }
        };
        if let Some(part) = head {
            blocks.push(self.head_cell(&part, &last)?);
        }
        let walk = match self.layers.len() {
            1 if both => "bidirectional",
            1 => "repeat",
            _ => "stacked",
        };
        Ok(RecurrentCells { walk, blocks, outputs: self.model.outputs.iter().map(answer).collect() })
    }

    /// Returns the operators that compute those outputs that need the end of a sequence.
    fn head(&self, outputs: &[usize]) -> Result<Option<ValueSources>, OnnxError> {
        if outputs.is_empty() {
            return Ok(None);
        }
        let part = self.part(outputs, true);
        for &leaf in &part.leaves {
            let name = &self.model.values[leaf].name;
            if self.model.values[leaf].node.is_none() {
                return refuse(format!("input '{name}' is not a sequence, or the end takes all of it"));
            }
            let whole = self.picked(leaf).is_none() && self.time.has_time(leaf);
            if whole {
                return refuse(format!("the end takes all elements of '{name}', not the last one"));
            }
        }
        if let Some(node) = part
            .nodes
            .iter()
            .map(|&node| &self.model.nodes[node])
            .find(|node| node.inputs.iter().chain(&node.outputs).flatten().any(|&value| self.time.has_time(value)))
        {
            return refuse(format!("{} takes all elements of a sequence", node.proto.label()));
        }
        Ok(Some(part))
    }

    /// Returns the sequence whose last element `leaf` is; `None` if it is no last element.
    fn picked(&self, leaf: usize) -> Option<usize> {
        let node = &self.model.nodes[self.model.values[leaf].node?];
        let picks = !is_recurrent(node) && self.time.picks_last(node);
        picks.then(|| node.inputs.first().copied().flatten()).flatten()
    }

    /// Returns the operators that compute these values, back to the leaves. With `to_picks`, last
    /// elements of sequences are leaves as well.
    fn part(&self, values: &[usize], to_picks: bool) -> ValueSources {
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
        ValueSources { nodes, leaves }
    }

    fn cell(
        &self,
        number: usize,
        direction: usize,
        every: &[usize],
        picks: &[usize],
    ) -> Result<RecurrentCell, OnnxError> {
        let layer = &self.layers[number];
        let name = &layer.blocks[direction];
        let mut writer = CellWriter::new(self, name);
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

    /// Returns the leaf that is a recurrent operator's input, if only its layout differs. A step
    /// can then take the leaf directly.
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

    fn head_cell(&self, part: &ValueSources, outputs: &[usize]) -> Result<RecurrentCell, OnnxError> {
        let mut writer = CellWriter::new(self, "head");
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

    /// Returns the layer that computes a value, and the index of the output: 0 for all states, 1
    /// for the last `h`, 2 for the last `c`.
    fn layer_of(&self, value: usize) -> Option<(&RecurrentLayer<'m>, usize)> {
        self.layers.iter().find_map(|layer| {
            let at = layer.node.outputs.iter().position(|&output| output == Some(value))?;
            Some((layer, at))
        })
    }
}

/// Returns the name of a model's tensor inside a cell. The prefix keeps it apart from generated
/// names.
fn inner(model: &OnnxModel, value: usize) -> String {
    format!("model/{}", model.values[value].name)
}

/// Returns the name of the cell's output whose last value the head takes.
fn last_name(model: &OnnxModel, value: usize) -> String {
    format!("{}_step", model.values[value].name)
}

/// A cell under construction, with the sources of its inputs.
struct CellWriter<'c, 'm> {
    conversion: &'c Conversion<'m>,
    name: String,
    draft: CellDraft,
    inputs: Vec<(String, String)>,
    taken: BTreeMap<usize, String>,
}

impl<'c, 'm> CellWriter<'c, 'm> {
    fn new(conversion: &'c Conversion<'m>, name: &str) -> CellWriter<'c, 'm> {
        let draft = CellDraft::new(conversion.model, name);
        CellWriter { conversion, name: name.to_owned(), draft, inputs: Vec::new(), taken: BTreeMap::new() }
    }

    fn model(&self) -> &'m OnnxModel {
        self.conversion.model
    }

    /// Adds one element of a sequence as an input of the cell, of shape [batch, …].
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

    /// Adds a leaf as an input, in the layout that the model's operators expect. Values that the
    /// cell computes itself are not added.
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

    /// Returns the shape of one element of a sequence. `time` is the axis of the length.
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

    /// Adds the last state of a layer as an input, in the operator's layout: [directions, batch,
    /// hidden].
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

    /// Adds the last element of a sequence as an input, in the layout that its user expects.
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

    /// Adds operators of the model with their weights. Their tensors get inner names.
    fn nodes(&mut self, nodes: &[usize]) -> Result<(), OnnxError> {
        let model = self.model();
        for &number in nodes {
            let node = &model.nodes[number];
            self.conversion.time.check_elementwise(node)?;
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

    fn finish(self, once: bool) -> RecurrentCell {
        let file = self.conversion.model.file_around(self.draft.graph).encode_to_vec();
        RecurrentCell { name: self.name, once, inputs: self.inputs, file }
    }
}
