//! Scenario files: accepted ones, and the error of each mistake.

use expect_test::{Expect, expect};
use ripieno_base::Nanos;
use ripieno_model::{DropRule, Walk};
use ripieno_sim::{Scenario, Trace, simulate};

const MODEL: &str = "[[model]]\nname = \"m\"\nslo_ms = 25.0\nalpha_ms = 1.0\nbeta_ms = 5.0\n";

fn check_error(text: &str, expected: Expect) {
    expected.assert_eq(&Scenario::parse(text, "s.toml").unwrap_err().to_string());
}

#[test]
fn a_scenario_with_every_key_is_understood() {
    let text = r#"
        seed = 7
        duration_s = 60
        warmup_fraction = 0.1
        rate = 5000.0
        policy = "timeout"
        policy_options = { timeout_ms = 3, gather = "fifo", "timeout_ms.chain" = 1.5 }
        max_live = 100
        [cluster]
        devices = 8
        [network]
        control_us = 0.0
        data_us_per_request = 0.0
        [[model]]
        name = "table"
        latency_ms = [6.0, 7.0, 8.5]
        slo_ms = 25.0
        share = 3
        arrival = { kind = "gamma", shape = 0.3 }
        drop = "expired"
        [[model]]
        name = "chain"
        walk = "chain"
        slo_ms = 40
        max_batch = 4
        instances = 2
        [[model.block]]
        name = "a"
        latency_ms = [1.0, 2.0, 3.0, 4.0]
        [[model.block]]
        name = "b"
        alpha_ms = 0.5
        beta_ms = 1.0
        "#;
    let scenario = Scenario::parse(text, "s.toml").unwrap();
    let [table, chain] = &scenario.setup.models[..] else { panic!() };
    assert_eq!((table.max_batch, table.drop, table.walk), (3, Some(DropRule::Expired), Walk::Whole));
    assert_eq!((chain.max_batch, chain.instances, chain.walk), (4, 2, Walk::Chain));
    assert_eq!(chain.profile().latency(4), Nanos::from_millis(7));
    assert_eq!(scenario.loads.iter().map(|load| load.share).collect::<Vec<_>>(), [0.75, 0.25]);
    let summary = simulate(&scenario, None).unwrap();
    assert!(summary.total.requests > 200_000 && summary.models.len() == 2);
}

