//! The number of devices that a load needs, without a simulation.
//!
//! There are two answers. The analytic bound of staggered execution assumes that requests are
//! always available: it is what the devices could do, and real ones under a heavy load need a few
//! more. (Under a light load they may need fewer, since the bound leaves room for a running batch,
//! and an idle device has none.) Where many models share the devices, most are rare, and a batch
//! cannot hold more requests than arrive within the SLO; the estimate assumes batches of that size.
//! It is close to the results of simulations, which start from it.

use ripieno_base::Nanos;
use ripieno_model::Profile;
use ripieno_model::bounds::staggered_bound;

/// Upper bound on the number of devices.
pub const MAX_DEVICES: usize = 65_536;

/// The load on a model, with its SLO.
#[derive(Clone, Copy, Debug)]
pub struct DeviceDemand<'a> {
    /// ℓ(b) up to the largest batch of the model.
    pub profile: &'a Profile,
    /// The latency target.
    pub slo: Nanos,
    /// Requests per second.
    pub rate_rps: f64,
}

/// A number of devices, or the reason why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCount {
    /// The smallest sufficient number; 0 without load.
    Devices(usize),
    /// No number of devices is enough: even a single request on an idle device is late.
    Impossible,
    /// More than [`MAX_DEVICES`]; with an SLO hardly above ℓ(1), possibly unbounded.
    TooMany,
}

/// The devices of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelDevices {
    /// Number of devices if the model did not share them.
    pub alone: DeviceCount,
    /// Number of shared devices that it keeps busy, by the estimate; 0 for an impossible model.
    pub busy: f64,
}

/// The devices of a set of models.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicesNeeded {
    /// Devices of each model.
    pub models: Vec<ModelDevices>,
    /// Number of devices by the bound if all models share them. Impossible models are left out,
    /// since with them the result would always be "impossible".
    pub bound: DeviceCount,
    /// Number of devices by the estimate if all models share them.
    pub estimate: usize,
}

impl DeviceCount {
    /// Returns the number of devices, if there is one.
    pub fn devices(self) -> Option<usize> {
        match self {
            DeviceCount::Devices(devices) => Some(devices),
            DeviceCount::Impossible | DeviceCount::TooMany => None,
        }
    }
}

