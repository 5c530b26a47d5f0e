//! The promises of the scheduler contract for walks that unfold: random models, lengths, trees,
//! graphs and faults, over every policy that serves them.
//!
//! The checkers follow each node of each request. In addition: nothing is left over, equal inputs
//! give equal outputs, and a policy rejects models that it does not serve by name.

use crate::common::{fault, micros, options, steps, tree};
use proptest::prelude::*;
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, Time};
use ripieno_model::{Block, DropRule, Extent, Graph, Model, Profile, Steps, Walk};
use ripieno_policies::{CATALOGUE, build};
use ripieno_sched::{Limits, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Fault, Observer, Run, Trace, World};

const DEVICES: usize = 4;

#[derive(Clone, Debug)]
struct Case {
    setup: Setup,
    graphs: Vec<Graph>,
    arrivals: Vec<Arrival>,
    faults: Vec<(Time, Fault)>,
}

prop_compose! {
    fn model()(
        walk in prop::sample::select(&Walk::ALL[..]),
        head in any::<bool>(),
        costs in prop::collection::vec((0..300i64, 1..900i64, 1..=9usize, 0..3u32), 4),
        sizes in prop_oneof![3 => Just(false), 1 => Just(true)],
        instances in prop_oneof![4 => Just(usize::MAX), 1 => 1..=2usize],
        drop in prop::option::of(prop::sample::select(vec![DropRule::Hopeless, DropRule::Expired, DropRule::Never])),
        slo_us in 2_000..60_000i64,
        pinned in any::<bool>(),
    ) -> Model {
        let widest = if walk.is_unfolded() { 9 } else { costs[0].2 };
        let block = |(at, steps): (usize, Steps)| {
            let (alpha, beta, max, priority) = costs[at];
            let max = if walk.is_unfolded() { max } else { widest };
            let table: Vec<_> = (1..=max as i64).map(|batch| Nanos::from_micros(alpha * batch + beta)).collect();
            let beside = walk == Walk::Bidirectional && at == 1;
            let sizes = if sizes && max > 2 { vec![2, max] } else { Vec::new() };
            Block { steps, beside, priority, sizes, ..Block::new(at.to_string(), Profile::from_table(&table).unwrap()) }
        };
        let blocks: Vec<_> = steps(walk, 3, head).into_iter().enumerate().map(block).collect();
        let slo = Nanos::from_micros(slo_us);
        let max_batch = blocks.iter().map(Block::max_batch).max().unwrap();
        Model { name: String::new(), blocks, walk, slo, max_batch, instances, drop, weight: 1, dec_timesteps: None, in_arrival_order: false, pinned }
    }
}

/// A table of nodes in which each takes up to three of those before it as inputs.
fn table() -> impl Strategy<Value = Vec<(u16, Vec<i64>)>> {
    let node = (0..3u16, prop::collection::vec(0..100i64, 0..=3));
    prop::collection::vec(node, 1..20).prop_map(|nodes| {
        let earlier = |at: usize, inputs: Vec<i64>| -> Vec<i64> {
            let named = inputs.into_iter().map(|input| if at == 0 { -1 } else { input % (at as i64 + 1) - 1 });
            named.collect()
        };
        nodes.into_iter().enumerate().map(|(at, (block, inputs))| (block, earlier(at, inputs))).collect()
    })
}

fn graph(nodes: &[(u16, Vec<i64>)]) -> Graph {
    Graph::new(nodes.len(), |node| BlockId(nodes[node].0), |node| &nodes[node].1).unwrap()
}

