//! Flow of tensors through the blocks of a model, resolved at load.
//!
//! Blocks are linked by the names of their tensors. Each tensor gets a number here, so a running
//! task only indexes tables. The plan also knows the last use of each tensor, after which a device
//! can release it.

use crate::contract::flow::{BlockPlan, FlowValue, compatible};
use crate::contract::source::InputRange;
use crate::probe::value_checks::ValueCheck;
use crate::probe::values::EngineLimits;
use crate::run::cells::{self, CellModel};
use crate::run::conditions::{Conditions, LinkedBlocks, hidden};
use crate::run::padding::{ModelBoundary, PaddingPlan};
use crate::run::sharing::BatchSharing;
use crate::{LoadError, ModelSource};
use ripieno_model::{TensorSpec, ascends};
use std::sync::Arc;

/// Inputs and outputs of one block.
#[derive(Clone, Debug)]
pub(crate) struct BlockIo {
    /// Name and file of the block, for messages.
    pub(crate) place: String,
    pub(crate) inputs: Vec<TensorSpec>,
    /// Inputs with defaults, as one row.
    pub(crate) optional: Vec<TensorSpec>,
    pub(crate) outputs: Vec<TensorSpec>,
    /// Inputs that look up an embedding, with its number of ids.
    pub(crate) vocabulary: Vec<(String, i64)>,
}

/// A model's linked blocks.
#[derive(Clone, Debug)]
pub(crate) struct ModelPlan {
    pub(crate) name: String,
    pub(crate) max_batch: usize,
    /// Sizes that batches are padded to; empty if they are not padded.
    pub(crate) batch_sizes: Vec<usize>,
    /// Whether each request runs alone, as one row and without a batch dimension.
    pub(crate) unbatched: bool,
    /// Inputs that look up an embedding, with its number of ids.
    pub(crate) vocabulary: Vec<(String, i64)>,
    /// Allowed ranges of the numbers in requests.
    pub(crate) ranges: Vec<InputRange>,
    /// Limits of the engine's arithmetic.
    pub(crate) limits: EngineLimits,
    /// Inputs of a request.
    pub(crate) inputs: Vec<TensorSpec>,
    /// Inputs that a request may leave out, as one row.
    pub(crate) optional: Vec<TensorSpec>,
    /// Outputs of a request.
    pub(crate) outputs: Vec<TensorSpec>,
    /// All tensors that are inputs or outputs of blocks.
    pub(crate) values: Vec<FlowValue>,
    /// Value numbers of [`ModelPlan::inputs`].
    pub(crate) input_values: Vec<usize>,
    /// Value numbers of [`ModelPlan::outputs`].
    pub(crate) output_values: Vec<usize>,
    pub(crate) blocks: Vec<BlockPlan>,
    /// The cells, for models that unfold. Each tensor of each cell is then a separate value.
    pub(crate) cells: Option<Arc<CellModel>>,
    /// The padding, if requests differ in length.
    pub(crate) padding: Option<PaddingPlan>,
    /// The conditions, if requests may end early or skip blocks.
    pub(crate) conditions: Option<Conditions>,
    /// Checks of a request's values, for models that do not unfold.
    pub(crate) checks: Vec<ValueCheck>,
    /// Whether requests may still share batches.
    pub(crate) sharing: Arc<BatchSharing>,
}

