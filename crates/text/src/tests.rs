//! Tests with models in folders that contain Hugging Face sidecar files.

use crate::{Pooling, TextConfig, TextModel, TextReader, TextTask, TokenizeError};
use ripieno_model::{DataType, TensorSpec};
use std::fs;
use std::path::{Path, PathBuf};

fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
}

fn inputs(length: i64) -> Vec<TensorSpec> {
    ["input_ids", "attention_mask", "token_type_ids"].map(|name| spec(name, DataType::Int64, &[-1, length])).to_vec()
}

fn hidden() -> TensorSpec {
    spec("last_hidden_state", DataType::Fp32, &[-1, -1, 4])
}

fn logits(classes: i64) -> TensorSpec {
    spec("logits", DataType::Fp32, &[-1, classes])
}

/// Creates a folder with the test tokenizer and these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/tokenizer.json");
    fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn reader(folder: &Path) -> Result<TextReader, String> {
    TextReader::read(&[PathBuf::from("/nowhere"), folder.to_owned()]).map(|reader| reader.expect("it has a tokenizer"))
}

fn fit(files: &[(&str, &str)], config: &TextConfig, output: TensorSpec) -> Result<TextModel, String> {
    let folder = folder(files);
    let reader = reader(folder.path())?;
    let longest = reader.max_length();
    reader.fit(config, longest, &inputs(-1), &[output])
}

/// Tokenising megabytes of text takes seconds, so only as much text is read as the token limit
/// allows.
#[test]
fn no_more_of_a_text_is_read_than_its_tokens_can_be() {
    let folder = folder(&[]);
    let model = reader(folder.path()).unwrap().fit(&TextConfig::default(), 100, &inputs(-1), &[hidden()]).unwrap();
    let (short, long) = ("the film was bad ".repeat(50), "the film was bad ".repeat(200_000));
    assert_eq!(model.encode(&short, None, false), Err(TokenizeError::TooLong(100)));
    let refused = TokenizeError::TooManyBytes { bytes: long.len(), most: 6400, tokens: 100 };
    assert_eq!(model.encode(&long, None, false), Err(refused.clone()));
    assert_eq!(model.encode("the film", Some(&long), false), Err(refused));
    // The tokens that are kept are the same, of one text and of a pair.
    assert_eq!(model.encode(&long, None, true), model.encode(&short, None, true));
    assert_eq!(model.encode(&long, Some(&long), true), model.encode(&short, Some(&short), true));
    // The cut falls inside a two-byte character; the text that is read is one unknown word.
    let unknown = format!("a{}", "ä".repeat(1_000_000));
    assert_eq!(model.encode(&unknown, None, true).map(|tokens| tokens.ids.len()), Ok(3));
}

#[test]
fn texts_become_tokens_and_long_ones_are_refused_or_truncated() {
    let folder = folder(&[]);
    let model = reader(folder.path()).unwrap().fit(&TextConfig::default(), 8, &inputs(-1), &[hidden()]).unwrap();
    // [CLS] the film ##s felt great [SEP]; words are counted from 4 on.
    let tokens = model.encode("The films felt GREAT", None, false).unwrap();
    assert_eq!((tokens.ids.len(), tokens.ids[0], tokens.ids[1], tokens.ids[6]), (7, 2, 4, 3));
    let pair = model.encode("the film", Some("was bad"), false).unwrap();
    assert_eq!((pair.ids.len(), pair.types.clone()), (7, vec![0, 0, 0, 0, 1, 1, 1]));
    let long = "the film was bad ".repeat(50);
    assert_eq!(model.encode(&long, None, false), Err(TokenizeError::TooLong(8)));
    let cut = model.encode(&long, None, true).unwrap();
    assert_eq!((cut.ids.len(), cut.ids[7]), (8, 3), "the end keeps its mark");
    assert_eq!(model.encode("", None, false).unwrap().ids, [2, 3]);
    let refused = (model.check_ids(vec![], true), model.check_ids(vec![1; 9], false));
    assert_eq!(refused, (Err(TokenizeError::Empty), Err(TokenizeError::TooLong(8))));
    assert_eq!(model.check_ids((0..9).collect(), true).unwrap().ids, (0..8).collect::<Vec<_>>());
}

