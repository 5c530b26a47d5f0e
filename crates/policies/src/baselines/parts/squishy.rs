//! Squishy bin packing ("Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis"):
//! assigns models and batch sizes to devices, so that given rates are served in time.
//!
//! Bins are devices, items are models. A device runs its models in turn, and the duration of a turn
//! is the *duty cycle*. The shorter the duty cycle, the fewer requests of a model gather in it, and
//! the smaller its batch: an item shrinks with its bin.
//!
//! A model that fills devices gets whole ones, with the largest batch b of 2ℓ(b) ≤ SLO: a request
//! waits for at most the batch before its own. The remainders of the models share devices. In the
//! order of decreasing occupancy, each joins the device that it fills best, or a new one.
//!
//! Rates are multiplied by the largest factor at which everything fits, so that all devices are
//! used. A model that does not fit at any factor goes to the device with the lowest utilisation, in
//! time or not, since every model needs a device. All values are integers: rates in thousandths of
//! a row per second, with the suffix `_mrps`.

use super::pool::{BatchPool, PoolModel};
use ripieno_base::{ModelId, Nanos};
use ripieno_model::Profile;

/// Conversion of rows per nanosecond to thousandths of a row per second.
pub(crate) const MRPS_NS: u128 = 1_000_000_000_000;

/// Reciprocal of the smallest part of a device that gets a share of its own.
const GRAIN: u64 = 1_000;

/// One model on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceShare {
    pub(crate) model: ModelId,
    /// Index of the device.
    pub(crate) node: usize,
    /// Batch size in rows.
    pub(crate) batch: usize,
    /// The planned rate.
    pub(crate) rate_mrps: u64,
    /// The next share on the same device.
    next: Option<usize>,
}

/// A packer that does not allocate after construction.
#[derive(Debug)]
pub(crate) struct Packer {
    demands: Vec<PackingDemand>,
    residues: Vec<Residue>,
    shares: Vec<DeviceShare>,
    nodes: Vec<PackingNode>,
}

#[derive(Clone, Copy, Debug)]
struct PackingDemand {
    /// The model.
    model: ModelId,
    /// Rate of the model, in thousandths of a request per second.
    rate_mrps: u64,
    /// The batch that fills a device.
    batch: usize,
    /// Rate that a device serves with that batch, in thousandths of a request per second.
    capacity_mrps: u64,
    /// Largest number of devices that may have the model.
    instances: usize,
}

/// The remainder of a model after whole devices.
#[derive(Clone, Copy, Debug)]
struct Residue {
    model: ModelId,
    rate_mrps: u64,
    batch: usize,
    duty: Nanos,
    cost: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct PackingNode {
    first: Option<usize>,
    duty: Nanos,
    /// Busy time in a duty cycle.
    used: Nanos,
    /// Whether others may join.
    shared: bool,
}

impl Packer {
    pub(crate) fn new(models: usize, devices: usize) -> Packer {
        Packer {
            demands: Vec::with_capacity(models),
            residues: Vec::with_capacity(models),
            shares: Vec::with_capacity(models + devices),
            nodes: Vec::with_capacity(devices),
        }
    }

