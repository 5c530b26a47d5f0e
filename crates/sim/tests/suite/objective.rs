//! The promises of `objective = "latency"` of "unified" over "efficiency": an unloaded server
//! answers as fast as the model runs, clients that wait for their answers do not wait for the SLO,
//! and the cost in goodput is small.

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Model, Profile};
use ripieno_policies::build;
use ripieno_report::Summary;
use ripieno_sched::{Limits, Objective, OptionValue, Options, Setup};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Scenario, Trace, World, goodput, simulate};

fn scenario(objective: &str, rate: f64) -> Scenario {
    let text = format!(
        r#"
        requests = 50000
        rate = {rate}
        policy = "unified"
        policy_options = {{ objective = "{objective}" }}
        [cluster]
        devices = 8
        [[model]]
        name = "ResNet50"
        alpha_ms = 1.053
        beta_ms = 5.072
        slo_ms = 25
        "#
    );
    Scenario::parse(&text, "objective.toml").unwrap()
}

#[test]
fn an_unloaded_server_answers_as_fast_as_the_model_runs() {
    let p50 = |objective: &str| simulate(&scenario(objective, 200.0), None).unwrap().total.p50_ms.unwrap();
    assert!(p50("latency") < 1.053 + 5.072 + 0.1, "{}", p50("latency"));
    assert!(p50("efficiency") > 15.0, "{}", p50("efficiency"));
}

#[test]
fn little_goodput_is_paid_for_it() {
    let found = |objective: &str| goodput(&scenario(objective, 1.0), |_| ()).unwrap().goodput_rps();
    let ratio = found("latency") / found("efficiency");
    assert!(ratio > 0.97, "{ratio}");
}

/// Goodput with 1 % bad: 91 % of the analytic bound.
#[test]
fn it_carries_as_much_as_published_deferral() {
    let bad = |policy: &str, options: &str, rate: f64| {
        let mut scenario = scenario("latency", rate);
        (scenario.policy, scenario.policy_options) = (policy.to_owned(), choice(options));
        simulate(&scenario, None).unwrap().worst_bad_rate
    };
    let [latency, efficiency] = ["latency", "efficiency"].map(|name| format!("objective={name}"));
    for (policy, options, carries) in [
        ("unified", &*latency, true),
        ("unified", &*efficiency, true),
        ("deferred", "gather=window", true),
        ("eager", "gather=prefix", false),
        ("timeout", "timeout_ms=2", false),
    ] {
        let share = bad(policy, options, 5_350.0);
        assert_eq!(share <= 0.01, carries, "{policy} {options}: {share}");
    }
}

fn choice(text: &str) -> Options {
    let (key, value) = text.split_once('=').unwrap();
    let number = value.parse().map(OptionValue::Int);
    Options::from([(key.to_owned(), number.unwrap_or(OptionValue::Text(value.to_owned())))])
}

fn one_model(devices: usize, model: &str, arrival: &str, rate: f64) -> Scenario {
    let text = format!(
        "seed = 105\nrequests = 20000\nrate = {rate}\n[cluster]\ndevices = {devices}\n[[model]]\nname = \"m\"\nmax_batch = 32\n{model}\n\
         arrival = {{ {arrival} }}"
    );
    Scenario::parse(&text, "one.toml").unwrap()
}

/// Rows that started immediately would take all devices, and the next free device all waiting rows.
#[test]
fn batches_that_start_apart_are_answered_sooner() {
    let launch = "alpha_ms = 0.25\nbeta_ms = 19.2\nslo_ms = 115";
    let cases = [
        (launch, "kind = \"poisson\"", 3_000.0, 0.8),
        (launch, "kind = \"poisson\"", 6_000.0, 0.85),
        ("alpha_ms = 2.2\nbeta_ms = 22\nslo_ms = 185", "kind = \"uniform\"", 850.0, 0.6),
    ];
    for (model, arrival, rate, most) in cases {
        let mut scenario = one_model(8, model, arrival, rate);
        let mut median = |policy: &str, options: &str| {
            (scenario.policy, scenario.policy_options) = (policy.to_owned(), choice(options));
            simulate(&scenario, None).unwrap().total.p50_ms.unwrap()
        };
        let (ours, eager) = (median("unified", "objective=latency"), median("eager", "gather=prefix"));
        assert!(ours < most * eager, "{arrival} {rate}: {ours} ms, eager {eager}");
    }
}

