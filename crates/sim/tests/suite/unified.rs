//! "unified" on small examples that can be checked by hand, and on one server with models of every
//! walk.

use expect_test::{Expect, expect};
use ripieno_base::{ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{Block, Extent, Model, Profile, Walk};
use ripieno_policies::{build, find};
use ripieno_sched::{
    Action, Limits, OptionValue, Options, Outbox, Outcome, Reason, Request, RequestClass, Setup, TaskDone, WaitGain,
};
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Scenario, Trace, World, simulate_at};

const MS: fn(i64) -> Nanos = Nanos::from_millis;

/// Returns a model of this name that takes `alpha` ms a row and `beta` ms a batch.
fn model(name: &str, alpha: f64, beta: f64, slo_ms: i64) -> Model {
    Model::whole(name, Profile::linear(alpha, beta, 8).unwrap(), MS(slo_ms))
}

/// Runs arrivals of (ms, model) on one device, and compares its tasks.
fn check(models: Vec<Model>, arrivals: &[(i64, u16)], expected: Expect) {
    let limits = Limits { requests: 64, models: models.len(), batch: 8, nodes: 64, ..Limits::ONE };
    let setup = Setup { models, devices: 1, limits };
    let mut scheduler = build("unified", &setup, &Options::new()).unwrap();
    let (mut trace, mut checkers) = (Trace::new(&setup.models), Checkers::new(&setup));
    let arrivals = arrivals.iter().map(|&(at, id)| {
        let at = Time::ORIGIN + MS(at);
        Arrival::new(at, ModelId(id), at + setup.models[usize::from(id)].slo)
    });
    World::new(scheduler.as_mut(), &setup).run(arrivals, [], &mut [&mut trace, &mut checkers]);
    checkers.finish();
    expected.assert_eq(&trace.tasks_csv());
}

#[test]
fn an_idle_device_starts_immediately_and_the_next_batch_holds_all_that_came() {
    check(
        vec![model("m", 1.0, 5.0, 40)],
        &[(0, 0), (1, 0), (2, 0), (3, 0)],
        expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,6,0,m,m,1
        6,14,0,m,m,2 3 4
    "#]],
    );
}

/// Both wait when the device becomes free at 12 ms. The short one has more weight by time; the long
/// one goes first only where it would be late otherwise.
#[test]
fn the_shorter_offer_goes_first_unless_the_other_would_be_late() {
    let (blocker, short) = (model("blocker", 0.0, 12.0, 100), model("short", 0.0, 2.0, 100));
    let long = |slo_ms| model("long", 0.0, 30.0, slo_ms);
    let arrivals = [(0, 0), (1, 1), (1, 2)];
    check(
        vec![blocker.clone(), short.clone(), long(100)],
        &arrivals,
        expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,12,0,blocker,blocker,1
        12,14,0,short,short,2
        14,44,0,long,long,3
    "#]],
    );
    check(
        vec![blocker, short, long(42)],
        &arrivals,
        expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,12,0,blocker,blocker,1
        12,42,0,long,long,3
        42,44,0,short,short,2
    "#]],
    );
}

