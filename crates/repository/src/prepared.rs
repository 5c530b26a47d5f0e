//! A loaded model with its cost: what the scheduler, the server and its reports know of it.

use super::config::Batching;
use super::labels::Labels;
use super::plan::LoadPlan;
use super::report::{ModelReport, ProfileReport, describe};
use super::sample::{sample, text_sample};
use super::slo::{Slo, SloOrigin, best_batch, queued_work_bound};
use ripieno_base::Nanos;
use ripieno_executor::{BlockProfile, BlockSource, LoadedModel};
use ripieno_model::bounds::best_goodput;
use ripieno_model::{Block, DropRule, LengthProfiles, Model, Profile, TensorSpec, Walk};
use ripieno_runtime::ServedModel;
use ripieno_text::TextModel;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A loaded model with its cost.
pub struct PreparedModel {
    /// Plan by which it was loaded.
    pub plan: LoadPlan,
    /// Name of the engine that loaded it.
    pub engine: &'static str,
    /// The model in memory.
    pub loaded: Arc<dyn LoadedModel>,
    /// Cost of each block; `None` if unknown and not measured.
    pub profiles: Option<Vec<BlockProfile>>,
    /// Shapes of the request that was measured, if the file leaves some open; and whether they are
    /// guessed.
    pub measured_at: Option<(String, bool)>,
    /// The inputs of that request.
    pub(super) example_shapes: Vec<TensorSpec>,
    /// Source of the profiles: "given", "cached", "measured", or "assumed" where no request could
    /// be made up.
    pub origin: &'static str,
    /// Reason for which requests do not share batches.
    pub unbatched: Option<String>,
    /// Class labels by output.
    pub labels: BTreeMap<String, Labels>,
    /// Text support, if the model accepts text.
    pub text: Option<Arc<TextModel>>,
    /// Reason for which a tokenizer beside the model is not used, if there is one.
    pub no_text: Option<String>,
    /// Warnings about the model.
    pub warnings: Vec<String>,
}

impl PreparedModel {
    /// Returns the SLO; `None` if it depends on an unknown profile.
    pub fn slo(&self) -> Option<Slo> {
        let LoadPlan { slo, config, source, .. } = &self.plan;
        slo.resolve(config, source.max_batch, self.profiles.as_deref())
    }

    /// Returns the scheduler's view of the model; `None` without a profile.
    pub fn model(&self) -> Option<Model> {
        let (config, source, slo) = (&self.plan.config, &self.plan.source, self.slo()?);
        let block = |(at, (source, cost)): (usize, (&BlockSource, &BlockProfile))| Block {
            lengths: cost.lengths.clone(),
            steps: source.steps,
            beside: source.beside,
            priority: source.priority,
            sizes: source.sizes.clone(),
            skips: source.skip.is_some(),
            ..Block::new(&source.name, cost.profile.truncated(self.largest_batch(at, &cost.profile)))
        };
        Some(Model {
            name: self.plan.name.clone(),
            blocks: source.blocks.iter().zip(self.profiles.as_ref()?).enumerate().map(block).collect(),
            walk: if source.walk == Walk::Whole && source.blocks.len() > 1 { Walk::Chain } else { source.walk },
            slo: slo.span,
            max_batch: source.max_batch,
            instances: config.instances,
            // A request that is to be answered late must not be dropped for being late.
            drop: config.drop.or(slo.answer_late.then_some(DropRule::Never)),
            weight: self.plan.config.weight,
            dec_timesteps: self.plan.dec_timesteps,
            pinned: false,
            in_arrival_order: slo.origin == SloOrigin::Profile && slo.answer_late && config.drop.is_none(),
        })
    }

    /// Returns the maximum rows in a batch of a block; for a cell, the configured or best measured
    /// size.
    fn largest_batch(&self, block: usize, profile: &Profile) -> usize {
        let cells = self.plan.config.cells.as_ref().and_then(|cells| cells.cells.get(block));
        let Some(cell) = cells else { return profile.max_batch() };
        let given = cell.max_batch.or(cell.sizes.last().copied());
        given.unwrap_or_else(|| if self.origin == "given" { profile.max_batch() } else { best_batch(profile) })
    }

    /// Returns the runtime's view of the model; `None` without a profile.
    pub fn served(&self) -> Option<ServedModel> {
        let (model, slo, config) = (self.model()?, self.slo()?, &self.plan.config);
        let max_queued_work = queued_work_bound(config, slo, &model.profile());
        let (max_queue, answer_late) = (config.max_queue, slo.answer_late);
        Some(ServedModel { model, loaded: self.loaded.clone(), max_queue, max_queued_work, answer_late })
    }

    fn described_inputs(&self) -> Vec<String> {
        let own = self.loaded.inputs().iter().map(|spec| describe(spec, self.loaded.batched()));
        let optional = self.loaded.optional_inputs().iter().map(|spec| describe(spec, false) + " (optional)");
        own.chain(optional).collect()
    }

