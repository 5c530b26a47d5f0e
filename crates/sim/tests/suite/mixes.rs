//! Cells beside others, and cells of several kinds, as a server serves them: no model loses more
//! than one percent at a load that a policy can carry. Each of these random cases broke that; the
//! expected values are in the files.

use ripieno_report::Summary;
use ripieno_sched::Objective;
use ripieno_sim::{Scenario, simulate};
use std::path::Path;

fn served(file: &str) -> Summary {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/mixed");
    let mut scenario = Scenario::read(&folder.join(file).with_extension("toml")).unwrap();
    scenario.serve(Objective::Latency);
    simulate(&scenario, None).unwrap()
}

fn no_policy_falls_behind(file: &str) {
    for model in &served(file).models {
        let figures = &model.figures;
        assert!(figures.bad_rate <= 0.01, "{file}: {} lost {:.3} of its requests", model.name, figures.bad_rate);
    }
}

#[test]
fn a_decoder_beside_a_chain() {
    no_policy_falls_behind("decoder-beside-chain");
}

#[test]
fn layers_beside_short_cells() {
    no_policy_falls_behind("layers-beside-short-cells");
}

#[test]
fn a_tree_beside_a_chain() {
    no_policy_falls_behind("tree-beside-chain");
}

#[test]
fn a_tree_beside_a_model_in_one_piece_with_a_tight_slo() {
    no_policy_falls_behind("tree-beside-tight-whole");
}

#[test]
fn a_model_in_one_piece_beside_a_decoder_waits_no_longer_than_for_its_batch() {
    let whole = &served("whole-beside-decoder").models[1];
    let median = whole.figures.p50_ms.unwrap();
    assert!(median <= 60.0, "{median} ms");
}

#[test]
fn a_backlog_of_cells_makes_batches_of_a_tight_model_large() {
    let cells = &served("backlog-beside-tight-whole").models[0];
    let mean = cells.figures.mean_ms.unwrap();
    assert!(mean <= 250.0 && cells.figures.bad_rate == 0.0, "{mean} ms");
}

#[test]
fn batches_beside_a_tight_model_are_cut_no_further_than_it_can_wait() {
    let slack = &served("slack-beside-tight").models[1];
    let mean = slack.figures.mean_ms.unwrap();
    assert!(mean <= 10.0, "{mean} ms");
}

#[test]
fn the_last_requests_of_a_model_do_not_wait_for_others_that_never_come() {
    let whole = &served("whole-that-stops").models[1];
    let mean = whole.figures.mean_ms.unwrap();
    assert!(mean <= 250.0, "{mean} ms");
}
