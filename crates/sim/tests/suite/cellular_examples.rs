//! The worked examples of "Low Latency RNN Inference with Cellular Batching" (BatchMaker) and "Low
//! Latency Model Serving with Late Batching", and others calculated by hand, instant by instant.
//!
//! All cells take 1 ms whatever the batch. Details that the papers show only in figures were
//! chosen: the lengths of the later requests, and arrivals within an interval. These examples
//! therefore agree with every instant in the text, and are not the figures themselves.

use crate::common::options;
use expect_test::{Expect, expect};
use ripieno_base::{BlockId, ModelId, Nanos, Time};
use ripieno_model::{Block, Extent, Graph, Model, Profile, Steps, Walk};
use ripieno_policies::build;
use ripieno_sched::{Limits, Request, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, End, Observer, Run, World};
use std::fmt::Write;

/// Rows of time, device, cell and members, then the end of each request and the mean latency.
#[derive(Default)]
struct Table {
    rows: Vec<(Time, u16, Time, String)>,
    ends: Vec<(u64, Time, Time)>,
}

impl Observer for Table {
    fn started(&mut self, _now: Time, run: &Run<'_>) {
        let mut ids: Vec<_> = run.ids.iter().map(u64::to_string).collect();
        let count = ids.len();
        ids.dedup();
        let several = if ids.len() < count { format!(" x{count}") } else { String::new() };
        let row = format!("ct{}{several} [{}]", run.block.0, ids.join(", "));
        self.rows.push((run.start, run.device.0, run.end, row));
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        assert_eq!(end, End::Finished);
        self.ends.push((id, request.arrived, now));
    }
}

fn millis(time: Time) -> f64 {
    (time - Time::ORIGIN).as_millis_f64()
}

impl Table {
    fn print(mut self) -> String {
        self.rows.sort();
        self.ends.sort();
        let mut text = String::new();
        for (start, device, end, row) in &self.rows {
            writeln!(text, "{} {} w{device} {row}", millis(*start), millis(*end)).unwrap();
        }
        let done = self.ends.iter().map(|(id, _, at)| format!("r{id} {}", millis(*at)));
        writeln!(text, "done {}", done.collect::<Vec<_>>().join(", ")).unwrap();
        let total: f64 = self.ends.iter().map(|&(_, arrived, at)| millis(at) - millis(arrived)).sum();
        writeln!(text, "average {}", total / self.ends.len() as f64).unwrap();
        text
    }
}

fn at(millis: f64) -> Time {
    Time::ORIGIN + Nanos::from_millis_f64(millis)
}

fn cell(name: &str, steps: Steps, priority: u32, max_batch: usize) -> Block {
    let profile = Profile::from_table(&vec![Nanos::from_millis(1); max_batch]).unwrap();
    Block { steps, priority, ..Block::new(name, profile) }
}

fn model(walk: Walk, blocks: Vec<Block>) -> Model {
    let max_batch = blocks.iter().map(Block::max_batch).max().unwrap();
    let slo = Nanos::from_millis(1000);
    Model {
        name: "m".to_owned(),
        blocks,
        walk,
        slo,
        max_batch,
        instances: usize::MAX,
        drop: None,
        weight: 1,
        dec_timesteps: None,
        in_arrival_order: false,
        pinned: false,
    }
}

fn run(policy: &str, knobs: &str, model: Model, devices: usize, arrivals: &[Arrival], graphs: &[Graph]) -> String {
    let nodes = arrivals.iter().filter_map(|arrival| arrival.graph).map(|graph| graphs[graph as usize].len()).sum();
    let batch = model.max_batch;
    let limits = Limits { requests: arrivals.len(), devices, depth: 5, batch, nodes, ..Limits::ONE };
    let setup = Setup { models: vec![model], devices, limits };
    let mut scheduler = build(policy, &setup, &options(knobs)).unwrap();
    let (mut table, mut checkers) = (Table::default(), Checkers::new(&setup));
    if policy != "bucketed" && !knobs.contains("early_leave=false") {
        checkers = checkers.without_padding();
    }
    let mut world = World::new(scheduler.as_mut(), &setup).with_graphs(graphs);
    world.run(arrivals.iter().copied(), [], &mut [&mut checkers, &mut table]);
    checkers.finish();
    table.print()
}

