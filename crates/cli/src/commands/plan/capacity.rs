//! The number of devices: by analysis, and by simulating the scheduler that would run them.

use ripieno_base::ModelId;
use ripieno_model::{Model, Profile};
use ripieno_planner::{DeviceDemand, DevicesNeeded, MAX_DEVICES, devices_needed};
use ripieno_report::Summary;
use ripieno_sim::{Arrival, Length, Scenario, SimError, simulate};

/// Largest bad rate of any model in a run that passes, as in a goodput search.
const MAX_BAD_RATE: f64 = 0.01;
/// Multiple of the bound, plus a few devices, at which a simulated search gives up.
const SEARCH_FACTOR: usize = 16;

/// The result of a simulated search.
#[derive(Debug, Clone)]
pub(super) struct DeviceSearch {
    /// The smallest number of devices that passed; `None` if even the largest tried did not.
    pub(super) good: Option<(usize, Summary)>,
    /// The largest number of devices that did not pass; 0 if one device is enough.
    pub(super) bad: usize,
    /// Number of runs.
    pub(super) runs: usize,
}

/// Returns the offered requests per second of each model.
pub(super) fn rates(scenario: &Scenario) -> Vec<f64> {
    let Some(requests) = &scenario.requests else {
        let rate = scenario.rate.unwrap_or(0.0);
        return scenario.loads.iter().map(|load| rate * load.share).collect();
    };
    // Requests that all arrive together are a load over the time that there is to answer them.
    let last = requests.iter().map(|request| request.at.as_millis_f64()).fold(0.0, f64::max);
    let slo = scenario.setup.models.iter().map(|model| model.slo.as_millis_f64()).fold(0.0, f64::max);
    let mut rows = vec![0.0; scenario.setup.models.len()];
    requests.iter().for_each(|request| rows[usize::from(request.model.0)] += f64::from(request.rows));
    rows.into_iter().map(|rows| rows * 1e3 / last.max(slo)).collect()
}

/// Returns the devices by analysis.
pub(super) fn needed(scenario: &Scenario) -> DevicesNeeded {
    let models = &scenario.setup.models;
    let profiles: Vec<Profile> = models.iter().map(Model::profile).collect();
    let demand = |((profile, model), rate_rps): ((_, &Model), f64)| DeviceDemand { profile, slo: model.slo, rate_rps };
    devices_needed(&profiles.iter().zip(models).zip(rates(scenario)).map(demand).collect::<Vec<_>>())
}

/// Returns the scenario with some of its models only; each keeps its load. The models ascend.
pub(super) fn subset(scenario: &Scenario, models: &[usize]) -> Scenario {
    let share: f64 = models.iter().map(|&model| scenario.loads[model].share).sum();
    let mut part = scenario.clone();
    part.setup.models = models.iter().map(|&model| scenario.setup.models[model].clone()).collect();
    part.setup.limits.models = models.len();
    part.walks = models.iter().map(|&model| scenario.walks[model].clone()).collect();
    part.routes = models.iter().map(|&model| scenario.routes[model].clone()).collect();
    part.gather = models.iter().map(|&model| scenario.gather[model].clone()).collect();
    part.loads = models.iter().map(|&model| scenario.loads[model].clone()).collect();
    if share > 0.0 {
        part.loads.iter_mut().for_each(|load| load.share /= share);
    }
    part.rate = scenario.rate.map(|rate| rate * share);
    part.requests = scenario.requests.as_ref().map(|requests| {
        let renamed = |request: &Arrival| {
            let model = models.binary_search(&usize::from(request.model.0)).ok()?;
            Some(Arrival { model: ModelId(model as u16), ..*request })
        };
        requests.iter().filter_map(renamed).collect()
    });
    if let (Length::Requests(count), None) = (scenario.length, &scenario.requests) {
        part.length = Length::Requests(((count as f64 * share).round() as u64).max(count.min(1000)));
    }
    // Options of absent models, `knob.model`, would be refused.
    let known = |name: &str| part.setup.models.iter().any(|model| model.name == name);
    let about_absent = |key: &str| key.split_once('.').is_some_and(|(_, model)| !known(model));
    part.policy_options =
        std::mem::take(&mut part.policy_options).into_iter().filter(|(key, _)| !about_absent(key)).collect();
    part
}

