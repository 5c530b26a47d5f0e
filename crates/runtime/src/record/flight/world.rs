//! The models and devices in effect at an instant, as the controls of a scheduler left them.

use super::entry::renumbered;
use ripieno_base::{BlockId, DeviceId, ModelId};
use ripieno_model::{Model, Profile};
use ripieno_sched::{Control, NetworkDelay};
use std::collections::BTreeMap;

/// Models by id, and devices with their speed.
#[derive(Clone, Debug, Default)]
pub struct RunWorld {
    models: BTreeMap<ModelId, WorldModel>,
    /// Latency of each serving device in percent of the profile.
    devices: BTreeMap<DeviceId, u32>,
    /// Measured time that a batch needs to reach a device, if there is one.
    network: Option<NetworkDelay>,
}

/// A model as it was loaded, and the profiles that were corrected since.
#[derive(Clone, Debug)]
struct WorldModel {
    model: Box<Model>,
    corrected: BTreeMap<BlockId, Profile>,
    /// Measured time to gather batches, if there is one.
    gather: Option<NetworkDelay>,
}

impl RunWorld {
    /// Creates the world of a scheduler that begins with this number of devices.
    pub fn new(devices: usize) -> RunWorld {
        let devices = (0..devices).map(|id| (DeviceId(id as u16), 100)).collect();
        RunWorld { devices, ..RunWorld::default() }
    }

    /// Applies a change.
    pub fn apply(&mut self, control: &Control) {
        match control {
            Control::ModelLoaded(id, model) => {
                let loaded = WorldModel { model: model.clone(), corrected: BTreeMap::new(), gather: None };
                self.models.insert(*id, loaded);
            }
            Control::ModelUnloaded(id) => drop(self.models.remove(id)),
            Control::ProfileReplaced { model, block, profile } => {
                if let Some(loaded) = self.models.get_mut(model) {
                    loaded.corrected.insert(*block, profile.clone());
                }
            }
            Control::DeviceJoined(id) => drop(self.devices.insert(*id, 100)),
            Control::DeviceLeft(id) => drop(self.devices.remove(id)),
            Control::DeviceSlowed { device, percent } => {
                if let Some(now) = self.devices.get_mut(device) {
                    *now = *percent;
                }
            }
            Control::NetworkDelayed(measured) => self.network = Some(*measured),
            Control::GatherMeasured(id, measured) => {
                if let Some(loaded) = self.models.get_mut(id) {
                    loaded.gather = Some(*measured);
                }
            }
            Control::Cancelled(_) => {}
        }
    }

    /// Returns the world with `first` added to the ids of devices.
    pub(super) fn with_devices_from(mut self, first: u16) -> RunWorld {
        self.devices = self.devices.into_iter().map(|(id, percent)| (renumbered(id, first), percent)).collect();
        self
    }

    /// Returns the models by id, as they were loaded.
    pub fn models(&self) -> impl Iterator<Item = (ModelId, &Model)> {
        self.models.iter().map(|(&id, loaded)| (id, &*loaded.model))
    }

    /// Returns a model as it was loaded.
    pub fn model(&self, id: ModelId) -> Option<&Model> {
        self.models.get(&id).map(|loaded| &*loaded.model)
    }

    /// Returns the profile in use for a block.
    pub fn profile(&self, id: ModelId, block: BlockId) -> Option<&Profile> {
        let loaded = self.models.get(&id)?;
        let measured = || loaded.model.blocks.get(block.index()).map(|block| &block.profile);
        loaded.corrected.get(&block).or_else(measured)
    }

    /// Returns the serving devices with their latency in percent of the profile.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, u32)> {
        self.devices.iter().map(|(&id, &percent)| (id, percent))
    }

    /// Returns the controls that make this world from the one of a scheduler that begins with this
    /// number of devices and without models.
    pub(super) fn controls(&self, initial_devices: usize) -> Vec<Control> {
        let initial = (0..initial_devices).map(|id| DeviceId(id as u16));
        let left = initial.filter(|id| !self.devices.contains_key(id)).map(Control::DeviceLeft);
        let joined =
            self.devices.keys().filter(|id| id.index() >= initial_devices).map(|&id| Control::DeviceJoined(id));
        let slowed = self.devices.iter().filter(|(_, percent)| **percent != 100);
        let slowed = slowed.map(|(&device, &percent)| Control::DeviceSlowed { device, percent });
        let loaded = self.models.iter().map(|(&id, loaded)| Control::ModelLoaded(id, loaded.model.clone()));
        let corrected = self.models.iter().flat_map(|(&model, loaded)| {
            let each = loaded.corrected.iter();
            each.map(move |(&block, profile)| Control::ProfileReplaced { model, block, profile: profile.clone() })
        });
        let gathered = self.models.iter().filter_map(|(&id, loaded)| Some(Control::GatherMeasured(id, loaded.gather?)));
        let network = self.network.map(Control::NetworkDelayed);
        left.chain(joined).chain(network).chain(loaded).chain(corrected).chain(gathered).chain(slowed).collect()
    }
}
