//! Trace files: one line per request and per task, in milliseconds with all nanosecond digits.

use crate::observer::{End, Observer, Run};
use ripieno_base::{DeviceId, ModelId, Time};
use ripieno_model::Model;
use ripieno_sched::Request;
use std::fmt::Write;
use std::path::Path;

/// A collector of the trace of a run, which it writes as `requests.csv` and `tasks.csv`.
#[derive(Debug)]
pub struct Trace {
    models: Vec<Model>,
    requests: Vec<TracedRequest>,
    tasks: Vec<((Time, DeviceId), String)>,
    spans: Vec<TracedSpan>,
    /// Whether the ends of tasks are not known at their starts, since devices have several lanes.
    shared: bool,
}

/// A task of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedSpan {
    /// Device of the task.
    pub device: DeviceId,
    /// Model of the task.
    pub model: ModelId,
    /// Start of the task.
    pub start: Time,
    /// End of the task.
    pub end: Time,
    /// Number of its members.
    pub members: usize,
}

/// The outcome of a request of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedOutcome<'a> {
    /// Name of its model.
    pub model: &'a str,
    /// Arrival of the request.
    pub arrival: Time,
    /// End of the request.
    pub finish: Time,
    /// "ok", "late" or "dropped".
    pub outcome: &'static str,
}

#[derive(Clone, Debug)]
struct TracedRequest {
    model: ModelId,
    arrival: Time,
    start: Option<Time>,
    finish: Time,
    outcome: &'static str,
}

impl Trace {
    /// Creates an empty trace of a run with these models.
    pub fn new(models: &[Model]) -> Trace {
        Trace { models: models.to_vec(), requests: Vec::new(), tasks: Vec::new(), spans: Vec::new(), shared: false }
    }

    /// Returns the tasks in the order of their reports; a cancelled one lasts as planned.
    pub fn spans(&self) -> &[TracedSpan] {
        &self.spans
    }

    /// Returns the requests in the order of their arrivals.
    pub fn outcomes(&self) -> impl Iterator<Item = TracedOutcome<'_>> {
        self.requests.iter().map(|request| {
            let TracedRequest { model, arrival, finish, outcome, .. } = *request;
            TracedOutcome { model: &self.models[model.index()].name, arrival, finish, outcome }
        })
    }

    /// Returns `id,model,arrival_ms,start_ms,finish_ms,outcome`, by id: ids count arrivals from 1.
    /// `start_ms` is empty if the request never ran; `finish_ms` of a dropped request is the time
    /// of the drop. The outcome is `ok`, `late` or `dropped`.
    pub fn requests_csv(&self) -> String {
        let mut text = "id,model,arrival_ms,start_ms,finish_ms,outcome\n".to_owned();
        for (id, request) in (1..).zip(&self.requests) {
            let start = request.start.map_or(String::new(), millis);
            let name = &self.models[request.model.index()].name;
            let (arrival, finish) = (millis(request.arrival), millis(request.finish));
            writeln!(text, "{id},{},{arrival},{start},{finish},{}", quoted(name), request.outcome)
                .expect("writing to a string never fails");
        }
        text
    }

    /// Returns `start_ms,end_ms,device,model,block,members`, by start, then device; members are
    /// request ids. A cancelled task ends when it is cancelled.
    pub fn tasks_csv(&self) -> String {
        let mut text = "start_ms,end_ms,device,model,block,members\n".to_owned();
        for (_, line) in &self.tasks {
            text.push_str(line);
        }
        text
    }

    /// Writes both files into `folder`, which is created if necessary.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("requests.csv"), self.requests_csv())?;
        std::fs::write(folder.join("tasks.csv"), self.tasks_csv())
    }

    fn line(&self, run: &Run<'_>, end: Time) -> String {
        let model = &self.models[run.model.index()];
        let block = &model.blocks[run.block.index()].name;
        let members: Vec<_> = run.ids.iter().map(u64::to_string).collect();
        format!(
            "{},{},{},{},{},{}\n",
            millis(run.start),
            millis(end),
            run.device.0,
            quoted(&model.name),
            quoted(block),
            members.join(" ")
        )
    }

    fn add(&mut self, run: &Run<'_>, end: Time) {
        for &id in run.ids {
            self.requests[id as usize - 1].start.get_or_insert(run.start);
        }
        let Run { device, model, start, .. } = *run;
        self.spans.push(TracedSpan { device, model, start, end, members: run.ids.len() });
        let key = (run.start, run.device);
        let at = self.tasks.partition_point(|(other, _)| *other <= key);
        self.tasks.insert(at, (key, self.line(run, end)));
    }

    fn request(&mut self, id: u64, model: ModelId, arrival: Time) -> &mut TracedRequest {
        let index = id as usize - 1;
        while self.requests.len() <= index {
            let request = TracedRequest { model, arrival, start: None, finish: arrival, outcome: "dropped" };
            self.requests.push(request);
        }
        &mut self.requests[index]
    }
}

impl Observer for Trace {
    fn accepted(&mut self, id: u64, request: &Request) {
        self.request(id, request.model, request.arrived);
    }

    fn refused(&mut self, now: Time, id: u64, model: ModelId) {
        self.request(id, model, now);
    }

    fn started(&mut self, _now: Time, run: &Run<'_>) {
        self.shared = run.end == Time::NEVER;
        if !self.shared {
            self.add(run, run.end);
        }
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        if self.shared {
            self.add(run, now);
        }
    }

    fn cancelled(&mut self, now: Time, run: &Run<'_>) {
        if self.shared {
            return;
        }
        let (planned, stopped) = (self.line(run, run.end), self.line(run, now.max(run.start)));
        let task = self.tasks.iter_mut().rev().find(|(_, line)| *line == planned);
        task.expect("a task was started before it was cancelled").1 = stopped;
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        let traced = &mut self.requests[id as usize - 1];
        traced.finish = now;
        traced.outcome = match end {
            End::Finished if now <= request.deadline => "ok",
            End::Finished => "late",
            End::Rejected(_) => "dropped",
        };
    }
}

/// Formats milliseconds with the decimals that nanoseconds need, without trailing zeros.
fn millis(time: Time) -> String {
    let (whole, nanos) = (time.0.div_euclid(1_000_000), time.0.rem_euclid(1_000_000));
    let text = format!("{whole}.{nanos:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn quoted(name: &str) -> String {
    match name.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}