/// Random arrivals are not awaited at even intervals: near the peak that would keep devices idle
/// and make batches long.
#[test]
fn no_device_waits_for_the_sake_of_evenness_where_chance_undoes_it() {
    let mut scenario = one_model(2, "alpha_ms = 4.1\nbeta_ms = 4.9\nslo_ms = 300", "kind = \"poisson\"", 370.0);
    let mut mean = |policy: &str, options: &str| {
        (scenario.policy, scenario.policy_options) = (policy.to_owned(), choice(options));
        simulate(&scenario, None).unwrap().total.mean_ms.unwrap()
    };
    let (ours, eager) = (mean("unified", "objective=latency"), mean("eager", "gather=prefix"));
    assert!(ours < 1.1 * eager, "{ours} ms, eager {eager}");
}

/// In a burst the current batch is larger without its oldest rows, but other devices are about to
/// become free.
#[test]
fn requests_passed_over_in_a_burst_run_on_a_spare_device() {
    let scenario =
        one_model(16, "alpha_ms = 0.748\nbeta_ms = 2.41\nslo_ms = 13.7", "kind = \"gamma\", shape = 0.31", 14_000.0);
    let bad = |policy: &str, options: &str| {
        let mut scenario = scenario.clone();
        (scenario.policy, scenario.policy_options) = (policy.to_owned(), choice(options));
        simulate(&scenario, None).unwrap().worst_bad_rate
    };
    let (latency, window) = (bad("unified", "objective=latency"), bad("deferred", "gather=window"));
    assert!(window > 0.002 && latency < 0.1 * window, "{latency} {window}");
}

/// A head with a short deadline is not passed over for a batch that the load does not need.
#[test]
fn tight_deadlines_run_below_the_peak() {
    let limits = Limits { requests: 4_096, batch: 32, ..Limits::ONE };
    let model = Model::whole("m", Profile::linear(1.0, 2.0, 32).unwrap(), Nanos::from_millis(200));
    let setup = Setup { models: vec![model], devices: 1, limits };
    let mut scheduler = build("unified", &setup, &choice("objective=latency")).unwrap();
    // Six at a time, every 15 ms, of which one client waits 6 ms only: long enough for half of
    // them, not for all.
    let arrival = |at: i64| {
        let limit = if at % 6 == 0 { 6 } else { 200 };
        let at = Time::ORIGIN + Nanos::from_millis(15 * (at / 6));
        Arrival::new(at, ModelId(0), at + Nanos::from_millis(limit))
    };
    let mut trace = Trace::new(&setup.models);
    World::new(scheduler.as_mut(), &setup).run((0..6_000).map(arrival), [], &mut [&mut trace]);
    let requests = trace.requests_csv();
    assert_eq!(requests.lines().filter(|line| line.ends_with(",ok")).count(), 6_000);
}

/// 64 rows at a time, every 50 ms, as from clients that wait for their answers; the SLO is 20 s.
/// Each burst is answered before the next one, although batches of the current size would not keep
/// up with the load if it arrived one row at a time.
#[test]
fn clients_that_wait_for_answers_are_not_kept_waiting_for_the_slo() {
    let model = Model::whole("m", Profile::linear(0.1, 5.0, 32).unwrap(), Nanos::from_millis(20_000));
    let limits = Limits { requests: 256, batch: 32, ..Limits::ONE };
    let setup = Setup { models: vec![model], devices: 1, limits };
    let options = Options::from([("objective".to_owned(), OptionValue::Text("latency".to_owned()))]);
    let mut scheduler = build("unified", &setup, &options).unwrap();
    let burst = |at: i64| {
        let at = Time::ORIGIN + Nanos::from_millis(50 * at);
        [Arrival::new(at, ModelId(0), at + Nanos::from_millis(20_000)); 63]
    };
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(&setup));
    World::new(scheduler.as_mut(), &setup).run((0..100).flat_map(burst), [], &mut [&mut trace, &mut checkers]);
    let millis = |field: Option<&str>| field.unwrap().parse::<f64>().unwrap();
    for line in trace.requests_csv().lines().skip(1) {
        let mut fields = line.split(',');
        let (arrival, finish) = (millis(fields.nth(2)), millis(fields.nth(1)));
        assert!(finish - arrival < 100.0, "{line}");
    }
}

