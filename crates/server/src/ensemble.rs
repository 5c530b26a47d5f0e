//! A request to an ensemble: its steps are requests of their own, each sent off once what it needs is there.
//!
//! All of it happens in the future of the client's call, between two waits for an answer: there is no task, queue or thread of its
//! own. So one answer comes of it, and whoever drops the call withdraws every step that is under way. The scheduler sees steps as
//! it sees any request, and orders them by when they are due: the deadline of the whole, less what is reserved for the steps after.

use crate::backend::{Backend, Withdraw};
use crate::bounds::budget::{Budget, Reservation};
use crate::check::{Wanted, answer_bytes, inputs, rows, wire_datatype};
use crate::problem::{Kind, Problem};
use crate::state::State;
use ripieno_base::Nanos;
use ripieno_executor::Tensor;
use ripieno_model::{Progress, reserve};
use ripieno_repository::ensemble::Ensemble;
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{Answer, Answered, Ending, Failure, Job};
use ripieno_wire::{Form, Parameters, WireTensor};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// What is asked of an ensemble.
pub(crate) struct Whole {
    pub(crate) ensemble: Arc<Ensemble>,
    pub(crate) entry: Arc<ServedEntry>,
    pub(crate) rows: usize,
    /// The request's own limit.
    pub(crate) timeout: Option<Duration>,
    pub(crate) client: u16,
    pub(crate) priority: u8,
}

/// A request under way. Dropping it withdraws its steps.
pub(crate) struct Run {
    whole: Whole,
    backend: Arc<dyn Backend>,
    budget: Arc<Budget>,
    begun: Instant,
    /// The models of the steps.
    members: Vec<Arc<ServedEntry>>,
    /// By step, what it takes alone, and what comes after it.
    alone: Vec<Nanos>,
    after: Vec<Nanos>,
    progress: Progress,
    /// Tensors by their name in the ensemble, in the shapes that clients see.
    tensors: BTreeMap<String, Tensor>,
    /// What the outputs of steps take.
    rooms: Vec<Reservation>,
    send: Sender<(usize, Answer)>,
    answers: Receiver<(usize, Answer)>,
    /// By step, while it is under way.
    withdraws: Vec<Option<Withdraw>>,
    queued: Nanos,
    executed: Nanos,
    /// Until it has been counted.
    under_way: Option<Arc<()>>,
}

impl Run {
    /// Begins with the steps that need nothing but the inputs.
    pub(crate) fn begin(state: &State, budget: &Arc<Budget>, whole: Whole, given: &[Tensor]) -> Result<Run, Problem> {
        let (ensemble, steps) = (whole.ensemble.clone(), whole.ensemble.steps.len());
        let member = |(at, step): (usize, &ripieno_repository::ensemble::EnsembleStep)| {
            let member = state.registry.get(&step.model, &step.version);
            member.map_err(|error| of_step(&whole.entry, at, &step.model, Problem::from(error)))
        };
        let members = ensemble.steps.iter().enumerate().map(member).collect::<Result<Vec<_>, _>>()?;
        let alone: Vec<Nanos> = members.iter().map(|member| member.one_row.unwrap_or(Nanos::ZERO)).collect();
        let tensors = given.iter().map(|tensor| (tensor.name.to_string(), outside(&whole.entry, tensor.clone())));
        let (send, answers) = channel(steps);
        let mut run = Run {
            backend: state.backend.clone(),
            budget: budget.clone(),
            begun: Instant::now(),
            members,
            after: ensemble.graph.after(&alone),
            alone,
            progress: Progress::default(),
            tensors: tensors.collect(),
            rooms: Vec::new(),
            send,
            answers,
            withdraws: (0..steps).map(|_| None).collect(),
            queued: Nanos::ZERO,
            executed: Nanos::ZERO,
            under_way: Some(ensemble.begin()),
            whole,
        };
        run.begin_steps().inspect_err(|problem| run.count_failure(problem.kind))?;
        Ok(run)
    }

    /// Waits for the last step.
    pub(crate) async fn answer(&mut self) -> Result<Answered, Problem> {
        let answered = self.walk().await;
        match &answered {
            Ok(answered) => self.count_success(answered),
            Err(problem) => self.count_failure(problem.kind),
        }
        answered
    }

