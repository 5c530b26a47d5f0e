//! Policies of cells do not allocate after construction: sequences, outputs and trees, counted by
//! the allocator.

use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Block, Extent, Graph, Model, Profile, Steps, Walk};
use ripieno_policies::build;
use ripieno_sched::{
    Action, Control, Limits, OptionValue, Options, Outbox, Outcome, Request, RequestClass, Scheduler, Setup, TaskDone,
};
use ripieno_workload::{SeededRng, below, stream};

const DEVICES: usize = 3;
const DEPTH: usize = 4;
const LIMITS: Limits =
    Limits { requests: 200, models: 3, devices: DEVICES, lanes: 1, depth: DEPTH, batch: 16, nodes: 2_000 };

/// A driver that allocates nothing itself.
struct Driver {
    now: Time,
    out: Outbox,
    free: Vec<RequestSlot>,
    /// Per slot: whether it is answered, members in flight, the step at which its output ends.
    answered: Vec<bool>,
    in_flight: Vec<u32>,
    output: Vec<u32>,
    /// Per device: tasks in order, with the block's steps and the end of the first.
    queues: [[(TaskId, Steps); DEPTH]; DEVICES],
    held: [usize; DEVICES],
    ends: [Time; DEVICES],
    ended: Vec<bool>,
    trees: Vec<Graph>,
    walks: Vec<Walk>,
    random: SeededRng,
}

impl Driver {
    fn new(walks: Vec<Walk>) -> Driver {
        let slots = LIMITS.requests;
        Driver {
            now: Time::ORIGIN,
            out: Outbox::new(&LIMITS),
            free: (0..slots as u32).map(RequestSlot).collect(),
            answered: vec![false; slots],
            in_flight: vec![0; slots],
            output: vec![0; slots],
            queues: [[(TaskId(0), Steps::Once); DEPTH]; DEVICES],
            held: [0; DEVICES],
            ends: [Time::NEVER; DEVICES],
            ended: Vec::with_capacity(LIMITS.batch),
            trees: [1, 2, 3, 5].map(complete_tree).into(),
            walks,
            random: stream(7, 0),
        }
    }

    fn draw(&mut self, bound: u64) -> u64 {
        below(&mut self.random, bound)
    }

    fn drive(&mut self, scheduler: &mut dyn Scheduler, events: usize) {
        for _ in 0..events {
            let arrival = self.now + Nanos::from_micros(20 + self.draw(400) as i64);
            let end = self.ends.into_iter().min().unwrap();
            self.now = arrival.min(end).min(scheduler.next_wakeup());
            if self.now == end {
                self.end(scheduler);
            } else if self.now == arrival {
                self.arrive(scheduler);
            }
            scheduler.settle(self.now, &mut self.out);
            self.perform(scheduler);
        }
    }

    fn arrive(&mut self, scheduler: &mut dyn Scheduler) {
        let Some(slot) = self.free.pop() else { return };
        let model = self.draw(self.walks.len() as u64) as usize;
        let (length, limit) = (1 + self.draw(9) as u32, 8);
        self.output[slot.index()] = 1 + self.draw(8) as u32;
        self.answered[slot.index()] = false;
        if self.walks[model] == Walk::Tree {
            let tree = self.draw(4) as usize;
            scheduler.on_graph(slot, &self.trees[tree]);
        }
        let extent = Extent { length, limit };
        let deadline = self.now + Nanos::from_millis(40);
        let request = Request {
            slot,
            model: ModelId(model as u16),
            arrived: self.now,
            deadline,
            rows: 1,
            extent,
            class: RequestClass::default(),
        };
        scheduler.on_request(self.now, &request);
        if self.draw(50) == 0 {
            scheduler.on_control(self.now, Control::Cancelled(slot));
        }
    }

