//! Models whose requests vary in length: checked at load, measured by length, cached, and passed to
//! the scheduler.

use super::*;
use crate::load::{Loader, Profiling};
use crate::scan::scan;

const LENGTHS: &str = r#"
max_batch = 4
max_length = 12
[[input]]
name = "ids"
length_dim = 1
[[input]]
name = "mask"
length_dim = 1
[[output]]
name = "tokens"
length_dim = 1
"#;

const CHAIN: &str = r#"
[[block]]
name = "first"
file = "pool_first.onnx"
[[block]]
name = "second"
file = "pool_second.onnx"
"#;

fn repository(toml: &str, files: &[(&str, &str)]) -> TempRepository {
    let folder = TempRepository::new();
    folder.write("pool/model.toml", toml);
    for (file, of) in files {
        folder.write(&format!("pool/1/{file}"), onnx(of));
    }
    folder
}

#[test]
fn a_mask_that_makes_padding_harmless_is_found_by_trial() {
    let report = |file: &str, toml: &str| super::report(file, &format!("max_batch = 4\n{toml}"));
    let said = |report: &ModelReport| report.warnings.iter().any(|warning| warning.contains("whatever their length"));
    let found = report("masked_mean.onnx", "");
    assert_eq!((&found.error, &found.unbatched), (&None, &None));
    assert!(found.warnings.iter().any(|warning| warning.contains("requests of up to 128 share batches")), "{found:?}");
    // The mask is not used everywhere, or the model has no bound, or shapes are declared.
    for (file, toml) in [
        ("unmasked_mean.onnx", ""),
        ("pool.onnx", ""),
        ("masked_mean.onnx", "[[input]]\nname = \"ids\"\ndatatype = \"INT64\"\nshape = [-1, 64]\n"),
    ] {
        let apart = report(file, toml);
        assert!(apart.error.is_none() && !said(&apart), "{file}: {apart:?}");
    }
}

#[test]
fn a_padded_model_is_measured_by_length_and_the_profile_is_kept() {
    let folder = repository(
        &format!("{LENGTHS}{CHAIN}"),
        &[("pool_first.onnx", "pool_first.onnx"), ("pool_second.onnx", "pool_second.onnx")],
    );
    let measured = kept_profile(folder.path(), cpu);
    let lengths = |report: &ModelReport| -> Vec<u32> {
        report.profile.iter().flat_map(|profile| &profile.lengths).map(|of| of.length).collect()
    };
    assert_eq!((measured.error.clone(), lengths(&measured)), (None, vec![1, 2, 4, 8, 12]));
    assert!(
        measured.blocks.iter().all(|block| block.lengths.len() == 5 && block.lengths[4].latency_ms == block.latency_ms)
    );
    let kept = one(inspect(folder.path(), cpu()));
    assert_eq!((kept.profile.as_ref().unwrap().origin, lengths(&kept)), ("cached", lengths(&measured)));
    let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
    let prepared = Loader::new(cpu(), silent()).prepare(&found, Profiling::IfMissing).unwrap();
    let model = prepared.served().unwrap().model;
    assert!(model.has_lengths() && model.blocks[1].cost(4, 3) <= model.blocks[1].cost(4, 12));
    // A larger maximum length has another profile.
    folder.write("pool/model.toml", format!("{LENGTHS}{CHAIN}").replace("= 12", "= 16"));
    assert_eq!(one(inspect(folder.path(), cpu())).profile, None);
}

#[test]
fn a_model_that_padding_changes_is_refused_with_the_output_and_the_fix() {
    let cases = [
        (LENGTHS.to_owned(), "pool.onnx", None),
        (
            LENGTHS.replace("[[input]]\nname = \"mask\"\nlength_dim = 1\n", ""),
            "pool_blind.onnx",
            Some("pool/1/model.onnx: output 'mean' changes by"),
        ),
        (LENGTHS.replace("[[output]]\nname = \"tokens\"\nlength_dim = 1\n", ""), "pool.onnx", None),
        (LENGTHS.replace("\"ids\"", "\"idz\""), "pool.onnx", Some("length_dim stands at input 'idz', which the model")),
        (
            LENGTHS.replace("length_dim = 1", "length_dim = 3"),
            "pool.onnx",
            Some("which has no dimension 3 behind the batch"),
        ),
    ];
    for (toml, file, error) in cases {
        let folder = repository(&toml, &[("model.onnx", file)]);
        let report = one(inspect(folder.path(), cpu()));
        match error {
            None => assert_eq!(report.error, None),
            Some(words) => assert!(report.error.as_ref().unwrap().contains(words), "{:?}", report.error),
        }
    }
}

/// A mean of each four numbers; what is left over is dropped.
#[test]
fn an_output_shorter_than_its_input_is_found_or_declared() {
    let input = "max_batch = 4\nmax_length = 30\n[[input]]\nname = \"x\"\nlength_dim = 1\n";
    let output = "[[output]]\nname = \"y\"\nlength_dim = 1\n";
    let load = |toml: &str| {
        let folder = repository(toml, &[("model.onnx", "means_of_four.onnx")]);
        let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
        Loader::new(cpu(), silent()).prepare(&found, Profiling::Never).map(|prepared| prepared.plan.source.lengths)
    };
    for toml in [input.to_owned(), format!("{input}{output}length = \"n / 4\"\n")] {
        let lengths = load(&toml).unwrap();
        assert_eq!(lengths.outputs[0].rule.to_string(), "n / 4");
    }
    for wrong in ["", "length = \"ceil(n / 4)\"\n"] {
        let error = load(&format!("{input}{output}{wrong}")).unwrap_err();
        assert!(error.contains("y"), "{error}");
    }
    let error = load(&format!("{input}{output}length = \"n * 2\"\n")).unwrap_err();
    assert!(error.contains("must be n / 8, ceil(n / 8)"), "{error}");
}

#[test]
fn an_emulated_model_takes_given_latencies_by_length() {
    let tensors = r#"
max_length = 12
by_length = [{ length = 4, alpha_ms = 1, beta_ms = 1 }, { length = 8, alpha_ms = 2, beta_ms = 1 }]
[[input]]
name = "x"
datatype = "FP32"
shape = [-1, -1]
length_dim = 1
[[output]]
name = "y"
datatype = "FP32"
shape = [-1, -1]
length_dim = 1
"#;
    let folder = TempRepository::new();
    folder.write("model/model.toml", tensors);
    let report = one(inspect(folder.path(), emulated()));
    let profile = report.profile.as_ref().unwrap();
    assert_eq!((report.error.clone(), profile.origin), (None, "given"));
    // Beyond the longest given length, latency is proportional: 1.5 times here.
    assert_eq!((profile.latency_ms[0], profile.lengths[1].latency_ms[0]), (4.5, 3.0));
}

#[test]
fn padding_is_tried_with_numbers_within_the_declared_range() {
    let toml = LENGTHS.split("[[output]]").next().unwrap();
    let ranged = toml.replace("name = \"ids\"", "name = \"ids\"\npad = 10\nmin = 10\nmax = 12");
    let report = |toml: &str| {
        let folder = repository(toml, &[("model.onnx", "high_ids.onnx")]);
        one(profile(folder.path(), cpu(), None, silent()))
    };
    let tried = report(&ranged);
    assert_eq!((tried.error, tried.unbatched), (None, None));
    let refused = report(toml).error.unwrap();
    assert!(refused.contains("cannot run together") && refused.contains("[[input]] min, max"), "{refused}");
}