    async fn walk(&mut self) -> Result<Answered, Problem> {
        while !self.progress.is_over(&self.whole.ensemble.graph) {
            let (step, answer) = self.answers.recv().await.ok_or_else(Problem::lost)?;
            self.withdraws[step] = None;
            let answered = answer.map_err(|failure| self.failed(step, failure))?;
            self.queued += answered.queued;
            self.executed += answered.executed;
            self.take(step, answered.outputs);
            self.progress.end(step);
            self.begin_steps()?;
        }
        self.outputs()
    }

    fn begin_steps(&mut self) -> Result<(), Problem> {
        let ensemble = self.whole.ensemble.clone();
        while let Some(step) = self.progress.begin_next(&ensemble.graph) {
            self.begin_step(step)
                .map_err(|problem| of_step(&self.whole.entry, step, &ensemble.steps[step].model, problem))?;
        }
        Ok(())
    }

    fn begin_step(&mut self, step: usize) -> Result<(), Problem> {
        let (member, maps) = (self.members[step].clone(), &self.whole.ensemble.steps[step]);
        let input = |(name, tensor): (&String, &String)| {
            let Tensor { datatype, shape, data, .. } = self.tensors.get(tensor).ok_or_else(Problem::lost)?.clone();
            let (datatype, parameters) = (wire_datatype(datatype), Parameters::default());
            Ok(WireTensor { name: name.clone(), datatype, shape, data, parameters, is_slice: true, place: None })
        };
        let given = maps.inputs.iter().map(input).collect::<Result<Vec<_>, Problem>>()?;
        let inputs = inputs(&member, given)?;
        let rows = rows(&member, &inputs)?;
        let all = (0..member.outputs.len()).map(|index| Wanted { index, form: Form::Elsewhere, classes: None });
        self.rooms.push(self.budget.reserve(answer_bytes(&member, rows, all))?);
        let (timeout, stage) = self.limits(step)?;
        let model = member.id.ok_or_else(Problem::lost)?;
        let send = self.send.clone();
        // The receiver may be gone with its client. There is room for one answer of each step.
        let on_answer = Box::new(move |answer| drop(send.try_send((step, answer))));
        let (client, priority) = (self.whole.client, self.whole.priority);
        let job = Job { model, inputs, rows, timeout, stage, client, priority, on_step: None, on_answer };
        let withdraw = self.backend.submit(job).map_err(|refused| Problem::of_refusal(refused, &member.name))?;
        self.withdraws[step] = Some(withdraw);
        Ok(())
    }

    /// What a step has of the request's own limit, and of the latency target of the whole if that is kept.
    fn limits(&self, step: usize) -> Result<(Option<Duration>, Option<Duration>), Problem> {
        let Whole { entry, timeout, .. } = &self.whole;
        let target = (!entry.slo.answer_late).then(|| duration(entry.slo.span));
        let spent = self.begun.elapsed();
        let share = |whole: Duration| {
            let left = whole.checked_sub(spent).filter(|left| !left.is_zero());
            let left = left.ok_or_else(|| self.too_late(step))?;
            let nanos = Nanos(i64::try_from(left.as_nanos()).unwrap_or(i64::MAX));
            Ok::<_, Problem>(left.saturating_sub(duration(reserve(nanos, self.alone[step], self.after[step]))))
        };
        Ok((timeout.map(share).transpose()?, target.map(share).transpose()?))
    }

    fn take(&mut self, step: usize, outputs: Vec<Tensor>) {
        let (member, maps) = (&self.members[step], &self.whole.ensemble.steps[step].outputs);
        for tensor in outputs {
            if let Some(name) = maps.get(&*tensor.name) {
                self.tensors.insert(name.clone(), outside(member, tensor));
            }
        }
    }

