//! How many devices a load needs, without a simulation.
//!
//! Two answers. The analytic bound of staggered execution supposes that requests enough are always there: it says what the
//! devices could do, and real ones under a heavy load need a few more. (Under a light one they may need fewer, for the
//! bound leaves room for a batch that runs already, and an idle device has none.) Where many models share the devices,
//! most are rare, and a batch cannot hold more requests than arrive within the SLO; the estimate reckons with batches of
//! that size. It comes close to what simulations find, and is where they start.

use ripieno_base::Nanos;
use ripieno_model::Profile;
use ripieno_model::bounds::staggered_bound;

/// The most devices that are considered.
pub const MOST_DEVICES: usize = 65_536;

/// The load on a model and what it must meet.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// ℓ(b), batches of at most the model's largest.
    pub profile: &'a Profile,
    /// The latency target.
    pub slo: Nanos,
    /// Requests per second.
    pub rate_rps: f64,
}

/// How many devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// So many; none where there is no load.
    Devices(usize),
    /// No number of devices is enough: one request alone, on an idle device, is late.
    Impossible,
    /// More than [`MOST_DEVICES`]; with an SLO that leaves next to nothing beyond ℓ(1), perhaps more than any.
    TooMany,
}

/// The devices of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelDevices {
    /// If the model had devices of its own.
    pub alone: Need,
    /// How many devices it keeps busy where it shares them, by the estimate; 0 for an impossible model.
    pub busy: f64,
}

/// The devices of some models.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicesNeeded {
    /// By model.
    pub models: Vec<ModelDevices>,
    /// If all models share all devices, by the bound; impossible ones are left out, since they would make it meaningless.
    pub bound: Need,
    /// The same by the estimate.
    pub estimate: usize,
}

impl Need {
    /// The number of devices, if there is one.
    pub fn devices(self) -> Option<usize> {
        match self {
            Need::Devices(devices) => Some(devices),
            Need::Impossible | Need::TooMany => None,
        }
    }
}

/// How many devices some models need, each alone and all together.
pub fn devices_needed(demands: &[Demand<'_>]) -> DevicesNeeded {
    let alone: Vec<Need> = demands.iter().map(|demand| need(std::slice::from_ref(demand))).collect();
    let possible = demands.iter().zip(&alone).filter(|(_, need)| **need != Need::Impossible);
    let bound = need(&possible.map(|(demand, _)| *demand).collect::<Vec<_>>());
    let each = |(demand, alone): (&Demand<'_>, Need)| ModelDevices { alone, busy: demand.busy_as_requests_come() };
    let models: Vec<_> = demands.iter().zip(alone).map(each).collect();
    let estimate = models.iter().map(|model| model.busy).sum::<f64>().ceil() as usize;
    DevicesNeeded { models, bound, estimate }
}

impl Demand<'_> {
    /// Whether a request is late even if it runs alone, at once.
    pub fn impossible(&self) -> bool {
        self.profile.latency(1) > self.slo
    }

    /// How many of `devices` this load keeps busy at the best batch size that meets the target; none if none does.
    fn busy(&self, devices: usize) -> Option<f64> {
        if self.rate_rps <= 0.0 {
            return Some(0.0);
        }
        let bound = staggered_bound(self.profile, self.slo, devices);
        (bound.batch > 0).then(|| self.rate_rps * devices as f64 / bound.goodput_rps)
    }

    /// How many devices this load keeps busy with batches as large as requests come: the last of b requests arrives b/r
    /// after the batch before, and leaves ℓ(b) to run.
    fn busy_as_requests_come(&self) -> f64 {
        if self.impossible() || self.rate_rps <= 0.0 {
            return 0.0;
        }
        let gathered = |batch: usize| Nanos::from_secs_f64(batch as f64 / self.rate_rps) + self.profile.latency(batch);
        let fitting = (1..=self.profile.max_batch()).take_while(|&batch| gathered(batch) <= self.slo);
        let batch = fitting.last().unwrap_or(1);
        self.rate_rps * self.profile.latency(batch).as_secs_f64() / batch as f64
    }
}

/// The fewest devices that these loads do not overfill. More devices allow larger batches and so only cheaper rows, so
/// once enough, always enough.
fn need(demands: &[Demand<'_>]) -> Need {
    if demands.iter().any(Demand::impossible) {
        return Need::Impossible;
    }
    let busy = |devices: usize| demands.iter().map(|demand| demand.busy(devices)).sum::<Option<f64>>();
    let enough = |devices: usize| busy(devices).is_some_and(|busy| busy <= devices as f64);
    if !enough(MOST_DEVICES) {
        return Need::TooMany;
    }
    let (mut few, mut many) = (0, MOST_DEVICES);
    if enough(0) {
        return Need::Devices(0);
    }
    while many - few > 1 {
        let middle = few.midpoint(many);
        if enough(middle) { many = middle } else { few = middle }
    }
    Need::Devices(many)
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
        let demands: Vec<_> =
            owned.iter().map(|(profile, slo, rate_rps)| Demand { profile, slo: *slo, rate_rps: *rate_rps }).collect();
        devices_needed(&demands)
    }

    #[test]
    fn the_bound_of_eight_devices_needs_eight() {
        assert_eq!(needed(&demands(&[5839.0])).bound, Need::Devices(8));
        assert_eq!(needed(&demands(&[5840.0])).bound, Need::Devices(9));
    }

    #[test]
    fn sharing_needs_no_more_than_each_alone() {
        let needed = needed(&demands(&[300.0, 300.0, 5000.0, 0.0]));
        let alone: Vec<_> = needed.models.iter().map(|model| model.alone.devices().unwrap()).collect();
        assert_eq!(alone, [1, 1, 7, 0]);
        assert_eq!(needed.bound, Need::Devices(8));
        let busy: Vec<_> = needed.models.iter().map(|model| (100.0 * model.busy).round()).collect();
        assert_eq!((busy, needed.estimate), (vec![70.0, 70.0, 696.0, 0.0], 9));
    }

    #[test]
    fn a_rare_model_runs_alone() {
        let needed = needed(&demands(&[10.0]));
        assert!((needed.models[0].busy - 10.0 * 0.006_125).abs() < 1e-9);
        assert_eq!((needed.bound, needed.estimate), (Need::Devices(1), 1));
    }

    #[test]
    fn a_model_that_is_always_late_is_told_from_one_that_needs_too_much() {
        let mut demands = demands(&[100.0, 1e9]);
        demands[0].1 = Nanos::from_millis(6);
        let needed = needed(&demands);
        assert_eq!(needed.models[0], ModelDevices { alone: Need::Impossible, busy: 0.0 });
        assert_eq!((needed.models[1].alone, needed.bound), (Need::TooMany, Need::TooMany));
    }

    #[test]
    fn an_slo_that_barely_fits_a_row_ends_too() {
        let mut demands = demands(&[1.0]);
        demands[0].1 = demands[0].0.latency(1);
        assert_eq!(needed(&demands).bound, Need::TooMany);
        demands[0].1 = demands[0].1.scale(101, 100);
        assert_eq!(needed(&demands).bound, Need::Devices(100));
    }

    #[test]
    fn no_load_needs_no_device() {
        assert_eq!(needed(&[]).bound, Need::Devices(0));
        assert_eq!(needed(&demands(&[0.0])).bound, Need::Devices(0));
    }
}
