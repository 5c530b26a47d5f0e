//! The promises of the scheduler contract for "unified" as served, on random worlds of models of
//! all walks side by side, with any control event at any time.
//!
//! Models are loaded, unloaded and loaded again during the run, and get the ids of models that are
//! gone, as in a server. Profiles are replaced; devices join, leave, are lost, slow down and fail;
//! clients withdraw. Tasks take longer or shorter than profiled, and requests reach the scheduler
//! late. The checkers follow each request, each node and each device. In addition nothing is left
//! over, different shapes share no batch, no batch is padded beyond its longest member, and equal
//! inputs give equal outputs.
//!
//! The number of cases is proptest's default, and each run draws others. An hour of them:
//!
//! ```sh
//! PROPTEST_CASES=300000 cargo test -p ripieno-sim --test suite control_events
//! ```

use crate::common::{LongestChecker, fault, micros, options, steps, tree};
use proptest::collection::vec;
use proptest::prelude::*;
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, Time};
use ripieno_model::{Block, DropRule, Extent, Graph, LengthProfiles, Model, Profile, Steps, Walk};
use ripieno_policies::build_served;
use ripieno_sched::{
    Action, Control, CostScale, Limits, Outbox, Request, RequestClass, Scheduler, SchedulerLayer, Setup, Shape,
    TaskDone,
};
use ripieno_sim::checkers::{Checkers, ShapeChecker};
use ripieno_sim::{Arrival, Fault, Occupancy, OccupancyStep, Route, Trace, World};

const DEVICES: usize = 4;
const MODELS: usize = 5;
/// Largest batch of any block.
const WIDEST: usize = 12;
/// Time within which events occur if requests arrive fast, in microseconds.
const SPAN_US: i64 = 150_000;

/// A world for the scheduler.
#[derive(Clone, Debug)]
struct ServedCase {
    setup: Setup,
    /// Number of models that are loaded at time zero.
    loaded: usize,
    options: &'static str,
    graphs: Vec<Graph>,
    arrivals: Vec<Arrival>,
    faults: Vec<(Time, Fault)>,
    occupancy: Occupancy,
    /// Whether the driver corrects profiles, and clients stop waiting at their deadlines.
    learns: bool,
}

fn profile(costs_us: impl Iterator<Item = i64>) -> Profile {
    Profile::from_table(&costs_us.map(Nanos::from_micros).collect::<Vec<_>>()).unwrap()
}

prop_compose! {
    fn model()(
        walk in prop::sample::select(&Walk::ALL[..]),
        (blocks, head) in (2..=3usize, any::<bool>()),
        costs in vec((0..900i64, 1..3_000i64, 1..=WIDEST, 0..3u32), 4),
        (sized, padded, surplus) in (prop::bool::weighted(0.25), any::<bool>(), 0..3usize),
        instances in prop_oneof![3 => Just(usize::MAX), 1 => 1..=2usize],
        drop in prop::option::of(prop::sample::select(vec![DropRule::Hopeless, DropRule::Expired, DropRule::Never])),
        slo_us in 2_000..60_000i64,
        weight in 1..=4u32,
        in_arrival_order in any::<bool>(),
    ) -> Model {
        let unfolds = walk.is_unfolded();
        let block = |(at, steps): (usize, Steps)| {
            let (alpha, beta, own, priority) = costs[at];
            // Cells have largest batches of their own, and are cheap. A profile may be longer than
            // the largest batch of its model.
            let (max, part) = if unfolds { (own, 4) } else { (costs[0].2 + surplus, 1) };
            let cost = |percent: i64| profile((1..=max as i64).map(|rows| (alpha * rows + beta) * percent / 100 / part + 1));
            let lengths = (padded && !unfolds).then(|| LengthProfiles::new(vec![(10, cost(30)), (40, cost(100))]).unwrap());
            let beside = walk == Walk::Bidirectional && at == 1;
            let sizes = if sized && unfolds && max > 2 { vec![2, max] } else { Vec::new() };
            let skips = !unfolds;
            Block { steps, beside, priority, sizes, lengths, skips, ..Block::new(at.to_string(), cost(100)) }
        };
        let blocks: Vec<_> = steps(walk, blocks, head).into_iter().enumerate().map(block).collect();
        let longest = blocks.iter().map(Block::max_batch).max().unwrap();
        let max_batch = if unfolds { longest } else { costs[0].2 };
        let slo = Nanos::from_micros(slo_us);
        Model { name: String::new(), blocks, walk, slo, max_batch, instances, drop, weight, dec_timesteps: None, in_arrival_order, pinned: false }
    }
}

