//! The arrivals of a live run as a scenario: arrivals are repeated, decisions are made again.
//!
//! It reads the events of a recording one by one. Requests, graphs and models are taken as
//! recorded. Facts that the scheduler could not know in advance, the end of a decoder's output and
//! the route through a chain, are collected from the ends of tasks. A rejected request never
//! revealed them, so it takes the facts of a finished request of its model, in turn.
//!
//! Delays of the machine are kept, too: the time at which the scheduler received each request, and
//! the report of each task's end relative to its profile (`tasks.rs`). The recorded policy,
//! simulated, therefore reproduces the measurement, and another policy meets the same pauses of the
//! same machine.

mod check;
mod tasks;

use crate::changing::ModelLoad;
use crate::jitter::Jitter;
use crate::link::{Delay, Network};
use crate::occupancy::Occupancy;
use crate::planning::Planning;
use crate::route::{Arrival, Route};
use crate::scenario::{Length, Scenario};
use crate::world::{QueueBound, expires};
use ripieno_base::{BlockId, ModelId, Nanos, RequestSlot, Time};
use ripieno_calibration::Margin;
use ripieno_model::{Extent, Graph, Model, Profile, Steps};
use ripieno_report::{Collector, ObservationWindow, RunInfo, Summary};
use ripieno_sched::{Action, Control, Event, Limits, Options, Outcome, Request, Setup};
use ripieno_workload::ArrivalProcess as Process;
use std::collections::HashMap;
use tasks::{RecordedTasks, StartedSize, TaskMembers};

/// Upper bound on the requests of a recording, some 3 GB of memory; more are a mistake, or a file
/// to be cut.
const MOST_REQUESTS: usize = 1 << 24;

/// A recording that is being converted to a scenario.
#[derive(Clone, Debug)]
pub struct Recorded {
    models: Vec<RecordedModel>,
    /// Index of each loaded model, by its id at this point of the recording.
    loaded: HashMap<ModelId, usize>,
    requests: Vec<RecordedRequest>,
    graphs: Vec<Graph>,
    /// The graph of the next request in a slot.
    graph_of_next: HashMap<RequestSlot, u32>,
    live: HashMap<RequestSlot, usize>,
    tasks: RecordedTasks,
    now: Time,
    events: u64,
}

/// A model, and the margin of its deadlines.
#[derive(Clone, Debug)]
struct RecordedModel {
    model: Model,
    /// Time by which deadlines preceded the real ones, from the latest request with the full SLO.
    ahead: Nanos,
}

/// A recorded request.
#[derive(Clone, Debug)]
struct RecordedRequest {
    arrival: Arrival,
    /// The client's own time limit, if it was shorter than the SLO.
    limit: Option<Nanos>,
    /// Time of its end; `None` if the recording ends before.
    ended: Option<Time>,
    /// True if the request ended with an answer.
    finished: bool,
}

impl Recorded {
    /// Creates the recording of a run that began with this setup.
    pub fn new(setup: &Setup) -> Result<Recorded, String> {
        check::limits(setup)?;
        let mut recorded = Recorded {
            models: Vec::new(),
            loaded: HashMap::new(),
            requests: Vec::new(),
            graphs: Vec::new(),
            graph_of_next: HashMap::new(),
            live: HashMap::new(),
            tasks: RecordedTasks::new(&setup.limits),
            now: Time(i64::MIN),
            events: 0,
        };
        for (id, model) in (0..).map(ModelId).zip(&setup.models) {
            recorded.load(id, model)?;
        }
        Ok(recorded)
    }

    /// Adds the next event with its time. Returns an error if it contradicts earlier events.
    pub fn event(&mut self, now: Time, event: &Event) -> Result<(), String> {
        check::instant(self.now, now)?;
        self.now = now;
        self.events += u64::from(!matches!(event, Event::Settle { .. }));
        match event {
            Event::Graph { request, graph } => {
                self.graph_of_next.insert(*request, self.graphs.len() as u32);
                self.graphs.push(graph.clone());
            }
            Event::Request(request) => self.request(request)?,
            Event::TaskDone { task, outcome, ended, skips } => {
                let task = self.tasks.end(*task, now, *outcome)?;
                if *outcome == Outcome::Ok {
                    self.done(&task, ended, skips);
                }
            }
            Event::Control(Control::ModelLoaded(id, model)) => self.load(*id, model)?,
            Event::Control(Control::ModelUnloaded(id)) => {
                self.loaded.remove(id);
            }
            Event::Control(Control::ProfileReplaced { model, block, profile }) => {
                check::profile(profile)?;
                self.replace_profile(*model, *block, profile)?;
            }
            Event::Control(_) | Event::Grant(_) => {}
            Event::Settle { actions, members, nodes } => self.settle(actions, members, nodes)?,
        }
        Ok(())
    }

