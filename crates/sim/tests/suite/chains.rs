//! Scenario files of chains whose requests differ in length, leave early or skip blocks.

use expect_test::{Expect, expect};
use ripieno_base::Nanos;
use ripieno_sim::{Scenario, Trace, simulate};

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "s.toml").unwrap()
}

fn traced(scenario: &Scenario) -> (String, String) {
    let mut trace = Trace::new(&scenario.setup.models);
    simulate(scenario, Some(&mut trace)).unwrap();
    (trace.tasks_csv(), trace.requests_csv())
}

fn check_error(text: &str, expected: Expect) {
    expected.assert_eq(&Scenario::parse(text, "s.toml").unwrap_err().to_string());
}

const BERT: &str = "
    rate = 50.0
    requests = 2000
    policy = \"delay-batch\"
    [[model]]
    name = \"bert\"
    slo_ms = 200.0
    max_batch = 64
    walk = \"chain\"
    lengths = { kind = \"histogram\", dataset = \"glue-rte\" }
    [[model.block]]
    name = \"lower\"
    alone_ms = 4.0
    preferred_tokens = 512
    [[model.block]]
    name = \"upper\"
    by_length = [{ length = 8, alpha_ms = 0.1, beta_ms = 1.0 }, { length = 283, latency_points = [[1, 5.0], [64, 68.0]] }]
";

#[test]
fn a_block_costs_by_its_padded_length() {
    let scenario = scenario(BERT);
    let [lower, upper] = &scenario.setup.models[0].blocks[..] else { panic!() };
    let ms = |millis: f64| Nanos::from_millis_f64(millis);
    let lower = [(1, 300), (1, 512), (3, 200), (64, 283)].map(|(rows, length)| lower.cost(rows, length));
    assert_eq!(lower, [ms(4.0), ms(4.0), ms(4.0 * 600.0 / 512.0), ms(4.0 * 64.0 * 283.0 / 512.0)]);
    assert_eq!((upper.cost(2, 8), upper.profile.latency(2)), (ms(1.2), ms(6.0)));
    let summary = simulate(&scenario, None).unwrap();
    assert!(summary.total.bad_rate < 0.01, "{summary:?}");
}

/// A chain with exits and skips and a padded one, beside sequences: the checkers verify order and
/// padding.
#[test]
fn chains_with_skips_and_padded_stages_run_beside_sequences() {
    let text = |policy: &str| {
        let bert = BERT.split_once("[[model]]").unwrap().1;
        format!(
            "rate = 300.0\nrequests = 3000\npolicy = \"{policy}\"\n[[model]]{bert}
            [[model]]
            name = \"branches\"
            slo_ms = 200.0
            max_batch = 16
            walk = \"chain\"
            [[model.block]]
            name = \"first\"
            alpha_ms = 0.05
            beta_ms = 0.5
            exit_share = 0.2
            skip_share = 0.3
            skip_to = \"third\"
            [[model.block]]
            name = \"second\"
            alpha_ms = 0.1
            beta_ms = 1.0
            [[model.block]]
            name = \"third\"
            alpha_ms = 0.05
            beta_ms = 0.5
            [[model]]
            name = \"text\"
            slo_ms = 200.0
            walk = \"repeat\"
            lengths = {{ kind = \"fixed\", value = 20 }}
            [[model.block]]
            name = \"cell\"
            alpha_ms = 0.005
            beta_ms = 0.1
            max_batch = 64
            "
        )
    };
    for policy in ["cellular", "late"] {
        let scenario = scenario(&text(policy));
        let summary = simulate(&scenario, None).unwrap();
        assert_eq!(summary.models.len(), 3);
        for model in &summary.models {
            assert!(model.figures.bad_rate < 0.01 && model.figures.requests > 800, "{policy}: {model:?}");
        }
    }
}

/// A request that is much shorter than the oldest one waits for a batch of its own, if both
/// together would take longer than separately.
#[test]
fn a_batch_of_cells_pads_only_where_it_pays() {
    let text = "
        requests_file = \"PATH\"
        policy = \"cellular\"
        [[model]]
        name = \"m\"
        slo_ms = 1000.0
        max_batch = 8
        walk = \"chain\"
        [[model.block]]
        name = \"a\"
        by_length = [{ length = 10, alpha_ms = 1.0, beta_ms = 0.5 }, { length = 100, alpha_ms = 10.0, beta_ms = 0.5 }]
        [[model.block]]
        name = \"b\"
        by_length = [{ length = 10, alpha_ms = 1.0, beta_ms = 0.5 }, { length = 100, alpha_ms = 10.0, beta_ms = 0.5 }]
    ";
    let path = std::env::temp_dir().join(format!("ripieno-chains-{}.csv", std::process::id()));
    std::fs::write(&path, "arrival_ms,model,length\n0,m,100\n0,m,10\n0,m,100\n0,m,10\n").unwrap();
    let (tasks, _) = traced(&scenario(&text.replace("PATH", path.to_str().unwrap())));
    std::fs::remove_file(&path).unwrap();
    let mut members: Vec<_> =
        tasks.lines().skip(1).map(|line| line.split(',').skip(4).collect::<Vec<_>>().join(" ")).collect();
    members.sort();
    assert_eq!(members, ["a 1 3", "a 2 4", "b 1 3", "b 2 4"], "{tasks}");
}

#[test]
fn the_bound_counts_lengths_as_they_are() {
    let alone = "[[model]]\nname = \"m\"\nslo_ms = 200.0\nmax_batch = 64\nalone_ms = 4.0\npreferred_tokens = 512\n";
    let text = format!("rate = 1.0\n{alone}lengths = {{ kind = \"fixed\", value = 64 }}\n");
    // Eight requests of 64 tokens in 4 ms.
    assert!((scenario(&text).bound_rps() - 2000.0).abs() < 1.0, "{}", scenario(&text).bound_rps());
}

const EXITS: &str = "
    rate = 100.0
    requests = 4000
    warmup_fraction = 0.0
    policy = \"serial\"
    [[model]]
    name = \"m\"
    slo_ms = 500.0
    walk = \"chain\"
    [[model.block]]
    name = \"a\"
    latency_ms = [1.0]
    exit_share = 0.25
    [[model.block]]
    name = \"b\"
    latency_ms = [1.0]
    skip_share = 0.5
    skip_to = \"d\"
    [[model.block]]
    name = \"c\"
    latency_ms = [1.0]
    [[model.block]]
    name = \"d\"
    latency_ms = [1.0]
";

#[test]
fn requests_leave_and_skip_by_their_shares() {
    let scenario = scenario(EXITS);
    let skips: Vec<_> = scenario.setup.models[0].blocks.iter().map(|block| block.skips).collect();
    assert_eq!(skips, [false, true, false, false]);
    let (tasks, requests) = traced(&scenario);
    let runs = |block: &str| tasks.lines().filter(|line| line.split(',').nth(4) == Some(block)).count();
    assert_eq!(runs("a"), 4000);
    let (b, c, d) = (runs("b"), runs("c"), runs("d"));
    assert!(b == d && (2900..3100).contains(&b) && (1400..1600).contains(&c), "{b} {c} {d}");
    assert!(!requests.contains("dropped"));
    assert!((scenario.bound_rps() - 1e3 / (1.0 + 0.75 + 0.375 + 0.75)).abs() < 0.1);
    // Routes are drawn separately from arrivals: these stay the same.
    let all = EXITS.replace("exit_share = 0.25", "").replace("skip_share = 0.5\n    skip_to = \"d\"", "");
    let arrivals = |csv: &str| csv.lines().map(|line| line.split(',').nth(2).map(str::to_owned)).collect::<Vec<_>>();
    assert_eq!(arrivals(&requests), arrivals(&traced(&self::scenario(&all)).1));
}

#[test]
fn devices_have_the_lanes_that_the_policy_uses() {
    let mut scenario = scenario(BERT);
    let mut lanes = |policy: &str| {
        scenario.policy = policy.to_owned();
        scenario.effective_setup().limits.lanes
    };
    assert_eq!([lanes("dva"), lanes("delay-batch"), lanes("unknown")], [4, 1, 1]);
    scenario.policy = "dva".to_owned();
    assert!(simulate(&scenario, None).unwrap().total.bad_rate < 0.01);
}

#[test]
fn the_scenarios_of_the_guide_run() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/dvabatch");
    for name in ["unet", "bert", "early-exit"] {
        let scenario = Scenario::read(&folder.join(format!("{name}.toml"))).unwrap();
        let total = simulate(&scenario, None).unwrap().total;
        assert!(total.bad_rate < 0.01 && total.dropped == 0, "{name}: {total:?}");
    }
}

#[test]
fn invalid_values_are_refused() {
    let whole = |keys: &str| format!("rate = 1.0\n[[model]]\nname = \"m\"\nslo_ms = 9.0\n{keys}");
    check_error(
        &whole("latency_ms = [1.0]\nlengths = { kind = \"fixed\", value = 3 }"),
        expect![[
            r#"s.toml: model "m": lengths have no effect: latencies do not depend on them; give preferred_tokens or by_length"#
        ]],
    );
    let tokens = "alone_ms = 1.0\npreferred_tokens = 64\n";
    check_error(&whole(tokens), expect![[r#"s.toml: model "m": alone_ms needs max_batch"#]]);
    check_error(
        &whole(&format!("{tokens}max_batch = 4")),
        expect![[r#"s.toml: model "m": walk = "whole" needs lengths = { kind = "fixed", value = 24 }"#]],
    );
    check_error(
        &whole(&format!("{tokens}max_batch = 4\nmax_length = 5\nlengths = {{ kind = \"fixed\", value = 9 }}")),
        expect![[r#"s.toml: model "m": max_length = 5, but lengths go up to 9; give lengths a max of 5"#]],
    );
    check_error(
        &whole("by_length = [{ length = 4, latency_ms = [1.0] }, { length = 8, latency_ms = [0.5] }]"),
        expect![[
            r#"s.toml: model "m": by_length: length 8 has a batch that costs less than the same of a shorter length"#
        ]],
    );
    check_error(
        &EXITS.replace("\"d\"\n    [[model.block]]\n    name = \"c\"", "\"b\"\n    [[model.block]]\n    name = \"c\""),
        expect![[r#"s.toml: model "m": block "b": skip_to = "b"; it must be the name of a later block"#]],
    );
    check_error(
        &EXITS.replace("0.25", "1.25"),
        expect![[
            r#"s.toml: model "m": block "a": exit_share = 1.25, skip_share = 0; both are at least 0, and 1 together at most"#
        ]],
    );
}
