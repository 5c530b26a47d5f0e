//! Figures 1 and 12: batch sizes and waiting times at the own best load of eight devices.
//!
//! Both use the same runs. The paper does not state its load; ours is 97 % of each system's
//! goodput, close to the maximum and safely below it.

use super::SOURCE;
use super::workload::{axis, case, inception_resnet_v2, lines, resnet50, systems};
use crate::case::{CaseLoad, Contender};
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport, ResultRow};
use crate::job::{Question, SimAnswer};
use ripieno_report::number;
use ripieno_report::plot::{Figure, Panel, PlotAxis, Series};

pub(super) const FIGURE_1: ExperimentItem = ExperimentItem {
    id: "symphony/figure1",
    title: "Figure 1: batch sizes of one model on 8 devices",
    says: "the median batch sizes of Clockwork, Nexus, Shepherd and Symphony are 1, 6, 9 and 14 on ResNet50, and 1, 2, 4 \
           and 8 on InceptionResNetV2.",
    run: batch_sizes,
};

pub(super) const FIGURE_12: ExperimentItem = ExperimentItem {
    id: "symphony/figure12",
    title: "Figure 12: queueing delays of one model on 8 devices",
    says: "Symphony's queueing delay is 2 to 3 times shorter than that of Nexus and Clockwork; Nexus's longest is around \
           half the SLO; Shepherd's is comparable to Symphony's.",
    run: queueing_delays,
};

const DEVICES: usize = 8;
const REQUESTS: u64 = 100_000;

/// Medians of Figure 1 for each model, by policy.
const MEDIANS: [[(&str, f64); 4]; 2] = [
    [("clockwork", 1.0), ("nexus", 6.0), ("shepherd", 9.0), ("deferred", 14.0)],
    [("clockwork", 1.0), ("nexus", 2.0), ("shepherd", 4.0), ("deferred", 8.0)],
];

type MeasuredRuns = Vec<(CaseLoad, Vec<(Contender, SimAnswer)>)>;

fn measure(context: &ReproduceContext) -> anyhow::Result<MeasuredRuns> {
    let (contenders, requests) = (systems(), context.requests(REQUESTS));
    let models = [resnet50(), inception_resnet_v2()];
    let cases = models.iter().flat_map(|model| contenders.iter().map(move |contender| (model, contender)));
    let cases = cases.map(|(model, contender)| case(contender, DEVICES, vec![model.clone()], requests)).collect();
    let answers = context.answers(Question::Knee, cases)?;
    let of_model = |answers: &[SimAnswer]| contenders.iter().cloned().zip(answers.iter().cloned()).collect();
    Ok(models.into_iter().zip(answers.chunks(contenders.len()).map(of_model)).collect())
}

fn batch_sizes(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let measured = measure(context)?;
    let mut rows = Vec::new();
    for ((model, answers), medians) in measured.iter().zip(MEDIANS) {
        for (contender, answer) in answers {
            let paper = medians.iter().find(|(policy, _)| *policy == contender.policy).map(|(_, median)| *median);
            let note = match contender.policy {
                "clockwork" => {
                    "The paper measured Clockwork's program, which chooses batches 10 ms ahead and plans for 5 ms before the \
                     deadline; the rule alone, 5 ms ahead, forms larger batches."
                }
                _ => "",
            };
            let name = format!("{}: median batch, {}", model.name, contender.name);
            rows.push(ResultRow::new(name, "requests", answer.median_batch).paper(paper).note(note));
        }
    }
    let x = axis("batch size");
    let panels = panels(&measured, &x, |answer| &answer.batch_of_requests);
    let title = "Batch sizes: the share of requests that ran in a batch of at most this size";
    Ok(ItemReport { rows, figure: figure(context, title, panels) })
}

fn queueing_delays(context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let measured = measure(context)?;
    let mut rows = Vec::new();
    for (model, answers) in &measured {
        for (contender, answer) in answers {
            for (percentile, index) in [("median", 50), ("99 %", 99), ("longest", 100)] {
                let name = format!("{}: {percentile} delay, {}", model.name, contender.name);
                let row = ResultRow::new(name, "ms", answer.delays_ms.get(index).copied().unwrap_or(f64::NAN));
                let half = (contender.policy, index) == ("nexus", 100);
                rows.push(row.paper(half.then_some(model.slo_ms / 2.0)));
            }
        }
        rows.extend(comparisons(model, answers));
    }
    let panels = panels(&measured, &axis("queueing delay, ms"), |answer| &answer.delays_ms);
    let title = "Queueing delays: the share of requests that waited for at most this long";
    Ok(ItemReport { rows, figure: figure(context, title, panels) })
}

/// Returns the waiting times of other systems relative to "deferred, window", which is the first.
fn comparisons(model: &CaseLoad, answers: &[(Contender, SimAnswer)]) -> Vec<ResultRow> {
    let median = |answer: &SimAnswer| answer.delays_ms.get(50).copied().unwrap_or(f64::NAN);
    let (own, others) = answers.split_first().map_or((f64::NAN, answers), |(own, rest)| (median(&own.1), rest));
    let row = |(contender, answer): &(Contender, SimAnswer)| {
        let stated = matches!(contender.policy, "nexus" | "clockwork");
        let note = "The paper says 2 to 3 times; the row holds the lower end. It does not say at which load.";
        let name = format!("{}: median delay of {} over deferred", model.name, contender.name);
        let row = ResultRow::new(name, "times", median(answer) / own).paper(stated.then_some(2.0));
        if stated { row.note(note) } else { row }
    };
    others.iter().map(row).collect()
}

/// Returns the distribution of each system, one panel per model.
fn panels(measured: &MeasuredRuns, x: &PlotAxis, values: impl Fn(&SimAnswer) -> &Vec<f64>) -> Vec<Panel> {
    let curve = |(contender, answer): &(Contender, SimAnswer)| Series {
        name: contender.name.clone(),
        points: values(answer).iter().zip(0..).map(|(&value, percent)| (value, f64::from(percent))).collect(),
        look: contender.look,
        markers: false,
    };
    let panel = |(model, answers): &(CaseLoad, Vec<_>)| {
        let title = format!("{}, SLO {} ms", model.name, model.slo_ms);
        lines(&title, x.clone(), axis("requests, %"), answers.iter().map(curve).collect())
    };
    measured.iter().map(panel).collect()
}

fn figure(context: &ReproduceContext, title: &str, panels: Vec<Panel>) -> Figure {
    let requests = number(context.requests(REQUESTS) as f64);
    Figure {
        title: title.to_owned(),
        subtitle: format!(
            "8 devices, Poisson arrivals at 97 % of each system's own goodput, {requests} requests, 1 seed"
        ),
        panels,
        columns: 2,
        note: SOURCE.to_owned(),
    }
}
