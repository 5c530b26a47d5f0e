//! Output of the cuts, as tables and as JSON.

use super::Checked;
use ripieno_onnx::{CutPrice, RecurrentCells, SlicedBlock};
use ripieno_report::{Table, number};
use ripieno_repository::slicing::{BlockTimes, Sliced};
use serde_json::{Value, json};
use std::fmt::Write;

/// Number of kinds of operators that are listed; the others are counted together.
const OPERATORS: usize = 4;

/// Returns a table of the blocks; below, the cost of each cut, the cost of the chain against the
/// whole, and warnings.
pub(super) fn table(sliced: &Sliced<'_>, times: &BlockTimes, checked: &Checked) -> String {
    let time = if times.not_measured.is_none() { "ms (b=8)" } else { "ms (b=8, est.)" };
    let mut table = Table::new(["block", "operators", "carries", "KB a row", "weights MB", time]);
    for (block, &cost) in sliced.slices.blocks.iter().zip(&times.millis) {
        table.row([
            block.name.clone(),
            operators(block),
            carried(block),
            number(block.carried_bytes as f64 / 1e3),
            number(block.weight_bytes as f64 / 1e6),
            number(cost),
        ]);
    }
    let mut text = table.to_string();
    if !sliced.prices.is_empty() {
        let _ = write!(text, "\n\n{}", prices(sliced, checked));
    }
    let comparisons = &checked.chains;
    if !comparisons.is_empty() {
        let kind = if comparisons.iter().all(|line| line.processor) { "CPU ms" } else { "ms" };
        let [whole, blocks] = ["whole", "blocks"].map(|side| format!("{side} {kind}"));
        let mut table = Table::new(["rows", "largest difference", &whole, &blocks, "blocks / whole"]);
        for line in comparisons {
            let difference = format!("{:.1e}", line.difference);
            let [whole, blocks, ratio] = [line.whole_ms, line.blocks_ms, line.ratio].map(number);
            table.row([line.rows.to_string(), difference, whole, blocks, ratio]);
        }
        let _ = write!(text, "\n\n{table}");
    }
    for warning in &sliced.warnings {
        let _ = write!(text, "\nwarning: {warning}");
    }
    text
}

/// Returns the cost of each cut: by its bytes and operators, and measured, if it was.
fn prices(sliced: &Sliced<'_>, checked: &Checked) -> Table {
    let measured = !checked.cuts.is_empty();
    let headings = ["cut behind", "KB a row", "KB turned", "operators apart"];
    let mut table = Table::new(headings.into_iter().chain(measured.then_some("price (b=8)")));
    for (at, (block, price)) in sliced.slices.blocks.iter().zip(&sliced.prices).enumerate() {
        let [carried, turned] = [price.carried_bytes, price.turned_bytes].map(|bytes| number(bytes as f64 / 1e3));
        let line = [block.name.clone(), carried, turned, apart(price)];
        let found = checked.cuts.get(at).map(|cut| format!("{:+.1} %", (cut.ratio - 1.0) * 100.0));
        table.row(line.into_iter().chain(found));
    }
    table
}

fn apart(price: &CutPrice) -> String {
    let all = price.unfused.iter().map(|(name, &count)| counted(name, count)).collect::<Vec<_>>().join(", ");
    if all.is_empty() { "-".to_owned() } else { all }
}

fn counted(name: &str, count: usize) -> String {
    if count == 1 { name.to_owned() } else { format!("{count} {name}") }
}

fn operators(block: &SlicedBlock) -> String {
    let shown = block.operators.iter().take(OPERATORS).map(|(name, count)| counted(name, *count));
    let rest: usize = block.operators.iter().skip(OPERATORS).map(|(_, count)| count).sum();
    let rest = (rest > 0).then(|| format!("{rest} more"));
    shown.chain(rest).collect::<Vec<_>>().join(", ")
}

fn carried(block: &SlicedBlock) -> String {
    let one = |spec: &ripieno_model::TensorSpec| {
        let sizes = spec.shape.iter().skip(1).map(|&size| if size < 0 { "?".to_owned() } else { size.to_string() });
        format!("{} [{}]", spec.name, sizes.collect::<Vec<_>>().join("x"))
    };
    match block.carried.len() {
        0 => "-".to_owned(),
        1 | 2 => block.carried.iter().map(one).collect::<Vec<_>>().join(", "),
        many => format!("{}, {} more", one(&block.carried[0]), many - 1),
    }
}

pub(super) fn json(sliced: &Sliced<'_>, times: &BlockTimes, checked: &Checked) -> Value {
    let blocks = sliced.slices.blocks.iter().zip(&times.millis).map(|(block, cost_ms)| {
        let operators: Vec<Value> =
            block.operators.iter().map(|(name, count)| json!({ "operator": name, "count": count })).collect();
        let names =
            |specs: &[ripieno_model::TensorSpec]| specs.iter().map(|spec| spec.name.clone()).collect::<Vec<_>>();
        json!({
            "name": block.name,
            "operators": operators,
            "inputs": names(&block.inputs),
            "outputs": names(&block.outputs),
            "carried": names(&block.carried),
            "carried_bytes_per_row": block.carried_bytes,
            "weight_bytes": block.weight_bytes,
            "cost_ms": cost_ms,
        })
    });
    let cuts = sliced.slices.blocks.iter().zip(&sliced.prices).enumerate().map(|(at, (block, price))| {
        json!({
            "behind": block.name,
            "carried_bytes_per_row": price.carried_bytes,
            "turned_bytes_per_row": price.turned_bytes,
            "operators_apart": price.unfused,
            "measured": checked.cuts.get(at),
        })
    });
    json!({
        "blocks": blocks.collect::<Vec<_>>(),
        "cuts": cuts.collect::<Vec<_>>(),
        "measured": times.not_measured.is_none(),
        "shared_weight_bytes": sliced.slices.shared(),
        "comparisons": checked.chains,
        "warnings": sliced.warnings,
    })
}

/// Returns the cells and the sources of their inputs.
pub(super) fn cells(cells: &RecurrentCells) -> String {
    let mut table = Table::new(["cell", "runs", "inputs", "file MB"]);
    for cell in &cells.blocks {
        let inputs = cell.inputs.iter().map(|(input, from)| format!("{input} = {from}"));
        table.row([
            cell.name.clone(),
            if cell.once { "once, at the end" } else { "at every element" }.to_owned(),
            inputs.collect::<Vec<_>>().join(", "),
            number(cell.file.len() as f64 / 1e6),
        ]);
    }
    format!("walk: {}\n{table}", cells.walk)
}

pub(super) fn cells_json(cells: &RecurrentCells) -> Value {
    let blocks = cells.blocks.iter().map(
        |cell| json!({ "name": cell.name, "once": cell.once, "inputs": cell.inputs, "file_bytes": cell.file.len() }),
    );
    let outputs =
        cells.outputs.iter().map(|answer| json!({ "name": answer.name, "from": answer.from, "every": answer.every }));
    json!({ "walk": cells.walk, "blocks": blocks.collect::<Vec<_>>(), "outputs": outputs.collect::<Vec<_>>() })
}
