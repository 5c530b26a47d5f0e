//! The shapes with which a model is measured whose file leaves dimensions open.

use super::*;

/// Returns the report on a model, measured, with this `model.toml` and `config.pbtxt`.
fn measured(file: &str, toml: &str, pbtxt: &str) -> ModelReport {
    let folder = TempRepository::new();
    folder.write("m/1/model.onnx", onnx(file));
    folder.write("m/model.toml", toml);
    if !pbtxt.is_empty() {
        folder.write("m/config.pbtxt", pbtxt);
    }
    one(profile(folder.path(), cpu(), None, silent()))
}

fn origin(report: &ModelReport) -> &'static str {
    report.profile.as_ref().unwrap().origin
}

#[test]
fn a_model_is_measured_at_the_shapes_that_are_declared_or_sampled() {
    let declared = "[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [-1, 7]\n";
    let dims = |dims: &str| {
        let tensors = format!(
            "input {{ name: \"x\" data_type: TYPE_FP32 dims: [ {dims} ] }} \
             output {{ name: \"y\" data_type: TYPE_FP32 dims: [ 3 ] }}"
        );
        format!("backend: \"onnxruntime\" max_batch_size: 4 {tensors}")
    };
    let warm_up = "model_warmup { name: \"w\" batch_size: 1 \
                   inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 7 random_data: true } } }";
    for (toml, pbtxt) in
        [(declared, String::new()), ("", dims("7")), ("", format!("{} {warm_up}", dims("-1"))), (declared, dims("-1"))]
    {
        let report = measured("seven_wide.onnx", toml, &pbtxt);
        assert_eq!((&report.error, &report.unbatched), (&None, &None), "{pbtxt}");
        assert_eq!((report.measured_at.as_deref(), origin(&report)), (Some("x [1, 7]"), "measured"), "{pbtxt}");
        assert_eq!(report.warnings, [""; 0], "{pbtxt}");
    }
    let wrong = measured("seven_wide.onnx", &declared.replace('7', "8"), "");
    assert_eq!((&wrong.error, origin(&wrong)), (&None, "assumed"), "its values may be the cause as well");
    let warned = wrong.warnings.iter().find(|warning| warning.contains("without having been run")).unwrap();
    assert!(warned.contains("correct the shapes that") && warned.contains("min and max"), "{warned}");
}

#[test]
fn sizes_that_are_not_given_are_guessed_and_reported() {
    let report = measured("double.onnx", "", "");
    assert_eq!((report.error.as_ref(), origin(&report)), (None, "measured"));
    assert_eq!(report.measured_at.as_deref(), Some("x [1, 64]"));
    // No dimension is open.
    assert_eq!(measured("mlp.onnx", "", "").measured_at, None);
}

#[test]
fn a_model_that_accepts_no_guess_is_served_unbatched_with_an_assumed_cost() {
    let report = measured("seven_wide.onnx", "", "");
    assert_eq!((report.error.as_ref(), report.measured_at.as_ref(), origin(&report)), (None, None, "assumed"));
    assert_eq!((report.max_batch, report.profile.unwrap().latency_ms), (Some(1), vec![50.0]));
    assert!(report.unbatched.unwrap().contains("cannot be tried"));
    let warned = report.warnings.iter().find(|warning| warning.contains("without having been run")).unwrap();
    assert!(warned.contains("[[input]] name = \"x\", datatype = \"FP32\", shape = [-1, -1]"), "{warned}");
}

#[test]
fn a_model_of_fixed_shapes_that_refuses_made_up_values_is_served_and_says_what_to_declare() {
    let served = |toml: &str| measured("refuses_small.onnx", toml, "");
    let report = served("");
    assert_eq!((&report.error, origin(&report)), (&None, "assumed"));
    let warned = report.warnings.iter().find(|warning| warning.contains("without having been run")).unwrap();
    assert!(warned.contains("min and max") && warned.contains("assumed to be 50 ms"), "{warned}");
    let report = served("[[input]]\nname = \"x\"\ndatatype = \"INT32\"\nshape = [-1, 2]\nmin = 10\nmax = 12\n");
    assert_eq!((&report.error, origin(&report)), (&None, "measured"));
    assert_eq!(report.warnings, [""; 0]);
    // Zeros are among the first values that are tried, and ones among the next.
    let report = measured("divides.onnx", "", "");
    assert_eq!((&report.error, origin(&report)), (&None, "measured"));
}

#[test]
fn the_largest_batch_is_found_unless_it_is_named() {
    let folder = TempRepository::new();
    folder.write("m/1/model.onnx", onnx("mlp.onnx"));
    folder.write("m/model.toml", "");
    let measure = || kept_profile(folder.path(), cpu);
    let sizes = |report: &ModelReport| (report.max_batch.unwrap(), report.profile.as_ref().unwrap().latency_ms.len());
    let found = measure();
    let (most, measured) = sizes(&found);
    assert!([32, 64, 128, 256].contains(&most) && measured == most, "{found:?}");
    // The cache keeps what was found.
    let kept = one(inspect(folder.path(), cpu()));
    assert_eq!((origin(&kept), sizes(&kept)), ("cached", (most, most)));
    // No larger one is tried where a batch of 32 misses the SLO, or where a size is named.
    for toml in ["slo_ms = 0.0001", "max_batch = 16", "max_batch = 32"] {
        folder.write("m/model.toml", toml);
        assert!(measure().max_batch.unwrap() <= 32, "{toml}");
    }
}