    fn outputs(&mut self) -> Result<Answered, Problem> {
        let Whole { entry, rows, .. } = &self.whole;
        let output = |spec: &ripieno_model::TensorSpec| {
            let tensor = self.tensors.remove(&spec.name);
            let lost = || format!("ensemble '{}' gave no output '{}', which it declares", entry.name, spec.name);
            let mut tensor = tensor.ok_or_else(|| Problem::new(Kind::Internal, lost()))?;
            tensor.name = spec.name.as_str().into();
            if !entry.batched {
                tensor.shape.insert(0, 1);
            }
            Ok(tensor)
        };
        let outputs = entry.outputs.iter().map(output).collect::<Result<_, Problem>>()?;
        let late = self.begun.elapsed() > duration(entry.slo.span);
        Ok(Answered { outputs, queued: self.queued, executed: self.executed, batch: *rows, late })
    }

    fn failed(&self, step: usize, failure: Failure) -> Problem {
        let model = &self.whole.ensemble.steps[step].model;
        match failure {
            Failure::Expired | Failure::Hopeless
                if self.whole.timeout.is_some() || !self.whole.entry.slo.answer_late =>
            {
                of_step(&self.whole.entry, step, model, self.too_late(step))
            }
            failure => {
                let problem = Problem::of_failure(failure, &self.members[step], self.whole.rows, None);
                of_step(&self.whole.entry, step, model, problem)
            }
        }
    }

    /// It cannot be in time any more: what the whole had, what its longest way needs, and the key.
    fn too_late(&self, step: usize) -> Problem {
        let Whole { entry, timeout, ensemble, .. } = &self.whole;
        let target = (!entry.slo.answer_late).then(|| duration(entry.slo.span));
        let (had, fix) = match (*timeout, target) {
            (Some(own), target) if target.is_none_or(|target| own < target) => {
                (format!("{own:?} (the request's own timeout)"), "give the request more time")
            }
            (_, target) => (
                format!("{:?} ({})", target.unwrap_or_default(), entry.slo.origin.key()),
                "raise the parameter slo_ms in its config.pbtxt",
            ),
        };
        let (needed, rest) = (ensemble.graph.longest(&self.alone), self.alone[step] + self.after[step]);
        Problem::new(
            Kind::Expired,
            format!(
                "Request timeout expired: the ensemble had {had}, of which {:?} were over; from here on it needs {:?} on idle \
                 devices, and {:?} in all; {fix}",
                self.begun.elapsed(),
                duration(rest),
                duration(needed)
            ),
        )
    }

    fn count_success(&mut self, answered: &Answered) {
        if self.under_way.take().is_some() {
            let Answered { late, queued, executed, .. } = *answered;
            self.whole.ensemble.metrics.on_success(late, self.whole.rows, self.spent(), queued, executed);
        }
    }

    fn count_failure(&mut self, kind: Kind) {
        let ending = match kind {
            Kind::Overloaded | Kind::TooLarge => {
                return self.under_way.take().map_or((), |_| self.whole.ensemble.metrics.on_refused());
            }
            Kind::Expired => Ending::Expired,
            Kind::Cancelled => Ending::Cancelled,
            Kind::Unavailable => Ending::Outage,
            _ => Ending::Failed,
        };
        if self.under_way.take().is_some() {
            self.whole.ensemble.metrics.on_failure(ending, self.spent());
        }
    }

    fn spent(&self) -> Nanos {
        Nanos(i64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

impl Drop for Run {
    /// A client that has gone, or a step that has failed, leaves nobody to wait for the others.
    fn drop(&mut self) {
        self.count_failure(Kind::Cancelled);
        self.withdraws.iter_mut().filter_map(Option::take).for_each(|withdraw| withdraw());
    }
}

/// A tensor of this model in the shape that clients see.
fn outside(entry: &ServedEntry, tensor: Tensor) -> Tensor {
    Tensor { shape: entry.to_clients(&tensor.name, &tensor.shape), ..tensor }
}

fn of_step(entry: &ServedEntry, step: usize, model: &str, problem: Problem) -> Problem {
    let message = format!("ensemble '{}', step {step} (model '{model}'): {}", entry.name, problem.message);
    Problem { retry_after: problem.retry_after, ..Problem::new(problem.kind, message) }
}

fn duration(span: Nanos) -> Duration {
    Duration::from_nanos(span.0.max(0).unsigned_abs())
}
