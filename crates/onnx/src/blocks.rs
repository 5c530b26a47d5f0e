//! Blocks: self-contained ONNX files whose chain computes what the whole does.
//!
//! A block takes and gives tensors by the names of the whole model, so whatever runs the chain ties them together by name,
//! and a tensor that a block does not use passes it by. One whose batch is not the first dimension travels as NAME.rows, with
//! the batch first. Each weight goes into the block that uses it, so all blocks together
//! hold one copy; a weight that several blocks use is in each of them, and [`Slices::shared`] says how much that is.

use crate::cuts::Cuts;
use crate::dim::Dim;
use crate::error::{OnnxError, refuse};
use crate::estimate;
use crate::graph::Model;
use crate::line::{Line, row_bytes};
use crate::proto::{
    DimensionProto, EXTERNAL, EntryProto, GraphProto, ModelProto, NodeProto, ShapeProto, TensorProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};
use crate::weights;
use prost::Message;
use ripieno_model::{DataType, TensorSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Raised with every change after which the same wishes give other files: a key of cached slices.
pub const SLICER_VERSION: u32 = 2;
/// Blocks with more bytes of weights keep them in a file beside them, since a protobuf message ends at 2 GiB.
const LARGEST_INLINE: u64 = 1 << 30;
/// Initializers apart from the inputs came with this version of the format.
const LEAST_IR_VERSION: i64 = 4;

/// A model cut into blocks; nothing is written yet.
#[derive(Clone, Debug)]
pub struct Slices<'m> {
    model: &'m Model,
    /// The blocks in the order of the chain.
    pub blocks: Vec<Block>,
}

/// A block: a part of a model.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its name; the file is NAME.onnx.
    pub name: String,
    /// How often it runs which operator, the most frequent first.
    pub operators: Vec<(String, usize)>,
    /// What it takes.
    pub inputs: Vec<TensorSpec>,
    /// What it gives.
    pub outputs: Vec<TensorSpec>,
    /// What a device keeps for each request once it has run: all that later blocks need.
    pub carried: Vec<TensorSpec>,
    /// Bytes of that, for one row; an open length counts as 64.
    pub carried_bytes: u64,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    nodes: Vec<usize>,
    weights: BTreeSet<usize>,
    takes: Vec<usize>,
    gives: Vec<usize>,
}

impl Model {
    /// What a request brings.
    pub fn inputs(&self) -> Vec<TensorSpec> {
        self.specs(&self.inputs)
    }

    /// What a request gets.
    pub fn outputs(&self) -> Vec<TensorSpec> {
        self.specs(&self.outputs)
    }

