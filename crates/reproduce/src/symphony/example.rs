//! Section 3.3 with Figures 4 and 5: three devices, ℓ(b) = b + 5, SLO 12, request i at 0.75·(i −
//! 1).
//!
//! The traces are exact: milliseconds stand for the paper's units of time, and nothing is random.

use super::SOURCE;
use super::workload::{axis, case, deferred_prefix, eager_prefix, load};
use crate::case::Contender;
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_report::plot::{Content, Figure, Look, Moment, Panel, PlotAxis, Span};
use ripieno_sim::{Arrival, Trace, simulate};

pub(super) const ITEM: ExperimentItem = ExperimentItem {
    id: "symphony/example",
    title: "Section 3.3, Figures 4 and 5: staggered execution, and what three missing requests do to it",
    says: "deferred batches of four form a staggered pattern and regain it after R13, R14 and R15 are missing; eager \
           scheduling falls into ever smaller batches and drops R35, R37, R38, and so on.",
    run,
};

const GAP_MS: f64 = 0.75;
const SLO_MS: f64 = 12.0;
const LAST_REQUEST: u32 = 48;

/// A request, by its number in the paper.
#[derive(Clone, Copy)]
struct ExampleRequest {
    number: u32,
    at_ms: f64,
}

/// The trace of a run.
struct ExampleRun {
    tasks: Vec<ExampleTask>,
    dropped: Vec<u32>,
    asked: Vec<ExampleRequest>,
}

struct ExampleTask {
    device: usize,
    start: f64,
    end: f64,
    numbers: Vec<u32>,
}

