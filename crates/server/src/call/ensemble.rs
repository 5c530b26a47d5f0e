//! Execution of a request to an ensemble: each step is a separate request, submitted once its
//! inputs are available.
//!
//! Everything happens in the future of the client's call, without a task, queue or thread of its
//! own. Dropping the call therefore withdraws every step in flight. The scheduler treats steps like
//! any request and orders them by deadline: the ensemble's, minus the time reserved for later
//! steps.

use crate::backend::{Backend, Withdraw};
use crate::call::check::{OutputSelection, answer_bytes, inputs, rows};
use crate::durations::rounded;
use crate::limits::budget::{MemoryBudget, Reservation};
use crate::problem::{Problem, ProblemKind};
use crate::state::ServerState;
use ripieno_base::Nanos;
use ripieno_executor::Tensor;
use ripieno_model::{StepProgress, reserve};
use ripieno_repository::ensemble::Ensemble;
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{Ending, Failure, Job, JobOutput, JobResult};
use ripieno_wire::{OutputEncoding, Parameters, WireTensor};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// A request to an ensemble.
pub(crate) struct EnsembleCall {
    pub(crate) ensemble: Arc<Ensemble>,
    pub(crate) entry: Arc<ServedEntry>,
    pub(crate) rows: usize,
    /// Time limit of the request.
    pub(crate) timeout: Option<Duration>,
    pub(crate) client: u16,
    pub(crate) priority: u8,
}

/// Execution of a request. Dropping it withdraws its steps.
pub(crate) struct EnsembleRun {
    call: EnsembleCall,
    backend: Arc<dyn Backend>,
    budget: Arc<MemoryBudget>,
    begun: Instant,
    /// Models of the steps.
    members: Vec<Arc<ServedEntry>>,
    /// Per step: its latency on an idle device, and the latency of the steps after it.
    step_latency: Vec<Nanos>,
    latency_after: Vec<Nanos>,
    progress: StepProgress,
    /// Tensors by their name in the ensemble, in client shapes.
    tensors: BTreeMap<String, Tensor>,
    /// Reservations of the steps' outputs.
    rooms: Vec<Reservation>,
    send: Sender<(usize, JobResult)>,
    answers: Receiver<(usize, JobResult)>,
    /// Withdrawal of each step in flight.
    withdraws: Vec<Option<Withdraw>>,
    queued: Nanos,
    executed: Nanos,
    /// In-flight token; taken when the request is counted as finished.
    under_way: Option<Arc<()>>,
}

impl EnsembleRun {
    /// Submits the steps that need only the inputs.
    pub(crate) fn begin(
        state: &ServerState,
        budget: &Arc<MemoryBudget>,
        whole: EnsembleCall,
        given: &[Tensor],
    ) -> Result<EnsembleRun, Problem> {
        let (ensemble, steps) = (whole.ensemble.clone(), whole.ensemble.steps.len());
        let member = |(at, step): (usize, &ripieno_repository::ensemble::EnsembleStep)| {
            let member = state.registry.get(&step.model, &step.version);
            member.map_err(|error| step_problem(&whole.entry, at, &step.model, Problem::from(error)))
        };
        let members = ensemble.steps.iter().enumerate().map(member).collect::<Result<Vec<_>, _>>()?;
        let alone: Vec<Nanos> = members.iter().map(|member| member.one_row.unwrap_or(Nanos::ZERO)).collect();
        let tensors =
            given.iter().map(|tensor| (tensor.name.to_string(), to_client_shape(&whole.entry, tensor.clone())));
        let (send, answers) = channel(steps);
        let mut run = EnsembleRun {
            backend: state.backend.clone(),
            budget: budget.clone(),
            begun: Instant::now(),
            members,
            latency_after: ensemble.graph.after(&alone),
            step_latency: alone,
            progress: StepProgress::default(),
            tensors: tensors.collect(),
            rooms: Vec::new(),
            send,
            answers,
            withdraws: (0..steps).map(|_| None).collect(),
            queued: Nanos::ZERO,
            executed: Nanos::ZERO,
            under_way: Some(ensemble.begin()),
            call: whole,
        };
        run.begin_steps().inspect_err(|problem| run.count_failure(problem.kind))?;
        Ok(run)
    }

