//! The worked examples of DVABatch, Figure 3, instant by instant, with their baselines.
//!
//! Time is in ms, and an operator takes 1 ms of a whole device.

use ripieno_base::{ModelId, Nanos, TaskId, Time};
use ripieno_model::{Block, Extent, LengthProfiles, Model, Profile, Walk};
use ripieno_policies::build;
use ripieno_sched::{Limits, OptionValue, Options, Request, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, End, Observer, Run, World};

/// Rows of time, operator and members, in the order of their starts, and the latencies in the order
/// of the answers.
#[derive(Default)]
struct Table {
    tasks: Vec<(TaskId, Time, Time, String)>,
    latencies: Vec<(u64, f64)>,
}

impl Observer for Table {
    fn started(&mut self, _now: Time, run: &Run<'_>) {
        let operator = char::from(b'A' + run.block.0 as u8);
        self.tasks.push((run.task, run.start, Time::NEVER, format!("{operator} {:?}", run.ids)));
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        let task = self.tasks.iter_mut().rfind(|task| task.0 == run.task).unwrap();
        task.2 = now;
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        assert_eq!(end, End::Finished);
        self.latencies.push((id, (now - request.arrived).as_millis_f64()));
    }
}

impl Table {
    fn rows(&self) -> String {
        let row = |(_, start, end, what): &(TaskId, Time, Time, String)| {
            format!("{} {} {what}\n", millis(*start), millis(*end))
        };
        self.tasks.iter().map(row).collect()
    }

    fn mean(&self) -> f64 {
        self.latencies.iter().map(|(_, latency)| latency).sum::<f64>() / self.latencies.len() as f64
    }
}

fn millis(time: Time) -> f64 {
    (time - Time::ORIGIN).as_millis_f64()
}

fn profile(millis: &[f64]) -> Profile {
    Profile::from_table(&millis.iter().map(|&ms| Nanos::from_millis_f64(ms)).collect::<Vec<_>>()).unwrap()
}

/// Operators with these latencies by batch size.
fn model(operators: &[[f64; 4]]) -> Model {
    let block = |(at, table): (usize, &[f64; 4])| Block::new(at.to_string(), profile(table));
    let blocks: Vec<_> = operators.iter().enumerate().map(block).collect();
    let walk = if blocks.len() == 1 { Walk::Whole } else { Walk::Chain };
    let slo = Nanos::from_millis(1000);
    Model {
        name: "m".to_owned(),
        blocks,
        walk,
        slo,
        max_batch: 4,
        instances: usize::MAX,
        drop: None,
        weight: 1,
        dec_timesteps: None,
        in_arrival_order: false,
        pinned: false,
    }
}

fn run(policy: &str, lanes: usize, knobs: &str, model: &Model, arrivals: &[(f64, u32)]) -> Table {
    let arrival = |&(at, length): &(f64, u32)| {
        let (at, extent) = (Time::ORIGIN + Nanos::from_millis_f64(at), Extent { length, limit: 0 });
        Arrival { extent, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis(1000)) }
    };
    let limits = Limits { requests: arrivals.len(), lanes, depth: 2, batch: 4, ..Limits::ONE };
    let setup = Setup { models: vec![model.clone()], devices: 1, limits };
    let value = |text: &str| match (text.parse(), text.parse()) {
        (Ok(int), _) => OptionValue::Int(int),
        (_, Ok(float)) => OptionValue::Float(float),
        _ => OptionValue::Text(text.to_owned()),
    };
    let pairs = knobs.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    let options: Options = pairs.map(|(name, text)| (name.to_owned(), value(text))).collect();
    let mut scheduler = build(policy, &setup, &options).unwrap();
    let (mut table, mut checkers) = (Table::default(), Checkers::new(&setup));
    let mut world = World::new(scheduler.as_mut(), &setup);
    world.run(arrivals.iter().map(arrival), [], &mut [&mut checkers, &mut table]);
    checkers.finish();
    table
}

/// Operators that take 1 ms whatever the batch.
const FLAT: [f64; 4] = [1.0; 4];
/// An operator that takes a batch of 4 in 1 ms, and each of them alone in a quarter of it.
const EACH: [f64; 4] = [0.25, 0.5, 0.75, 1.0];

/// Operators in which a device is full with four rows, and work is rows times length.
fn by_length(operators: usize) -> Model {
    let each = 1.0 / operators as f64;
    let by_length = (1..=4).map(|length| (length, profile(&[f64::from(length) * each; 4]))).collect();
    let mut model = model(&vec![[4.0 * each; 4]; operators]);
    let lengths = LengthProfiles::new(by_length).unwrap();
    model.blocks.iter_mut().for_each(|block| block.lengths = Some(lengths.clone()));
    model
}

