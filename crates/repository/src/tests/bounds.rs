//! Models that are refused until their input values are bounded.

use super::*;

#[test]
fn a_bound_that_the_error_asks_for_is_enough() {
    for (file, words) in [("square.onnx", "use --engine onnxruntime"), ("zeros_of.onnx", "take all memory")] {
        let refused = report(file, "").error.unwrap();
        assert!(refused.contains("m/1/model.onnx: operator") && refused.contains(words), "{refused}");
        assert_eq!(report(file, "[[input]]\nname = \"n\"\nmax = 64\n").error, None, "{file}");
    }
}

#[test]
fn the_demo_models_and_their_cells_pass() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/repository");
    for report in inspect(&demo, cpu()).unwrap() {
        assert_eq!((report.error, report.unbatched), (None, None), "{}", report.name);
    }
}