    /// Applies a corrected profile. The effect of a longer one is already part of the measured
    /// delays of tasks, so only a profile by which tasks may end earlier is applied.
    fn replace_profile(&mut self, model: ModelId, block: BlockId, profile: &Profile) -> Result<(), String> {
        let at = self.model(model)?;
        let mut changed = self.models[at].model.clone();
        let replaced = changed.blocks.get_mut(block.index()).ok_or_else(|| format!("{model:?} has no {block:?}"))?;
        if profile.latency(1) < replaced.profile.latency(1) {
            replaced.replace_profile(profile.clone());
            check::model(&changed)?;
            self.models[at].model = changed;
            // Measured delays may have been errors of the replaced profile.
            self.tasks.forget_reports(|model| model.index() == at);
        }
        Ok(())
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Returns the models, each in its latest form.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.models.iter().map(|seen| &seen.model)
    }

    /// Sets the SLO of every model. Shorter time limits of clients are kept.
    pub fn set_slo(&mut self, slo: Nanos) {
        self.models.iter_mut().for_each(|seen| seen.model.slo = slo);
    }

    /// Sets the SLO of one model. Returns false if the recording has no such model.
    pub fn set_slo_of(&mut self, model: &str, slo: Nanos) -> bool {
        let found = self.models.iter_mut().find(|seen| seen.model.name == model);
        found.map(|seen| seen.model.slo = slo).is_some()
    }

    /// Sets the largest batch of one model, as far as its profile and its largest request go.
    /// Returns false if the recording has no such model.
    pub fn set_max_batch(&mut self, model: &str, rows: usize) -> bool {
        let Some(seen) = self.models.iter_mut().find(|seen| seen.model.name == model) else { return false };
        let most = seen.model.blocks.iter().map(ripieno_model::Block::max_batch).min().unwrap_or(1);
        seen.model.max_batch = rows.clamp(1, most);
        true
    }

    /// Removes the delays of the machine: tasks take the profiled time, and the scheduler receives
    /// requests as they arrive.
    pub fn set_exact(&mut self) {
        self.tasks.forget_reports(|_| true);
        self.requests.iter_mut().for_each(|came| came.arrival.at = came.arrival.arrived);
        self.requests.sort_by_key(|came| came.arrival.at);
    }

    /// Returns the measured statistics from the scheduler's view: an answer counts when its last
    /// task was reported, requests whose clients got an error at the deadline count as dropped, and
    /// requests that had not ended are not counted.
    pub fn measured(&self, policy: &str) -> Summary {
        let names = self.models.iter().map(|seen| seen.model.name.clone());
        let (first, last) = self.span();
        let mut collector =
            Collector::new(names, self.tasks.devices(), self.tasks.most_rows(), ObservationWindow::from(first));
        for came in &self.requests {
            let Arrival { model, arrived, deadline, .. } = came.arrival;
            let Some(ended) = came.ended else { continue };
            let lost = ended > deadline && expires(&self.models[model.index()].model);
            match came.finished && !lost {
                true => collector.record_answer(model, arrived, deadline, ended),
                false => collector.record_drop(model, arrived),
            }
        }
        for batch in self.tasks.batches() {
            let end = batch.ended.min(last.max(batch.began));
            collector.record_batch(batch.model, batch.rows as usize, batch.device, batch.began, end);
        }
        let info = RunInfo { policy: policy.to_owned(), events: self.events, ..RunInfo::default() };
        collector.finish(last, info)
    }