    /// Packs the models in service, each at its `rate_mrps`, onto `devices`. Models without a rate
    /// run on the least utilised devices; if none has a rate, all get the same one. The shares are
    /// ordered by model.
    pub(crate) fn pack(
        &mut self,
        pool: &BatchPool,
        devices: usize,
        rate_mrps: impl Fn(ModelId) -> u64,
    ) -> &[DeviceShare] {
        self.demands.clear();
        self.shares.clear();
        if devices == 0 {
            return &self.shares;
        }
        let unknown = pool.in_service().all(|(id, _)| rate_mrps(id) == 0);
        let rate = |id: ModelId| if unknown { GRAIN } else { rate_mrps(id) };
        self.demands.extend(pool.in_service().map(|(id, served)| PackingDemand::new(id, served, rate(id))));
        // Upper bound on the factor, as if all load were spread over whole devices.
        let load_ppm =
            |demand: &PackingDemand| u128::from(demand.rate_mrps) * 1_000_000 / u128::from(demand.capacity_mrps);
        let load: u128 = self.demands.iter().map(load_ppm).sum::<u128>().max(1);
        let bound = (devices as u128 * 1_000_000, load);
        let (mut low, mut high) = (0, 1_000);
        while low < high {
            let middle = u128::div_ceil(low + high, 2);
            let fits = self.try_pack(pool, devices, (bound.0 * middle, bound.1 * 1_000), false);
            if fits { low = middle } else { high = middle - 1 }
        }
        self.try_pack(pool, devices, (bound.0 * low.max(1), bound.1 * 1_000), low == 0);
        self.place_idle(pool, devices);
        self.size_batches(pool);
        self.shares.sort_unstable_by_key(|share| (share.model, share.node));
        &self.shares
    }

    /// Packs at `factor` times the rates. Returns false if that does not fit, unless it is forced.
    fn try_pack(&mut self, pool: &BatchPool, devices: usize, factor: (u128, u128), forced: bool) -> bool {
        self.shares.clear();
        self.nodes.clear();
        self.residues.clear();
        for at in 0..self.demands.len() {
            let demand = self.demands[at];
            if demand.rate_mrps == 0 {
                continue;
            }
            let rate = u64::try_from(u128::from(demand.rate_mrps) * factor.0 / factor.1).unwrap_or(u64::MAX / 2).max(1);
            let capacity = demand.capacity_mrps;
            let whole = usize::try_from((rate + capacity / GRAIN) / capacity).unwrap_or(usize::MAX);
            let whole = whole.min(demand.instances);
            if self.nodes.len() + whole > devices {
                return false;
            }
            let served = pool.served(demand.model);
            for _ in 0..whole {
                let cost = served.profile.latency(demand.batch);
                self.open(cost, cost, false);
                self.join(self.nodes.len() - 1, demand.model, demand.batch, capacity);
            }
            let rest = rate.saturating_sub(capacity.saturating_mul(whole as u64));
            if whole == 0 || (whole < demand.instances && rest > capacity / GRAIN) {
                self.residues.push(Residue::new(demand.model, served, rest.max(1)));
            }
        }
        self.pack_residues(pool, devices, forced)
    }

    fn pack_residues(&mut self, pool: &BatchPool, devices: usize, forced: bool) -> bool {
        // By occupancy, cost / duty, the largest first.
        let product = |a: Nanos, b: Nanos| i128::from(a.0) * i128::from(b.0);
        self.residues
            .sort_unstable_by(|a, b| product(b.cost, a.duty).cmp(&product(a.cost, b.duty)).then(a.model.cmp(&b.model)));
        for at in 0..self.residues.len() {
            let residue = self.residues[at];
            let node = match self.best_node(pool, &residue) {
                Some((node, duty, used)) => {
                    (self.nodes[node].duty, self.nodes[node].used) = (duty, used);
                    node
                }
                None if self.nodes.len() < devices => self.open(residue.duty, residue.cost, true),
                None if forced => self.roomiest(),
                None => return false,
            };
            self.join(node, residue.model, residue.batch, residue.rate_mrps);
        }
        true
    }

    /// Returns the shared device that this residue fills best, with its new duty cycle and busy
    /// time.
    fn best_node(&self, pool: &BatchPool, residue: &Residue) -> Option<(usize, Nanos, Nanos)> {
        let mut best: Option<(usize, Nanos, Nanos)> = None;
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.shared) {
            let duty = node.duty.min(residue.duty);
            let shares = std::iter::successors(node.first, |&share| self.shares[share].next);
            let costs = shares.map(|share| {
                let DeviceShare { model, rate_mrps, .. } = self.shares[share];
                cost(&pool.served(model).profile, duty, rate_mrps)
            });
            let own = cost(&pool.served(residue.model).profile, duty, residue.rate_mrps);
            let used = costs.sum::<Nanos>() + own;
            let fuller = best.is_none_or(|(_, other_duty, other_used)| {
                i128::from(used.0) * i128::from(other_duty.0) > i128::from(other_used.0) * i128::from(duty.0)
            });
            if used <= duty && fuller {
                best = Some((at, duty, used));
            }
        }
        best
    }

