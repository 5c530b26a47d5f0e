//! Makes a scheduler of the tables that all cell schedulers share and a rule that chooses cell
//! types.

mod rules;
mod sets;

pub(crate) use rules::{CellRules, Join, Leave, Padding};
pub(crate) use sets::Sets;

use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::{Graph, Model, Steps};
use ripieno_sched::cells::Cells;
use ripieno_sched::tables::models::BatchOptions;
use ripieno_sched::tables::tasks::Tasks;
use ripieno_sched::{Control, Outbox, Request, Scheduler, Setup, TaskDone};

/// The rule for the next cell type of an idle device.
pub(crate) trait Choose: Send {
    /// Returns a cell type with a ready node for this device.
    fn choose(&mut self, cells: &Cells<Sets>, device: DeviceId) -> Option<(ModelId, BlockId)>;
}

/// A scheduler that decides cell by cell.
pub(crate) struct CellScheduler<C> {
    /// Requests in cells, and their sets.
    cells: Cells<Sets>,
    /// Returns the rules of a model.
    rules: Box<dyn Fn(&Model) -> CellRules + Send>,
    /// The rule for the next cell type.
    choice: C,
    /// Largest number of tasks that a device holds.
    depth: usize,
    /// Devices with fewer tasks get more.
    fewest: usize,
}

impl<C: Choose> CellScheduler<C> {
    /// Creates the scheduler; `rules` returns the rules of each model, also of those that are
    /// loaded later.
    pub(crate) fn new(
        setup: &Setup,
        options: BatchOptions,
        rules: impl Fn(&Model) -> CellRules + Send + 'static,
        choice: C,
    ) -> CellScheduler<C> {
        CellScheduler::with_fewest(setup, options, rules, choice, 1)
    }

    /// Creates a scheduler that gives a device more tasks while it holds fewer than `fewest`.
    pub(crate) fn with_fewest(
        setup: &Setup,
        options: BatchOptions,
        rules: impl Fn(&Model) -> CellRules + Send + 'static,
        choice: C,
        fewest: usize,
    ) -> CellScheduler<C> {
        let limits = &setup.limits;
        let cells = Cells::new(limits, setup.devices, options, Tasks::new(limits), Sets::new(limits));
        let (depth, fewest) = (limits.depth, fewest.min(limits.depth));
        let mut scheduler = CellScheduler { cells, rules: Box::new(rules), choice, depth, fewest };
        for (model, id) in setup.models.iter().zip(0..) {
            scheduler.load(ModelId(id), model.clone());
        }
        scheduler
    }

    fn load(&mut self, id: ModelId, model: Model) {
        let rules = (self.rules)(&model);
        self.cells.load(id, model, rules.merges);
        self.cells.groups.load(id, rules);
    }

    /// "Schedule" of Algorithm 1: called for each device that holds few tasks, after every event.
    /// Returns whether there was a batch for it.
    fn schedule(&mut self, now: Time, device: DeviceId, out: &mut Outbox) -> bool {
        if self.cells.is_present(device) {
            sets::assign(&mut self.cells, now, device);
        }
        let chosen = self.choice.choose(&self.cells, device);
        if let Some(chosen) = chosen {
            let (start, most) = (self.cells.groups.ready(device).max(now), self.most_tasks(chosen));
            self.cells.batch(start, chosen, device, most, out);
        }
        chosen.is_some()
    }

    /// Returns the largest number of tasks of a cell type that are submitted together.
    fn most_tasks(&self, (model, block): (ModelId, BlockId)) -> usize {
        let rules = self.cells.groups.rules(model);
        match self.cells.served(model).steps(block) {
            // A fixed set would queue steps beyond its end, which is not known in advance.
            Steps::UntilEnd if rules.join != Join::NextTask => 1,
            // A block that runs once makes nothing ready that could follow, and requests that
            // arrive meanwhile would miss tasks submitted ahead.
            Steps::Once => 1,
            _ => rules.max_tasks.min(self.depth),
        }
    }

    fn wants(&self, device: DeviceId) -> bool {
        (self.cells.is_present(device) || self.holds(device)) && self.cells.holds(device) < self.fewest
    }
}

impl<C: Choose> Scheduler for CellScheduler<C> {
    fn on_graph(&mut self, request: RequestSlot, graph: &Graph) {
        self.cells.insert_graph(request, graph);
    }

    fn on_request(&mut self, _now: Time, request: &Request) {
        self.cells.arrive(request);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        self.cells.task_done(done);
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.cells.join_device(device),
            // The second time, it is lost.
            Control::DeviceLeft(device) => self.cells.leave_device(device, self.cells.is_present(device)),
            // A cell type is chosen without regard to time.
            Control::DeviceSlowed { .. } => {}
            Control::ModelLoaded(id, model) => self.load(id, *model),
            Control::ModelUnloaded(id) => self.cells.retire(id),
            Control::ProfileReplaced { model, block, profile } => self.cells.replace_profile(model, block, profile),
            Control::Cancelled(slot) => self.cells.withdraw(slot, ripieno_sched::Why::Cancelled),
            Control::NetworkDelayed(_) | Control::GatherMeasured(..) => {}
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.cells.drop_late(now, |_| {});
        self.cells.flush(out);
        for device in self.cells.device_ids() {
            self.cells.release_drained(device);
            while self.wants(device) && self.schedule(now, device, out) {}
        }
        sets::await_next(&mut self.cells, now);
    }

    fn next_wakeup(&self) -> Time {
        self.cells.next_drop().min(self.cells.groups.ripens)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.cells.members(task)
    }

    fn nodes(&self, task: TaskId) -> &[u32] {
        self.cells.nodes(task)
    }

    fn holds(&self, device: DeviceId) -> bool {
        self.cells.drains(device) && self.cells.has_walks(device)
    }
}
