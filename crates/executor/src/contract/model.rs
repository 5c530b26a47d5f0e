//! A loaded model of any engine of this crate: the plan, and the engine's own data.

use crate::probe::value_checks::ValueCheck;
use crate::probe::values::{EngineLimits, ValueAnalysis, check_request};
use crate::run::plan::{BlockIo, ModelPlan, as_one_row};
use crate::{BlockSource, ExecError, LoadError, LoadedModel, ModelSource, Outage, RequestError, Tensor, WalkShape};
use ripieno_base::BlockId;
use ripieno_model::{Extent, Graph, InputLengths, Steps, TensorSpec};
use ripieno_onnx::{Declared, OnnxFile};
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

/// The engine's own data of a model.
pub(crate) trait EngineData: Send + Sync + 'static {
    /// See [`LoadedModel::outage`].
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// See [`LoadedModel::adopted_source`].
    fn adopted_source(&self) -> Option<&ModelSource> {
        None
    }

    /// See [`LoadedModel::cell`].
    fn cell(&self, _plan: &ModelPlan, _block: usize) -> Option<Arc<dyn LoadedModel>> {
        None
    }

    /// See [`LoadedModel::restarts`].
    fn restarts(&self) -> Option<u64> {
        None
    }
}

/// The [`LoadedModel`] of every engine of this crate; `T` is the engine's own data.
pub(crate) struct EngineModel<T> {
    pub(crate) plan: Arc<ModelPlan>,
    pub(crate) data: T,
}

impl<T: EngineData> EngineModel<T> {
    /// Returns the model behind `loaded`, if this engine has loaded it.
    pub(crate) fn of<'a>(loaded: &'a dyn LoadedModel, engine: &str) -> Result<&'a EngineModel<T>, ExecError> {
        let cause =
            || ExecError(format!("a model that another engine has loaded cannot run on a device of '{engine}'"));
        loaded.as_any().downcast_ref().ok_or_else(cause)
    }
}

impl<T: EngineData> LoadedModel for EngineModel<T> {
    fn inputs(&self) -> &[TensorSpec] {
        &self.plan.inputs
    }

    fn optional_inputs(&self) -> &[TensorSpec] {
        &self.plan.optional
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.plan.outputs
    }

    fn batched(&self) -> bool {
        !self.plan.unbatched
    }

    fn batch_sizes(&self) -> &[usize] {
        if self.plan.sharing.is_stopped() { &[] } else { &self.plan.batch_sizes }
    }

    fn range(&self, input: &str) -> Option<(i64, i64)> {
        let ids = self.plan.vocabulary.iter().filter(|(name, _)| name == input).map(|&(_, size)| size).min();
        let ids = ids.map(|size| (0, (size - 1).max(0)));
        let declared = self.plan.ranges.iter().find(|range| range.tensor == input);
        let declared = declared.map(|range| (range.least.ceil() as i64, range.most.floor() as i64));
        match (ids, declared) {
            (Some(ids), Some(declared)) => Some((ids.0.max(declared.0), ids.1.min(declared.1))),
            (ids, declared) => ids.or(declared),
        }
    }

    fn blocks(&self) -> usize {
        self.plan.blocks.len()
    }

    fn steps(&self, block: BlockId) -> Steps {
        let cells = self.plan.cells.as_ref();
        cells.map_or(Steps::Once, |cells| cells.wiring.cells[block.index()].steps)
    }

    fn describe(&self, inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        // The check of ids runs first, because its message is more specific than the message of the
        // integer range.
        self.plan.checks.iter().try_for_each(|values| values.check(inputs))?;
        check_request(inputs, &self.plan.ranges, self.plan.limits)?;
        match &self.plan.cells {
            Some(cells) => cells.wiring.describe(inputs),
            None => {
                let extent = self.plan.padding.as_ref().map_or(Ok(Extent::ONE), |padding| padding.describe(inputs))?;
                Ok((extent, None))
            }
        }
    }

    fn lengths(&self) -> Option<&InputLengths> {
        self.plan.padding.as_ref().map(|padding| &padding.lengths)
    }

    fn walk_shape(&self) -> Option<&WalkShape> {
        let wiring = &self.plan.cells.as_ref()?.wiring;
        Some(&wiring.shape).filter(|_| wiring.unfold.is_none())
    }

    fn example(&self, length: u32) -> Option<Vec<Tensor>> {
        match (&self.plan.cells, &self.plan.padding) {
            (Some(cells), _) => cells.wiring.example(length, &|name| self.range(name)),
            (None, Some(padding)) => padding.example(length),
            (None, None) => None,
        }
    }

    fn varied_example(&self, length: u32, seed: u64) -> Option<Vec<Tensor>> {
        self.plan.cells.as_ref()?.wiring.varied_example(length, seed, &|name| self.range(name))
    }

    fn outage(&self) -> Option<Outage> {
        self.data.outage()
    }

    fn restarts(&self) -> Option<u64> {
        self.data.restarts()
    }

    fn adopted_source(&self) -> Option<&ModelSource> {
        self.data.adopted_source()
    }

    fn cell(&self, block: BlockId) -> Option<Arc<dyn LoadedModel>> {
        self.data.cell(&self.plan, block.index())
    }

    fn stop_batches(&self, why: &str) {
        self.plan.sharing.stop(&self.plan.name, why.to_owned());
    }

    fn batches_stopped(&self) -> Option<String> {
        self.plan.sharing.stop_reason().map(str::to_owned)
    }