    /// Places models without a rate.
    fn place_idle(&mut self, pool: &BatchPool, devices: usize) {
        for at in 0..self.demands.len() {
            let PackingDemand { model, rate_mrps, batch, .. } = self.demands[at];
            if rate_mrps > 0 {
                continue;
            }
            let served = pool.served(model);
            let cost = served.profile.latency(batch);
            let node = if self.nodes.len() < devices { self.open(cost, Nanos::ZERO, false) } else { self.roomiest() };
            self.join(node, model, batch, 1);
        }
    }

    fn open(&mut self, duty: Nanos, used: Nanos, shared: bool) -> usize {
        self.nodes.push(PackingNode { first: None, duty, used, shared });
        self.nodes.len() - 1
    }

    fn join(&mut self, node: usize, model: ModelId, batch: usize, rate_mrps: u64) {
        self.shares.push(DeviceShare { model, node, batch, rate_mrps, next: self.nodes[node].first });
        self.nodes[node].first = Some(self.shares.len() - 1);
    }

    /// Returns the device with the smallest busy part and makes it slightly fuller, so that further
    /// shares spread.
    fn roomiest(&mut self) -> usize {
        let part = |node: &PackingNode| i128::from(node.used.0) * 1_000_000 / i128::from(node.duty.0.max(1));
        let nodes = self.nodes.iter().enumerate();
        let (node, _) = nodes.min_by_key(|&(at, node)| (part(node), at)).expect("there is a device");
        let room = &mut self.nodes[node];
        room.used += Nanos(room.duty.0 / 100 + 1);
        node
    }

    /// Fits the batches of shared devices to their duty cycles.
    fn size_batches(&mut self, pool: &BatchPool) {
        for share in &mut self.shares {
            let node = self.nodes[share.node];
            if node.shared {
                let profile = &pool.served(share.model).profile;
                share.batch = gathered(node.duty, share.rate_mrps).clamp(1, profile.max_batch());
            }
        }
    }
}

impl PackingDemand {
    fn new(model: ModelId, served: &PoolModel, rate_mrps: u64) -> PackingDemand {
        let profile = &served.profile;
        let cap = served.max_batch.min(profile.max_batch());
        let batch = profile.largest_within(Nanos(served.model.slo.0 / 2)).clamp(1, cap);
        let latency = profile.latency(batch).0.max(1) as u128;
        let capacity_mrps = u64::try_from(batch as u128 * MRPS_NS / latency).unwrap_or(u64::MAX / 2).max(1);
        PackingDemand { model, rate_mrps, batch, capacity_mrps, instances: served.model.instances.max(1) }
    }
}

impl Residue {
    /// Computes the largest batch whose first request is in time if it waits for the others to
    /// arrive.
    fn new(model: ModelId, served: &PoolModel, rate_mrps: u64) -> Residue {
        let (profile, slo) = (&served.profile, served.model.slo);
        let cap = served.max_batch.min(profile.max_batch());
        let arrive_in =
            |rows: usize| Nanos(i64::try_from(rows as u128 * MRPS_NS / u128::from(rate_mrps)).unwrap_or(i64::MAX));
        let fits = |batch: usize| arrive_in(batch - 1) + profile.latency(batch) <= slo;
        let (mut low, mut high) = (1, cap.max(1));
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        let cost = profile.latency(low);
        let duty = arrive_in(low).min(slo - cost).max(cost).max(Nanos(1));
        Residue { model, rate_mrps, batch: low, duty, cost }
    }
}

