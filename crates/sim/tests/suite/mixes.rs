//! Cells beside others, and cells of several kinds, as a server would serve them: nobody loses more than one request in a hundred at
//! a load that a policy can carry. Each of these was drawn by chance and broke that; what is expected stands in the files.

use ripieno_sched::Objective;
use ripieno_sim::{Scenario, simulate};
use std::path::Path;

fn nobody_loses(file: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/mixed");
    let mut scenario = Scenario::read(&folder.join(file).with_extension("toml")).unwrap();
    scenario.serve(Objective::Latency);
    let summary = simulate(&scenario, None).unwrap();
    for model in &summary.models {
        let figures = &model.figures;
        assert!(figures.bad_rate <= 0.01, "{file}: {} lost {:.3} of its requests", model.name, figures.bad_rate);
    }
}

#[test]
fn a_decoder_beside_a_chain() {
    nobody_loses("decoder-beside-chain");
}

#[test]
fn layers_beside_short_cells() {
    nobody_loses("layers-beside-short-cells");
}

#[test]
fn a_tree_beside_a_chain() {
    nobody_loses("tree-beside-chain");
}

#[test]
fn a_tree_beside_a_model_in_one_piece_with_a_tight_slo() {
    nobody_loses("tree-beside-tight-whole");
}