    fn watch_rows(&self, doubt: &str) {
        self.plan.sharing.watch(doubt);
    }

    fn rows_compared(&self) -> u64 {
        self.plan.sharing.rows_compared()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The ONNX files of a model's blocks, read and linked.
pub(crate) struct OnnxBlocks<'a> {
    pub(crate) plan: ModelPlan,
    pub(crate) blocks: Vec<(&'a Path, Declared)>,
}

/// Reads the ONNX files of a model's blocks and links them.
pub(crate) fn read_blocks<'a>(
    source: &'a ModelSource,
    engine: &str,
    limits: EngineLimits,
) -> Result<OnnxBlocks<'a>, LoadError> {
    let mut blocks = Vec::with_capacity(source.blocks.len());
    let mut known = ValueAnalysis::nothing();
    for block in &source.blocks {
        let path = block.path.as_deref().ok_or_else(|| {
            let (model, block) = (&source.name, &block.name);
            LoadError(format!("model '{model}': block '{block}' has no ONNX file, which engine '{engine}' needs"))
        })?;
        let file = OnnxFile::read(path).map_err(|cause| LoadError(cause.0))?;
        let io = declared(&file, source, limits)?;
        // Cells are linked later, so their inputs are not outputs of other cells here.
        if source.walk.is_unfolded() {
            known = ValueAnalysis::nothing();
        }
        known.follow(&file, &io.inputs, &block.ranges(&io.inputs, &source.ranges), limits)?;
        blocks.push((path, io));
    }
    check_ranges(source, &blocks)?;
    let unbatched = is_unbatched(source, &blocks)?;
    // A request of an unbatched model is one row for devices, and the row contains all its tensors.
    let rows = |spec: &TensorSpec| match unbatched {
        true => as_one_row(spec),
        false => spec.clone(),
    };
    let ios = source.blocks.iter().zip(&blocks).map(|(block, (path, io))| BlockIo {
        place: format!("block '{}' ({})", block.name, path.display()),
        inputs: io.inputs.iter().map(rows).collect(),
        optional: io.optional.iter().map(as_one_row).collect(),
        outputs: io.outputs.iter().map(rows).collect(),
        vocabulary: io.vocabulary.clone(),
    });
    let mut plan = ModelPlan::link(source, &ios.collect::<Vec<_>>())?;
    let texts = plan.inputs.iter().filter_map(ValueCheck::text);
    plan.checks.extend(texts);
    let inputs = plan.inputs.iter();
    let nan = known.loses_nan().filter_map(|(name, operator)| {
        inputs.clone().find(|spec| spec.name == name).and_then(|spec| ValueCheck::no_nan(spec, operator))
    });
    plan.checks.extend(nan.collect::<Vec<_>>());
    let mut plan = ModelPlan { unbatched, limits, ..plan };
    if unbatched {
        plan.max_batch = 1;
        plan.batch_sizes.clear();
    }
    Ok(OnnxBlocks { plan, blocks })
}

/// Returns the declarations of a block's file, with the optional inputs that requests may bring.
fn declared(file: &OnnxFile, source: &ModelSource, limits: EngineLimits) -> Result<Declared, LoadError> {
    let mut io = Declared::of(file).map_err(|cause| LoadError(cause.0))?;
    let is_offered = |spec: &TensorSpec| limits.carries.is_none_or(|carries| carries(spec.datatype));
    io.optional.retain(|spec| !source.walk.is_unfolded() && is_offered(spec));
    Ok(io)
}

/// Checks that every declared range belongs to an input of a block. Otherwise it would have no
/// effect.
fn check_ranges(source: &ModelSource, blocks: &[(&Path, Declared)]) -> Result<(), LoadError> {
    let has = |io: &Declared, name: &str| io.inputs.iter().chain(&io.optional).any(|spec| spec.name == name);
    let taken = |name: &str| blocks.iter().any(|(_, io)| has(io, name));
    match source.ranges.iter().find(|range| !source.walk.is_unfolded() && !taken(&range.tensor)) {
        Some(range) => Err(LoadError(format!(
            "model '{}': min and max stand at input '{}', which it does not have; correct its name",
            source.name, range.tensor
        ))),
        None => Ok(()),
    }
}

/// Whether each request of the model runs alone: the model requests it, or a file has tensors
/// without a dynamic first dimension. Returns an error if the walk needs batches.
fn is_unbatched(source: &ModelSource, blocks: &[(&Path, Declared)]) -> Result<bool, LoadError> {
    let fixed = blocks.iter().find_map(|(_, io)| io.no_batch.clone());
    let Some(cause) = fixed.or_else(|| source.unbatched.then(|| "it is to run without a batch".to_owned())) else {
        return Ok(false);
    };
    let leaves = |block: &BlockSource| block.exit.is_some() || block.skip.is_some();
    let at_odds = if source.walk.is_unfolded() {
        Some("a walk of cells steps row by row: export its cells with a dynamic batch axis")
    } else if !source.lengths.inputs.is_empty() {
        Some("length_dim pads what shares a batch: export it with a dynamic batch axis, or remove every length_dim")
    } else if source.condition.is_some() || source.blocks.iter().any(leaves) {
        Some(
            "conditions are for rows of a batch: export it with a dynamic batch axis, or remove exit_when and skip_when",
        )
    } else {
        None
    };
    match at_odds {
        Some(fix) => Err(LoadError(format!("model '{}': {cause}, but {fix}", source.name))),
        None => Ok(true),
    }
}
