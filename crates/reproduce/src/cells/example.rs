//! BatchMaker's Figure 5 and Late Batching's Figure 1: the worked example.
//!
//! The text leaves some lengths and arrivals open; the ones in `REQUESTS` agree with every instant
//! that it states.

use super::{LATE_SOURCE, SOURCE};
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Block, Extent, Model, Profile, Steps, Walk};
use ripieno_policies::build;
use ripieno_report::plot::{Content, Figure, Look, Panel, PlotAxis, Span};
use ripieno_sched::{Limits, OptionValue, Options, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Trace, World};

pub(super) const FIGURE_5: ExperimentItem = ExperimentItem {
    id: "batchmaker/figure5",
    title: "Figure 5: eight requests in batches of four",
    says: "Merged, r1 to r4 end at 5 and r5 to r8 at 12; cell by cell r1 leaves at 2, r5 joins immediately, r2 and r3 leave at 3.",
    run: |_| report(0, SOURCE, false),
};

pub(super) const LATE_FIGURE_1: ExperimentItem = ExperimentItem {
    id: "late-batching/figure1",
    title: "Figure 1: eight requests in batches of four",
    says: "Merged, requests 10 to 13 start at 105 and end at 112; with Late Batching request 10 joins at 102 and ends at 105.",
    run: |_| report(100, LATE_SOURCE, true),
};

/// Arrival of each request, in thousandths, and its number of cells.
const REQUESTS: [(i64, u32); 8] = [(0, 2), (0, 3), (0, 3), (0, 5), (1500, 3), (2500, 7), (2500, 4), (3500, 2)];

const CONTENDERS: [(&str, &str, Option<i64>); 3] =
    [("merged", "graph-merge", None), ("every cell", "cellular", Some(1)), ("five cells ahead", "cellular", Some(5))];

fn run(policy: &str, max_tasks: Option<i64>, origin: i64) -> anyhow::Result<Trace> {
    let profile = Profile::from_table(&[Nanos::from_millis(1); 4])?;
    let block = Block { steps: Steps::Length, ..Block::new("cell", profile.clone()) };
    let whole = Model::whole("lstm", profile, Nanos::from_millis(1000));
    let setup = Setup {
        models: vec![Model { walk: Walk::Repeat, blocks: vec![block], ..whole }],
        devices: 1,
        limits: Limits { requests: 8, depth: 5, batch: 4, ..Limits::ONE },
    };
    let options: Options =
        max_tasks.map(|tasks| ("max_tasks".to_owned(), OptionValue::Int(tasks))).into_iter().collect();
    let arrival = |(micros, length): (i64, u32)| {
        let at = Time::ORIGIN + Nanos::from_millis(origin) + Nanos::from_micros(micros);
        Arrival { extent: Extent { length, limit: 0 }, ..Arrival::new(at, ModelId(0), at + Nanos::from_millis(1000)) }
    };
    let mut scheduler = build(policy, &setup, &options)?;
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(&setup).without_padding());
    World::new(scheduler.as_mut(), &setup).run(REQUESTS.map(arrival).into_iter(), [], &mut [&mut trace, &mut checkers]);
    checkers.finish();
    Ok(trace)
}

/// Returns the start and the end of each request.
fn fates(trace: &Trace) -> Vec<(f64, f64)> {
    let csv = trace.requests_csv();
    let field = |line: &str, at: usize| line.split(',').nth(at).and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
    csv.lines().skip(1).map(|line| (field(line, 3), field(line, 4))).collect()
}

/// Returns the start and the end in the text, by contender and request. Only Late Batching states
/// that r5 ends at 5, of its request 10.
fn stated(contender: usize, request: usize, is_late: bool) -> (Option<f64>, Option<f64>) {
    match (contender, request) {
        (0, 1..=4) => (Some(0.0), Some(5.0)),
        (0, _) => (Some(5.0), Some(12.0)),
        (1, 1) => (Some(0.0), Some(2.0)),
        (1, 2 | 3) => (Some(0.0), Some(3.0)),
        (1, 5) => (Some(2.0), is_late.then_some(5.0)),
        (1, 6 | 7) => (Some(3.0), None),
        _ => (None, None),
    }
}

fn report(origin: i64, source: &str, is_late: bool) -> anyhow::Result<ItemReport> {
    let (mut rows, mut panels) = (Vec::new(), Vec::new());
    for (at, (name, policy, max_tasks)) in CONTENDERS.into_iter().enumerate() {
        let fates = fates(&run(policy, max_tasks, origin)?);
        let shift = |paper: Option<f64>| paper.map(|paper| paper + origin as f64);
        for (request, &(start, end)) in (1..).zip(&fates) {
            let (start_paper, end_paper) = stated(at, request, is_late);
            let note = if is_late && request == 5 { "Request 10 of the paper." } else { "" };
            rows.push(
                ResultRow::new(format!("{name}: r{request} starts"), "T", start).paper(shift(start_paper)).note(note),
            );
            rows.push(ResultRow::new(format!("{name}: r{request} ends"), "T", end).paper(shift(end_paper)).note(note));
        }
        let latency =
            fates.iter().zip(&REQUESTS).map(|(fate, &(micros, _))| fate.1 - origin as f64 - micros as f64 / 1e3);
        let note = match at {
            2 => "Algorithm 1 as printed submits five cells in one go; the figure needs a decision before every cell.",
            _ => "",
        };
        rows.push(ResultRow::new(format!("{name}: mean latency"), "T", latency.sum::<f64>() / 8.0).note(note));
        let span = |(lane, &(from, to)): (usize, &(f64, f64))| Span {
            lane,
            from,
            to,
            label: String::new(),
            look: Look::solid(at),
        };
        let lanes = (1..=8).map(|request| format!("r{request}")).collect();
        let spans = fates.iter().enumerate().map(span).collect();
        panels.push(Panel {
            title: name.to_owned(),
            x: PlotAxis { label: "time, T".to_owned(), from: Some(origin as f64), to: Some(origin as f64 + 12.0) },
            y: PlotAxis::default(),
            content: Content::Timeline { lanes, spans, moments: Vec::new() },
        });
    }
    Ok(ItemReport {
        rows,
        figure: Figure {
            title: "Joining and leaving a running batch".to_owned(),
            subtitle: "from start to end of each request; cells of 1 T, batches of four; lengths chosen where the text is silent".to_owned(),
            panels,
            columns: 1,
            note: source.to_owned(),
        },
    })
}
