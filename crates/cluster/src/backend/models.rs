//! The models of a backend's process, which its devices share: those that it offers to schedulers,
//! and earlier ones that a scheduler still uses.
//!
//! A model that a newer one replaces stays on offer until the scheduler has the newer one on its
//! devices: so the earlier one serves until the newer one is ready on every backend. A model that
//! goes out of service is not offered any more, and stays only while a device has it.

use super::slots::SlotPool;
use crate::description::ModelDescription;
use crate::offer::{BackendOffer, OfferedModel};
use crate::plane::{CELLS, Message, PeerLink};
use bytes::Bytes;
use parking_lot::Mutex;
use ripieno_executor::LoadedModel;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

/// The largest number of models of one name that are held at a time.
const MAX_OF_NAME: usize = 64;
/// Number of calls whose results are kept for the other devices of the process.
const MAX_CALLS: usize = 64;

/// A model that is loaded in this process.
pub struct BackendModel {
    /// The description sent to schedulers.
    pub description: ModelDescription,
    /// The loaded model.
    pub loaded: Arc<dyn LoadedModel>,
}

/// The models of a backend's process, and the slots in which they keep the state of requests.
#[derive(Default)]
pub struct BackendModels(Mutex<HeldModels>, Arc<SlotPool>);

#[derive(Default)]
struct HeldModels {
    held: BTreeMap<u32, HeldModel>,
    /// Connections to schedulers, which receive every change.
    links: Vec<OfferLink>,
    /// The sub-cluster of each device that was told of one, by the device's number.
    places: BTreeMap<u64, usize>,
    /// Whether the process loads what a plan says.
    follows: bool,
    /// The reason for which a planned model is not loaded; empty if all are.
    fault: String,
    /// The models of the process's repository, with their sizes in bytes.
    available: BTreeMap<String, u64>,
}

/// A connection of a device to a scheduler.
struct OfferLink {
    link: Weak<PeerLink>,
    /// Revision of the scheduler's protocol.
    revision: u16,
    /// Number of the device.
    device: u64,
}

struct HeldModel {
    description: ModelDescription,
    loaded: Arc<dyn LoadedModel>,
    stage: ServiceStage,
    /// Numbers that the process gave it: it was loaded again, and nothing had changed.
    names: Vec<u32>,
    /// Number of devices that have it.
    attached: usize,
}

/// Stage of a model's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServiceStage {
    Wanted,
    /// A newer one of its name takes its place.
    Superseded,
    /// Out of service.
    Withdrawn,
}

impl BackendModels {
    /// Offers a model under a number that no other model has had. One that is offered already
    /// stays, under both numbers. Fails if too many of its name are still in use.
    pub fn add(&self, number: u32, model: BackendModel) -> Result<(), String> {
        let mut models = self.0.lock();
        let BackendModel { description, loaded } = model;
        let is_known =
            |held: &&mut HeldModel| held.stage == ServiceStage::Wanted && held.description.is_same(&description);
        if let Some(known) = models.held.values_mut().find(is_known).filter(|_| !description.digest.is_empty()) {
            known.names.push(number);
            return Ok(());
        }
        let of_name = models.held.values().filter(|held| held.description.name == description.name).count();
        if of_name >= MAX_OF_NAME {
            return Err(format!(
                "{of_name} models of this name are still in use; wait until the last release has ended"
            ));
        }
        models.held.insert(
            number,
            HeldModel { description, loaded, stage: ServiceStage::Wanted, names: vec![number], attached: 0 },
        );
        models.announce();
        Ok(())
    }

    /// Ends the service of a model, once a newer one of its name serves if there is one.
    pub fn withdraw(&self, given: u32) {
        let mut models = self.0.lock();
        let Some((&number, held)) = models.held.iter_mut().find(|(_, held)| held.names.contains(&given)) else {
            return;
        };
        held.names.retain(|&name| name != given);
        if !held.names.is_empty() {
            return;
        }
        let name = held.description.name.clone();
        let newer = models.held.iter().any(|(&other, held)| {
            other > number && held.stage == ServiceStage::Wanted && held.description.name == name
        });
        if let Some(held) = models.held.get_mut(&number).filter(|_| newer) {
            held.stage = ServiceStage::Superseded;
        }
        if !newer {
            // Nor may one serve again that it has replaced and that a device still has.
            let is_over = |at: u32, held: &HeldModel| {
                at == number || held.stage == ServiceStage::Superseded && held.description.name == name
            };
            let over = models.held.iter_mut().filter(|(at, held)| is_over(**at, held));
            over.for_each(|(_, held)| held.stage = ServiceStage::Withdrawn);
        }
        models.remove_unused();
        models.announce();
    }