#[test]
fn planning_keys_are_kept() {
    let text = format!(
        "rate = 1.0\n[plan]\nsub_clusters = 2\nmemory_mb_per_device = 11000\nmax_rate = 4000.0\ncurrent = \"p.json\"\n{MODEL}\
         memory_mb = 98.0\nload_cost = 3\n"
    );
    let planning = Scenario::parse(&text, "s.toml").unwrap().planning;
    assert_eq!((planning.sub_clusters, planning.memory_mb_per_device), (Some(2), Some(11_000.0)));
    assert_eq!(planning.current, Some("./p.json".into()));
    let [model] = &planning.models[..] else { panic!() };
    assert_eq!((model.memory_mb, model.runtime_memory_mb, model.load_cost), (Some(98.0), 0.0, 3));
    let key = |line: &str| format!("rate = 1.0\n[plan]\n{line}\n{MODEL}");
    check_error(&key("sub_clusters = 0"), expect!["s.toml: plan.sub_clusters = 0; it must be at least 1"]);
    check_error(&key("max_rate = nan"), expect!["s.toml: plan.max_rate = NaN; it must be a number of at least 0"]);
    check_error(
        &format!("rate = 1.0\n{MODEL}memory_mb = -1.0\n"),
        expect![[r#"s.toml: model "m": memory_mb = -1; it must be a number of at least 0"#]],
    );
    assert!(Scenario::parse(&key("sub_cluster = 2"), "s.toml").is_err());
}

#[test]
fn without_max_batch_a_line_goes_as_far_as_the_slo() {
    let scenario = Scenario::parse(&format!("rate = 1.0\n{MODEL}"), "s.toml").unwrap();
    assert_eq!(scenario.setup.models[0].max_batch, 20);
}

#[test]
fn mistakes_are_named() {
    check_error("rate = 1.0", expect!["s.toml: there is no model; add a [[model]] table"]);
    check_error(MODEL, expect!["s.toml: rate is missing; give the offered requests per second, or a requests_file"]);
    check_error(
        &format!("rate = -1\n{MODEL}"),
        expect!["s.toml: rate = -1; it must be a number of requests per second above 0 and at most 1e9"],
    );
    check_error(
        &format!("rate = 1\nrequests = 5\nduration_s = 1\n{MODEL}"),
        expect!["s.toml: both requests and duration_s are given; remove one"],
    );
    check_error(&format!("rate = 1\n{MODEL}{MODEL}"), expect![[r#"s.toml: the name "m" is used twice"#]]);
    check_error(
        &format!("rate = 1\n{MODEL}walk = \"tree\""),
        expect![[r#"s.toml: model "m": walk = "tree" needs [[model.block]] tables"#]],
    );
    check_error(
        &format!("rate = 1\n{MODEL}latency_ms = [1.0]"),
        expect![[r#"s.toml: model "m": latency_ms stands beside alpha_ms or beta_ms; give the table or the line"#]],
    );
    check_error(
        &format!("rate = 1\n{MODEL}arrival = {{ kind = \"gamma\" }}"),
        expect![[r#"s.toml: model "m": arrival kind "gamma" needs a shape"#]],
    );
    check_error(
        &format!("rate = 1\n{MODEL}max_batch = 0"),
        expect![[r#"s.toml: model "m": max_batch = 0; it must be at least 1"#]],
    );
    check_error(
        &format!("rate = 1\n[network]\ntransport = \"pigeon\"\n{MODEL}"),
        expect![[r#"s.toml: network.transport = "pigeon"; it must be "rdma" or "tcp""#]],
    );
    check_error(
        &format!("rate = 1\nrequest_file = \"x\"\n{MODEL}"),
        expect![[r#"
            s.toml: TOML parse error at line 2, column 1
              |
            2 | request_file = "x"
              | ^^^^^^^^^^^^
            unknown field `request_file`, expected one of `seed`, `requests`, `duration_s`, `requests_file`, `warmup_fraction`, `rate`, `policy`, `policy_options`, `admission`, `cluster`, `decision_us`, `network`, `jitter`, `occupancy`, `max_live`, `window_s`, `autoscale`, `phase`, `plan`, `model`, `ensemble`
        "#]],
    );
}

/// Invalid numbers, or numbers of another unit, are reported with their keys.
#[test]
fn numbers_out_of_range_are_named() {
    let check = |text: &str, expected: Expect| check_error(&text.replace("MODEL", MODEL), expected);
    let model = |keys: &str| format!("rate = 1\n[[model]]\nname = \"m\"\n{keys}\n");
    check(
        "rate = nan\nMODEL",
        expect!["s.toml: rate = NaN; it must be a number of requests per second above 0 and at most 1e9"],
    );
    check(
        "rate = 1e10\nMODEL",
        expect!["s.toml: rate = 10000000000; it must be a number of requests per second above 0 and at most 1e9"],
    );
    check("rate = 1e-9\nMODEL", expect!["s.toml: rate = 0.000000001 makes the run last 5e13 s; it may last 1e9"]);
    check(
        "rate = 1e9\nduration_s = 1e6\nMODEL",
        expect!["s.toml: rate = 1000000000 makes 1000000000000000 requests; a run has at most 1e12"],
    );
    check("rate = 1\nduration_s = nan\nMODEL", expect!["s.toml: duration_s = NaN; it must be above 0 and at most 1e9"]);
    check(
        "rate = 1\nwarmup_fraction = nan\nMODEL",
        expect!["s.toml: warmup_fraction = NaN; it must be at least 0 and less than 1"],
    );
    check(
        "rate = 1\n[cluster]\ndevices = 0\nMODEL",
        expect!["s.toml: cluster.devices = 0; it must be between 1 and 65536"],
    );
    check(
        "rate = 1\n[network]\ncontrol_us = nan\nMODEL",
        expect!["s.toml: network.control_us = NaN; it must be a number of microseconds of at least 0"],
    );
    check("rate = 1\nMODELshare = nan", expect![[r#"s.toml: model "m": share = NaN; it must be at least 0"#]]);
    check(
        "rate = 1\nMODELarrival = { kind = \"gamma\", shape = nan }",
        expect![[
            r#"s.toml: model "m": arrival shape = NaN cannot be used; give a number above 0 (1 = Poisson, smaller = burstier)"#
        ]],
    );
    check(
        &model("slo_ms = nan\nlatency_ms = [1.0]"),
        expect![[r#"s.toml: model "m": slo_ms = NaN; it must be a number of milliseconds from 0 to 1000000000"#]],
    );
    check(&model("slo_ms = 0\nlatency_ms = [1.0]"), expect![[r#"s.toml: model "m": slo_ms = 0; it must be above 0"#]]);
    check(
        &model("slo_ms = 1e10\nlatency_ms = [1.0]"),
        expect![[
            r#"s.toml: model "m": slo_ms = 10000000000; it must be a number of milliseconds from 0 to 1000000000"#
        ]],
    );
    check(
        &model("slo_ms = 9\nalpha_ms = nan\nbeta_ms = 1.0"),
        expect![[r#"s.toml: model "m": alpha_ms = NaN; it must be a number of milliseconds from 0 to 1000000000"#]],
    );
    check(
        &model("slo_ms = 9\nalpha_ms = 1.0\nbeta_ms = -1.0"),
        expect![[r#"s.toml: model "m": beta_ms = -1; it must be a number of milliseconds from 0 to 1000000000"#]],
    );
    check(
        &model("slo_ms = 9\nalpha_ms = 0.0\nbeta_ms = 0.0"),
        expect![[r#"s.toml: model "m": alpha_ms must be above 0 where beta_ms is 0"#]],
    );
    check(
        &model("slo_ms = 9\nlatency_ms = [1.0, nan]"),
        expect![[
            r#"s.toml: model "m": latency_ms[1] = NaN; it must be a number of milliseconds from 0 to 1000000000"#
        ]],
    );
    check(
        &model("slo_ms = 9\nlatency_ms = []"),
        expect![[r#"s.toml: model "m": latency_ms: a latency profile needs at least one batch size"#]],
    );
}

/// Well-formed scenarios without a result: such a run would end with everything dropped.
#[test]
fn a_model_that_cannot_be_punctual_is_refused() {
    let scenario = |keys: &str, policy: &str| {
        let text = format!(
            "rate = 1\npolicy = {policy}\n{MODEL}[[model]]\nname = \"slow\"\nslo_ms = 5.0\nlatency_ms = [6.0]\n{keys}"
        );
        Scenario::parse(&text, "s.toml").unwrap()
    };
    let run = |keys: &str, policy: &str| scenario(keys, policy).check_run("s.toml").map_err(|error| error.to_string());
    let goodput =
        |keys: &str, policy: &str| scenario(keys, policy).check_goodput("s.toml").map_err(|error| error.to_string());
    expect![[r#"s.toml: model "slow": slo_ms = 5, but one request alone takes 6 ms, so every request would be dropped; give at least 6, or drop = "never" for answers that are late"#]].assert_eq(&run("", "\"deferred\"").unwrap_err());
    expect![[r#"s.toml: model "slow": slo_ms = 5, but one request alone takes 6 ms, so no rate is low enough; give at least 6"#]].assert_eq(&goodput("", "\"deferred\"").unwrap_err());
    let drops = "\"eager\"\npolicy_options = { drop = \"hopeless\" }";
    let keeps = "\"eager\"\npolicy_options = { drop = \"never\" }";
    assert!(run("", drops).is_err() && run("drop = \"never\"", drops).is_ok());
    assert!(run("", keeps).is_ok() && run("drop = \"hopeless\"", keeps).is_err());
    // Serial drops nothing by default; a late answer is still no goodput.
    assert!(run("", "\"serial\"").is_ok() && goodput("", "\"serial\"").is_err());
    // No requests are offered.
    assert!(run("share = 0.0", "\"deferred\"").is_ok() && goodput("share = 0.0", "\"deferred\"").is_ok());
    assert_eq!(scenario("", "\"serial\"").impossible_models(), [(1, Nanos::from_millis(6))]);
}

/// A network that is always slow adds to the latency of a request; one that is mostly slow does not
/// make it impossible.
#[test]
fn a_network_makes_a_model_impossible() {
    let check = |network: &str| {
        let text = format!("rate = 1\n[network]\n{network}\n{MODEL}");
        Scenario::parse(&text, "s.toml").unwrap().check_run("s.toml").map_err(|error| error.to_string())
    };
    expect![[r#"s.toml: model "m": slo_ms = 25, but one request alone takes 25.001 ms, so every request would be dropped; give at least 25.001, or drop = "never" for answers that are late"#]].assert_eq(&check("control_us = 19000.0\ndata_us_per_request = 1.0").unwrap_err());
    assert!(check("control_us = 19000.0").is_ok() && check("transport = \"tcp\"").is_ok());
}

#[test]
fn policies_and_options_are_named() {
    let check = |policy: &str, expected: Expect| {
        let scenario = Scenario::parse(&format!("rate = 1\n{policy}\n{MODEL}"), "s.toml").unwrap();
        expected.assert_eq(&scenario.check_run("s.toml").unwrap_err().to_string());
        assert!(scenario.check_goodput("s.toml").is_err() && scenario.check_policy("s.toml").is_err());
    };
    check(
        "policy = \"best\"",
        expect![[
            r#"s.toml: policy: unknown policy "best"; choose one of: serial, timeout, eager, deferred, clockwork, nexus, shepherd, cellular, late, bucketed, graph-merge, lazy, lazy-oracle, delay-batch, dva, unified"#
        ]],
    );
    check(
        "policy_options = { gathering = 1 }",
        expect![[
            r#"s.toml: policy_options.gathering: policy "deferred" has no option "gathering"; it has: gather, passed, max_batch, drop, device, control_us, data_us_per_row, shards, link_us (or KNOB.MODEL)"#
        ]],
    );
    check(
        "policy_options = { gather = \"all\" }",
        expect![[
            r#"s.toml: policy_options.gather: option "gather" of policy "deferred" is "all"; it must be one of "prefix", "window""#
        ]],
    );
    check(
        "policy = \"timeout\"\npolicy_options = { timeout_ms = nan }",
        expect![[
            r#"s.toml: policy_options.timeout_ms: option "timeout_ms" of policy "timeout" is NaN; it must be a number of at least 0"#
        ]],
    );
    check(
        "policy = \"timeout\"\npolicy_options = { \"timeout_ms.other\" = 1 }",
        expect![[
            r#"s.toml: policy_options.timeout_ms.other: option "timeout_ms.other" names a model that is not there; the models are: m"#
        ]],
    );
    check(
        "policy = \"timeout\"\npolicy_options = { timeout_slo = 2 }",
        expect![[
            r#"s.toml: policy_options.timeout_slo: option "timeout_slo" of policy "timeout" is 2; it must be a number from 0 to 1"#
        ]],
    );
    check(
        "policy = \"dva\"\npolicy_options = { buffers = 1_000_000 }",
        expect![[
            r#"s.toml: policy_options.buffers: option "buffers" of policy "dva" is 1000000; it must be a whole number from 1 to 16"#
        ]],
    );
}

#[test]
fn explicit_requests_come_from_a_file() {
    let folder = std::env::temp_dir().join(format!("ripieno-scenario-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let read = |requests: &str| {
        std::fs::write(folder.join("requests.csv"), requests).unwrap();
        let text = format!("requests_file = \"requests.csv\"\npolicy = \"serial\"\n{MODEL}");
        std::fs::write(folder.join("s.toml"), text).unwrap();
        Scenario::read(&folder.join("s.toml"))
    };
    let scenario = read("arrival_ms,model,length,output_length,tree\n4.5,m,,,\n0,m,,,\n").unwrap();
    let mut trace = Trace::new(&scenario.setup.models);
    let summary = simulate(&scenario, Some(&mut trace)).unwrap();
    assert_eq!((summary.total.requests, summary.total.late), (2, 0));
    expect![[r#"
        id,model,arrival_ms,start_ms,finish_ms,outcome
        1,m,0,0,6,ok
        2,m,4.5,6,12,ok
    "#]]
    .assert_eq(&trace.requests_csv());
    let scenario = read("arrival_ms,model,client,priority\n0,m,3,9\n1,m,3,\n").unwrap();
    let classes = scenario.requests.unwrap().iter().map(|arrival| arrival.class).collect::<Vec<_>>();
    assert_eq!((classes[0].client, classes[0].priority, classes[1].priority), (3, 1, 5));
    let error = read("arrival_ms,model,priority\n0,m,10\n").unwrap_err().to_string();
    assert!(error.ends_with("line 2: priority = 10; it must be between 1, the most urgent, and 9"), "{error}");
    assert!(read("arrival_ms,model\n1e300,m\n").unwrap_err().to_string().contains("arrival_ms = "));
    let error = read("arrival_ms,model,urgency\n0,m,9\n").unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("unknown field `urgency`"), "{error}");
    let error = read("arrival_ms,model,rows\n0,m,1\n0,m,soon\n").unwrap_err().to_string();
    assert!(error.ends_with("requests.csv, line 3: rows: invalid digit found in string"), "{error}");
    let error = read("arrival_ms,model\n1,other\n").unwrap_err().to_string();
    assert!(error.ends_with("requests.csv, line 2: model \"other\" has no [[model]] table"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Devices that never rest are 100 % busy up to the last arrival, and later work does not count; a
/// device at half load is half busy.
#[test]
fn device_time_counts_up_to_the_last_arrival() {
    let busy = |rate: f64| {
        let text =
            format!("rate = {rate}\npolicy = \"serial\"\nrequests = 3000\n{MODEL}arrival = {{ kind = \"uniform\" }}");
        simulate(&Scenario::parse(&text, "s.toml").unwrap(), None).unwrap().total.busy_fraction
    };
    assert!((busy(1_000.0) - 1.0).abs() < 1e-9, "{}", busy(1_000.0));
    assert!((busy(500.0 / 6.0) - 0.5).abs() < 1e-3, "{}", busy(500.0 / 6.0));
}