    /// The blocks that these cuts make; `kind` begins their names: `stage` makes stage1, stage2, …
    pub fn slice(&self, cuts: &Cuts, kind: &str) -> Result<Slices<'_>, OnnxError> {
        let line = Line::new(self);
        for &output in &self.outputs {
            if !self.values[output].is_rows() {
                let name = &self.values[output].name;
                let fix = "export it with a dynamic batch axis as its first dimension";
                return refuse(format!(
                    "{}: output '{name}' does not have the batch first: {fix}",
                    self.path.display()
                ));
            }
        }
        let ends: Vec<usize> = cuts.places.iter().copied().chain([line.len()]).collect();
        let digits = ends.len().to_string().len();
        let mut blocks = Vec::with_capacity(ends.len());
        for (at, &end) in ends.iter().enumerate() {
            let from = if at == 0 { 0 } else { ends[at - 1] };
            let name = format!("{kind}{:0digits$}", at + 1);
            blocks.push(self.block(&line, name, from, end));
        }
        Ok(Slices { model: self, blocks })
    }

    fn block(&self, line: &Line<'_>, name: String, from: usize, to: usize) -> Block {
        let nodes = self.with_support(line, &line.places[from..to]);
        let computed: BTreeSet<usize> =
            nodes.iter().flat_map(|&node| self.nodes[node].outputs.iter().flatten().copied()).collect();
        let mut used: BTreeSet<usize> =
            nodes.iter().flat_map(|&node| self.nodes[node].inputs.iter().flatten().copied()).collect();
        let carried = if to < line.len() { line.carried(to) } else { Vec::new() };
        let gives_answer = |&&output: &&usize| self.answers_in(line, output, from, to);
        let answers: Vec<usize> = self.outputs.iter().filter(gives_answer).copied().collect();
        let passed_on = carried.iter().filter(|value| computed.contains(value)).copied();
        let gives = passed_on.chain(answers.iter().copied()).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
        used.extend(&answers);
        if from == 0 {
            used.extend(self.inputs.iter().filter(|&&input| line.last_use(input).is_none()));
        }
        let weights: BTreeSet<usize> = used.iter().filter_map(|&value| self.values[value].weight).collect();
        let taken = used.into_iter().filter(|value| self.values[*value].weight.is_none() && !computed.contains(value));
        let takes: Vec<usize> = taken.collect();
        Block {
            name,
            operators: self.operators(&nodes),
            inputs: self.specs(&takes),
            outputs: self.specs(&gives),
            carried_bytes: carried.iter().map(|&value| row_bytes(self, value)).sum(),
            carried: self.specs(&carried),
            weight_bytes: weights.iter().map(|&weight| weights::size(&self.weights[weight])).sum(),
            nodes,
            weights,
            takes,
            gives,
        }
    }

    /// Whether the block of these places gives an output of the model: the last one that computes or needs it does, since an
    /// output that a later block takes would count as one of its inputs only.
    fn answers_in(&self, line: &Line<'_>, output: usize, from: usize, to: usize) -> bool {
        let made = self.values[output].node.and_then(|node| line.places.iter().position(|&place| place == node));
        let last = made.max(line.last_use(output)).unwrap_or(0);
        (from..to).contains(&last)
    }

    /// These nodes and those without a place that they need, in order.
    fn with_support(&self, line: &Line<'_>, places: &[usize]) -> Vec<usize> {
        let mut nodes: BTreeSet<usize> = places.iter().copied().collect();
        let mut open: Vec<usize> = places.to_vec();
        while let Some(node) = open.pop() {
            for &input in self.nodes[node].inputs.iter().flatten() {
                let support = self.values[input].node.filter(|node| line.places.binary_search(node).is_err());
                open.extend(support.filter(|&node| nodes.insert(node)));
            }
        }
        nodes.into_iter().collect()
    }

    fn operators(&self, nodes: &[usize]) -> Vec<(String, usize)> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for &node in nodes {
            *counts.entry(&self.nodes[node].proto.op_type).or_default() += 1;
        }
        let mut counts: Vec<(String, usize)> =
            counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    pub(crate) fn specs(&self, values: &[usize]) -> Vec<TensorSpec> {
        values.iter().map(|&value| self.spec(value)).collect()
    }

    fn spec(&self, value: usize) -> TensorSpec {
        let shape = self.travelling(value).1;
        let shape = shape.into_iter().map(|dim| dim.value().filter(|&size| size > 0).unwrap_or(-1)).collect();
        // Types that the protocol does not have travel as bytes, and engines refuse them.
        let datatype = DataType::from_onnx(self.values[value].elem).unwrap_or(DataType::Bytes);
        TensorSpec { name: self.travelling(value).0, datatype, shape }
    }

    /// The name and shape under which a value travels between blocks: the batch first.
    fn travelling(&self, value: usize) -> (String, Vec<Dim>) {
        let value = &self.values[value];
        let Some(batch @ 1..) = value.batch_axis() else { return (value.name.clone(), value.shape.clone()) };
        let mut shape = value.shape.clone();
        shape[..=batch].rotate_right(1);
        (format!("{}.rows", value.name), shape)
    }

    /// The operators that turn a value for its travel, and back; none where it travels as it is.
    fn turns(&self, value: usize) -> Option<(NodeProto, NodeProto)> {
        let (name, _) = self.travelling(value);
        let value = &self.values[value];
        let batch = value.batch_axis().filter(|&axis| axis > 0)?;
        let mut order: Vec<i64> = (0..value.shape.len() as i64).collect();
        order[..=batch].rotate_right(1);
        let there = NodeProto::new("Transpose", &[&value.name], &[&name]).with_ints("perm", &order);
        order.sort_unstable();
        order[..=batch].rotate_left(1);
        Some((there, NodeProto::new("Transpose", &[&name], &[&value.name]).with_ints("perm", &order)))
    }

    /// How a file declares a value.
    pub(crate) fn declaration(&self, value: usize) -> ValueInfoProto {
        let (name, shape) = self.travelling(value);
        let dim = shape.iter().map(|dim| match dim.value().filter(|&size| size > 0) {
            Some(size) => DimensionProto { dim_value: Some(size), dim_param: None },
            None => DimensionProto { dim_value: None, dim_param: Some(dim.to_string()) },
        });
        let shape = Some(ShapeProto { dim: dim.collect() });
        let tensor_type = Some(TensorTypeProto { elem_type: self.values[value].elem, shape });
        ValueInfoProto { name, r#type: Some(TypeProto { tensor_type }) }
    }

    /// The files beside the model that hold weights.
    pub fn external_files(&self) -> BTreeSet<PathBuf> {
        let entries = self.weights.iter().flat_map(|weight| &weight.external_data);
        entries.filter(|entry| entry.key == "location").map(|entry| self.folder().join(&entry.value)).collect()
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// A weight with its elements inside.
    pub(crate) fn weight(&self, weight: usize) -> Result<TensorProto, OnnxError> {
        weights::inline(&self.weights[weight], self.folder())
            .map_err(|cause| OnnxError(format!("{}: {cause}", self.path.display())))
    }

    /// The elements of a weight of 32-bit floats.
    pub(crate) fn weight_floats(&self, weight: usize) -> Result<Vec<f32>, OnnxError> {
        weights::floats(&self.weights[weight], self.folder())
    }

    /// A file of ours around a graph.
    pub(crate) fn file_around(&self, graph: GraphProto) -> ModelProto {
        ModelProto {
            ir_version: self.ir_version.max(LEAST_IR_VERSION),
            producer_name: "ripieno".to_owned(),
            graph: Some(graph),
            opset_import: self.opsets.clone(),
            ..ModelProto::default()
        }
    }
}

impl Slices<'_> {
    /// Bytes of weights that are in more than one block, each counted as often as it is there too many.
    pub fn shared(&self) -> u64 {
        let mut seen = BTreeSet::new();
        let all = self.blocks.iter().flat_map(|block| &block.weights);
        all.filter(|weight| !seen.insert(**weight)).map(|&weight| weights::size(&self.model.weights[weight])).sum()
    }

    /// What each block takes for `rows` rows, in about nanoseconds: from the operations and bytes that the shapes tell of.
    pub fn estimate(&self, rows: i64) -> Vec<u64> {
        let nanos = |node: &usize| estimate::nanos(self.model, *node, rows);
        let block = |block: &Block| block.nodes.iter().map(nanos).fold(1u64, u64::saturating_add);
        self.blocks.iter().map(block).collect()
    }

    /// A block as the bytes of an ONNX file, its weights inside.
    pub fn encode(&self, block: &Block) -> Result<Vec<u8>, OnnxError> {
        let weights = block.weights.iter().map(|&weight| self.model.weight(weight));
        Ok(self.file(block, weights.collect::<Result<_, _>>()?).encode_to_vec())
    }

    fn file(&self, block: &Block, initializer: Vec<TensorProto>) -> ModelProto {
        let turned_back = block.takes.iter().filter_map(|&value| Some(self.model.turns(value)?.1));
        let own = block.nodes.iter().map(|&node| self.model.nodes[node].proto.clone());
        let turned = block.gives.iter().filter_map(|&value| Some(self.model.turns(value)?.0));
        let nodes = turned_back.chain(own).chain(turned);
        self.model.file_around(GraphProto {
            node: nodes.collect::<Vec<NodeProto>>(),
            name: block.name.clone(),
            initializer,
            input: block.takes.iter().map(|&value| self.model.declaration(value)).collect(),
            output: block.gives.iter().map(|&value| self.model.declaration(value)).collect(),
            ..GraphProto::default()
        })
    }

    /// Writes every block into a folder that exists, as NAME.onnx.
    pub fn write(&self, folder: &Path) -> Result<(), OnnxError> {
        for block in &self.blocks {
            let path = folder.join(format!("{}.onnx", block.name));
            let unwritten = |cause: std::io::Error| OnnxError(format!("cannot write {}: {cause}", path.display()));
            let bytes = match block.weight_bytes > LARGEST_INLINE {
                true => self.write_beside(block, &folder.join(format!("{}.onnx.data", block.name)))?,
                false => self.encode(block)?,
            };
            std::fs::write(&path, bytes).map_err(unwritten)?;
        }
        Ok(())
    }

    /// Writes the weights into a file of their own; the bytes of the ONNX file that goes with it.
    fn write_beside(&self, block: &Block, path: &Path) -> Result<Vec<u8>, OnnxError> {
        /// Where engines can map a weight into memory.
        const ALIGNMENT: u64 = 64;
        /// Smaller tensors may say what shape another one has, so they stay where everybody reads them.
        const SMALL: u64 = 1024;
        let unwritten = |cause: std::io::Error| OnnxError(format!("cannot write {}: {cause}", path.display()));
        let location = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut file = BufWriter::new(File::create(path).map_err(unwritten)?);
        let (mut offset, mut weights) = (0u64, Vec::with_capacity(block.weights.len()));
        for &weight in &block.weights {
            let mut tensor = self.model.weight(weight)?;
            if let Some(raw) = tensor.raw_data.take_if(|raw| raw.len() as u64 >= SMALL) {
                let gap = offset.next_multiple_of(ALIGNMENT) - offset;
                file.write_all(&vec![0; gap as usize]).and_then(|()| file.write_all(&raw)).map_err(unwritten)?;
                let entries = [("location", location.clone()), ("offset", (offset + gap).to_string())];
                let entries = entries.into_iter().chain([("length", raw.len().to_string())]);
                tensor.external_data = entries.map(|(key, value)| EntryProto { key: key.to_owned(), value }).collect();
                tensor.data_location = EXTERNAL;
                offset += gap + raw.len() as u64;
            }
            weights.push(tensor);
        }
        file.flush().map_err(unwritten)?;
        Ok(self.file(block, weights).encode_to_vec())
    }
}
