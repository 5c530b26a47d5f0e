//! Figures 4, 6, 8 and 10: worked examples, instant by instant.
//!
//! The text states some instants; arrivals and lengths that only the figures show are chosen so
//! that all of them hold. A unit of the paper's time is a millisecond.

use super::SOURCE;
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::played::{PlayedRun, instant, play, play_changed};
use ripieno_model::{Block, Model, Steps};
use ripieno_report::plot::Figure;

pub(super) const FIGURE_4: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure4",
    title: "Figure 4: graph batching with three windows",
    says: "Req2 and Req3 arrive at 4 and 12. A window of 4 instead of 2 forms no larger batches and only delays; a longer one does.",
    run: figure_4,
};

pub(super) const FIGURE_6: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure6",
    title: "Figure 6: graph batching and cellular batching",
    says: "Cellular batching takes Req3 at 1 and, for the limit of 3, Req4 at 4; at 5 Req3, Req4 and Req5 run together. Graph \
           batching starts them at 5.",
    run: figure_6,
};

pub(super) const FIGURE_7: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure7",
    title: "Figure 7: cells behind convolutions",
    says: "With two convolutions before the recurrent layer and two fully connected layers behind it, cellular batching cannot take \
           Req3-5 into the batch of Req1-2: both run one after the other, as with graph batching.",
    run: figure_7,
};

pub(super) const FIGURE_8: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure8",
    title: "Figure 8: graph batching and LazyBatching",
    says: "Req1-2 are preempted at 6, Req3-5 run node A and B until 8, and all five go on from node C.",
    run: figure_8,
};

pub(super) const FIGURE_10: ExperimentItem = ExperimentItem {
    id: "lazybatching/figure10",
    title: "Figure 10: the stack of LazyBatching",
    says: "Req1 runs A and B from 2 on, Req2 preempts it at 4, Req3 that at 5; Req2-3 merge at 6 for B, all at 7 for C.",
    run: figure_10,
};

const CHAIN: &str = "walk = \"chain\"\n";

/// Returns a chain of nodes A, B, … of one unit each.
fn chain(nodes: u8) -> String {
    let node = |at: u8| {
        format!("[[model.block]]\nname = \"{}\"\nlatency_ms = [1, 1, 1, 1, 1, 1, 1, 1]\n", char::from(b'A' + at))
    };
    (0..nodes).map(node).fold(CHAIN.to_owned(), |text, node| text + &node)
}

fn report(title: &str, played: &[PlayedRun], mut rows: Vec<ResultRow>) -> ItemReport {
    for one in played {
        rows.push(ResultRow::new(format!("{}: mean latency", one.title), "time", one.mean_latency()));
    }
    let figure = Figure {
        title: title.to_owned(),
        subtitle: "Colours: how many requests run together; above the lanes: arrivals".to_owned(),
        panels: played.iter().map(PlayedRun::panel).collect(),
        columns: 1,
        note: SOURCE.to_owned(),
    };
    ItemReport { rows, figure }
}

fn figure_4(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let windows = [(2, "window 2", Some(1.0)), (4, "window 4", Some(1.0)), (13, "window 13", None)];
    let requests = [(0.0, 1), (4.01, 1), (12.0, 1)];
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for (window, title, paper) in windows {
        let policy = format!(
            "policy = \"timeout\"\n[policy_options]\ngather = \"fifo\"\ndrop = \"never\"\ntimeout_ms = {window}\n"
        );
        let played = play(title, &policy, "latency_ms = [4, 4, 4]\n", &requests)?;
        let largest = played.tasks.iter().map(|task| task.3.len()).max().unwrap_or(0);
        let note = "Chosen: a batch takes 4; Req2 arrives just after 4, since the paper does not batch it with Req1; window 13.";
        rows.push(
            ResultRow::new(format!("{title}: largest batch"), "requests", largest as f64).paper(paper).note(note),
        );
        rows.push(ResultRow::new(format!("{title}: Req1 starts at"), "time", played.first(1)));
        rows.push(ResultRow::new(format!("{title}: Req2 starts at"), "time", played.first(2)));
        all.push(played);
    }
    Ok(report("Graph batching with three windows", &all, rows))
}