/// A chain that 43 % leave after its first block, and most of the others go to its last: single
/// rows keep up by their mean cost. By the cost of all blocks they would not, and batches would
/// wait for each other.
#[test]
fn early_exits_keep_no_batch_waiting() {
    let block = |name: &str, alone: f64, preferred: u32| {
        format!(
            "[[model.block]]\nname = \"{name}\"\nalone_ms = {alone}\npreferred_batch = {preferred}\nmax_batch = 32\n"
        )
    };
    let blocks = [("s1", 4.2, 2), ("s2", 4.6, 1), ("s3", 3.8, 4), ("s4", 2.0, 32)];
    let text = format!(
        "seed = 6\nrequests = 6000\nrate = 360\npolicy = \"unified\"\n[cluster]\ndevices = 4\n[[model]]\n\
         name = \"m\"\nslo_ms = 254\narrival = {{ kind = \"uniform\" }}\nwalk = \"chain\"\n{}exit_share = 0.43\nskip_share = 0.35\n\
         skip_to = \"s4\"\n{}",
        block("s0", 4.7, 1),
        blocks.map(|(name, alone, preferred)| block(name, alone, preferred)).concat(),
    );
    let run = simulate(&Scenario::parse(&text, "chain.toml").unwrap(), None).unwrap();
    assert!(run.total.mean_ms.unwrap() < 20.0 && run.worst_bad_rate == 0.0, "{:?}", run.total);
}

/// A chain whose row takes 18 ms, in three blocks, beside a model that has 12 ms for its batches of
/// 2 ms.
fn beside_a_chain(policy: &str, devices: usize) -> Summary {
    let block = |name: &str, alone: f64| {
        format!("[[model.block]]\nname = \"{name}\"\nalpha_ms = 1\nbeta_ms = {}\nmax_batch = 8\n", alone - 1.0)
    };
    let text = format!(
        "seed = 12\nrequests = 12000\nrate = {}\n[cluster]\ndevices = {devices}\n[[model]]\nname = \"chain\"\nshare = 1\n\
         slo_ms = 200\nwalk = \"chain\"\n{}{}{}[[model]]\nname = \"tight\"\nshare = 9\nslo_ms = 12\nalpha_ms = 0.2\nbeta_ms = 1.8\n",
        200 * devices,
        block("a", 6.0),
        block("b", 6.0),
        block("c", 6.0)
    );
    let mut scenario = Scenario::parse(&text, "beside.toml").unwrap();
    policy.clone_into(&mut scenario.policy);
    simulate(&scenario, None).unwrap()
}

/// Between two blocks of a chain, a batch that could not wait for the next border runs first; no
/// request of the chain is late for it.
#[test]
fn a_tight_model_runs_between_the_blocks_of_a_chain() {
    let published = beside_a_chain("deferred", 1).worst_bad_rate;
    assert!(published > 0.02, "nothing to preempt for: {published}");
    for devices in [1, 3] {
        for model in &beside_a_chain("unified", devices).models {
            assert!(model.figures.bad_rate < 0.005, "{devices} devices, {}: {}", model.name, model.figures.bad_rate);
        }
    }
}