    /// Returns the report for the command line.
    pub fn report(&self, devices: usize) -> ModelReport {
        let plan = &self.plan;
        // In cells the cost depends on the request's length, so there is no total profile.
        let total = self.model().filter(|model| !model.walk.is_unfolded()).map(|model| model.profile());
        let slo = self.slo();
        let within = |profile: &Profile| Some(best_goodput(profile, slo?.span, devices.min(plan.config.instances)));
        let goodput = total.as_ref().and_then(within);
        let blocks = plan.source.blocks.iter().zip(self.profiles.iter().flatten());
        let blocks = blocks.enumerate().map(|(at, (source, cost))| {
            let largest = plan.config.cells.is_some().then(|| self.largest_batch(at, &cost.profile));
            let lengths = cost.lengths.as_ref().map_or(&[][..], LengthProfiles::table);
            let report = ProfileReport::new(&source.name, self.origin, &cost.profile).with_lengths(lengths);
            ProfileReport { batch: largest, ..report }
        });
        ModelReport {
            name: plan.name.clone(),
            version: plan.version.clone(),
            state: "READY".to_owned(),
            engine: Some(self.engine),
            measured_at: self.measured_at.clone().map(|(shapes, _)| shapes),
            inputs: self.described_inputs(),
            outputs: self.loaded.outputs().iter().map(|spec| describe(spec, self.loaded.batched())).collect(),
            slo_ms: slo.map(|slo| slo.span.as_millis_f64()),
            slo_is_derived: slo.map(|slo| slo.origin == SloOrigin::Profile),
            late: slo.map(|slo| if slo.answer_late { "answer" } else { "refuse" }),
            max_batch: Some(plan.source.max_batch),
            batch_sizes: self.loaded.batch_sizes().to_vec(),
            unbatched: self.unbatched.clone(),
            profile: total.as_ref().map(|profile| {
                ProfileReport::new(&plan.name, self.origin, profile).with_lengths(&self.total_by_length())
            }),
            blocks: if plan.source.blocks.len() > 1 || plan.config.cells.is_some() {
                blocks.collect()
            } else {
                Vec::new()
            },
            best_goodput_rps: goodput,
            sample: match &self.text {
                Some(text) => Some(text_sample(&plan.name, text)),
                None => sample(&*self.loaded, &self.example_shapes),
            },
            warnings: self.warnings.clone(),
            error: None,
        }
    }

    /// Returns the total profile of all blocks by length; empty if requests do not vary in length.
    fn total_by_length(&self) -> Vec<(u32, Profile)> {
        let blocks = self.profiles.iter().flatten().map(|cost| cost.lengths.as_ref().map(LengthProfiles::table));
        let Some(blocks) = blocks.collect::<Option<Vec<_>>>() else { return Vec::new() };
        let Some(first) = blocks.first() else { return Vec::new() };
        let lengths = first.iter().enumerate();
        // All blocks are measured at the same lengths.
        let total = |(at, (length, _)): (usize, &(u32, Profile))| {
            let of_length = blocks.iter().filter_map(|table| table.get(at).map(|(_, profile)| profile));
            (*length, Profile::sum(of_length))
        };
        lengths.map(total).collect()
    }

    pub(super) fn batching_warning(&self) -> Option<String> {
        let why = self.unbatched.as_ref().filter(|_| self.plan.config.batching != Batching::Off)?;
        Some(format!("{}: one request at a time, without batches: {why}", self.plan.shown_file()))
    }

    /// Returns a log note on the shapes that were measured, if the file leaves some open.
    pub(super) fn shape_note(&self) -> Option<String> {
        let (shapes, guessed) = self.measured_at.as_ref()?;
        let advice = format!(
            ", a guess: where clients send others, write their shape as [[input]] into {}",
            self.plan.settings.display()
        );
        Some(format!("measured at {shapes}{}", if *guessed { advice } else { String::new() }))
    }

    /// Returns a log note for a model without a configured latency target.
    pub(super) fn slo_note(&self) -> Option<String> {
        let slo = self.slo().filter(|slo| slo.origin == SloOrigin::Profile)?;
        let becomes =
            if slo.answer_late { "late requests are answered, and counted" } else { "late requests are refused" };
        Some(format!(
            "it names no slo_ms: {} ms is derived from its profile; {becomes}; write slo_ms in {} to have a target kept",
            millis(slo.span),
            self.plan.settings.display()
        ))
    }

    pub(super) fn slo_warning(&self) -> Option<String> {
        let (slo, one_row) = (self.slo()?, self.model()?.profile().latency(1));
        (slo.span < one_row).then(|| {
            format!(
                "{}: slo_ms = {} is below the latency of one row, {} ms: every request would miss it; raise slo_ms",
                self.plan.config.file,
                millis(slo.span),
                millis(one_row)
            )
        })
    }
}

/// Formats milliseconds without trailing zeros.
fn millis(span: Nanos) -> String {
    let text = format!("{:.3}", span.as_millis_f64());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
