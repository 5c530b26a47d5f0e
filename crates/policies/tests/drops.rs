//! Drops of waiting requests: equal in every policy, to the nanosecond.

use ripieno_base::{ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{Block, DropRule, Extent, LengthProfiles, Model, Profile, Walk};
use ripieno_policies::{CATALOGUE, Chains, Policy, build};
use ripieno_sched::{Action, Limits, Options, Outbox, Request, RequestClass, Setup, Why};

const LIMITS: Limits = Limits { requests: 4, lanes: 2, depth: 16, batch: 4, ..Limits::ONE };

fn ms(millis: i64) -> Time {
    Time::ORIGIN + Nanos::from_millis(millis)
}

/// Two blocks of 1 ms, or of 3 ms for the longest requests if the policy serves chains whose cost
/// depends on length.
fn chain(policy: &Policy, drop: DropRule) -> (Model, u32) {
    let cost = |millis| Profile::from_table(&[Nanos::from_millis(millis); 4]).unwrap();
    let pads = policy.chains == Chains::Any;
    let block = |name: &str| match pads {
        true => {
            let lengths = LengthProfiles::new(vec![(1, cost(1)), (100, cost(3))]).unwrap();
            Block { lengths: Some(lengths), ..Block::new(name, cost(3)) }
        }
        false => Block::new(name, cost(1)),
    };
    let blocks = vec![block("a"), block("b")];
    let model = Model { walk: Walk::Chain, blocks, drop: Some(drop), ..Model::whole("m", cost(1), ms(10) - ms(0)) };
    (model, if pads { 100 } else { 1 })
}

/// Returns the time and the reason of the rejection of a request that is due at 10 ms and never
/// runs.
fn rejected(policy: &Policy, drop: DropRule, longest: bool) -> Option<(Time, Why)> {
    let (model, most) = chain(policy, drop);
    let length = if longest { most } else { 1 };
    let setup = Setup { models: vec![model], devices: 0, limits: LIMITS };
    let mut scheduler = build(policy.name, &setup, &Options::new()).unwrap();
    let mut out = Outbox::new(&LIMITS);
    let request = Request {
        slot: RequestSlot(0),
        model: ModelId(0),
        arrived: ms(0),
        deadline: ms(10),
        rows: 1,
        extent: Extent { length, limit: 0 },
        class: RequestClass::default(),
    };
    scheduler.on_request(ms(0), &request);
    let mut now = ms(0);
    while now < ms(1_000) {
        scheduler.settle(now, &mut out);
        match *out.actions() {
            [] => now = scheduler.next_wakeup(),
            [Action::Reject { why, .. }] => return Some((now, why)),
            ref other => panic!("{}: {other:?}", policy.name),
        }
    }
    None
}

#[test]
fn an_expired_request_leaves_at_the_deadline() {
    for policy in CATALOGUE {
        assert_eq!(rejected(policy, DropRule::Expired, true), Some((ms(10), Why::Expired)), "{}", policy.name);
    }
}

/// The latest start is 10 ms less the two blocks. A policy that plans batches at the cost of the
/// longest requests does so for short ones, too.
#[test]
fn a_hopeless_request_leaves_right_after_its_latest_start() {
    for policy in CATALOGUE {
        let (_, most) = chain(policy, DropRule::Hopeless);
        let last = if most > 1 { ms(4) } else { ms(8) };
        let longest = rejected(policy, DropRule::Hopeless, true);
        assert_eq!(longest, Some((last.next(), Why::Hopeless)), "{}", policy.name);
        let plans_by_length = ["cellular", "late", "dva", "unified"].contains(&policy.name);
        let short = if plans_by_length { ms(8) } else { last };
        assert_eq!(rejected(policy, DropRule::Hopeless, false), Some((short.next(), Why::Hopeless)), "{}", policy.name);
    }
}

#[test]
fn a_request_that_is_never_dropped_waits_forever() {
    for policy in CATALOGUE {
        assert_eq!(rejected(policy, DropRule::Never, true), None, "{}", policy.name);
    }
}

/// Four rows take 90 ms, so a request of them that is due at 100 is overdue from 10 ms on. One row
/// that is due at 50 leaves at 50.
#[test]
fn a_wide_request_that_is_overdue_early_hides_no_other() {
    let cost = Profile::from_table(&[1, 2, 3, 90].map(Nanos::from_millis)).unwrap();
    let model = Model { drop: Some(DropRule::Expired), ..Model::whole("m", cost, ms(100) - ms(0)) };
    for policy in CATALOGUE {
        let setup = Setup { models: vec![model.clone()], devices: 0, limits: LIMITS };
        let mut scheduler = build(policy.name, &setup, &Options::new()).unwrap();
        let mut out = Outbox::new(&LIMITS);
        for (slot, rows, due) in [(0, 4, 100), (1, 1, 50)] {
            let (arrived, deadline, extent) = (ms(0), ms(due), Extent::ONE);
            let (slot, model, class) = (RequestSlot(slot), ModelId(0), RequestClass::default());
            scheduler.on_request(ms(0), &Request { slot, model, arrived, deadline, rows, extent, class });
        }
        let (mut now, mut left) = (ms(0), Vec::new());
        while now < ms(1_000) {
            scheduler.settle(now, &mut out);
            left.extend(out.actions().iter().map(|action| match action {
                Action::Reject { request, why: Why::Expired } => (request.0, now),
                other => panic!("{}: {other:?}", policy.name),
            }));
            out.clear();
            now = scheduler.next_wakeup();
        }
        assert_eq!(left, [(1, ms(50)), (0, ms(100))], "{}", policy.name);
    }
}
