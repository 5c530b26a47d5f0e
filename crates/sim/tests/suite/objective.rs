//! What `objective = "latency"` of "deferred" promises over "efficiency": an unloaded server answers as fast as the model
//! runs, clients that wait for their answers are not kept waiting for the SLO, and little goodput is paid for it.

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::{Model, Profile};
use ripieno_sched::{Limits, OptionValue, Options, Setup, build};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Scenario, Trace, World, goodput, simulate};

fn scenario(objective: &str, rate: f64) -> Scenario {
    let text = format!(
        r#"
        requests = 50000
        rate = {rate}
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

/// 64 rows at once, every 50 ms, as from clients that wait for their answers; the SLO is 20 s. Each burst is answered before
/// the next one, although batches of the size at hand would not keep up with the load if they came one row at a time.
#[test]
fn clients_that_wait_for_answers_are_not_kept_waiting_for_the_slo() {
    let model = Model::whole("m", Profile::linear(0.1, 5.0, 32).unwrap(), Nanos::from_millis(20_000));
    let limits = Limits { requests: 256, models: 1, devices: 1, lanes: 1, depth: 1, batch: 32, nodes: 0 };
    let setup = Setup { models: vec![model], devices: 1, limits };
    let options = Options::from([("objective".to_owned(), OptionValue::Text("latency".to_owned()))]);
    let mut scheduler = build("deferred", &setup, &options).unwrap();
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
