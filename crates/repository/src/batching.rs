//! Decides at load, before profiling, whether requests to a model can share batches.
//!
//! A file without a dynamic first dimension is given one, if its rows are then answered as before;
//! else it cannot be batched. A model whose rows depend on each other must not be: a client's
//! answer would depend on other clients' requests. The analysis of the graph decides
//! ([`row_verdict`]). A trial confirms what is proved, and decides where the analysis cannot tell.
//! All other models are served one request at a time, unless the owner demands batching with the
//! key `batching` in `model.toml`.

use super::config::Batching;
use super::open_batch;
use super::plan::{LoadPlan, LoadTarget};
use super::row_verdict::{self, trial_of};
use ripieno_base::BlockId;
use ripieno_executor::{BlockSource, LoadedModel, ModelSource, RowIndependence, check_rows, check_step_rows};
use ripieno_model::{TensorSpec, Walk};
use ripieno_onnx::{Declared, OnnxFile, RowFinding, RowVerdict};
use std::path::Path;
use std::sync::Arc;

/// Reason for which requests do not share batches.
struct NoBatches {
    why: String,
    /// Ways to batches, as a clause; empty if there is none but another file.
    remedy: String,
}

/// Remedy for rows that depend on each other.
const IF_HARMLESS: &str = "if that does no harm, batching = \"trust\" in model.toml batches it all the same";
/// Remedy for dynamic quantisation.
const IF_ROUNDED: &str = "the largest number in a batch then rounds the numbers of all its requests; batching = \"trust\" in model.toml \
                          accepts that, and static quantisation avoids it";
/// Remedy for rows that a trial finds to depend on each other.
const IF_INDEPENDENT: &str =
    "if that is rounding or chance, batching = \"trust\" in model.toml batches it all the same";
/// Remedy for a model whose trial showed nothing.
const IF_UNTRIED: &str = "declare the shapes and ranges of its inputs ([[input]] shape, min, max in model.toml) so that it can be, or write \
                          batching = \"trust\" if each row is computed on its own";

/// Remedy for a cell whose trial showed nothing.
const IF_CELL_UNTRIED: &str = "write batching = \"trust\" in model.toml if each row is computed on its own";

/// Remedy for a file without a dynamic first dimension.
const IF_FIXED: &str = "export it with one (torch.onnx.export: dynamic_shapes, or dynamic_axes={name: {0: \"batch\"}}; tf2onnx: an \
                        input signature that begins with None)";

impl NoBatches {
    /// Formats the reason, with the remedy if there is one.
    fn text(&self) -> String {
        let NoBatches { why, remedy } = self;
        if remedy.is_empty() { why.clone() } else { format!("{why}; {remedy}") }
    }
}

/// A model as it is to be served.
pub(super) struct BatchingDecision {
    pub(super) loaded: Arc<dyn LoadedModel>,
    /// Reason for which its requests do not share batches.
    pub(super) unbatched: Option<String>,
    /// Warning about a file that was rewritten.
    pub(super) warning: Option<String>,
    /// Set if only a trial says that its rows are independent, so that served batches are compared
    /// with single rows: what the graph leaves open, as a clause.
    pub(super) watch: Option<String>,
}

/// Returns the model as it is to be served, with a batch dimension if it can have one, reloaded if
/// without batches.
pub(super) fn decide(
    target: &LoadTarget,
    plan: &mut LoadPlan,
    loaded: Arc<dyn LoadedModel>,
) -> Result<BatchingDecision, String> {
    let file = plan.shown_file();
    let mut kept_fixed = None;
    if !loaded.batched() && plan.config.batching != Batching::Off && !target.emulates() {
        match open_batch::open(target, plan, &loaded) {
            Ok(loaded) => {
                let warning = format!(
                    "{file}: its first dimension is fixed to 1; it is served with a batch dimension, since rows alone and rows \
                     together are answered as by the file itself; batching = \"off\" in {} serves it as it is",
                    plan.settings.display()
                );
                let watch = unproved(plan);
                return Ok(BatchingDecision { loaded, unbatched: None, warning: Some(warning), watch });
            }
            Err(cause) => kept_fixed = Some(cause),
        }
    }
    let reason = unbatchable_reason(target, plan, &loaded, kept_fixed)?;
    let (loaded, unbatched) = match reason {
        Some(reason) => without_batches(target, plan, loaded, &file, &reason)?,
        None => (loaded, None),
    };
    let decides = matches!(plan.config.batching, Batching::Auto | Batching::Require) && !target.emulates();
    let watch = unproved(plan).filter(|_| unbatched.is_none() && decides);
    Ok(BatchingDecision { loaded, unbatched, warning: None, watch })
}