    pub(super) fn slots(&self) -> Arc<SlotPool> {
        Arc::clone(&self.1)
    }

    /// Returns true if it offers the model of this number.
    pub fn offers(&self, number: u32) -> bool {
        self.0.lock().held.values().any(|held| held.names.contains(&number))
    }

    /// Registers a device with a scheduler, which receives every change from then on.
    pub(super) fn register(&self, link: &Arc<PeerLink>, revision: u16, depth: u32, device: u64) {
        let mut models = self.0.lock();
        models.links.retain(|link| link.link.strong_count() > 0);
        let registered = OfferLink { link: Arc::downgrade(link), revision, device };
        link.send(&Message::RegisterBackend { depth, models: models.offer(&registered) });
        models.links.push(registered);
    }

    /// Sets the sub-cluster that a device belongs to, and announces it to all schedulers: a spare
    /// must know it when it takes over.
    pub(super) fn set_place(&self, device: u64, place: usize) {
        let mut models = self.0.lock();
        if models.places.insert(device, place) != Some(place) {
            models.links.iter().filter(|link| link.device == device).for_each(|link| models.announce_on(link));
        }
    }

    /// Makes schedulers know that the process loads what a plan says, of these models; each has its
    /// size in bytes.
    pub(super) fn follow_plans(&self, available: BTreeMap<String, u64>) {
        let mut models = self.0.lock();
        (models.follows, models.available) = (true, available);
    }

    /// Tells schedulers why a planned model is not loaded; an empty text says that all are.
    pub(super) fn set_fault(&self, fault: String) {
        let mut models = self.0.lock();
        if models.fault != fault {
            models.fault = fault;
            models.announce();
        }
    }

    /// Returns a model for a device, which has it until the result is dropped.
    pub(super) fn attach(self: &Arc<BackendModels>, number: u32) -> Option<AttachedModel> {
        let mut models = self.0.lock();
        let held = models.held.get_mut(&number)?;
        held.attached += 1;
        let loaded = Arc::clone(&held.loaded);
        if models.remove_unused() {
            models.announce();
        }
        Some(AttachedModel { loaded, number, models: Arc::clone(self) })
    }
}

impl HeldModels {
    /// Returns what a device offers on this connection.
    fn offer(&self, to: &OfferLink) -> Bytes {
        let is_known = |held: &HeldModel| held.description.walks.is_none() || to.revision >= CELLS;
        let is_offered = |held: &HeldModel| held.stage != ServiceStage::Withdrawn && is_known(held);
        let offered = self.held.iter().filter(|(_, held)| is_offered(held));
        let offer = |(&number, held): (&u32, &HeldModel)| OfferedModel {
            number,
            superseded: held.stage == ServiceStage::Superseded,
            description: held.description.clone(),
        };
        let (models, fault, available) = (offered.map(offer).collect(), self.fault.clone(), self.available.clone());
        let place = self.places.get(&to.device).copied();
        BackendOffer { models, follows: self.follows, place, fault, available }.encode().into()
    }

    fn announce(&self) {
        self.links.iter().for_each(|link| self.announce_on(link));
    }

    fn announce_on(&self, to: &OfferLink) {
        if let Some(link) = to.link.upgrade() {
            link.send(&Message::Offer(self.offer(to)));
        }
    }

    /// Drops models that no device has and none will have. Returns true if there were any.
    fn remove_unused(&mut self) -> bool {
        let serving: Vec<String> = self
            .held
            .values()
            .filter(|held| held.stage == ServiceStage::Wanted && held.attached > 0)
            .map(|held| held.description.name.clone())
            .collect();
        let before = self.held.len();
        self.held.retain(|_, held| match held.stage {
            ServiceStage::Wanted => true,
            ServiceStage::Superseded => held.attached > 0 || !serving.contains(&held.description.name),
            ServiceStage::Withdrawn => held.attached > 0,
        });
        self.held.len() < before
    }
}

/// A model that a device has.
pub(super) struct AttachedModel {
    pub(super) loaded: Arc<dyn LoadedModel>,
    number: u32,
    models: Arc<BackendModels>,
}

impl Drop for AttachedModel {
    fn drop(&mut self) {
        let mut models = self.models.0.lock();
        if let Some(held) = models.held.get_mut(&self.number) {
            held.attached -= 1;
        }
        if models.remove_unused() {
            models.announce();
        }
    }
}

/// Loads or unloads a model of this process's repository, by name; the flag says unload.
type ChangeModels = Box<dyn Fn(&str, bool) -> Result<(), String> + Send + Sync>;

