//! The promises of the scheduler contract, over every policy and its main options, on random worlds
//! with faults.
//!
//! The checkers panic when a promise is broken: each request ends exactly once, no device holds
//! more than its depth, and wake-ups lie ahead. Walks are in order, also of requests that leave a
//! chain early or skip a block, and a batch that has begun keeps its padding. In addition, where
//! costs depend on lengths, a batch is padded no further than its longest member. Equal inputs give
//! equal outputs. A policy that drops hopeless requests starts nothing that ends late on devices of
//! known speed.

use crate::common::{LongestChecker, fault, micros, options};
use proptest::prelude::*;
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, Time};
use ripieno_model::{Block, DropRule, Extent, LengthProfiles, Model, Profile, Walk};
use ripieno_policies::{CATALOGUE, Chains, build, build_served, find};
use ripieno_sched::{CostScale, Limits, OptionValue, Options, RequestClass, Setup, Shape};
use ripieno_sim::checkers::{Checkers, ShapeChecker};
use ripieno_sim::{Arrival, Fault, Route, Trace, World};

const DEVICES: usize = 5;

/// A world to run a policy in.
#[derive(Clone, Debug)]
struct Case {
    setup: Setup,
    arrivals: Vec<Arrival>,
    faults: Vec<(Time, Fault)>,
}

prop_compose! {
    fn model()(
        costs in prop::collection::vec((1..2_000i64, 0..4_000i64), 1..=3),
        slo_us in 2_000..40_000i64,
        max_batch in 1..=12usize,
        instances in prop_oneof![3 => Just(usize::MAX), 1 => 1..=2usize],
        drop in prop_oneof![
            2 => Just(None),
            1 => Just(Some(DropRule::Hopeless)),
            1 => Just(Some(DropRule::Expired)),
            1 => Just(Some(DropRule::Never)),
        ],
        in_arrival_order in any::<bool>(),
    ) -> Model {
        let block = |(index, &(alpha, beta)): (usize, &(i64, i64))| {
            let table: Vec<_> = (1..=max_batch as i64).map(|batch| Nanos::from_micros(alpha * batch + beta)).collect();
            Block::new(index.to_string(), Profile::from_table(&table).unwrap())
        };
        let blocks: Vec<_> = costs.iter().enumerate().map(block).collect();
        let walk = if blocks.len() == 1 { Walk::Whole } else { Walk::Chain };
        Model { name: String::new(), blocks, walk, slo: Nanos::from_micros(slo_us), max_batch, instances, drop, weight: 1, dec_timesteps: None, in_arrival_order, pinned: false }
    }
}

prop_compose! {
    fn class()(
        shape in prop_oneof![4 => Just(Shape(0)), 4 => (1..40u32).prop_map(Shape), 1 => Just(Shape::ALONE)],
        client in 0..4u16,
        priority in prop_oneof![3 => Just(0), 1 => 0..4u8],
        cost in prop_oneof![3 => Just(0), 1 => -20..=20i8],
    ) -> RequestClass {
        RequestClass { shape, client, priority, cost: CostScale(cost) }
    }
}

