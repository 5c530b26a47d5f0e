//! Share of early refusals of the default policy, and of accepted requests that are in time: one
//! model of each kind, beyond saturation, on devices that are exact and on ones that are late.
//!
//! `cargo run --release -p ripieno-sim --example refusals`

use ripieno_base::Nanos;
use ripieno_sched::Objective;
use ripieno_sim::{Scenario, Trace, simulate_at};

/// A refusal within this time of the arrival is early.
const EARLY: Nanos = Nanos::from_millis(5);
/// Kind, model, and rate in requests per second that one device can carry.
const KINDS: [(&str, &str, f64); 5] = [
    ("tight", "slo_ms = 25\nalpha_ms = 1.053\nbeta_ms = 5.072\nmax_batch = 64", 650.0),
    ("whole", "slo_ms = 100\nalpha_ms = 1.0\nbeta_ms = 4.0\nmax_batch = 32", 850.0),
    (
        "chain",
        "slo_ms = 100\nwalk = \"chain\"\nmax_batch = 16\n[[model.block]]\nname = \"a\"\nalpha_ms = 0.5\nbeta_ms = 4.0\n\
         [[model.block]]\nname = \"b\"\nalpha_ms = 1.0\nbeta_ms = 2.0",
        530.0,
    ),
    (
        "padded",
        "slo_ms = 100\nlengths = { kind = \"lognormal\", mu = 3.0, sigma = 0.7, min = 1, max = 128 }\nmax_batch = 32\n\
         by_length = [{ length = 16, alpha_ms = 0.2, beta_ms = 1.0 }, { length = 128, alpha_ms = 1.6, beta_ms = 1.0 }]",
        1_900.0,
    ),
    (
        "cells",
        "slo_ms = 100\nwalk = \"repeat\"\nlengths = { kind = \"fixed\", value = 25 }\n\
         [[model.block]]\nname = \"cell\"\nalpha_ms = 0.01\nbeta_ms = 0.3\nmax_batch = 32",
        2_060.0,
    ),
];
const WORLDS: [(&str, &str); 2] = [("exact", ""), ("late", "[occupancy]\nfactor = 1.2\ntail = 0.1\n")];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("kind    world  devices load  useful/s  early %  accepted in time %");
    for (kind, model, bound) in KINDS {
        for (world, occupancy) in WORLDS {
            for (devices, load) in [(1, 1.5), (1, 3.0), (8, 1.5), (8, 3.0)] {
                let rate = bound * load * f64::from(devices);
                let text = format!(
                    "seed = 1\nrate = {rate}\nrequests = {}\n{occupancy}[cluster]\ndevices = {devices}\n[[model]]\nname = \"m\"\n{model}\n",
                    20_000 * devices
                );
                let mut scenario = Scenario::parse(&text, "refusals.toml")?;
                scenario.serve(Objective::Latency);
                let mut trace = Trace::new(&scenario.setup.models);
                let summary = simulate_at(&scenario, rate, Some(&mut trace))?;
                // The first second is spent on learning.
                let settled = trace.outcomes().filter(|request| request.arrival > ripieno_base::Time(1_000_000_000));
                let (mut dropped, mut early, mut accepted, mut kept) = (0_u32, 0_u32, 0_u32, 0_u32);
                for request in settled {
                    let refused = request.outcome == "dropped";
                    let is_early = refused && request.finish - request.arrival <= EARLY;
                    dropped += u32::from(refused);
                    early += u32::from(is_early);
                    accepted += u32::from(!is_early);
                    kept += u32::from(request.outcome == "ok");
                }
                let percent = |part: u32, whole: u32| 100.0 * f64::from(part) / f64::from(whole.max(1));
                println!(
                    "{kind:7} {world:6} {devices:7} {load:4}  {:8.0}  {:7.1}  {:18.1}",
                    summary.total.goodput_rps,
                    percent(early, dropped),
                    percent(kept, accepted)
                );
            }
        }
    }
    Ok(())
}
