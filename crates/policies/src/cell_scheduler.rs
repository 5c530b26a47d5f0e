//! Makes a scheduler of the tables that all cell schedulers share and a rule that chooses cell
//! types.

use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::{Graph, Model};
use ripieno_sched::cells::{CellRules, Cells};
use ripieno_sched::tables::models::BatchOptions;
use ripieno_sched::tables::tasks::Tasks;
use ripieno_sched::{Control, Outbox, Request, Scheduler, Setup, TaskDone};

/// The rule for the next cell type of an idle device.
pub(crate) trait Choose: Send {
    /// Returns a cell type with a ready node for this device.
    fn choose(&mut self, cells: &Cells, device: DeviceId) -> Option<(ModelId, BlockId)>;
}

/// A scheduler that decides cell by cell.
pub(crate) struct CellScheduler<C> {
    cells: Cells,
    rules: Box<dyn Fn(&Model) -> CellRules + Send>,
    choice: C,
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
        let mut cells = Cells::new(&setup.limits, setup.devices, options, Tasks::new(&setup.limits));
        for (model, id) in setup.models.iter().zip(0..) {
            cells.load(ModelId(id), model.clone(), rules(model));
        }
        CellScheduler { cells, rules: Box::new(rules), choice, fewest: fewest.min(setup.limits.depth) }
    }

    /// "Schedule" of Algorithm 1: called for each device that holds few tasks, after every event.
    /// Returns whether there was a batch for it.
    fn schedule(&mut self, now: Time, device: DeviceId, out: &mut Outbox) -> bool {
        self.cells.assign_set(now, device);
        let chosen = self.choice.choose(&self.cells, device);
        if let Some((model, block)) = chosen {
            self.cells.batch(now, model, block, device, out);
        }
        chosen.is_some()
    }

    fn wants(&self, device: DeviceId) -> bool {
        self.cells.is_present(device) && self.cells.holds(device) < self.fewest
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
            Control::DeviceLeft(device) => self.cells.leave_device(device),
            // A cell type is chosen without regard to time.
            Control::DeviceSlowed { .. } => {}
            Control::ModelLoaded(id, model) => {
                let rules = (self.rules)(&model);
                self.cells.load(id, *model, rules);
            }
            Control::ModelUnloaded(id) => self.cells.retire(id),
            Control::ProfileReplaced { model, block, profile } => self.cells.replace_profile(model, block, profile),
            Control::Cancelled(slot) => self.cells.withdraw(slot, ripieno_sched::Why::Cancelled),
            Control::NetworkDelayed(_) => {}
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.cells.drop_late(now, |_| {});
        self.cells.flush(out);
        for device in self.cells.device_ids() {
            while self.wants(device) && self.schedule(now, device, out) {}
        }
        self.cells.await_sets(now);
    }

    fn next_wakeup(&self) -> Time {
        self.cells.next_drop().min(self.cells.sets_ripen())
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.cells.members(task)
    }

    fn nodes(&self, task: TaskId) -> &[u32] {
        self.cells.nodes(task)
    }
}