/// A chain of one cell type; requests are (arrival, length).
pub(crate) fn chain(policy: &str, knobs: &str, max_batch: usize, requests: &[(f64, u32)], expected: Expect) {
    let model = model(Walk::Repeat, vec![cell("cell", Steps::Length, 0, max_batch)]);
    let arrival = |&(start, length): &(f64, u32)| {
        let extent = Extent { length, limit: 0 };
        Arrival { extent, ..Arrival::new(at(start), ModelId(0), at(start + 1000.0)) }
    };
    let arrivals: Vec<_> = requests.iter().map(arrival).collect();
    expected.assert_eq(&run(policy, knobs, model, 1, &arrivals, &[]));
}

pub(crate) const FIGURE_5: [(f64, u32); 8] =
    [(0.0, 2), (0.0, 3), (0.0, 3), (0.0, 5), (1.5, 3), (2.5, 7), (2.5, 4), (3.5, 2)];

#[test]
fn batchmaker_figure_5_graph_batching() {
    let expected = expect![[r#"
        0 1 w0 ct0 [1, 2, 3, 4]
        1 2 w0 ct0 [1, 2, 3, 4]
        2 3 w0 ct0 [1, 2, 3, 4]
        3 4 w0 ct0 [1, 2, 3, 4]
        4 5 w0 ct0 [1, 2, 3, 4]
        5 6 w0 ct0 [5, 6, 7, 8]
        6 7 w0 ct0 [5, 6, 7, 8]
        7 8 w0 ct0 [5, 6, 7, 8]
        8 9 w0 ct0 [5, 6, 7, 8]
        9 10 w0 ct0 [5, 6, 7, 8]
        10 11 w0 ct0 [5, 6, 7, 8]
        11 12 w0 ct0 [5, 6, 7, 8]
        done r1 5, r2 5, r3 5, r4 5, r5 12, r6 12, r7 12, r8 12
        average 7.25
    "#]];
    chain("bucketed", "width=100 pad=longest", 4, &FIGURE_5, expected);
}

/// The figure's timeline needs a decision before every cell.
#[test]
fn batchmaker_figure_5_cellular_batching() {
    chain(
        "cellular",
        "max_tasks=1",
        4,
        &FIGURE_5,
        expect![[r#"
        0 1 w0 ct0 [1, 2, 3, 4]
        1 2 w0 ct0 [1, 2, 3, 4]
        2 3 w0 ct0 [2, 3, 4, 5]
        3 4 w0 ct0 [4, 5, 6, 7]
        4 5 w0 ct0 [4, 5, 6, 7]
        5 6 w0 ct0 [6, 7, 8]
        6 7 w0 ct0 [6, 7, 8]
        7 8 w0 ct0 [6]
        8 9 w0 ct0 [6]
        9 10 w0 ct0 [6]
        done r1 2, r2 3, r3 3, r4 5, r5 5, r6 10, r7 7, r8 7
        average 4
    "#]],
    );
}

/// The next cell is chosen when one begins: r5, which arrives at 1.5, is in the one that is chosen
/// at 2 and begins at 3, and from the first cell to the last the device never waits.
#[test]
fn late_batching_decides_one_cell_ahead() {
    chain(
        "late",
        "",
        4,
        &FIGURE_5,
        expect![[r#"
        0 1 w0 ct0 [1, 2, 3, 4]
        1 2 w0 ct0 [1, 2, 3, 4]
        2 3 w0 ct0 [2, 3, 4]
        3 4 w0 ct0 [4, 5]
        4 5 w0 ct0 [4, 5, 6, 7]
        5 6 w0 ct0 [5, 6, 7, 8]
        6 7 w0 ct0 [6, 7, 8]
        7 8 w0 ct0 [6, 7]
        8 9 w0 ct0 [6]
        9 10 w0 ct0 [6]
        10 11 w0 ct0 [6]
        done r1 2, r2 3, r3 3, r4 5, r5 6, r6 11, r7 8, r8 7
        average 4.375
    "#]],
    );
}

/// Algorithm 1 as printed submits five cells together, so that r5 cannot join at 2.
#[test]
fn batchmaker_figure_5_with_five_tasks() {
    chain(
        "cellular",
        "",
        4,
        &FIGURE_5,
        expect![[r#"
        0 1 w0 ct0 [1, 2, 3, 4]
        1 2 w0 ct0 [1, 2, 3, 4]
        2 3 w0 ct0 [2, 3, 4]
        3 4 w0 ct0 [4]
        4 5 w0 ct0 [4]
        5 6 w0 ct0 [5, 6, 7, 8]
        6 7 w0 ct0 [5, 6, 7, 8]
        7 8 w0 ct0 [5, 6, 7]
        8 9 w0 ct0 [6, 7]
        9 10 w0 ct0 [6]
        10 11 w0 ct0 [6]
        11 12 w0 ct0 [6]
        done r1 2, r2 3, r3 3, r4 5, r5 8, r6 12, r7 9, r8 7
        average 4.875
    "#]],
    );
}

/// r5 to r8 are the paper's requests 10 to 13.
fn late_batching_figure_1() -> [(f64, u32); 8] {
    FIGURE_5.map(|(start, length)| (start + 100.0, length))
}

#[test]
fn late_batching_figure_1_dataflow_batching() {
    chain(
        "bucketed",
        "width=100 pad=longest",
        4,
        &late_batching_figure_1(),
        expect![[r#"
        100 101 w0 ct0 [1, 2, 3, 4]
        101 102 w0 ct0 [1, 2, 3, 4]
        102 103 w0 ct0 [1, 2, 3, 4]
        103 104 w0 ct0 [1, 2, 3, 4]
        104 105 w0 ct0 [1, 2, 3, 4]
        105 106 w0 ct0 [5, 6, 7, 8]
        106 107 w0 ct0 [5, 6, 7, 8]
        107 108 w0 ct0 [5, 6, 7, 8]
        108 109 w0 ct0 [5, 6, 7, 8]
        109 110 w0 ct0 [5, 6, 7, 8]
        110 111 w0 ct0 [5, 6, 7, 8]
        111 112 w0 ct0 [5, 6, 7, 8]
        done r1 105, r2 105, r3 105, r4 105, r5 112, r6 112, r7 112, r8 112
        average 7.25
    "#]],
    );
}

#[test]
fn late_batching_figure_1_late_batching() {
    chain(
        "cellular",
        "max_tasks=1",
        4,
        &late_batching_figure_1(),
        expect![[r#"
        100 101 w0 ct0 [1, 2, 3, 4]
        101 102 w0 ct0 [1, 2, 3, 4]
        102 103 w0 ct0 [2, 3, 4, 5]
        103 104 w0 ct0 [4, 5, 6, 7]
        104 105 w0 ct0 [4, 5, 6, 7]
        105 106 w0 ct0 [6, 7, 8]
        106 107 w0 ct0 [6, 7, 8]
        107 108 w0 ct0 [6]
        108 109 w0 ct0 [6]
        109 110 w0 ct0 [6]
        done r1 102, r2 103, r3 103, r4 105, r5 105, r6 110, r7 107, r8 107
        average 4
    "#]],
    );
}

const FIGURE_6: [(f64, u32); 5] = [(0.0, 5), (0.0, 4), (0.5, 6), (1.5, 4), (2.5, 10)];

#[test]
fn lazy_batching_figure_6_cellular_batching() {
    chain(
        "cellular",
        "max_tasks=1",
        3,
        &FIGURE_6,
        expect![[r#"
        0 1 w0 ct0 [1, 2]
        1 2 w0 ct0 [1, 2, 3]
        2 3 w0 ct0 [1, 2, 3]
        3 4 w0 ct0 [1, 2, 3]
        4 5 w0 ct0 [1, 3, 4]
        5 6 w0 ct0 [3, 4, 5]
        6 7 w0 ct0 [3, 4, 5]
        7 8 w0 ct0 [4, 5]
        8 9 w0 ct0 [5]
        9 10 w0 ct0 [5]
        10 11 w0 ct0 [5]
        11 12 w0 ct0 [5]
        12 13 w0 ct0 [5]
        13 14 w0 ct0 [5]
        14 15 w0 ct0 [5]
        done r1 5, r2 4, r3 7, r4 8, r5 15
        average 6.9
    "#]],
    );
}

#[test]
fn lazy_batching_figure_6_graph_batching() {
    chain(
        "bucketed",
        "width=100 pad=longest",
        3,
        &FIGURE_6,
        expect![[r#"
        0 1 w0 ct0 [1, 2]
        1 2 w0 ct0 [1, 2]
        2 3 w0 ct0 [1, 2]
        3 4 w0 ct0 [1, 2]
        4 5 w0 ct0 [1, 2]
        5 6 w0 ct0 [3, 4, 5]
        6 7 w0 ct0 [3, 4, 5]
        7 8 w0 ct0 [3, 4, 5]
        8 9 w0 ct0 [3, 4, 5]
        9 10 w0 ct0 [3, 4, 5]
        10 11 w0 ct0 [3, 4, 5]
        11 12 w0 ct0 [3, 4, 5]
        12 13 w0 ct0 [3, 4, 5]
        13 14 w0 ct0 [3, 4, 5]
        14 15 w0 ct0 [3, 4, 5]
        done r1 5, r2 5, r3 15, r4 15, r5 15
        average 10.1
    "#]],
    );
}

/// Merging the graphs needs no padding, and gains nothing for requests that end early.
#[test]
fn the_same_by_merging_graphs() {
    chain(
        "graph-merge",
        "",
        3,
        &FIGURE_6,
        expect![[r#"
        0 1 w0 ct0 [1, 2]
        1 2 w0 ct0 [1, 2]
        2 3 w0 ct0 [1, 2]
        3 4 w0 ct0 [1, 2]
        4 5 w0 ct0 [1]
        5 6 w0 ct0 [3, 4, 5]
        6 7 w0 ct0 [3, 4, 5]
        7 8 w0 ct0 [3, 4, 5]
        8 9 w0 ct0 [3, 4, 5]
        9 10 w0 ct0 [3, 5]
        10 11 w0 ct0 [3, 5]
        11 12 w0 ct0 [5]
        12 13 w0 ct0 [5]
        13 14 w0 ct0 [5]
        14 15 w0 ct0 [5]
        done r1 5, r2 5, r3 15, r4 15, r5 15
        average 10.1
    "#]],
    );
}

#[test]
fn a_request_of_length_21_is_padded_to_30() {
    chain(
        "bucketed",
        "width=10",
        4,
        &[(0.0, 21)],
        expect![[r#"
        0 1 w0 ct0 [1]
        1 2 w0 ct0 [1]
        2 3 w0 ct0 [1]
        3 4 w0 ct0 [1]
        4 5 w0 ct0 [1]
        5 6 w0 ct0 [1]
        6 7 w0 ct0 [1]
        7 8 w0 ct0 [1]
        8 9 w0 ct0 [1]
        9 10 w0 ct0 [1]
        10 11 w0 ct0 [1]
        11 12 w0 ct0 [1]
        12 13 w0 ct0 [1]
        13 14 w0 ct0 [1]
        14 15 w0 ct0 [1]
        15 16 w0 ct0 [1]
        16 17 w0 ct0 [1]
        17 18 w0 ct0 [1]
        18 19 w0 ct0 [1]
        19 20 w0 ct0 [1]
        20 21 w0 ct0 [1]
        21 22 w0 ct0 [1]
        22 23 w0 ct0 [1]
        23 24 w0 ct0 [1]
        24 25 w0 ct0 [1]
        25 26 w0 ct0 [1]
        26 27 w0 ct0 [1]
        27 28 w0 ct0 [1]
        28 29 w0 ct0 [1]
        29 30 w0 ct0 [1]
        done r1 30
        average 30
    "#]],
    );
}

/// One half of cellular batching at a time: no joining, or no early leaving.
#[test]
fn early_start_and_early_leave_alone() {
    chain(
        "cellular",
        "max_tasks=1 early_start=false",
        4,
        &FIGURE_5,
        expect![[r#"
        0 1 w0 ct0 [1, 2, 3, 4]
        1 2 w0 ct0 [1, 2, 3, 4]
        2 3 w0 ct0 [2, 3, 4]
        3 4 w0 ct0 [4]
        4 5 w0 ct0 [4]
        5 6 w0 ct0 [5, 6, 7, 8]
        6 7 w0 ct0 [5, 6, 7, 8]
        7 8 w0 ct0 [5, 6, 7]
        8 9 w0 ct0 [6, 7]
        9 10 w0 ct0 [6]
        10 11 w0 ct0 [6]
        11 12 w0 ct0 [6]
        done r1 2, r2 3, r3 3, r4 5, r5 8, r6 12, r7 9, r8 7
        average 4.875
    "#]],
    );
    chain(
        "cellular",
        "max_tasks=1 early_leave=false",
        4,
        &FIGURE_5,
        expect![[r#"
        0 1 w0 ct0 [1, 2, 3, 4]
        1 2 w0 ct0 [1, 2, 3, 4]
        2 3 w0 ct0 [1, 2, 3, 4]
        3 4 w0 ct0 [1, 2, 3, 4]
        4 5 w0 ct0 [1, 2, 3, 4]
        5 6 w0 ct0 [5, 6, 7, 8]
        6 7 w0 ct0 [5, 6, 7, 8]
        7 8 w0 ct0 [5, 6, 7, 8]
        8 9 w0 ct0 [5, 6, 7, 8]
        9 10 w0 ct0 [5, 6, 7, 8]
        10 11 w0 ct0 [5, 6, 7, 8]
        11 12 w0 ct0 [5, 6, 7, 8]
        done r1 5, r2 5, r3 5, r4 5, r5 12, r6 12, r7 12, r8 12
        average 7.25
    "#]],
    );
}

fn complete_tree(leaves: i64) -> Graph {
    let inner = leaves as usize - 1;
    // A heap: the children of node n are 2n + 1 and 2n + 2, and the last nodes are leaves.
    let children: Vec<[i64; 2]> = (0..2 * leaves - 1)
        .map(|node| if node < inner as i64 { [2 * node + 1, 2 * node + 2] } else { [-1, -1] })
        .collect();
    Graph::tree(children.len(), |node| &children[node], BlockId(0), BlockId(1)).unwrap()
}

fn trees(policy: &str, starts: &[f64], expected: Expect) {
    let blocks = vec![cell("leaf", Steps::Nodes, 0, 64), cell("internal", Steps::Nodes, 1, 64)];
    let arrival = |&start: &f64| {
        let extent = Extent { length: 31, limit: 0 };
        Arrival { extent, graph: Some(0), ..Arrival::new(at(start), ModelId(0), at(start + 1000.0)) }
    };
    let arrivals: Vec<_> = starts.iter().map(arrival).collect();
    expected.assert_eq(&run(policy, "", model(Walk::Tree, blocks), 1, &arrivals, &[complete_tree(16)]));
}

/// BatchMaker, section 4.4: 16 leaves are 16 subgraphs that are released together, the 15 inner
/// nodes one that is released when all leaves have finished. Its levels go into tasks one after the
/// other.
#[test]
fn a_tree_of_sixteen_leaves() {
    trees(
        "cellular",
        &[0.0],
        expect![[r#"
        0 1 w0 ct0 x16 [1]
        1 2 w0 ct1 x8 [1]
        2 3 w0 ct1 x4 [1]
        3 4 w0 ct1 x2 [1]
        4 5 w0 ct1 [1]
        done r1 5
        average 5
    "#]],
    );
}

/// The leaves of the second tree are ready at 1, but inner nodes have priority. Merged graphs run
/// in the same tasks, since each tree or pair of trees is a set.
#[test]
fn three_trees_cell_by_cell_and_by_merging_graphs() {
    for policy in ["cellular", "graph-merge"] {
        trees(
            policy,
            &[0.0, 0.5, 2.5],
            expect![[r#"
            0 1 w0 ct0 x16 [1]
            1 2 w0 ct1 x8 [1]
            2 3 w0 ct1 x4 [1]
            3 4 w0 ct1 x2 [1]
            4 5 w0 ct1 [1]
            5 6 w0 ct0 x32 [2, 3]
            6 7 w0 ct1 x16 [2, 3]
            7 8 w0 ct1 x8 [2, 3]
            8 9 w0 ct1 x4 [2, 3]
            9 10 w0 ct1 [2, 3]
            done r1 5, r2 10, r3 10
            average 7.333333333333333
        "#]],
        );
    }
}

/// Not from the papers, calculated by hand: encoder and decoder on two workers, batches of two, two
/// tasks together. At 2 the encoder goes first on w0 although the decoder has priority, since a
/// task of the decoder runs and none of the encoder does.
#[test]
fn two_workers() {
    let blocks = vec![cell("encoder", Steps::Length, 0, 2), cell("decoder", Steps::UntilEnd, 1, 2)];
    let model = model(Walk::EncodeDecode, blocks);
    let arrival = |&(start, length, output): &(f64, u32, u32)| {
        // Its limit is its length here: steps queued beyond an unknown end would be wasted.
        let extent = Extent { length, limit: output };
        Arrival { extent, output, ..Arrival::new(at(start), ModelId(0), at(start + 1000.0)) }
    };
    let arrivals: Vec<_> = [(0.0, 2, 3), (0.0, 3, 2), (0.5, 1, 1)].iter().map(arrival).collect();
    let table = run("cellular", "max_tasks=2", model, 2, &arrivals, &[]);
    expect![[r#"
        0 1 w0 ct0 [1, 2]
        0.5 1.5 w1 ct0 [3]
        1 2 w0 ct0 [1, 2]
        1.5 2.5 w1 ct1 [3]
        2 3 w0 ct0 [2]
        2.5 3.5 w1 ct1 [1]
        3 4 w0 ct1 [2]
        3.5 4.5 w1 ct1 [1]
        4 5 w0 ct1 [2]
        4.5 5.5 w1 ct1 [1]
        done r1 5.5, r2 5, r3 2.5
        average 4.166666666666667
    "#]]
    .assert_eq(&table);
}
