use super::*;
use crate::fixture::TempRepository;
use ripieno_base::BlockId;
use ripieno_executor::{ComparisonOperator, GpuOptions, InputRange, Precision, TensorRule};
use ripieno_model::DataType;

fn parse(text: &str) -> Result<ModelConfig, String> {
    ModelConfig::parse("m/model.toml", text)
}

fn error(text: &str) -> String {
    parse(text).expect_err(text)
}

#[test]
fn an_empty_file_is_all_defaults() {
    let config = parse("").unwrap();
    assert_eq!((config.slo, config.max_batch, config.instances), (None, None, usize::MAX));
    assert_eq!((config.warm_up, config.max_queue), (DEFAULT_WARM_UP, None));
    assert_eq!((config.answer_late, config.drop, config.latency), (None, None, None));
    assert_eq!(config.granularity, Granularity::Whole);
}

#[test]
fn every_key_is_read() {
    let config = parse(
        r#"
        slo_ms = 25
        max_batch = 0x10
        instances = 2
        policy = "deferred"
        warm_up = false
        late = "answer"
        drop = "never"
        max_queue = 50
weight = 3
        walk = "chain"
        [[block]]
        name = "encoder"
        file = "encoder.onnx"
        latency_ms = [1, 1.5, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        [[block]]
        name = "decoder"
        alpha_ms = 1.053
        beta_ms = 5
        [[input]]
        name = "x"
        datatype = "INT64"
        shape = [-1, 16]
        [[output]]
        name = "y"
        datatype = "FP32"
        shape = [-1, -1]
        "#,
    )
    .unwrap();
    assert_eq!((config.slo, config.max_batch), (Some(Nanos::from_millis(25)), Some(16)));
    assert_eq!((config.instances, config.policy.as_deref(), config.warm_up), (2, Some("deferred"), 0));
    assert_eq!((config.answer_late, config.drop, config.max_queue), (Some(true), Some(DropRule::Never), Some(50)));
    assert_eq!(config.weight, 3);
    assert_eq!(config.blocks[0].file.as_deref(), Some("encoder.onnx"));
    assert_eq!(config.blocks[1].latency, Some(Latency::Line { alpha_ms: 1.053, beta_ms: 5.0 }));
    let x = TensorSpec { name: "x".into(), datatype: DataType::Int64, shape: vec![-1, 16] };
    assert_eq!(config.inputs, [x]);
    assert_eq!(config.outputs[0].shape, [-1, -1]);
}

#[test]
fn an_unknown_key_names_its_line_and_the_nearest_valid_key() {
    assert_eq!(error("max_batch = 4\nslo = 5\n"), "m/model.toml:2: unknown key slo; did you mean slo_ms?");
    assert_eq!(error("max_batch_size = 4"), "m/model.toml:1: unknown key max_batch_size; did you mean max_batch?");
    assert_eq!(error("Max_Batch = 4"), "m/model.toml:1: unknown key Max_Batch; did you mean max_batch?");
    let far = error("zebra = 1");
    assert!(far.starts_with("m/model.toml:1: unknown key zebra; valid keys are slo_ms, queue_timeout_ms"), "{far}");
    let inner = error("[[block]]\nname = \"a\"\nfiel = \"a.onnx\"\n");
    assert_eq!(inner, "m/model.toml:3: [[block]] number 1: unknown key fiel; did you mean file?");
}

#[test]
fn a_wrong_value_names_what_was_written_and_what_to_write() {
    let cases = [
        ("slo_ms = \"fast\"", "slo_ms = \"fast\": must be a number above 0"),
        ("slo_ms = 0", "slo_ms = 0: must be a number above 0"),
        ("slo_ms = nan", "slo_ms = nan: must be a number above 0"),
        ("max_batch = 0", "max_batch = 0: must be a whole number from 1 to 4096"),
        ("max_batch = 2.5", "max_batch = 2.5: must be a whole number"),
        ("instances = -1", "instances = -1: must be a whole number from 1"),
        ("warm_up = \"yes\"", "warm_up = \"yes\": must be a whole number from 0"),
        ("late = \"maybe\"", "late = \"maybe\": must be \"answer\" or \"refuse\""),
        ("policy = 3", "policy = 3: must be text in quotes, for example policy = \"deferred\""),
        ("latency_ms = [1, -2]", "latency_ms = [1, -2]: must be a list of numbers above 0"),
        ("latency_ms = []", "latency_ms = []: must be a list of numbers above 0"),
        ("block = 3", "block = 3: must be written as a section [[block]] of its own"),
        ("slo_ms", "this is not valid TOML: "),
    ];
    for (text, expected) in cases {
        let message = error(text);
        assert!(message.starts_with(&format!("m/model.toml:1: {expected}")), "{text}: {message}");
        assert!(!message.contains('\n'), "one line: {message}");
    }
}

#[test]
fn a_file_too_long_to_be_a_description_is_not_read_to_its_end() {
    let folder = TempRepository::new();
    let comment = |bytes: u64| "# a note\n".repeat(bytes as usize / 9);
    let file = folder.write("model.toml", comment(super::MAX_FILE_BYTES));
    assert!(ModelConfig::read(&file).is_ok());
    folder.write("model.toml", comment(2 * super::MAX_FILE_BYTES));
    assert!(ModelConfig::read(&file).unwrap_err().contains("model.toml: is longer than 256 KiB; leave out"));
}

#[test]
fn an_error_is_one_line_whatever_it_quotes() {
    let error_of_a_value = error("latency_ms = [1.0,\n0, 3.0]");
    assert!(error_of_a_value.starts_with("m/model.toml:1: latency_ms = [1.0, 0, 3.0]: "), "{error_of_a_value}");
    let error_of_a_key = error(r#""a\nFAKE\u001b[31m" = 1"#);
    assert!(error_of_a_key.contains(r"unknown key a FAKE\u{1b}[31m;"), "{error_of_a_key}");
}

#[test]
fn a_model_in_one_file_is_cut_as_its_owner_says() {
    let granularity = |text: &str| parse(text).unwrap().granularity;
    assert_eq!(granularity("granularity = \"stages\"\nstages = 4"), Granularity::Stages(4));
    assert_eq!(granularity("granularity = \"stages\"\nstages = \"auto\""), Granularity::AutoStages);
    assert_eq!(granularity("granularity = \"layers\""), Granularity::Layers);
    assert_eq!(granularity("granularity = \"cells\""), Granularity::Cells);
    assert_eq!(granularity("granularity = \"whole\""), Granularity::Whole);
    let cases = [
        ("granularity = \"stages\"", ":1: granularity = \"stages\": needs stages = N beside it"),
        ("granularity = \"stages\"\nstages = \"all\"", ":2: stages = \"all\": must be a whole number from 1 to"),
        ("stages = 4", ":1: stages = 4: belongs to granularity = \"stages\""),
        ("granularity = \"layers\"\nlatency_ms = [1]", ":1: granularity = \"layers\": cuts the model"),
        ("granularity = \"parts\"", ":1: granularity = \"parts\": must be"),
    ];
    for (text, expected) in cases {
        let message = error(text);
        assert!(message.starts_with(&format!("m/model.toml{expected}")), "{text}: {message}");
    }
}

#[test]
fn an_engine_may_have_a_process_of_its_own() {
    let isolation = |text: &str| parse(text).unwrap().isolation;
    assert_eq!(isolation(""), IsolationConfig::Unset { splits: false });
    assert_eq!(isolation("granularity = \"layers\""), IsolationConfig::Unset { splits: true });
    assert_eq!(isolation("isolation = \"none\""), IsolationConfig::None);
    assert_eq!(isolation("isolation = \"process\""), IsolationConfig::Process);
    let process = |text: &str| parse(text).unwrap().process;
    let unlimited = ProcessConfig { memory_limit: None, task_limit: Duration::from_secs(60) };
    assert_eq!(process("isolation = \"process\""), unlimited);
    let limited = ProcessConfig { memory_limit: Some(1 << 30), task_limit: Duration::from_secs(5) };
    assert_eq!(process("isolation = \"process\"\nmemory_limit_mb = 1024\ntask_limit_s = 5"), limited);
    let refused = parse("slo_ms = 5\ntask_limit_s = 5").unwrap().needs_process.unwrap();
    assert!(refused.contains(":2: task_limit_s = 5: is for a process of its own; add isolation"), "{refused}");
    assert_eq!(parse("slo_ms = 5").unwrap().needs_process, None);
    assert!(error("isolation = \"thread\"").contains("must be"));
    assert!(error("isolation = \"process\"\nmemory_limit_mb = 1").contains("memory_limit_mb = 1: must be"));
}

#[test]
fn a_model_may_limit_its_share_of_a_gpu() {
    assert_eq!(parse("").unwrap().gpu, GpuOptions::default());
    let gpu = parse("gpu_memory_limit_mb = 1024\nallow_cpu_nodes = true").unwrap().gpu;
    assert_eq!(gpu, GpuOptions { memory_limit: Some(1 << 30), allow_cpu_nodes: true, precision: Precision::Tf32 });
    assert_eq!(parse("precision = \"fp16\"").unwrap().gpu.precision, Precision::Fp16);
    assert!(error("precision = \"fp8\"").contains("must be \"fp32\""));
    assert!(error("allow_cpu_nodes = 1").contains("allow_cpu_nodes = 1"));
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    let cases = [
        ("late = \"answer\"\ndrop = \"expired\"", ":2: drop = \"expired\": contradicts late = \"answer\""),
        ("alpha_ms = 1", ":1: alpha_ms = 1: needs beta_ms beside it"),
        ("beta_ms = 1", ":1: beta_ms = 1: needs alpha_ms beside it"),
        ("alpha_ms = 0\nbeta_ms = 0.0", ":1: alpha_ms = 0: must be above 0 where beta_ms is 0"),
        ("latency_ms = [1]\nalpha_ms = 1\nbeta_ms = 1", ":1: latency_ms = [1]: stands beside alpha_ms"),
        ("max_batch = 4\nlatency_ms = [1, 2]", ":1: max_batch = 4: latency_ms has 2 numbers"),
        (
            "isolation = \"process\"\ngranularity = \"layers\"",
            ":1: isolation = \"process\": runs files as they are; remove granularity",
        ),
        ("walk = \"chain\"", ":1: walk = \"chain\": needs the chain's parts"),
        ("latency_ms = [1]\n[[block]]\nname = \"a\"", ":1: latency_ms = [1]: belongs into each [[block]]"),
        ("walk = \"whole\"\n[[block]]\nname = \"a\"\n[[block]]\nname = \"b\"", ":1: walk = \"whole\": a model of"),
        ("[[block]]\nname = \"a\"\n[[block]]\nname = \"a\"", ":1: two [[block]] are named \"a\""),
        ("[[block]]\nfile = \"a.onnx\"", ":1: [[block]] number 1: the key name is missing; add for example"),
        ("[[block]]\nname = \"a\"\nfile = \"../a.onnx\"", ":3: [[block]] number 1: file = \"../a.onnx\": must be"),
    ];
    for (text, expected) in cases {
        let message = error(text);
        assert!(message.starts_with(&format!("m/model.toml{expected}")), "{text}: {message}");
    }
}

#[test]
fn a_declared_tensor_needs_sizes_and_a_known_type() {
    let tensor = |shape: &str, datatype: &str| {
        error(&format!("[[input]]\nname = \"x\"\ndatatype = \"{datatype}\"\nshape = {shape}\n"))
    };
    assert!(tensor("[-1, 0]", "FP32").contains("must hold sizes above 0"));
    assert!(tensor("[-1]", "float").contains(":3: [[input]] number 1: datatype = \"float\": must be \"BOOL\" or"));
}

#[test]
fn a_file_that_is_missing_or_not_text_is_named() {
    let folder = crate::fixture::TempRepository::new();
    let path = folder.path().join("model.toml");
    assert!(ModelConfig::read(&path).unwrap_err().contains("model.toml: cannot be read: "));
    std::fs::write(&path, b"slo_ms = 5\n\xff\xfe").unwrap();
    assert!(
        ModelConfig::read(&path)
            .unwrap_err()
            .ends_with("model.toml:2: the file is not UTF-8 text; save it in that encoding")
    );
}

#[test]
fn lengths_stand_in_dimensions_of_tensors() {
    let text = r#"
        max_length = 128
        [[input]]
        name = "ids"
        length_dim = 1
        [[input]]
        name = "mask"
        datatype = "INT64"
        shape = [-1, -1]
        length_dim = 1
        pad = -1
        [[output]]
        name = "tokens"
        length_dim = 2
    "#;
    let config = parse(text).unwrap();
    let LengthsConfig { max_length, dims } = config.lengths.unwrap();
    let inputs: Vec<_> = dims.inputs.iter().map(|input| (input.tensor.as_str(), input.dim, input.pad)).collect();
    assert_eq!((max_length, &inputs[..]), (128, &[("ids", 1, 0.0), ("mask", 1, -1.0)][..]));
    assert_eq!((dims.outputs[0].tensor.as_str(), dims.outputs[0].dim), ("tokens", 2));
    // A section with only a length dimension does not declare a datatype.
    assert_eq!((config.inputs.len(), config.outputs.len()), (1, 0));
    let input = "max_length = 8\n[[input]]\nname = \"ids\"\n";
    let cases = [
        (
            text.replace("max_length = 128", ""),
            "length_dim needs the longest request beside it; add for example max_length",
        ),
        (format!("{input}length_dim = 0"), "length_dim = 0: must be a whole number from 1"),
        (format!("{input}length_dim = 1\npad = \"0\""), "pad = \"0\": must be a number, without quotes"),
        (
            format!("{input}pad = 0\ndatatype = \"INT64\"\nshape = [-1, -1]"),
            "pad = 0: fills what is shorter than others; write length_dim = 1 beside it",
        ),
        ("max_length = 8".to_owned(), "belongs to a walk of cells or to inputs with a length_dim"),
        (format!("granularity = \"cells\"\n{input}length_dim = 1"), "pad nothing; remove every length_dim"),
        ("[[input]]\nlength_dim = 1".to_owned(), "the key name is missing"),
    ];
    for (text, words) in cases {
        assert!(error(&text).contains(words), "{}", error(&text));
    }
}

#[test]
fn latencies_by_length_ascend_and_need_lengths() {
    let lengths = "max_length = 64\n[[input]]\nname = \"ids\"\nlength_dim = 1\n";
    let of = |costs: &str| format!("by_length = [{costs}]\n{lengths}");
    let (short, long) = ("{ length = 8, alpha_ms = 1, beta_ms = 2 }", "{ length = 64, latency_ms = [9, 12] }");
    let config = parse(&of(&format!("{short}, {long}"))).unwrap();
    let table = Latency::Table(vec![9.0, 12.0]);
    assert_eq!(config.by_length, [(8, Latency::Line { alpha_ms: 1.0, beta_ms: 2.0 }), (64, table)]);
    let cases = [
        (of(&format!("{long}, {short}")), "length = 8: must be larger than that of the entry before"),
        (of("{ length = 8 }"), "the key alpha_ms is missing"),
        (of("{ alpha_ms = 1, beta_ms = 1 }"), "the key length is missing"),
        (of("{ length = 8, alpha = 1 }"), "unknown key alpha; did you mean alpha_ms?"),
        (format!("alpha_ms = 1\nbeta_ms = 1\n{}", of(short)), "alpha_ms = 1: stands beside by_length"),
        (format!("by_length = [{short}]"), "needs inputs with a length_dim"),
        (format!("granularity = \"layers\"\n{}", of(short)), "so it does not go with by_length"),
        (format!("max_batch = 4\n{}", of(long)), "latency_ms has 2 numbers"),
    ];
    for (text, words) in cases {
        assert!(error(&text).contains(words), "{}", error(&text));
    }
}

#[test]
fn exit_and_skip_conditions_are_read_and_errors_are_named() {
    let chain = |first: &str| {
        let block = |name: &str, more: &str| format!("[[block]]\nname = \"{name}\"\n{more}\n");
        [block("a", first), block("b", ""), block("c", ""), block("d", "")].concat()
    };
    let text = chain(
        "exit_when = \"confidence >= 0.9\"\nexit_outputs = { logits = \"exit1\" }\nskip_when = \"gate<-1e-3\"\nskip_to = \"c\"",
    );
    let conditions = parse(&text).unwrap().blocks.remove(0).conditions;
    let rule = |tensor: &str, comparison, number| TensorRule { tensor: tensor.to_owned(), comparison, number };
    assert_eq!(conditions.exit, Some(rule("confidence", ComparisonOperator::AtLeast, 0.9)));
    assert_eq!(conditions.skip, Some((rule("gate", ComparisonOperator::Below, -1e-3), BlockId(2))));
    assert_eq!(conditions.exit_outputs, [("logits".to_owned(), "exit1".to_owned())]);
    let cases = [
        ("exit_when = \"confidence\"", "must compare an output of the block with a number by >, >=, < or <="),
        ("exit_when = \"> 0.9\"", "must compare an output"),
        ("exit_when = \"confidence > high\"", "for example \"confidence > 0.9\""),
        ("exit_when = 0.9", "must be text in quotes"),
        ("exit_outputs = { logits = \"exit1\" }", "write exit_when beside it"),
        ("skip_when = \"gate < 0.1\"", "needs skip_to beside it"),
        ("skip_to = \"c\"", "needs skip_when beside it"),
        ("skip_when = \"gate < 0.1\"\nskip_to = \"b\"", "must name a block behind the next one"),
        ("skip_when = \"gate < 0.1\"\nskip_to = \"dd\"", "must name a block behind the next one; did you mean d?"),
    ];
    for (first, words) in cases {
        assert!(error(&chain(first)).contains(words), "{}", error(&chain(first)));
    }
    let cells = "walk = \"repeat\"\n[[block]]\nname = \"cell\"\nexit_when = \"a > 1\"\n[[output]]\nname = \"y\"\nfrom = \"cell.y\"";
    assert!(error(cells).contains("belongs to walk = \"chain\""), "{}", error(cells));
}

#[test]
fn a_range_of_an_input_needs_a_largest_number_above_the_smallest() {
    let range = |keys: &str| format!("[[input]]\nname = \"n\"\n{keys}\n");
    let config = parse(&range("min = 1\nmax = 64")).unwrap();
    assert_eq!(config.ranges, [InputRange { tensor: "n".to_owned(), least: 1.0, most: 64.0 }]);
    assert!(config.inputs.is_empty(), "type and shape are known from the file");
    assert_eq!(parse(&range("max = 0.5")).unwrap().ranges[0].least, 0.0);
    assert!(error(&range("min = 1")).contains("the key max is missing"));
    assert!(error(&range("max = -1")).contains("max = -1: is below min"));
    assert!(error(&range("max = \"9\"")).contains("must be a number"));
}

#[test]
fn the_user_guide_names_every_key_and_its_examples_are_valid() {
    let guide = include_str!("../../../../docs/reference/model-toml.md");
    for key in KEYS.iter().chain(&BLOCK_KEYS).chain(&INPUT_KEYS).chain(&OUTPUT_KEYS) {
        let forms = [format!("`{key}`"), format!("`[{key}]`"), format!("`[[{key}]]`")];
        assert!(forms.iter().any(|form| guide.contains(form)), "{key}");
    }
    assert!(text::KEYS.iter().all(|key| guide.contains(&format!("\n{key} = "))), "keys of [text]");
    let pages = [
        guide,
        include_str!("../../../../docs/guide/serve.md"),
        include_str!("../../../../docs/guide/text.md"),
        include_str!("../../../../docs/guide/sequences.md"),
    ];
    let fences = pages.iter().flat_map(|page| page.split("```toml\n").skip(1));
    let examples: Vec<&str> = fences.filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 13);
    for example in examples {
        assert_eq!(parse(example).err(), None, "{example}");
    }
}
