//! Histograms and summaries of models.

use super::{MetricsText, ModelRow};
use ripieno_runtime::{HistogramSnapshot, ModelSnapshot, TallySnapshot};

/// A histogram's name and help, its source, and the bounds that are shown as shares of the SLO.
pub(super) type HistogramFamily =
    (&'static str, &'static str, fn(&ModelSnapshot) -> &HistogramSnapshot, &'static [f64]);

/// Bounds of latencies: close around the SLO, so that a 99th percentile near it is no guess.
const AROUND: [f64; 11] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0];

pub(super) const HISTOGRAMS: [HistogramFamily; 2] = [
    ("ripieno_response_seconds", "From arrival to answer.", |model| &model.response, &AROUND),
    ("ripieno_slack_seconds", "Deadline minus the start of the first batch.", |model| &model.slack, &[0.0, 0.25, 0.5]),
];

pub(super) const FRONTEND_RESPONSE: HistogramFamily =
    ("ripieno_frontend_response_seconds", "From arrival to answer.", |model| &model.response, &AROUND);

/// Writes histograms with the buckets around each model's SLO.
pub(super) fn histograms(text: &mut MetricsText, rows: &[ModelRow], families: &[HistogramFamily]) {
    for &(name, help, of, shares) in families {
        text.family(name, "histogram", help);
        for ModelRow { labels, model, entry, .. } in rows {
            let histogram = of(model);
            for at in shown(histogram.bounds, entry.slo.span.0, shares) {
                let labels = format!("{labels},le=\"{}\"", histogram.bounds[at] as f64 / 1e9);
                text.sample(&format!("{name}_bucket"), &labels, histogram.cumulative[at]);
            }
            text.sample(&format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), histogram.count);
            text.sample(&format!("{name}_sum"), labels, histogram.sum as f64 / 1e9);
            text.sample(&format!("{name}_count"), labels, histogram.count);
        }
    }
}

/// Returns the indices of the bounds that are nearest to these shares of the SLO, ascending.
fn shown(bounds: &[i64], slo_ns: i64, shares: &[f64]) -> Vec<usize> {
    let nearest = |share: &f64| {
        let wanted = (slo_ns as f64 * share) as i64;
        let above = bounds.partition_point(|&bound| bound < wanted).min(bounds.len() - 1);
        let below = above.saturating_sub(1);
        if wanted - bounds[below] < bounds[above] - wanted { below } else { above }
    };
    let mut indices: Vec<usize> = shares.iter().map(nearest).collect();
    indices.dedup();
    indices
}

/// Returns the total duration in seconds, and the number.
fn seconds(tally: TallySnapshot) -> (f64, u64) {
    (tally.ns as f64 / 1e9, tally.count)
}

/// Writes sums and counts whose means matter, and not their distributions.
pub(super) fn summaries(text: &mut MetricsText, rows: &[ModelRow]) {
    let mut one = |name: &str, help: &str, of: fn(&ModelSnapshot) -> (f64, u64)| {
        let seen: Vec<_> = rows.iter().map(|row| (row, of(&row.model))).collect();
        if name == "ripieno_prediction_error_ratio" && seen.iter().all(|(_, (_, count))| *count == 0) {
            return;
        }
        text.family(name, "summary", help);
        for (row, (sum, count)) in seen {
            text.sample(&format!("{name}_sum"), &row.labels, sum);
            text.sample(&format!("{name}_count"), &row.labels, count);
        }
    };
    let help = "From arrival to the start of the first batch.";
    one("ripieno_queue_delay_seconds", help, |model| seconds(model.queue_delay));
    one("ripieno_batch_rows", "Rows in a batch.", |model| (model.batch_rows.sum as f64, model.batch_rows.count));
    one("ripieno_execution_seconds", "Duration of a batch.", |model| seconds(model.execution));
    let help = "Of policies that predict: error over the actual time from first start to end.";
    one("ripieno_prediction_error_ratio", help, |model| {
        (model.prediction_error.sum as f64 / 1e3, model.prediction_error.count)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_lie_close_around_the_slo() {
        let bounds = [0, 10, 20, 30, 45, 50, 55, 60, 75, 100];
        assert_eq!(shown(&bounds, 50, &[0.0, 0.5, 0.9, 1.0, 1.1, 9.0]), [0, 3, 4, 5, 6, 9]);
        assert_eq!(shown(&bounds, 1, &AROUND), [0, 1], "bounds that fall together are shown once");
    }
}
