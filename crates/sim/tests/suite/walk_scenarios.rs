//! Scenario files of walks that unfold: accepted ones, their results, and the error of each
//! mistake.

use expect_test::{Expect, expect};
use ripieno_sim::{Scenario, Trace, simulate};
use std::path::PathBuf;

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ripieno-walks-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn scenario(&self, text: &str, requests: &str) -> Scenario {
        std::fs::write(self.0.join("requests.csv"), requests).unwrap();
        std::fs::write(self.0.join("s.toml"), text).unwrap();
        Scenario::read(&self.0.join("s.toml")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn traced(scenario: &Scenario) -> (String, String) {
    let mut trace = Trace::new(&scenario.setup.models);
    simulate(scenario, Some(&mut trace)).unwrap();
    (trace.tasks_csv(), trace.requests_csv())
}

const TRANSLATE: &str = r#"
    policy = "cellular"
    policy_options = { max_tasks = 2 }
    requests_file = "requests.csv"
    [cluster]
    devices = 2
    [[model]]
    name = "translate"
    slo_ms = 1000.0
    walk = "encode-decode"
    [[model.block]]
    name = "encoder"
    latency_ms = [1.0, 1.0]
    priority = 0
    [[model.block]]
    name = "decoder"
    latency_ms = [1.0, 1.0]
    priority = 1
"#;

/// The example of two workers, as a user would write it.
#[test]
fn listed_requests_walk_as_they_say() {
    let folder = Folder::new("listed");
    let requests = "arrival_ms,model,length,output_length\n0,translate,2,3\n0,translate,3,2\n0.5,translate,1,1\n";
    let (tasks, ends) = traced(&folder.scenario(TRANSLATE, requests));
    expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,1,0,translate,encoder,1 2
        0.5,1.5,1,translate,encoder,3
        1,2,0,translate,encoder,1 2
        1.5,2.5,1,translate,decoder,3
        2,3,0,translate,encoder,2
        2.5,3.5,1,translate,decoder,1
        3,4,0,translate,decoder,2
        3.5,4.5,1,translate,decoder,1
        4,5,0,translate,decoder,2
        4.5,5.5,1,translate,decoder,1
    "#]]
    .assert_eq(&tasks);
    expect![[r#"
        id,model,arrival_ms,start_ms,finish_ms,outcome
        1,translate,0,0,5.5,ok
        2,translate,0,0,5,ok
        3,translate,0.5,0.5,2.5,ok
    "#]]
    .assert_eq(&ends);
}

/// The end is not known in advance: queued steps run, and are wasted.
#[test]
fn hidden_ends_waste_the_steps_ahead() {
    let folder = Folder::new("hidden");
    let text = TRANSLATE.replace("walk = \"encode-decode\"", "walk = \"encode-decode\"\nextra_steps = 10");
    let scenario = folder.scenario(&text, "arrival_ms,model,length,output_length\n0,translate,1,1\n");
    let unfolded = simulate(&scenario, None).unwrap().unfolded.unwrap();
    assert_eq!((unfolded.tasks, unfolded.rows, unfolded.wasted_rows), (3, 3, 1));
    let (tasks, ends) = traced(&scenario);
    assert_eq!(tasks.lines().count(), 4);
    expect![[r#"
        id,model,arrival_ms,start_ms,finish_ms,outcome
        1,translate,0,0,2,ok
    "#]]
    .assert_eq(&ends);
}

/// A file of `ripieno profile --corpus` predicts as if its coverage had been given as a number of
/// steps.
#[test]
fn lazy_predicts_from_a_length_profile() {
    let folder = Folder::new("profile");
    std::fs::write(folder.0.join("lengths.csv"), "length,count\n1,3\n4,6\n30,1\n").unwrap();
    let lazy =
        TRANSLATE.replace("\"cellular\"", "\"lazy\"").replace("max_tasks = 2", "OPTION").replace("= 1000.0", "= 20.0");
    let requests = "arrival_ms,model,length,output_length\n0,translate,2,3\n0,translate,3,2\n2.5,translate,1,1\n4.5,translate,2,4\n";
    let run = |option: &str, keys: &str| {
        let walk = format!("walk = \"encode-decode\"\nmax_steps = 30\n{keys}");
        let text = lazy.replace("OPTION", option).replace("walk = \"encode-decode\"", &walk);
        traced(&folder.scenario(&text.replace("devices = 2", "devices = 1"), requests))
    };
    let (four, blind) = (run("dec_timesteps = 4", ""), run("", ""));
    assert_ne!(four, blind, "the prediction decides something here");
    assert_eq!(run("", "length_profile = \"lengths.csv\""), four, "nine of ten have up to 4 steps");
    assert_eq!(run("", "length_profile = \"lengths.csv\"\ncoverage = 1.0"), blind);
    assert_eq!(run("dec_timesteps = 4", "length_profile = \"lengths.csv\"\ncoverage = 1.0"), four);
}

#[test]
fn trees_are_brackets() {
    let folder = Folder::new("trees");
    let text = r#"
        policy = "cellular"
        requests_file = "requests.csv"
        [[model]]
        name = "sentiment"
        slo_ms = 1000.0
        walk = "tree"
        [[model.block]]
        name = "leaf"
        alpha_ms = 0.0
        beta_ms = 1.0
        max_batch = 8
        [[model.block]]
        name = "internal"
        alpha_ms = 0.0
        beta_ms = 1.0
        max_batch = 8
        [[model.block]]
        name = "head"
        once = true
        latency_ms = [0.5]
    "#;
    let (tasks, _) = traced(&folder.scenario(text, "arrival_ms,model,tree\n0,sentiment,((xx)x)\n0,sentiment,x\n"));
    expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,1,0,sentiment,leaf,1 1 1 2
        1,1.5,0,sentiment,head,2
        1.5,2.5,0,sentiment,internal,1
        2.5,3.5,0,sentiment,internal,1
        3.5,4,0,sentiment,head,1
    "#]]
    .assert_eq(&tasks);
}

fn random(policy: &str, walk: &str) -> Scenario {
    let text = format!("rate = 2000.0\nrequests = 2000\npolicy = {policy:?}\n{walk}");
    Scenario::parse(&text, "s.toml").unwrap()
}

const LSTM: &str = "[[model]]\nname = \"lstm\"\nslo_ms = 1000.0\nwalk = \"repeat\"\n\
                    lengths = { kind = \"histogram\", dataset = \"europarl-en\", mean = 24.0 }\n\
                    [[model.block]]\nname = \"cell\"\nlatency_points = [[1, 0.2], [64, 0.25]]\n";

/// Cellular batching waits less and wastes nothing.
#[test]
fn statistics_tell_waiting_from_computing() {
    let [cellular, bucketed] = ["cellular", "bucketed"].map(|policy| simulate(&random(policy, LSTM), None).unwrap());
    let [c, b] = [cellular.unfolded.unwrap(), bucketed.unfolded.unwrap()];
    assert_eq!(c.wasted_rows, 0);
    assert!(b.wasted_rows > b.rows / 10, "{b:?}");
    assert!(c.p99_queue_ms.unwrap() < b.p99_queue_ms.unwrap() && c.p50_compute_ms < b.p50_compute_ms);
    assert!(c.tasks_without_copy * 2 > c.tasks && c.answered_rps > 1900.0, "{c:?}");
    assert_eq!(cellular.total.late + cellular.total.dropped, 0);
}

/// Rows that differ between tasks are copied, which takes time.
#[test]
fn gathering_takes_time() {
    let plain = simulate(&random("cellular", LSTM), None).unwrap().total;
    let gather = LSTM.to_owned() + "gather_us_per_row = 2.0\n";
    let slower = simulate(&random("cellular", &gather), None).unwrap().total;
    assert!(slower.p50_ms.unwrap() > plain.p50_ms.unwrap());
}

#[test]
fn trees_of_the_treebank_run_under_both_policies() {
    let trees = "[[model]]\nname = \"t\"\nslo_ms = 1000.0\nwalk = \"tree\"\ntrees = { kind = \"shapes\", dataset = \"sst-test\" }\n\
                 [[model.block]]\nname = \"leaf\"\nalpha_ms = 0.001\nbeta_ms = 0.1\nmax_batch = 64\n\
                 [[model.block]]\nname = \"internal\"\nalpha_ms = 0.001\nbeta_ms = 0.1\nmax_batch = 64\n";
    for policy in ["cellular", "graph-merge"] {
        let summary = simulate(&random(policy, trees), None).unwrap();
        assert_eq!((summary.total.dropped, summary.total.late), (0, 0), "{policy}");
        assert!(summary.total.mean_batch > 1.0);
    }
}

#[test]
fn a_policy_that_does_not_serve_the_walk_names_those_that_do() {
    let error = random("deferred", LSTM).check_run("s.toml").unwrap_err().to_string();
    expect![[r#"s.toml: policy: policy "deferred" does not serve walk "repeat" of model "lstm"; these do: cellular, late, bucketed, graph-merge, lazy, lazy-oracle, unified"#]].assert_eq(&error);
}

fn mistake(model: &str, expected: Expect) {
    let text = format!("rate = 1.0\npolicy = \"cellular\"\n[[model]]\nname = \"m\"\nslo_ms = 9.0\n{model}");
    expected.assert_eq(&Scenario::parse(&text, "s.toml").unwrap_err().to_string());
}

#[test]
fn mistakes_are_named() {
    let cell = "[[model.block]]\nname = \"a\"\nlatency_ms = [1.0, 2.0]\n";
    mistake(
        &format!("walk = \"repeat\"\n{cell}"),
        expect![[r#"s.toml: model "m": walk = "repeat" needs lengths = { kind = "fixed", value = 24 }"#]],
    );
    mistake(
        &format!("walk = \"repeat\"\nlengths = {{ kind = \"fixed\", value = 0 }}\n{cell}"),
        expect![[r#"s.toml: model "m": lengths: kind "fixed" needs a value of 1 to 1048576"#]],
    );
    mistake(
        &format!("walk = \"repeat\"\nlengths = {{ kind = \"normal\" }}\n{cell}"),
        expect![[r#"s.toml: model "m": lengths: kind = "normal"; it must be "fixed", "lognormal" or "histogram""#]],
    );
    mistake(
        &format!("walk = \"encode-decode\"\n{cell}"),
        expect![[
            r#"s.toml: model "m": walk = "encode-decode" takes [[model.block]] tables: two, encoder and decoder; there are 1. A head has once = true"#
        ]],
    );
    mistake(
        &format!("walk = \"chain\"\nlength_profile = \"l.csv\"\n{cell}"),
        expect![[r#"s.toml: model "m": length_profile has no meaning for walk = "chain"; remove it"#]],
    );
    let two = format!("{cell}{}", cell.replace("\"a\"", "\"b\""));
    mistake(
        &format!("walk = \"tree\"\n{two}"),
        expect![[
            r#"s.toml: model "m": walk = "tree" needs trees = { kind = "complete", leaves = 16 }, or shapes from a file"#
        ]],
    );
    mistake(
        &format!("walk = \"graph\"\n{cell}"),
        expect![[
            r#"s.toml: model "m": walk = "graph"; it must be one of whole, chain, repeat, stacked, bidirectional, encode-decode, tree"#
        ]],
    );
    mistake(
        &format!("walk = \"chain\"\nlengths = {{ kind = \"fixed\", value = 3 }}\n{cell}"),
        expect![[
            r#"s.toml: model "m": lengths have no effect: latencies do not depend on them; give preferred_tokens or by_length"#
        ]],
    );
    let sizes = format!("walk = \"repeat\"\nlengths = {{ kind = \"fixed\", value = 3 }}\n{cell}sizes = [1, 4]\n");
    mistake(
        &sizes,
        expect![[r#"s.toml: model "m": block "a": sizes = [1, 4]; they must rise, from at least 1 to at most 2"#]],
    );
    let points = "[[model.block]]\nname = \"a\"\nlatency_points = [[4, 1.0], [2, 2.0]]\n";
    mistake(
        &format!("walk = \"repeat\"\nlengths = {{ kind = \"fixed\", value = 3 }}\n{points}"),
        expect![[
            r#"s.toml: model "m": block "a": latency_points = [[batch, ms], …] must be in order of their batches, from 1 on"#
        ]],
    );
}

#[test]
fn the_files_of_batchmaker_can_be_run() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/batchmaker");
    for name in ["lstm", "translate", "trees"] {
        let mut scenario = Scenario::read(&folder.join(name).with_extension("toml")).unwrap();
        scenario.length = ripieno_sim::Length::Requests(500);
        let summary = simulate(&scenario, None).unwrap();
        assert_eq!((summary.total.dropped, summary.total.late), (0, 0), "{name}");
    }
}