/// A table of nodes in which each takes up to three of those before it as inputs.
fn graph() -> impl Strategy<Value = Graph> {
    vec((0..3u16, vec(0..100i64, 0..=3)), 1..20).prop_map(|nodes| {
        let input = |at: usize, named: i64| if at == 0 { -1 } else { named % (at as i64 + 1) - 1 };
        let inputs = |(at, (_, named)): (usize, &(u16, Vec<i64>))| named.iter().map(|&node| input(at, node)).collect();
        let inputs: Vec<Vec<i64>> = nodes.iter().enumerate().map(inputs).collect();
        Graph::new(nodes.len(), |node| BlockId(nodes[node].0), |node| &inputs[node]).unwrap()
    })
}

prop_compose! {
    fn class()(
        shape in prop_oneof![4 => Just(Shape(0)), 4 => (1..40u32).prop_map(Shape), 1 => Just(Shape::ALONE)],
        client in prop_oneof![3 => 0..4u16, 1 => any::<u16>()],
        priority in prop_oneof![3 => Just(0), 1 => 0..4u8],
        cost in prop_oneof![2 => Just(0), 1 => -i8::MAX..=i8::MAX],
    ) -> RequestClass {
        RequestClass { shape, client, priority, cost: CostScale(cost) }
    }
}

/// A random request before its model is known.
#[derive(Clone, Copy, Debug)]
struct RawRequest {
    gap_us: i64,
    heard_us: i64,
    model: usize,
    rows: u32,
    /// Time that the client allows, in percent of the SLO.
    percent: i64,
    length: u32,
    limit: u32,
    output: u32,
    class: RequestClass,
    number: usize,
}

prop_compose! {
    fn request()(
        (gap_us, heard_us) in (prop_oneof![1 => Just(0), 6 => 0..2_500i64], prop_oneof![3 => Just(0), 1 => 0..4_000i64]),
        (model, rows, percent) in (0..MODELS, 1..=3u32, prop_oneof![1 => 1..=150i64, 2 => 80..=300i64]),
        (length, limit, output) in (1..=50u32, 1..15u32, 1..15u32),
        (class, number) in (class(), 0..16usize),
    ) -> RawRequest {
        RawRequest { gap_us, heard_us, model, rows, percent, length, limit, output, class, number }
    }
}

impl RawRequest {
    /// Returns the request as it reaches the scheduler at `at`. Graphs are trees first.
    fn arrival(self, at: Time, models: &[Model], graphs: &[Graph], trees: usize) -> Arrival {
        let id = self.model % models.len();
        let model = &models[id];
        let arrived = Time((at.0 - self.heard_us * 1_000).max(0));
        let deadline = arrived + Nanos(model.slo.0 * self.percent / 100);
        let arrival = Arrival { arrived, class: self.class, ..Arrival::new(at, ModelId(id as u16), deadline) };
        let graph = match model.walk {
            Walk::Tree => Some(self.number % trees),
            Walk::Graph => Some(trees + self.number % (graphs.len() - trees)),
            _ => None,
        };
        if let Some(graph) = graph {
            let extent = Extent { length: graphs[graph].len() as u32, limit: self.limit };
            return Arrival { extent, graph: Some(graph as u32), ..arrival };
        }
        if model.walk.is_unfolded() {
            let extent = Extent { length: self.length.div_ceil(4), limit: self.limit };
            return Arrival { extent, output: self.output.min(self.limit), ..arrival };
        }
        // Some leave a chain early, or skip its second block.
        let route = match self.number {
            early @ 0..=1 => Route::ALL.ending_after(BlockId(early as u16)),
            2 if model.blocks.len() == 3 => Route::ALL.skipping(BlockId(0), BlockId(2)),
            _ => Route::ALL,
        };
        let rows = self.rows.min(model.max_batch as u32);
        Arrival { rows, route, extent: Extent { length: self.length, limit: 0 }, ..arrival }
    }
}