/// The paper draws both groups in parallel from the start, so that the mean is 2.5. Its executors
/// run one stage each, so that the long group begins once the short one has left the first stage.
#[test]
fn case_i_runs_short_and_long_requests_side_by_side() {
    let together = [(0.0, 2), (0.0, 2), (0.0, 2), (0.0, 4)];
    let table = run("dva", 4, "", &by_length(4), &together);
    let expected = "0 0.5 A [1, 2, 3]\n0.5 1 B [1, 2, 3]\n0.5 1.5 A [4]\n1 1.5 C [1, 2, 3]\n1.5 2 D [1, 2, 3]\n\
                    1.5 2.5 B [4]\n2.5 3.5 C [4]\n3.5 4.5 D [4]\n";
    assert_eq!(table.rows(), expected);
    assert_eq!(table.mean(), 2.625);
    assert_eq!(run("dva", 4, "", &by_length(1), &together).mean(), 3.0);
    for dispatch in ["free", "start"] {
        let padded = run("delay-batch", 1, &format!("dispatch={dispatch}"), &by_length(1), &together);
        assert_eq!(padded.rows(), "0 4 A [1, 2, 3, 4]\n");
        assert_eq!(padded.mean(), 4.0);
    }
}

#[test]
fn case_ii_splits_where_operators_prefer_single_requests() {
    let model = model(&[FLAT, EACH, EACH, EACH]);
    let together = [(0.0, 1); 4];
    for lanes in [1, 4] {
        let table = run("dva", lanes, "", &model, &together);
        let expected = "0 1 A [1, 2, 3, 4]\n\
                        1 1.25 B [1]\n1.25 1.5 C [1]\n1.5 1.75 D [1]\n\
                        1.75 2 B [2]\n2 2.25 C [2]\n2.25 2.5 D [2]\n\
                        2.5 2.75 B [3]\n2.75 3 C [3]\n3 3.25 D [3]\n\
                        3.25 3.5 B [4]\n3.5 3.75 C [4]\n3.75 4 D [4]\n";
        assert_eq!(table.rows(), expected);
        assert_eq!(table.latencies, [(1, 1.75), (2, 2.5), (3, 3.25), (4, 4.0)]);
        assert_eq!(table.mean(), 2.875);
        for (policy, knobs) in
            [("dva", "split=false"), ("delay-batch", "dispatch=free"), ("delay-batch", "dispatch=start")]
        {
            let whole = run(policy, lanes, knobs, &model, &together);
            assert_eq!(whole.mean(), 4.0, "{policy} {knobs}");
        }
    }
}

/// One request, and three that arrive after its first operator.
const BURST: [(f64, u32); 4] = [(0.0, 1), (5.0, 1), (5.0, 1), (5.0, 1)];

#[test]
fn case_iii_stretches_the_batch_by_late_requests() {
    let model = model(&[FLAT; 4]);
    let expected = "4 5 A [1]\n5 6 A [2, 3, 4]\n6 7 B [1, 2, 3, 4]\n7 8 C [1, 2, 3, 4]\n8 9 D [1, 2, 3, 4]\n";
    for knobs in ["window_ms=4", "window_ms=4 comp_wait_ms=1"] {
        let table = run("dva", 4, knobs, &model, &BURST);
        assert_eq!(table.rows(), expected);
        assert_eq!(table.mean(), 5.25);
    }
    for dispatch in ["free", "start"] {
        // The window of the second batch begins with its own first request, and does not end when
        // the device is free.
        let baseline = run("delay-batch", 1, &format!("window_ms=4 dispatch={dispatch}"), &model, &BURST);
        assert_eq!(baseline.rows().lines().next(), Some("4 5 A [1]"));
        assert_eq!(baseline.rows().lines().last(), Some("12 13 D [2, 3, 4]"));
        assert_eq!(baseline.mean(), 8.0);
    }
    // Without stretching, the batch of three waits for its own window.
    for knobs in ["window_ms=4 stretch=false", "window_ms=4 comp_wait_ms=0.9"] {
        assert_eq!(run("dva", 4, knobs, &model, &BURST).mean(), 8.0);
    }
    // Without a window, either, it follows the one through the stages, and runs beside it.
    let beside = run("dva", 4, "stretch=false", &model, &BURST);
    assert_eq!(beside.latencies, [(1, 4.0), (2, 4.0), (3, 4.0), (4, 4.0)]);
    // With one buffer pair no executor is free for newcomers.
    assert_eq!(run("dva", 1, "window_ms=4 buffers=1", &model, &BURST).latencies[0], (1, 8.0));
}