prop_compose! {
    fn case()(
        mut models in prop::collection::vec(model(), 1..=3),
        devices in 1..=DEVICES,
        trees in prop::collection::vec(prop::collection::vec(0..100usize, 0..25), 1..4),
        tables in prop::collection::vec(table(), 1..4),
        requests in prop::collection::vec((0..2_500i64, 0..3usize, 1..12u32, 1..15u32, 1..15u32, 0..12usize), 1..80),
        faults in prop::collection::vec((0..150_000i64, fault(DEVICES, 80)), 0..12),
        slots in 8..90usize,
        nodes in 30..400usize,
        depth in 1..=6usize,
    ) -> Case {
        for (index, model) in models.iter_mut().enumerate() {
            model.name = format!("m{index}");
        }
        let graphs: Vec<_> =
            trees.iter().map(|parents| tree(parents)).chain(tables.iter().map(|nodes| graph(nodes))).collect();
        let mut at = 0;
        let arrivals = requests.iter().map(|&(gap, model, length, limit, output, graph)| {
            at += gap;
            let index = model % models.len();
            let model = &models[index];
            let arrival = Arrival::new(micros(at), ModelId(index as u16), micros(at) + model.slo);
            let graph = match model.walk {
                Walk::Tree => Some(graph % trees.len()),
                Walk::Graph => Some(trees.len() + graph % tables.len()),
                _ => None,
            };
            match (model.walk.is_unfolded(), graph) {
                (false, _) => arrival,
                (true, None) => Arrival { extent: Extent { length, limit }, output: output.min(limit), ..arrival },
                (true, Some(graph)) => {
                    let extent = Extent { length: graphs[graph].len() as u32, limit };
                    Arrival { extent, graph: Some(graph as u32), ..arrival }
                }
            }
        }).collect();
        let known = |fault: &Fault| !matches!(fault, Fault::Unload(model) | Fault::Gather(model, _) if model.index() >= models.len());
        let mut faults: Vec<_> =
            faults.into_iter().filter(|(_, fault)| known(fault)).map(|(at, fault)| (micros(at), fault)).collect();
        faults.sort_by_key(|&(at, _)| at);
        // One device returns whatever was lost, so that everything can end.
        faults.push((micros(10_000_000), Fault::Join(DeviceId(0))));
        let batch = models.iter().map(|model| model.max_batch).max().unwrap();
        let limits = Limits { requests: slots, models: models.len(), devices: DEVICES, lanes: 1, depth, batch, nodes };
        Case { setup: Setup { models, devices, limits }, graphs, arrivals, faults }
    }
}

/// Fails after more tasks than any case needs.
#[derive(Default)]
struct TaskBound(usize);

impl Observer for TaskBound {
    fn started(&mut self, now: Time, run: &Run<'_>) {
        self.0 += 1;
        assert!(self.0 < 50_000, "tasks without end: {run:?} at {now:?}");
    }
}

fn run(policy: &str, knobs: &str, case: &Case) -> Option<Trace> {
    let options = options(knobs);
    let served = CATALOGUE.iter().find(|known| known.name == policy).unwrap().walks;
    let mut scheduler = match build(policy, &case.setup, &options) {
        Ok(scheduler) => scheduler,
        Err(error) => {
            let unserved =
                case.setup.models.iter().find(|model| !served.contains(&model.walk)).expect("else it builds");
            let text = error.to_string();
            assert!(text.contains(unserved.walk.name()) && text.contains("cellular"), "{text}");
            return None;
        }
    };
    let (mut trace, mut checkers) = (Trace::new(&case.setup.models), Checkers::new(&case.setup));
    if policy != "bucketed" && !knobs.contains("early_leave=false") {
        checkers = checkers.without_padding();
    }
    let mut bound = TaskBound::default();
    let mut world = World::new(scheduler.as_mut(), &case.setup).with_graphs(&case.graphs);
    world.run(case.arrivals.iter().copied(), case.faults.clone(), &mut [&mut bound, &mut checkers, &mut trace]);
    assert_eq!(world.live(), 0, "requests were left over");
    checkers.finish();
    Some(trace)
}

macro_rules! promises {
    ($($test:ident: $policy:literal $knobs:literal;)*) => {$(
        proptest! {
            #[test]
            fn $test(case in case()) {
                let (first, second) = (run($policy, $knobs, &case), run($policy, $knobs, &case));
                let text = |trace: Option<Trace>| trace.map(|trace| trace.tasks_csv() + &trace.requests_csv());
                prop_assert_eq!(text(first), text(second));
            }
        }
    )*};
}