/// Any event; models, blocks and lengths of profiles are the largest world's.
fn event() -> impl Strategy<Value = Fault> {
    let model = || (0..MODELS as u16).prop_map(ModelId);
    let costs = vec((0..900i64, 1..3_000i64), 1).prop_map(|costs| {
        let (alpha, beta) = costs[0];
        profile((1..=WIDEST as i64 + 2).map(|rows| alpha * rows + beta))
    });
    let uneven = vec(1..9_000i64, WIDEST + 2).prop_map(|costs| profile(costs.into_iter()));
    let extreme =
        prop_oneof![Just(1), Just(i64::from(u32::MAX))].prop_map(|cost| profile(std::iter::repeat_n(cost, WIDEST + 2)));
    let costs = prop_oneof![4 => costs, 4 => uneven, 1 => extreme];
    prop_oneof![
        8 => fault(DEVICES, 150),
        4 => model().prop_map(Fault::Unload),
        6 => model().prop_map(Fault::Load),
        3 => (model(), (0..4u16).prop_map(BlockId), costs).prop_map(|(model, block, costs)| Fault::ReplaceProfile(model, block, costs)),
    ]
}

/// Returns the event with a model and a block of this world.
fn suited(event: Fault, models: &[Model]) -> Fault {
    let known = |id: ModelId| ModelId(id.0 % models.len() as u16);
    match event {
        Fault::Unload(id) => Fault::Unload(known(id)),
        Fault::Load(id) => Fault::Load(known(id)),
        Fault::Gather(id, delay) => Fault::Gather(known(id), delay),
        Fault::ReplaceProfile(id, block, profile) => {
            let (id, blocks) = (known(id), &models[known(id).index()].blocks);
            let block = BlockId(block.0 % blocks.len() as u16);
            // The profile of a cell ends with its largest batch.
            let (model, own) = (&models[id.index()], blocks[block.index()].max_batch());
            let unfolds = model.walk.is_unfolded();
            Fault::ReplaceProfile(id, block, if unfolds { profile.truncated(own) } else { profile })
        }
        other => other,
    }
}

prop_compose! {
    fn occupancy()(
        factor in prop_oneof![1 => Just(1.0), 3 => 0.4..3.0f64],
        tail in prop_oneof![1 => Just(0.0), 1 => 0.0..1.0f64],
        steps in vec((0..SPAN_US, prop::option::of(0..DEVICES), 0.3..4.0f64), 0..3),
    ) -> Occupancy {
        let step = |&(at, device, factor): &(i64, _, _)| OccupancyStep { at_s: at as f64 / 1e6, device, factor };
        let mut steps: Vec<_> = steps.iter().map(step).collect();
        steps.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Occupancy { factor, tail, steps }
    }
}

const OPTIONS: [&str; 6] = [
    "",
    "drop=expired",
    "drop=never max_batch=5",
    "objective=efficiency",
    "objective=efficiency drop=never",
    "max_batch=3",
];

