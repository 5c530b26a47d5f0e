use super::super::ModelConfig;
use super::*;

fn parse(text: &str) -> Result<ModelConfig, String> {
    ModelConfig::parse("m/model.toml", text)
}

const DATES: &str = r#"walk = "encode-decode"
max_length = 64
max_steps = 16
[[block]]
name = "encoder"
[block.inputs]
token = "request:text"
h = "previous.h_next"
[[block]]
name = "decoder"
end = "done"
max_batch = 8
[block.inputs]
token = "previous.token_next"
h = "previous.h_next"
[block.initial]
token = 2
h = "encoder.h_next"
[[output]]
name = "tokens"
from = "decoder.token_next"
take = "every"
"#;

#[test]
fn a_decoder_takes_up_where_its_encoder_ends() {
    let cells = parse(DATES).unwrap().cells.unwrap();
    assert_eq!((cells.walk, cells.max_length, cells.limit), (Walk::EncodeDecode, 64, StepLimit::Fixed(16)));
    let [encoder, decoder] = &cells.cells[..] else { panic!("there are two") };
    assert_eq!((encoder.steps, encoder.priority, &encoder.end), (Steps::Length, 0, &None));
    assert_eq!((decoder.steps, decoder.priority, decoder.max_batch), (Steps::UntilEnd, 1, Some(8)));
    let link =
        |input: &str, from: InputSource, initial: Option<Initial>| InputLink { input: input.into(), from, initial };
    let previous = |output: &str| InputSource::Previous(output.into());
    assert_eq!(
        encoder.links,
        [link("token", InputSource::Request("text".into()), None), link("h", previous("h_next"), None)]
    );
    let h = Some(Initial::Last(BlockId(0), "h_next".into()));
    assert_eq!(
        decoder.links,
        [link("token", previous("token_next"), Some(Initial::Number(2.0))), link("h", previous("h_next"), h)]
    );
    let answer = AnswerSource {
        name: "tokens".into(),
        block: Some(BlockId(1)),
        tensor: "token_next".into(),
        take: AnswerSteps::Every,
    };
    assert_eq!(cells.answers, [answer]);
}

#[test]
fn layers_take_the_same_step_and_heads_the_last_one() {
    let text = "walk = \"stacked\"\n[[block]]\nname = \"a\"\n[[block]]\nname = \"b\"\n[block.inputs]\nx = \"a.h\"\n\
        [[block]]\nname = \"head\"\nonce = true\n[block.inputs]\nx = \"b.h\"\n[[output]]\nname = \"y\"\nfrom = \"head.y\"";
    let cells = parse(text).unwrap().cells.unwrap().cells;
    assert_eq!(cells[1].links[0].from, InputSource::Step(BlockId(0), "h".into()));
    assert_eq!((cells[2].steps, &cells[2].links[0].from), (Steps::Once, &InputSource::Last(BlockId(1), "h".into())));
    let both = text.replace("stacked", "bidirectional").replace("[block.inputs]\nx = \"a.h\"\n", "");
    let cells = parse(&both).unwrap().cells.unwrap().cells;
    assert_eq!((cells[0].backward, cells[1].backward, cells[2].steps), (false, true, Steps::Once));
}

#[test]
fn a_tree_takes_children_and_answers_with_its_root() {
    let text = "walk = \"tree\"\n[[block]]\nname = \"leaf\"\n[[block]]\nname = \"internal\"\n[block.inputs]\n\
        h1 = \"child1.h\"\n[[output]]\nname = \"y\"\nfrom = \"root.h\"";
    let cells = parse(text).unwrap().cells.unwrap();
    assert_eq!(cells.cells[1].links[0].from, InputSource::Child(1, "h".into()));
    assert_eq!((cells.cells[0].steps, cells.answers[0].block), (Steps::Nodes, None));
}