    /// Waits for the last step.
    pub(crate) async fn answer(&mut self) -> Result<JobOutput, Problem> {
        let answered = self.run_steps().await;
        match &answered {
            Ok(answered) => self.count_success(answered),
            Err(problem) => self.count_failure(problem.kind),
        }
        answered
    }

    async fn run_steps(&mut self) -> Result<JobOutput, Problem> {
        while !self.progress.is_over(&self.call.ensemble.graph) {
            let (step, answer) = self.answers.recv().await.ok_or_else(Problem::lost)?;
            self.withdraws[step] = None;
            let answered = answer.map_err(|failure| self.failed(step, failure))?;
            self.queued += answered.queued;
            self.executed += answered.executed;
            self.store_outputs(step, answered.outputs);
            self.progress.end(step);
            self.begin_steps()?;
        }
        self.outputs()
    }

    fn begin_steps(&mut self) -> Result<(), Problem> {
        let ensemble = self.call.ensemble.clone();
        while let Some(step) = self.progress.begin_next(&ensemble.graph) {
            self.begin_step(step)
                .map_err(|problem| step_problem(&self.call.entry, step, &ensemble.steps[step].model, problem))?;
        }
        Ok(())
    }

    fn begin_step(&mut self, step: usize) -> Result<(), Problem> {
        let (member, maps) = (self.members[step].clone(), &self.call.ensemble.steps[step]);
        let input = |(name, tensor): (&String, &String)| {
            let Tensor { datatype, shape, data, .. } = self.tensors.get(tensor).ok_or_else(Problem::lost)?.clone();
            let (datatype, parameters) = (datatype, Parameters::default());
            Ok(WireTensor {
                name: name.clone(),
                datatype,
                shape,
                data,
                parameters,
                is_slice: true,
                shared_memory: None,
            })
        };
        let given = maps.inputs.iter().map(input).collect::<Result<Vec<_>, Problem>>()?;
        let inputs = inputs(&member, given)?;
        let rows = rows(&member, &inputs)?;
        let all = (0..member.outputs.len()).map(|index| OutputSelection {
            index,
            encoding: OutputEncoding::SharedMemory,
            classes: None,
        });
        self.rooms.push(self.budget.reserve(answer_bytes(&member, rows, all))?);
        let (timeout, stage) = self.limits(step)?;
        let model = member.id.ok_or_else(Problem::lost)?;
        let send = self.send.clone();
        // The receiver may be gone with its client. The channel has room for one answer per step.
        let on_answer = Box::new(move |answer| drop(send.try_send((step, answer))));
        let (client, priority) = (self.call.client, self.call.priority);
        let job = Job { model, inputs, rows, timeout, stage, client, priority, on_step: None, on_answer };
        let refused = |failure| Problem::of_failure(failure, &member, self.call.rows, None);
        let withdraw = self.backend.submit(job).map_err(refused)?;
        self.withdraws[step] = Some(withdraw);
        Ok(())
    }

    /// Returns the step's part of the request's time limit, and of the ensemble's latency target if
    /// late requests are refused.
    fn limits(&self, step: usize) -> Result<(Option<Duration>, Option<Duration>), Problem> {
        let EnsembleCall { entry, timeout, .. } = &self.call;
        let target = (!entry.slo.answer_late).then(|| duration(entry.slo.span));
        let spent = self.begun.elapsed();
        let share = |whole: Duration| {
            let left = whole.checked_sub(spent).filter(|left| !left.is_zero());
            let left = left.ok_or_else(|| self.too_late(step))?;
            let nanos = Nanos(i64::try_from(left.as_nanos()).unwrap_or(i64::MAX));
            Ok::<_, Problem>(left.saturating_sub(duration(reserve(
                nanos,
                self.step_latency[step],
                self.latency_after[step],
            ))))
        };
        Ok((timeout.map(share).transpose()?, target.map(share).transpose()?))
    }

    fn store_outputs(&mut self, step: usize, outputs: Vec<Tensor>) {
        let (member, maps) = (&self.members[step], &self.call.ensemble.steps[step].outputs);
        for tensor in outputs {
            if let Some(name) = maps.get(&*tensor.name) {
                self.tensors.insert(name.clone(), to_client_shape(member, tensor));
            }
        }
    }

