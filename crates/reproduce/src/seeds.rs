//! An item with one seed a point, run again with further seeds.
//!
//! Items that average over seeds choose their spread themselves. Every other item is run once a
//! seed, and each of its rows gets the mean, the lowest and the highest value. So nothing that an
//! item computes from its points, such as a ratio or the best of several, has to know of seeds. The
//! first seed gives the plot and the notes.

use super::context::{ReproduceContext, Spread};
use super::item::{ExperimentItem, FinishedItem, ItemReport, ResultRow};
use std::path::Path;

impl ExperimentItem {
    /// Runs the item and writes its plot into the folder `out`.
    pub fn reproduce(&'static self, context: &ReproduceContext, out: &Path) -> anyhow::Result<FinishedItem> {
        if averages(self.id) {
            return self.finish(self.run, false, context, out);
        }
        self.finish(|context| self.with_seeds(context), false, context, out)
    }

    /// Runs the item with as many seeds as the user sets.
    fn with_seeds(&self, context: &ReproduceContext) -> anyhow::Result<ItemReport> {
        let mut reports = context.of_seeds().map(|context| (self.run)(&context)).collect::<anyhow::Result<Vec<_>>>()?;
        let further = reports.split_off(1);
        let mut first = reports.remove(0);
        first.rows = first.rows.into_iter().map(|row| over_seeds(row, &further)).collect();
        Ok(first)
    }
}

/// Returns true if an item averages over seeds by itself.
fn averages(id: &str) -> bool {
    id == "symphony/table2" || ["lazybatching/", "dvabatch/"].iter().any(|paper| id.starts_with(paper))
}

/// Adds the values of further seeds to a row of the first one. A value that is unknown with some of
/// them is left out, which the note says.
fn over_seeds(row: ResultRow, further: &[ItemReport]) -> ResultRow {
    let same = further.iter().filter_map(|report| report.rows.iter().find(|other| other.name == row.name));
    let all: Vec<f64> = std::iter::once(row.ours).chain(same.map(|other| other.ours)).collect();
    let known: Vec<f64> = all.iter().copied().filter(|value| value.is_finite()).collect();
    let missing = further.len() + 1 - known.len();
    let Spread { mean, low, high } = Spread::of(known.iter().copied());
    if known.is_empty() || (low == high && missing == 0) {
        return row;
    }
    let note =
        if missing > 0 { format!("Unknown with {missing} of {} seeds.", further.len() + 1) } else { String::new() };
    ResultRow { ours: mean, ..row }.seeds(low, high, known.len() as u64).note(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_report::plot::Figure;

    fn report(values: &[(&str, f64)]) -> ItemReport {
        let row = |&(name, value): &(&str, f64)| ResultRow::new(name, "ms", value);
        ItemReport { rows: values.iter().map(row).collect(), figure: Figure::default() }
    }

    #[test]
    fn a_row_has_the_mean_and_the_range_of_its_seeds() {
        let further = [report(&[("a", 2.0), ("b", 7.0), ("c", f64::NAN)]), report(&[("a", 6.0), ("b", 7.0)])];
        let of = |name: &str, value| over_seeds(ResultRow::new(name, "ms", value), &further);
        assert_eq!((of("a", 1.0).ours, of("a", 1.0).seeds), (3.0, Some((1.0, 6.0, 3))));
        assert_eq!((of("b", 7.0).ours, of("b", 7.0).seeds, of("b", 7.0).note.as_str()), (7.0, None, ""));
        let unknown = of("c", 4.0);
        assert_eq!((unknown.ours, unknown.seeds, unknown.note.as_str()), (4.0, None, "Unknown with 2 of 3 seeds."));
        assert!(over_seeds(ResultRow::new("d", "ms", f64::NAN), &[]).ours.is_nan());
    }

    #[test]
    fn items_that_average_are_not_run_again() {
        let again: Vec<_> = crate::items().map(|item| item.id).filter(|id| !averages(id)).collect();
        assert!(again.contains(&"symphony/figure7") && again.len() > 20);
        assert!(averages("symphony/table2") && averages("dvabatch/figure14"));
    }
}