#[test]
fn every_mistake_names_its_line_and_what_to_write() {
    let cases = [
        (
            "encode-decode",
            "encode-decoder",
            ":1: walk = \"encode-decoder\": must be \"whole\" or \"chain\" or \"repeat\"",
        ),
        ("encode-decode", "repeat", ":3: max_steps = 16: belongs to walk = \"encode-decode\""),
        ("walk = \"encode-decode\"", "", "max_length = 64: belongs to a walk of cells"),
        ("end = \"done\"", "", ": [[block]] number 2: the key end is missing; name the output"),
        (
            "\"encoder.h_next\"",
            "\"encodr.h_next\"",
            ": [[block]] number 2: initial: h = \"encodr.h_next\": no block \"encodr\"",
        ),
        ("\"encoder.h_next\"", "\"encoder\"", "h = \"encoder\": must be a number, or the last output of a block"),
        (
            "\"request:text\"",
            "\"requests\"",
            ":7: [[block]] number 1: inputs: token = \"requests\": must be one of \"request\"",
        ),
        ("\"request:text\"", "\"child0.h\"", "token = \"child0.h\": only the cells of a tree or graph have children"),
        (
            "\"request:text\"",
            "\"root.h\"",
            "token = \"root.h\": only a head (once = true) of a tree or graph takes its root",
        ),
        (
            "\"request:text\"",
            "\"decoder.h\"",
            "token = \"decoder.h\": no block \"decoder\" stands before this one, only none",
        ),
        ("\"request:text\"", "5", "token = 5: must be text in quotes"),
        (
            "token = 2",
            "tokn = 2",
            "initial: tokn = 2: is for inputs that [block.inputs] takes from \"previous.OUTPUT\"",
        ),
        ("name = \"encoder\"", "name = \"previous\"", "name = \"previous\": has a meaning of its own"),
        (
            "name = \"encoder\"",
            "name = \"encoder\"\nonce = true",
            "once = true: walk = \"encode-decode\" needs an encoder and a decoder",
        ),
        ("name = \"encoder\"", "name = \"encoder\"\nend = \"done\"", "end = \"done\": belongs to the decoder"),
        ("max_batch = 8", "batch_sizes = [8, 4]", "batch_sizes = [8, 4]: must be ascending whole numbers from 1"),
        (
            "from = \"decoder.token_next\"",
            "from = \"decder.token_next\"",
            "from = \"decder.token_next\": no block \"decder\" stands before this one, only encoder, decoder; did you mean decoder?",
        ),
        ("from = \"decoder.token_next\"", "", "the key from is missing; add for example from = \"decoder.token_next\""),
        ("take = \"every\"", "take = \"all\"", "take = \"all\": must be \"last\" or \"every\""),
        ("max_steps = 16", "max_steps = 16\nextra_steps = 3", "max_steps = 16: stands beside extra_steps"),
        ("max_steps = 16", "granularity = \"layers\"", "granularity = \"layers\": cuts"),
    ];
    for (before, after, expected) in cases {
        assert!(DATES.contains(before), "{before}");
        let error = parse(&DATES.replacen(before, after, 1)).expect_err(after);
        assert!(error.starts_with("m/model.toml:") && error.contains(expected), "{after}: {error}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
    let short = "walk = \"tree\"\n[[block]]\nname = \"leaf\"\n[[output]]\nname = \"y\"\nfrom = \"root.h\"";
    let error = parse(short).unwrap_err();
    assert!(error.contains("walk = \"tree\": needs a leaf and an internal block, and maybe a head"), "{error}");
    let silent = DATES.split("[[output]]").next().unwrap();
    assert!(parse(silent).unwrap_err().contains("a walk of cells needs an [[output]]"));
}

#[test]
fn a_length_profile_is_for_decoders() {
    let read = |keys: &str| parse(&DATES.replacen("max_steps = 16", &format!("max_steps = 16\n{keys}"), 1));
    let lengths = read("length_profile = \"l.csv\"").unwrap().cells.unwrap().lengths.unwrap();
    assert_eq!((lengths.file.as_str(), lengths.coverage), ("l.csv", 0.9));
    let alone = read("coverage = 0.9").unwrap_err();
    assert!(alone.contains("coverage = 0.9: needs length_profile = \"lengths.csv\" beside it"), "{alone}");
    let percent = read("length_profile = \"l.csv\"\ncoverage = 90").unwrap_err();
    assert!(percent.contains("coverage = 90: must be a number above 0 and at most 1"), "{percent}");
    let whole = parse("length_profile = \"l.csv\"").unwrap_err();
    assert!(whole.contains("length_profile = \"l.csv\": belongs to a walk of cells"), "{whole}");
}