/// Returns where the graph leaves open if rows that run in blocks are independent, as a clause.
fn unproved(plan: &LoadPlan) -> Option<String> {
    let source = &plan.source;
    if source.walk.is_unfolded() || source.max_batch < 2 {
        return None;
    }
    match row_verdict::of_model(&source.blocks) {
        RowVerdict::Unknown(finding) => Some(format!("the graph leaves it open ({finding})")),
        _ => None,
    }
}

/// Returns the model without batches, and the text of the reason.
fn without_batches(
    target: &LoadTarget,
    plan: &mut LoadPlan,
    loaded: Arc<dyn LoadedModel>,
    file: &str,
    reason: &NoBatches,
) -> Result<(Arc<dyn LoadedModel>, Option<String>), String> {
    let NoBatches { why, remedy } = reason;
    if plan.config.batching == Batching::Require {
        let or = if remedy.is_empty() { String::new() } else { format!(", or: {remedy}") };
        return Err(format!(
            "{file}: {why}, so requests cannot share batches, which batching = \"require\" demands; export it so that each row \
             of a dynamic first dimension is computed on its own, or remove the key to serve it one request at a time{or}"
        ));
    }
    let was_batched = loaded.batched();
    if was_batched && needs_batch_dimension(plan) {
        plan.with_single_rows();
    } else {
        plan.without_batches();
        if !was_batched {
            return Ok((loaded, Some(reason.text())));
        }
    }
    let again = target.engine.load(&plan.source).map_err(|error| {
        format!(
            "{file}: {}, so requests cannot share batches; to serve it one request at a time failed: {error}",
            reason.text()
        )
    })?;
    Ok((again, Some(reason.text())))
}

/// Returns true if the model is executed row by row: in cells, padded, or with early exits. It then
/// keeps its batch dimension, and each batch is one row.
fn needs_batch_dimension(plan: &LoadPlan) -> bool {
    let leaves = |block: &BlockSource| block.exit.is_some() || block.skip.is_some();
    let source = &plan.source;
    source.walk.is_unfolded()
        || !source.lengths.inputs.is_empty()
        || source.condition.is_some()
        || source.blocks.iter().any(leaves)
}

/// Says which tensors of an unbatched model have no dynamic first dimension.
fn without_first_dimension(loaded: &dyn LoadedModel) -> String {
    let fixed = |spec: &&TensorSpec| spec.shape.get(1) != Some(&-1);
    let tensors = || loaded.inputs().iter().chain(loaded.outputs());
    if tensors().all(|spec| fixed(&spec)) {
        return "its tensors have no dynamic first dimension".to_owned();
    }
    let named: Vec<String> =
        tensors().filter(fixed).map(|spec| format!("'{}' {:?}", spec.name, &spec.shape[1..])).collect();
    format!("the file declares no dynamic first dimension for {}", named.join(", "))
}

/// Returns the reason for which requests cannot share batches, if there is one.
fn unbatchable_reason(
    target: &LoadTarget,
    plan: &LoadPlan,
    loaded: &Arc<dyn LoadedModel>,
    kept_fixed: Option<String>,
) -> Result<Option<NoBatches>, String> {
    let config = &plan.config;
    if config.batching == Batching::Off {
        return Ok(Some(NoBatches { why: "batching = \"off\"".to_owned(), remedy: String::new() }));
    }
    if !loaded.batched() {
        let why = without_first_dimension(&**loaded);
        let why = kept_fixed.map_or(why.clone(), |cause| format!("{why}, and one made for it is not right: {cause}"));
        return Ok(Some(NoBatches { why, remedy: row_verdict::with_batch_dims(plan, IF_FIXED) }));
    }
    if config.batching == Batching::Trust || target.emulates() {
        return Ok(None);
    }
    if plan.source.walk.is_unfolded() {
        return check_cells(target, plan, &**loaded);
    }
    if plan.source.max_batch < 2 {
        return Ok(None);
    }
    let verdict = row_verdict::of_model(&plan.source.blocks);
    if let RowVerdict::Meet(finding) = &verdict {
        return Ok(Some(meets(plan, finding)));
    }
    let shapes = plan.request_shapes();
    Ok(match check_rows(&*target.engine, loaded, plan.source.max_batch, &shapes, trial_of(&verdict)) {
        RowIndependence::Independent => None,
        RowIndependence::Mixed(how) => {
            let remedy = row_verdict::with_batch_dims(plan, IF_INDEPENDENT);
            Some(NoBatches { why: format!("its rows depend on each other ({how})"), remedy })
        }
        RowIndependence::Untried(cause) => Some(untried(plan, "its rows", &cause, &verdict, IF_UNTRIED)),
    })
}

