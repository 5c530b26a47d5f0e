//! Worked examples: the tasks over time. A unit of a paper's time is a millisecond.

use super::item::ResultRow;
use super::outcome::axis;
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Extent, Model};
use ripieno_report::plot::{Content, Look, Moment, Panel, Span};
use ripieno_sim::{Arrival, Scenario, Trace, simulate};

/// A task: start, end, block, requests.
pub(super) type PlayedTask = (f64, f64, String, Vec<usize>);

/// The trace of an example.
pub(super) struct PlayedRun {
    pub(super) title: &'static str,
    pub(super) arrivals: Vec<f64>,
    pub(super) tasks: Vec<PlayedTask>,
    pub(super) finished: Vec<f64>,
}

/// Runs requests, each with an arrival and a length.
pub(super) fn play(
    title: &'static str,
    policy: &str,
    model: &str,
    requests: &[(f64, u32)],
) -> anyhow::Result<PlayedRun> {
    play_changed(title, policy, model, requests, |_| ())
}

/// Runs requests on a model changed beyond the format of scenario files.
pub(super) fn play_changed(
    title: &'static str,
    policy: &str,
    model: &str,
    requests: &[(f64, u32)],
    change: impl Fn(&mut Model),
) -> anyhow::Result<PlayedRun> {
    let text = format!("rate = 1.0\nwarmup_fraction = 0.0\n{policy}[[model]]\nname = \"m\"\nslo_ms = 1000.0\n{model}");
    let mut scenario = Scenario::parse(&text, "worked example")?;
    scenario.setup.models.iter_mut().for_each(change);
    let arrival = |&(at, length): &(f64, u32)| {
        let at = Time::ORIGIN + Nanos::from_millis_f64(at);
        Arrival { extent: Extent { length, limit: 0 }, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis(1000)) }
    };
    scenario.requests = Some(requests.iter().map(arrival).collect());
    let mut trace = Trace::new(&scenario.setup.models);
    simulate(&scenario, Some(&mut trace))?;
    let tasks = trace.tasks_csv().lines().skip(1).filter_map(task).collect();
    let finish = |line: &str| line.rsplit(',').nth(1)?.parse().ok();
    let finished = trace.requests_csv().lines().skip(1).filter_map(finish).collect();
    Ok(PlayedRun { title, arrivals: requests.iter().map(|&(at, _)| at).collect(), tasks, finished })
}

/// Parses `start_ms,end_ms,device,model,block,members`.
fn task(line: &str) -> Option<PlayedTask> {
    let fields: Vec<_> = line.split(',').collect();
    let members = fields.get(5)?.split(' ').filter_map(|id| id.parse().ok()).collect();
    Some((fields[0].parse().ok()?, fields[1].parse().ok()?, fields[4].to_owned(), members))
}

impl PlayedRun {
    /// Returns the first start of a task with exactly these requests; of one block, if it is named.
    pub(super) fn start(&self, block: Option<&str>, requests: &[usize]) -> f64 {
        let fits = |task: &&PlayedTask| task.3 == requests && block.is_none_or(|block| task.2 == block);
        self.tasks.iter().find(fits).map_or(f64::NAN, |task| task.0)
    }

    /// Returns the first start of a request.
    pub(super) fn first(&self, request: usize) -> f64 {
        self.tasks.iter().find(|task| task.3.contains(&request)).map_or(f64::NAN, |task| task.0)
    }

    pub(super) fn mean_latency(&self) -> f64 {
        let total: f64 = self.finished.iter().zip(&self.arrivals).map(|(finish, arrival)| finish - arrival).sum();
        total / self.finished.len().max(1) as f64
    }

    pub(super) fn panel(&self) -> Panel {
        let lanes = (1..=self.arrivals.len()).map(|request| format!("Req{request}")).collect();
        let span = |(from, to, block, members): &PlayedTask| {
            let look = Look::solid(members.len() - 1);
            let (from, to, label) = (*from, *to, block.clone());
            let of = move |&request: &usize| Span { lane: request - 1, from, to, label: label.clone(), look };
            members.iter().map(of).collect::<Vec<_>>()
        };
        let spans = self.tasks.iter().flat_map(span).collect();
        let moments = self.arrivals.iter().map(|&at| Moment { at, lost: false }).collect();
        Panel {
            title: self.title.to_owned(),
            x: axis("time"),
            y: axis(""),
            content: Content::Timeline { lanes, spans, moments },
        }
    }
}

/// Returns the row of an instant that the text states.
pub(super) fn instant(name: &str, paper: f64, ours: f64) -> ResultRow {
    ResultRow::new(name, "time", ours).paper(paper)
}
