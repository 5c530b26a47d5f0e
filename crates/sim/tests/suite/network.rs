//! Batches that need time to reach their devices: the next one is there when the last one ends.

use ripieno_sim::{Scenario, simulate};

/// Two devices that run batches of up to 8 rows in 6 to 13 ms, which arrive after 2.2 to 3.6 ms,
/// under more load than they carry.
fn overloaded(policy: &str, options: &str) -> f64 {
    let text = format!(
        "duration_s = 10\nrate = 2000\npolicy = \"{policy}\"\npolicy_options = {{ {options} }}\nmax_live = 200\n\
         [cluster]\ndevices = 2\n[network]\ncontrol_us = 2000\ndata_us_per_request = 200\n\
         [[model]]\nname = \"m\"\nslo_ms = 60\nmax_batch = 8\nalpha_ms = 1.0\nbeta_ms = 5.0\n"
    );
    let scenario = Scenario::parse(&text, "s.toml").unwrap();
    simulate(&scenario, None).unwrap().total.goodput_rps
}

#[test]
fn a_policy_that_knows_the_delay_keeps_devices_busy() {
    for policy in ["deferred", "unified"] {
        let (blind, knows) = (overloaded(policy, "control_us = 0, data_us_per_row = 0"), overloaded(policy, ""));
        // Without a batch ahead a device is idle for 3.6 of 16.6 ms. Always busy, both carry 1,231
        // rows a second.
        assert!(knows > 1.12 * blind && knows > 1_100.0, "{policy}: {blind} and {knows} answers a second in time");
    }
}