impl ModelPlan {
    /// Links the blocks. The inputs of the model are the tensors that a block takes before any
    /// block outputs them. The outputs of the model are the tensors that no later block takes.
    pub(crate) fn link(source: &ModelSource, ios: &[BlockIo]) -> Result<ModelPlan, LoadError> {
        check_source(source)?;
        let named = |cause: String| LoadError(format!("model '{}': {cause}", source.name));
        if source.walk.is_unfolded() {
            return match source.lengths.inputs.first() {
                Some(input) => Err(named(format!(
                    "input '{}' has a length_dim, but a walk of cells pads nothing; remove it",
                    input.tensor
                ))),
                None => cells::link(source, ios),
            };
        }
        let mut linker = ChainLinker::default();
        for (at, block) in ios.iter().enumerate() {
            linker.add(at, block).map_err(named)?;
        }
        let vocabulary: Vec<(String, i64)> = ios.iter().flat_map(|block| block.vocabulary.iter().cloned()).collect();
        let ChainLinker { mut values, mut blocks, inputs, mut outputs, .. } = linker;
        let optional = link_optional(ios, &mut blocks, &values);
        let hidden = hidden(source);
        outputs.retain(|&output| !hidden.contains(&*values[output].name));
        for &value in &outputs {
            values[value].last_use = blocks.len();
        }
        let specs = |numbers: &[usize]| -> Vec<TensorSpec> {
            numbers.iter().map(|&value| values[value].spec.clone()).collect()
        };
        let (brought, given) = (specs(&inputs), specs(&outputs));
        let ends = ModelBoundary {
            inputs: (&brought, &inputs),
            outputs: (&given, &outputs),
            values: values.len(),
            vocabulary: &vocabulary,
        };
        let padding = PaddingPlan::link(source, &ends).map_err(named)?;
        let linked = LinkedBlocks { source, values: &values, blocks: &blocks, inputs: &inputs, outputs: &outputs };
        let conditions = Conditions::link(&linked).map_err(named)?;
        let checks = id_checks(&brought, ios);
        Ok(ModelPlan {
            name: source.name.clone(),
            max_batch: source.max_batch,
            batch_sizes: source.batch_sizes.clone(),
            unbatched: source.unbatched,
            vocabulary,
            ranges: source.ranges.clone(),
            limits: EngineLimits::default(),
            inputs: brought,
            optional,
            outputs: given,
            input_values: inputs,
            output_values: outputs,
            values,
            blocks,
            cells: None,
            padding,
            conditions,
            checks,
            sharing: Arc::default(),
        })
    }
}

/// Links inputs with defaults to the blocks that take them, and returns them. A name of another
/// tensor keeps its default.
fn link_optional(ios: &[BlockIo], blocks: &mut [BlockPlan], values: &[FlowValue]) -> Vec<TensorSpec> {
    let mut optional: Vec<TensorSpec> = Vec::new();
    for (io, block) in ios.iter().zip(blocks) {
        for spec in io.optional.iter().filter(|spec| values.iter().all(|value| *value.name != *spec.name)) {
            match optional.iter().position(|known| known.name == spec.name) {
                Some(at) if optional[at] == *spec => block.optional.push(at),
                Some(_) => {}
                None => {
                    block.optional.push(optional.len());
                    optional.push(spec.clone());
                }
            }
        }
    }
    optional
}

/// Returns the specification with a batch dimension of one row in front.
pub(crate) fn as_one_row(spec: &TensorSpec) -> TensorSpec {
    let shape = [-1].into_iter().chain(spec.shape.iter().copied()).collect();
    TensorSpec { shape, ..spec.clone() }
}

/// Creates the checks of ids in requests. Inputs that receive another block's output of the same
/// name are not checked.
fn id_checks(brought: &[TensorSpec], ios: &[BlockIo]) -> Vec<ValueCheck> {
    let table = |spec: &TensorSpec| {
        let given = ios.iter().position(|block| block.outputs.iter().any(|output| output.name == spec.name));
        // The block that outputs the tensor again still takes the request's value.
        let own = &ios[..given.map_or(ios.len(), |at| at + 1)];
        let sizes = own.iter().flat_map(|block| &block.vocabulary).filter(|(name, _)| *name == spec.name);
        sizes.map(|&(_, size)| size).min()
    };
    brought.iter().filter_map(|spec| Some(ValueCheck::ids(spec, table(spec)?))).collect()
}

fn check_source(source: &ModelSource) -> Result<(), LoadError> {
    if source.blocks.is_empty() {
        return Err(LoadError(format!("model '{}' has no block: name at least one in model.toml", source.name)));
    }
    if source.max_batch == 0 {
        return Err(LoadError(format!("model '{}': max_batch is 0: it must be at least 1", source.name)));
    }
    let (sizes, largest) = (&source.batch_sizes, source.max_batch);
    if !ascends(sizes) || sizes.last().is_some_and(|&last| last != largest) {
        return Err(LoadError(format!(
            "model '{}': batch_sizes {sizes:?} must ascend from at least 1 to max_batch, {largest}",
            source.name
        )));
    }
    Ok(())
}