prop_compose! {
    fn case(faulty: bool)(
        mut models in prop::collection::vec(model(), 1..=3),
        devices in 1..=DEVICES,
        requests in prop::collection::vec(
            (0..2_500i64, 0..3usize, 1..=3u32, 1..=150i64, (1..=40u32, class()), prop_oneof![3 => Just(9), 1 => 0..4u16]),
            1..150,
        ),
        faults in prop::collection::vec((0..150_000i64, fault(DEVICES, 150)), if faulty { 0..10 } else { 0..1 }),
        slots in 20..200usize,
        depth in 1..=2usize,
    ) -> Case {
        for (index, model) in models.iter_mut().enumerate() {
            model.name = format!("m{index}");
        }
        let mut at = 0;
        let arrivals = requests.iter().map(|&(gap, model, rows, percent, (length, class), odd)| {
            at += gap;
            let model_id = model % models.len();
            let model = &models[model_id];
            let deadline = micros(at) + Nanos(model.slo.0 * percent / 100);
            let rows = rows.min(model.max_batch as u32);
            // Some leave after the first block or skip the second one.
            let route = match odd {
                0 | 1 => Route::ALL.ending_after(BlockId(odd)),
                2 => Route::ALL.skipping(BlockId(0), BlockId(2)),
                _ => Route::ALL,
            };
            Arrival { rows, route, class, extent: Extent { length, limit: 0 }, ..Arrival::new(micros(at), ModelId(model_id as u16), deadline) }
        }).collect();
        let known = |fault: &Fault| !matches!(fault, Fault::Unload(model) | Fault::Gather(model, _) if model.index() >= models.len());
        let mut faults: Vec<_> =
            faults.into_iter().filter(|(_, fault)| faulty && known(fault)).map(|(at, fault)| (micros(at), fault)).collect();
        faults.sort_by_key(|&(at, _)| at);
        // One device returns whatever was lost, so that everything can end.
        faults.push((micros(10_000_000), Fault::Join(DeviceId(0))));
        let batch = models.iter().map(|model| model.max_batch).max().unwrap();
        let limits = Limits { requests: slots, models: models.len(), devices: DEVICES, depth, batch, ..Limits::ONE };
        Case { setup: Setup { models, devices, limits }, arrivals, faults }
    }
}

/// Returns the case adapted to the policy: its lanes, and the lengths and skips of chains that it
/// serves.
fn suited(policy: &str, options: &Options, case: &Case) -> Case {
    let policy = find(policy).unwrap();
    let mut case = case.clone();
    case.setup.limits.lanes = policy.needs(options).lanes;
    let shortened = |profile: &Profile, percent: u64| {
        let table: Vec<_> = profile.table().iter().map(|cost| cost.scale(percent, 100).max(Nanos(1))).collect();
        Profile::from_table(&table).unwrap()
    };
    for model in &mut case.setup.models {
        // The costs of some models depend on length, and of others not.
        let pads = model.max_batch % 2 == 0 && (policy.chains == Chains::Any || model.blocks.len() == 1);
        for block in &mut model.blocks {
            block.skips = policy.chains != Chains::NoSkips;
            if pads {
                let table = vec![(10, shortened(&block.profile, 30)), (40, block.profile.clone())];
                block.lengths = Some(LengthProfiles::new(table).unwrap());
            }
        }
    }
    let skips = Route::ALL.skipping(BlockId(0), BlockId(2));
    for arrival in case.arrivals.iter_mut().filter(|arrival| policy.chains == Chains::NoSkips && arrival.route == skips)
    {
        arrival.route = Route::ALL;
    }
    case
}

fn run(policy: &str, options: &Options, case: &Case) -> Trace {
    let mut case = suited(policy, options, case);
    // Policies alone know no shapes, and no costs by shape.
    case.arrivals.iter_mut().for_each(|arrival| arrival.class.cost = CostScale::PROFILED);
    let mut scheduler = build(policy, &case.setup, options).unwrap();
    let (mut trace, mut checkers) = (Trace::new(&case.setup.models), Checkers::new(&case.setup));
    let mut longest = LongestChecker::new(&case.setup);
    let mut world = World::new(scheduler.as_mut(), &case.setup).with_routes(&case.setup);
    world.run(case.arrivals.iter().copied(), case.faults.clone(), &mut [&mut checkers, &mut longest, &mut trace]);
    assert_eq!(world.live(), 0, "requests were left over");
    checkers.finish();
    trace
}

/// Runs the policy as a server does.
fn run_served(policy: &str, options: &Options, case: &Case) -> Trace {
    let case = suited(policy, options, case);
    let mut scheduler = build_served(policy, &case.setup, options).unwrap();
    let (mut trace, mut checkers) = (Trace::new(&case.setup.models), Checkers::new(&case.setup));
    let mut shapes = ShapeChecker::new(&case.setup);
    let mut world = World::new(scheduler.as_mut(), &case.setup).with_routes(&case.setup);
    world.run(case.arrivals.iter().copied(), case.faults.clone(), &mut [&mut checkers, &mut shapes, &mut trace]);
    assert_eq!(world.live(), 0, "requests were left over");
    checkers.finish();
    trace
}