promises! {
    cellular: "cellular" "";
    cellular_with_a_decision_before_every_cell: "cellular" "max_tasks=1";
    cellular_that_drops: "cellular" "drop=hopeless max_batch=3";
    cellular_without_early_start: "cellular" "early_start=false";
    cellular_without_early_leave: "cellular" "early_leave=false";
    cellular_without_both: "cellular" "early_start=false early_leave=false drop=expired";
    late: "late" "";
    late_that_drops: "late" "drop=hopeless max_batch=3";
    unified: "unified" "";
    unified_for_few_devices: "unified" "objective=efficiency";
    lazy: "lazy" "";
    lazy_that_drops: "lazy" "drop=expired";
    lazy_oracle: "lazy-oracle" "";
    bucketed: "bucketed" "width=3";
    bucketed_to_the_longest: "bucketed" "width=100 pad=longest";
    graph_merge: "graph-merge" "";
    graph_merge_that_takes_time: "graph-merge" "merge_us_per_node=40 max_batch=4 drop=expired";
    whole_batches_only: "deferred" "";
}

/// A set is larger than a step, and its members reach the decoder one after the other.
#[test]
fn a_row_that_has_ended_blocks_no_other_of_its_set() {
    let us = |us: i64| Profile::from_table(&[Nanos::from_micros(us)]).unwrap();
    let profiles = [us(1_027), us(934), Profile::linear(0.193, 0.343, 8).unwrap()];
    let kinds = [Steps::Length, Steps::UntilEnd, Steps::Once];
    let block = |(profile, steps)| Block { steps, ..Block::new("b", profile) };
    let blocks = profiles.into_iter().zip(kinds).map(block).collect();
    let slo = Nanos::from_millis(2);
    let whole = Model::whole("w", us(92), slo);
    let model = Model { name: "m".to_owned(), blocks, walk: Walk::EncodeDecode, max_batch: 8, ..whole.clone() };
    // Time in microseconds, model, length and number of steps of the output.
    let requests = [
        (313, 0, 5, 1),
        (314, 0, 1, 1),
        (1282, 0, 1, 2),
        (1802, 0, 6, 5),
        (4014, 1, 1, 0),
        (5697, 1, 1, 0),
        (7102, 0, 8, 1),
        (8321, 0, 1, 1),
        (9192, 0, 1, 1),
        (10587, 0, 1, 5),
        (11642, 0, 1, 1),
        (11733, 0, 1, 1),
        (12621, 1, 1, 0),
        (14960, 1, 1, 0),
        (15490, 0, 1, 1),
        (16973, 0, 1, 1),
        (16973, 0, 1, 1),
        (16973, 0, 1, 1),
        (16973, 0, 1, 1),
        (16973, 0, 9, 1),
        (16973, 0, 1, 1),
        (16973, 0, 1, 1),
        (16973, 0, 1, 1),
    ];
    let arrivals = requests.map(|(at, model, length, limit)| {
        let at = micros(at);
        Arrival { extent: Extent { length, limit }, output: limit, ..Arrival::new(at, ModelId(model), at + slo) }
    });
    let limits = Limits { requests: 14, models: 2, devices: 4, lanes: 1, depth: 4, batch: 8, nodes: 30 };
    let setup = Setup { models: vec![model, whole], devices: 1, limits };
    let changes = [
        (1_802, Fault::Join(DeviceId(1))),
        (6_734, Fault::Join(DeviceId(3))),
        (33_798, Fault::Lose(DeviceId(3))),
        (10_000_000, Fault::Join(DeviceId(0))),
    ];
    let faults = changes.map(|(at, fault)| (micros(at), fault)).to_vec();
    run("bucketed", "width=100 pad=longest", &Case { setup, graphs: Vec::new(), arrivals: arrivals.to_vec(), faults });
}