/// Calls to load and unload models. The devices of a process receive each call once each, and the
/// first one makes it for all.
pub struct ModelCalls {
    change: ChangeModels,
    calls: Mutex<VecDeque<(u64, Arc<CallResult>)>>,
}

type CallResult = OnceLock<Result<(), String>>;

impl ModelCalls {
    /// Returns the calls that `change` makes.
    pub fn new(change: ChangeModels) -> ModelCalls {
        ModelCalls { change, calls: Mutex::default() }
    }

    /// Makes a call, or waits for the device that makes it.
    pub(super) fn make(&self, call: u64, name: &str, unload: bool) -> Result<(), String> {
        let mut calls = self.calls.lock();
        let known = calls.iter().find(|(number, _)| *number == call).map(|(_, result)| Arc::clone(result));
        let result = known.unwrap_or_else(|| {
            let result = Arc::<CallResult>::default();
            calls.push_back((call, Arc::clone(&result)));
            if calls.len() > MAX_CALLS {
                calls.pop_front();
            }
            result
        });
        drop(calls);
        result.get_or_init(|| (self.change)(name, unload)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{RemoteModel, described};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn model(name: &str, version: &str) -> BackendModel {
        let mut description = described();
        (description.name, description.version) = (name.to_owned(), version.to_owned());
        let loaded = Arc::new(RemoteModel::new(&description).unwrap());
        BackendModel { description, loaded }
    }

    /// Returns number and whether it is superseded of each model on offer.
    fn offered(models: &BackendModels) -> Vec<(u32, bool)> {
        let offer = models.0.lock().offer(&OfferLink { link: Weak::new(), revision: CELLS, device: 0 });
        let offer = crate::offer::decode_offer(&offer).unwrap();
        offer.models.iter().map(|offer| (offer.number, offer.superseded)).collect()
    }

    #[test]
    fn a_replaced_model_is_offered_until_the_newer_one_serves_and_the_last_device_has_left_it() {
        let models = Arc::new(BackendModels::default());
        models.add(0, model("m", "1")).unwrap();
        let first = models.attach(0).unwrap();
        models.add(1, model("m", "2")).unwrap();
        models.withdraw(0);
        assert_eq!(offered(&models), [(0, true), (1, false)]);
        // A scheduler that takes over before the newer one serves still finds it.
        drop(first);
        let again = models.attach(0).unwrap();
        let second = models.attach(1).unwrap();
        assert_eq!(offered(&models), [(0, true), (1, false)], "its last requests run");
        drop(again);
        assert_eq!(offered(&models), [(1, false)]);
        assert!(models.attach(0).is_none());
        models.withdraw(1);
        assert!(offered(&models).is_empty() && models.attach(1).is_some(), "a device has it");
        drop(second);
        assert!(models.attach(1).is_none());
    }

    #[test]
    fn a_model_that_is_loaded_again_without_a_change_stays() {
        let models = Arc::new(BackendModels::default());
        models.add(0, model("m", "1")).unwrap();
        models.add(5, model("m", "1")).unwrap();
        models.withdraw(0);
        assert_eq!(offered(&models), [(0, false)]);
        assert!(models.offers(5) && !models.offers(0));
        models.withdraw(5);
        assert!(offered(&models).is_empty());
    }

    #[test]
    fn a_model_that_is_withdrawn_does_not_bring_back_the_one_that_it_replaced() {
        let models = Arc::new(BackendModels::default());
        models.add(0, model("m", "1")).unwrap();
        let first = models.attach(0).unwrap();
        models.add(1, model("m", "2")).unwrap();
        models.withdraw(0);
        let _second = models.attach(1).unwrap();
        models.withdraw(1);
        assert!(offered(&models).is_empty());
        drop(first);
        assert!(models.attach(0).is_none());
    }

    #[test]
    fn models_of_one_name_are_bounded() {
        let models = BackendModels::default();
        let numbers = 0..MAX_OF_NAME as u32;
        numbers.for_each(|number| models.add(number, model("m", &number.to_string())).unwrap());
        assert!(models.add(100, model("m", "100")).unwrap_err().contains("still in use"));
        assert!(models.add(101, model("other", "1")).is_ok());
    }

    #[test]
    fn devices_of_a_process_share_a_call() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let calls = ModelCalls::new(Box::new(move |name, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            if name == "bad" { Err("no".to_owned()) } else { Ok(()) }
        }));
        assert_eq!([calls.make(1, "m", false), calls.make(1, "m", false)], [Ok(()), Ok(())]);
        assert_eq!((calls.make(2, "bad", false), made.load(Ordering::SeqCst)), (Err("no".to_owned()), 2));
    }
}
