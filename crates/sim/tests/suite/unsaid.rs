//! A model whose late requests are still answered, like one without an SLO, leaves others their
//! share.

use ripieno_sim::{Scenario, simulate};

/// Returns the losses of the heavy and the light model, where the heavy one is offered three times
/// the capacity.
fn lost(policy: &str, options: &str) -> (f64, f64) {
    let models = "[[model]]\nname = \"heavy\"\nshare = 540.0\nalpha_ms = 5.0\nbeta_ms = 5.0\nslo_ms = 500.0\nmax_batch = 32\n\
                  drop = \"never\"\n\
                  [[model]]\nname = \"light\"\nshare = 20.0\nalpha_ms = 0.5\nbeta_ms = 2.0\nslo_ms = 400.0\nmax_batch = 8\n";
    let head =
        format!("rate = 560.0\nrequests = 8000\nwarmup_fraction = 0.2\nadmission = true\npolicy = \"{policy}\"\n");
    let summary = simulate(&Scenario::parse(&format!("{head}{options}{models}"), "s.toml").unwrap(), None).unwrap();
    (summary.models[0].figures.bad_rate, summary.models[1].figures.bad_rate)
}

#[test]
fn lateness_that_is_nobodys_concern_takes_no_share_from_others() {
    let objective = "[policy_options]\nobjective = \"latency\"\n";
    for (policy, options) in [("deferred", objective), ("cellular", ""), ("dva", ""), ("lazy", ""), ("delay-batch", "")]
    {
        let (heavy, light) = lost(policy, options);
        println!("unsaid   {policy:12} heavy loses {heavy:.3}, light {light:.3}");
        assert!(heavy > 0.5, "{policy}: what cannot be done is refused: {heavy:.3}");
        assert!(light < 0.15, "{policy}: {light:.3}");
    }
}