fn figure_6(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let requests = [(0.0, 5), (0.0, 4), (0.5, 6), (1.5, 4), (2.5, 10)];
    let cell = "walk = \"repeat\"\nlengths = { kind = \"fixed\", value = 1 }\n[[model.block]]\nname = \"A\"\nlatency_ms = [1, 1, 1]\n";
    let graph = "policy = \"bucketed\"\n[policy_options]\nwidth = 1000\npad = \"longest\"\n";
    let graph = play("graph batching", graph, cell, &requests)?;
    let cellular = "policy = \"cellular\"\n[policy_options]\nmax_tasks = 1\n";
    let cellular = play("cellular batching", cellular, cell, &requests)?;
    let rows = vec![
        instant("graph batching: Req1-2 end at", 5.0, graph.finished[0]),
        instant("graph batching: Req3-5 start at", 5.0, graph.start(None, &[3, 4, 5])),
        instant("cellular: Req3 joins at", 1.0, cellular.first(3)),
        instant("cellular: Req4 joins at", 4.0, cellular.first(4)),
        instant("cellular: Req3, Req4 and Req5 run together at", 5.0, cellular.start(None, &[3, 4, 5])),
    ];
    Ok(report("Graph batching and cellular batching", &[graph, cellular], rows))
}

const CELLS: &str = "The claim does not hold of a scheduler for which each layer is a cell of its own type, as here: Req3-5 run their \
                     convolutions between two steps of the others and join at the next.";

/// Puts a recurrent layer between layers that run once, which a scenario file cannot express.
fn recurrent_amid_layers(model: &mut Model) {
    let cell = model.blocks[0].clone();
    let layer = |name: &str| Block { name: name.to_owned(), steps: Steps::Once, ..cell.clone() };
    model.blocks = vec![layer("CONV1"), layer("CONV2"), cell.clone(), layer("FC1"), layer("FC2")];
}

fn figure_7(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let requests = [(0.0, 4), (0.0, 4), (2.5, 4), (2.5, 4), (2.5, 4)];
    let cell = "walk = \"repeat\"\nlengths = { kind = \"fixed\", value = 4 }\n[[model.block]]\nname = \"RNN\"\n\
                latency_ms = [1, 1, 1, 1, 1]\n";
    let contenders = [
        ("graph batching", "policy = \"bucketed\"\n[policy_options]\nwidth = 1000\npad = \"longest\"\n"),
        ("cellular batching", "policy = \"cellular\"\n[policy_options]\nmax_tasks = 1\n"),
        ("LazyBatching", "policy = \"lazy\"\n"),
    ];
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for (title, policy) in contenders {
        let played = play_changed(title, policy, cell, &requests, recurrent_amid_layers)?;
        let joint = played.start(Some("RNN"), &[1, 2, 3, 4, 5]);
        rows.push(ResultRow::new(format!("{title}: Req3-5 start at"), "time", played.first(3)));
        rows.push(ResultRow::new(format!("{title}: Req1-2 end at"), "time", played.finished[0]));
        rows.push(ResultRow::new(format!("{title}: Req3-5 end at"), "time", played.finished[4]));
        let note = if title == "cellular batching" { CELLS } else { "" };
        rows.push(ResultRow::new(format!("{title}: all five run a cell together at"), "time", joint).note(note));
        all.push(played);
    }
    Ok(report("Cells behind convolutions", &all, rows))
}

fn figure_8(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let requests = [(4.0, 1), (4.0, 1), (5.5, 1), (5.5, 1), (5.5, 1)];
    let graph = "policy = \"timeout\"\n[policy_options]\ngather = \"fifo\"\ndrop = \"never\"\ntimeout_ms = 0\n";
    let graph = play("graph batching", graph, &chain(5), &requests)?;
    let lazy = play("LazyBatching", "policy = \"lazy\"\n", &chain(5), &requests)?;
    let rows = vec![
        instant("LazyB: Req3-5 preempt at", 6.0, lazy.start(Some("A"), &[3, 4, 5])),
        instant("LazyB: all five start C at", 8.0, lazy.start(Some("C"), &[1, 2, 3, 4, 5])),
        ResultRow::new("LazyB: all five end at", "time", lazy.finished[4]).note("Follows from nodes of one unit: 11."),
        ResultRow::new("graph batching: Req3-5 end at", "time", graph.finished[4]),
    ];
    Ok(report("Graph batching and LazyBatching", &[graph, lazy], rows))
}

fn figure_10(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let lazy = play("LazyBatching", "policy = \"lazy\"\n", &chain(8), &[(2.0, 1), (3.5, 1), (4.5, 1)])?;
    let rows = vec![
        instant("Req1 starts A at", 2.0, lazy.start(Some("A"), &[1])),
        instant("Req2 preempts at", 4.0, lazy.start(Some("A"), &[2])),
        instant("Req3 preempts at", 5.0, lazy.start(Some("A"), &[3])),
        instant("Req2-3 start B together at", 6.0, lazy.start(Some("B"), &[2, 3])),
        instant("Req1-3 start C together at", 7.0, lazy.start(Some("C"), &[1, 2, 3])),
        ResultRow::new("Req1-3 end at", "time", lazy.finished[0]).note("Follows from eight nodes of one unit: 13."),
    ];
    Ok(report("The stack of LazyBatching", &[lazy], rows))
}