/// Searches for the smallest number of devices with which every model's bad rate stays within 1 %,
/// from a first guess. It assumes that more devices are never worse, which holds except for chance
/// close to the result.
pub(super) fn simulated(
    scenario: &Scenario,
    guess: usize,
    mut progress: impl FnMut(usize, &Summary),
) -> Result<DeviceSearch, SimError> {
    let guess = guess.clamp(1, MAX_DEVICES);
    let most = (guess * SEARCH_FACTOR + 64).min(MAX_DEVICES);
    let mut found = DeviceSearch { good: None, bad: 0, runs: 0 };
    while let Some(devices) = next(guess, most, found.bad, found.good.as_ref().map(|(good, _)| *good)) {
        let summary = simulate(&with_devices(scenario, devices), None)?;
        progress(devices, &summary);
        found.runs += 1;
        if summary.worst_bad_rate <= MAX_BAD_RATE {
            found.good = Some((devices, summary));
        } else {
            found.bad = devices;
        }
    }
    Ok(found)
}

/// Returns the next number to try: the guess, then away from it in growing steps until both sides
/// are known, then the middle.
fn next(guess: usize, most: usize, bad: usize, good: Option<usize>) -> Option<usize> {
    match good {
        None if bad == 0 => Some(guess),
        None => (bad < most).then(|| (bad + (bad - guess).max(1)).min(most)),
        Some(good) if good - bad <= 1 => None,
        Some(good) if bad == 0 => Some(good.saturating_sub((guess - good).max(1)).max(1)),
        Some(good) => Some(good.midpoint(bad)),
    }
}

fn with_devices(scenario: &Scenario, devices: usize) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.setup.devices = devices;
    scenario.setup.limits.devices = devices;
    // A load that needs this many devices may have more requests waiting than the default allows.
    let slo = scenario.setup.models.iter().map(|model| model.slo.as_secs_f64()).fold(0.0, f64::max);
    let waiting = 2.0 * scenario.rate.unwrap_or(0.0) * slo;
    scenario.setup.limits.requests = scenario.setup.limits.requests.max((waiting as usize).min(1 << 24));
    scenario
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_base::Nanos;

    /// Runs the search against a knee; returns the result and the numbers tried.
    fn search(guess: usize, knee: usize) -> (Option<usize>, Vec<usize>) {
        let (mut bad, mut good, mut tried) = (0, None, Vec::new());
        while let Some(devices) = next(guess, guess * SEARCH_FACTOR + 64, bad, good) {
            tried.push(devices);
            if devices >= knee { good = Some(devices) } else { bad = devices }
        }
        (good, tried)
    }

    #[test]
    fn the_knee_is_found_from_both_sides_without_asking_twice() {
        for guess in 1..60 {
            for knee in 1..200 {
                let (found, mut tried) = search(guess, knee);
                assert_eq!(found, (knee <= guess * SEARCH_FACTOR + 64).then_some(knee), "{guess} {knee}");
                assert!(tried.len() <= 20, "{guess} {knee} {tried:?}");
                let runs = tried.len();
                tried.sort_unstable();
                tried.dedup();
                assert_eq!(runs, tried.len());
            }
        }
    }

    #[test]
    fn a_good_guess_takes_two_runs() {
        assert_eq!(search(8, 8).1, [8, 7]);
        assert_eq!(search(8, 9).1, [8, 9]);
    }

    const TEXT: &str = "rate = 3000.0\nrequests = 6000\npolicy_options = { max_batch = 20, \"max_batch.b\" = 4 }\n\
        [[model]]\nname = \"a\"\nslo_ms = 25.0\nalpha_ms = 1.0\nbeta_ms = 5.0\nshare = 2.0\n\
        [[model]]\nname = \"b\"\nslo_ms = 25.0\nalpha_ms = 1.0\nbeta_ms = 5.0\nshare = 1.0\n\
        [[model]]\nname = \"late\"\nslo_ms = 5.0\nalpha_ms = 1.0\nbeta_ms = 5.0\nshare = 0.0\n";

    #[test]
    fn a_subset_keeps_each_models_load() {
        let scenario = Scenario::parse(TEXT, "s.toml").unwrap();
        assert_eq!(scenario.impossible_models(), [(2, Nanos::from_millis(6))]);
        let part = subset(&scenario, &[0]);
        assert_eq!((part.rate, part.length), (Some(2000.0), Length::Requests(4000)));
        assert_eq!(rates(&part), [2000.0]);
        assert!(!part.policy_options.contains_key("max_batch.b") && part.policy_options.contains_key("max_batch"));
        assert_eq!(rates(&subset(&scenario, &[1, 2])), [1000.0, 0.0]);
    }

    #[test]
    fn simulation_and_bound_agree_about() {
        let scenario = subset(&Scenario::parse(TEXT, "s.toml").unwrap(), &[0, 1]);
        let bound = needed(&scenario).bound.devices().unwrap();
        let found = simulated(&scenario, bound, |_, _| {}).unwrap();
        let devices = found.good.unwrap().0;
        assert!(devices >= bound && devices <= bound + 3, "{devices} {bound}");
        assert_eq!(found.bad, devices - 1);
    }
}