#[test]
fn inputs_are_what_the_model_takes() {
    let folder = folder(&[]);
    let fit =
        |length| reader(folder.path()).unwrap().fit(&TextConfig::default(), 8, &inputs(length), &[hidden()]).unwrap();
    let int =
        |bytes: &[u8]| -> Vec<i64> { bytes.as_chunks().0.iter().map(|&number| i64::from_le_bytes(number)).collect() };
    let tokens = fit(-1).encode("the film", None, false).unwrap();
    let open: Vec<_> =
        fit(-1).encode_inputs(&tokens, |_| DataType::Int64).into_iter().map(|input| int(&input.2)).collect();
    assert_eq!(open, [vec![2, 4, 7, 3], vec![1; 4], vec![0; 4]]);
    // Exported for a length of six: filled up, and masked.
    let fixed = fit(6);
    let filled: Vec<_> =
        fixed.encode_inputs(&tokens, |_| DataType::Int64).into_iter().map(|input| int(&input.2)).collect();
    assert_eq!(filled, [vec![2, 4, 7, 3, 0, 0], vec![1, 1, 1, 1, 0, 0], vec![0; 6]]);
    assert_eq!(fixed.encode("the film was very bad", None, false), Err(TokenizeError::TooLong(6)));
    let narrow = fit(-1);
    let narrow = narrow.encode_inputs(&tokens, |_| DataType::Int32);
    assert_eq!(narrow[0].2, [2_i32, 4, 7, 3].map(i32::to_le_bytes).concat());
    // Some exports take the positions, too.
    let mut specs = inputs(-1);
    specs.push(spec("position_ids", DataType::Int64, &[-1, -1]));
    let counted = reader(folder.path()).unwrap().fit(&TextConfig::default(), 8, &specs, &[hidden()]).unwrap();
    let counted = counted.encode_inputs(&tokens, |_| DataType::Int64);
    assert_eq!((counted[3].0, int(&counted[3].2)), ("position_ids", vec![0, 1, 2, 3]));
}

#[test]
fn a_sentence_encoder_says_that_it_reads_lower_case() {
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(tokenizer).unwrap()).unwrap();
    tokenizer["normalizer"] = serde_json::Value::Null;
    let sentence = r#"{"do_lower_case": true, "max_seq_length": 9}"#;
    let files = [("tokenizer.json", &*tokenizer.to_string()), ("sentence_roberta_config.json", sentence)];
    let folder = folder(&files);
    let model = reader(folder.path()).unwrap();
    let model = model.fit(&TextConfig::default(), 8, &inputs(-1), &[hidden()]).unwrap();
    assert_eq!(model.encode("THE Film", None, false), model.encode("the film", None, false));
}