    fn outputs(&mut self) -> Result<JobOutput, Problem> {
        let EnsembleCall { entry, rows, .. } = &self.call;
        let output = |spec: &ripieno_model::TensorSpec| {
            let tensor = self.tensors.remove(&spec.name);
            let lost = || format!("ensemble '{}' gave no output '{}', which it declares", entry.name, spec.name);
            let mut tensor = tensor.ok_or_else(|| Problem::new(ProblemKind::Internal, lost()))?;
            tensor.name = spec.name.as_str().into();
            if !entry.batched {
                tensor.shape.insert(0, 1);
            }
            Ok(tensor)
        };
        let outputs = entry.outputs.iter().map(output).collect::<Result<_, Problem>>()?;
        let late = self.begun.elapsed() > duration(entry.slo.span);
        Ok(JobOutput { outputs, queued: self.queued, executed: self.executed, batch: *rows, late })
    }

    fn failed(&self, step: usize, failure: Failure) -> Problem {
        let limited = self.call.timeout.is_some() || !self.call.entry.slo.answer_late;
        let problem = match ProblemKind::of(&failure) {
            ProblemKind::Expired if limited => self.too_late(step),
            _ => Problem::of_failure(failure, &self.members[step], self.call.rows, None),
        };
        step_problem(&self.call.entry, step, &self.call.ensemble.steps[step].model, problem)
    }

    /// Returns the error for a request that cannot meet its deadline: its limit, the latency of the
    /// longest path, and the key to change.
    fn too_late(&self, step: usize) -> Problem {
        let EnsembleCall { entry, timeout, ensemble, .. } = &self.call;
        let target = (!entry.slo.answer_late).then(|| duration(entry.slo.span));
        let (had, fix) = match (*timeout, target) {
            (Some(own), target) if target.is_none_or(|target| own < target) => {
                (format!("{:?} (the request's own timeout)", rounded(own)), "give the request more time")
            }
            (_, target) => (
                format!("{:?} ({})", rounded(target.unwrap_or_default()), entry.slo.origin.key()),
                "raise the parameter slo_ms in its config.pbtxt",
            ),
        };
        let (needed, rest) =
            (ensemble.graph.critical_path(&self.step_latency), self.step_latency[step] + self.latency_after[step]);
        Problem::new(
            ProblemKind::Expired,
            format!(
                "Request timeout expired: the ensemble had {had}, of which {:?} were over; from here on it needs {:?} on idle \
                 devices, and {:?} in all; {fix}",
                rounded(self.begun.elapsed()),
                rounded(duration(rest)),
                rounded(duration(needed))
            ),
        )
    }

    fn count_success(&mut self, answered: &JobOutput) {
        if self.under_way.take().is_some() {
            let JobOutput { late, queued, executed, .. } = *answered;
            self.call.ensemble.metrics.on_success(late, self.call.rows, self.spent(), queued, executed);
        }
    }

    fn count_failure(&mut self, kind: ProblemKind) {
        let ending = match kind {
            ProblemKind::Overloaded | ProblemKind::TooLarge => {
                return self.under_way.take().map_or((), |_| self.call.ensemble.metrics.on_refused());
            }
            ProblemKind::Expired => Ending::Expired,
            ProblemKind::Cancelled => Ending::Cancelled,
            ProblemKind::Unavailable => Ending::Outage,
            _ => Ending::Failed,
        };
        if self.under_way.take().is_some() {
            self.call.ensemble.metrics.on_failure(ending, self.spent());
        }
    }

    fn spent(&self) -> Nanos {
        Nanos(i64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

impl Drop for EnsembleRun {
    /// Counts an unfinished request as cancelled and withdraws its steps.
    fn drop(&mut self) {
        self.count_failure(ProblemKind::Cancelled);
        self.withdraws.iter_mut().filter_map(Option::take).for_each(|withdraw| withdraw());
    }
}

/// Converts a tensor of this model into the client shape.
fn to_client_shape(entry: &ServedEntry, tensor: Tensor) -> Tensor {
    Tensor { shape: entry.to_clients(&tensor.name, &tensor.shape), ..tensor }
}

fn step_problem(entry: &ServedEntry, step: usize, model: &str, problem: Problem) -> Problem {
    let message = format!("ensemble '{}', step {step} (model '{model}'): {}", entry.name, problem.message);
    Problem { retry_after: problem.retry_after, ..Problem::new(problem.kind, message) }
}

fn duration(span: Nanos) -> Duration {
    Duration::from_nanos(span.0.max(0).unsigned_abs())
}