/// Rows that gain nothing together run separately if the next device is about to become free.
#[test]
fn a_burst_is_divided_among_devices() {
    let mut scenario =
        one_model(16, "alpha_ms = 3.32\nbeta_ms = 3.48\nslo_ms = 110", "kind = \"gamma\", shape = 0.38", 1_400.0);
    let mut p99 = |policy: &str, options: &str| {
        (scenario.policy, scenario.policy_options) = (policy.to_owned(), choice(options));
        simulate(&scenario, None).unwrap().total.p99_ms.unwrap()
    };
    let (ours, eager) = (p99("unified", "objective=latency"), p99("eager", "gather=prefix"));
    assert!(ours < 0.6 * eager, "{ours} ms, eager {eager}");
}

/// Several models on one device, with the objective of latency.
fn models(rate: f64, served: bool, models: &[&str]) -> Scenario {
    let table = |(at, model): (usize, &&str)| format!("[[model]]\nname = \"m{at}\"\n{model}\nmax_batch = 32\n");
    let tables: String = models.iter().enumerate().map(table).collect();
    let text = format!("seed = 80\nrequests = 10000\nrate = {rate}\npolicy = \"unified\"\n{tables}");
    let mut scenario = Scenario::parse(&text, "models.toml").unwrap();
    if served {
        scenario.serve(Objective::Latency);
    }
    scenario
}

/// A wait counts by its part of the SLO, here ten times as long: who has much time waits more, but
/// not in proportion, as by deadlines alone.
#[test]
fn much_time_is_no_reason_to_wait() {
    let cost = "alpha_ms = 2\nbeta_ms = 4";
    let (tight, loose) = (format!("{cost}\nslo_ms = 80"), format!("{cost}\nslo_ms = 800"));
    let run = simulate(&models(300.0, false, &[&tight, &loose]), None).unwrap();
    let mean = |model: usize| run.models[model].figures.mean_ms.unwrap();
    assert!(mean(1) < 5.0 * mean(0) && run.worst_bad_rate < 0.01, "{} {} {}", mean(0), mean(1), run.worst_bad_rate);
}

/// Batches whose rows gain little do not take longer than others can wait, although all other
/// requests have enough time.
#[test]
fn long_batches_make_no_tight_model_late() {
    let long = "alpha_ms = 3.19\nbeta_ms = 1.4\nslo_ms = 150";
    let (middle, tight) = (
        "alpha_ms = 0.57\nbeta_ms = 12.4\nslo_ms = 88\nshare = 0.46",
        "alpha_ms = 1\nbeta_ms = 3.3\nslo_ms = 54\nshare = 0.43",
    );
    let run = simulate(&models(235.0, false, &[long, middle, tight]), None).unwrap();
    assert!(run.worst_bad_rate < 0.01, "{}", run.worst_bad_rate);
}

/// Rows of the second model cost the same in any batch, and large ones make the first late. If its
/// rows are then passed over, that is no reason to make them larger still.
#[test]
fn batches_that_gain_nothing_are_cut_while_device_time_is_short() {
    let (tight, slow) = (
        "alpha_ms = 0.8\nbeta_ms = 10\nslo_ms = 66\nshare = 0.85",
        "alpha_ms = 9\nbeta_ms = 1\nslo_ms = 263\nshare = 0.15",
    );
    let run = simulate(&models(260.0, true, &[tight, slow]), None).unwrap();
    assert!(run.worst_bad_rate < 0.01, "{}", run.worst_bad_rate);
}

/// A request can be in time after another model's batch, by 3 ms. The initial guess of the margin
/// is three times as long.
#[test]
fn a_guess_makes_no_request_hopeless_for_long() {
    let (other, tight) =
        ("alpha_ms = 1.73\nbeta_ms = 16\nslo_ms = 103", "alpha_ms = 0.64\nbeta_ms = 16.3\nslo_ms = 38.1\nshare = 0.6");
    let run = simulate(&models(20.0, true, &[other, tight]), None).unwrap();
    assert!(run.worst_bad_rate < 0.005, "{}", run.worst_bad_rate);
}
