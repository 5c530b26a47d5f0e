//! Ensembles: the gain of dropping by the remaining budget of the whole request, and exactly one
//! end per request.

use ripieno_base::{ModelId, Time};
use ripieno_policies::build_served;
use ripieno_report::Summary;
use ripieno_sched::Objective;
use ripieno_sim::checkers::Checkers;
use ripieno_sim::{Arrival, Budget, Observer, Scenario, Whole, World, simulate_at};
use std::collections::BTreeMap;
use std::path::Path;

fn scenario(bursts: bool, budget: Budget) -> Scenario {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/ensemble/fan-out.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let bursty = "slo_ms = 100\narrival = { kind = \"gamma\", shape = 0.1 }\nbudget";
    let text = if bursts { text.replace("slo_ms = 100\nbudget", bursty) } else { text };
    assert_eq!(text.contains("gamma"), bursts);
    let mut scenario = Scenario::parse(&text, "fan-out.toml").unwrap();
    scenario.ensembles[0].budget = budget;
    scenario.serve(Objective::Latency);
    scenario
}

fn run(bursts: bool, budget: Budget, rate: f64) -> Summary {
    simulate_at(&scenario(bursts, budget), rate, None).unwrap()
}

/// Returns the ratio of answers in time with the budget of the whole to those without.
fn gain(bursts: bool, rate: f64) -> f64 {
    run(bursts, Budget::Whole, rate).total.goodput_rps / run(bursts, Budget::Stage, rate).total.goodput_rps
}

#[test]
fn dropping_by_the_budget_of_the_whole_answers_more() {
    let (steady, bursts) = (gain(false, 400.0), gain(true, 400.0));
    assert!(steady > 1.1 && bursts > 1.05, "{steady:.3} {bursts:.3}");
    // If both keep up there is no gain.
    assert!(run(false, Budget::Whole, 200.0).worst_bad_rate < 0.001);
}

#[test]
fn at_a_rate_that_the_whole_keeps_up_with_stages_do_not() {
    for (bursts, rate) in [(false, 300.0), (true, 90.0)] {
        let [whole, stage] = [Budget::Whole, Budget::Stage].map(|budget| run(bursts, budget, rate).worst_bad_rate);
        assert!(whole < 0.01 && stage > 0.01, "bursts {bursts}: {whole} {stage}");
    }
}

/// A counter of the ends of each request to an ensemble.
#[derive(Default)]
struct Ends {
    arrived: BTreeMap<Time, u32>,
    well: u32,
    late: u32,
}

impl Observer for Ends {
    fn whole_arrived(&mut self, whole: &Whole) {
        assert_eq!(self.arrived.insert(whole.arrived, 0), None);
    }

    fn whole_ended(&mut self, now: Time, whole: &Whole, well: bool) {
        *self.arrived.get_mut(&whole.arrived).unwrap() += 1;
        self.well += u32::from(well);
        self.late += u32::from(well && now > whole.deadline);
    }
}

#[test]
fn every_request_ends_once_and_its_other_steps_go_with_one_that_fails() {
    let scenario = scenario(false, Budget::Whole);
    let setup = scenario.effective_setup();
    let mut scheduler = build_served(&scenario.policy, &setup, &scenario.effective_options()).unwrap();
    let ensemble = ModelId(setup.models.len() as u16);
    // Four times the capacity of the devices.
    let arrivals = (1..3000).map(|at| {
        let at = Time(at * 700_000);
        Arrival::new(at, ensemble, at + scenario.ensembles[0].slo)
    });
    let (mut ends, mut checkers) = (Ends::default(), Checkers::new(&setup).without_padding());
    let mut world = World::new(scheduler.as_mut(), &setup).with_ensembles(&scenario.ensembles);
    world.run(arrivals, [], &mut [&mut ends, &mut checkers]);
    checkers.finish();
    assert_eq!(world.live(), 0);
    assert!(ends.arrived.values().all(|&ends| ends == 1));
    assert!(ends.well > 100 && ends.well < 2000 && ends.late == 0, "{} {}", ends.well, ends.late);
}

#[test]
fn faults_of_ensembles_are_reported() {
    let text = |step: &str, keys: &str| {
        format!(
            "rate = 1\n[[model]]\nname = \"m\"\nslo_ms = 9\nalpha_ms = 1\nbeta_ms = 1\n\
             [[ensemble]]\nname = \"e\"\nslo_ms = 9\n{keys}\n{step}"
        )
    };
    let step = "[[ensemble.step]]\nmodel = \"m\"\n";
    for (text, expected) in [
        (text("", ""), "there is no step"),
        (text("[[ensemble.step]]\nmodel = \"x\"", ""), "there is no model \"x\""),
        (text(&format!("{step}after = [0]"), ""), "step 0 waits for itself"),
        (text(&format!("{step}after = [3]"), ""), "step 0 needs a step that is not there"),
        (text(step, "budget = \"none\""), "budget = \"none\""),
        (text(step, "share = -1"), "share = -1"),
        (text(step, "").replace("\"e\"", "\"m\""), "the name \"m\" is used twice"),
    ] {
        let error = Scenario::parse(&text, "s").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
