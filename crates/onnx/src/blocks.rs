//! Blocks: ONNX files that, run as a chain, compute the same as the whole model.
//!
//! Blocks use the tensor names of the whole model, so an executor links the chain by name. A tensor
//! that a block does not use bypasses it. If a tensor's first dimension is not the batch, it is
//! passed on as NAME.rows, transposed so that the batch comes first. Each weight is stored in the
//! block that uses it. A weight that several blocks use is stored in each of them;
//! [`Slices::shared`] returns the size of these additional copies.

use crate::cuts::Cuts;
use crate::dim::Dim;
use crate::error::{OnnxError, refuse};
use crate::estimate;
use crate::graph::OnnxModel;
use crate::line::{OperatorLine, row_bytes};
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

/// Version of the slicer, which is part of the key of cached slices. It increases with every change
/// that produces different files from the same settings.
pub const SLICER_VERSION: u32 = 2;
/// Largest size of weights inside a block's file. Larger weights are stored in a separate file,
/// because a protobuf message is limited to 2 GiB.
const MAX_INLINE_BYTES: u64 = 1 << 30;
/// First version of the format that separates initializers from inputs.
const MIN_IR_VERSION: i64 = 4;

/// A model cut into blocks, before they are written.
#[derive(Clone, Debug)]
pub struct Slices<'m> {
    model: &'m OnnxModel,
    /// The blocks in the order of the chain.
    pub blocks: Vec<SlicedBlock>,
}

/// A block: a part of a model.
#[derive(Clone, Debug)]
pub struct SlicedBlock {
    /// Name of the block; its file is NAME.onnx.
    pub name: String,
    /// Names and numbers of its operators, the most frequent first.
    pub operators: Vec<(String, usize)>,
    /// Inputs of the block.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of the block.
    pub outputs: Vec<TensorSpec>,
    /// Tensors that a device keeps for each request after the block, because later blocks need
    /// them.
    pub carried: Vec<TensorSpec>,
    /// Size of the carried tensors per row in bytes. An open length counts as 64.
    pub carried_bytes: u64,
    /// Size of the block's weights in bytes.
    pub weight_bytes: u64,
    nodes: Vec<usize>,
    weights: BTreeSet<usize>,
    takes: Vec<usize>,
    gives: Vec<usize>,
}

impl OnnxModel {
    /// Returns the inputs of a request.
    pub fn inputs(&self) -> Vec<TensorSpec> {
        self.specs(&self.inputs)
    }

    /// Returns the outputs of a request.
    pub fn outputs(&self) -> Vec<TensorSpec> {
        self.specs(&self.outputs)
    }

    /// Creates the blocks between these cuts. Their names are `kind` and a number: stage1, stage2,
    /// …
    pub fn slice(&self, cuts: &Cuts, kind: &str) -> Result<Slices<'_>, OnnxError> {
        let line = OperatorLine::new(self);
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