#[derive(Default)]
struct ChainLinker {
    values: Vec<FlowValue>,
    /// Block that computed each value last, for messages; `None` for an input of the request.
    given_by: Vec<Option<String>>,
    blocks: Vec<BlockPlan>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

impl ChainLinker {
    fn add(&mut self, at: usize, block: &BlockIo) -> Result<(), String> {
        let mut plan = BlockPlan::default();
        for spec in &block.inputs {
            let known = self.values.len();
            let value = self.number(spec, &block.place)?;
            if value == known {
                self.inputs.push(value);
            }
            self.values[value].last_use = at;
            self.outputs.retain(|&output| output != value);
            plan.inputs.push(value);
        }
        for spec in &block.outputs {
            let value = self.number(spec, &block.place)?;
            self.given_by[value] = Some(block.place.clone());
            self.outputs.retain(|&output| output != value);
            self.outputs.push(value);
            plan.outputs.push(value);
        }
        self.blocks.push(plan);
        Ok(())
    }

    fn number(&mut self, spec: &TensorSpec, place: &str) -> Result<usize, String> {
        if let Some(value) = self.values.iter().position(|value| *value.name == *spec.name) {
            let known = &self.values[value].spec;
            if !compatible(known, spec) {
                let giver = self.given_by[value].as_deref().unwrap_or("the request");
                return Err(format!(
                    "{place} declares '{}' as {} {:?}, but {giver} gives it as {} {:?}: export the blocks anew",
                    spec.name, spec.datatype, spec.shape, known.datatype, known.shape
                ));
            }
            return Ok(value);
        }
        self.values.push(FlowValue { name: spec.name.as_str().into(), spec: spec.clone(), last_use: 0 });
        self.given_by.push(None);
        Ok(self.values.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockSource;
    use ripieno_model::DataType;

    fn spec(name: &str, width: i64) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype: DataType::Fp32, shape: vec![-1, width] }
    }

    type Tensors<'a> = &'a [(&'a str, i64)];

    fn link(blocks: &[(Tensors<'_>, Tensors<'_>)]) -> Result<ModelPlan, LoadError> {
        let specs = |of: Tensors<'_>| of.iter().map(|&(name, width)| spec(name, width)).collect::<Vec<_>>();
        let ios: Vec<BlockIo> = blocks
            .iter()
            .enumerate()
            .map(|(at, (i, o))| BlockIo {
                place: format!("block {at}"),
                inputs: specs(i),
                optional: Vec::new(),
                outputs: specs(o),
                vocabulary: Vec::new(),
            })
            .collect();
        let sources = ios.iter().map(|io| BlockSource::new(io.place.clone()));
        let source = ModelSource::new("m", sources.collect(), 4);
        ModelPlan::link(&source, &ios)
    }

    #[test]
    fn inputs_are_values_that_no_block_gives_and_outputs_those_that_none_takes() {
        let plan = link(&[(&[("x", 4)], &[("h", 8), ("early", 1)]), (&[("h", 8), ("mask", 1)], &[("y", 2)])]).unwrap();
        let names = |specs: &[TensorSpec]| specs.iter().map(|spec| spec.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&plan.inputs), names(&plan.outputs)),
            (vec!["x".into(), "mask".into()], vec!["early".to_owned(), "y".to_owned()])
        );
        let last_use = |name: &str| plan.values.iter().find(|value| &*value.name == name).unwrap().last_use;
        assert_eq!((last_use("x"), last_use("h"), last_use("early"), last_use("y")), (0, 1, 2, 2));
    }

    #[test]
    fn a_value_given_anew_replaces_the_old_one() {
        let plan = link(&[(&[("h", 8)], &[("h", 8)]), (&[("h", 8)], &[("h", 8)])]).unwrap();
        assert_eq!((plan.values.len(), plan.input_values, plan.output_values), (1, vec![0], vec![0]));
    }

    #[test]
    fn blocks_that_do_not_fit_are_named() {
        let error = link(&[(&[("x", 4)], &[("h", 8)]), (&[("h", 9)], &[("y", 2)])]).unwrap_err().to_string();
        let expected = "model 'm': block 1 declares 'h' as FP32 [-1, 9], but block 0 gives it as FP32 [-1, 8]";
        assert!(error.starts_with(expected), "{error}");
    }
}