/// Computes the number of devices for each model alone and for all together.
pub fn devices_needed(demands: &[DeviceDemand<'_>]) -> DevicesNeeded {
    let alone: Vec<DeviceCount> = demands.iter().map(|demand| min_devices(std::slice::from_ref(demand))).collect();
    let possible = demands.iter().zip(&alone).filter(|(_, need)| **need != DeviceCount::Impossible);
    let bound = min_devices(&possible.map(|(demand, _)| *demand).collect::<Vec<_>>());
    let each = |(demand, alone): (&DeviceDemand<'_>, DeviceCount)| ModelDevices { alone, busy: demand.busy_estimate() };
    let models: Vec<_> = demands.iter().zip(alone).map(each).collect();
    let estimate = models.iter().map(|model| model.busy).sum::<f64>().ceil() as usize;
    DevicesNeeded { models, bound, estimate }
}

impl DeviceDemand<'_> {
    /// Returns true if a request is late even if it runs alone and immediately.
    pub fn is_impossible(&self) -> bool {
        self.profile.latency(1) > self.slo
    }

    /// Returns the number of devices that this load keeps busy at the best batch size that meets
    /// the SLO, given `devices`; `None` if no batch size does.
    fn busy_bound(&self, devices: usize) -> Option<f64> {
        if self.rate_rps <= 0.0 {
            return Some(0.0);
        }
        let bound = staggered_bound(self.profile, self.slo, devices);
        (bound.batch > 0).then(|| self.rate_rps * devices as f64 / bound.goodput_rps)
    }

    /// Returns the number of devices that this load keeps busy with batches as large as arrivals
    /// allow: the last of b requests arrives b/r after the previous batch, and leaves ℓ(b) to run.
    fn busy_estimate(&self) -> f64 {
        if self.is_impossible() || self.rate_rps <= 0.0 {
            return 0.0;
        }
        let gathered = |batch: usize| Nanos::from_secs_f64(batch as f64 / self.rate_rps) + self.profile.latency(batch);
        let fitting = (1..=self.profile.max_batch()).take_while(|&batch| gathered(batch) <= self.slo);
        let batch = fitting.last().unwrap_or(1);
        self.rate_rps * self.profile.latency(batch).as_secs_f64() / batch as f64
    }
}

/// Returns the smallest number of devices that these loads do not exceed. More devices allow larger
/// batches and so only cheaper rows, so the condition is monotonic.
fn min_devices(demands: &[DeviceDemand<'_>]) -> DeviceCount {
    if demands.iter().any(DeviceDemand::is_impossible) {
        return DeviceCount::Impossible;
    }
    let busy = |devices: usize| demands.iter().map(|demand| demand.busy_bound(devices)).sum::<Option<f64>>();
    let enough = |devices: usize| busy(devices).is_some_and(|busy| busy <= devices as f64);
    if !enough(MAX_DEVICES) {
        return DeviceCount::TooMany;
    }
    let (mut few, mut many) = (0, MAX_DEVICES);
    if enough(0) {
        return DeviceCount::Devices(0);
    }
    while many - few > 1 {
        let middle = few.midpoint(many);
        if enough(middle) { many = middle } else { few = middle }
    }
    DeviceCount::Devices(many)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demands(rates: &[f64]) -> Vec<(Profile, Nanos, f64)> {
        let resnet = Profile::linear(1.053, 5.072, 64).unwrap();
        rates.iter().map(|&rate| (resnet.clone(), Nanos::from_millis(25), rate)).collect()
    }

    fn needed(owned: &[(Profile, Nanos, f64)]) -> DevicesNeeded {
        let demand = |(profile, slo, rate_rps): &(Profile, Nanos, f64)| (profile.clone(), *slo, *rate_rps);
        let owned: Vec<_> = owned.iter().map(demand).collect();
        let demands: Vec<_> = owned
            .iter()
            .map(|(profile, slo, rate_rps)| DeviceDemand { profile, slo: *slo, rate_rps: *rate_rps })
            .collect();
        devices_needed(&demands)
    }

    #[test]
    fn the_bound_of_eight_devices_needs_eight() {
        assert_eq!(needed(&demands(&[5839.0])).bound, DeviceCount::Devices(8));
        assert_eq!(needed(&demands(&[5840.0])).bound, DeviceCount::Devices(9));
    }

    #[test]
    fn sharing_needs_no_more_than_each_alone() {
        let needed = needed(&demands(&[300.0, 300.0, 5000.0, 0.0]));
        let alone: Vec<_> = needed.models.iter().map(|model| model.alone.devices().unwrap()).collect();
        assert_eq!(alone, [1, 1, 7, 0]);
        assert_eq!(needed.bound, DeviceCount::Devices(8));
        let busy: Vec<_> = needed.models.iter().map(|model| (100.0 * model.busy).round()).collect();
        assert_eq!((busy, needed.estimate), (vec![70.0, 70.0, 696.0, 0.0], 9));
    }

    #[test]
    fn a_rare_model_runs_alone() {
        let needed = needed(&demands(&[10.0]));
        assert!((needed.models[0].busy - 10.0 * 0.006_125).abs() < 1e-9);
        assert_eq!((needed.bound, needed.estimate), (DeviceCount::Devices(1), 1));
    }

    #[test]
    fn a_model_that_is_always_late_is_distinguished_from_one_that_needs_too_much() {
        let mut demands = demands(&[100.0, 1e9]);
        demands[0].1 = Nanos::from_millis(6);
        let needed = needed(&demands);
        assert_eq!(needed.models[0], ModelDevices { alone: DeviceCount::Impossible, busy: 0.0 });
        assert_eq!((needed.models[1].alone, needed.bound), (DeviceCount::TooMany, DeviceCount::TooMany));
    }

    #[test]
    fn an_slo_that_barely_fits_a_row_ends_too() {
        let mut demands = demands(&[1.0]);
        demands[0].1 = demands[0].0.latency(1);
        assert_eq!(needed(&demands).bound, DeviceCount::TooMany);
        demands[0].1 = demands[0].1.scale(101, 100);
        assert_eq!(needed(&demands).bound, DeviceCount::Devices(100));
    }

    #[test]
    fn no_load_needs_no_device() {
        assert_eq!(needed(&[]).bound, DeviceCount::Devices(0));
        assert_eq!(needed(&demands(&[0.0])).bound, DeviceCount::Devices(0));
    }
}
