//! Upper bound on the load that devices can carry within an SLO, in staggered execution.
//!
//! Staggered execution means that N devices start their batches evenly spaced. A request then waits
//! at most one N-th of a batch before its own batch starts. So a batch of b rows meets the SLO if
//! (1 + 1/N)·ℓ(b) ≤ SLO, and all devices together answer N·b/ℓ(b) rows per second. These are
//! equations (1) and (2) of "Symphony: Optimized DNN Model Serving using Deferred Batch
//! Scheduling".
//!
//! The bound assumes evenly spaced arrivals of one model. It informs users and sizes targets, but
//! never decides about a request.

use crate::{Model, Profile};
use ripieno_base::Nanos;

/// Best operating point of a model on a number of devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Number of rows per batch; 0 if not even one row meets the SLO.
    pub batch: usize,
    /// Rows per second that all devices together answer.
    pub goodput_rps: f64,
}

/// Returns the batch size with the highest goodput among those that meet `slo` on `devices` devices
/// in staggered execution.
///
/// For a line αb+β, it is the largest such batch. A measured profile may have steps, so that a
/// smaller batch has a higher goodput.
pub fn staggered_bound(profile: &Profile, slo: Nanos, devices: usize) -> Bound {
    let nothing = Bound { batch: 0, goodput_rps: 0.0 };
    let span = slo.scale(devices as u64, devices as u64 + 1);
    let goodput = |batch: usize| devices as f64 * batch as f64 / profile.latency(batch).as_secs_f64();
    (1..=profile.largest_within(span)).fold(nothing, |best, batch| {
        let goodput_rps = goodput(batch);
        if goodput_rps >= best.goodput_rps { Bound { batch, goodput_rps } } else { best }
    })
}

/// Returns the best operating point of a model alone on a number of devices. Where the SLO leaves
/// no time to wait for a running batch, it is batches of one row. `None` if requests differ in
/// cost, or if the SLO is below a lone run.
pub fn capacity(model: &Model, devices: usize) -> Option<Bound> {
    if model.walk.is_unfolded() || model.has_lengths() {
        return None;
    }
    let (profile, devices) = (model.profile(), devices.min(model.instances));
    let bound = staggered_bound(&profile, model.slo, devices);
    if bound.batch > 0 {
        return Some(bound);
    }
    let alone = profile.latency(1);
    (alone <= model.slo).then(|| Bound { batch: 1, goodput_rps: devices as f64 / alone.as_secs_f64() })
}

/// Returns the number of devices that a rate in rows per second keeps busy in its best batches.
///
/// They are those in which a row takes the least time, of the batches whose rows come and run
/// within the SLO. `None` if requests differ in cost.
pub fn busy_devices(model: &Model, rows_per_s: f64) -> Option<f64> {
    if model.walk.is_unfolded() || model.has_lengths() {
        return None;
    }
    let (profile, slo_s) = (model.profile(), model.slo.as_secs_f64());
    let row_s = |batch: usize| profile.latency(batch).as_secs_f64() / batch as f64;
    let fits = |batch: usize| profile.latency(batch).as_secs_f64() + batch as f64 / rows_per_s.max(1e-9) <= slo_s;
    let least = (2..=model.max_batch).take_while(|&batch| fits(batch)).map(row_s).fold(row_s(1), f64::min);
    Some(rows_per_s * least)
}

/// Returns the goodput of [`staggered_bound`] in rows per second.
pub fn best_goodput(profile: &Profile, slo: Nanos, devices: usize) -> f64 {
    staggered_bound(profile, slo, devices).goodput_rps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published profiles with independently computed results: alpha, beta, SLO in milliseconds;
    /// devices; batch and rows/s.
    const ROWS: [(f64, f64, f64, usize, usize, f64); 8] = [
        (1.053, 5.072, 25.0, 8, 16, 5839.4),
        (5.090, 18.368, 70.0, 8, 8, 1083.1),
        (0.570, 14.348, 33.0, 8, 26, 7131.1),
        (0.335, 5.350, 20.0, 8, 37, 16680.8),
        (1.271, 13.618, 37.0, 8, 15, 3671.6),
        (2.050, 5.378, 27.0, 8, 9, 3021.7),
        (17.656, 18.952, 179.0, 8, 7, 392.9),
        (1.009, 2.390, 20.0, 8, 15, 6847.4),
    ];

    #[test]
    fn the_bound_of_published_profiles_is_met() {
        for (alpha_ms, beta_ms, slo_ms, devices, batch, goodput_rps) in ROWS {
            let profile = Profile::linear(alpha_ms, beta_ms, 64).unwrap();
            let bound = staggered_bound(&profile, Nanos::from_millis_f64(slo_ms), devices);
            assert_eq!(bound.batch, batch, "{alpha_ms} {beta_ms}");
            assert!((bound.goodput_rps - goodput_rps).abs() < 0.06, "{bound:?}, expected {goodput_rps}");
        }
    }

    #[test]
    fn one_device_has_half_of_the_slo() {
        let profile = Profile::linear(1.0, 1.0, 64).unwrap();
        assert_eq!(staggered_bound(&profile, Nanos::from_millis(10), 1).batch, 4);
        assert_eq!(best_goodput(&profile, Nanos::from_millis(10), 1), 800.0);
    }

    #[test]
    fn an_slo_below_one_row_or_no_device_carries_nothing() {
        let profile = Profile::linear(1.0, 5.0, 8).unwrap();
        assert_eq!(best_goodput(&profile, Nanos::from_millis(11), 1), 0.0);
        assert_eq!(best_goodput(&profile, Nanos::from_millis(1000), 0), 0.0);
    }

    #[test]
    fn a_step_in_the_table_makes_the_smaller_batch_better() {
        let ms = Nanos::from_millis;
        let profile = Profile::from_table(&[ms(2), ms(2), ms(9)]).unwrap();
        assert_eq!(staggered_bound(&profile, ms(100), 1), Bound { batch: 2, goodput_rps: 1000.0 });
    }
    #[test]
    fn a_rate_needs_fewer_devices_in_batches_that_it_fills() {
        // A batch takes b + 4 ms.
        let model = Model::whole("m", Profile::linear(1.0, 4.0, 32).unwrap(), Nanos::from_millis(50));
        let need = |rows_per_s: f64| busy_devices(&model, rows_per_s).unwrap();
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
        // Ten rows a second never meet in 45 ms.
        near(need(10.0), 10.0 * 0.005);
        // A thousand a second: 23 rows come in 23 ms and run in 27.
        near(need(1_000.0), 1_000.0 * 0.027 / 23.0);
        near(need(100_000.0), 100_000.0 * 0.036 / 32.0);
        near(need(0.0), 0.0);
        let mut cells = model.clone();
        cells.walk = crate::Walk::Repeat;
        assert_eq!(busy_devices(&cells, 1.0), None);
    }
}
