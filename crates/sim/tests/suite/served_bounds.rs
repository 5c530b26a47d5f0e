//! A scenario that is run as served has the bounds of a server.

use ripieno_policies::find;
use ripieno_sched::{Limits, Objective, Options};
use ripieno_sim::{Scenario, simulate};

/// 3,000 simultaneous requests for a model that answers one per millisecond, and one for another.
fn burst(keys: &str, of_the_first: &str) -> Scenario {
    let text = format!(
        "rate = 1e6\nrequests = 3000\nwarmup_fraction = 0.0\n{keys}\n\
         [[model]]\nname = \"first\"\nslo_ms = 100000.0\nalpha_ms = 1.0\nbeta_ms = 1.0\nmax_batch = 4\ndrop = \"never\"\n\
         arrival = {{ kind = \"uniform\" }}\nshare = 2999\n{of_the_first}\n\
         [[model]]\nname = \"second\"\nslo_ms = 100000.0\nalpha_ms = 1.0\nbeta_ms = 1.0\nmax_batch = 4\ndrop = \"never\"\n\
         arrival = {{ kind = \"uniform\" }}\nshare = 1"
    );
    let mut scenario = Scenario::parse(&text, "burst.toml").unwrap();
    scenario.serve_under(find("eager").unwrap(), Options::new());
    scenario
}

/// Returns the number of requests of the first model that were answered, and that were refused.
fn first(scenario: &Scenario) -> (u64, u64) {
    let summary = simulate(scenario, None).unwrap();
    let figures = &summary.models[0].figures;
    (figures.requests - figures.dropped, figures.dropped)
}

#[test]
fn live_requests_are_bounded_by_model_and_in_sum() {
    let scenario = burst("", "");
    assert_eq!(scenario.setup.limits.requests, Limits::SERVED_REQUESTS);
    let (answered, refused) = first(&scenario);
    // They arrive within three milliseconds, in which a few are answered.
    assert!((1000..1010).contains(&answered), "{answered} answered, {refused} refused");
    let (answered, _) = first(&burst("", "max_queue = 50"));
    assert!((50..60).contains(&answered), "{answered} answered");
    let small = burst("max_live = 20", "");
    assert_eq!(small.setup.limits.requests, 20);
    assert!(first(&small).0 < 30);
}

#[test]
fn requests_that_a_long_slo_lets_wait_have_a_place() {
    // 3,000 requests wait for three seconds, of a hundred.
    let mut patient = burst("", "");
    patient.setup.models.iter_mut().for_each(|model| model.drop = None);
    assert_eq!(first(&patient).1, 0);
}

#[test]
fn many_devices_hold_the_requests_that_they_need() {
    // At 94 % of what 64 devices carry in full batches, about 2,000 requests are in the server.
    let text = "rate = 31000.0\nrequests = 30000\n[cluster]\ndevices = 64\n[[model]]\nname = \"m\"\nslo_ms = 101.9\n\
                alpha_ms = 1.831\nbeta_ms = 3.301\nmax_batch = 32";
    let mut scenario = Scenario::parse(text, "many.toml").unwrap();
    scenario.serve(Objective::Latency);
    let (answered, refused) = first(&scenario);
    assert!(refused == 0, "{answered} answered, {refused} refused");
}

#[test]
fn a_policy_gets_the_depth_and_the_room_that_a_server_gives_it() {
    let text = "rate = 1.0\nrequests = 1\npolicy = \"cellular\"\n[policy_options]\nmax_tasks = 32\n\
                [[model]]\nname = \"m\"\nslo_ms = 100.0\nwalk = \"tree\"\ntrees = { kind = \"complete\", leaves = 64 }\n\
                [[model.block]]\nname = \"leaf\"\nalpha_ms = 0.1\nbeta_ms = 0.1\nmax_batch = 64\n\
                [[model.block]]\nname = \"inner\"\nalpha_ms = 0.1\nbeta_ms = 0.1\nmax_batch = 64";
    let mut scenario = Scenario::parse(text, "deep.toml").unwrap();
    assert_eq!(scenario.effective_setup().limits.depth, 32);
    assert!(scenario.setup.limits.nodes > Limits::SERVED_NODES);
    let options = scenario.policy_options.clone();
    scenario.serve_under(find("cellular").unwrap(), options);
    assert_eq!(scenario.effective_setup().limits.depth, 32);
    assert_eq!(scenario.setup.limits.nodes, Limits::SERVED_NODES);
}