    /// Converts the recording to a scenario under this policy, with the server's admission control
    /// and margins. `limits` are the bounds of a server with this policy and all its devices.
    pub fn scenario(mut self, policy: &str, options: Options, limits: Limits) -> Result<Scenario, String> {
        if self.requests.is_empty() {
            return Err("the recording holds no request, so there is nothing to simulate".to_owned());
        }
        self.guess_hidden();
        let (first, _) = self.span();
        let slo = |model: ModelId| self.models[model.index()].model.slo;
        let since = |time: Time| Time::ORIGIN + (time - first);
        let arrival = |came: &RecordedRequest| {
            let (arrived, slo) = (since(came.arrival.arrived), slo(came.arrival.model));
            let deadline = arrived + came.limit.map_or(slo, |limit| limit.min(slo));
            Arrival { at: since(came.arrival.at), arrived, deadline, ..came.arrival }
        };
        let requests: Vec<_> = self.requests.iter().map(arrival).collect();
        let reports = self.tasks.reports().into_iter().map(|(ended, heard)| (since(ended), since(heard))).collect();
        let models: Vec<_> = self.models.into_iter().map(|seen| seen.model).collect();
        let load = ModelLoad { share: 1.0 / models.len() as f64, arrival: Process::Poisson, curve: None };
        Ok(Scenario {
            seed: 1,
            rate: None,
            length: Length::Requests(requests.len() as u64),
            warmup_fraction: 0.0,
            policy: policy.to_owned(),
            policy_options: options,
            admission: true,
            check: true,
            requests: Some(requests),
            loads: vec![load; models.len()],
            ensembles: Vec::new(),
            network: Network { control: Delay::Fixed(Nanos::ZERO), data_per_row: Nanos::ZERO, estimate: Nanos::ZERO },
            decision: Nanos::ZERO,
            jitter: Jitter::default(),
            occupancy: Occupancy::default(),
            reports,
            margins: true,
            planning: Planning::default(),
            bounded: true,
            queues: vec![QueueBound::Unbounded; models.len()],
            walks: vec![None; models.len()],
            routes: vec![None; models.len()],
            gather: models.iter().map(|model| vec![Nanos::ZERO; model.blocks.len()]).collect(),
            setup: Setup { devices: limits.devices, limits: Limits { models: models.len(), ..limits }, models },
            graphs: self.graphs,
            autoscale: None,
            window: None,
        })
    }

    /// Returns the times of the first and the last arrival.
    fn span(&self) -> (Time, Time) {
        let arrivals = || self.requests.iter().map(|came| came.arrival.arrived);
        (arrivals().min().unwrap_or(Time::ORIGIN), arrivals().max().unwrap_or(Time::ORIGIN))
    }

    /// Loads a model. A model that is reloaded is the same model, in its latest form for the whole
    /// run.
    fn load(&mut self, id: ModelId, model: &Model) -> Result<(), String> {
        check::model(model)?;
        let seen = RecordedModel { model: model.clone(), ahead: Margin::new(model).ahead() };
        let at = match self.models.iter().position(|seen| seen.model.name == model.name) {
            Some(at) => {
                let before = &self.models[at].model;
                let same = before.walk == model.walk && before.blocks.len() == model.blocks.len();
                if !same || model.max_batch < before.max_batch {
                    return Err(format!(
                        "model {:?} is loaded anew with another walk, other blocks or a smaller largest batch",
                        model.name
                    ));
                }
                self.models[at] = seen;
                at
            }
            None if self.models.len() == usize::from(u16::MAX) => {
                return Err(format!("there are more than {} models", u16::MAX));
            }
            None => {
                self.models.push(seen);
                self.models.len() - 1
            }
        };
        self.loaded.insert(id, at);
        Ok(())
    }

    fn model(&self, id: ModelId) -> Result<usize, String> {
        self.loaded.get(&id).copied().ok_or_else(|| format!("{id:?} is named, but no such model has been loaded"))
    }

    fn request(&mut self, request: &Request) -> Result<(), String> {
        if self.requests.len() == MOST_REQUESTS {
            return Err(format!(
                "there are more than {MOST_REQUESTS} requests; cut the recording off before this line"
            ));
        }
        let at = self.model(request.model)?;
        let seen = &mut self.models[at];
        if request.rows == 0 || request.rows as usize > seen.model.max_batch {
            let (rows, most) = (request.rows, seen.model.max_batch);
            return Err(format!("a request of {rows} rows for model {:?}, which takes 1 to {most}", seen.model.name));
        }
        let graph = self.graph_of_next.remove(&request.slot);
        let sound = graph.is_none_or(|graph| self.graphs[graph as usize].is_sound(seen.model.blocks.len()));
        if graph.is_some() != seen.model.walk.brings_graph() || !sound {
            return Err(format!("a request for model {:?} does not fit its walk: its graph", seen.model.name));
        }
        // The server plans ahead by a margin of at most a quarter of the SLO, so a shorter time is
        // the client's own limit.
        let (announced, slo) = (request.deadline - request.arrived, seen.model.slo);
        let limit = if announced.0 < slo.0 - slo.0 / 4 {
            Some(announced + seen.ahead)
        } else {
            seen.ahead = slo - announced;
            None
        };
        let Request { rows, extent, class, .. } = *request;
        check::extent(extent)?;
        // Both times are read from one clock, but a turn of the scheduler may not begin before the
        // one that it follows.
        let arrived = request.arrived.min(self.now);
        check::instant(Time::ORIGIN, arrived)?;
        let arrival = Arrival::new(self.now, ModelId(at as u16), arrived + limit.unwrap_or(slo));
        let arrival = Arrival { arrived, rows, extent, class, graph, ..arrival };
        self.live.insert(request.slot, self.requests.len());
        self.requests.push(RecordedRequest { arrival, limit, ended: None, finished: false });
        Ok(())
    }

