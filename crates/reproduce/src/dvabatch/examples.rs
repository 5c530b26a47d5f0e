//! Figure 3: three worked examples.
//!
//! Each operator takes 1 T of the whole device, and at most four requests are in a batch. Values
//! that only the figure shows are chosen so that the text's averages hold: in case I the short
//! requests have half the operators, in case II operators B to D take a quarter of their time for
//! one request. In case III the window is 4 T and three requests arrive together at 5 T.

use super::SOURCE;
use crate::context::ReproduceContext;
use crate::item::{ExperimentItem, ItemReport};
use crate::played::{PlayedRun, instant, play};
use ripieno_report::plot::Figure;

pub(super) const FIGURE_3: ExperimentItem = ExperimentItem {
    id: "dvabatch/figure3",
    title: "Figure 3: long latency by input, operator and load diversity",
    says: "Dividing a batch by length lowers the average from 4 to 2.5 T; splitting it where operators prefer single requests from \
           4 to 2.875 T; stretching it by latecomers from 8 to 5.25 T.",
    run: figure_3,
};

/// Four operators that four requests fill, each a quarter; half the length takes half the time.
fn input() -> String {
    let block = |name: &str| {
        format!(
            "[[model.block]]\nname = \"{name}\"\nby_length = [{{ length = 2, latency_ms = [0.5, 0.5, 0.5, 0.5] }}, \
             {{ length = 4, latency_ms = [1, 1, 1, 1] }}]\n"
        )
    };
    let blocks: String = ["A", "B", "C", "D"].into_iter().map(block).collect();
    format!("walk = \"chain\"\nlengths = {{ kind = \"fixed\", value = 4 }}\n{blocks}")
}

/// Title, policy, model, requests by arrival and length, and the average in the text.
type Example<'a> = (&'static str, String, &'a str, [(f64, u32); 4], f64);

fn chain(tables: [&str; 4]) -> String {
    let block = |(name, table): (&str, &&str)| format!("[[model.block]]\nname = \"{name}\"\nlatency_ms = {table}\n");
    "walk = \"chain\"\n".to_owned() + &["A", "B", "C", "D"].into_iter().zip(&tables).map(block).collect::<String>()
}

fn delay(window_ms: u32, rule: &str) -> String {
    format!("policy = \"delay-batch\"\n[policy_options]\nwindow_ms = {window_ms}\ndispatch = \"{rule}\"\n")
}

fn dva(options: &str) -> String {
    format!("policy = \"dva\"\n[policy_options]\n{options}")
}

fn figure_3(_context: &ReproduceContext) -> anyhow::Result<ItemReport> {
    let (flat, each) = ("[1, 1, 1, 1]", "[0.25, 0.5, 0.75, 1]");
    let operator = chain([flat, each, each, each]);
    let load = chain([flat; 4]);
    let together = |lengths: [u32; 4]| lengths.map(|length| (0.0, length));
    let burst = [(0.0, 1), (5.0, 1), (5.0, 1), (5.0, 1)];
    let (input, window) = (input(), dva("window_ms = 4\n"));
    let cases: [Example<'_>; 9] = [
        ("case I, padded, free", delay(0, "free"), &input, together([2, 2, 2, 4]), 4.0),
        ("case I, padded, start", delay(0, "start"), &input, together([2, 2, 2, 4]), 4.0),
        ("case I, by length", dva(""), &input, together([2, 2, 2, 4]), 2.5),
        ("case II, whole, free", delay(0, "free"), &operator, together([1; 4]), 4.0),
        ("case II, whole, start", delay(0, "start"), &operator, together([1; 4]), 4.0),
        ("case II, split", dva(""), &operator, together([1; 4]), 2.875),
        ("case III, window, free", delay(4, "free"), &load, burst, 8.0),
        ("case III, window, start", delay(4, "start"), &load, burst, 8.0),
        ("case III, stretched", window, &load, burst, 5.25),
    ];
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for (title, policy, model, requests, paper) in &cases {
        let played = play(title, policy, model, requests)?;
        let row = instant(&format!("{title}: average latency"), *paper, played.mean_latency());
        rows.push(row.note(if *title == "case I, by length" { ONE_STAGE_EACH } else { "" }));
        all.push(played);
    }
    let figure = Figure {
        title: "Long latency by diversity".to_owned(),
        subtitle: "Colours: how many requests run together; above the lanes: arrivals".to_owned(),
        panels: all.iter().map(PlayedRun::panel).collect(),
        columns: 3,
        note: SOURCE.to_owned(),
    };
    Ok(ItemReport { rows, figure })
}

const ONE_STAGE_EACH: &str = "The figure draws both groups in parallel from the start. By section 6 a stage has one executor, so that the \
                              long one begins when the short one has left the first stage.";