    fn block(&self, line: &OperatorLine<'_>, name: String, from: usize, to: usize) -> SlicedBlock {
        let nodes = self.with_support(line, &line.places[from..to]);
        let computed: BTreeSet<usize> =
            nodes.iter().flat_map(|&node| self.nodes[node].outputs.iter().flatten().copied()).collect();
        let mut used: BTreeSet<usize> =
            nodes.iter().flat_map(|&node| self.nodes[node].inputs.iter().flatten().copied()).collect();
        let carried = if to < line.len() { line.carried(to) } else { Vec::new() };
        let gives_answer = |&&output: &&usize| self.gives_output(line, output, from, to);
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
        SlicedBlock {
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

    /// Whether the block of places `from..to` has an output of the model: it is the last block that
    /// computes or needs the tensor. A tensor that a later block takes would count only as that
    /// block's input.
    fn gives_output(&self, line: &OperatorLine<'_>, output: usize, from: usize, to: usize) -> bool {
        let made = self.values[output].node.and_then(|node| line.places.iter().position(|&place| place == node));
        let last = made.max(line.last_use(output)).unwrap_or(0);
        (from..to).contains(&last)
    }

    /// Returns the nodes at these places, in order, and the nodes without a place that they need.
    fn with_support(&self, line: &OperatorLine<'_>, places: &[usize]) -> Vec<usize> {
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
        let shape = self.carried_form(value).1;
        let shape = shape.into_iter().map(|dim| dim.value().filter(|&size| size > 0).unwrap_or(-1)).collect();
        // Types that the protocol lacks are declared as bytes, and engines refuse them.
        let datatype = DataType::from_onnx(self.values[value].elem).unwrap_or(DataType::Bytes);
        TensorSpec { name: self.carried_form(value).0, datatype, shape }
    }

    /// Returns the name and shape of a value between blocks, with the batch as first dimension.
    fn carried_form(&self, value: usize) -> (String, Vec<Dim>) {
        let value = &self.values[value];
        let Some(batch @ 1..) = value.batch_axis() else { return (value.name.clone(), value.shape.clone()) };
        let mut shape = value.shape.clone();
        shape[..=batch].rotate_right(1);
        (format!("{}.rows", value.name), shape)
    }

    /// Returns the operators that transpose a value for passing it on, and back. `None` if the
    /// value is passed on unchanged.
    fn transposes(&self, value: usize) -> Option<(NodeProto, NodeProto)> {
        let (name, _) = self.carried_form(value);
        let value = &self.values[value];
        let batch = value.batch_axis().filter(|&axis| axis > 0)?;
        let mut order: Vec<i64> = (0..value.shape.len() as i64).collect();
        order[..=batch].rotate_right(1);
        let there = NodeProto::new("Transpose", &[&value.name], &[&name]).with_ints("perm", &order);
        order.sort_unstable();
        order[..=batch].rotate_left(1);
        Some((there, NodeProto::new("Transpose", &[&name], &[&value.name]).with_ints("perm", &order)))
    }

    /// Returns the declaration of a value for a file.
    pub(crate) fn declaration(&self, value: usize) -> ValueInfoProto {
        let (name, shape) = self.carried_form(value);
        let dim = shape.iter().map(|dim| match dim.value().filter(|&size| size > 0) {
            Some(size) => DimensionProto { dim_value: Some(size), dim_param: None },
            None => DimensionProto { dim_value: None, dim_param: Some(dim.to_string()) },
        });
        let shape = Some(ShapeProto { dim: dim.collect() });
        let tensor_type = Some(TensorTypeProto { elem_type: self.values[value].elem, shape });
        ValueInfoProto { name, r#type: Some(TypeProto { tensor_type }) }
    }

    /// Returns the external files that hold the model's weights.
    pub fn external_files(&self) -> BTreeSet<PathBuf> {
        let entries = self.weights.iter().flat_map(|weight| &weight.external_data);
        entries.filter(|entry| entry.key == "location").map(|entry| self.folder().join(&entry.value)).collect()
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Returns a weight with its elements, read from an external file if necessary.
    pub(crate) fn weight(&self, weight: usize) -> Result<TensorProto, OnnxError> {
        weights::inline(&self.weights[weight], self.folder())
            .map_err(|cause| OnnxError(format!("{}: {cause}", self.path.display())))
    }

    /// Returns the elements of a weight of type FP32.
    pub(crate) fn weight_floats(&self, weight: usize) -> Result<Vec<f32>, OnnxError> {
        weights::floats(&self.weights[weight], self.folder())
    }

    /// Creates a file with this graph.
    pub(crate) fn file_around(&self, graph: GraphProto) -> ModelProto {
        ModelProto {
            ir_version: self.ir_version.max(MIN_IR_VERSION),
            producer_name: "ripieno".to_owned(),
            graph: Some(graph),
            opset_import: self.opsets.clone(),
            ..ModelProto::default()
        }
    }
}

impl Slices<'_> {
    /// Returns the size of the additional copies of weights that several blocks use, in bytes.
    pub fn shared(&self) -> u64 {
        let mut seen = BTreeSet::new();
        let all = self.blocks.iter().flat_map(|block| &block.weights);
        all.filter(|weight| !seen.insert(**weight)).map(|&weight| weights::size(&self.model.weights[weight])).sum()
    }

    /// Estimates the time of each block for `rows` rows in nanoseconds, from the operations and
    /// bytes that the shapes imply.
    pub fn estimate(&self, rows: i64) -> Vec<u64> {
        let nanos = |node: &usize| estimate::nanos(self.model, *node, rows);
        let block = |block: &SlicedBlock| block.nodes.iter().map(nanos).fold(1u64, u64::saturating_add);
        self.blocks.iter().map(block).collect()
    }

    /// Encodes a block as an ONNX file with its weights inside.
    pub fn encode(&self, block: &SlicedBlock) -> Result<Vec<u8>, OnnxError> {
        let weights = block.weights.iter().map(|&weight| self.model.weight(weight));
        Ok(self.file(block, weights.collect::<Result<_, _>>()?).encode_to_vec())
    }

    fn file(&self, block: &SlicedBlock, initializer: Vec<TensorProto>) -> ModelProto {
        let turned_back = block.takes.iter().filter_map(|&value| Some(self.model.transposes(value)?.1));
        let own = block.nodes.iter().map(|&node| self.model.nodes[node].proto.clone());
        let turned = block.gives.iter().filter_map(|&value| Some(self.model.transposes(value)?.0));
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

    /// Writes every block into an existing folder, as NAME.onnx.
    pub fn write(&self, folder: &Path) -> Result<(), OnnxError> {
        for block in &self.blocks {
            let path = folder.join(format!("{}.onnx", block.name));
            let unwritten = |cause: std::io::Error| OnnxError(format!("cannot write {}: {cause}", path.display()));
            let bytes = match block.weight_bytes > MAX_INLINE_BYTES {
                true => self.write_beside(block, &folder.join(format!("{}.onnx.data", block.name)))?,
                false => self.encode(block)?,
            };
            std::fs::write(&path, bytes).map_err(unwritten)?;
        }
        Ok(())
    }

    /// Writes the weights into a separate file. Returns the bytes of the ONNX file, which refers to
    /// it.
    fn write_beside(&self, block: &SlicedBlock, path: &Path) -> Result<Vec<u8>, OnnxError> {
        /// Alignment in bytes at which engines can map a weight into memory.
        const ALIGNMENT: u64 = 64;
        /// Size in bytes below which a tensor stays in the ONNX file. Small tensors may define the
        /// shapes of others, and every reader finds them there.
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