/// Returns the number of rows that arrive in a duty cycle.
fn gathered(duty: Nanos, rate_mrps: u64) -> usize {
    (duty.0.max(0) as u128 * u128::from(rate_mrps)).div_ceil(MRPS_NS) as usize
}

fn cost(profile: &Profile, duty: Nanos, rate_mrps: u64) -> Nanos {
    profile.latency(gathered(duty, rate_mrps).max(1))
}

#[cfg(test)]
mod tests {
    use super::super::pool::PoolRules;
    use super::*;
    use ripieno_model::{DropRule, Model};
    use ripieno_sched::Limits;
    use ripieno_sched::tables::models::{BatchOptions, PerModel};

    const LIMITS: Limits = Limits { requests: 4, models: 4, devices: 8, batch: 64, ..Limits::ONE };

    /// Models of ℓ(b) = αb + β ms and these SLOs.
    fn pool(models: &[(f64, f64, i64)]) -> BatchPool {
        let options = BatchOptions { drop: DropRule::Hopeless, max_batch: PerModel::all(None) };
        let mut pool = BatchPool::new(&LIMITS, 4, PoolRules { options, margin: Nanos::ZERO, head_blocks: false });
        for (id, &(alpha, beta, slo)) in models.iter().enumerate() {
            let profile = Profile::linear(alpha, beta, 64).unwrap();
            pool.load(ModelId(id as u16), Model::whole(&id.to_string(), profile, Nanos::from_millis(slo)));
        }
        pool
    }

    /// `model@device:batch`, for each share.
    fn packed(models: &[(f64, f64, i64)], devices: usize, rates: &[u64]) -> String {
        let mut packer = Packer::new(LIMITS.models, LIMITS.devices);
        let pool = pool(models);
        let shares = packer.pack(&pool, devices, |id| rates[id.index()] * 1_000);
        let text = shares.iter().map(|share| format!("{}@{}:{}", share.model.0, share.node, share.batch));
        text.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_model_fills_all_devices_with_its_uncoordinated_batch() {
        // ResNet50 of Symphony's Table 2: floor((25/2 - 5.072) / 1.053) = 7.
        let resnet = (1.053, 5.072, 25);
        assert_eq!(packed(&[resnet], 3, &[5_000]), "0@0:7 0@1:7 0@2:7");
        assert_eq!(packed(&[resnet], 2, &[0]), "0@0:7 0@1:7");
    }

    /// 100 rows/s each on one device, ℓ(b) = b + 5, SLO 50. The rates can grow to 333/s: then a
    /// batch of 12 takes 17 ms and leaves a turn of 33 ms, in which 11 rows of each arrive, and
    /// 2ℓ(11) = 32. With a rate just above it is 12, and 2ℓ(12) = 34 does not fit into the turn.
    #[test]
    fn two_small_models_share_a_device_in_turns() {
        let model = (1.0, 5.0, 50);
        assert_eq!(packed(&[model, model], 1, &[100, 100]), "0@0:11 1@0:11");
    }

    #[test]
    fn rates_decide_how_many_devices_a_model_has() {
        let model = (1.0, 5.0, 30);
        let shares = packed(&[model, model], 4, &[3_000, 1_000]);
        assert_eq!(shares, "0@0:10 0@1:10 0@2:10 1@3:10");
    }

    #[test]
    fn no_model_is_without_a_device() {
        let model = (1.0, 5.0, 12);
        // Even alone and in batches of one, two of these do not fit into a turn.
        assert_eq!(packed(&[model; 3], 1, &[10, 10, 10]).matches("@0").count(), 3);
        // Models without requests.
        assert_eq!(packed(&[model, model, model], 2, &[500, 0, 0]).matches('@').count(), 4);
        assert_eq!(packed(&[model], 0, &[10]), "");
    }
}
