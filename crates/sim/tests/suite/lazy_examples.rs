//! The worked examples of LazyBatching, and others calculated by hand, instant by instant.
//!
//! All nodes take 1 ms whatever the batch. Arrivals that the paper's text does not fix were chosen
//! within the intervals that it allows.

use expect_test::{Expect, expect};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Block, Extent, Model, Profile, Steps, Walk};
use ripieno_policies::build;
use ripieno_sched::{Limits, OptionValue, Options, Request, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, End, Observer, Run, World};
use std::fmt::Write;

/// Rows of time, node and members, then the end of each request.
#[derive(Default)]
struct Table {
    rows: String,
    ends: Vec<(u64, Time)>,
}

impl Observer for Table {
    fn started(&mut self, _now: Time, run: &Run<'_>) {
        let node = char::from(b'A' + run.block.0 as u8);
        writeln!(self.rows, "{} {} {node} {:?}", millis(run.start), millis(run.end), run.ids).unwrap();
    }

    fn ended(&mut self, now: Time, id: u64, _request: &Request, end: End) {
        assert_eq!(end, End::Finished);
        self.ends.push((id, now));
    }
}

fn millis(time: Time) -> f64 {
    (time - Time::ORIGIN).as_millis_f64()
}

fn at(millis: f64) -> Time {
    Time::ORIGIN + Nanos::from_millis_f64(millis)
}

fn node(name: &str, steps: Steps) -> Block {
    let profile = Profile::from_table(&[Nanos::from_millis(1); 8]).unwrap();
    Block { steps, ..Block::new(name, profile) }
}

fn model(walk: Walk, blocks: Vec<Block>) -> Model {
    let slo = Nanos::from_millis(1000);
    Model {
        name: "m".to_owned(),
        blocks,
        walk,
        slo,
        max_batch: 8,
        instances: usize::MAX,
        drop: None,
        weight: 1,
        dec_timesteps: None,
        in_arrival_order: false,
        pinned: false,
    }
}

/// A chain of `nodes` nodes.
fn chain(nodes: usize) -> Model {
    model(Walk::Chain, (0..nodes).map(|at| node(&at.to_string(), Steps::Once)).collect())
}

fn run(policy: &str, knobs: &[(&str, &str)], models: Vec<Model>, arrivals: &[Arrival]) -> Table {
    let limits = Limits { requests: arrivals.len(), models: models.len(), batch: 8, ..Limits::ONE };
    let setup = Setup { models, devices: 1, limits };
    let options: Options =
        knobs.iter().map(|&(name, value)| (name.to_owned(), OptionValue::Text(value.to_owned()))).collect();
    let mut scheduler = build(policy, &setup, &options).unwrap();
    let (mut table, mut checkers) = (Table::default(), Checkers::new(&setup).without_padding());
    let mut world = World::new(scheduler.as_mut(), &setup);
    world.run(arrivals.iter().copied(), [], &mut [&mut checkers, &mut table]);
    checkers.finish();
    table
}

/// Requests of one chain that arrive at these instants, all with this SLO.
fn requests(arrivals: &[f64], slo_ms: f64) -> Vec<Arrival> {
    arrivals.iter().map(|&start| Arrival::new(at(start), ModelId(0), at(start + slo_ms))).collect()
}

fn check(table: &Table, expected: Expect) {
    expected.assert_eq(&table.rows);
}

