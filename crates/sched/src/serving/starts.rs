//! Starts the tasks that the arbiter chooses.

use super::UnifiedScheduler;
use super::arbiter::{self, OfferedTask, TaskOffer};
use super::decision::Decision;
use super::devices::TaskInFlight;
use super::former::Former;
use crate::cells::Cells;
use crate::tables::cohorts::CohortId;
use crate::{Outbox, Scheduler};
use ripieno_base::{DeviceId, LaneId, ModelId, Nanos, Permille, Time};

impl UnifiedScheduler {
    /// Starts the best offers on the `free` devices without a task; returns how many stay idle.
    pub(super) fn start_on_free(&mut self, now: Time, free: usize, out: &mut Outbox) -> usize {
        let mut idle = free;
        // Newcomers go to devices with nothing begun first.
        for begun in [false, true] {
            let mut none_offered = false;
            for device in self.devices.ids() {
                let state = &self.devices[device];
                // Equal idle devices are offered the same, except walks that only one can continue.
                let same = none_offered && !begun && state.percent == 100 && !self.cells.has_walks(device);
                if !state.present || state.running.is_some() || state.held.is_empty() == begun || same {
                    continue;
                }
                let given = self.start_next(now, device, idle, out);
                none_offered |= !given && self.devices[device].percent == 100;
                idle -= usize::from(given);
            }
        }
        idle
    }

    /// Starts what goes on on absent devices, and forgets those that have ended it.
    pub(super) fn start_on_draining(&mut self, now: Time, free: usize, out: &mut Outbox) {
        for at in (0..self.draining.len()).rev() {
            let device = self.draining[at];
            if !self.holds(device) {
                self.draining.swap_remove(at);
            } else if self.devices[device].running.is_none() {
                self.start_next(now, device, free + 1, out);
            }
        }
    }

    /// Starts the best offer on a device that is free, or that gets its next task ahead; returns
    /// whether there was one. `idle` is the number of free devices with this one, and 1 for a task
    /// ahead.
    pub(super) fn start_next(&mut self, now: Time, device: DeviceId, idle: usize, out: &mut Outbox) -> bool {
        self.offers.clear();
        let runs = self.devices[device].running.is_some();
        let behind_batch = self.devices.runs_batch(device);
        if !behind_batch {
            self.drop_overtaken(now, device);
        }
        // A task that is queued behind another one starts later.
        let start = if runs { self.devices[device].free_at.max(now + self.way(device)) } else { now };
        let decision = Decision::new(&self.devices, if behind_batch { start } else { now }, device, idle);
        for id in (0..self.models.capacity() as u16).map(ModelId) {
            match self.models.find(id).map(|served| served.load.former) {
                None => {}
                Some(Former::Cells) => self.offer_cells(now, device, id),
                Some(Former::Batches | Former::Padded) => self.offer_batches(&decision, id),
            }
        }
        if self.offers.len() > 1 {
            self.look_out(start, device);
        }
        // Behind a batch, another device may be free before this one.
        let others_free = match behind_batch {
            true => (self.devices.frees_in(now, Some(device)) - (start - now)).max(Nanos::ZERO),
            false => decision.frees_in,
        };
        let chosen = arbiter::choose(start, &self.offers, others_free, self.load.utilisation)
            .or_else(|| self.offer_overdue(now, device, idle));
        let Some(chosen) = chosen else { return false };
        let TaskOffer { model, task, span, .. } = chosen;
        let is_cell = matches!(task, OfferedTask::Cell(_));
        if runs && (is_cell == behind_batch || is_cell && chosen.rows < chosen.max_rows) {
            // A step that is not full begins when the device is free: until then further requests
            // may join it. So does a task of the other kind.
            return false;
        }
        // With another idle device, the loser may start there in the same instant.
        if idle == 1 && !runs {
            self.explain_loss(&chosen);
        }
        if let OfferedTask::Cell(block) = task {
            self.start_cell(now, device, model, block, out);
            self.devices[device].free_at = start + span;
        } else {
            let cohort = self.open_offered(now, device, model, task);
            self.start_cohort((now, start), device, cohort, out);
        }
        true
    }

    /// Returns the cohort of an offered task, a new one unless it goes on.
    fn open_offered(&mut self, now: Time, device: DeviceId, model: ModelId, task: OfferedTask) -> CohortId {
        match task {
            OfferedTask::Batch { first, rows } => self.open_batch(now, device, model, first, rows),
            OfferedTask::Join { rows } => {
                let first = self.models.get(model).queue.head().expect("newcomers join");
                self.open_batch(now, device, model, first, rows)
            }
            OfferedTask::Group(number) => self.open_group(now, device, model, number),
            OfferedTask::Resume(cohort) => cohort,
            OfferedTask::Overdue => self.open_overdue(now, device, model),
            OfferedTask::Cell(_) => unreachable!("a step is in no cohort"),
        }
    }

    /// Starts the block of a cohort, which begins at `begins`, maybe behind another batch.
    fn start_cohort(&mut self, (now, begins): (Time, Time), device: DeviceId, cohort: CohortId, out: &mut Outbox) {
        let UnifiedScheduler { cohorts, cells: Cells { tasks, .. }, devices, models, requests, .. } = self;
        let held = cohorts.get(cohort);
        let (id, block, length) = (held.model, held.block, held.length);
        let task = cohorts.run(cohort, tasks, (device, LaneId(0)), false);
        let rows = requests.rows(tasks.members(task));
        let served = models.get_mut(id);
        served.own.load.costs.reach.on_start(block, rows);
        let of_block = &served.model.blocks[block.index()];
        let best = served.load.sizes.target.max(1);
        let own = served.load.of_task(of_block, rows, length);
        let best_case = served.load.of_task(of_block, best, length).scale(rows as u64, best as u64);
        let best_part = Permille::of(best_case, own).min(Permille::WHOLE);
        let (whole, _) = served.load.of_blocks(&served.model, block, rows, length);
        let state = &mut devices[device];
        state.free_at = begins + state.takes(whole);
        let profiled = of_block.cost(rows, length);
        let cohort = Some(cohort);
        state.hold_task(TaskInFlight { task, cohort, model: id, started: now, profiled, best_part });
        out.push(tasks.start(task, now));
    }
}