prop_compose! {
    fn case(depth: usize)(
        mut models in vec(model(), 1..=MODELS),
        (loaded, devices) in (prop_oneof![1 => Just(MODELS), 1 => 0..=MODELS], 1..=DEVICES),
        // The time between arrivals, and the range of their costs.
        (pace, mild) in (prop_oneof![2 => Just(1), 1 => Just(4), 1 => Just(16)], prop_oneof![4 => Just(8), 1 => Just(1)]),
        (trees, tables) in (vec(vec(0..100usize, 0..25), 1..4), vec(graph(), 1..4)),
        requests in vec(request(), 1..150),
        // Some events occur at the instant of an arrival.
        events in vec((prop_oneof![2 => (0..SPAN_US).prop_map(Ok), 1 => (0..150usize).prop_map(Err)], event()), 0..40),
        (slots, nodes) in (8..120usize, 30..400usize),
        options in prop::sample::select(&OPTIONS[..]),
        (occupancy, learns) in (occupancy(), any::<bool>()),
    ) -> ServedCase {
        models.iter_mut().enumerate().for_each(|(index, model)| model.name = format!("m{index}"));
        let graphs: Vec<_> = trees.iter().map(|parents| tree(parents)).chain(tables).collect();
        let mut at = Time::ORIGIN;
        let arrivals: Vec<_> = requests.iter().map(|raw| {
            at = at + Nanos::from_micros(raw.gap_us * pace);
            let mut arrival = raw.arrival(at, &models, &graphs, trees.len());
            arrival.class.cost.0 /= mild;
            arrival
        }).collect();
        let time = |at: Result<i64, usize>| at.map_or_else(|of: usize| arrivals[of % arrivals.len()].at, |at| micros(at * pace));
        let mut faults: Vec<_> = events.into_iter().map(|(at, event)| (time(at), suited(event, &models))).collect();
        faults.sort_by_key(|&(at, _)| at);
        // One device returns whatever was lost, so that everything can end.
        faults.push((micros(10_000_000), Fault::Join(DeviceId(0))));
        let limits = Limits { requests: slots, models: models.len(), devices: DEVICES, lanes: 1, depth, batch: WIDEST, nodes };
        let loaded = loaded.min(models.len());
        ServedCase { setup: Setup { models, devices, limits }, loaded, options, graphs, arrivals, faults, occupancy, learns }
    }
}

/// A scheduler in which each model has the id that it got at its load: the next free one in turn,
/// as in a server. An id is free once no request or task of its model is left.
struct IdsInTurn {
    scheduler: Box<dyn Scheduler>,
    out: Outbox,
    /// The id of each model of the world that was loaded.
    ids: Vec<Option<ModelId>>,
    holders: Vec<Option<IdHolder>>,
    next: usize,
    of_request: Vec<ModelId>,
    of_task: Vec<ModelId>,
}

/// The model that has an id.
#[derive(Clone, Copy)]
struct IdHolder {
    model: ModelId,
    unloaded: bool,
    /// Number of its requests and tasks.
    uses: usize,
}

impl IdsInTurn {
    /// Creates the layer above a scheduler that was built for the first `loaded` models.
    fn new(scheduler: Box<dyn Scheduler>, limits: &Limits, loaded: usize) -> IdsInTurn {
        let mut layer = IdsInTurn {
            scheduler,
            out: Outbox::new(limits),
            ids: vec![None; limits.models],
            holders: vec![None; limits.models],
            next: 0,
            of_request: vec![ModelId(0); limits.requests],
            of_task: vec![ModelId(0); limits.tasks()],
        };
        for model in 0..loaded {
            layer.load(ModelId(model as u16));
        }
        layer
    }

    fn load(&mut self, model: ModelId) -> ModelId {
        let count = self.holders.len();
        let is_free = |holder: &Option<IdHolder>| holder.is_none_or(|holder| holder.unloaded && holder.uses == 0);
        let mut in_turn = (0..count).map(|step| (self.next + step) % count);
        let at = in_turn.find(|&at| is_free(&self.holders[at])).expect("each model has at most one id");
        self.next = at + 1;
        self.holders[at] = Some(IdHolder { model, unloaded: false, uses: 0 });
        let id = ModelId(at as u16);
        self.ids[model.index()] = Some(id);
        id
    }

