//! The models on a lane's thread, and the execution of their tasks: of whole models and chains by
//! `task.rs`, of models that unfold by `cells`.

use crate::contract::account::DeviceCounters;
use crate::run::attached::Attached;
use crate::run::cells::{self, StepInFlight};
use crate::run::chain_state::WalkSlots;
use crate::run::gather::LaneModel;
use crate::run::plan::ModelPlan;
use crate::run::rerun::{CompletedTask, RerunTerms};
use crate::run::runner::{CellRunner, ReadyModel};
use crate::run::task::{PreparedTask, RanTask, TaskRun, check_task, prepare};
use crate::{ExecError, Loss, Task};
use ripieno_base::{BlockId, ModelId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A task that a lane has executed.
pub(crate) enum Executed {
    Completed(CompletedTask),
    /// The task has yet to be finished.
    Ran {
        ran: Box<RanTask>,
        /// Time to gather its batches.
        gathered: Duration,
        /// Time of the host that a task of the model needs between two computations, if it is a
        /// first block: to gather its batch, and to answer the batch before.
        host_time: Duration,
        /// Whether another thread may finish it.
        uses_second: bool,
    },
}

/// The models attached to one lane, and the request states on its device.
pub(crate) struct Worker {
    models: HashMap<ModelId, Result<Attached, ExecError>>,
    slots: WalkSlots,
    account: Arc<DeviceCounters>,
    /// See [`MIN_HOST_TIME`](crate::run::second_thread::MIN_HOST_TIME).
    min_host_time: Duration,
    /// Time of the next look for memory to give back; `None` if there is none.
    release_at: Option<Instant>,
    /// Whether a sampled row of a model may wait for its comparison.
    has_samples: bool,
    /// A model whose tasks use the second thread from now on, or no longer if it is `None`.
    ahead_change: Option<(ModelId, Option<LaneModel>)>,
}

impl Worker {
    pub(crate) fn new(account: Arc<DeviceCounters>, slots: WalkSlots, min_host_time: Duration) -> Worker {
        Worker {
            models: HashMap::new(),
            slots,
            account,
            min_host_time,
            release_at: None,
            has_samples: false,
            ahead_change: None,
        }
    }

    pub(crate) fn attach(&mut self, id: ModelId, attachment: u64, model: Result<ReadyModel, ExecError>) {
        self.detach(id);
        self.models.insert(id, model.map(|ready| Attached::new(ready, attachment)));
    }

    /// Removes a model and the states of its requests. Other lanes may still run some of these
    /// requests, and remove their states later.
    pub(crate) fn detach(&mut self, id: ModelId) {
        if let Some(Ok(attached)) = self.models.remove(&id) {
            self.slots.forget(attached.model.attachment);
        }
    }

    /// Returns the loss if the model's last task failed because an engine process was missing or
    /// ended.
    pub(crate) fn lost(&self, model: ModelId) -> Option<Loss> {
        self.models.get(&model)?.as_ref().ok()?.ready.down.get()
    }

    /// Returns the time from which
    /// [`release_memory_if_due`](Worker::release_memory_if_due) may find something.
    pub(crate) fn release_at(&self) -> Option<Instant> {
        self.release_at
    }

    /// Gives back the memory of models that have had no large batch for a while.
    pub(crate) fn release_memory_if_due(&mut self) {
        let now = Instant::now();
        if self.release_at.is_none_or(|at| at > now) {
            return;
        }
        for attached in self.models.values_mut().flatten() {
            if attached.release_at.is_some_and(|at| at <= now) {
                attached.release_memory();
            }
        }
        self.release_at = self.models.values().flatten().filter_map(|attached| attached.release_at).min();
    }

    /// Compares one sampled row of a model with its answer alone. Returns false if there is none.
    pub(crate) fn compare_row(&mut self) -> bool {
        let has_rows = |attached: &&mut Attached| attached.checks.has_rows();
        self.has_samples = self.models.values_mut().flatten().find(has_rows).is_some_and(Attached::compare_row);
        self.has_samples
    }

    /// Whether a sampled row waits for its comparison.
    pub(crate) fn has_samples(&self) -> bool {
        self.has_samples
    }

    /// Takes a change of whether tasks of a model use the second thread.
    pub(crate) fn take_ahead_change(&mut self) -> Option<(ModelId, Option<LaneModel>)> {
        self.ahead_change.take()
    }

    /// Notes the time that a task of a model took from the end of its run until its result was told
    /// and decided upon.
    pub(crate) fn note_answer(&mut self, model: ModelId, took: Duration) {
        if let Some(Ok(attached)) = self.models.get_mut(&model) {
            attached.note_answer(took);
        }
    }

    /// Runs a task, and notes when the memory that it used is to be given back.
    pub(crate) fn execute(
        &mut self,
        task: &Task,
        prepared: Option<Box<PreparedTask>>,
        ready: Instant,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Executed, ExecError> {
        let done = self.run_task(task, prepared, ready, stopped);
        self.note_end(task.model);
        done
    }

    /// Notes when the memory that a task has used is to be given back.
    fn note_end(&mut self, model: ModelId) {
        if let Some(Ok(attached)) = self.models.get_mut(&model) {
            let release_at = attached.note_batch(Instant::now());
            self.has_samples |= attached.checks.has_rows();
            self.release_at = Some(self.release_at.map_or(release_at, |at| at.min(release_at)));
        }
    }

    /// Returns the number of steps of a model that may be in flight; 0 if no device keeps its
    /// state.
    pub(crate) fn depth(&mut self, model: ModelId) -> usize {
        self.on_device(model).map_or(0, |(_, device)| device.depth())
    }

    /// Returns the plan and the runner of a model whose state is kept by a device.
    fn on_device(&mut self, model: ModelId) -> Option<(Arc<ModelPlan>, &mut dyn CellRunner)> {
        let attached = self.models.get_mut(&model)?.as_mut().ok()?;
        Some((Arc::clone(&attached.ready.plan), attached.ready.runner.on_device()?))
    }

    /// Launches the step of a task and does not wait for its end; see [`cells::launch`].
    pub(crate) fn launch(&mut self, task: &Task) -> Option<StepInFlight> {
        let (plan, device) = self.on_device(task.model)?;
        check_task(&plan, task).ok()?;
        cells::launch(&plan, plan.cells.as_deref()?, device, task).ok()
    }

    /// Waits until the oldest step in flight, of this model, has ended or `stop` returns true.
    /// Returns whether it has.
    pub(crate) fn wait(&mut self, model: ModelId, stop: &dyn Fn() -> bool) -> bool {
        self.on_device(model).is_none_or(|(_, device)| device.wait(stop))
    }

    /// Settles the oldest step in flight, which is the task's. The device began it at `started`.
    pub(crate) fn settle(
        &mut self,
        task: &Task,
        step: StepInFlight,
        started: Instant,
    ) -> Result<CompletedTask, ExecError> {
        let account = Arc::clone(&self.account);
        if let Some(Ok(attached)) = self.models.get(&task.model) {
            attached.ready.down.clear();
        }
        let device = self.on_device(task.model).and_then(|(plan, device)| Some((plan.cells.clone()?, device)));
        let (cells, device) = device.ok_or_else(|| ExecError("the model was detached".to_owned()))?;
        let done = cells::settle(&cells, device, task, step.begun(started), &account);
        self.note_end(task.model);
        done
    }

    fn run_task(
        &mut self,
        task: &Task,
        prepared: Option<Box<PreparedTask>>,
        ready: Instant,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Executed, ExecError> {
        let attached = match self.models.get_mut(&task.model) {
            Some(Ok(attached)) => attached,
            Some(Err(cause)) => return Err(cause.clone()),
            None => return Err(ExecError(format!("model {} is not attached to this device", task.model.0))),
        };
        let down = attached.ready.down.clone();
        down.clear();
        // The batch is not run again after a process ended, because the member that ended it would
        // end the next process as well.
        let stopped = || stopped() || down.get().is_some();
        if let Some(cells) = attached.model.plan.cells.clone() {
            let plan = Arc::clone(&attached.model.plan);
            let block = check_task(&plan, task)?;
            let alone = || plan.sharing.is_stopped();
            let terms = RerunTerms { ready, until: &|at| task.members[at].until, stopped: &stopped, alone: &alone };
            let (runner, mut buffers) = (&mut attached.ready.runner, attached.model.buffers.take(block));
            let done = cells::execute(&plan, &cells, runner, buffers.set_mut(), task, &terms, &self.account);
            return done.map(Executed::Completed);
        }
        let prepared = prepared.and_then(|prepared| prepared.resumed(attached.model.attachment));
        let prepared = prepared.map_or_else(|| prepare(&attached.model, task, &self.slots), Ok)?;
        let run = TaskRun { attached, slots: &self.slots, account: &self.account, ready, stopped: &stopped };
        let ran = prepared.run(task, run)?;
        let (gathered, mut host_time) = (ran.gathered(), Duration::ZERO);
        if task.block == BlockId(0) {
            host_time = attached.note_gather(gathered);
            if let Some(pays) = attached.needs_second_thread(self.min_host_time) {
                self.ahead_change = Some((task.model, pays.then(|| attached.model.clone())));
            }
        }
        let uses_second = attached.uses_second_thread && ran.is_last_block(task);
        Ok(Executed::Ran { ran: Box::new(ran), gathered, host_time, uses_second })
    }
}
