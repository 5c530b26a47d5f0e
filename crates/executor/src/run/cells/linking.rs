//! Resolves and checks the source of each cell's inputs at load.
//!
//! A model's author writes names, but a running task must not look up names. So every input of
//! every cell becomes a [`Feed`] of indices. Errors are reported here, with the file, the cell, the
//! tensor and the expected value.

use super::CellModel;
use super::wiring::{
    AnswerFrom, AnswerOutput, CellWiring, Feed, FeedSource, OUTPUT_LENGTH, Outputs, RequestTensor, Retention, Seed,
    Wiring,
};
use crate::contract::buffer::bytes_of;
use crate::contract::flow::{BlockPlan, FlowValue};
use crate::contract::walk_shape::{CELL, CHILDREN, check_steps};
use crate::run::plan::{BlockIo, ModelPlan};
use crate::{AnswerSource, AnswerSteps, BlockSource, Initial, InputSource, LoadError, ModelSource, WalkShape};
use ripieno_base::BlockId;
use ripieno_model::{DataType, Steps, TensorSpec, Walk};
use std::sync::Arc;

/// Links the cells of a model.
pub(crate) fn link(source: &ModelSource, ios: &[BlockIo]) -> Result<ModelPlan, LoadError> {
    // Only emulated blocks have no file.
    let emulated = source.blocks.iter().all(|block| block.path.is_none());
    let linker = CellLinker { source, ios, wanted: Vec::new(), keeps: Vec::new(), arity: 0 };
    linker.run(emulated).map_err(|cause| LoadError(format!("model '{}': {cause}", source.name)))
}

struct CellLinker<'a> {
    source: &'a ModelSource,
    ios: &'a [BlockIo],
    wanted: Vec<RequestTensor>,
    keeps: Vec<Vec<Retention>>,
    arity: usize,
}