    fn settle(&mut self, actions: &[Action], members: &[Vec<RequestSlot>], nodes: &[Vec<u32>]) -> Result<(), String> {
        let (mut members, mut nodes) = (members.iter(), nodes.iter());
        for action in actions {
            match *action {
                Action::Start { task, model, .. } => {
                    let slots = members.next().ok_or_else(|| format!("the members of {task:?} are missing"))?;
                    let request = |slot| self.live.get(slot).copied().ok_or_else(|| format!("{slot:?} has no request"));
                    let members = slots.iter().map(request).collect::<Result<Vec<_>, _>>()?;
                    let nodes = nodes.next().cloned().unwrap_or_default();
                    let model = self.model_of(&members, model)?;
                    self.start(action, TaskMembers { model, members, nodes })?;
                }
                Action::Finish { request } => self.end(request, true)?,
                Action::Reject { request, .. } => self.end(request, false)?,
                Action::Cancel { .. } => {}
            }
        }
        Ok(())
    }

    /// Records the start of a batch, as soon as its lane is free.
    fn start(&mut self, action: &Action, of: TaskMembers) -> Result<(), String> {
        let Action::Start { block, length, .. } = *action else { return Ok(()) };
        let model = &self.models[of.model].model;
        let spec = model.blocks.get(block.index()).ok_or_else(|| format!("model {:?} has no {block:?}", model.name))?;
        let rows: usize = of.members.iter().map(|&at| self.requests[at].arrival.rows as usize).sum();
        if rows == 0 || rows > spec.max_batch() {
            return Err(format!("a batch of {rows} rows, which {block:?} of model {:?} does not take", model.name));
        }
        check::extent(Extent { length, ..Extent::ONE })?;
        let scale = of.members.iter().map(|&at| self.requests[at].arrival.class.cost).max().unwrap_or_default();
        self.tasks.start(self.now, action, &StartedSize { spec, rows, length, scale }, of)
    }

    fn end(&mut self, request: RequestSlot, finished: bool) -> Result<(), String> {
        let at = self.live.get(&request).ok_or_else(|| format!("{request:?} ends, but it never came"))?;
        let came = &mut self.requests[*at];
        (came.ended, came.finished) = (Some(self.now), finished);
        Ok(())
    }

    /// Returns the index of a batch's model; an unloaded one still ends its running batches.
    fn model_of(&self, members: &[usize], id: ModelId) -> Result<usize, String> {
        match members.first() {
            Some(&first) => Ok(self.requests[first].arrival.model.index()),
            None => self.model(id),
        }
    }

    /// Records the members whose walk ended in a task, and the next blocks of the others.
    fn done(&mut self, task: &tasks::RecordedTask, ended: &[bool], skips: &[BlockId]) {
        let TaskMembers { model, members, nodes } = &task.of;
        let Some(block) = self.models[*model].model.blocks.get(task.block.index()) else { return };
        let until_end = block.steps == Steps::UntilEnd;
        let unfolds = self.models[*model].model.walk.is_unfolded();
        for (at, &request) in members.iter().enumerate() {
            let arrival = &mut self.requests[request].arrival;
            let ended = ended.get(at).is_some_and(|ended| *ended);
            match (unfolds, ended) {
                (true, true) if until_end && arrival.output == 0 => {
                    arrival.output = nodes.get(at).map_or(1, |node| node + 1);
                }
                (false, true) => arrival.route = arrival.route.ending_after(task.block),
                (false, false) => {
                    if let Some(&to) = skips.get(at).filter(|to| to.0 > task.block.0 + 1) {
                        arrival.route = arrival.route.skipping(task.block, to);
                    }
                }
                _ => {}
            }
        }
    }

    /// Completes unfinished requests with the facts of finished ones of their model.
    fn guess_hidden(&mut self) {
        let mut shown: Vec<Vec<(u32, Route)>> = vec![Vec::new(); self.models.len()];
        for came in self.requests.iter().filter(|came| came.finished) {
            shown[came.arrival.model.index()].push((came.arrival.output, came.arrival.route));
        }
        let mut turn = vec![0; self.models.len()];
        for RecordedRequest { arrival, .. } in self.requests.iter_mut().filter(|came| !came.finished) {
            let (shown, turn) = (&shown[arrival.model.index()], &mut turn[arrival.model.index()]);
            if !shown.is_empty() {
                (arrival.output, arrival.route) = shown[*turn % shown.len()];
                // No output is longer than its limit, which ends the walk itself.
                arrival.output = arrival.output.min(arrival.extent.limit);
                *turn += 1;
            }
        }
    }
}