    fn id(&self, model: ModelId) -> ModelId {
        self.ids[model.index()].expect("the world names loaded models only")
    }

    fn holder(&mut self, id: ModelId) -> &mut IdHolder {
        self.holders[id.index()].as_mut().expect("ids in use are held")
    }
}

impl SchedulerLayer for IdsInTurn {
    fn inner(&self) -> &dyn Scheduler {
        self.scheduler.as_ref()
    }

    fn inner_mut(&mut self) -> &mut dyn Scheduler {
        self.scheduler.as_mut()
    }

    fn on_request(&mut self, now: Time, request: &Request) {
        let id = self.id(request.model);
        self.holder(id).uses += 1;
        self.of_request[request.slot.index()] = id;
        self.scheduler.on_request(now, &Request { model: id, ..*request });
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        let id = self.of_task[done.task.index()];
        self.holder(id).uses -= 1;
        self.scheduler.on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        let control = match control {
            Control::ModelLoaded(model, spec) => Control::ModelLoaded(self.load(model), spec),
            Control::ModelUnloaded(model) => {
                let id = self.id(model);
                self.holder(id).unloaded = true;
                Control::ModelUnloaded(id)
            }
            Control::ProfileReplaced { model, block, profile } => {
                Control::ProfileReplaced { model: self.id(model), block, profile }
            }
            Control::GatherMeasured(model, delay) => Control::GatherMeasured(self.id(model), delay),
            other => other,
        };
        self.scheduler.on_control(now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.scheduler.settle(now, &mut self.out);
        for at in 0..self.out.actions().len() {
            let mut action = self.out.actions()[at];
            match &mut action {
                Action::Start { task, model, .. } => {
                    self.of_task[task.index()] = *model;
                    let holder = self.holder(*model);
                    holder.uses += 1;
                    *model = holder.model;
                }
                Action::Finish { request } | Action::Reject { request, .. } => {
                    let id = self.of_request[request.index()];
                    self.holder(id).uses -= 1;
                }
                Action::Cancel { .. } => {}
            }
            out.push(action);
        }
        self.out.clear();
    }
}

/// Runs the case with all checkers; returns its trace.
fn run(case: &ServedCase) -> String {
    let ServedCase { setup, loaded, .. } = case;
    let first = Setup { models: setup.models[..*loaded].to_vec(), ..setup.clone() };
    let served = build_served("unified", &first, &options(case.options)).unwrap();
    let mut scheduler = IdsInTurn::new(served, &setup.limits, *loaded);
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(setup).without_padding());
    let (mut shapes, mut longest) = (ShapeChecker::new(setup), LongestChecker::new(setup));
    let mut world = World::new(&mut scheduler, setup)
        .with_loaded(*loaded)
        .with_routes(setup)
        .with_graphs(&case.graphs)
        .with_occupancy(&case.occupancy, 1);
    if case.learns {
        world = world.with_learning(&setup.models).with_expiry();
    }
    let observers = &mut [&mut checkers as _, &mut shapes as _, &mut longest as _, &mut trace as _];
    world.run(case.arrivals.iter().copied(), case.faults.clone(), observers);
    assert_eq!(world.live(), 0, "requests were left over");
    checkers.finish();
    trace.tasks_csv() + &trace.requests_csv()
}

proptest! {
    #[test]
    fn unified_survives_any_control_event_as_served(case in case(1)) {
        prop_assert_eq!(run(&case), run(&case));
    }

    #[test]
    fn unified_survives_any_control_event_with_steps_queued_ahead(case in case(2)) {
        prop_assert_eq!(run(&case), run(&case));
    }
}
