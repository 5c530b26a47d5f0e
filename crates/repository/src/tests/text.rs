//! Models with a tokenizer: inferred settings, and tokenizers that do not match.

use super::*;
use crate::load::{Loader, Profiling};
use crate::prepared::PreparedModel;
use crate::sample::Sample;
use crate::scan::scan;
use ripieno_text::{Pooling, TextTask};

fn of_texts(file: &str) -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/models").join(file);
    std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Creates a repository of a model with its tokenizer and these files.
fn folder(model: &[u8], files: &[(&str, &str)]) -> TempRepository {
    let folder = TempRepository::new();
    folder.write("m/1/model.onnx", model);
    folder.write("m/tokenizer.json", of_texts("tokenizer.json"));
    files.iter().for_each(|(file, text)| drop(folder.write(&format!("m/{file}"), text)));
    folder
}

fn prepare(folder: &TempRepository, target: LoadTarget) -> Result<PreparedModel, String> {
    let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
    Loader::new(target, silent()).prepare(&found, Profiling::IfMissing)
}

#[test]
fn lengths_and_padding_follow_from_the_tokenizer() {
    let limit = ("sentence_bert_config.json", r#"{"max_seq_length": 24}"#);
    let folder = folder(&of_texts("encoder.onnx"), &[("model.toml", "max_batch = 2"), limit]);
    let prepared = prepare(&folder, cpu()).unwrap();
    let (text, lengths) = (prepared.text.clone().unwrap(), prepared.loaded.lengths().unwrap());
    assert_eq!(text.task, TextTask::Embed { pooling: Some(Pooling::MEAN), normalize: true });
    assert_eq!((text.max_length, lengths.max), (24, 24));
    let sample = Some(Sample::Text { path: "/v1/embeddings", body: r#"{"input":"a text","model":"m"}"#.to_owned() });
    assert_eq!(prepared.report(1).sample, sample);
    assert!(prepared.warnings.is_empty() && prepared.served().unwrap().model.has_lengths());
    // Configured settings take precedence over sidecar files.
    folder.write(
        "m/model.toml",
        "max_batch = 2\n[text]\nmax_length = 12\npooling = \"cls\"\nnormalize = false\ntruncate = true",
    );
    let prepared = prepare(&folder, cpu()).unwrap();
    let text = prepared.text.unwrap();
    assert_eq!(text.task, TextTask::Embed { pooling: Some(Pooling::CLS), normalize: false });
    assert_eq!((text.max_length, text.truncate, prepared.loaded.lengths().unwrap().max), (12, true, 12));
}

#[test]
fn a_mismatched_tokenizer_is_a_warning_or_an_error() {
    let broken = [("tokenizer.json", "{}"), ("model.toml", "max_batch = 2")];
    let unasked = prepare(&folder(&of_texts("encoder.onnx"), &broken), cpu()).unwrap();
    assert!(
        unasked.text.is_none() && unasked.warnings[0].contains("its tokenizer is not used"),
        "{:?}",
        unasked.warnings
    );
    let asked = [("tokenizer.json", "{}"), ("model.toml", "max_batch = 2\n[text]")];
    let error = |model: &str, files: &[(&str, &str)]| prepare(&folder(&of_texts(model), files), cpu()).err().unwrap();
    assert!(error("encoder.onnx", &asked).contains("tokenizer.json"));
    let task = |task: &str| format!("max_batch = 2\n[text]\ntask = \"{task}\"");
    assert!(error("encoder.onnx", &[("model.toml", &task("rerank"))]).contains("a row for each token"));
    assert!(error("classifier.onnx", &[("model.toml", &task("rerank"))]).contains("has 3 numbers, and needs one"));
    assert!(error("encoder.onnx", &[("model.toml", &task("translate"))]).contains("must be \"embed\" or"));
    assert!(error("encoder.onnx", &[("model.toml", "[text]\npool = 1")]).contains("unknown key pool"));

    // A tokenizer beside a model with other inputs is ignored unless `[text]` is present.
    let dense = folder(&onnx("mlp.onnx"), &[]);
    let prepared = prepare(&dense, cpu()).unwrap();
    assert!(prepared.text.is_none() && prepared.warnings.is_empty());
    dense.write("m/model.toml", "[text]");
    assert!(prepare(&dense, cpu()).err().unwrap().contains("[text] needs the inputs input_ids"));
    std::fs::remove_file(dense.path().join("m/tokenizer.json")).unwrap();
    assert!(prepare(&dense, cpu()).err().unwrap().contains("[text] needs a tokenizer.json"));
    // An emulated model computes no values to read.
    let emulated_text = folder(&[], &[("model.toml", &format!("{EMULATED}[text]"))]);
    assert!(prepare(&emulated_text, emulated()).unwrap().text.is_none());
}

/// Files beside a model that are left aside, and a part of the reason.
const REFUSALS: [(&[(&str, &str)], &str); 12] = [
    (&[("tokenizer.json", "{}")], "tokenizer.json: "),
    (&[("config_sentence_transformers.json", "[")], "config_sentence_transformers.json: "),
    (&[("sentence_bert_config.json", "{\"max_seq_length\": \"many\"}")], "sentence_bert_config.json: "),
    (&[("tokenizer_config.json", "7")], "tokenizer_config.json: "),
    (&[("config.json", "[1")], "config.json: "),
    (&[("modules.json", "{}")], "modules.json: "),
    (&[("modules.json", "[{\"type\": \"a.CNN\"}]")], "module CNN is not known here"),
    (
        &[("modules.json", "[{\"type\": \"a.Pooling\", \"path\": \"../p\"}]")],
        "path \"../p\" leads out of the model's folder",
    ),
    (&[("1_Pooling/config.json", "{\"pooling_mode_cls_token\": false}")], "its way of pooling is not known here"),
    (
        &[("modules.json", DENSE), ("1_Pooling/config.json", MEAN), ("2_Dense/config.json", GELU)],
        "activation_function \"GELU\" is not known here",
    ),
    (
        &[("modules.json", DENSE), ("1_Pooling/config.json", MEAN), ("2_Dense/config.json", "{}")],
        "model.safetensors: there is no such file",
    ),
    (
        &[
            ("1_Pooling/config.json", NO_PROMPT),
            ("config_sentence_transformers.json", "{\"prompts\": {\"q\": \"ask\"}}"),
        ],
        "include_prompt = false",
    ),
];
const DENSE: &str = r#"[{"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Dense", "path": "2_Dense"}]"#;
const MEAN: &str = r#"{"pooling_mode_mean_tokens": true}"#;
const NO_PROMPT: &str = r#"{"pooling_mode_mean_tokens": true, "include_prompt": false}"#;
const GELU: &str = r#"{"activation_function": "torch.nn.GELU"}"#;

#[test]
fn each_reason_for_which_a_model_reads_no_text_is_the_cause() {
    for (files, cause) in REFUSALS {
        let folder = folder(&of_texts("encoder.onnx"), &[("model.toml", "max_batch = 2")]);
        files.iter().for_each(|(file, text)| drop(folder.write(&format!("m/{file}"), text)));
        let prepared = prepare(&folder, cpu()).unwrap_or_else(|error| panic!("{cause}: {error}"));
        let reason = prepared.no_text.clone().unwrap_or_else(|| panic!("{cause}: it reads texts"));
        assert!(prepared.text.is_none() && reason.contains(cause), "{cause}: {reason}");
        assert!(prepared.warnings.iter().any(|warning| warning.contains(cause)), "{cause}: the log does not tell");
        // An owner who asks for texts gets the same cause as an error.
        folder.write("m/model.toml", "max_batch = 2\n[text]");
        let error = prepare(&folder, cpu()).err().unwrap_or_else(|| panic!("{cause}: [text] is no error"));
        assert!(error.contains(cause), "{cause}: {error}");
    }
    // Models that are no text models: the log has nothing to say, and a request gets the cause.
    let dense = prepare(&folder(&onnx("mlp.onnx"), &[]), cpu()).unwrap();
    assert!(dense.no_text.unwrap().contains("the model takes x"));
    let emulated = prepare(&folder(&[], &[("model.toml", EMULATED)]), emulated()).unwrap();
    assert!(emulated.no_text.unwrap().contains("an emulated model computes no values"));
}

#[test]
fn files_behind_links_that_lead_out_are_not_read() {
    let (folder, outside) =
        (folder(&of_texts("encoder.onnx"), &[("model.toml", "max_batch = 2")]), TempRepository::new());
    let secret = outside.write("config.json", r#"{"max_position_embeddings": 9}"#);
    std::os::unix::fs::symlink(secret, folder.path().join("m/config.json")).unwrap();
    assert!(prepare(&folder, cpu()).err().unwrap().contains("leads out of the repository"));
    let allowed = prepare(&folder, LoadTarget { allow_symlinks: true, ..cpu() }).unwrap();
    assert_eq!(allowed.text.unwrap().max_length, 9);
}