macro_rules! contract {
    ($($test:ident: $policy:literal $options:literal;)*) => {
        /// The policies that the suite runs over.
        const COVERED: &[&str] = &[$($policy),*];

        $(mod $test {
            use super::*;

            proptest! {
                #[test]
                fn keeps_its_promises_among_faults(case in case(true)) {
                    run($policy, &options($options), &case);
                }

                #[test]
                fn equal_inputs_give_equal_outputs(case in case(true)) {
                    let (a, b) = (run($policy, &options($options), &case), run($policy, &options($options), &case));
                    prop_assert_eq!(a.tasks_csv(), b.tasks_csv());
                    prop_assert_eq!(a.requests_csv(), b.requests_csv());
                }

                #[test]
                fn keeps_its_promises_as_served(case in case(true)) {
                    run_served($policy, &options($options), &case);
                }

                #[test]
                fn a_late_answer_needs_a_rule_that_allows_it(
                    mut case in case(false),
                    percents in prop::collection::vec(prop_oneof![2 => Just(100u32), 1 => 20..400u32], DEVICES),
                ) {
                    // Devices need longer than profiled, or less, and the scheduler knows it.
                    let slowed = (0..case.setup.devices).map(|id| Fault::Slow(DeviceId(id as u16), percents[id]));
                    case.faults.splice(0..0, slowed.map(|fault| (Time::ORIGIN, fault)));
                    for model in &mut case.setup.models {
                        model.drop = Some(DropRule::Hopeless);
                    }
                    let blind = ["serial", "cellular", "late", "bucketed", "graph-merge", "lazy", "lazy-oracle", "delay-batch", "dva"].contains(&$policy);
                    let knows_deadlines = !$options.contains("fifo") && !blind;
                    let requests = run($policy, &options($options), &case).requests_csv();
                    let late: Vec<_> = requests.lines().filter(|line| line.contains("late")).collect();
                    prop_assert!(late.is_empty() || !knows_deadlines, "{late:?}");
                }
            }
        })*
    };
}

