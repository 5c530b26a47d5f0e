use super::*;
use crate::proto::inference::DataType;
use crate::proto::inference::model_config::SchedulingChoice;
use std::collections::BTreeSet;

const TEXT: &str = r#"name: "resnet"   # a comment with { and "
platform: 'onnx' "runtime_onnx"
max_batch_size: 8
input [
  {
    name: "x"
    data_type: TYPE_FP32
    dims: [ 3, -1,
            224 ]
  },
  { name: "mask" data_type: TYPE_INT64 dims: 4 dims: -1 }
]
output { name: "y" data_type: TYPE_FP32 dims: [ ] }
dynamic_batching { }
parameters: { value: { string_value: "50" }, key: "slo_ms" }
parameters { key: "a\"b" value < string_value: "c" > }
metric_tags { key: 'team' value: "ocr" };
optimization { graph { level: - 1 } }
instance_group [ { count: 2 kind: KIND_CPU }, { gpus: [ 0, 1 ] } ]
version_policy: { specific: { versions: [ 1 ] } }
"#;

fn lines(text: &str) -> Vec<String> {
    let shown = |field: &Field| format!("{} {} = {}", field.line, field.name, field.value);
    parse(text).unwrap().fields.iter().map(shown).collect()
}

#[test]
fn a_text_becomes_messages() {
    let config = parse(TEXT).unwrap().config;
    assert_eq!(
        (config.name.as_str(), config.platform.as_str(), config.max_batch_size),
        ("resnet", "onnxruntime_onnx", 8)
    );
    assert_eq!((config.input[0].dims.as_slice(), config.input[1].dims.as_slice()), (&[3, -1, 224][..], &[4, -1][..]));
    assert_eq!(config.input[1].data_type(), DataType::TypeInt64);
    assert_eq!(config.parameters["slo_ms"].string_value, "50");
    assert_eq!(config.parameters["a\"b"].string_value, "c");
    assert!(matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
    assert_eq!((config.instance_group[0].count, &config.instance_group[1].gpus[..]), (2, &[0, 1][..]));
    assert_eq!(config.optimization.unwrap().graph.unwrap().level, -1);
}

#[test]
fn every_field_is_listed_with_its_line() {
    let expected = [
        "1 name = \"resnet\"",
        "2 platform = 'onnx' \"runtime_onnx\"",
        "3 max_batch_size = 8",
        "6 input[0].name = \"x\"",
        "7 input[0].data_type = TYPE_FP32",
        "8 input[0].dims = [3, -1, 224]",
        "11 input[1].name = \"mask\"",
        "11 input[1].data_type = TYPE_INT64",
        "11 input[1].dims = 4",
        "11 input[1].dims = -1",
        "13 output[0].name = \"y\"",
        "13 output[0].data_type = TYPE_FP32",
        "13 output[0].dims = []",
        "14 dynamic_batching = {}",
        "15 parameters[\"slo_ms\"].string_value = \"50\"",
        "16 parameters[\"a\\\"b\"].string_value = \"c\"",
        "17 metric_tags['team'] = \"ocr\"",
        "18 optimization.graph.level = -1",
        "19 instance_group[0].count = 2",
        "19 instance_group[0].kind = KIND_CPU",
        "19 instance_group[1].gpus = [0, 1]",
        "20 version_policy.specific.versions = [1]",
    ];
    assert_eq!(lines(TEXT), expected);
}

#[test]
fn values_are_listed_in_one_way_of_writing_them() {
    let text =
        "response_cache { enable: True }\ninstance_group { kind: 1 passive: 0 }\noptimization { eager_batching: t }";
    let expected = [
        "1 response_cache.enable = true",
        "2 instance_group[0].kind = KIND_GPU",
        "2 instance_group[0].passive = false",
        "3 optimization.eager_batching = true",
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn listed_paths_are_known_ones() {
    let known: BTreeSet<String> = known_fields().into_iter().collect();
    assert!(known.contains("dynamic_batching.priority_queue_policy.max_queue_size") && known.contains("metric_tags"));
    assert!(known.contains("version_policy.all") && !known.contains("parameters.key"));
    for field in parse(TEXT).unwrap().fields {
        assert!(known.contains(&field.path) || field.value == "{}", "{field:?}");
    }
}

#[test]
fn mistakes_name_their_line() {
    let mistakes = [
        ("max_batch_size: 8\n\nmax_batchsize: 4\n", 3, "field 'max_batchsize' not found for message 'ModelConfig'"),
        ("max_batch_size: \"8\"", 1, "expected an integer, but found '\"8\"'"),
        ("input { data_type: FP32 }", 1, "value 'FP32' was not found for enum 'DataType'"),
        ("name: \"a\"\nname: \"b\"", 2, "'name' is already set"),
        ("dynamic_batching { }\nensemble_scheduling { }", 2, "a value is already set for oneof 'scheduling_choice'"),
        ("input [\n{", 2, "reached end of input"),
        ("max_batch_size: 99999999999", 1, "out of range"),
        ("[x.y/inference.ModelConfig] { }", 1, "google.protobuf.Any"),
        ("name: \"unclosed", 1, ""),
        ("\u{feff}name: \"a\"", 1, ""),
    ];
    for (text, line, message) in mistakes {
        let error = parse(text).unwrap_err();
        assert!(error.line == line && error.message.contains(message), "{text:?}: {error:?}");
    }
}

#[test]
fn deep_or_long_texts_are_refused_before_parsing() {
    let any = "[a/inference.ModelConfig]{";
    let deep = parse(&format!("name: \"x\"\n{}", any.repeat(40_000))).unwrap_err();
    assert_eq!((deep.line, deep.message.as_str()), (2, "messages are nested more than 32 deep"));
    assert!(parse(&" ".repeat(MAX_TEXT + 1)).unwrap_err().message.contains("longer than"));
    let in_strings = format!("name: \"{}\" # {}", "{".repeat(100), "<".repeat(100));
    assert_eq!(parse(&in_strings).unwrap().config.name.len(), 100);
}

#[test]
fn an_empty_text_sets_nothing() {
    let empty = parse(" # nothing\n").unwrap();
    assert_eq!((empty.config, empty.fields), (ModelConfig::default(), Vec::new()));
}

#[test]
fn json_says_the_same_as_the_text() {
    let json = r#"{"name": "resnet", "max_batch_size": 8, "platform": "onnxruntime_onnx",
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["3", -1, 224]}],
        "parameters": {"slo_ms": {"string_value": "50"}, "a\"b": {"string_value": "c\n}"}},
        "dynamic_batching": {}, "version_policy": {"specific": {"versions": ["1"]}},
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}]}"#;
    let config = parse(&from_json(json).unwrap()).unwrap().config;
    assert_eq!((config.name.as_str(), config.max_batch_size), ("resnet", 8));
    assert_eq!((config.input[0].data_type(), &config.input[0].dims[..]), (DataType::TypeFp32, &[3, -1, 224][..]));
    assert_eq!(config.parameters["a\"b"].string_value, "c\n}", "what is quoted ends no message");
    assert!(matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
    assert_eq!((config.instance_group[0].count, config.instance_group[0].kind().as_str_name()), (2, "KIND_CPU"));
    assert_eq!(parse(&from_json("{}").unwrap()).unwrap().fields, []);
    for (wrong, words) in [
        ("", "EOF"),
        ("{} {}", "trailing"),
        (r#"{"max_batchsize": 8}"#, "max_batchsize"),
        (r#"{"max_batch_size": "many"}"#, "invalid"),
        (r#"{"input": [{"data_type": "FP32"}]}"#, "FP32"),
        ("[1]", "expected a map"),
    ] {
        let error = from_json(wrong).unwrap_err();
        assert!(error.contains(words), "{wrong}: {error}");
    }
    assert!(from_json(&"[".repeat(100_000)).is_err());
}
