//! Tables of models, for `serve`, `models` and `profile`.

use ripieno_report::{Table, number};
use ripieno_repository::{ModelReport, NOT_TRIED, ProfileReport};
use std::fmt::Write;

/// Returns a table with state, cost and benefit of each model, and the errors below it.
pub(crate) fn models(models: &[ModelReport]) -> String {
    let headers = [
        "model",
        "version",
        "state",
        "SLO ms",
        "max batch",
        "l(1) ms",
        "l(max) ms",
        "alpha ms",
        "beta ms",
        "R2",
        "best/s",
    ];
    let mut table = Table::new(headers);
    for model in models {
        let optional = |value: Option<f64>| value.map_or("-".to_owned(), number);
        let profile = model.profile.as_ref();
        table.row([
            model.name.clone(),
            model.version.clone(),
            model.state.clone(),
            match (model.slo_ms, model.slo_is_derived) {
                (Some(slo), Some(true)) => format!("~{}", number(slo)),
                (slo, _) => optional(slo),
            },
            match &model.unbatched {
                Some(_) => "none".to_owned(),
                None => model.max_batch.map_or("-".to_owned(), |batch| batch.to_string()),
            },
            optional(profile.and_then(|profile| profile.latency_ms.first().copied())),
            optional(profile.and_then(|profile| profile.latency_ms.last().copied())),
            optional(profile.map(|profile| profile.alpha_ms)),
            // A line through uneven measurements may begin below 0, which no batch does.
            optional(profile.map(|profile| profile.beta_ms.max(0.0))),
            optional(profile.map(|profile| profile.r_squared)),
            optional(model.best_goodput_rps),
        ]);
    }
    let mut text = table.to_string();
    if models.iter().any(|model| model.slo_is_derived == Some(true)) {
        text += "\n~ no slo_ms is named: derived from the profile; late requests are counted, and answered if late says nothing else";
    }
    if models.iter().any(|model| model.state == NOT_TRIED) {
        text +=
            "\nnot tried: its files were read, no engine has loaded it; without --no-load it is loaded as serve does";
    }
    for model in models {
        if let Some(cells) = cells(model) {
            let _ = write!(text, "\n{}: cells {cells}", model.name);
        }
        if let Some(shapes) = &model.measured_at {
            let _ = write!(text, "\n{}: measured at {shapes}", model.name);
        }
        for warning in &model.warnings {
            let _ = write!(text, "\nwarning: {}: {warning}", model.name);
        }
        if let Some(error) = &model.error {
            let _ = write!(text, "\nerror: {}: {error}", model.name);
        }
    }
    text
}

/// Returns the cells of a model, each with its largest batch and the cost of one row and of that
/// batch; `None` if it has no cells.
fn cells(model: &ModelReport) -> Option<String> {
    let cell = |profile: &ProfileReport| {
        let batch = profile.batch?;
        let latency = |size: usize| profile.latency_ms.get(size - 1).copied().map_or("-".to_owned(), number);
        Some(format!(
            "{} (batches of up to {batch}; l(1) {} ms, l({batch}) {} ms)",
            profile.name,
            latency(1),
            latency(batch)
        ))
    };
    let cells: Vec<String> = model.blocks.iter().filter_map(cell).collect();
    (!cells.is_empty()).then(|| cells.join(", "))
}

/// Returns a table of the inputs and outputs of each model.
pub(crate) fn tensors(models: &[ModelReport]) -> String {
    let mut table = Table::new(["model", "inputs", "outputs"]);
    for model in models.iter().filter(|model| model.error.is_none()) {
        table.row([model.name.clone(), model.inputs.join("; "), model.outputs.join("; ")]);
    }
    table.to_string()
}

/// Returns a table of ℓ(b) of each model at powers of two, and of each block; by length if requests
/// differ in length.
pub(crate) fn profiles(models: &[ModelReport]) -> String {
    let mut table = Table::new(["model", "length", "batch", "l(b) ms", "ms per row", "rows/s"]);
    let named = |model: &ModelReport, profile: &ProfileReport| match profile.batch {
        Some(_) => format!("{}/{}", model.name, profile.name),
        None => profile.name.clone(),
    };
    let all = models.iter().flat_map(|model| {
        model.profile.iter().chain(&model.blocks).map(move |profile| (named(model, profile), profile))
    });
    for (name, profile) in all {
        let lengths = profile.lengths.iter().map(|of| (of.length.to_string(), &of.latency_ms));
        let whole = profile.lengths.is_empty().then(|| ("-".to_owned(), &profile.latency_ms));
        for (length, latency_ms) in whole.into_iter().chain(lengths) {
            let last = latency_ms.len();
            let doubled = std::iter::successors(Some(1), |size| Some(size * 2));
            for size in doubled.take_while(|&size| size < last).chain([last]) {
                let latency = latency_ms[size - 1];
                let per_row = latency / size as f64;
                let numbers = [number(latency), number(per_row), number(1e3 / per_row)];
                table.row([name.clone(), length.clone(), size.to_string()].into_iter().chain(numbers));
            }
        }
    }
    table.to_string()
}