contract! {
    serial: "serial" "";
    serial_hopeless: "serial" "drop=hopeless";
    eager_prefix: "eager" "gather=prefix";
    eager_window: "eager" "gather=window drop=expired";
    eager_fifo: "eager" "gather=fifo drop=never";
    timeout_prefix: "timeout" "timeout_ms=1.5 device=earliest-free";
    timeout_window: "timeout" "timeout_slo=0.3 gather=window";
    timeout_fifo: "timeout" "timeout_ms=4 gather=fifo drop=expired";
    deferred_prefix: "deferred" "gather=prefix";
    deferred_window: "deferred" "gather=window";
    deferred_expired: "deferred" "gather=window drop=expired";
    deferred_never: "deferred" "gather=prefix drop=never";
    deferred_sent_ahead: "deferred" "control_us=400 data_us_per_row=50";
    eager_sent_ahead: "eager" "control_us=400 drop=expired";
    deferred_sharded: "deferred" "shards=2";
    deferred_linked: "deferred" "shards=3 link_us=150 drop=expired";
    timeout_linked: "timeout" "shards=2 link_us=40 timeout_ms=2";
    deferred_spread: "deferred" "device=earliest-free";
    clockwork: "clockwork" "";
    clockwork_eager: "clockwork" "lookahead_ms=0 gather=window drop=expired";
    clockwork_far: "clockwork" "lookahead_ms=20 buffer_ms=0.5 drop=never device=earliest-free";
    nexus: "nexus" "";
    nexus_frontends: "nexus" "frontends=8 epoch_s=0.01 gather=window drop=expired";
    nexus_prefix: "nexus" "gather=prefix epoch_s=0.003 drop=never";
    shepherd: "shepherd" "";
    shepherd_window: "shepherd" "gather=window preempt_ratio=1.5 drop=expired";
    shepherd_published: "shepherd" "head_of_line=published preempt_ratio=2 drop=expired";
    shepherd_never: "shepherd" "drop=never device=earliest-free";
    cellular: "cellular" "";
    cellular_each: "cellular" "max_tasks=1 drop=hopeless";
    cellular_sets: "cellular" "early_start=false early_leave=false drop=expired";
    late: "late" "";
    late_hopeless: "late" "drop=hopeless";
    late_sets: "late" "early_start=false drop=expired";
    late_rows_kept: "late" "early_leave=false";
    bucketed: "bucketed" "";
    bucketed_by_turns: "bucketed" "turn=one";
    graph_merge: "graph-merge" "merge_us_per_node=30 drop=expired";
    lazy: "lazy" "";
    lazy_since_arrival: "lazy" "wait=arrival";
    lazy_gated: "lazy" "issue=gated drop=expired max_batch=3";
    lazy_oracle: "lazy-oracle" "drop=hopeless";
    lazy_oracle_gated: "lazy-oracle" "issue=gated";
    delay_batch: "delay-batch" "window_ms=3 drop=expired";
    delay_batch_ahead: "delay-batch" "window_ms=1 dispatch=start";
    zero_batch_ahead: "delay-batch" "dispatch=start drop=hopeless";
    dva: "dva" "";
    dva_comp_wait: "dva" "comp_wait_ms=20 window_ms=2 drop=expired";
    dva_serial: "dva" "buffers=1 diversity=operator drop=hopeless";
    dva_load: "dva" "buffers=3 diversity=load max_batch=4";
    dva_input: "dva" "diversity=input groups=3 window_ms=1";
    dva_many_executors: "dva" "executors=16 buffers=3";
    unified: "unified" "";
    unified_expired: "unified" "drop=expired max_batch=5";
    unified_never: "unified" "drop=never";
    unified_sent_ahead: "unified" "control_us=400 data_us_per_row=50";
}

proptest! {
    /// Shards whose messages take no time decide like one piece, for any number of shards.
    #[test]
    fn shards_without_delay_equal_the_fused_scheduler(case in case(true), shards in 1..=4i64) {
        for (policy, text) in [
            ("deferred", "gather=window"),
            ("deferred", "gather=prefix drop=never control_us=300"),
            ("eager", "drop=expired"),
            ("timeout", "timeout_ms=2 gather=fifo drop=never device=earliest-free"),
        ] {
            let fused = run(policy, &options(text), &case);
            let mut sharded = options(text);
            sharded.insert("shards".to_owned(), OptionValue::Int(shards));
            let sharded = run(policy, &sharded, &case);
            prop_assert_eq!(fused.tasks_csv(), sharded.tasks_csv());
            prop_assert_eq!(fused.requests_csv(), sharded.requests_csv());
        }
    }
}

proptest! {
    /// Two implementations that share no scheduling code: on devices that run as profiled, a
    /// Clockwork without look-ahead is "eager", under any faults.
    #[test]
    fn clockwork_without_look_ahead_equals_eager(mut case in case(true)) {
        case.faults.retain(|(_, fault)| !matches!(fault, Fault::Slow(..) | Fault::Delay(..) | Fault::Gather(..)));
        // Clockwork knows no order of arrival.
        case.setup.models.iter_mut().for_each(|model| model.in_arrival_order = false);
        for text in ["gather=prefix", "gather=prefix drop=never device=earliest-free"] {
            let eager = run("eager", &options(text), &case);
            let clockwork = run("clockwork", &options(&format!("{text} lookahead_ms=0")), &case);
            prop_assert_eq!(eager.tasks_csv(), clockwork.tasks_csv());
            prop_assert_eq!(eager.requests_csv(), clockwork.requests_csv());
        }
    }
}

#[test]
fn the_suite_covers_the_catalogue() {
    for policy in CATALOGUE {
        assert!(COVERED.contains(&policy.name), "add {:?} to contract!", policy.name);
    }
}