#[test]
fn sidecar_files_determine_the_task() {
    let task = |files: &[(&str, &str)], output| fit(files, &TextConfig::default(), output).unwrap().task;
    let embed = |pooling, normalize| TextTask::Embed { pooling, normalize };
    assert_eq!(task(&[], hidden()), embed(Some(Pooling::MEAN), true));
    let pooling = ("1_Pooling/config.json", r#"{"word_embedding_dimension": 4, "pooling_mode_cls_token": true}"#);
    let modules = ("modules.json", r#"[{"idx": 0, "type": "sentence_transformers.models.Transformer"}]"#);
    assert_eq!(task(&[pooling, modules], hidden()), embed(Some(Pooling::CLS), false));
    let pooling = |modes: &str| format!(r#"{{"embedding_dimension": 4, "pooling_mode": {modes}}}"#);
    let named = |modes: &str| task(&[("1_Pooling/config.json", &pooling(modes)), modules], hidden());
    assert_eq!(named(r#""lasttoken""#), embed(Some(Pooling::LAST), false));
    let both = Pooling::MEAN.then(Pooling::CLS);
    assert_eq!(named(r#"["mean", "cls"]"#), embed(Some(both), false));
    assert_eq!(task(&[], spec("sentence_embedding", DataType::Fp16, &[-1, 4])), embed(None, true));
    assert_eq!(task(&[], logits(1)), TextTask::Rerank);
    let labels = (
        "config.json",
        r#"{"id2label": {"1": "good", "0": "bad"}, "architectures": ["BertForSequenceClassification"]}"#,
    );
    let classify = |labels: &[&str]| TextTask::Classify {
        labels: labels.iter().map(|&l| l.to_owned()).collect(),
        multi_label: false,
    };
    assert_eq!(task(&[labels], logits(2)), classify(&["bad", "good"]));
    assert_eq!(task(&[labels], logits(3)), classify(&["LABEL_0", "LABEL_1", "LABEL_2"]));
}

#[test]
fn the_longest_text_follows_from_the_strictest_file() {
    let longest = |files: &[(&str, &str)]| reader(folder(files).path()).unwrap().max_length();
    let roberta = ("config.json", r#"{"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}"#);
    let unlimited = ("tokenizer_config.json", r#"{"model_max_length": 1000000000000000019884624838656}"#);
    let sentence = ("sentence_bert_config.json", r#"{"max_seq_length": 256}"#);
    assert_eq!((longest(&[]), longest(&[roberta, unlimited])), (512, 512));
    assert_eq!(longest(&[roberta, unlimited, sentence]), 256);
}

#[test]
fn mismatches_are_refused_with_a_fix() {
    let config = |text: &str| TextConfig { task: Some(text.to_owned()), ..TextConfig::default() };
    let refused = |files: &[(&str, &str)], config, output| fit(files, &config, output).unwrap_err();
    let ids = spec("tokens", DataType::Int64, &[-1, 4]);
    for (error, needle) in [
        (refused(&[], config("classify"), hidden()), "a row for each token"),
        (refused(&[], config("rerank"), logits(2)), "has 2 numbers, and needs one"),
        (refused(&[], TextConfig::default(), ids), "texts need real numbers"),
        (
            refused(&[], TextConfig { output: Some("y".into()), ..TextConfig::default() }, hidden()),
            "gives last_hidden_state",
        ),
        (
            refused(&[], TextConfig { pooling: Some(Pooling::CLS), ..TextConfig::default() }, logits(1)),
            "one row a text already",
        ),
        (refused(&[("config.json", "{")], TextConfig::default(), hidden()), "config.json: EOF"),
        (
            refused(&[("1_Pooling/config.json", "{}")], TextConfig::default(), hidden()),
            "its way of pooling is not known",
        ),
    ] {
        assert!(error.contains(needle), "{error}");
    }
    let folder = folder(&[]);
    let image = [spec("image", DataType::Fp32, &[-1, 3, 8, 8])];
    let error = reader(folder.path()).unwrap().fit(&TextConfig::default(), 8, &image, &[hidden()]).unwrap_err();
    assert!(error.ends_with("the model takes image"), "{error}");
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    assert!(reader(folder.path()).err().unwrap().contains("tokenizer.json"));
    assert!(TextReader::read(&[PathBuf::from("/nowhere")]).unwrap().is_none());
}

#[test]
fn the_answer_is_read_by_the_task() {
    let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|number| number.to_le_bytes()).collect() };
    let read = |model: &TextModel, tokens, shape: &[i64], numbers: &[f32]| {
        model.read(tokens, DataType::Fp32, shape, &bytes(numbers))
    };
    let embedder = fit(&[], &TextConfig::default(), hidden()).unwrap();
    // The third row is of padding.
    let rows = [1.0, 0.0, 0.0, 3.0, 5.0, 0.0, 0.0, 5.0, 9.0, 9.0, 9.0, 9.0];
    assert_eq!(read(&embedder, 2, &[1, 3, 4], &rows), Some(vec![0.6, 0.0, 0.0, 0.8]));
    assert_eq!(read(&embedder, 4, &[1, 3, 4], &rows), None);
    let classifier = fit(&[], &TextConfig::default(), logits(2)).unwrap();
    assert_eq!(read(&classifier, 3, &[1, 2], &[2.0, 2.0]), Some(vec![0.5, 0.5]));
    let several = ("config.json", r#"{"problem_type": "multi_label_classification"}"#);
    let several = fit(&[several], &TextConfig::default(), logits(2)).unwrap();
    assert_eq!(read(&several, 3, &[1, 2], &[0.0, 100.0]), Some(vec![0.5, 1.0]));
    let ranker = fit(&[], &TextConfig::default(), logits(1)).unwrap();
    assert_eq!(read(&ranker, 3, &[1, 1], &[0.0]), Some(vec![0.5]));
    assert_eq!(ranker.read(3, DataType::Int64, &[1, 1], &[0; 8]), None);
}