impl CellLinker<'_> {
    fn run(mut self, emulated: bool) -> Result<ModelPlan, String> {
        check_walk(self.source)?;
        self.keeps = self.ios.iter().map(|io| vec![Retention::default(); io.outputs.len()]).collect();
        let mut feeds = Vec::with_capacity(self.ios.len());
        for (at, block) in self.source.blocks.iter().enumerate() {
            self.check_names(at, block)?;
            let of_block = (0..self.ios[at].inputs.len()).map(|input| self.feed(at, input));
            feeds.push(of_block.collect::<Result<Vec<_>, _>>()?);
        }
        self.check_elements()?;
        let ends = (0..self.ios.len()).map(|at| if emulated { Ok(None) } else { self.end(at) });
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        let (answers, outputs) = self.answers()?;
        let cells = self.source.blocks.iter().zip(feeds).zip(self.keeps.iter().cloned()).zip(ends);
        let cells = cells.map(|(((block, feeds), keeps), end)| CellWiring {
            name: block.name.clone(),
            steps: block.steps,
            backward: block.backward,
            feeds,
            keeps,
            end,
        });
        let until_end = self.source.blocks.iter().any(|block| block.steps == Steps::UntilEnd);
        let shape = WalkShape {
            walk: self.source.walk,
            max_length: self.source.max_length.max(1),
            limit: until_end.then_some(self.source.limit),
            tensors: self.wanted.iter().map(|wanted| (wanted.name.clone(), wanted.each)).collect(),
            // Emulated cells read no children, so nodes may have any number of them.
            arity: if emulated { usize::MAX } else { self.arity },
            cells: self.source.blocks.iter().map(|block| (block.name.clone(), block.steps)).collect(),
        };
        let wiring = Wiring {
            shape,
            cells: cells.collect(),
            answers,
            emulated,
            unfold: self.source.unfold.clone(),
            request_tensors: self.wanted.clone(),
        };
        Ok(self.plan(wiring, outputs))
    }

    /// Builds the plan. Each tensor of each cell is a separate value, because tensors do not flow
    /// by name.
    fn plan(&self, wiring: Wiring, outputs: Vec<TensorSpec>) -> ModelPlan {
        let mut values = Vec::new();
        let mut number = |spec: &TensorSpec| {
            values.push(FlowValue { name: spec.name.as_str().into(), spec: spec.clone(), last_use: 0 });
            values.len() - 1
        };
        let blocks = self.ios.iter().map(|io| BlockPlan {
            inputs: io.inputs.iter().map(&mut number).collect(),
            optional: Vec::new(),
            outputs: io.outputs.iter().map(&mut number).collect(),
        });
        let blocks = blocks.collect();
        let table = |name: &str, dims: &[i64]| TensorSpec {
            name: name.to_owned(),
            datatype: DataType::Int64,
            shape: dims.to_vec(),
        };
        let mut inputs: Vec<TensorSpec> = self.wanted.iter().map(RequestTensor::spec).collect();
        let tables = self.source.unfold.is_none();
        if tables && self.source.walk.brings_graph() {
            inputs.push(table(CHILDREN, &[-1, -1, -1]));
        }
        if tables && self.source.walk == Walk::Graph {
            inputs.push(table(CELL, &[-1, -1]));
        }
        if let Some(told) = self.source.inputs.iter().find(|spec| wiring.emulated && spec.name == OUTPUT_LENGTH) {
            inputs.push(told.clone());
        }
        ModelPlan {
            name: self.source.name.clone(),
            max_batch: self.source.max_batch,
            batch_sizes: Vec::new(),
            unbatched: false,
            vocabulary: Vec::new(),
            ranges: self.source.ranges.clone(),
            limits: Default::default(),
            inputs,
            optional: Vec::new(),
            outputs,
            values,
            input_values: Vec::new(),
            output_values: Vec::new(),
            blocks,
            cells: Some(Arc::new(CellModel::new(wiring))),
            padding: None,
            conditions: None,
            checks: Vec::new(),
            sharing: Default::default(),
        }
    }

    fn check_names(&self, at: usize, block: &BlockSource) -> Result<(), String> {
        let io = &self.ios[at];
        for link in &block.links {
            if !io.inputs.iter().any(|spec| spec.name == link.input) {
                let has = names(&io.inputs);
                return Err(format!("{} has no input '{}'; its inputs are {has}", io.place, link.input));
            }
        }
        let tensors = io.inputs.iter().chain(&io.outputs);
        match tensors.clone().find(|spec| spec.datatype == DataType::Bytes) {
            Some(spec) => {
                Err(format!("{} has '{}' of BYTES, which no cell can carry; use numbers", io.place, spec.name))
            }
            None => Ok(()),
        }
    }

    fn feed(&mut self, at: usize, input: usize) -> Result<Feed, String> {
        let io = &self.ios[at];
        let spec = io.inputs[input].clone();
        if spec.shape[1..].iter().any(|&dim| dim < 0) {
            return Err(format!(
                "{}: input '{}' has the shape {:?}; of a cell, only the first dimension may vary: export it with fixed sizes",
                io.place, spec.name, spec.shape
            ));
        }
        let link = self.source.blocks[at].links.iter().find(|link| link.input == spec.name);
        let from = link.map_or_else(|| InputSource::Request(spec.name.clone()), |link| link.from.clone());
        let initial = link.and_then(|link| link.initial.clone());
        if initial.is_some() && !matches!(from, InputSource::Previous(_)) {
            let place = self.place(at, &spec);
            return Err(format!("{place} has an initial value, but does not take one of the step before; remove it"));
        }
        let from = self.from(at, &spec, &from)?;
        let vocabulary = self.ios[at].vocabulary.iter().find(|(name, _)| *name == spec.name).map(|&(_, size)| size);
        let seed = match initial {
            Some(Initial::Number(number)) if vocabulary.is_some_and(|size| !(0.0..size as f64).contains(&number)) => {
                let (place, most) = (self.place(at, &spec), vocabulary.unwrap_or(1) - 1);
                return Err(format!("{place} cannot begin as {number}: the cell knows 0 to {most}"));
            }
            Some(Initial::Last(block, name)) => {
                let output = self.earlier_output(at, &spec, block, &name)?;
                Seed::Last(block.index(), output)
            }
            Some(Initial::Number(number)) => Seed::Fill(self.fill(at, &spec, number)?),
            None => Seed::Fill(self.fill(at, &spec, 0.0)?),
        };
        let (name, row_shape) = (spec.name.as_str().into(), spec.shape[1..].to_vec());
        Ok(Feed { name, datatype: spec.datatype, row_shape, from, seed, vocabulary })
    }

    fn from(&mut self, at: usize, spec: &TensorSpec, from: &InputSource) -> Result<FeedSource, String> {
        let steps = self.source.blocks[at].steps;
        let place = || self.place(at, spec);
        match from {
            InputSource::Request(name) => {
                self.request_tensor(at, spec, name, matches!(steps, Steps::Length | Steps::Nodes))
            }
            InputSource::Previous(name) if matches!(steps, Steps::Length | Steps::UntilEnd) => {
                let output = self.output(at, spec, at, name)?;
                self.keeps[at][output].held = true;
                Ok(FeedSource::Previous(output))
            }
            InputSource::Previous(name) => Err(format!(
                "{} takes 'previous.{name}', but the cell does not repeat; name a block or \"request\"",
                place()
            )),
            InputSource::Step(block, name) => {
                let other = self.source.blocks.get(block.index()).filter(|_| block.index() < at);
                let alike = |other: &BlockSource| {
                    other.steps == Steps::Length && other.backward == self.source.blocks[at].backward
                };
                if steps != Steps::Length || !other.is_some_and(alike) {
                    return Err(format!(
                        "{} takes '{name}' of the same step of another block, which must stand before it and run the same steps",
                        place()
                    ));
                }
                let output = self.output(at, spec, block.index(), name)?;
                let stepped_by = &mut self.keeps[block.index()][output].stepped_by;
                if !stepped_by.contains(&at) {
                    stepped_by.push(at);
                }
                Ok(FeedSource::Step(block.index(), output))
            }
            InputSource::Last(block, name) => {
                Ok(FeedSource::Last(block.index(), self.earlier_output(at, spec, *block, name)?))
            }
            InputSource::Child(child, name) if steps == Steps::Nodes => {
                self.arity = self.arity.max(*child as usize + 1);
                Ok(FeedSource::Child(*child as usize, self.node_outputs(at, spec, name)?))
            }
            InputSource::Child(child, name) => Err(format!(
                "{} takes 'child{child}.{name}', but only the cells of a tree or graph have children; a walk along a sequence takes \"previous.{name}\"",
                place()
            )),
            InputSource::Root(name) if steps == Steps::Once && self.source.walk.brings_graph() => {
                Ok(FeedSource::Root(self.node_outputs(at, spec, name)?))
            }
            InputSource::Root(name) => {
                Err(format!("{} takes 'root.{name}', which only a head (once = true) of a tree or graph can", place()))
            }
        }
    }

    /// Registers a tensor that requests must contain.
    fn request_tensor(&mut self, at: usize, spec: &TensorSpec, name: &str, each: bool) -> Result<FeedSource, String> {
        let tables = self.source.unfold.is_none() && self.source.walk.brings_graph();
        if tables && [CHILDREN, CELL].contains(&name) {
            return Err(format!(
                "{} takes the request's '{name}', which is the table of nodes; rename the tensor",
                self.place(at, spec)
            ));
        }
        let wanted =
            RequestTensor { name: name.to_owned(), datatype: spec.datatype, row_shape: spec.shape[1..].to_vec(), each };
        let known = self.wanted.iter().position(|known| known.name == name);
        let number = known.unwrap_or_else(|| {
            self.wanted.push(wanted.clone());
            self.wanted.len() - 1
        });
        let known = &self.wanted[number];
        if (known.datatype, &known.row_shape, known.each) != (wanted.datatype, &wanted.row_shape, wanted.each) {
            return Err(format!(
                "{} takes the request's '{name}' as {}, but a cell before it as {}; let one of them take another tensor, as in \"request:NAME\"",
                self.place(at, spec),
                wanted.shown(),
                known.shown()
            ));
        }
        Ok(if each { FeedSource::Element(number) } else { FeedSource::Request(number) })
    }

    /// Returns the index of an output of a block that completes before this block begins.
    fn earlier_output(&mut self, at: usize, spec: &TensorSpec, block: BlockId, name: &str) -> Result<usize, String> {
        let from = block.index();
        let fits = from < at && self.source.blocks[from].steps != Steps::Nodes;
        if !fits {
            return Err(format!(
                "{} takes the last '{name}' of a block that does not stand before it; of a tree or graph, a head takes \"root.{name}\"",
                self.place(at, spec)
            ));
        }
        let output = self.output(at, spec, from, name)?;
        self.keeps[from][output].held = true;
        Ok(output)
    }

    /// Returns the index of the output of this name in each cell that nodes run.
    fn node_outputs(&mut self, at: usize, spec: &TensorSpec, name: &str) -> Result<Outputs, String> {
        let mut outputs = vec![None; self.ios.len()];
        for block in (0..self.ios.len()).filter(|&block| self.source.blocks[block].steps == Steps::Nodes) {
            let has = self.ios[block].outputs.iter().any(|output| output.name == name);
            // In a tree, any cell may run any node's child. In a graph, the edges depend on the
            // request, which is checked later.
            if has || self.source.walk == Walk::Tree {
                let output = self.output(at, spec, block, name)?;
                self.keeps[block][output].held = true;
                outputs[block] = Some(output);
            }
        }
        match outputs.iter().any(Option::is_some) {
            true => Ok(outputs),
            false => Err(format!("{} takes '{name}' of a node, which no cell gives", self.place(at, spec))),
        }
    }

    /// Returns the index of an output. The output must fit the input that receives it.
    fn output(&self, at: usize, spec: &TensorSpec, block: usize, name: &str) -> Result<usize, String> {
        let io = &self.ios[block];
        let Some(output) = io.outputs.iter().position(|output| output.name == name) else {
            return Err(format!(
                "{} takes '{name}' of {}, which has no such output; its outputs are {}",
                self.place(at, spec),
                io.place,
                names(&io.outputs)
            ));
        };
        let given = &io.outputs[output];
        let agree = |(&a, &b): (&i64, &i64)| a == b || a == -1 || b == -1;
        let shapes = given.shape.len() == spec.shape.len() && given.shape.iter().zip(&spec.shape).all(agree);
        if given.datatype != spec.datatype || !shapes {
            return Err(format!(
                "{} is {} {:?}, but '{name}' of {} is {} {:?}; export the cells so that both are {} {:?}",
                self.place(at, spec),
                spec.datatype,
                spec.shape,
                io.place,
                given.datatype,
                given.shape,
                spec.datatype,
                spec.shape
            ));
        }
        Ok(output)
    }

    fn fill(&self, at: usize, spec: &TensorSpec, number: f64) -> Result<Vec<u8>, String> {
        let element = bytes_of(spec.datatype, number).ok_or_else(|| {
            format!("{} cannot begin as {number}, which is no {}", self.place(at, spec), spec.datatype)
        })?;
        let elements = spec.shape[1..].iter().try_fold(1usize, |all, &dim| all.checked_mul(usize::try_from(dim).ok()?));
        let elements = elements.filter(|&elements| elements <= 1 << 28);
        let elements =
            elements.ok_or_else(|| format!("{} has the shape {:?}: too large", self.place(at, spec), spec.shape))?;
        Ok(element.repeat(elements))
    }

    /// Checks that a tensor determines the length of a request.
    fn check_elements(&self) -> Result<(), String> {
        let unfolds = self.source.blocks.iter().any(|block| block.steps == Steps::Length);
        if unfolds && !self.wanted.iter().any(|wanted| wanted.each) {
            return Err(
                "no cell takes an element of the request's sequence; give one an input from \"request\"".to_owned()
            );
        }
        Ok(())
    }

    fn end(&self, at: usize) -> Result<Option<usize>, String> {
        let (block, io) = (&self.source.blocks[at], &self.ios[at]);
        match (&block.end, block.steps) {
            (Some(name), Steps::UntilEnd) => {
                let output = io.outputs.iter().position(|output| output.name == *name);
                let output = output.ok_or_else(|| {
                    format!("{}: end = \"{name}\" is none of its outputs, which are {}", io.place, names(&io.outputs))
                })?;
                let spec = &io.outputs[output];
                if spec.shape[1..].iter().any(|&dim| dim != 1) {
                    return Err(format!(
                        "{}: end = \"{name}\" has the shape {:?}; it must be [-1], one number a request",
                        io.place, spec.shape
                    ));
                }
                Ok(Some(output))
            }
            (None, Steps::UntilEnd) => Err(format!(
                "{}: the key end is missing; name the output that is not zero at the last step, as in end = \"done\"",
                io.place
            )),
            (Some(name), _) => {
                Err(format!("{}: end = \"{name}\" belongs to the block that runs until its end only", io.place))
            }
            (None, _) => Ok(None),
        }
    }

    fn answers(&mut self) -> Result<(Vec<AnswerOutput>, Vec<TensorSpec>), String> {
        if self.source.answers.is_empty() {
            return Err("there is no [[output]]; name at least one, with from = \"BLOCK.OUTPUT\"".to_owned());
        }
        let (mut answers, mut specs) = (Vec::new(), Vec::new());
        for answer in &self.source.answers {
            let (from, spec) = self.answer(answer)?;
            let name: Arc<str> = answer.name.as_str().into();
            let steps = if answer.take == AnswerSteps::Every { &[-1, -1][..] } else { &[-1] };
            let shape = steps.iter().chain(&spec.shape[1..]).copied().collect();
            let datatype = spec.datatype;
            specs.push(TensorSpec { name: answer.name.clone(), datatype, shape });
            answers.push(AnswerOutput { name, datatype, from, take: answer.take });
        }
        Ok((answers, specs))
    }

    fn answer(&mut self, answer: &AnswerSource) -> Result<(AnswerFrom, TensorSpec), String> {
        let AnswerSource { name, block, tensor, take } = answer;
        let refuse = |cause: String| format!("[[output]] \"{name}\": {cause}");
        let Some(block) = block.map(BlockId::index) else {
            let mut outputs: Outputs = vec![None; self.ios.len()];
            let mut found: Option<TensorSpec> = None;
            for (at, block) in self.source.blocks.iter().enumerate().filter(|(_, block)| block.steps == Steps::Nodes) {
                let output = self.ios[at].outputs.iter().position(|spec| spec.name == *tensor);
                if output.is_none() && self.source.walk == Walk::Tree {
                    return Err(refuse(format!(
                        "the cell '{}' has no output '{tensor}', but may be the root",
                        block.name
                    )));
                }
                let Some(output) = output else { continue };
                let spec = &self.ios[at].outputs[output];
                if let Some(other) =
                    found.as_ref().filter(|other| other.datatype != spec.datatype || other.shape != spec.shape)
                {
                    let (other, spec) = (
                        format!("{} {:?}", other.datatype, other.shape),
                        format!("{} {:?}", spec.datatype, spec.shape),
                    );
                    return Err(refuse(format!(
                        "'{tensor}' is {other} of one cell and {spec} of '{}'; make them alike",
                        block.name
                    )));
                }
                found = Some(spec.clone());
                self.keeps[at][output].held = true;
                outputs[at] = Some(output);
            }
            let spec = found.ok_or_else(|| refuse(format!("no cell of the nodes has an output '{tensor}'")))?;
            return match take {
                AnswerSteps::Last => Ok((AnswerFrom::Root(outputs), spec)),
                AnswerSteps::Every => {
                    Err(refuse("take = \"every\" is for sequences; a tree or graph has one root".to_owned()))
                }
            };
        };
        let io = self.ios.get(block).ok_or_else(|| refuse(format!("there is no block {block}")))?;
        let steps = self.source.blocks[block].steps;
        if steps == Steps::Nodes {
            return Err(refuse(format!("a tree or graph answers with its root; write from = \"root.{tensor}\"")));
        }
        if *take == AnswerSteps::Every && steps == Steps::Once {
            return Err(refuse("take = \"every\" is for a block that repeats; remove it".to_owned()));
        }
        let output = io.outputs.iter().position(|spec| spec.name == *tensor);
        let output = output.ok_or_else(|| {
            refuse(format!("{} has no output '{tensor}'; its outputs are {}", io.place, names(&io.outputs)))
        })?;
        self.keeps[block][output].held |= *take == AnswerSteps::Last;
        Ok((AnswerFrom::Block(block, output), io.outputs[output].clone()))
    }

    fn place(&self, at: usize, spec: &TensorSpec) -> String {
        format!("{}: input '{}'", self.ios[at].place, spec.name)
    }
}

fn check_walk(source: &ModelSource) -> Result<(), String> {
    if source.unfold.is_some() && source.walk != Walk::Graph {
        return Err(format!(
            "walk = \"{}\" has no graph that code could make; use walk = \"graph\"",
            source.walk.name()
        ));
    }
    let steps: Vec<Steps> = source.blocks.iter().map(|block| block.steps).collect();
    check_steps(source.walk, &steps)
}

fn names(specs: &[TensorSpec]) -> String {
    specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ")
}