#[test]
fn newcomers_catch_up_and_merge() {
    // Figure 10; Req1 waits until 2 for a busy processor, here it arrives then.
    let table = run("lazy", &[], vec![chain(8)], &requests(&[2.0, 3.5, 4.5], 1000.0));
    check(
        &table,
        expect![[r#"
            2 3 A [1]
            3 4 B [1]
            4 5 A [2]
            5 6 A [3]
            6 7 B [2, 3]
            7 8 C [1, 2, 3]
            8 9 D [1, 2, 3]
            9 10 E [1, 2, 3]
            10 11 F [1, 2, 3]
            11 12 G [1, 2, 3]
            12 13 H [1, 2, 3]
        "#]],
    );
    assert_eq!(table.ends, [1, 2, 3].map(|id| (id, at(13.0))));
    let oracle = run("lazy-oracle", &[], vec![chain(8)], &requests(&[2.0, 3.5, 4.5], 1000.0));
    assert_eq!(oracle.rows, table.rows);
}

#[test]
fn several_newcomers_catch_up_together() {
    // Figure 8.
    let table = run("lazy", &[], vec![chain(5)], &requests(&[4.0, 4.0, 5.5, 5.5, 5.5], 1000.0));
    check(
        &table,
        expect![[r#"
            4 5 A [1, 2]
            5 6 B [1, 2]
            6 7 A [3, 4, 5]
            7 8 B [3, 4, 5]
            8 9 C [1, 2, 3, 4, 5]
            9 10 D [1, 2, 3, 4, 5]
            10 11 E [1, 2, 3, 4, 5]
        "#]],
    );
}

/// Returns the start and end of each of three requests, at the boundaries of admission.
#[test]
fn admission_depends_on_the_estimate() {
    let times = |policy: &str, knobs: &[(&str, &str)], slo: f64| {
        let table = run(policy, knobs, vec![chain(8)], &requests(&[2.0, 3.5, 4.5], slo));
        let first = |id: u64| {
            let names = |row: &&str| {
                let ids = row.split_once('[').unwrap().1.trim_end_matches(']');
                ids.split(", ").any(|name| name == id.to_string())
            };
            table.rows.lines().find(names).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let mut ends = table.ends.clone();
        ends.sort_unstable();
        ([1, 2, 3].map(first), [0, 1, 2].map(|at| millis(ends[at].1)))
    };
    let alone = ([2.0, 10.0, 10.0], [10.0, 18.0, 18.0]);
    let one = ([2.0, 4.0, 12.0], [12.0, 12.0, 20.0]);
    let both = ([2.0, 4.0, 5.0], [13.0, 13.0, 13.0]);
    let equation = [16.0, 16.5, 24.0, 24.5].map(|slo| times("lazy", &[], slo));
    assert_eq!(equation, [alone, one, one, both]);
    // All three end at 13: the oracle admits them from an SLO of 11 on, when Req1 needs 11.
    let oracle = [10.5, 11.0].map(|slo| times("lazy-oracle", &[], slo));
    assert_eq!(oracle, [one, both]);
}

#[test]
fn recurrent_parts_merge_at_the_same_layer_and_leave_early() {
    let translate = || model(Walk::EncodeDecode, vec![node("A", Steps::Length), node("B", Steps::UntilEnd)]);
    let arrival = |start: f64, length: u32, output: u32| {
        let extent = Extent { length, limit: 8 };
        Arrival { extent, output, ..Arrival::new(at(start), ModelId(0), at(start + 1000.0)) }
    };
    let table = run("lazy", &[], vec![translate()], &[arrival(0.0, 2, 3), arrival(0.5, 1, 1)]);
    check(
        &table,
        expect![[r#"
            0 1 A [1]
            1 2 A [1, 2]
            2 3 B [1, 2]
            3 4 B [1]
            4 5 B [1]
        "#]],
    );
    assert_eq!(table.ends, [(2, at(3.0)), (1, at(5.0))]);
}

#[test]
fn a_shorter_member_of_an_encoder_waits_for_the_longest() {
    let translate = model(Walk::EncodeDecode, vec![node("A", Steps::Length), node("B", Steps::UntilEnd)]);
    let arrival = |length: u32| {
        let extent = Extent { length, limit: 8 };
        Arrival { extent, output: 1, ..Arrival::new(at(0.0), ModelId(0), at(1000.0)) }
    };
    let table = run("lazy", &[], vec![translate], &[arrival(1), arrival(3)]);
    check(
        &table,
        expect![[r#"
            0 1 A [1, 2]
            1 2 A [2]
            2 3 A [2]
            3 4 B [1, 2]
        "#]],
    );
}

#[test]
fn a_newcomer_must_not_break_the_slo_of_another_model() {
    let other = Model { name: "other".to_owned(), ..chain(4) };
    let arrivals = |slack: f64| {
        let newcomer = Arrival::new(at(1.5), ModelId(1), at(1.5 + 100.0));
        [Arrival::new(at(0.0), ModelId(0), at(slack)), newcomer]
    };
    // Alone the first is done at 8; the newcomer takes 4.
    let run = |slack: f64| run("lazy", &[], vec![chain(8), other.clone()], &arrivals(slack)).ends;
    assert_eq!(run(11.9), [(1, at(8.0)), (2, at(12.0))]);
    assert_eq!(run(12.0), [(2, at(6.0)), (1, at(12.0))]);
}

#[test]
fn a_table_never_holds_more_of_a_model_than_its_largest_batch() {
    let table = run("lazy", &[], vec![chain(3)], &requests(&[0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], 1000.0));
    check(
        &table,
        expect![[r#"
            0 1 A [1]
            1 2 A [2, 3, 4, 5, 6, 7, 8]
            2 3 B [1, 2, 3, 4, 5, 6, 7, 8]
            3 4 C [1, 2, 3, 4, 5, 6, 7, 8]
            4 5 A [9]
            5 6 B [9]
            6 7 C [9]
        "#]],
    );
}
