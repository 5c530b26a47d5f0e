//! A loaded model of any engine here: the plan that its blocks follow, and what the engine keeps for it.

use crate::plan::{BlockIo, Plan};
use crate::values::ValueCheck;
use crate::{ExecError, InputLengths, LoadError, Loaded, ModelSource, RequestError, Tensor};
use ripieno_base::BlockId;
use ripieno_model::{Extent, Graph, Steps, TensorSpec};
use ripieno_onnx::Declared;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

/// The [`Loaded`] of every engine here; `T` is the engine's own part.
pub(crate) struct LoadedModel<T> {
    pub(crate) plan: Arc<Plan>,
    pub(crate) own: T,
}

impl<T: Send + Sync + 'static> LoadedModel<T> {
    /// The model behind `loaded`, if the same engine has loaded it.
    pub(crate) fn of<'a>(loaded: &'a dyn Loaded, engine: &str) -> Result<&'a LoadedModel<T>, ExecError> {
        let cause =
            || ExecError(format!("a model that another engine has loaded cannot run on a device of '{engine}'"));
        loaded.as_any().downcast_ref().ok_or_else(cause)
    }
}

impl<T: Send + Sync + 'static> Loaded for LoadedModel<T> {
    fn inputs(&self) -> &[TensorSpec] {
        &self.plan.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.plan.outputs
    }

    fn blocks(&self) -> usize {
        self.plan.blocks.len()
    }

    fn steps(&self, block: BlockId) -> Steps {
        let cells = self.plan.cells.as_ref();
        cells.map_or(Steps::Once, |cells| cells.wiring.cells[block.index()].steps)
    }

    fn describe(&self, inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        match &self.plan.cells {
            Some(cells) => cells.wiring.describe(inputs),
            None => {
                let extent = self.plan.padding.as_ref().map_or(Ok(Extent::ONE), |padding| padding.describe(inputs))?;
                self.plan.checks.iter().try_for_each(|values| values.check(inputs))?;
                Ok((extent, None))
            }
        }
    }

    fn lengths(&self) -> Option<&InputLengths> {
        self.plan.padding.as_ref().map(|padding| &padding.lengths)
    }

    fn example(&self, length: u32) -> Option<Vec<Tensor>> {
        match (&self.plan.cells, &self.plan.padding) {
            (Some(cells), _) => cells.wiring.example(length),
            (None, Some(padding)) => padding.example(length),
            (None, None) => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The ONNX files of a model's blocks, read and tied together.
pub(crate) struct OnnxBlocks<'a> {
    pub(crate) plan: Plan,
    pub(crate) blocks: Vec<(&'a Path, Declared)>,
}

/// Reads the ONNX files of a model's blocks and ties them together.
pub(crate) fn read_blocks<'a>(source: &'a ModelSource, engine: &str) -> Result<OnnxBlocks<'a>, LoadError> {
    let mut blocks = Vec::with_capacity(source.blocks.len());
    for block in &source.blocks {
        let path = block.path.as_deref().ok_or_else(|| {
            let (model, block) = (&source.name, &block.name);
            LoadError(format!("model '{model}': block '{block}' has no ONNX file, which engine '{engine}' needs"))
        })?;
        blocks.push((path, Declared::read(path).map_err(|cause| LoadError(cause.0))?));
    }
    let ios = source.blocks.iter().zip(&blocks).map(|(block, (path, io))| BlockIo {
        place: format!("block '{}' ({})", block.name, path.display()),
        inputs: io.inputs.clone(),
        outputs: io.outputs.clone(),
        vocabulary: io.vocabulary.clone(),
    });
    let mut plan = Plan::link(source, &ios.collect::<Vec<_>>())?;
    let texts = plan.inputs.iter().filter_map(ValueCheck::text);
    plan.checks.extend(texts);
    Ok(OnnxBlocks { plan, blocks })
}