    fn end(&mut self, scheduler: &mut dyn Scheduler) {
        let device = (0..DEVICES).find(|&device| self.ends[device] == self.now).unwrap();
        let (task, steps) = self.queues[device][0];
        self.queues[device].rotate_left(1);
        self.held[device] -= 1;
        self.ends[device] = if self.held[device] > 0 { self.now + Nanos::from_micros(300) } else { Time::NEVER };
        self.ended.clear();
        for (at, slot) in scheduler.members(task).iter().enumerate() {
            let step = scheduler.nodes(task)[at] + 1;
            self.ended.push(steps == Steps::UntilEnd && step == self.output[slot.index()]);
            self.in_flight[slot.index()] -= 1;
            if self.in_flight[slot.index()] == 0 && self.answered[slot.index()] {
                self.free.push(*slot);
            }
        }
        let outcome = if self.draw(100) == 0 { Outcome::Failed } else { Outcome::Ok };
        scheduler.on_task_done(self.now, &TaskDone { task, outcome, ended: &self.ended, skips: &[] });
    }

    fn perform(&mut self, scheduler: &dyn Scheduler) {
        for action in self.out.actions() {
            match *action {
                Action::Start { task, model, block, device: DeviceId(device), .. } => {
                    let device = usize::from(device);
                    let steps = if self.walks[model.index()] == Walk::EncodeDecode && block == BlockId(1) {
                        Steps::UntilEnd
                    } else {
                        Steps::Once
                    };
                    self.queues[device][self.held[device]] = (task, steps);
                    self.held[device] += 1;
                    self.ends[device] = self.ends[device].min(self.now + Nanos::from_micros(300));
                    scheduler.members(task).iter().for_each(|slot| self.in_flight[slot.index()] += 1);
                }
                Action::Finish { request } | Action::Reject { request, .. } => {
                    self.answered[request.index()] = true;
                    if self.in_flight[request.index()] == 0 {
                        self.free.push(request);
                    }
                }
                Action::Cancel { .. } => unreachable!("no policy of cells cancels"),
            }
        }
        self.out.clear();
    }
}

fn complete_tree(levels: u32) -> Graph {
    let inner = (1 << (levels - 1)) - 1;
    let children = |node: i64| if node < inner { vec![2 * node + 1, 2 * node + 2] } else { Vec::new() };
    let children: Vec<_> = (0..2 * inner + 1).map(children).collect();
    Graph::tree(children.len(), |node| &children[node], BlockId(0), BlockId(1)).unwrap()
}

fn model(walk: Walk) -> Model {
    let steps = match walk {
        Walk::EncodeDecode => vec![Steps::Length, Steps::UntilEnd],
        Walk::Tree => vec![Steps::Nodes, Steps::Nodes],
        _ => vec![Steps::Length, Steps::Once],
    };
    let profile = || Profile::linear(0.05, 0.2, LIMITS.batch).unwrap();
    let block = |(at, steps): (usize, Steps)| Block { steps, ..Block::new(at.to_string(), profile()) };
    let whole = Model::whole(walk.name(), profile(), Nanos::from_millis(40));
    Model { walk, blocks: steps.into_iter().enumerate().map(block).collect(), ..whole }
}

fn check(policy: &str, walks: &[Walk], knobs: &[(&str, OptionValue)]) {
    let models: Vec<_> = walks.iter().map(|&walk| model(walk)).collect();
    let setup = Setup { models, devices: DEVICES, limits: LIMITS };
    let options: Options = knobs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let mut scheduler = build(policy, &setup, &options).unwrap();
    let mut driver = Driver::new(walks.to_vec());
    driver.drive(scheduler.as_mut(), 1_000);
    let counted = allocation_counter::measure(|| driver.drive(scheduler.as_mut(), 300_000));
    assert_eq!(counted.count_total, 0, "{policy} {knobs:?}");
}

#[test]
fn no_policy_of_cells_allocates_after_construction() {
    let lines = [Walk::Repeat, Walk::EncodeDecode];
    let all = [Walk::Repeat, Walk::EncodeDecode, Walk::Tree];
    let word = |text: &str| OptionValue::Text(text.to_owned());
    for drop in ["never", "expired", "hopeless"] {
        check("cellular", &all, &[("drop", word(drop))]);
        check("graph-merge", &all, &[("drop", word(drop)), ("merge_us_per_node", OptionValue::Int(5))]);
        check("bucketed", &lines, &[("drop", word(drop)), ("width", OptionValue::Int(3))]);
    }
    check("cellular", &all, &[("max_tasks", OptionValue::Int(1)), ("early_leave", OptionValue::Bool(false))]);
    check("cellular", &all, &[("early_start", OptionValue::Bool(false))]);
}