fn run(_: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let all = outcome(&deferred_prefix(), on_time(1..=LAST_REQUEST))?;
    let missing = outcome(&deferred_prefix(), on_time((1..=12).chain(16..=LAST_REQUEST + 3)))?;
    // Until R16 the devices behave as under deferred scheduling: eager scheduling starts
    // immediately, so the members of each of the first three batches arrive together at the start
    // of that batch.
    let first = (1..=12).zip([2.25, 5.25, 8.25].into_iter().flat_map(|at_ms| [at_ms; 4]));
    let first = first.map(|(number, at_ms)| ExampleRequest { number, at_ms });
    let eager = outcome(&eager_prefix(), first.chain(on_time(16..=LAST_REQUEST)).collect())?;
    let mut rows = staggered_rows(&all, &missing);
    rows.extend(eager_rows(&eager)?);
    let figure = Figure {
        title: "Three missing requests: deferred scheduling regains its pattern, eager scheduling does not".to_owned(),
        subtitle:
            "3 devices, l(b) = b + 5, SLO 12, request i at 0.75 (i - 1); circles: arrivals, crosses: dropped; numbers: \
                   batch sizes"
                .to_owned(),
        panels: vec![
            panel("Deferred, every request arrives (Figure 4)", &all),
            panel("Deferred, R13 to R15 missing (Figure 5b)", &missing),
            panel("Eager from R16 on, R13 to R15 missing (Figure 5a)", &eager),
        ],
        columns: 1,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

fn on_time(numbers: impl Iterator<Item = u32>) -> Vec<ExampleRequest> {
    numbers.map(|number| ExampleRequest { number, at_ms: GAP_MS * f64::from(number - 1) }).collect()
}

fn outcome(contender: &Contender, asked: Vec<ExampleRequest>) -> anyhow::Result<ExampleRun> {
    let model = load("example", 1.0, 5.0, SLO_MS);
    let mut scenario = case(contender, 3, vec![model], asked.len() as u64).scenario()?;
    let arrival = |asked: &ExampleRequest| {
        let at = Time::ORIGIN + Nanos::from_millis_f64(asked.at_ms);
        Arrival::new(at, ModelId(0), at + Nanos::from_millis_f64(SLO_MS))
    };
    (scenario.rate, scenario.warmup_fraction) = (None, 0.0);
    scenario.requests = Some(asked.iter().map(arrival).collect());
    let mut trace = Trace::new(&scenario.setup.models);
    simulate(&scenario, Some(&mut trace))?;
    let number = |id: usize| asked[id - 1].number;
    let tasks = trace.tasks_csv().lines().skip(1).filter_map(|line| task(line, number)).collect();
    let csv = trace.requests_csv();
    let dropped = (1..).zip(csv.lines().skip(1)).filter(|(_, line)| line.ends_with("dropped"));
    let dropped = dropped.map(|(id, _)| number(id)).collect();
    Ok(ExampleRun { tasks, dropped, asked })
}

/// Parses a line `start_ms,end_ms,device,model,block,members` of the trace.
fn task(line: &str, number: impl Fn(usize) -> u32) -> Option<ExampleTask> {
    let fields: Vec<_> = line.split(',').collect();
    let numbers = fields.get(5)?.split(' ').filter_map(|id| id.parse().ok()).map(number).collect();
    let time = |index: usize| fields.get(index)?.parse().ok();
    Some(ExampleTask { start: time(0)?, end: time(1)?, device: fields.get(2)?.parse().ok()?, numbers })
}

fn staggered_rows(all: &ExampleRun, missing: &ExampleRun) -> Vec<ResultRow> {
    let sizes = |outcome: &ExampleRun| outcome.tasks.iter().map(|task| task.numbers.len() as f64).collect::<Vec<_>>();
    let smallest = |outcome: &ExampleRun| sizes(outcome).into_iter().fold(f64::INFINITY, f64::min);
    let start = |index: usize| all.tasks.get(index).map_or(f64::NAN, |task| task.start);
    let gaps = all.tasks.windows(2).map(|pair| pair[1].start - pair[0].start);
    let widest = gaps.clone().fold(0.0, f64::max);
    vec![
        ResultRow::new("deferred: first batch starts at", "time", start(0)).paper(2.25),
        ResultRow::new("deferred: requests in the first batch", "requests", sizes(all)[0]).paper(4.0),
        ResultRow::new("deferred: smallest batch of the run", "requests", smallest(all)).paper(4.0),
        ResultRow::new("deferred: longest gap between starts", "time", widest)
            .note("Batches start at 2.25, 5.25, 8.25 and so on, a third of l(4) = 9 apart."),
        ResultRow::new("three missing, deferred: smallest batch", "requests", smallest(missing)).paper(4.0),
        ResultRow::new("three missing, deferred: dropped", "requests", missing.dropped.len() as f64).paper(0.0),
    ]
}

fn eager_rows(eager: &ExampleRun) -> anyhow::Result<Vec<ResultRow>> {
    let with = |number: u32| {
        let found = eager.tasks.iter().find(|task| task.numbers.contains(&number));
        found.map_or((f64::NAN, f64::NAN), |task| (task.start, task.numbers.len() as f64))
    };
    let dropped = |index: usize| eager.dropped.get(index).copied().map_or(f64::NAN, f64::from);
    let (first, alone, short) = (with(16), with(25), with(26));
    Ok(vec![
        ResultRow::new("three missing, eager: R16 starts at", "time", first.0).paper(11.25),
        ResultRow::new("three missing, eager: requests with R16", "requests", first.1).paper(1.0),
        ResultRow::new("three missing, eager: requests with R17", "requests", with(17).1).paper(4.0),
        ResultRow::new("three missing, eager: requests with R21", "requests", with(21).1).paper(4.0),
        ResultRow::new("three missing, eager: R25 starts at", "time", alone.0).paper(18.0),
        ResultRow::new("three missing, eager: requests with R25", "requests", alone.1).paper(1.0),
        ResultRow::new("three missing, eager: R26 starts at", "time", short.0).paper(23.25),
        ResultRow::new("three missing, eager: requests with R26", "requests", short.1).paper(2.0),
        ResultRow::new("three missing, eager: first dropped", "R", dropped(0)).paper(35.0),
        ResultRow::new("three missing, eager: second dropped", "R", dropped(1)).paper(37.0),
        ResultRow::new("three missing, eager: third dropped", "R", dropped(2)).paper(38.0),
    ])
}

fn panel(title: &str, outcome: &ExampleRun) -> Panel {
    let full = 4;
    let span = |task: &ExampleTask| Span {
        lane: task.device,
        from: task.start,
        to: task.end,
        label: task.numbers.len().to_string(),
        look: Look::solid(if task.numbers.len() < full { 1 } else { 0 }),
    };
    let moment = |asked: &ExampleRequest| Moment { at: asked.at_ms, lost: outcome.dropped.contains(&asked.number) };
    Panel {
        title: title.to_owned(),
        x: PlotAxis { to: Some(36.0), ..axis("time units") },
        y: PlotAxis::default(),
        content: Content::Timeline {
            lanes: (1..=3).map(|device| format!("device {device}")).collect(),
            spans: outcome.tasks.iter().map(span).collect(),
            moments: outcome.asked.iter().map(moment).collect(),
        },
    }
}