/// The chain's second request arrives during the first block and joins before the third.
#[test]
fn a_newcomer_catches_up_with_a_chain_where_all_end_sooner() {
    let block = |name: &str, beta| Block::new(name, Profile::linear(0.0, beta, 8).unwrap());
    let blocks = vec![block("a", 1.0), block("b", 1.0), block("c", 20.0)];
    let chain = Model { walk: Walk::Chain, blocks, ..model("chain", 0.0, 22.0, 100) };
    check(
        vec![chain],
        &[(0, 0), (0, 0), (1, 0)],
        expect![[r#"
        start_ms,end_ms,device,model,block,members
        0,1,0,chain,a,1 2
        1,2,0,chain,a,3
        2,3,0,chain,b,1 2 3
        3,23,0,chain,c,1 2 3
    "#]],
    );
}

const EVERY_WALK: &str = "
    seed = 5
    rate = 1
    requests = 20000
    [cluster]
    devices = 2
    [[model]]
    name = 'whole'
    alpha_ms = 0.5
    beta_ms = 4
    slo_ms = 60
    share = 4
    [[model]]
    name = 'chain'
    walk = 'chain'
    slo_ms = 80
    share = 3
    [[model.block]]
    name = 'a'
    alpha_ms = 0.4
    beta_ms = 2
    exit_share = 0.3
    [[model.block]]
    name = 'b'
    alpha_ms = 0.6
    beta_ms = 3
    [[model]]
    name = 'padded'
    slo_ms = 100
    share = 2
    lengths = { kind = 'lognormal', mu = 3.5, sigma = 0.6, min = 8, max = 128 }
    max_batch = 16
    by_length = [{ length = 16, alpha_ms = 0.2, beta_ms = 1.0 }, { length = 128, alpha_ms = 1.6, beta_ms = 2.0 }]
    [[model]]
    name = 'cells'
    walk = 'repeat'
    slo_ms = 120
    share = 1
    lengths = { kind = 'lognormal', mu = 2.4, sigma = 0.5, min = 4, max = 24 }
    [[model.block]]
    name = 'cell'
    alpha_ms = 0.05
    beta_ms = 0.8
    max_batch = 16
";

/// Four models of different walks share two devices: at a load that the best published policy for
/// them does not carry, each of them keeps its SLO.
#[test]
fn models_of_every_walk_share_devices() {
    let worst = |policy| {
        let mut scenario = Scenario::parse(EVERY_WALK, "every-walk.toml").unwrap();
        scenario.serve_under(find(policy).unwrap(), Options::new());
        simulate_at(&scenario, 2_000.0, None).unwrap().worst_bad_rate
    };
    let (unified, cellular) = (worst("unified"), worst("cellular"));
    assert!(unified <= 0.01 && cellular > 0.01, "{unified:.4} of the worst model is bad, {cellular:.4} by cellular");
}

/// Under overload, nearly all requests that are not refused within 5 ms are in time, on any number
/// of devices.
#[test]
fn accepted_requests_are_in_time_under_overload() {
    let whole = "slo_ms = 100\nalpha_ms = 1.0\nbeta_ms = 4.0\nmax_batch = 32";
    let tight = "slo_ms = 25\nalpha_ms = 1.053\nbeta_ms = 5.072\nmax_batch = 64";
    // A request that has just missed a batch can still be in the next one, but in no larger one.
    let two_batches = "slo_ms = 56.5\nalpha_ms = 3.0\nbeta_ms = 19.0\nmax_batch = 32";
    let padded = r#"slo_ms = 100
lengths = { kind = "lognormal", mu = 3.0, sigma = 0.7, min = 1, max = 128 }
by_length = [{ length = 16, alpha_ms = 0.2, beta_ms = 1.0 }, { length = 128, alpha_ms = 1.6, beta_ms = 1.0 }]
max_batch = 32"#;
    let cells = r#"slo_ms = 100
walk = "repeat"
lengths = { kind = "fixed", value = 25 }
[[model.block]]
name = "cell"
alpha_ms = 0.01
beta_ms = 0.3
max_batch = 32"#;
    let kinds = [
        ("whole", whole, 850.0),
        ("tight", tight, 650.0),
        ("two batches", two_batches, 95.0),
        ("padded", padded, 2_600.0),
        ("cells", cells, 2_060.0),
    ];
    for (kind, model, bound) in kinds {
        for (devices, times) in [(1, 1.5), (1, 3.0), (2, 1.5), (8, 1.5), (8, 3.0)] {
            // With several devices, one is free sooner, so each device carries twice as much.
            if kind == "two batches" && devices > 1 {
                continue;
            }
            let rate = bound * times * f64::from(devices);
            let head =
                format!("seed = 1\nrate = {rate}\nrequests = {}\n[cluster]\ndevices = {devices}\n", 10_000 * devices);
            let mut scenario =
                Scenario::parse(&format!("{head}[[model]]\nname = \"m\"\n{model}\n"), "overload.toml").unwrap();
            scenario.serve_under(find("unified").unwrap(), Options::new());
            let mut trace = Trace::new(&scenario.setup.models);
            let total = simulate_at(&scenario, rate, Some(&mut trace)).unwrap().total;
            let (answered, late) = (total.requests - total.dropped, total.late);
            assert!(answered > 2_000 && late * 100 <= answered, "{kind} at {times}: {late} of {answered} late");
            let settled = trace.outcomes().filter(|request| request.arrival > Time::ORIGIN + MS(1_000));
            let (refused, kept): (Vec<_>, Vec<_>) = settled.partition(|request| request.outcome == "dropped");
            let early = refused.iter().filter(|request| request.finish - request.arrival <= MS(5)).count();
            // On one device, short padded requests overtake long ones that were accepted.
            let (least, in_time) = match (kind, devices) {
                ("padded", 1) => (10, 80),
                ("padded", _) => (75, 80),
                _ => (95, 98),
            };
            let case =
                format!("{kind} at {times} on {devices}: {early} of {} early, {} kept", refused.len(), kept.len());
            assert!(early * 100 >= least * refused.len(), "{case}");
            assert!(kept.len() * 100 >= in_time * (kept.len() + refused.len() - early), "{case}");
        }
    }
}

/// Groups that shrink to be in time for the most urgent requests would not carry the load any more.
/// The next ones would have to shrink further.
#[test]
fn padded_requests_recover_from_a_burst() {
    let text = r#"seed = 1
duration_s = 4
warmup_fraction = 0.5
[cluster]
devices = 8
[[model]]
name = "p"
slo_ms = 100
max_batch = 64
by_length = [{ length = 8, alpha_ms = 0.1, beta_ms = 4 }, { length = 128, alpha_ms = 1.6, beta_ms = 4 }]
lengths = { kind = "fixed", value = 30 }
rates = [[0, 12800], [0.5, 21950], [1.5, 14630]]
"#;
    let mut scenario = Scenario::parse(text, "burst.toml").unwrap();
    scenario.serve_under(find("unified").unwrap(), Options::new());
    let bad = ripieno_sim::simulate(&scenario, None).unwrap().total.bad_rate;
    assert!(bad < 0.01, "{bad:.3} are lost long after the burst");
}

/// Runs one arrival of (ms, model) after the other on one device; returns the reasons of decisions.
fn reasons(models: Vec<Model>, objective: &str, arrivals: &[(i64, u16)]) -> Vec<Reason> {
    let limits = Limits { requests: 512, models: models.len(), batch: 8, nodes: 64, ..Limits::ONE };
    let setup = Setup { models, devices: 1, limits };
    let options = [("objective".to_owned(), OptionValue::Text(objective.to_owned()))].into();
    let mut scheduler = build("unified", &setup, &options).unwrap();
    let (mut out, mut reasons, mut running) = (Outbox::new(&limits), Vec::new(), None);
    let mut arrivals = (0..).zip(arrivals).peekable();
    for ms in 0..400 {
        let now = Time::ORIGIN + MS(ms);
        if let Some((task, _)) = running.take_if(|(_, end)| *end <= now) {
            scheduler.on_task_done(now, &TaskDone { task, outcome: Outcome::Ok, ended: &[], skips: &[] });
        }
        while let Some((slot, &(_, id))) = arrivals.next_if(|(_, (at, _))| *at <= ms) {
            let (arrived, deadline) = (now, now + setup.models[usize::from(id)].slo);
            let (slot, model, class) = (RequestSlot(slot), ModelId(id), RequestClass::default());
            let request = Request { slot, model, arrived, deadline, rows: 1, extent: Extent::ONE, class };
            scheduler.on_request(now, &request);
        }
        out.clear();
        scheduler.settle(now, &mut out);
        reasons.extend_from_slice(out.reasons());
        for action in out.actions() {
            if let Action::Start { task, model, .. } = *action {
                let rows = scheduler.members(task).len();
                running = Some((task, now + setup.models[model.index()].profile().latency(rows)));
            }
        }
    }
    reasons
}

#[test]
fn a_decision_names_the_request_that_waits_and_the_reason() {
    let short_and_long = || vec![model("short", 0.0, 2.0, 100), model("long", 0.0, 30.0, 100)];
    let lost = Reason::Lost { request: RequestSlot(1), to: RequestSlot(0) };
    assert_eq!(reasons(short_and_long(), "latency", &[(0, 0), (0, 1)]), [lost]);
    // The long one lost to the same model again, which counts once.
    assert_eq!(reasons(short_and_long(), "latency", &[(0, 0), (0, 1), (1, 0)]), [lost]);

    // 100/s in batches of one keep the device busy for 60 %; fuller ones save time.
    let steady: Vec<_> = (0..30).map(|at| (10 * at, 0)).collect();
    let alone = |objective| reasons(vec![model("m", 1.0, 5.0, 80)], objective, &steady);
    let waited = alone("efficiency");
    let fuller = |reason: &Reason| matches!(reason, Reason::Waited { gain: WaitGain::FullerBatch, .. });
    assert!(waited.len() >= 5 && waited.iter().all(fuller), "{waited:?}");
    assert_eq!(alone("latency"), []);

    // Twice what the device can do: a newcomer is refused if the queue before it is too long.
    let burst: Vec<_> = (0..100).map(|at| (at, 0)).collect();
    let refused = reasons(vec![model("m", 2.0, 1.0, 40)], "latency", &burst).into_iter();
    let refused: Vec<_> = refused.filter(|reason| matches!(reason, Reason::Refused { .. })).collect();
    let late = |reason: &Reason| match *reason {
        Reason::Refused { request, end } => end > Time::ORIGIN + MS(i64::from(request.0) + 40),
        _ => false,
    };
    assert!(!refused.is_empty() && refused.iter().all(late), "{refused:?}");
}