/// Returns the reason of rows that meet in an operator.
fn meets(plan: &LoadPlan, finding: &RowFinding) -> NoBatches {
    let remedy = if finding.is_quantisation() { IF_ROUNDED } else { IF_HARMLESS };
    NoBatches {
        why: format!("its rows depend on each other ({finding})"),
        remedy: row_verdict::with_batch_dims(plan, remedy),
    }
}

fn untried(plan: &LoadPlan, rows: &str, cause: &str, verdict: &RowVerdict, remedy: &str) -> NoBatches {
    let unproved = match verdict {
        RowVerdict::Unknown(finding) if !plan.is_python => format!(" and does not follow from the graph ({finding})"),
        _ => String::new(),
    };
    NoBatches {
        why: format!("whether {rows} are independent cannot be tried ({cause}){unproved}"),
        remedy: remedy.to_owned(),
    }
}

/// Checks each cell on its own, because cell batches combine rows of many requests and steps. Cells
/// that mix rows are an error, and those that cannot be tried run one row at a time.
fn check_cells(target: &LoadTarget, plan: &LoadPlan, loaded: &dyn LoadedModel) -> Result<Option<NoBatches>, String> {
    if !target.engine.serves(Walk::Whole) {
        // An engine of cells only knows no operator that mixes rows.
        return Ok(None);
    }
    let mut reason = None;
    for (at, block) in plan.source.blocks.iter().enumerate() {
        let Some(path) = &block.path else { continue };
        let verdict = row_verdict::of_model(std::slice::from_ref(block));
        let cell = loaded.cell(BlockId(at as u16)).map_or_else(|| load_cell(target, plan, block, path), Ok)?;
        let shown = match &verdict {
            RowVerdict::Meet(finding) => RowIndependence::Mixed(finding.to_string()),
            _ => {
                let (end, trial) = (block.end.as_deref(), trial_of(&verdict));
                check_step_rows(&*target.engine, &cell, plan.source.max_batch, trial, end)
            }
        };
        match shown {
            // Cells combine rows of many steps, so that a sample would come too late. A function in
            // Python has no graph, and its author declares that its rows are steps of requests.
            RowIndependence::Independent if matches!(verdict, RowVerdict::Unknown(_)) && !plan.is_python => {
                let rows = format!("rows of cell \"{}\"", block.name);
                reason =
                    reason.or(Some(untried(plan, &rows, "a trial alone proves nothing", &verdict, IF_CELL_UNTRIED)));
            }
            RowIndependence::Independent => {}
            RowIndependence::Untried(cause) => {
                let rows = format!("rows of cell \"{}\"", block.name);
                reason = reason.or(Some(untried(plan, &rows, &cause, &verdict, IF_CELL_UNTRIED)));
            }
            RowIndependence::Mixed(how) if plan.is_python => {
                let why = format!("rows of function \"{}\" depend on each other ({how})", block.name);
                reason = reason.or(Some(NoBatches { why, remedy: IF_INDEPENDENT.to_owned() }));
            }
            RowIndependence::Mixed(how) => {
                return Err(format!(
                    "{}: rows of cell \"{}\" depend on each other ({how}), so it would mix requests; export it so that each row is \
                     computed on its own",
                    path.display(),
                    block.name
                ));
            }
        }
    }
    Ok(reason)
}

/// Loads the file of a cell as a model that runs once.
fn load_cell(
    target: &LoadTarget,
    plan: &LoadPlan,
    block: &BlockSource,
    path: &Path,
) -> Result<Arc<dyn LoadedModel>, String> {
    let cell = BlockSource { path: Some(path.to_owned()), ..BlockSource::new(&block.name) };
    let declared = OnnxFile::read(path).and_then(|file| Declared::of(&file)).map_err(|error| error.to_string())?;
    let ranges = block.ranges(&declared.inputs, &plan.source.ranges);
    let (isolation, gpu) = (plan.source.isolation.clone(), plan.source.gpu);
    let source =
        ModelSource { isolation, gpu, ranges, ..ModelSource::new(&block.name, vec![cell], plan.source.max_batch) };
    target.engine.load(&source).map_err(|error| error.to_string())
}
